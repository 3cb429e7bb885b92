"""Ctrl-C, SIGTERM and SIGHUP as a request to stop after the step that is running."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

NOTE = "stopping: finishing the step, then saving; --resume continues"


class FirstInterrupt:
    """A handler of SIGINT for a whole command: the first one interrupts, those after it must not disturb the ending."""

    def __init__(self) -> None:
        self.done = False
        """Whether one came, or a `StopSignal` took one."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if not self.done:
            self.done = True
            raise KeyboardInterrupt


class StopSignal:
    """While it is entered, SIGINT, SIGTERM and SIGHUP only set ``requested``, however often they come.

    A SIGHUP that is ignored already, as under ``nohup``, stays ignored. Outside the main thread, where Python delivers
    no signals, entering does nothing.

    Args:
        note: told once that the end is near.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self.requested: int | None = None
        """Number of the first signal that came."""
        self._note = note
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in self._SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program ended by that signal: 130 for Ctrl-C."""
        return 128 + (self.requested or signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            return
        self.requested = number
        outer = self._previous.get(signal.SIGINT)
        if isinstance(outer, FirstInterrupt):
            outer.done = True
        if self._note is not None:
            # The terminal may be gone, or may be in the middle of a line of ours.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._note(NOTE)
