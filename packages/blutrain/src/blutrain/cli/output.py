"""What commands write beside their result: notes and progress bars, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 1000


def note(text: str) -> None:
    """Write a line to standard error."""
    click.echo(text, err=True)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys to standard error, a column per key that has a value in any of them."""
    table = Table(box=None, pad_edge=False)
    keys = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    for key in keys:
        table.add_column(key, justify="left" if isinstance(rows[0][key], str) else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(row[key])) for key in keys))
    # A pipe has no width; nothing of a table is cut off there.
    Console(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class progress_bar:
    """A bar on standard error for a function that calls back with what is done and what there is in all."""

    def __init__(self, title: str) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._title = title

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.start()
        task = self._bar.add_task(self._title, total=None)
        return lambda done, total: self._bar.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
