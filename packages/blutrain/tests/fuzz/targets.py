"""What is fuzzed: the readers of files that come from elsewhere, each as a function of bytes.

A target takes any bytes. It returns, or lets out what no reader may raise: anything but the typed errors that its
documentation names. Beside that it checks what a reader promises of the inputs that it accepts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """One reader."""

    name: str
    run: Callable[[bytes], bool]
    """Whether the reader accepts the input."""
    seeds: Callable[[], list[bytes]]
    """Inputs to start from; most of them valid."""
    words: tuple[bytes, ...] = ()
    """Pieces of the format."""


class MemoryFile:
    """A file without a disk, whose bytes are replaced for every input."""

    def __init__(self, name: str) -> None:
        self._descriptor = os.memfd_create(name)
        self.path = Path(f"/proc/self/fd/{self._descriptor}")

    def write(self, data: bytes) -> Path:
        """Replace the content; returns the path under which this process opens it."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)
        return self.path


class MemoryFolder:
    """A folder that lies in memory where the system has such a place, whose files are replaced for every input."""

    def __init__(self) -> None:
        memory = "/dev/shm"
        self._kept = tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)
        self.path = Path(self._kept.name)
        self._descriptors: dict[str, int] = {}

    def write(self, name: str, data: bytes) -> Path:
        """Replace the content of a file, or make it; returns its path."""
        path = self.path / name
        if name not in self._descriptors:
            self._descriptors[name] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._descriptors[name], 0)
        os.pwrite(self._descriptors[name], data, 0)
        return path

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
            os.unlink(self.path / name)


@dataclass
class Outcome:
    """What a reader made of an input."""

    accepted: bool = False


@contextlib.contextmanager
def only(*errors: type[Exception]) -> Iterator[Outcome]:
    """Swallow the errors that a reader may raise, after a look at their text."""
    outcome = Outcome()
    try:
        yield outcome
        outcome.accepted = True
    except errors as error:
        if not str(error).startswith("["):
            raise AssertionError(f"expected a message that begins with its origin, got {error!r}") from error


def all_targets() -> dict[str, Target]:
    """Every target by name."""
    import target_checkpoint
    import target_config
    import target_data
    import target_documents
    import target_huggingface
    import target_tokenizer

    modules = (
        target_checkpoint,
        target_config,
        target_data,
        target_documents,
        target_huggingface,
        target_tokenizer,
    )
    return {target.name: target for module in modules for target in module.TARGETS}
