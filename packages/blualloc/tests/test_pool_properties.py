"""Random sequences of calls on host pools."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from variants import KIB, check_invariants, fill, holds

import blualloc
from blualloc import Pool

SIZE = st.one_of(st.integers(1, 300), st.integers(1, 100 * KIB), st.sampled_from([64, 4096, 65536, 2 << 20]))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), SIZE),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("trim"), st.just(0)),
        st.tuples(st.just("step"), st.integers(0, 2)),
        st.tuples(st.just("limit"), st.sampled_from([0, 256 * KIB, 4 << 20])),
    ),
    max_size=80,
)
OPTIONS = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([0, 192 * KIB]),
        "growth_bytes": st.sampled_from([0, 64 * KIB]),
        "alignment": st.sampled_from([0, 64, 256, 4096]),
        "shuffle_seed": st.integers(0, 3),
    }
)


def run(pool: Pool, calls: list[tuple[str, int]], *, check: bool) -> list[tuple[int, int] | None]:
    """Make the calls; returns where each allocation went. Checks contents and bookkeeping on the way if asked to."""
    places: list[tuple[int, int] | None] = []
    live: list[tuple[int, int, int]] = []
    for turn, (kind, number) in enumerate(calls):
        if kind == "allocate":
            try:
                address = pool.allocate(number)
            except blualloc.OutOfMemoryError:
                places.append(None)
                continue
            block = pool.find_block(address)
            places.append((block.segment, block.segment_offset))
            assert all(address + number <= a or a + n <= address for a, n, _ in live)
            value = turn % 256
            if check:
                fill(address, number, value)
            live.append((address, number, value))
        elif kind == "free" and live:
            address, size, value = live.pop(number % len(live))
            assert not check or holds(address, size, value), "another block wrote into this one"
            pool.free(address)
        elif kind == "trim":
            pool.empty_cache()
        elif kind == "step":
            pool.end_of_step(number)
        elif kind == "limit":
            pool.set_limit(number)
        if check:
            check_invariants(pool)
    for address, size, value in live:
        assert not check or holds(address, size, value)
        pool.free(address)
    return places


@settings(max_examples=150, deadline=None)
@given(calls=CALLS, options=OPTIONS)
def test_live_blocks_never_overlap_and_nothing_leaks(calls: list[tuple[str, int]], options: dict[str, int]) -> None:
    with Pool(**options) as pool:  # type: ignore[arg-type]
        run(pool, calls, check=True)
        pool.empty_cache()
        stats = pool.stats()
        assert stats.num_live == stats.live_bytes == stats.live_block_bytes == stats.reserved_bytes == 0
        assert stats.num_allocations == stats.num_frees == sum(item.count for item in pool.histogram())


@settings(max_examples=100, deadline=None)
@given(calls=CALLS, options=OPTIONS)
def test_same_calls_same_addresses(calls: list[tuple[str, int]], options: dict[str, int]) -> None:
    with Pool(**options) as first, Pool(**options) as second:  # type: ignore[arg-type]
        assert run(first, calls, check=False) == run(second, calls, check=False)
        assert first.stats() == second.stats()
