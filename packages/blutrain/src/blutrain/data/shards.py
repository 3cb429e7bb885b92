"""Shard files: 256 little-endian int32 of header (magic, version, number of tokens), then the tokens.

Magic 20240520 and version 1 stand before uint16 tokens: the format of llm.c and of the modded-nanogpt data sets, whose
FineWeb shards work as they are. Magic 20240801 and version 7 stand before uint32 tokens, for vocabularies of more than
65,536 ids: llm.c's format for Llama 3.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from blutrain import _native
from blutrain.arguments import checked
from blutrain.errors import InvalidInputError

MAGIC, VERSION = 20240520, 1
"""First two int32 of a shard of uint16 tokens."""
FORMATS = {2: (MAGIC, VERSION), 4: (20240801, 7)}
"""The same by the bytes of a token."""
HEADER_BYTES = 1024
"""Where the tokens begin."""


@checked("shard")
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


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The dtype of tokens in shards: uint16 where it has room for all ids, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


@checked("shard")
def shard_dtype(path: str | Path) -> np.dtype[np.unsignedinteger[Any]]:
    """The dtype of one shard's tokens, by its header.

    Args:
        path: the file.

    Returns:
        uint16 or uint32.

    Raises:
        ShardError: it is truncated, empty or no shard.
        OSError: it can not be read.
    """
    num_bytes = ctypes.c_int64()
    _native.check(_native.shard_token_bytes(os.fsencode(path), ctypes.byref(num_bytes)))
    return np.dtype(f"<u{num_bytes.value}")


@checked("shard")
def read_shard(path: str | Path) -> NDArray[np.unsignedinteger[Any]]:
    """The tokens of one shard, mapped, not read.

    Args:
        path: the file.

    Returns:
        Read-only uint16 or uint32 [tokens].

    Raises:
        ShardError: it is truncated, empty or no shard.
        OSError: it can not be read.
    """
    count = shard_num_tokens(path)
    return np.memmap(path, dtype=shard_dtype(path), mode="r", offset=HEADER_BYTES, shape=(count,))


class ShardWriter:
    """Writes a stream of tokens as shards ``<split>_000000.bin``, ... of at most ``shard_tokens`` tokens.

    A context manager: leaving it finishes the last shard.

    Args:
        folder: where they are written.
        split: first part of their names.
        shard_tokens: longest shard.
        state: what ``save`` of an earlier writer gave, to go on from there; what it wrote later is dropped.
        dtype: of the tokens in the files, uint16 or uint32; see ``token_dtype``.

    Raises:
        InvalidInputError: an impossible length, or another dtype.
        OSError: the files that ``state`` speaks of are not there.
    """

    @checked("prepare")
    def __init__(
        self,
        folder: str | Path,
        split: str,
        shard_tokens: int,
        state: Sequence[int] = (),
        *,
        dtype: DTypeLike = np.uint16,
    ) -> None:
        if not 1 <= shard_tokens < 2**31:
            raise InvalidInputError(f"[prepare] expected 1 <= shard_tokens < 2**31, got {shard_tokens}")
        if np.dtype(dtype) not in (np.uint16, np.uint32):
            raise InvalidInputError(f"[prepare] expected tokens as uint16 or uint32, got {np.dtype(dtype)}")
        self._dtype = np.dtype(dtype).newbyteorder("<")
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

    @checked("prepare")
    def append(self, tokens: NDArray[np.integer[Any]]) -> None:
        """Add tokens to the stream.

        Args:
            tokens: integers [any].

        Raises:
            InvalidInputError: one does not fit the dtype.
            OSError: the disk is full, or the folder is not writable.
        """
        if not np.can_cast(tokens.dtype, self._dtype) and len(tokens):
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high > np.iinfo(self._dtype).max:
                wrong = low if low < 0 else high
                raise InvalidInputError(f"[prepare] expected tokens that fit {self._dtype.name}, got {wrong}")
        while len(tokens):
            if self._file is None:
                self._file = open(self._path(len(self.shards)), "wb")  # noqa: SIM115 - it outlives this call
                self._file.write(bytes(HEADER_BYTES))
                self._in_shard = 0
            part = tokens[: self._shard_tokens - self._in_shard]
            self._file.write(part.astype(self._dtype, copy=False).tobytes())
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
            needed = HEADER_BYTES + self._dtype.itemsize * count
            if count and self._path(index).stat().st_size < needed:
                raise OSError(errno.EIO, f"expected at least {needed} bytes", str(self._path(index)))
        if in_shard:
            self._file = open(self._path(len(finished)), "r+b")  # noqa: SIM115 - it outlives this call
            self._file.truncate(HEADER_BYTES + self._dtype.itemsize * in_shard)
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
        header[:3] = *FORMATS[self._dtype.itemsize], self._in_shard
        with self._file as file:
            file.seek(0)
            file.write(header.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.shards.append((Path(self._file.name), self._in_shard))
        self._file = None
