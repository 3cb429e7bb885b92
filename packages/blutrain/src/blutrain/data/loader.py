"""Batches of tokens with an exact position: the Python face of the native loader.

A loader is also a native *source*: ``context`` and ``next_function`` let a captured step fill its slots without the
interpreter. Legend: B = batch, T = sequence length.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blutrain import _native
from blutrain.arguments import checked
from blutrain.errors import InvalidInputError

_EPOCH_AND_WINDOW = slice(1, 3)
"""Where they are in a loader's state."""


@dataclass(frozen=True)
class Position:
    """Where a loader stands."""

    epoch: int
    """Epoch of the next window, from 0."""
    window: int
    """Windows of that epoch already given out, over all ranks."""
    shard: int
    """Number of the shard in which the next window begins."""
    offset: int
    """Token of that shard at which it begins."""


class Loader:
    """Reads windows of T tokens from shards through mmap, strided over ranks.

    The shards in order are one stream of N tokens, cut into ``(N - 1) // T`` windows per epoch whose targets are the
    tokens that follow. A global batch holds the same windows whatever its split into micro-batches and ranks. Windows
    cross shards, batches cross epochs. With ``one_pass`` (evaluation) windows come in order, every target occurs once,
    and rows past the end hold token 0 and target -100, which the loss ignores.

    Args:
        paths: shards in the order of the stream.
        batch: B, rows of one batch.
        sequence_length: T.
        vocab_size: tokens must be below it.
        seed: of the order of windows.
        shuffle: whether every epoch has its own order of windows, computed from (seed, epoch).
        one_pass: evaluation; excludes ``shuffle``.
        rank: this reader among ``world``.
        world: readers that share the stream.

    Raises:
        ShardError: a shard is truncated, foreign or empty, or all are too short for one window.
        InvalidInputError: no shards.
    """

    @checked("loader")
    def __init__(
        self,
        paths: Sequence[str | Path],
        batch: int,
        sequence_length: int,
        *,
        vocab_size: int,
        seed: int = 0,
        shuffle: bool = True,
        one_pass: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._handle = ctypes.c_void_p()
        if not paths:
            raise InvalidInputError("[loader] expected at least 1 shard, got none")
        options = _native.LoaderOptions(
            struct_size=ctypes.sizeof(_native.LoaderOptions),
            shuffle=int(shuffle and not one_pass),
            one_pass=int(one_pass),
            batch=batch,
            context=sequence_length,
            rank=rank,
            world=world,
            vocabulary=vocab_size,
            seed=seed % 2**64,
        )
        names = (ctypes.c_char_p * len(paths))(*(os.fsencode(path) for path in paths))
        _native.check(_native.loader_create(names, len(paths), ctypes.byref(options), ctypes.byref(self._handle)))
        self.context: int = self._handle.value or 0
        """Address to pass as first argument of ``next_function``; valid while this object lives."""
        self.next_function: int = _native.loader_next_address()
        """Address of ``int32_t next(void* context, void* const* slots, int32_t num_slots)``.

        Slots are tokens and targets, int32 [B, T] each; the result is a status, 0 for success.
        """
        self.batch = batch
        self.sequence_length = sequence_length
        self.world = world
        info = self._info()
        self.num_tokens: int = info.num_tokens
        """N: tokens of the stream."""
        self.num_windows: int = info.num_windows
        """Windows of an epoch."""

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _native.loader_destroy(self._handle)
            self._handle = ctypes.c_void_p()

    @property
    def num_batches(self) -> int:
        """Batches of one epoch on each rank, the last one possibly partial."""
        return -(-self.num_windows // (self.batch * self.world))

    def error(self) -> str:
        """Message of the last failed ``next_function``."""
        return str(_native.loader_error(self._handle).decode(errors="replace"))

    def next_batch(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The next batch.

        Returns:
            Tokens and targets, int32 [B, T] each.

        Raises:
            ShardError: a token is not below the vocabulary; the position has not moved.
        """
        tokens = np.empty((self.batch, self.sequence_length), np.int32)
        targets = np.empty_like(tokens)
        slots = (ctypes.c_void_p * 2)(tokens.ctypes.data, targets.ctypes.data)
        _native.check(_native.loader_next(self._handle, slots, 2))
        return tokens, targets

    def position(self) -> Position:
        """Where the next batch begins."""
        info = self._info()
        return Position(info.epoch, info.position, info.shard, info.offset)

    def state(self) -> NDArray[np.int64]:
        """Exact position and what it is valid for, for checkpoints: int64 [8]."""
        state = np.empty(_native.STATE_SIZE, np.int64)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        _native.check(_native.loader_get_state(self._handle, pointer, len(state)))
        return state

    @checked("loader")
    def batches_since(self, state: NDArray[np.int64]) -> int:
        """Batches given out since an earlier position.

        Args:
            state: int64 [8] of this loader, which ``state`` gave.
        """
        epochs, windows = (self.state() - state)[_EPOCH_AND_WINDOW].tolist()
        return int(epochs * self.num_windows + windows) // (self.batch * self.world)

    @checked("loader")
    def go_to(self, state: NDArray[np.int64], batches: int) -> None:
        """Go to where a loader stands that has given out some batches; nothing is read.

        Args:
            state: int64 [8] of this loader, which ``state`` gave; not of one pass.
            batches: given out since then.
        """
        there = state.copy()
        epoch, window = there[_EPOCH_AND_WINDOW].tolist()
        more, window = divmod(window + batches * self.batch * self.world, self.num_windows)
        there[_EPOCH_AND_WINDOW] = epoch + more, window
        self.set_state(there)

    @checked("loader")
    def set_state(self, state: NDArray[np.int64]) -> None:
        """Go to a position that ``state`` gave.

        Args:
            state: int64 [8].

        Raises:
            ShardError: it is the position in another stream, or with another sequence length, seed or order.
        """
        state = np.ascontiguousarray(state, np.int64)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        _native.check(_native.loader_set_state(self._handle, pointer, state.size))

    def _info(self) -> _native.LoaderInfo:
        info = _native.LoaderInfo(struct_size=ctypes.sizeof(_native.LoaderInfo))
        _native.check(_native.loader_get_info(self._handle, ctypes.byref(info)))
        return info
