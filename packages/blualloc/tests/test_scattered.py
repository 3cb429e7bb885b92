"""Free memory that lies in pieces is moved to where it is needed, instead of the pool taking more from the device."""

from __future__ import annotations

import pytest
from fake_device import Ledger
from variants import MIB, FakePool, check_invariants

SLACK = 8 * MIB
"""What may lie scattered before memory moves; or a 64th of what lived at most."""


def scatter(pool: FakePool, ledger: Ledger, stream: int = 1) -> list[int]:
    """Leaves 128 MiB in use and 128 MiB free, in turns of 4 MiB; returns what is in use."""
    blocks = [pool.allocate(4 * MIB, stream=stream) for _ in range(64)]
    for block in blocks:
        ledger.use(block, 4 * MIB, stream)
    for block in blocks[::2]:
        pool.free(block, stream=stream)
    return blocks[1::2]


@pytest.mark.parametrize("has_pieces", [False, True])
@pytest.mark.parametrize("streams", [(1, 1), (1, 2)], ids=["one stream", "two streams"])
def test_large_blocks_take_the_place_of_scattered_free_ones(streams: tuple[int, int], has_pieces: bool) -> None:
    first, second = streams
    with FakePool(has_pieces=has_pieces) as pool:
        ledger = Ledger(pool.device)
        kept = scatter(pool, ledger, first)
        large = pool.allocate(100 * MIB, stream=second)
        ledger.check_new(large, 100 * MIB, second)
        assert pool.stats().reserved_bytes <= 256 * MIB + SLACK
        assert pool.device.mapped_bytes == pool.stats().reserved_bytes
        assert pool.device.num_synchronized > 0, "memory was taken away that work on the device may still use"
        check_invariants(pool)
        for block in kept:
            pool.free(block, stream=first)
        pool.free(large, stream=second)


def test_what_lived_at_once_before_is_not_moved() -> None:
    with FakePool() as pool:
        ledger = Ledger(pool.device)
        kept = scatter(pool, ledger)
        small = pool.allocate(5 * MIB, stream=1)  # fits no gap, and the slack
        assert pool.device.num_synchronized == 0
        for block in [*kept, small]:
            pool.free(block, stream=1)


def test_steps_that_repeat_come_to_rest() -> None:
    """Where moving does not help for good, the pool ends as it would be without: with room for all that is large."""
    with FakePool() as pool:
        ledger = Ledger(pool.device)
        maps = []
        for _ in range(40):
            kept = scatter(pool, ledger)
            large = [pool.allocate(size * MIB, stream=1) for size in (48, 31, 40)]
            for block in large + kept:
                pool.free(block, stream=1)
            maps.append(pool.stats().num_maps)
        assert pool.stats().peak_reserved_bytes <= (256 + 48 + 31 + 40) * MIB + 2 * SLACK
        assert len(set(maps[20:])) == 1, maps
