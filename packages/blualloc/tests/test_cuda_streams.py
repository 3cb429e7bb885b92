"""Random lifetimes on several real streams: no user of a block may ever see another block's bytes.

Every block is filled with its own pattern on the stream that it was allocated for; whoever uses it later copies it out
on a stream of its own, behind random delays, right up to the free. If the pool handed memory out before its users were
done, a later fill would show in an earlier copy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from variants import KIB, MIB, CudaPool, check_invariants, cuda

import blualloc

pytestmark = pytest.mark.gpu

NUM_STREAMS = 4
LOG_BYTES = 768 * MIB
DELAY_BYTES = 128 * MIB  # about 30 microseconds of writing on a large device


@dataclass
class Block:
    address: int
    size: int
    value: int
    owner: int  # number of the stream


class Scratch:
    """Where blocks are copied to, and what the delays write."""

    def __init__(self) -> None:
        self.log = cuda().allocate(LOG_BYTES)
        self.delay = [cuda().allocate(DELAY_BYTES) for _ in range(NUM_STREAMS)]
        self.streams = [0, *(cuda().stream() for _ in range(NUM_STREAMS - 1))]
        self.entries: list[tuple[int, int, int]] = []  # offset, size, expected value
        self.used = 0

    def wait_a_while(self, number: int, times: int) -> None:
        for _ in range(times):
            cuda().fill(self.delay[number], DELAY_BYTES, 0, self.streams[number])

    def note(self, block: Block, number: int) -> None:
        """Copy a block to the log on a stream."""
        if self.used + block.size > LOG_BYTES:
            self.check()
        cuda().copy(self.log + self.used, block.address, block.size, self.streams[number])
        self.entries.append((self.used, block.size, block.value))
        self.used += block.size

    def check(self) -> None:
        """All copies so far hold what their blocks were filled with."""
        if self.used:
            read = memoryview(cuda().read(self.log, self.used))
            for offset, size, value in self.entries:
                assert read[offset : offset + size] == bytes([value]) * size, "a block was reused too early"
        self.entries.clear()
        self.used = 0

    def close(self) -> None:
        cuda().synchronize()
        for address in [self.log, *self.delay]:
            cuda().free(address)
        for stream in self.streams[1:]:
            cuda().destroy_stream(stream)


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    made = Scratch()
    yield made
    made.close()


@pytest.mark.parametrize("limit", [0, 24 * MIB], ids=["unlimited", "limited"])
@pytest.mark.parametrize("segments", ["virtual", "whole", "virtual_shuffled"])
@pytest.mark.parametrize("seed", range(2))
def test_no_block_is_reused_before_its_users_are_done(scratch: Scratch, seed: int, segments: str, limit: int) -> None:
    rng = random.Random(f"{seed} {segments} {limit}")
    kind, _, shuffled = segments.partition("_")
    pool = CudaPool(kind, limit_bytes=limit, shuffle_seed=int(bool(shuffled)))
    streams = scratch.streams
    native = super(CudaPool, pool)  # with handles of streams as they are
    live: list[Block] = []
    num_reused = 0
    former: list[tuple[int, int]] = []  # where blocks were that are freed
    for turn in range(1500):
        number = rng.randrange(NUM_STREAMS)
        stream = streams[number]
        if rng.random() < 0.2:
            scratch.wait_a_while(number, rng.randrange(1, 6))
        action = rng.choices(["allocate", "use", "free", "trim"], [42, 20, 42, 0.3])[0]
        if action == "allocate":
            size = rng.choice([64 * KIB, 256 * KIB, MIB, rng.randrange(1, 2 * MIB)])
            try:
                address = native.allocate(size, stream=stream, tag="random")
            except blualloc.OutOfMemoryError:
                assert limit
                continue
            num_reused += any(first < address + size and address < last for first, last in former)
            assert all(address + size <= b.address or b.address + b.size <= address for b in live)
            block = Block(address, size, turn % 251, number)
            cuda().fill(address, size, block.value, stream)
            live.append(block)
        elif action == "use" and live:
            block = rng.choice(live)
            cuda().order(streams[block.owner], stream)  # as any program must, to read what another stream wrote
            native.record_use(block.address, stream=stream)
            scratch.wait_a_while(number, rng.randrange(3))
            scratch.note(block, number)
        elif action == "free" and live:
            block = live.pop(rng.randrange(len(live)))
            by = block.owner if rng.random() < 0.7 else number
            cuda().order(streams[block.owner], streams[by])
            scratch.wait_a_while(by, rng.randrange(3))
            scratch.note(block, by)
            native.free(block.address, stream=streams[by])
            former.append((block.address, block.address + block.size))
        elif action == "trim":
            native.empty_cache()
    scratch.check()
    assert num_reused > 100
    for block in live:
        assert cuda().read(block.address, block.size) == bytes([block.value]) * block.size
        native.free(block.address, stream=streams[block.owner])
    check_invariants(pool)
    stats = pool.stats()
    assert stats.num_event_waits > 0
    assert stats.num_live == 0
    pool.close()
