"""Text to token shards: deterministic, and never more than a piece of a file in memory."""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blutrain.data.dataset import FORMAT, MANIFEST, SPLITS, Dataset, file_digest, open_dataset
from blutrain.data.shards import ShardWriter
from blutrain.data.tokenizer import Tokenizer, get_tokenizer
from blutrain.errors import BlutrainError, DataAccessError, DataError, InvalidInputError

SHARD_TOKENS = 100_000_000
"""Default length of a shard, as in llm.c's FineWeb shards."""
DEFAULT_EXCLUDES = ("__pycache__", ".*")
"""Names of files and folders that a folder's scan leaves out."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class Document:
    """One text file."""

    path: Path
    size: int
    """Bytes."""


def find_documents(
    sources: Sequence[str | Path],
    *,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
) -> list[Document]:
    """Text files named by files, folders and globs, each once, in an order that only depends on names.

    Sources keep their order; within a folder or glob, files are sorted by path. Inside folders, hidden names and
    ``__pycache__`` are left out, and so are empty files and those with a byte 0, which are no text.

    Args:
        sources: files, folders (searched in depth) and globs (``**`` goes into folders).
        include: patterns for names of files inside folders, one of which must match.
        exclude: patterns for names of files and folders inside folders, none of which may match.

    Returns:
        The documents.

    Raises:
        DataError: a source matches nothing, a file that was named itself is no text, or nothing is left.
    """
    if not sources:
        raise DataError("[prepare] expected at least 1 file, folder or glob, got none")
    excludes = (*DEFAULT_EXCLUDES, *exclude)
    documents: dict[Path, Document] = {}
    for source in sources:
        named = Path(source)
        if named.is_dir():
            paths = _scan(named, include, excludes)
        elif named.exists():
            if not named.is_file():
                message = f"[prepare] expected a regular file, folder or glob, got a device or pipe: {named}"
                raise DataError(message + "; write its text to a file first")
            paths = [named]
        else:
            paths = sorted(Path(match) for match in glob.glob(str(source), recursive=True))
            paths = [path for path in paths if path.is_file()]
            if not paths:
                raise DataError(f"[prepare] expected an existing file, folder or glob, got {str(source)!r}")
        for path in paths:
            if _is_text(path):
                documents.setdefault(path.resolve(), Document(path, path.stat().st_size))
            elif path == named and path.stat().st_size:
                raise DataError(f"[prepare] expected text, got a file with a byte 0: {path}; leave binary files out")
    if not documents:
        names = ", ".join(str(source) for source in sources)
        raise DataError(f"[prepare] expected text, got an empty corpus: no file with text in {names}")
    return list(documents.values())


def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: str = "bytes",
    val_fraction: float = 0.05,
    shard_tokens: int = SHARD_TOKENS,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Tokenize text into shards with a manifest. Same files, same bytes out; nothing depends on time or place.

    Every document is preceded by the end-of-text token. Of many documents (at least ``2 / val_fraction``) every
    ``1 / val_fraction``-th is validation text; of few, the last ``val_fraction`` of each. The folder appears complete
    or not at all: it is written under another name beside its place and renamed. Where the same data set is already in
    place, it stays.

    Args:
        sources: see ``find_documents``; or one of them alone.
        out: folder to make.
        tokenizer: name of the tokenizer.
        val_fraction: share of validation text, at least 0 and below 1.
        shard_tokens: longest shard.
        include: see ``find_documents``.
        exclude: see ``find_documents``.
        force: replace a data set that is already in ``out``.
        progress: called with bytes done and bytes in all.

    Returns:
        The data set.

    Raises:
        DataError: see ``find_documents``; or ``out`` holds something else.
        InvalidInputError: an impossible value.
        TokenizerError: unknown tokenizer.
        DataAccessError: the disk is full or the place not writable; nothing is left behind.
    """
    if not 0 <= val_fraction < 1:
        raise InvalidInputError(f"[prepare] expected 0 <= val_fraction < 1, got {val_fraction}")
    if not 1 <= shard_tokens < 2**31:
        raise InvalidInputError(f"[prepare] expected 1 <= shard_tokens < 2**31, got {shard_tokens}")
    encoder = get_tokenizer(tokenizer)
    target = Path(os.path.abspath(out))
    with _access_errors(target):
        _clean_up(target)
        existing = _existing_manifest(target)
        documents = find_documents(
            [sources] if isinstance(sources, str | Path) else sources, include=include, exclude=exclude
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        with _building(target) as building:
            _write(documents, building, encoder, val_fraction, shard_tokens, progress)
            if existing is None or force:
                _move_into_place(building, target)
            elif existing != (building / MANIFEST).read_bytes():
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
        message = (
            f"[prepare] expected to read the text and to write {target}, got '{cause.strerror or cause}' for {place}"
        )
        error = DataAccessError(message + ": free space, check permissions, or choose another --out")
        error.errno = cause.errno
        raise error from cause


@contextlib.contextmanager
def _building(target: Path) -> Iterator[Path]:
    """A folder beside ``target``, locked while this process writes it, and gone afterwards."""
    building = target.parent / f".{target.name}.partial-{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    descriptor = os.open(building, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)
        os.close(descriptor)


def _clean_up(target: Path) -> None:
    """Remove what processes that were killed left beside ``target``; a data set that had made room comes back."""
    if not target.parent.is_dir():
        return
    prefix = f".{target.name}."
    for path in sorted(target.parent.iterdir()):
        if path.name.startswith(f"{prefix}partial-") and path.is_dir() and not _is_locked(path):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(f"{prefix}replaced-") and path.is_dir():
            if target.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.rename(target)


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _scan(folder: Path, include: Sequence[str], exclude: Sequence[str]) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _matches(name, exclude)]
        found += [Path(parent, name) for name in files if _matches(name, include) and not _matches(name, exclude)]
    return sorted(path for path in found if path.is_file())


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_text(path: Path) -> bool:
    empty = True
    for piece in _pieces(path, 0, path.stat().st_size):
        empty = False
        if 0 in piece:
            return False
    return not empty


