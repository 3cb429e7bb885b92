"""What is fuzzed: the readers of files that come from elsewhere, each as a function of bytes.

A target takes any bytes. It returns, or lets out what no reader may raise: anything but the typed errors that its
documentation names. Beside that it checks what a reader promises of the inputs that it accepts.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MEMORY = "/dev/shm"
"""Where files lie in memory, if the system has such a place."""


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
    """A folder whose files are replaced for every input; in memory, or below ``TMPDIR`` where that is set."""

    def __init__(self) -> None:
        elsewhere = "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK)
        kept = tempfile.TemporaryDirectory(dir=None if elsewhere else MEMORY)
        atexit.register(kept.cleanup)
        self.path = Path(kept.name)
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


MODULES = {
    "checkpoint": "target_checkpoint",
    "config": "target_config",
    "manifest": "target_data",
    "foreign_shards": "target_data",
    "metrics": "target_data",
    "documents": "target_documents",
    "parquet": "target_documents",
    "choices": "target_documents",
    "safetensors": "target_huggingface",
    "huggingface": "target_huggingface",
    "gpt2": "target_tokenizer",
    "tokenizer": "target_tokenizer",
}
"""Where each target is; a process loads what it needs, which saves most of a short run's time."""


def target_of(name: str) -> Target:
    """The target of a name."""
    module = importlib.import_module(MODULES[name])
    (found,) = (target for target in module.TARGETS if target.name == name)
    return found  # type: ignore[no-any-return]
