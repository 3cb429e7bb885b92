"""What commands write beside their result: notes and progress bars, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
from rich.console import Console
from rich.progress import Progress


def note(text: str) -> None:
    """Write a line to standard error."""
    click.echo(text, err=True)


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
