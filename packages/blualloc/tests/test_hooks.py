from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import blualloc
from blualloc import Event, EventKind, Pool

MIB = 1 << 20


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    events: list[Event] = []
    identity = blualloc.add_hook(events.append)
    yield events
    blualloc.remove_hook(identity)


def test_events_of_a_life(seen: list[Event]) -> None:
    with Pool(limit_bytes=4 * MIB) as pool:
        address = pool.allocate(1000, tag="weights", stream=3)
        pool.free(address, stream=4)
        with pytest.raises(blualloc.OutOfMemoryError):
            pool.allocate(8 * MIB, tag="too much")
        handle = pool.handle
    kinds = [event.kind for event in seen]
    assert kinds == [EventKind.MAP, EventKind.ALLOCATE, EventKind.FREE, EventKind.UNMAP, EventKind.OUT_OF_MEMORY]
    assert {event.pool for event in seen} == {handle}
    assert [event.sequence for event in seen] == [1, 2, 3, 4, 5]
    mapped, allocated, freed, unmapped, failed = seen
    assert mapped.bytes == mapped.reserved_bytes == unmapped.bytes == 2 * MIB
    assert (allocated.address, allocated.bytes, allocated.block_bytes) == (address, 1000, 1024)
    assert (allocated.tag, allocated.stream, allocated.live_bytes) == ("weights", 3, 1000)
    assert (freed.address, freed.tag, freed.stream, freed.live_bytes) == (address, "weights", 4, 0)
    assert (unmapped.reserved_bytes, failed.bytes, failed.tag) == (0, 8 * MIB, "too much")


def test_hooks_may_use_pools_and_do_not_see_themselves(seen: list[Event]) -> None:
    with Pool() as inner, Pool() as outer:

        def allocate_too(event: Event) -> None:
            if event.kind is EventKind.ALLOCATE:
                inner.free(inner.allocate(10))
                assert outer.stats().num_live == 1

        identity = blualloc.add_hook(allocate_too)
        outer.free(outer.allocate(10))
        blualloc.remove_hook(identity)
        assert inner.stats().num_allocations == 1
        assert {event.pool for event in seen} == {outer.handle}


def test_a_hook_may_remove_itself() -> None:
    calls = []
    identities: list[int] = []

    def once(event: Event) -> None:
        calls.append(event)
        if len(calls) == 1:
            blualloc.remove_hook(identities[0])

    identities.append(blualloc.add_hook(once))
    with Pool() as pool:
        for _ in range(3):
            pool.free(pool.allocate(10))
    assert len(calls) == 2  # map and allocate of the first call, which were delivered together


def test_removed_hooks_are_not_called(seen: list[Event]) -> None:
    calls: list[Event] = []
    identity = blualloc.add_hook(calls.append)
    blualloc.remove_hook(identity)
    with pytest.raises(ValueError, match="registered hook"):
        blualloc.remove_hook(identity)
    with Pool() as pool:
        pool.free(pool.allocate(10))
    assert calls == []
    assert len(seen) == 3


def test_hooks_come_and_go_while_threads_allocate() -> None:
    stop = threading.Event()
    totals = []

    def work(pool: Pool) -> None:
        count = 0
        while not stop.is_set():
            pool.free(pool.allocate(100))
            count += 1
        totals.append(count)

    with Pool() as pool:
        threads = [threading.Thread(target=work, args=(pool,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            events: list[Event] = []
            identity = blualloc.add_hook(events.append)
            while len(events) < 3:
                pass
            blualloc.remove_hook(identity)
            count = len(events)
            pool.free(pool.allocate(100))
            assert len(events) == count
        stop.set()
        for thread in threads:
            thread.join()
        assert pool.stats().num_frees == sum(totals) + 20


def test_a_hook_must_be_a_function() -> None:
    for value in (None, 5):
        with pytest.raises(TypeError, match=r"\[add_hook\] expected a function of an Event, got"):
            blualloc.add_hook(value)  # type: ignore[arg-type]
    with blualloc.Pool() as pool:
        pool.free(pool.allocate(1))
