"""What commands write beside their result: notes and progress bars, on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from blutrain.console import format_duration

_PIPE_WIDTH = 1000
_LINE_SECONDS = 10.0


def note(text: str) -> None:
    """Write a line to standard error, or drop it where nobody reads that any more."""
    with contextlib.suppress(OSError):  # click may write past `LastingStream`, to repair an encoding
        click.echo(text, err=True)


def print_table(rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows with the same keys to standard error, a column per key; the first column is the rows' names."""
    table = Table(box=None, pad_edge=False)
    for number, key in enumerate(rows[0]):
        # On a narrow terminal a name is broken, and never a number.
        table.add_column(key, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row.values()))
    # A pipe has no width; nothing of a table is cut off there.
    Console(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH).print(table)


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
