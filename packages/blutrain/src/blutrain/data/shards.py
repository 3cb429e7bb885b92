"""Shard files: 256 little-endian int32 of header (magic 20240520, version 1, number of tokens), then uint16 tokens.

The format of llm.c and of the modded-nanogpt data sets; their FineWeb shards work as they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from blutrain import _native
from blutrain.errors import InvalidInputError

MAGIC = 20240520
"""First int32 of every shard."""
VERSION = 1
"""Second int32: tokens are uint16."""
HEADER_BYTES = 1024
"""Where the tokens begin."""


def shard_num_tokens(path: str | Path) -> int:
    """Check one shard's header against its size, without reading tokens.

    Args:
        path: the file.

    Returns:
        Its number of tokens.

    Raises:
        ShardError: it is truncated, empty or no shard.
        OSError: it can not be read.
    """
    count = ctypes.c_int64()
    _native.check(_native.shard_num_tokens(os.fsencode(path), ctypes.byref(count)))
    return count.value


def read_shard(path: str | Path) -> NDArray[np.uint16]:
    """The tokens of one shard, mapped, not read.

    Args:
        path: the file.

    Returns:
        Read-only uint16 [tokens].

    Raises:
        ShardError: it is truncated, empty or no shard.
        OSError: it can not be read.
    """
    count = shard_num_tokens(path)
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(count,))


class ShardWriter:
    """Writes a stream of tokens as shards ``<split>_000000.bin``, ... of at most ``shard_tokens`` tokens.

    A context manager: leaving it finishes the last shard.

    Args:
        folder: where they are written.
        split: first part of their names.
        shard_tokens: longest shard.
        state: what ``save`` of an earlier writer gave, to go on from there; what it wrote later is dropped.

    Raises:
        InvalidInputError: an impossible length.
        OSError: the files that ``state`` speaks of are not there.
    """

    def __init__(self, folder: str | Path, split: str, shard_tokens: int, state: Sequence[int] = ()) -> None:
        if not 1 <= shard_tokens < 2**31:
            raise InvalidInputError(f"[prepare] expected 1 <= shard_tokens < 2**31, got {shard_tokens}")
        self._folder = Path(folder)
        self._split = split
        self._shard_tokens = shard_tokens
        self._file: BinaryIO | None = None
        self._in_shard = 0
        self.shards: list[tuple[Path, int]] = []
        """Path and number of tokens of every finished shard."""
        if state:
            self._restore(state)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish_shard()
        elif self._file is not None:
            self._file.close()

    def append(self, tokens: NDArray[np.uint16]) -> None:
        """Add tokens to the stream.

        Args:
            tokens: uint16 [any].

        Raises:
            OSError: the disk is full, or the folder is not writable.
        """
        while len(tokens):
            if self._file is None:
                self._file = open(self._path(len(self.shards)), "wb")  # noqa: SIM115 - it outlives this call
                self._file.write(bytes(HEADER_BYTES))
                self._in_shard = 0
            part = tokens[: self._shard_tokens - self._in_shard]
            self._file.write(part.astype("<u2", copy=False).tobytes())
            self._in_shard += len(part)
            tokens = tokens[len(part) :]
            if self._in_shard == self._shard_tokens:
                self._finish_shard()

    def save(self) -> list[int]:
        """Bring everything to the disk.

        Returns:
            What another writer needs to go on from here: tokens of each finished shard, then of the unfinished one.
        """
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        return [*(count for _, count in self.shards), self._in_shard if self._file is not None else 0]

    def _restore(self, state: Sequence[int]) -> None:
        *finished, in_shard = state
        self.shards = [(self._path(index), count) for index, count in enumerate(finished)]
        for index, count in enumerate(state):
            needed = HEADER_BYTES + 2 * count
            if count and self._path(index).stat().st_size < needed:
                raise OSError(errno.EIO, f"expected at least {needed} bytes", str(self._path(index)))
        if in_shard:
            self._file = open(self._path(len(finished)), "r+b")  # noqa: SIM115 - it outlives this call
            self._file.truncate(HEADER_BYTES + 2 * in_shard)
            self._file.seek(0, os.SEEK_END)
            self._in_shard = in_shard
        kept = {path.name for path, _ in self.shards} | ({Path(self._file.name).name} if self._file else set())
        for path in self._folder.glob(f"{self._split}_*.bin"):
            if path.name not in kept:
                path.unlink()

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._split}_{index:06d}.bin"

    def _finish_shard(self) -> None:
        if self._file is None:
            return
        header = np.zeros(HEADER_BYTES // 4, "<i4")
        header[:3] = MAGIC, VERSION, self._in_shard
        with self._file as file:
            file.seek(0)
            file.write(header.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.shards.append((Path(self._file.name), self._in_shard))
        self._file = None
