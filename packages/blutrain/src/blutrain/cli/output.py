"""What commands write beside their result: notes and progress bars, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from blutrain.console import format_duration

_PIPE_WIDTH = 1000
_LINE_SECONDS = 10.0


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
    """A bar on standard error for a function that calls back with what is done and what there is in all.

    Where standard error is no terminal, a line is written every few seconds instead.
    """

    def __init__(self, title: str) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._title = title
        self._begin: tuple[float, int] | None = None
        self._last_line = 0.0

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=None)
        return self._update

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._begin is None:  # what was done before must not count as speed
            self._begin, self._last_line = (now, done), now
            self._bar.reset(self._task, total=total, completed=done)
        self._bar.update(self._task, completed=done, total=total)
        if self._bar.disable and now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            seconds, progress = now - self._begin[0], done - self._begin[1]
            left = format_duration((total - done) * seconds / progress if progress else -1.0)
            note(f"{self._title} {100 * done / max(total, 1):.0f}%  ETA {left}")
