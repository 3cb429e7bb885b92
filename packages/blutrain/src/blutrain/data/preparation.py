"""Text to token shards: deterministic, on all cores, and never more than a few chunks of text in memory.

The main thread reads chunks and writes tokens, threads encode in between: tokenizers work without the interpreter's
lock, share one vocabulary and end with the process, which several processes would not.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blutrain.arguments import checked
from blutrain.data.building import Building, existing_manifest, open_building
from blutrain.data.chunks import Chunk, NotUtf8Error, Position, Split, read_chunks
from blutrain.data.dataset import (
    FORMAT,
    MANIFEST,
    SPLITS,
    TOKENIZER_FOLDER,
    VERSION,
    Dataset,
    file_digest,
    open_dataset,
)
from blutrain.data.left_out import LeftOut
from blutrain.data.shards import ShardWriter, token_dtype
from blutrain.data.sources import SourceFile, find_sources
from blutrain.data.tokenizer import Tokenizer, Tokens, get_tokenizer, unknown_id
from blutrain.errors import BlutrainError, DataAccessError, DataError, InvalidInputError, TokenizerError
from blutrain.installation import available_cpus
from blutrain.new_folder import new_place

SHARD_TOKENS = 100_000_000
"""Default length of a shard, as in llm.c's FineWeb shards."""
MAX_UNKNOWN = 0.1
"""Default of the largest share of unknown tokens: vocabularies of words reach a few percent on text that they fit."""
_JOURNAL_SECONDS = 5.0
"""About how much work is lost when the process is killed."""
_FIRST_TOKENS = 1_000_000
"""From so many tokens on, too large a share of unknown ones ends the work at once."""


