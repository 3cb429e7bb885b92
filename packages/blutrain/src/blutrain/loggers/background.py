"""A tracker behind the training loop: a server that is slow or away must not make a step wait."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_WAITING_POINTS = 10_000
"""Points that may wait for the tracker; those that come while it is this far behind are lost."""
_BATCH = 100
"""Most points that are handed over at once."""
_END_SECONDS = 60.0
"""So long the end of a run waits for the tracker."""


@dataclass(frozen=True)
class Point:
    """Scalars of one step."""

    step: int
    values: Mapping[str, float]
    seconds: float
    """When, in seconds since 1970."""


class Tracker(Protocol):
    """What trackers have in common. ``begin`` runs in the run's thread, the rest in a thread of its own."""

    name: str
    place: str

    def begin(self) -> None:
        """Connect, and make the run or find it again."""

    def points(self, points: Sequence[Point]) -> None:
        """Log, in the order of the steps."""

    def end(self, status: str) -> None:
        """Finish: ``finished``, ``failed`` or ``interrupted``."""


class BackgroundLogger:
    """Hands points to a tracker in a thread; what goes wrong there is raised at the next call.

    Args:
        tracker: gets the points.
        end_seconds: most that `end` waits.
    """

    def __init__(self, tracker: Tracker, *, end_seconds: float = _END_SECONDS) -> None:
        self.name = tracker.name
        self._tracker = tracker
        self._end_seconds = end_seconds
        self._waiting: queue.Queue[Point | str] = queue.Queue(_WAITING_POINTS)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._lost = 0

    @property
    def place(self) -> str:
        """The tracker's."""
        return self._tracker.place

    def begin(self, first_step: int) -> None:
        """Connects now, so that what is wrong with the settings is told before the run has gone far."""
        self._tracker.begin()
        self._thread = threading.Thread(target=self._work, name=f"logger {self.name}", daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Puts a point into the queue; never waits."""
        self._raise()
        try:
            self._waiting.put_nowait(Point(step, dict(values), time.time()))
        except queue.Full:
            self._lost += 1

    def end(self, status: str) -> None:
        """Waits until all is handed over, within limits.

        Raises:
            TimeoutError: it was not, or points were lost before.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._raise()
        deadline = time.monotonic() + self._end_seconds
        try:
            self._waiting.put(status, timeout=self._end_seconds)
        except queue.Full:
            raise TimeoutError(f"{self._waiting.qsize()} points were not taken") from None
        thread.join(max(deadline - time.monotonic(), 0.0))
        self._raise()
        if thread.is_alive():
            raise TimeoutError(f"it did not finish within {self._end_seconds:g} seconds")
        if self._lost:
            raise TimeoutError(f"{self._lost} points were lost because it was too slow")

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        """Until the status comes, or something goes wrong."""
        try:
            while True:
                points: list[Point] = []
                status = self._take(points)
                if points:
                    self._tracker.points(points)
                if status is not None:
                    self._tracker.end(status)
                    return
        except Exception as error:  # libraries of others raise what they like
            self._error = error

    def _take(self, points: list[Point]) -> str | None:
        """Waits for something, then takes all that is there up to a batch; returns the status when it came."""
        item = self._waiting.get()
        while True:
            if isinstance(item, str):
                return item
            points.append(item)
            if len(points) == _BATCH:
                return None
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return None
