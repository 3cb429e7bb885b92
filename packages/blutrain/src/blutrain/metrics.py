"""``metrics.jsonl``: one JSON object per event of a run, in the order of steps, never a step twice.

    {"event": "train", "step": 100, "loss": 3.2, "lr": 0.0006, "grad_norm": 0.9, "tokens_per_second": 61000.0, ...}
    {"event": "validation", "step": 100, "loss": 3.3, "tokens": 40960}

Losses are in nats per token. Numbers that JSON lacks are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as
in the JSON form of protocol buffers; `read_metrics` turns them back. What is not known, such as an MFU, is null.

Lines are appended with one system call each, so a process that is killed leaves whole lines; after a power cut the last
one may be torn, which readers pass over and resuming removes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blutrain.checkpoint.files import Files, OsFiles, write_small_file
from blutrain.errors import BlutrainError

Event = dict[str, Any]

_READ_AND_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunFolderError(BlutrainError):
    """A run folder cannot be used; the message names it and the fix.

    Attributes:
        path: the file or folder that the message is about.
    """

    def __init__(self, path: str | os.PathLike[str], message: str) -> None:
        self.path = Path(path)
        super().__init__(f"[run folder] {self.path}: {message}")


class RunFolderAccessError(RunFolderError, OSError):
    """The operating system refused to read or write a file of the run."""

    def __init__(self, path: str | os.PathLike[str], cause: OSError) -> None:
        reason = cause.strerror or str(cause)
        message = (
            f"expected to read and write it, got '{reason}': free space, make it writable, or choose another folder"
        )
        super().__init__(path, message)
        self.errno = cause.errno


class RunFolderLostError(RunFolderError, FileNotFoundError):
    """The folder was deleted, moved or replaced while a run trained in it.

    Attributes:
        now: where the folder lies now; None when it was deleted.
    """

    def __init__(self, path: str | os.PathLike[str], now: Path | None, kept: str = "") -> None:
        self.now = now
        what = "deleted or replaced" if now is None else f"moved to {now}"
        super().__init__(path, f"expected it to stay while a run trains in it, got it {what}{kept}")


class LineFile:
    """A file of JSON lines that only grows. Nothing is buffered in this process.

    Args:
        path: the file, made when the first line comes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._descriptor: int | None = None

    def append(self, event: Mapping[str, Any]) -> None:
        """Appends one event.

        Raises:
            RunFolderAccessError: the disk is full or the file may not be written to.
        """
        self.append_text(encode_event(event) + "\n")

    def append_text(self, text: str) -> tuple[int, int]:
        """Appends text as it is; returns the offsets of its first byte and of the one past its last."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, _READ_AND_APPEND, 0o666)
            data = memoryview(text.encode(errors="replace"))
            length = data.nbytes
            while data.nbytes:
                data = data[os.write(self._descriptor, data) :]
            end = os.fstat(self._descriptor).st_size
        except OSError as cause:
            raise RunFolderAccessError(self._path, cause) from cause
        return end - length, end

    def sync(self) -> None:
        """Returns when all that was appended is on the disk."""
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as cause:
                raise RunFolderAccessError(self._path, cause) from cause

    def keep(self, path: str | os.PathLike[str] | None = None) -> bool:
        """Puts the file back with all its lines when it was deleted since the first was appended.

        A file that somebody put in its place stays, and grows from now on.

        Args:
            path: where the file is to be from now on, when its folder is another now.

        Returns:
            Whether it had been deleted.

        Raises:
            RunFolderAccessError: it cannot be put back.
        """
        self._path = self._path if path is None else Path(path)
        if self._descriptor is None or os.fstat(self._descriptor).st_nlink:
            return False
        try:
            if not self._path.exists():
                content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
                write_small_file(OsFiles(), self._path, content)
        except OSError as cause:
            raise RunFolderAccessError(self._path, cause) from cause
        self.close()
        return True

    def close(self) -> None:
        """Closes the file; appending opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def encode_event(event: Mapping[str, Any]) -> str:
    """Returns an event as one line of strict JSON, without the line's end."""
    return json.dumps({key: _encode(value) for key, value in event.items()}, allow_nan=False)


def read_metrics(path: str | os.PathLike[str], report: Callable[[str], None] | None = None) -> list[Event]:
    """Reads a file of events; lines that are not whole events, as after a power cut, are passed over.

    Args:
        path: ``metrics.jsonl``, or the run folder that holds it.
        report: told once, when lines were passed over.

    Returns:
        The events in order; none when there is no such file.

    Raises:
        RunFolderAccessError: the file cannot be read.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "metrics.jsonl"
    damaged: list[int] = []
    events = [event for _, event in _read_lines(file, damaged)]
    if damaged and report is not None:
        report(f"warning: {file}: passed over {len(damaged)} damaged line(s), the first is line {damaged[0]}")
    return events


def truncate_metrics(path: str | os.PathLike[str], step: int, files: Files | None = None) -> list[Event]:
    """Removes the events after ``step``, and lines that are not whole; the file is replaced in one step.

    Args:
        path: ``metrics.jsonl``; it may be missing.
        step: the last step to keep.
        files: operations on the disk; tests inject faults here.

    Returns:
        The events that stay.

    Raises:
        RunFolderAccessError: the file cannot be read or replaced; it is as it was.
    """
    file = Path(path)
    kept = [(line, event) for line, event in _read_lines(file) if _step_of(event) <= step]
    content = "".join(line + "\n" for line, _ in kept).encode()
    try:
        if file.exists() and file.stat().st_size != len(content):
            write_small_file(OsFiles() if files is None else files, file, content)
    except OSError as cause:
        raise RunFolderAccessError(file, cause) from cause
    return [event for _, event in kept]


def _read_lines(path: Path, damaged: list[int] | None = None) -> list[tuple[str, Event]]:
    """Returns each whole line with what it says; appends the numbers of the others to ``damaged``."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise RunFolderAccessError(path, cause) from cause
    lines: list[tuple[str, Event]] = []
    bad = [] if damaged is None else damaged
    *whole, torn = content.split(b"\n")
    for number, raw in enumerate(whole, 1):
        try:
            line = raw.decode()
            event = json.loads(line)
        except (ValueError, RecursionError):
            bad.append(number)
            continue
        if isinstance(event, dict):
            lines.append((line, {key: _decode(value) for key, value in event.items()}))
        else:
            bad.append(number)
    if torn:  # what follows the last line's end
        bad.append(len(whole) + 1)
    return lines


def _step_of(event: Event) -> float:
    """Returns the step of an event; one without a step belongs to no step and is kept."""
    step = event.get("step")
    return step if isinstance(step, int | float) else -math.inf


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decode(value: Any) -> Any:
    return _SPECIAL.get(value, value) if isinstance(value, str) else value