@dataclass(frozen=True)
class _Job:
    """Everything that decides about the data set."""

    files: Sequence[SourceFile]
    tokenizer: Tokenizer
    field: str
    val_fraction: float
    shard_tokens: int
    strict: bool
    max_unknown: float

    def check(self, left_out: LeftOut) -> None:
        """Refuse what is left out, where nothing may be."""
        if self.strict and left_out:
            found = "; ".join(left_out.lines())
            raise DataError(f"[prepare] expected nothing to be left out with --strict, got {found}")

    @property
    def total(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        files = [[os.path.abspath(file.path), file.size, file.path.stat().st_mtime_ns] for file in self.files]
        names = ("field", "val_fraction", "shard_tokens", "strict", "max_unknown")
        values = {name: getattr(self, name) for name in names}
        return {"files": files, "tokenizer": self.tokenizer.identity.to_dict(), **values}


@dataclass
class _Counts:
    """What was written of a split."""

    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0
    """Those that separate documents not among them."""
    unknown: int = 0
    """Tokens that stand for text that the tokenizer does not know."""

    def add(self, other: _Counts) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@checked("prepare")
def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: str | Path = "bytes",
    field: str = "text",
    val_fraction: float = 0.05,
    shard_tokens: int = SHARD_TOKENS,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    strict: bool = False,
    max_unknown: float = MAX_UNKNOWN,
    force: bool = False,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> Dataset:
    """Tokenize text into shards with a manifest. Same files, same bytes out; nothing depends on time, place or workers.

    Text files are documents; JSONL (``.jsonl``, ``.ndjson``, also with ``.gz`` or ``.zst``) holds one in each line,
    JSON (``.json``) is one object or a list of objects or texts, Parquet holds one in each row. A UTF-8 byte order mark
    at the beginning of a file is skipped. Every document is preceded by the end-of-text token. Of many documents every
    ``1 / val_fraction``-th is validation text; of few text files (less than ``2 / val_fraction``), the last
    ``val_fraction`` of each.

    What is left out (files inside folders that are no text in UTF-8, empty files, records without text) is reported and
    counted in the manifest (``left_out``), and so are tokens that stand for text that the tokenizer does not know
    (``unknown_tokens``); the manifest has either only where there are any.

    The folder appears complete or not at all: it is written under another name beside its place and renamed. A process
    that was killed or interrupted left its work there, and the same call goes on from it. Where the same data set is
    already in place, it stays.

    Args:
        sources: see ``find_sources``; or one of them alone.
        out: folder to make.
        tokenizer: name or path, see ``get_tokenizer``; its files are copied into the folder.
        field: field of JSON and column of Parquet with the text.
        val_fraction: share of validation text, at least 0 and below 1.
        shard_tokens: longest shard.
        include: see ``find_sources``.
        exclude: see ``find_sources``.
        strict: anything that would be left out is an error.
        max_unknown: largest share of unknown tokens, 0 to 1; a larger one is an error, which is told as soon as a
            million tokens are there.
        force: replace a data set that is already in ``out``.
        workers: threads that encode; 0 for one on each CPU.
        progress: called with bytes done and bytes in all.
        report: told when work of an earlier process is taken up, and when it is kept for the next; at the end what was
            left out, and how many tokens are unknown.

    Returns:
        The data set.

    Raises:
        DataError: see ``find_sources`` and ``read_records``; a split is empty; ``strict`` and something was to be left
            out; or ``out`` holds something else.
        InvalidInputError: an impossible value; or ``out`` is the current folder or a mounted disk, or another process
            prepares it.
        TokenizerError: see ``get_tokenizer``; or text that the tokenizer can not encode, or too much that it
            does not know.
        DataAccessError: the disk is full or the place not writable; nothing is left behind.
    """
    if not 0 <= val_fraction < 1:
        raise InvalidInputError(f"[prepare] expected 0 <= val_fraction < 1, got {val_fraction}")
    if not 1 <= shard_tokens < 2**31:
        raise InvalidInputError(f"[prepare] expected 1 <= shard_tokens < 2**31, got {shard_tokens}")
    if workers < 0:
        raise InvalidInputError(f"[prepare] expected workers of at least 0, got {workers}")
    if not 0 <= max_unknown <= 1:
        raise InvalidInputError(f"[prepare] expected 0 <= max_unknown <= 1, got {max_unknown}")
    encoder = get_tokenizer(tokenizer)
    target = new_place("prepare", out)
    named = [sources] if isinstance(sources, str | Path) else sources
    with _access_errors(target):
        existing_manifest(target)
        left_out = LeftOut()
        files = find_sources(named, include=include, exclude=exclude, left_out=left_out, without=target)
        job = _Job(files, encoder, field, val_fraction, shard_tokens, strict, max_unknown)
        job.check(left_out)
        tell = report or (lambda _: None)
        with open_building(target, job.to_json()) as building:
            existing = existing_manifest(target)
            manifest = _build(job, left_out, building, workers or available_cpus(), progress, tell)
            if existing is None or force:
                building.place(target)
            elif existing != manifest:
                message = f"[prepare] expected a new folder, got {target}, which holds another data set"
                raise DataError(message + "; replace it with --force")
    return open_dataset(target)


@contextlib.contextmanager
def _access_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        if isinstance(cause, BlutrainError):
            raise
        place = target if cause.filename is None else cause.filename
        found = f"'{cause.strerror or cause}' for {place}"
        message = f"[prepare] expected to read the text and to write {target}, got {found}: free space,"
        error = DataAccessError(message + " check permissions, or choose another --out")
        error.errno = cause.errno
        raise error from cause


def _build(
    job: _Job,
    left_out: LeftOut,
    building: Building,
    workers: int,
    progress: Callable[[int, int], None] | None,
    report: Callable[[str], None],
) -> bytes:
    """Fill the folder; returns the manifest. What is left out is added to ``left_out``."""
    written = _Writing(job, building, report)
    try:
        with written:
            split = Split.of(job.files, job.val_fraction)
            as_bytes = job.tokenizer.identity.kind == "bytes"
            chunks = read_chunks(job.files, split, job.field, as_bytes=as_bytes, start=written.position)
            for chunk, parts in _encoded(chunks, job.tokenizer, workers):
                written.add(chunk, parts)
                if progress is not None:
                    progress(chunk.done, job.total)
    except NotUtf8Error as error:
        raise DataError(f"{error}, or take --tokenizer bytes") from None
    except KeyboardInterrupt:
        if building.load() is not None:
            report("interrupted: the same command continues from here")
        raise
    left_out.merge(written.left_out)
    _check_splits(job, left_out, written.counts)
    _check_tokens(job, written.counts)
    folder = building.path / TOKENIZER_FOLDER
    folder.mkdir(exist_ok=True)
    if not job.tokenizer.save(folder):
        folder.rmdir()
    content = _manifest(job, left_out, written)
    for line in left_out.lines():
        report(f"left out: {line}")
    if "unknown_tokens" in content:
        report(f"unknown to the tokenizer: {_unknown_text(written.counts.values())}")
    manifest = json.dumps(content, indent=1).encode() + b"\n"
    with open(building.path / MANIFEST, "wb") as file:
        file.write(manifest)
        file.flush()
        os.fsync(file.fileno())
    return manifest


class _Writing:
    """The shards of both splits, and how far they have come.

    A context manager: leaving it finishes the last shards.
    """

    def __init__(self, job: _Job, building: Building, report: Callable[[str], None]) -> None:
        self._job, self._building = job, building
        self._saved = time.monotonic()
        state = building.load()
        try:
            self._restore(job, state or {})
        except (OSError, ValueError, KeyError, TypeError):
            state = None
        if state is None:
            building.clear()
            self._restore(job, {})
        else:
            report(f"continuing what was interrupted, at {100 * state['done'] / job.total:.0f}%")

    def _restore(self, job: _Job, state: Mapping[str, Any]) -> None:
        shards, counts = state.get("shards", {}), state.get("counts", {})
        self.position = Position(**state.get("position", {}))
        self.counts = {split: _Counts(**counts.get(split, {})) for split in SPLITS}
        self.left_out = LeftOut.from_json(state.get("left_out", {}))
        dtype, folder = token_dtype(job.tokenizer.vocab_size), self._building.path
        self.writers = {
            split: ShardWriter(folder, split, job.shard_tokens, shards.get(split, ()), dtype=dtype) for split in SPLITS
        }

    def add(self, chunk: Chunk, parts: Mapping[str, tuple[Tokens, _Counts]]) -> None:
        """Write a chunk's tokens, and now and then remember how far that was."""
        for split, (tokens, counts) in parts.items():
            self.writers[split].append(tokens)
            self.counts[split].add(counts)
        self._job.check(chunk.left_out)
        self.left_out.merge(chunk.left_out)
        if sum(counts.tokens for counts in self.counts.values()) >= _FIRST_TOKENS:
            _check_tokens(self._job, self.counts)
        self.position = chunk.after
        if time.monotonic() - self._saved >= _JOURNAL_SECONDS:
            state = {
                "position": asdict(chunk.after),
                "counts": {split: asdict(counts) for split, counts in self.counts.items()},
                "left_out": self.left_out.to_json(),
                "shards": {split: writer.save() for split, writer in self.writers.items()},
                "done": chunk.done,
            }
            self._building.save(state)
            self._saved = time.monotonic()

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        with contextlib.ExitStack() as stack:
            for writer in self.writers.values():
                stack.callback(writer.__exit__, kind, error, traceback)


def _encoded(
    chunks: Iterable[Chunk], tokenizer: Tokenizer, workers: int
) -> Iterator[tuple[Chunk, dict[str, tuple[Tokens, _Counts]]]]:
    """Chunks with their tokens, in order; a few are on their way at a time."""
    pending: collections.deque[tuple[Chunk, Future[Any]]] = collections.deque()
    with ThreadPoolExecutor(workers, "blutrain-encode") as pool:
        try:
            for chunk in chunks:
                pending.append((chunk, pool.submit(_encode, tokenizer, chunk)))
                if len(pending) > 2 * workers:
                    done, future = pending.popleft()
                    yield done, future.result()
            for done, future in pending:
                yield done, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _encode(tokenizer: Tokenizer, chunk: Chunk) -> dict[str, tuple[Tokens, _Counts]]:
    """Tokens of a chunk by split, an end-of-text token before every document."""
    separator = np.array([tokenizer.end_of_text], token_dtype(tokenizer.vocab_size))
    unknown = unknown_id(tokenizer)
    tokens: dict[str, list[Tokens]] = {}
    counts: dict[str, _Counts] = {}
    for piece, encoded in zip(chunk.pieces, _encode_pieces(tokenizer, chunk), strict=True):
        count = counts.setdefault(piece.split, _Counts())
        count.documents += piece.begins
        count.tokens += len(encoded)
        count.unknown += 0 if unknown is None else int(np.count_nonzero(encoded == unknown))
        count.text_bytes += len(piece.text if isinstance(piece.text, bytes) else piece.text.encode())
        tokens.setdefault(piece.split, []).extend((separator, encoded) if piece.begins else (encoded,))
    return {split: (np.concatenate(parts), counts[split]) for split, parts in tokens.items()}


def _encode_pieces(tokenizer: Tokenizer, chunk: Chunk) -> list[Tokens]:
    try:
        return tokenizer.encode_batch([piece.text for piece in chunk.pieces])
    except TokenizerError:
        for piece in chunk.pieces:  # which one was it?
            try:
                tokenizer.encode(piece.text)
            except TokenizerError as error:
                raise TokenizerError(f"{error} (in {piece.place})") from error
        raise


def _check_splits(job: _Job, left_out: LeftOut, counts: Mapping[str, _Counts]) -> None:
    if not counts["train"].text_bytes:
        message = f"[prepare] expected training text, got none in {len(job.files)} file(s)"
        message += f" with --val-fraction {job.val_fraction}: lower it, or add text"
        raise DataError(left_out.with_lines(message))
    if job.val_fraction and not counts["val"].text_bytes:
        train = counts["train"]
        message = f"[prepare] expected validation text, got none of {train.documents} document(s) with"
        message += f" {train.text_bytes} bytes at --val-fraction {job.val_fraction}: raise it, add text,"
        raise DataError(left_out.with_lines(message + " or take --val-fraction 0 and train with train.eval_every=0"))


def _check_tokens(job: _Job, counts: Mapping[str, _Counts]) -> None:
    """Whether the tokenizer knows the text."""
    tokens, unknown = _sums(counts.values())
    if not tokens:
        message = (
            f"[prepare] expected a tokenizer that knows the text, got no token of it from {job.tokenizer.identity}"
        )
        raise TokenizerError(message + ": take another --tokenizer")
    if unknown > job.max_unknown * tokens:
        message = f"[prepare] expected a tokenizer that knows the text, got {_unknown_text(counts.values())}"
        raise TokenizerError(f"{message}: take another --tokenizer, or allow it with a --max-unknown above it")


def _sums(counts: Iterable[_Counts]) -> tuple[int, int]:
    """Tokens of text, and how many of them are unknown."""
    known = list(counts)
    return sum(count.tokens for count in known), sum(count.unknown for count in known)


def _unknown_text(counts: Iterable[_Counts]) -> str:
    tokens, unknown = _sums(counts)
    return f"{unknown:,} of {tokens:,} tokens ({100 * unknown / tokens:.2g}%)"


def _manifest(job: _Job, left_out: LeftOut, written: _Writing) -> dict[str, Any]:
    unknown = {split: counts.unknown for split, counts in written.counts.items()}
    rare = {
        "left_out": left_out.counts if left_out else None,
        "unknown_tokens": unknown if any(unknown.values()) else None,
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": job.tokenizer.identity.to_dict(),
        "dtype": token_dtype(job.tokenizer.vocab_size).name,
        "text_bytes": {split: written.counts[split].text_bytes for split in SPLITS},
        "documents": {split: written.counts[split].documents for split in SPLITS},
        "tokens": {split: sum(count for _, count in written.writers[split].shards) for split in SPLITS},
        **{key: value for key, value in rare.items() if value is not None},
        "shards": [
            {"file": path.name, "split": split, "tokens": count, "sha256": file_digest(path)}
            for split in SPLITS
            for path, count in written.writers[split].shards
        ],
    }
