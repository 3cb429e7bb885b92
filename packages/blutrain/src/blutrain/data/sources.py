"""Which files text is taken from: files, folders and globs, in an order that only depends on names."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blutrain.data.left_out import BINARY, EMPTY, ENCODING, SPECIAL, LeftOut
from blutrain.data.text import BYTE_ORDER_MARK, foreign_encoding
from blutrain.errors import DataError

DEFAULT_EXCLUDES = ("__pycache__", ".*")
"""Names of files and folders that a folder's scan leaves out."""
_JSON_LINES = re.compile(r".*\.(jsonl|ndjson)(\.gz|\.zst)?|.*\.json\.(gz|zst)")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A file with text."""

    path: Path
    """Where it is."""
    size: int
    """Bytes."""
    kind: str
    """``text`` (one document), ``jsonl`` (a document in each line), ``json`` (one, or a list of them) or ``parquet`` (a
    document in each row)."""
    begin: int = 0
    """Byte at which the text of a text file begins, after a byte order mark."""


def kind_of(path: Path) -> str:
    """What a file's name says that it holds; see ``SourceFile.kind``."""
    if _JSON_LINES.fullmatch(path.name):
        return "jsonl"
    return {".parquet": "parquet", ".json": "json"}.get(path.suffix, "text")


def find_sources(
    sources: Sequence[str | Path],
    *,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    left_out: LeftOut | None = None,
    without: Path | None = None,
) -> list[SourceFile]:
    """Files named by files, folders and globs, each once, in an order that only depends on names.

    Sources keep their order; within a folder or glob, files are sorted by path. Inside folders, hidden names and
    ``__pycache__`` are left out. So are empty files, text files with a byte 0, which are no text, text files that begin
    with the byte order mark of UTF-16 or UTF-32, and what is no file: these are counted.

    Args:
        sources: files, folders (searched in depth) and globs (``**`` goes into folders).
        include: patterns for names of files inside folders, one of which must match.
        exclude: patterns for names of files and folders inside folders, none of which may match.
        left_out: told what is left out that is no hidden name and was not asked to be.
        without: a folder, links followed, in which nothing is found, as what is written may lie inside a source.

    Returns:
        The files.

    Raises:
        DataError: a source matches nothing, a file that was named itself is no text in UTF-8, or nothing is left.
        OSError: a folder or a text file can not be read.
    """
    if not sources:
        raise DataError("[data] expected at least 1 file, folder or glob, got none")
    excludes = (*DEFAULT_EXCLUDES, *exclude)
    skipped = LeftOut() if left_out is None else left_out
    found: dict[Path, SourceFile] = {}
    seen: set[Path] = set()
    for source in sources:
        if not str(source):
            raise DataError("[data] expected the name of a file, folder or glob, got '': name the current folder as .")
        named = Path(source)
        for path in _paths(source, include, excludes, skipped):
            place = path.resolve()
            if path != named and (place in seen or without in place.parents):
                continue
            seen.add(place)
            file = _source_file(path, path == named, skipped)
            if file is not None:
                found.setdefault(place, file)
    if not found:
        names = ", ".join(str(source) for source in sources)
        raise DataError(skipped.with_lines(f"[data] expected text, got an empty corpus: no file with text in {names}"))
    return list(found.values())


def _source_file(path: Path, is_named: bool, left_out: LeftOut) -> SourceFile | None:
    """The file, None where it is left out."""
    size, kind = path.stat().st_size, kind_of(path)
    if kind != "text" and size:
        return SourceFile(path, size, kind)
    begin, has_zero, encoding = _look_through(path)
    if size == begin:
        left_out.add(EMPTY, path)
    elif encoding is not None:
        if is_named:
            message = f"[data] expected text in UTF-8, got {encoding} (by its byte order mark) in {path}"
            raise DataError(f"{message}: convert it, with 'iconv -f {encoding.split()[0]} -t UTF-8' for example")
        left_out.add(ENCODING, path)
    elif has_zero:
        if is_named:
            raise DataError(f"[data] expected text, got a file with a byte 0: {path}; leave binary files out")
        left_out.add(BINARY, path)
    else:
        return SourceFile(path, size, kind, begin)
    return None


def _paths(source: str | Path, include: Sequence[str], exclude: Sequence[str], left_out: LeftOut) -> list[Path]:
    named = Path(source)
    if named.is_dir():
        return _scan(named, include, exclude, left_out)
    if named.exists():
        if not named.is_file():
            message = f"[data] expected a regular file, folder or glob, got a device or pipe: {named}"
            raise DataError(message + "; write its text to a file first")
        return [named]
    matches = sorted(Path(match) for match in glob.glob(str(source), recursive=True))
    paths = [path for path in matches if path.is_file()]
    if not paths:
        raise DataError(f"[data] expected an existing file, folder or glob, got {str(source)!r}")
    return paths


def _scan(folder: Path, include: Sequence[str], exclude: Sequence[str], left_out: LeftOut) -> list[Path]:
    found: list[Path] = []
    others: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not _matches(name, exclude)]
        others += [path for name in folders if (path := Path(parent, name)).is_symlink()]
        for name in files:
            if _matches(name, include) and not _matches(name, exclude):
                path = Path(parent, name)
                (found if path.is_file() else others).append(path)
    for path in sorted(others):
        left_out.add(SPECIAL, path)
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _look_through(path: Path) -> tuple[int, bool, str | None]:
    """Where a text file's text begins, whether there is a byte 0 in it, and the encoding that its first bytes name."""
    with open(path, "rb") as file:
        block = file.read(_BLOCK)
        begin = len(BYTE_ORDER_MARK) if block.startswith(BYTE_ORDER_MARK) else 0
        encoding = foreign_encoding(block)
        while block:
            if 0 in block:
                return begin, True, encoding
            block = file.read(_BLOCK)
    return begin, False, encoding