def _pieces(path: Path, begin: int, end: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        file.seek(begin)
        while begin < end and (piece := file.read(min(_PIECE, end - begin))):
            begin += len(piece)
            yield piece


def _existing_manifest(target: Path) -> bytes | None:
    """The manifest of a data set that is already there, None when the place is free."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    if not target.is_dir() or not (target / MANIFEST).exists():
        raise DataError(
            f"[prepare] expected a new folder, got {target}, which holds something else; choose another --out"
        )
    return (target / MANIFEST).read_bytes()


def _parts(documents: list[Document], val_fraction: float) -> Iterator[tuple[str, Document, int, int]]:
    """Split, document, first byte, end byte."""
    many = val_fraction > 0 and len(documents) * val_fraction >= 2
    for index, document in enumerate(documents):
        if many:
            is_val = int((index + 1) * val_fraction) > int(index * val_fraction)
            yield "val" if is_val else "train", document, 0, document.size
        else:
            cut = document.size - int(document.size * val_fraction)
            yield "train", document, 0, cut
            if cut < document.size:
                yield "val", document, cut, document.size


def _write(
    documents: list[Document],
    folder: Path,
    tokenizer: Tokenizer,
    val_fraction: float,
    shard_tokens: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    total = sum(document.size for document in documents)
    done = 0
    counts = dict.fromkeys(SPLITS, 0)
    separator = np.array([tokenizer.end_of_text], np.uint16)
    with contextlib.ExitStack() as stack:
        writers = {split: stack.enter_context(ShardWriter(folder, split, shard_tokens)) for split in SPLITS}
        for split, document, begin, end in _parts(documents, val_fraction):
            writers[split].append(separator)
            counts[split] += 1
            for piece in _pieces(document.path, begin, end):
                writers[split].append(tokenizer.encode(piece))
                done += len(piece)
                if progress is not None:
                    progress(done, total)
    manifest = {
        "format": FORMAT,
        "version": 1,
        "tokenizer": tokenizer.identity.kind,
        "vocab_size": tokenizer.vocab_size,
        "end_of_text": tokenizer.end_of_text,
        "bytes": total,
        "documents": counts,
        "tokens": {split: sum(count for _, count in writers[split].shards) for split in SPLITS},
        "shards": [
            {"file": path.name, "split": split, "tokens": count, "sha256": file_digest(path)}
            for split in SPLITS
            for path, count in writers[split].shards
        ],
    }
    with open(folder / MANIFEST, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _move_into_place(building: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        building.rename(target)
        return
    replaced = target.parent / f".{target.name}.replaced-{os.getpid()}"
    target.rename(replaced)
    try:
        building.rename(target)
    except OSError:
        replaced.rename(target)
        raise
    shutil.rmtree(replaced)
