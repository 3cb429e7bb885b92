"""The folder of a run: what lies where in it, and that one process at a time trains in it.

    config.toml      the resolved configuration          samples.txt    generated text
    metrics.jsonl    one object per event                tensorboard/   the same for TensorBoard
    log.jsonl        what happened to the run            checkpoints/   see `blutrain.checkpoint`
    tokenizer/       its files, but for `bytes`          run.lock       held while a process trains
    loss.png         the plot                            trackers.json  the run's names in other trackers

`blutrain.recorder` writes the events.

A run that is overwritten is first set aside, in folders `.replaced` beside its files, and removed when the new run has
its first checkpoint. A new run that ends without one, in whatever way, gives the old one its place back: at once, or
when the next process opens the folder. The file `.replaced/complete` tells a run that was set aside from one that is
being moved, so that both directions can be interrupted anywhere.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import itertools
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from blutrain.checkpoint.files import OsFiles, write_small_file
from blutrain.data.dataset import TOKENIZER_FOLDER
from blutrain.data.tokenizer import TOKENIZER_FILES
from blutrain.metrics import LineFile, RunFolderAccessError, RunFolderError, RunFolderLostError, read_metrics

_CHECKPOINT = re.compile(r"step-[0-9]+\.safetensors")
_CHECKPOINT_FILE = re.compile(r"step-[0-9]+\.safetensors(\.tmp|\.damaged)?|latest(\.tmp)?")
_EVENT_FILE = re.compile(r"events\.out\.tfevents\..*")
_REPLACED = ".replaced"
_COMPLETE = "complete"
_FIXES = "continue it with --resume, replace it with --overwrite, or choose another folder with --set run.folder=..."


class RunExistsError(RunFolderError, FileExistsError):
    """The folder holds a run already, and neither resuming nor overwriting was asked for."""


class RunFolderLockedError(RunFolderError, RuntimeError):
    """Another process trains in the folder."""


class NothingToResumeError(RunFolderError, FileNotFoundError):
    """A run is to be continued that had checkpoints, and none of them is good any more."""

    def __init__(self, path: str | os.PathLike[str], damaged: str = "") -> None:
        found = f"damaged ones alone ({damaged})" if damaged else "none, although the run had some"
        super().__init__(
            path,
            f"expected a good checkpoint to resume from, got {found}: put one back, or start anew with --overwrite",
        )


class RunPaths:
    """Names of the things in a run folder; nothing has to exist.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name(path)

    def _name(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.metrics = self.path / "metrics.jsonl"
        self.log = self.path / "log.jsonl"
        self.samples = self.path / "samples.txt"
        self.plot = self.path / "loss.png"
        self.trackers = self.path / "trackers.json"
        self.tensorboard = self.path / "tensorboard"
        self.tokenizer = self.path / TOKENIZER_FOLDER
        self.checkpoints = self.path / "checkpoints"
        self.lock = self.path / "run.lock"

    def check(self) -> None:
        """Nothing: only a `RunFolder` has to stay where it is."""

    def holds_run(self) -> bool:
        """Whether training has left something here that starting anew would destroy."""
        if self.metrics.is_file() and self.metrics.stat().st_size:
            return True
        return self.holds_checkpoints()

    def holds_checkpoints(self) -> bool:
        """Whether there are checkpoints, good or damaged."""
        return any(_CHECKPOINT.fullmatch(path.name) for path in _files_in(self.checkpoints))

    def had_checkpoints(self) -> bool:
        """Whether a checkpoint of the run was complete once, whatever has become of it."""
        if any(_CHECKPOINT_FILE.fullmatch(path.name) for path in _files_in(self.checkpoints)):
            return True
        had = False
        for event in read_metrics(self.log):  # likewise lines of JSON
            had = event.get("event") == "checkpoint" or (had and event.get("event") != "started")
        return had


class RunFolder(RunPaths):
    """A run folder that this process trains in; another process that tries gets an error until this one ends.

    Use `start` or `resume`, and as a context manager::

        with RunFolder.start("runs/first") as folder:
            folder.write_config(text)
            folder.log_event("started", preset="gpt2-nano")
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        with _access_errors(self.path):
            OsFiles().make_folder(self.path)
        self._lock: int | None = None
        self._folder: int | None = None
        self._hold()
        self._log = LineFile(self.log)
        try:
            self.settle()
        except BaseException:
            self.close()
            raise

    @classmethod
    def start(cls, path: str | os.PathLike[str], *, overwrite: bool = False, fixes: str = _FIXES) -> RunFolder:
        """Opens a folder for a new run.

        Args:
            path: made when it is missing.
            overwrite: whether a run that it holds is set aside, see `settle`; its log stays, and every file that is not
                of a run.
            fixes: what to do about a run that is there, for the message.

        Raises:
            RunExistsError: the folder holds a run, and ``overwrite`` is false.
            RunFolderLockedError: another process trains in it.
            RunFolderAccessError: it may not be written to.
        """
        folder = cls(path)
        try:
            if folder.holds_run() and not overwrite:
                message = "expected a folder without a run, got one that holds a run"
                raise RunExistsError(folder.path, f"{message}: {fixes}")
            folder._set_aside()
        except BaseException:
            with contextlib.suppress(RunFolderAccessError):  # the next process that opens it tries again
                folder.settle()
            folder.close()
            raise
        return folder

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Opens a folder to continue the run that it holds, or to begin one where there is none.

        Raises:
            RunFolderLockedError: another process trains in it.
            RunFolderAccessError: it may not be written to.
        """
        return cls(path)

    def write_config(self, text: str) -> None:
        """Replaces ``config.toml`` in one step.

        Raises:
            RunFolderAccessError: the disk is full or the folder may not be written to.
        """
        with _access_errors(self.config):
            write_small_file(OsFiles(), self.config, text.encode())

    def log_event(self, event: str, level: str = "info", **fields: Any) -> None:
        """Appends an object to ``log.jsonl``: time (UTC), level, event and ``fields`` (JSON values).

        Raises:
            RunFolderAccessError: the disk is full or the folder may not be written to.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._log.append({"time": now, "level": level, "event": event, **fields})

    def check(self) -> None:
        """Looks whether the folder is still there.

        Raises:
            RunFolderLostError: it was deleted, moved or replaced by another.
            RunFolderAccessError: it cannot be looked at.
        """
        assert self._folder is not None
        if not _is(self.path, self._folder):
            now = Path(os.readlink(f"/proc/self/fd/{self._folder}"))
            raise RunFolderLostError(self.path, now if _is(now, self._folder) else None)

    def follow(self, now: Path | None) -> None:
        """After `RunFolderLostError`: the folder goes on at another place, and its log with it.

        Args:
            now: where it was moved to; None makes it anew, at its old place, or beside it where another one is.

        Raises:
            RunFolderAccessError: it may not be made.
            RunFolderLockedError: another process trains in it.
        """
        if now is None:
            taken = itertools.count(1)
            now = self.path
            while RunPaths(now).lock.exists():
                now = self.path.with_name(f"{self.path.name}.saved-{next(taken)}")
            with _access_errors(now):
                OsFiles().make_folder(now)
            self._let_go()
            self._name(now)
            self._hold()
        self._name(now)
        self._log.keep(self.log)

    def settle(self) -> None:
        """Removes the run that was set aside when the new one has a checkpoint, and puts it back otherwise.

        Raises:
            RunFolderAccessError: files may not be moved; the next process that opens the folder tries again.
        """
        complete = self.path / _REPLACED / _COMPLETE
        with _access_errors(self.path):
            if complete.exists() and not self.holds_checkpoints():
                for path in self._files_of_run():
                    path.unlink(missing_ok=True)
                complete.unlink()
            # The mark goes last in either direction: until then this can be done again.
            for parent in (self.tensorboard, self.tokenizer, self.checkpoints, self.path):
                replaced = parent / _REPLACED
                if not replaced.is_dir():
                    continue
                for path in sorted(_files_in(replaced), key=lambda path: path.name == _COMPLETE):
                    if complete.exists():
                        path.unlink()
                    else:
                        path.rename(parent / path.name)
                replaced.rmdir()

    def close(self) -> None:
        """Lets other processes train here."""
        self._log.close()
        self._let_go()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.settle()
        except RunFolderAccessError:
            if error is None:
                raise  # what happened before is more important; the next process that opens the folder tries again
        finally:
            self.close()

    def _hold(self) -> None:
        self._lock = _acquire(self.lock)
        with _access_errors(self.path):
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _let_go(self) -> None:
        for descriptor in (self._lock, self._folder):
            if descriptor is not None:
                os.close(descriptor)
        self._lock = self._folder = None

    def _set_aside(self) -> None:
        found = [path for path in self._files_of_run() if path.exists()]
        if not self.holds_run():
            for path in found:
                if path != self.config:  # somebody may have put it here for this run
                    with _access_errors(path):
                        path.unlink(missing_ok=True)
            return
        with _access_errors(self.path):
            for parent in {self.path, *(path.parent for path in found)}:
                (parent / _REPLACED).mkdir(exist_ok=True)
            for path in found:
                path.rename(path.parent / _REPLACED / path.name)
            (self.path / _REPLACED / _COMPLETE).touch()

    def _files_of_run(self) -> list[Path]:
        # Only names that a run gives: the folder may hold more, and may be a folder that was not meant.
        doomed = [self.metrics, self.samples, self.plot, self.trackers, self.config]
        doomed += [path for path in _files_in(self.tensorboard) if _EVENT_FILE.fullmatch(path.name)]
        doomed += [path for path in _files_in(self.tokenizer) if path.name in TOKENIZER_FILES]
        doomed += [path for path in _files_in(self.checkpoints) if _CHECKPOINT_FILE.fullmatch(path.name)]
        return doomed


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as cause:
        raise RunFolderAccessError(folder, cause) from cause


def _is(path: Path, descriptor: int) -> bool:
    """Whether a folder's path leads to what a descriptor holds."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as cause:
        raise RunFolderAccessError(path, cause) from cause


def _acquire(path: Path) -> int:
    """Returns a descriptor that holds the lock until it is closed, or this process ends in whatever way."""
    with _access_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with _access_errors(path):
            _lock_now(path, descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock_now(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise RunFolderLockedError(
            path.parent,
            f"expected a folder that no other process trains in, got one in use by {holder}: wait for it, end it, or "
            "choose another folder",
        ) from None


@contextlib.contextmanager
def _access_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise RunFolderAccessError(path, cause) from cause
