"""A byte-level BPE of one's own, trained by the library tokenizers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from blutrain.arguments import checked
from blutrain.data.chunks import Position, Split, read_chunks
from blutrain.data.left_out import LeftOut
from blutrain.data.sources import SourceFile, find_sources
from blutrain.data.tokenizer import END_OF_TEXT, MAX_VOCAB, Tokenizer, as_text, get_tokenizer
from blutrain.data.tokenizer_bpe import INSTALL
from blutrain.data.tokenizer_file import save_tokenizer_json
from blutrain.errors import DataAccessError, DataError, InvalidInputError, TokenizerError
from blutrain.new_folder import new_folder, new_place

_SMALLEST = 257  # every byte, and end-of-text


@checked("train-tokenizer")
def train_tokenizer(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    vocab_size: int = 8192,
    field: str = "text",
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> Tokenizer:
    """Train a byte-level BPE with GPT-2's way of cutting text. The same text gives the same tokenizer.

    Args:
        sources: as in ``prepare``.
        out: folder for ``tokenizer.json``, which ``prepare`` and ``data.tokenizer`` take.
        vocab_size: ids, with those of the 256 bytes and end-of-text (id 0); text with few different words gives fewer.
        field: as in ``prepare``.
        include: as in ``prepare``.
        exclude: as in ``prepare``.
        progress: called with bytes read and bytes in all.
        report: told at the end what was left out of the text, and when the vocabulary is smaller than asked for.

    Returns:
        The tokenizer.

    Raises:
        DataError: see ``find_sources`` and ``read_records``; the text is no UTF-8, or none at all; or ``out`` holds
            something already.
        DataAccessError: the disk is full or the place not writable; nothing is left behind.
        InvalidInputError: an impossible size; or ``out`` is the current folder or a mounted disk.
        TokenizerError: tokenizers is not installed.
    """
    if not _SMALLEST <= vocab_size <= MAX_VOCAB:
        message = f"[train-tokenizer] expected a vocabulary of {_SMALLEST} to {MAX_VOCAB} ids, got {vocab_size}"
        raise InvalidInputError(message)
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise TokenizerError(f"[train-tokenizer] expected the library tokenizers, got none: {INSTALL}") from error
    folder = new_place("train-tokenizer", out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"[train-tokenizer] expected a new folder, got {folder}; choose another --out or remove it")
    left_out = LeftOut()
    named = [sources] if isinstance(sources, str | Path) else sources
    files = find_sources(named, include=include, exclude=exclude, left_out=left_out)
    texts = _texts(files, field, left_out, progress)
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(texts, trainer)
    with _access_errors(folder), new_folder("train-tokenizer", folder) as building:
        save_tokenizer_json(building, engine, END_OF_TEXT)
    tokenizer = get_tokenizer(folder)
    if report is not None:
        for line in left_out.lines():
            report(f"left out: {line}")
        if tokenizer.vocab_size < vocab_size:
            report(
                f"notice: the vocabulary has {tokenizer.vocab_size} ids and not {vocab_size}: nothing is left to merge"
                " in the text; give more text, or train with that model.vocab_size"
            )
    return tokenizer


@contextlib.contextmanager
def _access_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        found = f"'{cause.strerror or cause}'"
        message = f"[train-tokenizer] expected to write {folder}, got {found}: free space, check permissions,"
        error = DataAccessError(message + " or choose another --out")
        error.errno = cause.errno
        raise error from cause


def _texts(
    files: Sequence[SourceFile], field: str, left_out: LeftOut, progress: Callable[[int, int], None] | None
) -> Iterator[str]:
    """Pieces of all documents; raises at the end where there were none."""
    total = sum(file.size for file in files)
    found = False
    for chunk in read_chunks(files, Split(0.0, True), field, as_bytes=False, start=Position()):
        left_out.merge(chunk.left_out)
        for piece in chunk.pieces:
            found = True
            yield as_text(piece.text, piece.place)
        if progress is not None:
            progress(chunk.done, total)
    if not found:
        raise DataError(left_out.with_lines("[train-tokenizer] expected text, got none"))
