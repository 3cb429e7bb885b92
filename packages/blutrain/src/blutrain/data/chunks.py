"""The documents of a corpus as a stream of small chunks, from any of them on.

A chunk is what one thread encodes at a time. Chunks depend on the text and on nothing else, so neither the number of
threads nor an interruption changes a token.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blutrain.data.left_out import NO_TEXT, LeftOut
from blutrain.data.records import read_records
from blutrain.data.sources import SourceFile
from blutrain.data.text import cut_text, find_cut
from blutrain.errors import DataError

PIECE = 2**18
"""Longest part of a document, in bytes of a text file or characters of a record."""
CHUNK = 2**18
"""A chunk ends with the piece that makes it as long as this."""


class NotUtf8Error(DataError):
    """A text file is no UTF-8, and its text is needed as such."""


@dataclass(frozen=True)
class Position:
    """A place in a corpus between two pieces."""

    file: int = 0
    """Number of the file."""
    offset: int = 0
    """Byte of a text file; of a line of JSONL, where it begins."""
    record: int = 0
    """Line of JSONL, item of JSON or row of Parquet."""
    piece: int = 0
    """Pieces of that record that lie before."""
    documents: int = 0
    """Documents that began before."""


@dataclass(frozen=True)
class Piece:
    """A document, or a part of a long one."""

    split: str
    """``train`` or ``val``."""
    begins: bool
    """Whether its document, or the document's share of the split, begins here."""
    text: str | bytes
    """Bytes only where they were asked for."""
    place: str
    """Where it is, for messages."""


@dataclass(frozen=True)
class _NoText:
    """A record without text."""

    place: str


@dataclass(frozen=True)
class Chunk:
    """A few pieces; the last one of a corpus may have none."""

    pieces: tuple[Piece, ...]
    """In order."""
    left_out: LeftOut
    """Records without text among them and before them."""
    after: Position
    """Where the next chunk begins."""
    done: int
    """Bytes of all files that lie before it."""


@dataclass(frozen=True)
class Split:
    """Which text is for validation.

    Of many documents every ``1 / fraction``-th is; of few text files the last ``fraction`` of each.
    """

    fraction: float
    """Share of validation text."""
    by_document: bool
    """Whether whole documents are taken."""

    @classmethod
    def of(cls, files: Sequence[SourceFile], fraction: float) -> Split:
        """The split of a corpus; files with many documents are never cut."""
        few = all(file.kind == "text" for file in files) and len(files) * fraction < 2
        return cls(fraction, not few)

    def of_document(self, index: int) -> str:
        """Split of the document with a number."""
        is_val = int((index + 1) * self.fraction) > int(index * self.fraction)
        return "val" if self.by_document and is_val else "train"

    def cut_of(self, file: SourceFile) -> int:
        """Byte of a text file at which its validation text begins, its size when there is none."""
        if self.by_document:
            return file.size
        return _character_boundary(file, file.size - int((file.size - file.begin) * self.fraction))


def read_chunks(
    files: Sequence[SourceFile], split: Split, field: str, *, as_bytes: bool, start: Position
) -> Iterator[Chunk]:
    """The corpus from a position on.

    Args:
        files: the corpus.
        split: which text is for validation.
        field: of the text in JSONL, JSON and Parquet.
        as_bytes: leave text files undecoded.
        start: a position that a chunk gave, of the same corpus.

    Yields:
        Chunks that together hold all of the text once.

    Raises:
        DataError: a file is damaged or has changed meanwhile.
        NotUtf8Error: a text file is no UTF-8, where ``as_bytes`` does not leave it as it is.
        OSError: a file can not be read.
    """
    pieces: list[Piece] = []
    left_out = LeftOut()
    length = 0
    for piece, after, done in _all_pieces(files, split, field, as_bytes, start):
        if isinstance(piece, _NoText):
            left_out.add(NO_TEXT, piece.place)
            continue
        pieces.append(piece)
        length += len(piece.text)
        if length >= CHUNK:
            yield Chunk(tuple(pieces), left_out, after, done)
            pieces, left_out, length = [], LeftOut(), 0
    if pieces or left_out:
        # Records without text at the end belong to no piece after which they could be read again.
        yield Chunk(tuple(pieces), left_out, Position(len(files), documents=after.documents), done)


def _all_pieces(
    files: Sequence[SourceFile], split: Split, field: str, as_bytes: bool, start: Position
) -> Iterator[tuple[Piece | _NoText, Position, int]]:
    """Pieces, the position after each, and the bytes of all files up to there."""
    done = sum(file.size for file in files[: start.file])
    position = start
    for file in files[start.file :]:
        parts = _text_pieces if file.kind == "text" else _record_pieces
        for piece, after, in_file in parts(file, split, position, field, as_bytes):
            position = after
            yield piece, after, done + in_file
        position = Position(position.file + 1, documents=position.documents)
        done += file.size


# ---- text files --------------------------------------------------------------------------------------------------


def _text_pieces(
    file: SourceFile, split: Split, start: Position, _: str, as_bytes: bool
) -> Iterator[tuple[Piece, Position, int]]:
    cut = split.cut_of(file)
    position = replace(start, offset=max(start.offset, file.begin))
    with open(file.path, "rb") as stream:
        while position.offset < file.size:
            offset = position.offset
            begins = offset in (file.begin, cut)
            documents = position.documents + (offset == file.begin)
            share = split.of_document(documents - 1) if offset < cut else "val"
            end = cut if offset < cut else file.size
            stream.seek(offset)
            raw = stream.read(min(PIECE, end - offset))
            if not raw:
                raise DataError(f"[data] expected {file.size} bytes in {file.path}, got {offset}: it has changed")
            text, size = (raw, len(raw)) if as_bytes else _decoded(raw, offset + len(raw) == end, file.path, offset)
            position = replace(position, offset=offset + size, documents=documents)
            yield Piece(share, begins, text, str(file.path)), position, position.offset


def _decoded(raw: bytes, is_last: bool, path: Path, offset: int) -> tuple[str, int]:
    """Text of the first bytes, up to a good place for a cut unless they are the last ones, and their number."""
    try:
        text, size = codecs.utf_8_decode(raw, "strict", is_last)
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at position {offset + error.start}"
        message = f"[data] expected text in UTF-8, got {found} of {path}: convert it, or leave it out with --exclude"
        raise NotUtf8Error(message) from None
    if is_last:
        return text, size
    text = text[: find_cut(text, len(text) - 1)]
    return text, len(text.encode())


def _character_boundary(file: SourceFile, offset: int) -> int:
    """The first byte from ``offset`` on that does not continue a character of UTF-8."""
    with open(file.path, "rb") as stream:
        stream.seek(offset)
        for byte in stream.read(3):  # a character has at most three such bytes
            if byte & 0xC0 != 0x80:
                break
            offset += 1
    return offset


# ---- files with many documents -----------------------------------------------------------------------------------


def _record_pieces(
    file: SourceFile, split: Split, start: Position, field: str, _: bool
) -> Iterator[tuple[Piece | _NoText, Position, int]]:
    skipped = start.piece
    documents = start.documents - (skipped > 0)
    position = start
    for record in read_records(file, field, start.record, start.offset):
        if not record.text:
            yield _NoText(record.place), position, record.done
            continue
        share = split.of_document(documents)
        documents += 1
        for number, text in enumerate(cut_text(record.text, PIECE)):
            if number < skipped:
                continue
            position = Position(start.file, record.offset, record.index, number + 1, documents)
            yield Piece(share, number == 0, text, record.place), position, record.done
        skipped = 0
