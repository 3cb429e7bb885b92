"""The pools that the contract holds for, and what must be true of every pool at any time."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from fake_device import FakeDevice

from blualloc import BlockState, Pool

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Variant:
    """One way to make a pool. Each call of `make` gives a pool of its own."""

    name: str
    make: Callable[..., Pool]
    alignment: int = 64
    is_shuffled: bool = False
    is_host: bool = True
    is_asynchronous: bool = False
    is_whole: bool = False


class FakePool(Pool):
    """A pool of a fake device of its own."""

    def __init__(self, *, memory_bytes: int = 1 << 40, is_whole: bool = False, **options: int) -> None:
        self.device = FakeDevice(memory_bytes=memory_bytes, is_whole=is_whole)
        super().__init__(device_table=self.device.address, **options)  # type: ignore[arg-type]


VARIANTS = [
    Variant("host", lambda **o: Pool(**o)),
    Variant("wide_alignment", lambda **o: Pool(**{"alignment": 512, **o}), alignment=64),
    Variant("small_segments", lambda **o: Pool(**{"segment_bytes": 256 * KIB, "growth_bytes": 64 * KIB, **o})),
    Variant("shuffled", lambda **o: Pool(**{"shuffle_seed": 1234, **o}), is_shuffled=True),
    Variant("asynchronous", FakePool, alignment=256, is_host=False, is_asynchronous=True),
    Variant(
        "asynchronous_shuffled",
        lambda **o: FakePool(**{"shuffle_seed": 99, **o}),
        alignment=256,
        is_shuffled=True,
        is_host=False,
        is_asynchronous=True,
    ),
    Variant(
        "whole_segments",
        lambda **o: FakePool(**{"is_whole": True, **o}),
        alignment=256,
        is_host=False,
        is_asynchronous=True,
        is_whole=True,
    ),
]


def check_invariants(pool: Pool) -> None:
    """Blocks tile their segments, counters add up, free neighbours of one stream are merged."""
    stats, blocks = pool.stats(), pool.snapshot()
    ends: dict[int, int] = {}
    for block in blocks:
        assert block.bytes > 0
        assert block.segment_offset == ends.get(block.segment, 0), "blocks must tile their segment"
        ends[block.segment] = block.segment_offset + block.bytes
    live = [block for block in blocks if block.state is BlockState.LIVE]
    free = [block for block in blocks if block.state is BlockState.FREE]
    assert len(ends) == stats.num_segments
    assert len(live) == stats.num_live == stats.num_allocations - stats.num_frees
    assert sum(block.requested for block in live) == stats.live_bytes <= stats.peak_live_bytes
    assert sum(block.bytes for block in live) == stats.live_block_bytes
    assert sum(block.bytes for block in free) == stats.cached_bytes
    assert max((block.bytes for block in free), default=0) == stats.largest_free_bytes
    assert stats.reserved_bytes == stats.live_block_bytes + stats.cached_bytes <= stats.peak_reserved_bytes
    assert stats.wasted_bytes == stats.live_block_bytes - stats.live_bytes
    for left, right in itertools.pairwise(blocks):
        neighbours = left.segment == right.segment and left.stream == right.stream
        assert not (neighbours and left.state is right.state is BlockState.FREE), "free neighbours must be merged"
        assert not (left.segment == right.segment and left.state is right.state is BlockState.UNMAPPED)
    if isinstance(pool, FakePool):
        assert pool.device.errors == []
        assert pool.device.mapped_bytes == stats.reserved_bytes


def fill(address: int, size: int, value: int) -> None:
    """Write every byte of host memory."""
    ctypes.memset(address, value, size)


def holds(address: int, size: int, value: int) -> bool:
    """Whether every byte of host memory has the value."""
    return ctypes.string_at(address, size) == bytes([value]) * size
