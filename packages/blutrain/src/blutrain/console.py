"""What a person sees of a run: lines of text, and a progress bar with loss, speed and time left.

On a terminal the bar is redrawn in place; elsewhere (a log file, a CI job) a line is printed every few seconds, and
nothing but text is written.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

Rows = Sequence[tuple[str, str]]
"""A name and what there is to say of it; a text may have several lines."""

_NAME_WIDTH = 11


class Reporter(Protocol):
    """What the trainer tells about itself."""

    def line(self, text: str) -> None:
        """Say something that stays on the screen."""
        ...

    def warning(self, text: str) -> None:
        """Say something that a person who wants to hear nothing has to know all the same."""
        ...

    def section(self, title: str, rows: Rows) -> None:
        """Show facts under a title."""
        ...

    def start(self, first_step: int, steps: int) -> None:
        """Steps begin: ``first_step`` are done of ``steps``."""
        ...

    def progress(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """``step`` steps are done."""
        ...

    def stop(self) -> None:
        """Steps have ended, for whatever reason."""
        ...


class SilentReporter:
    """Says nothing."""

    def line(self, text: str) -> None:
        """Nothing."""

    def warning(self, text: str) -> None:
        """Nothing."""

    def section(self, title: str, rows: Rows) -> None:
        """Nothing."""

    def start(self, first_step: int, steps: int) -> None:
        """Nothing."""

    def progress(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class LastingStream:
    """A stream of text that nobody need read to the end: what can not be written is dropped, and no error says so.

    For a pipe whose reader has left, a terminal that was closed, a full disk. Everything else is the stream's own.

    Args:
        stream: where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write, or drop the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush what can be written."""
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            pass
        except ValueError:  # of a closed stream, and of text that its encoding does not have
            if not self._stream.closed:
                raise


class ConsoleReporter:
    """Writes to a terminal or a file.

    Args:
        stream: standard error by default, so that results on standard output stay clean. What can not be written, as
            to a pipe that nobody reads any more, is dropped: training goes on.
        interval: seconds between progress lines where the stream is no terminal.
        quiet: whether only warnings are written.
    """

    def __init__(self, stream: TextIO | None = None, interval: float = 5.0, *, quiet: bool = False) -> None:
        lasting = None if (stream := stream or sys.stderr) is None else cast(TextIO, LastingStream(stream))
        self._console = Console(file=lasting, stderr=True, highlight=False, soft_wrap=True)
        self._interval = interval
        self._quiet = quiet
        self._progress: Progress | None = None
        self._steps = 0
        self._last_line = 0.0

    def __enter__(self) -> ConsoleReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def line(self, text: str) -> None:
        """Print a line, above the bar when there is one."""
        if not self._quiet:
            self._print(Text(text))

    def warning(self, text: str) -> None:
        """Print a line, also when quiet."""
        self._print(Text(text, style="yellow"))

    def section(self, title: str, rows: Rows) -> None:
        """Print a title and a line per row; further lines of a text stand below its first."""
        if self._quiet:
            return
        block = Text(title, style="bold")
        for name, text in rows:
            block.append(f"\n  {name:<{_NAME_WIDTH}} ", style="cyan")
            block.append(text.replace("\n", "\n" + " " * (_NAME_WIDTH + 3)), style="not bold")
        self._print(block)

    def _print(self, text: Text) -> None:
        (self._progress.console if self._progress else self._console).print(text)

    def start(self, first_step: int, steps: int) -> None:
        """Show the bar."""
        self._steps = steps
        self._last_line = time.monotonic()
        if self._quiet or not self._console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._progress.add_task("", total=steps, completed=first_step, status="")
        self._progress.start()

    def progress(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Move the bar, or print a line when the last one is old."""
        status = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  ETA {format_duration(seconds_left)}"
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=step, status=status)
        elif time.monotonic() - self._last_line >= self._interval or step == self._steps:
            self._last_line = time.monotonic()
            self.line(f"step {step}/{self._steps}  {status}")

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def format_duration(seconds: float) -> str:
    """``1:05`` or ``2:03:04``; ``-`` when it is not known."""
    if not 0 <= seconds < 1e9:
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
