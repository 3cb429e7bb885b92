"""Disks that fail, processes that die and power cuts: implementations of the checkpoint's `Files` for tests.

Each counts the operations of a save and strikes at one of them.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from blutrain.checkpoint.files import OsFiles


class SimulatedCrash(BaseException):
    """The process is no more: nothing that runs after it reaches the disk."""


class UnsyncedFiles(OsFiles):
    """The real disk without waiting for it: no test ends the machine, and the tests' own files need not be safe."""

    def fsync(self, descriptor: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


class HookedFiles(UnsyncedFiles):
    """The disk, with a hook around each operation; ``log`` names the operations so far."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def around(self, name: str, perform: Callable[[], int | None], half: Callable[[], object]) -> int | None:
        """Performs operation ``name``, number ``len(self.log) - 1``; ``half`` performs a part of it."""
        return perform()

    def _do(self, name: str, perform: Callable[[], int | None], half: Callable[[], object] = lambda: None) -> int:
        self.log.append(name)
        return self.around(name, perform, half) or 0

    def make_folder(self, path: Path) -> None:
        self._do("make_folder", lambda: UnsyncedFiles.make_folder(self, path))

    def create(self, path: Path) -> int:
        return self._do("create", lambda: UnsyncedFiles.create(self, path))

    def open(self, path: Path) -> int:
        return self._do("open", lambda: UnsyncedFiles.open(self, path))

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        write = UnsyncedFiles.write
        torn = data[: data.nbytes // 2]
        return self._do(
            "write", lambda: write(self, descriptor, data, offset), lambda: write(self, descriptor, torn, offset)
        )

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        return self._do("read", lambda: UnsyncedFiles.read(self, descriptor, buffer, offset))

    def fsync(self, descriptor: int) -> None:
        self._do("fsync", lambda: UnsyncedFiles.fsync(self, descriptor))

    def close(self, descriptor: int) -> None:
        self._do("close", lambda: UnsyncedFiles.close(self, descriptor))

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", lambda: UnsyncedFiles.rename(self, source, target))

    def unlink(self, path: Path) -> None:
        self._do("unlink", lambda: UnsyncedFiles.unlink(self, path))

    def fsync_dir(self, path: Path) -> None:
        self._do("fsync_dir", lambda: UnsyncedFiles.fsync_dir(self, path))


class FailingFiles(HookedFiles):
    """Operation number ``strike`` fails with ``code``, after doing half of a write; the following ones work again."""

    def __init__(self, strike: int, code: int = errno.EIO) -> None:
        super().__init__()
        self.strike, self.code = strike, code
        self.struck = ""

    def around(self, name: str, perform: Callable[[], int | None], half: Callable[[], object]) -> int | None:
        if len(self.log) - 1 != self.strike:
            return perform()
        self.struck = name
        if name == "close":
            perform()  # the descriptor is gone, as after a close that reports a late error of a network disk
        half()
        raise OSError(self.code, os.strerror(self.code))


MOMENTS = ("before", "within", "after")


class CrashingFiles(HookedFiles):
    """The process ends before, within or after operation number ``strike``."""

    def __init__(self, strike: int, moment: str) -> None:
        super().__init__()
        self.strike, self.moment = strike, moment
        self.dead = False

    def around(self, name: str, perform: Callable[[], int | None], half: Callable[[], object]) -> int | None:
        if self.dead:
            raise SimulatedCrash
        if len(self.log) - 1 != self.strike:
            return perform()
        if self.moment == "within":
            half()
        elif self.moment == "after":
            perform()
        self.end()
        raise AssertionError("unreachable")

    def end(self) -> None:
        self.dead = True
        raise SimulatedCrash


class KilledFiles(CrashingFiles):
    """The same, by the signal that no process survives."""

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class _Inode:
    written: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass(frozen=True)
class Wreck:
    """What a disk may hold after a power cut: contents by name."""

    description: str
    contents: dict[str, bytes]

    def lay_out(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name, content in self.contents.items():
            (folder / name).write_bytes(content)


class PowerLossFiles(CrashingFiles):
    """A process that ends together with the machine: only what was synced is sure to be there afterwards.

    The contents of a file are what the last ``fsync`` saw, or any later state; the names of a folder are those of the
    last ``fsync_dir`` with any subset of the later changes. `wrecks` enumerates these states. One folder is modelled.
    """

    def __init__(self, folder: Path, strike: int, moment: str) -> None:
        super().__init__(strike, moment)
        self.folder = folder
        self.descriptors: dict[int, _Inode] = {}
        self.names: dict[str, _Inode] = {}
        for path in folder.iterdir():
            content = path.read_bytes()
            self.names[path.name] = _Inode(bytearray(content), content)
        self.durable_names = dict(self.names)
        self.pending: list[Callable[[dict[str, _Inode]], object]] = []

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        inode = self.names.setdefault(path.name, _Inode())
        inode.written.clear()
        self.pending.append(lambda names: names.setdefault(path.name, inode))
        self.descriptors[descriptor] = inode
        return descriptor

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        try:
            return super().write(descriptor, data, offset)
        finally:
            self.descriptors[descriptor].written[:] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def fsync(self, descriptor: int) -> None:
        super().fsync(descriptor)
        inode = self.descriptors[descriptor]
        inode.durable = bytes(inode.written)

    def rename(self, source: Path, target: Path) -> None:
        happened = not self.dead and not (self._strikes_next() and self.moment != "after")
        try:
            super().rename(source, target)
        finally:
            if happened:
                self._change(lambda names: _move(names, source.name, target.name))

    def unlink(self, path: Path) -> None:
        happened = not self.dead and not (self._strikes_next() and self.moment != "after")
        try:
            super().unlink(path)
        finally:
            if happened:
                self._change(lambda names: names.pop(path.name, None))

    def fsync_dir(self, path: Path) -> None:
        super().fsync_dir(path)
        if path == self.folder:
            self.durable_names = dict(self.names)
            self.pending.clear()

    def wrecks(self) -> Iterator[Wreck]:
        """Yields every state that the folder may be in after the power cut."""
        for keep in itertools.product((False, True), repeat=len(self.pending)):
            names = dict(self.durable_names)
            for change, kept in zip(self.pending, keep, strict=True):
                if kept:
                    change(names)
            for state in ("synced", "written", "zeros", "half"):
                contents = {name: _content(inode, state) for name, inode in names.items()}
                yield Wreck(f"names {keep}, contents {state}", contents)

    def _strikes_next(self) -> bool:
        return len(self.log) == self.strike

    def _change(self, change: Callable[[dict[str, _Inode]], object]) -> None:
        change(self.names)
        self.pending.append(change)


def _move(names: dict[str, _Inode], source: str, target: str) -> None:
    if source in names:
        names[target] = names.pop(source)


def _content(inode: _Inode, state: str) -> bytes:
    unsynced = bytes(inode.written) != inode.durable
    if state == "synced" or not unsynced:
        return inode.durable
    if state == "zeros":  # the length reached the disk, the data did not
        return inode.durable.ljust(len(inode.written), b"\0")
    return bytes(inode.written[: len(inode.written) // (2 if state == "half" else 1)])
