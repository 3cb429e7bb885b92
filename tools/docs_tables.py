"""Writes the tables of measured figures in the documentation from the JSON that the benchmarks keep.

In a Markdown file, what stands between these two lines is generated (indented, as here, they are only shown):

    <!-- table:packages/blublas/benchmarks/results/<machine>/gemm.json -->
    <!-- /table -->

The name is a path from the root of the repository, or a glob of several files whose rows follow each other; behind it
may stand ``work=PATTERN`` to take only matching rows (``<!-- table:PATH work=gemm.bf16.* -->``).

    python tools/docs_tables.py            write the tables
    python tools/docs_tables.py --check    change nothing; exit with 1 when a table differs from its JSON
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import repository

MARKED = re.compile(
    r"(?P<begin>^<!-- table:(?P<name>\S+)(?: work=(?P<work>\S+))? -->\n)(?P<body>.*?)(?P<end>^<!-- /table -->)",
    re.DOTALL | re.MULTILINE,
)
OPENED = re.compile(r"^<!-- table:", re.MULTILINE)
REQUIRED = ("work", "ours", "better", "machine", "commit", "date", "command")


class TableError(ValueError):
    """A marker names no result, or a result file is not in the format of the benchmarks."""


def load_rows(root: Path, name: str, work: str | None) -> list[dict[str, Any]]:
    """The rows of the JSON lists that a marker names.

    Raises:
        TableError: no such file, not a list of objects, a field is missing, or no row matches ``work``.
    """
    files = sorted(root.glob(name))
    if not files:
        raise TableError(f"[docs_tables] expected a result file, got none at {name}; run the benchmark that writes it")
    rows: list[dict[str, Any]] = []
    for file in files:
        data = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
            raise TableError(f"[docs_tables] expected one list of objects, got {type(data).__name__} in {file}")
        for row in data:
            missing = [key for key in REQUIRED if key not in row]
            if missing:
                raise TableError(f"[docs_tables] expected {', '.join(REQUIRED)}, got no {missing} in {file}: {row}")
        rows += data
    chosen = [row for row in rows if work is None or fnmatch.fnmatchcase(row["work"], work)]
    if not chosen:
        raise TableError(f"[docs_tables] expected rows that match work={work}, got none in {name}")
    return chosen


def number(value: object) -> str:
    """Four significant digits, thousands grouped; other values as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def render(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of the rows, the ratio last, and under it where and how it was measured."""
    peers = any(row.get("peer") is not None for row in rows)
    header = ["work", "ours", *(["peer", "peer's figure"] if peers else []), "better", *(["ratio"] if peers else [])]
    lines = [
        f"| {' | '.join(header)} |",
        f"|{'|'.join('---' if h in ('work', 'peer', 'better') else '--:' for h in header)}|",
    ]
    for row in rows:
        cells = [f"`{row['work']}`", number(row["ours"])]
        cells += [str(row.get("peer_name", "")), number(row.get("peer"))] if peers else []
        cells += [str(row["better"])]
        cells += [f"{row['ratio']:.2f}x" if row.get("ratio") is not None else ""] if peers else []
        lines.append(f"| {' | '.join(cells)} |")
    sources = dict.fromkeys((row["machine"], row["date"], row["commit"], row["command"]) for row in rows)
    lines.append("")
    lines += [f"Measured on {m}, {d}, commit `{c}`, with `{command}`.  " for m, d, c, command in sources]
    return "\n".join(lines) + "\n"


def update(text: str, root: Path) -> str:
    """The text of a Markdown file with every marked table written anew."""

    def table(match: re.Match[str]) -> str:
        return match["begin"] + render(load_rows(root, match["name"], match["work"])) + match["end"]

    return MARKED.sub(table, text)


def documents(root: Path) -> Iterator[Path]:
    """The Markdown files of the repository."""
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "packages").glob("*/**/*.md"))


def main(arguments: list[str] | None = None) -> int:
    """Write or check the tables of all documents."""
    parser = argparse.ArgumentParser(description="Write the benchmark tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 when a table differs")
    parser.add_argument("--root", type=Path, default=repository.ROOT, help="root of the repository")
    options = parser.parse_args(arguments)
    stale, tables = [], 0
    for document in documents(options.root):
        text = document.read_text(encoding="utf-8")
        name = document.relative_to(options.root)
        if len(OPENED.findall(text)) != len(MARKED.findall(text)):
            print(f"{name}: a table marker is not closed by <!-- /table -->")
            stale.append(name)
            continue
        tables += len(MARKED.findall(text))
        try:
            wanted = update(text, options.root)
        except (TableError, json.JSONDecodeError) as error:
            print(f"{name}: {error}")
            stale.append(name)
            continue
        if wanted != text and options.check:
            print(f"{name}: a table differs from its JSON; run python tools/docs_tables.py")
            stale.append(name)
        elif wanted != text:
            document.write_text(wanted, encoding="utf-8")
            print(f"{name}: written")
    print(f"{tables} tables, {len(stale)} documents with problems")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
