"""Which files text is taken from: files, folders and globs, in an order that only depends on names."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """``text`` (one document), ``jsonl`` (a document in each line) or ``parquet`` (a document in each row)."""


def kind_of(path: Path) -> str:
    """What a file's name says that it holds; see ``SourceFile.kind``."""
    if _JSON_LINES.fullmatch(path.name):
        return "jsonl"
    return "parquet" if path.suffix == ".parquet" else "text"


def find_sources(
    sources: Sequence[str | Path],
    *,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
) -> list[SourceFile]:
    """Files named by files, folders and globs, each once, in an order that only depends on names.

    Sources keep their order; within a folder or glob, files are sorted by path. Inside folders, hidden names and
    ``__pycache__`` are left out, and so are empty files and text files with a byte 0, which are no text.

    Args:
        sources: files, folders (searched in depth) and globs (``**`` goes into folders).
        include: patterns for names of files inside folders, one of which must match.
        exclude: patterns for names of files and folders inside folders, none of which may match.

    Returns:
        The files.

    Raises:
        DataError: a source matches nothing, a file that was named itself is no text, or nothing is left.
    """
    if not sources:
        raise DataError("[prepare] expected at least 1 file, folder or glob, got none")
    excludes = (*DEFAULT_EXCLUDES, *exclude)
    found: dict[Path, SourceFile] = {}
    for source in sources:
        named = Path(source)
        for path in _paths(source, include, excludes):
            size, kind = path.stat().st_size, kind_of(path)
            if size and (kind != "text" or _is_text(path)):
                found.setdefault(path.resolve(), SourceFile(path, size, kind))
            elif path == named and size:
                raise DataError(f"[prepare] expected text, got a file with a byte 0: {path}; leave binary files out")
    if not found:
        names = ", ".join(str(source) for source in sources)
        raise DataError(f"[prepare] expected text, got an empty corpus: no file with text in {names}")
    return list(found.values())


def _paths(source: str | Path, include: Sequence[str], exclude: Sequence[str]) -> list[Path]:
    named = Path(source)
    if named.is_dir():
        return _scan(named, include, exclude)
    if named.exists():
        if not named.is_file():
            message = f"[prepare] expected a regular file, folder or glob, got a device or pipe: {named}"
            raise DataError(message + "; write its text to a file first")
        return [named]
    matches = sorted(Path(match) for match in glob.glob(str(source), recursive=True))
    paths = [path for path in matches if path.is_file()]
    if not paths:
        raise DataError(f"[prepare] expected an existing file, folder or glob, got {str(source)!r}")
    return paths


def _scan(folder: Path, include: Sequence[str], exclude: Sequence[str]) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _matches(name, exclude)]
        found += [Path(parent, name) for name in files if _matches(name, include) and not _matches(name, exclude)]
    return sorted(path for path in found if path.is_file())


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_text(path: Path) -> bool:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            if 0 in block:
                return False
    return True
