"""Stream order on a device whose work is still running when calls return."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest
from fake_device import Ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import KIB, MIB, FakePool, check_invariants

import blualloc
from blualloc import _native


def test_one_stream_needs_no_events() -> None:
    with FakePool() as pool:
        for _ in range(50):
            pool.free(pool.allocate(MIB, stream=7), stream=7)
        assert pool.device.num_recorded == 0
        assert pool.stats().num_maps == 1


def test_other_streams_get_other_memory_until_the_limit() -> None:
    with FakePool() as pool:
        first = pool.allocate(MIB, stream=1)
        pool.free(first, stream=1)
        second = pool.allocate(MIB, stream=2)
        assert second != first
        assert pool.stats().num_event_waits == 0
        pool.free(second, stream=2)


def test_at_the_limit_memory_moves_behind_an_event() -> None:
    with FakePool(limit_bytes=2 * MIB, growth_bytes=64 * KIB) as pool:
        ledger = Ledger(pool.device)
        first = pool.allocate(2 * MIB, stream=1)
        ledger.use(first, 2 * MIB, 1)
        pool.free(first, stream=1)
        second = pool.allocate(2 * MIB, stream=2)
        assert second == first
        ledger.check_new(second, 2 * MIB, 2)
        assert (pool.stats().num_event_waits, pool.device.num_synchronized) == (1, 0), "the host must not wait"
        pool.free(second, stream=2)


def test_recorded_use_is_waited_for_at_reuse() -> None:
    with FakePool() as pool:
        ledger = Ledger(pool.device)
        block = pool.allocate(MIB, stream=1)
        pool.record_use(block, stream=2)
        pool.record_use(block, stream=2)
        ledger.use(block, MIB, 2)
        pool.free(block, stream=1)
        assert (pool.device.num_recorded, pool.stats().num_event_waits) == (1, 0)
        assert pool.allocate(MIB, stream=1) == block
        ledger.check_new(block, MIB, 1)
        assert pool.stats().num_event_waits == 1
        pool.free(block, stream=1)


def test_events_that_are_complete_are_not_waited_for() -> None:
    with FakePool() as pool:
        pool.device.events_done = True
        block = pool.allocate(MIB, stream=1)
        pool.record_use(block, stream=2)
        pool.free(block, stream=1)
        assert pool.allocate(MIB, stream=1) == block
        assert pool.stats().num_event_waits == 0
        pool.free(block, stream=1)


def test_free_on_another_stream_counts_as_use() -> None:
    with FakePool() as pool:
        ledger = Ledger(pool.device)
        block = pool.allocate(MIB, stream=1)
        ledger.use(block, MIB, 1)
        pool.free(block, stream=2)
        assert pool.allocate(MIB, stream=2) == block
        ledger.check_new(block, MIB, 2)
        pool.free(block, stream=2)


def test_empty_cache_waits_for_the_device() -> None:
    with FakePool() as pool:
        block = pool.allocate(MIB, stream=1)
        pool.record_use(block, stream=2)
        pool.device.submit(1)
        pool.device.submit(2)
        pool.free(block, stream=1)
        assert pool.empty_cache() == 2 * MIB
        assert pool.device.host == {1: 1, 2: 1}
        assert pool.device.mapped == {}


def test_forgotten_streams_leave_their_blocks_to_all() -> None:
    with FakePool() as pool:
        blocks = [pool.allocate(256 * KIB, stream=1) for _ in range(4)]
        kept = pool.allocate(256 * KIB, stream=1)
        pool.record_use(kept, stream=9)
        for block in blocks:
            pool.free(block, stream=1)
        pool.forget_stream(1)
        pool.forget_stream(9)
        check_invariants(pool)
        assert pool.allocate(MIB, stream=2) == blocks[0]
        pool.free(blocks[0], stream=2)
        recorded = pool.device.num_recorded
        pool.free(kept, stream=2)
        assert pool.device.num_recorded == recorded, "nothing may be recorded on a stream that is gone"


def test_forgotten_blocks_keep_the_events_of_others() -> None:
    with FakePool() as pool:
        ledger = Ledger(pool.device)
        block = pool.allocate(2 * MIB, stream=1)
        pool.record_use(block, stream=2)
        ledger.use(block, 2 * MIB, 2)
        pool.free(block, stream=1)
        pool.device.host = pool.device.now(1)
        pool.forget_stream(1)
        halves = [(pool.allocate(MIB, stream=stream), stream) for stream in (3, 4)]
        assert [address for address, _ in halves] == [block, block + MIB]
        for address, stream in halves:
            ledger.check_new(address, MIB, stream)
            pool.free(address, stream=stream)


def test_a_device_without_memory_is_out_of_memory() -> None:
    with FakePool(memory_bytes=MIB) as pool:
        held = pool.allocate(MIB - 64 * KIB, stream=1)
        with pytest.raises(blualloc.OutOfMemoryError) as caught:
            pool.allocate(MIB, stream=1)
        assert caught.value.limit == 0
        pool.free(held, stream=1)
        again = pool.allocate(MIB, stream=2)
        check_invariants(pool)
        pool.free(again, stream=2)


def test_whole_segments_go_back_when_nothing_in_them_is_live() -> None:
    with FakePool(is_whole=True) as pool:
        device = pool.device
        small = [pool.allocate(512 * KIB, stream=1) for _ in range(5)]  # four in the first segment of 2 MiB
        large = pool.allocate(5 * MIB + 1, stream=1)
        assert sorted(device.reservations.values()) == [2 * MIB, 2 * MIB, 5 * MIB + 64 * KIB]
        pool.free(large, stream=1)
        pool.free(small[4], stream=1)
        pool.free(small[0], stream=1)
        assert pool.empty_cache() == 7 * MIB + 64 * KIB
        assert list(device.reservations.values()) == [2 * MIB]
        again = pool.allocate(3 * MIB, stream=1)
        assert pool.find_block(again).segment == 3, "numbers of segments are not used twice"
        for address in [again, *small[1:4]]:
            pool.free(address, stream=1)


def test_out_of_memory_tells_what_the_device_has() -> None:
    with FakePool(memory_bytes=8 * MIB) as pool:
        address = pool.allocate(2 * MIB)
        with pytest.raises(blualloc.OutOfMemoryError, match=r"the device has 6.00 MiB .* free of 8.00 MiB") as caught:
            pool.allocate(64 * MIB)
        assert (caught.value.device_free, caught.value.device_total) == (6 * MIB, 8 * MIB)
        pool.device.table.memory = type(pool.device.table.memory)()
        pool.free(address)
    with blualloc.Pool(device_table=pool.device.address) as silent:
        with pytest.raises(blualloc.OutOfMemoryError) as caught:
            silent.allocate(64 * MIB)
        assert (caught.value.device_free, caught.value.device_total) == (0, 0)
        assert "the device has" not in str(caught.value)


def test_half_a_device_is_refused() -> None:
    with FakePool() as pool:
        for field, wrong, message in (
            ("query_event", _native.QUERY_EVENT(), "all five event callbacks"),
            ("map", _native.RANGE(), "map and unmap"),
            ("granularity", 3 << 10, "granularity"),
            ("min_alignment", 32, "min_alignment"),
            ("flags", 2, "flags"),
        ):
            broken = _native.DeviceOps.from_buffer_copy(pool.device.table)
            setattr(broken, field, wrong)
            with pytest.raises(ValueError, match=rf"expected .*{message}"):
                blualloc.Pool(device_table=_native.address(broken))


Call = tuple[str, int, int]


def run(pool: FakePool, calls: Iterable[Call], *, check_every: int = 1) -> None:
    """Make calls (kind, number, stream) and check all that they may not do; at the end everything is given back."""
    device, ledger = pool.device, Ledger(pool.device)
    live: list[tuple[int, int]] = []
    for turn, (kind, number, stream) in enumerate(calls):
        if kind == "allocate":
            try:
                address = pool.allocate(number, stream=stream)
            except blualloc.OutOfMemoryError:
                assert pool.stats().limit_bytes
                continue
            assert all(address + number <= a or a + n <= address for a, n in live)
            ledger.check_new(address, number, stream)
            ledger.use(address, number, stream)
            live.append((address, number))
        elif kind == "use" and live:
            address, size = live[number % len(live)]
            pool.record_use(address, stream=stream)
            ledger.use(address, size, stream)
        elif kind == "free" and live:
            address, size = live.pop(number % len(live))
            ledger.use(address, size, stream)  # the stream that frees may use it until then
            pool.free(address, stream=stream)
        elif kind == "done":
            device.events_done = bool(number % 2)
        elif kind == "trim":
            pool.empty_cache()
        elif kind == "forget":
            device.host = device.now(stream)  # it was synchronized, with all that it waited for
            pool.forget_stream(stream)
        if turn % check_every == 0:
            check_invariants(pool)
    for address, _ in live:
        pool.free(address)
    pool.empty_cache()
    stats = pool.stats()
    assert stats.num_live == stats.live_bytes == stats.reserved_bytes == 0


KINDS = ["allocate", "allocate", "allocate", "use", "free", "free", "done", "trim", "forget"]
CALLS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 300 * KIB), st.integers(0, 3)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(calls=CALLS, limited=st.booleans(), shuffled=st.booleans(), kind=st.sampled_from(["", "is_whole", "has_pieces"]))
def test_memory_is_never_reused_before_its_users_are_done(
    calls: list[Call], limited: bool, shuffled: bool, kind: str
) -> None:
    """Random lifetimes and streams: live blocks never overlap, reuse is always ordered, nothing leaks."""
    options = {"limit_bytes": MIB if limited else 0, "growth_bytes": 64 * KIB, "shuffle_seed": int(shuffled)}
    with FakePool(**({kind: True} if kind else {}), **options) as pool:
        run(pool, calls)
    device = pool.device
    assert device.mapped == device.reservations == device.events == {}


@pytest.mark.parametrize("seed", range(12))
def test_long_random_runs(seed: int) -> None:
    """The same on long sequences of few sizes, where most memory has been used by several streams before."""
    rng = random.Random(seed)
    weights = {"allocate": 40, "use": 20, "free": 38, "trim": 1, "forget": 1}

    def calls() -> Iterator[Call]:
        for _ in range(2000):
            (kind,) = rng.choices(list(weights), list(weights.values()))
            number = rng.choice([32, 64, 96, 128]) * KIB if kind == "allocate" else rng.randrange(1000)
            yield kind, number, rng.randrange(3)

    options = {"limit_bytes": rng.choice([0, 2 * MIB]), "growth_bytes": 256 * KIB, "shuffle_seed": seed % 2}
    with FakePool(is_whole=seed % 3 == 2, has_pieces=seed % 3 == 1, **options) as pool:
        run(pool, calls(), check_every=40)
