"""Reports source files that outgrew one room: over 500 lines is named, over 700 fails. Generated files are no rooms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import repository

REPORT, FAIL = 500, 700
SUFFIXES = {".py", ".pyi", ".h", ".hpp", ".cpp", ".cu", ".cuh", ".cmake", ".txt"}
TOPS = ("cmake", "packages", "tools", "integration_tests", "noxfile.py")


def long_files() -> Iterator[tuple[int, Path]]:
    """(lines, path) of every source file with more than REPORT lines."""
    for top in TOPS:
        path = repository.ROOT / top
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                text = file.read_bytes()
                lines = text.count(b"\n")
                if lines > REPORT and b"generated" not in text.partition(b"\n")[0].lower():
                    yield lines, file.relative_to(repository.ROOT)


def main() -> int:
    """Print the long files, longest first."""
    found = sorted(long_files(), reverse=True)
    for lines, path in found:
        print(f"{lines:5d} {path}{' (too long, split it)' if lines > FAIL else ''}")
    print(f"{len(found)} files have more than {REPORT} lines")
    return 1 if any(lines > FAIL for lines, _ in found) else 0


if __name__ == "__main__":
    sys.exit(main())
