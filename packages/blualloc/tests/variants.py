"""The pools that the contract holds for, and what must be true of every pool at any time."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from cuda import Cuda
from fake_device import FakeDevice

from blualloc import Block, BlockState, Pool, _native
from blualloc.errors import check

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
    granularity: int = 64 * KIB
    needs_cuda: bool = False


class FakePool(Pool):
    """A pool of a fake device of its own."""

    def __init__(
        self, *, memory_bytes: int = 1 << 40, is_whole: bool = False, has_pieces: bool = False, **options: int
    ) -> None:
        self.device = FakeDevice(memory_bytes=memory_bytes, is_whole=is_whole, has_pieces=has_pieces)
        super().__init__(device_table=self.device.address, **options)  # type: ignore[arg-type]


@functools.cache
def cuda() -> Cuda:
    """The device of the GPU tests."""
    return Cuda()


@functools.cache
def _real_stream(number: int) -> int:
    return cuda().stream() if number else 0


def _number_of(stream: int) -> int:
    return next((number for number in range(16) if _real_stream(number) == stream), stream)


class CudaPool(Pool):
    """A pool whose streams 1, 2, ... are real ones of the device; 0 is its default stream.

    `segments` is how memory is taken: "virtual", "whole" or "pinned".
    """

    def __init__(self, segments: str, **options: int) -> None:
        cuda().make_current()
        if segments == "pinned":
            super().__init__("pinned", **options)  # type: ignore[arg-type]
            return
        table = ctypes.c_void_p()
        check(_native.library.blualloc_cuda_device(0, {"virtual": 1, "whole": 2}[segments], table))
        super().__init__("cuda", device_table=table.value or 0, **options)  # type: ignore[arg-type]

    def allocate(self, num_bytes: int, *, stream: int = 0, tag: str | None = None) -> int:
        return super().allocate(num_bytes, stream=_real_stream(stream), tag=tag)

    def free(self, address: int, *, stream: int = 0) -> None:
        super().free(address, stream=_real_stream(stream))

    def record_use(self, address: int, *, stream: int) -> None:
        super().record_use(address, stream=_real_stream(stream))

    def forget_stream(self, stream: int) -> None:
        cuda().synchronize_stream(_real_stream(stream))
        super().forget_stream(_real_stream(stream))

    def snapshot(self) -> tuple[Block, ...]:
        return tuple(dataclasses.replace(block, stream=_number_of(block.stream)) for block in super().snapshot())


def parameters(variants: Iterable[Variant]) -> list[Any]:
    """For parametrize: each variant under its name, those that need a device marked."""
    return [
        pytest.param(variant, id=variant.name, marks=[pytest.mark.gpu] if variant.needs_cuda else [])
        for variant in variants
    ]


def _cuda_variant(segments: str, **fields: Any) -> Variant:
    name = segments if segments == "pinned" else f"cuda_{segments}"
    return Variant(
        name + "_shuffled" * fields.get("is_shuffled", False),
        lambda **o: CudaPool(segments, **{"shuffle_seed": 7 * fields.get("is_shuffled", False), **o}),
        **{"alignment": 256, "is_host": False, "is_asynchronous": True, "granularity": 2 * MIB, "needs_cuda": True}
        | fields,
    )


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
        granularity=2 * MIB,
    ),
    Variant(
        "pieces",
        lambda **o: FakePool(**{"has_pieces": True, **o}),
        alignment=256,
        is_host=False,
        is_asynchronous=True,
        granularity=2 * MIB,  # an eighth of the largest map of these tests
    ),
    _cuda_variant("virtual"),
    _cuda_variant("virtual", is_shuffled=True),
    _cuda_variant("whole", is_whole=True),
    _cuda_variant("pinned", is_whole=True, is_host=True),
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
