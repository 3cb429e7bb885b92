"""The folder of a run's checkpoints: saving, finding the newest good one, keeping the last few.

A save goes through these states, and a crash in any of them leaves every earlier checkpoint as it was:

    1. step-00000100.safetensors.tmp    written in one pass, synced, read back and verified
    2. step-00000100.safetensors        renamed, folder synced: from here on it is the newest good checkpoint
    3. latest                           a small file with that name, replaced in one step, folder synced
    4. the oldest checkpoints           removed, as many as there are beyond ``keep``

The newest checkpoint is the one of the highest step whose digests are right, whatever `latest` says: that file is for
people and other programs.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blutrain.arguments import checked
from blutrain.checkpoint import stream
from blutrain.checkpoint.errors import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointTypeError,
    CheckpointValueError,
    read_error,
    write_error,
)
from blutrain.checkpoint.files import TEMPORARY_SUFFIX, Files, OsFiles, write_small_file
from blutrain.checkpoint.format import DEFAULT_ALGORITHM, AnyArray, Array, Header

LATEST = "latest"
DAMAGED_SUFFIX = ".damaged"
_STEP_KEY = "step"
_NAME = re.compile(r"step-([0-9]{8,})\.safetensors")
_LEFTOVER = re.compile(r"(step-[0-9]{8,}\.safetensors|latest)\.tmp")

Report = Callable[[str], None]


class CheckpointStore:
    """Checkpoints of one run in one folder. One process may save; any number may load meanwhile.

    Args:
        folder: made by the first save, or by `recover`.
        keep: how many of the newest checkpoints a save leaves; None keeps all.
        report: called with a sentence for every damaged file and every leftover that was found; default: a warning in
            the log ``blutrain.checkpoint``.
        files: operations on the disk; tests inject faults here.
        algorithm: digest of new checkpoints: ``sha256`` or ``blake2b-256``. All of them can be read.
        num_threads: threads that hash; default: the processors of this process, at most 8.

    Raises:
        CheckpointValueError: ``keep`` or ``num_threads`` is less than 1.
    """

    @checked("checkpoint")
    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int | None = 3,
        report: Report | None = None,
        files: Files | None = None,
        algorithm: str = DEFAULT_ALGORITHM,
        num_threads: int | None = None,
    ) -> None:
        self._folder = Path(folder)
        if keep is not None and keep < 1:
            raise CheckpointValueError(self._folder, f"expected keep of 1 or more, or None for all, got {keep}")
        if num_threads is not None and num_threads < 1:
            raise CheckpointValueError(self._folder, f"expected num_threads of 1 or more, got {num_threads}")
        self._keep = keep
        self._report = logging.getLogger("blutrain.checkpoint").warning if report is None else report
        self._files = OsFiles() if files is None else files
        self._algorithm = algorithm
        self._num_threads = num_threads or stream.default_num_threads()

    @property
    def folder(self) -> Path:
        """Where the checkpoints are."""
        return self._folder

    def path_of(self, step: int) -> Path:
        """Returns the file in which a checkpoint of ``step`` is, or would be."""
        return self._folder / f"step-{step:08d}.safetensors"

    def list(self) -> Sequence[Path]:
        """Returns the checkpoint files, oldest first, unread: some may be damaged."""
        return [self.path_of(step) for step in self._steps()]

    def remains(self) -> Sequence[Path]:
        """Returns all files of checkpoints, oldest first, unread: those that `recover` set aside as damaged, too."""
        aside = self._folder.glob(f"step-*{DAMAGED_SUFFIX}") if self._folder.is_dir() else ()
        return sorted([*self.list(), *aside])

    def save(self, step: int, tensors: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> Path:
        """Saves a checkpoint, verifies it, makes it the latest and removes the oldest beyond ``keep``.

        Args:
            step: number of optimizer steps done; a checkpoint of the same step is replaced.
            tensors: arrays by name, any layout, or what makes them; dtypes float16/32/64, (u)int8 to 64 and bool.
            meta: JSON values by name: epoch, loss, loader cursor, configuration. Tuples come back as lists. ``step`` is
                added.

        Returns:
            The file.

        Raises:
            CheckpointValueError, CheckpointTypeError: something in ``tensors`` or ``meta`` cannot be saved.
            CheckpointWriteError: the disk is full, read-only or broken. Earlier checkpoints are as they were.
            CheckpointDigestError: what came back from the disk is not what was written. Likewise.
        """
        for name, value in (("tensors", tensors), ("meta", meta)):
            if not isinstance(value, Mapping):
                raise CheckpointTypeError(self._folder, f"expected a mapping for {name}, got {type(value).__name__}")
        if isinstance(step, bool) or not isinstance(step, int):
            raise CheckpointTypeError(self._folder, f"expected step of type int, got {type(step).__name__}")
        if step < 0:
            raise CheckpointValueError(self._folder, f"expected step of 0 or more, got {step}")
        if meta.get(_STEP_KEY, step) != step:
            raise CheckpointValueError(self._folder, f"expected metadata 'step' to be {step}, got {meta[_STEP_KEY]!r}")
        path = self.path_of(step)
        try:
            self._files.make_folder(self._folder)
            self._write_verified(path, tensors, {_STEP_KEY: step, **meta})
            self._files.fsync_dir(self._folder)
            write_small_file(self._files, self._folder / LATEST, f"{path.name}\n".encode())
        except CheckpointError:
            raise
        except OSError as cause:
            raise write_error(path, cause, sum(array.nbytes for array in tensors.values())) from cause
        self._remove_old(step)
        return path

    @checked("checkpoint")
    def load(self, path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
        """Loads any checkpoint file and checks every digest.

        Returns:
            The tensors, mapped from the file and not copied (writing to one never reaches the file), and the metadata.

        Raises:
            CheckpointNotFoundError: there is no such file.
            CheckpointFormatError: it is foreign, truncated, contradictory or damaged.
            CheckpointReadError: it cannot be read.
        """
        tensors, header = stream.load_file(self._files, Path(path), self._num_threads)
        return tensors, header.meta

    def load_latest(self) -> tuple[Path, dict[str, Array], dict[str, Any]] | None:
        """Loads the newest good checkpoint, or returns None where there is none; reports and passes over damaged ones.

        Reads each file once, where `latest` and then `load` read it twice.
        """

        def load(path: Path) -> tuple[dict[str, Array], Header]:
            return stream.load_file(self._files, path, self._num_threads)

        for step in reversed(self._steps()):
            path = self.path_of(step)
            with self._passing_over_damaged():
                tensors, header = load(path)
                _check_step(path, header, step)
                return path, tensors, header.meta
        return None

    def latest(self) -> Path | None:
        """Returns the newest good checkpoint, or None where there is none; reports and passes over damaged ones."""
        return self._newest_good()[0]

    def recover(self) -> Path | None:
        """Puts the folder in order after a crash and returns the newest good checkpoint. For the process that saves.

        Removes leftovers of saves that did not finish, renames damaged checkpoints newer than the newest good one to
        ``*.damaged`` (they are kept, and reported), points `latest` to the newest good one, and removes the oldest
        beyond ``keep``.

        Raises:
            CheckpointWriteError: the folder may not be written to.
        """
        try:
            self._files.make_folder(self._folder)
            self._remove_leftovers()
            good, damaged = self._newest_good()
            for path in damaged:
                self._files.rename(path, path.with_name(path.name + DAMAGED_SUFFIX))
            if damaged:
                self._files.fsync_dir(self._folder)
            if good is not None and self._pointed_to() != good.name:
                write_small_file(self._files, self._folder / LATEST, f"{good.name}\n".encode())
        except CheckpointError:
            raise
        except OSError as cause:
            raise write_error(self._folder / LATEST, cause) from cause
        if good is not None:
            self._remove_old(_step_of(good))
        return good

    def _steps(self) -> Sequence[int]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as cause:
            raise read_error(self._folder, cause) from cause
        steps = (_step_of(Path(name)) for name in names if _NAME.fullmatch(name))
        # A name with more zeros than ours reads as the same step, but is another file.
        return sorted({step for step in steps if self.path_of(step).name in names})

    def _write_verified(self, path: Path, tensors: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            written = stream.write_file(self._files, temporary, tensors, meta, self._algorithm, self._num_threads)
            found = stream.verify_file(self._files, temporary, self._num_threads)
            if found.digests != written.digests:
                raise CheckpointDigestError(path, "read back other digests than were written: check the disk")
            self._files.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)
            raise

    def _newest_good(self) -> tuple[Path | None, Sequence[Path]]:
        """Returns the newest good checkpoint and the damaged ones that are newer."""
        damaged: Sequence[Path] = ()
        for step in reversed(self._steps()):
            path = self.path_of(step)
            with self._passing_over_damaged():
                _check_step(path, stream.verify_file(self._files, path, self._num_threads), step)
                return path, damaged
            damaged = (*damaged, path)
        return None, damaged

    @contextlib.contextmanager
    def _passing_over_damaged(self) -> Iterator[None]:
        try:
            yield
        except CheckpointNotFoundError:
            pass  # removed meanwhile by the process that saves
        except (CheckpointFormatError, CheckpointReadError) as error:
            if isinstance(error, CheckpointReadError) and error.errno != errno.EIO:
                raise  # a lack of permission, say, which is to be repaired and not to be worked around
            self._report(f"{error} (passed over: the checkpoint before it is used)")

    def _remove_leftovers(self) -> None:
        for path in sorted(self._folder.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                self._files.unlink(path)
                self._report(f"[checkpoint] {path}: removed, a save did not finish")

    def _pointed_to(self) -> str | None:
        try:
            return (self._folder / LATEST).read_text(errors="replace").removesuffix("\n")
        except OSError:
            return None

    def _remove_old(self, good_step: int) -> None:
        """Removes checkpoints older than the last ``keep`` up to ``good_step``, which was verified a moment ago."""
        if self._keep is None:
            return
        steps = [step for step in self._steps() if step <= good_step]
        for step in steps[: -self._keep]:
            try:
                self._files.unlink(self.path_of(step))
            except OSError as cause:
                # The new checkpoint is safe; an old one too many is no reason to stop a training run.
                self._report(f"[checkpoint] {self.path_of(step)}: not removed: {cause.strerror or cause}")


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _check_step(path: Path, header: Header, step: int) -> None:
    if header.meta.get(_STEP_KEY) != step:
        raise CheckpointFormatError(
            path, f"expected a checkpoint of step {step} as its name says, got step {header.meta.get(_STEP_KEY)!r}"
        )
