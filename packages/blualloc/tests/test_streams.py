"""Stream order on a device whose work is still running when calls return."""

from __future__ import annotations

import pytest
from fake_device import Ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import KIB, MIB, FakePool, check_invariants

import blualloc


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


def test_half_a_device_is_refused() -> None:
    with FakePool() as pool:
        device = pool.device
        device.table.query_event = type(device.table.query_event)()
        with pytest.raises(ValueError, match="all five event callbacks"):
            blualloc.Pool(device_table=device.address)
        device.table.granularity = 3 << 10
        device.table.query_event = pool.device.table.query_event
    with pytest.raises(ValueError, match="expected"):
        blualloc.Pool(device_table=device.address)


STREAMS = st.integers(0, 3)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 300 * KIB), STREAMS),
        st.tuples(st.just("use"), st.integers(0, 1000), STREAMS),
        st.tuples(st.just("free"), st.integers(0, 1000), STREAMS),
        st.tuples(st.just("done"), st.just(0), st.booleans()),
        st.tuples(st.just("trim"), st.just(0), st.just(0)),
        st.tuples(st.just("forget"), st.just(0), STREAMS),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(calls=CALLS, limited=st.booleans(), shuffled=st.booleans())
def test_memory_is_never_reused_before_its_users_are_done(
    calls: list[tuple[str, int, int]], limited: bool, shuffled: bool
) -> None:
    """Random lifetimes and streams: live blocks never overlap, reuse is always ordered, nothing leaks."""
    with FakePool(limit_bytes=MIB if limited else 0, growth_bytes=64 * KIB, shuffle_seed=int(shuffled)) as pool:
        ledger = Ledger(pool.device)
        live: list[tuple[int, int, int]] = []
        for kind, number, stream in calls:
            if kind == "allocate":
                try:
                    address = pool.allocate(number, stream=stream)
                except blualloc.OutOfMemoryError:
                    assert limited
                    continue
                assert all(address + number <= a or a + n <= address for a, n, _ in live)
                ledger.check_new(address, number, stream)
                ledger.use(address, number, stream)
                live.append((address, number, stream))
            elif kind == "use" and live:
                address, size, _ = live[number % len(live)]
                pool.record_use(address, stream=stream)
                ledger.use(address, size, stream)
            elif kind == "free" and live:
                address, size, _ = live.pop(number % len(live))
                ledger.use(address, size, stream)  # the stream that frees may use it until then
                pool.free(address, stream=stream)
            elif kind == "done":
                pool.device.events_done = bool(stream)
            elif kind == "trim":
                pool.empty_cache()
            elif kind == "forget":
                pool.device.host = {**pool.device.host, stream: pool.device.submitted[stream]}  # it was synchronized
                pool.forget_stream(stream)
            check_invariants(pool)
        for address, _, stream in live:
            pool.free(address, stream=stream)
        pool.empty_cache()
        stats = pool.stats()
        assert stats.num_live == stats.live_bytes == stats.reserved_bytes == 0
        device = pool.device
    assert device.mapped == device.reservations == device.events == {}
