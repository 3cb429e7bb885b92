"""What holds for every pool, whatever its device and options."""

from __future__ import annotations

import itertools
import threading

import pytest
from variants import KIB, MIB, VARIANTS, Variant, check_invariants, fill, holds, parameters

import blualloc
from blualloc import BlockState, Pool

# A shuffling pool goes elsewhere on purpose; a fake device has addresses only.
on_orderly_pools = pytest.mark.parametrize(
    "variant", parameters(v for v in VARIANTS if not v.is_shuffled), indirect=True
)
on_host_pools = pytest.mark.parametrize("variant", parameters(v for v in VARIANTS if v.is_host), indirect=True)

SIZES = [
    1,
    63,
    64,
    65,
    255,
    256,
    257,
    511,
    513,
    4095,
    4096,
    4097,
    65535,
    65536,
    65537,
    2 * MIB - 1,
    2 * MIB + 1,
    5000011,
]


def test_blocks_are_aligned_and_disjoint(pool: Pool, variant: Variant) -> None:
    blocks = sorted((pool.allocate(size), size) for size in SIZES)
    assert all(address % variant.alignment == 0 for address, _ in blocks)
    for (address, size), (following, _) in itertools.pairwise(blocks):
        assert address + size <= following
    check_invariants(pool)
    for address, _ in blocks:
        pool.free(address)
        check_invariants(pool)


@on_host_pools
def test_host_memory_keeps_what_is_written(variant: Variant) -> None:
    with variant.make() as pool:
        blocks = [(pool.allocate(size), size, 1 + i) for i, size in enumerate(SIZES)]
        for address, size, value in blocks:
            fill(address, size, value)
        for address, size, value in blocks:
            assert holds(address, size, value)
            pool.free(address)


def test_nothing_is_not_allocated(pool: Pool) -> None:
    assert pool.allocate(0) == 0
    pool.free(0)
    assert pool.stats().num_allocations == 0


@on_orderly_pools
def test_freed_block_is_reused_by_its_stream(pool: Pool) -> None:
    first = pool.allocate(10 * KIB, stream=5)
    pool.free(first, stream=5)
    assert pool.allocate(10 * KIB, stream=5) == first


@on_orderly_pools
def test_best_fit_takes_the_smallest_that_fits(pool: Pool) -> None:
    sizes = {"large": 16 * KIB, "small": 4 * KIB, "middle": 8 * KIB}
    places = {}
    for name, size in sizes.items():
        places[name] = pool.allocate(size)
        pool.allocate(1)  # keeps freed ones apart
    for address in places.values():
        pool.free(address)
    assert pool.allocate(3 * KIB) == places["small"]
    assert pool.allocate(4 * KIB + 1) == places["middle"]
    assert pool.allocate(10 * KIB) == places["large"]


def test_neighbours_merge(pool: Pool, variant: Variant) -> None:
    blocks = [pool.allocate(16 * KIB) for _ in range(8)]
    for address in blocks[::2] + blocks[1::2]:
        pool.free(address)
    assert [b for b in pool.snapshot() if b.state is BlockState.LIVE] == []
    assert pool.stats().largest_free_bytes >= 8 * 16 * KIB or variant.is_shuffled
    check_invariants(pool)


@pytest.mark.parametrize("offset", [64, 128 * MIB], ids=["interior", "outside"])
def test_foreign_addresses_are_refused(pool: Pool, offset: int) -> None:
    wrong = pool.allocate(4 * KIB) + offset
    before = pool.stats()
    for call in (
        lambda: pool.free(wrong),
        lambda: pool.record_use(wrong, stream=1),
        lambda: pool.set_tag(wrong, "x"),
    ):
        with pytest.raises(ValueError, match="expected the start of a live block"):
            call()
    assert pool.stats() == before


def test_double_free_is_refused(pool: Pool) -> None:
    address = pool.allocate(100)
    pool.free(address)
    with pytest.raises(ValueError, match="freed already"):
        pool.free(address)
    assert pool.stats().num_frees == 1


def test_statistics(pool: Pool) -> None:
    first = pool.allocate(1000)
    second = pool.allocate(3000)
    pool.free(first)
    stats = pool.stats()
    assert (stats.live_bytes, stats.peak_live_bytes, stats.num_live) == (3000, 4000, 1)
    assert (stats.num_allocations, stats.num_frees, stats.requested_total) == (2, 1, 4000)
    assert stats.wasted_bytes == stats.live_block_bytes - 3000
    assert stats.wasted_total >= stats.wasted_bytes
    pool.reset_peak()
    assert pool.stats().peak_live_bytes == 3000
    assert pool.stats().peak_reserved_bytes == pool.stats().reserved_bytes
    pool.free(second)
    assert pool.stats().peak_live_bytes == 3000


def test_histogram(pool: Pool) -> None:
    for size in (7, 100, 7, 9, 100, 7):
        pool.free(pool.allocate(size))
    assert [(item.bytes, item.count) for item in pool.histogram()] == [(7, 3), (9, 1), (100, 2)]


def test_snapshot_names_owners(pool: Pool) -> None:
    weights = pool.allocate(300, tag="weights", stream=3)
    other = pool.allocate(200)
    named = {block.address: block for block in pool.snapshot() if block.state is BlockState.LIVE}
    assert (named[weights].tag, named[weights].requested, named[weights].stream) == ("weights", 300, 3)
    assert (named[other].tag, named[other].sequence) == ("untagged", 2)
    pool.set_tag(other, "ünïcode")
    assert pool.find_block(other + 199).tag == "ünïcode"
    assert pool.find_block(weights).address == weights
    with pytest.raises(ValueError, match="inside a live block"):
        pool.find_block(1)


def test_empty_cache_returns_everything_free(pool: Pool, variant: Variant) -> None:
    kept = pool.allocate(100 * KIB)
    for _ in range(3):
        pool.free(pool.allocate(8 * MIB))
    before = pool.stats().reserved_bytes
    returned = pool.empty_cache()
    after = pool.stats().reserved_bytes
    assert returned == before - after > 0
    # The granules, or the segment, that the live block touches.
    assert after <= max(4 * 64 * KIB, variant.granularity)
    assert pool.empty_cache() == 0
    check_invariants(pool)
    pool.free(kept)
    pool.empty_cache()
    assert pool.stats().reserved_bytes == 0


def test_limit(pool: Pool) -> None:
    pool.set_limit(4 * MIB)
    held = [pool.allocate(MIB, tag="a" if i else "b") for i in range(3)]
    with pytest.raises(blualloc.OutOfMemoryError) as caught:
        pool.allocate(2 * MIB, tag="wanted")
    error = caught.value
    assert isinstance(error, MemoryError)
    assert (error.requested, error.live, error.limit) == (2 * MIB, 3 * MIB, 4 * MIB)
    assert [(h.tag, h.bytes, h.count) for h in error.holders] == [("a", 2 * MIB, 2), ("b", MIB, 1)]
    assert all(
        word in str(error) for word in ("2.00 MiB", "'wanted'", "limit 4.00 MiB", "set_limit", "bytes) in 2 blocks")
    )
    assert pool.stats().num_out_of_memory == 1
    check_invariants(pool)
    pool.free(held.pop())  # the pool is usable: two pieces of 1 MiB are free now, wherever they are
    pool.free(held.pop())
    held.append(pool.allocate(2 * MIB, tag="wanted"))
    assert pool.stats().reserved_bytes <= 4 * MIB
    pool.set_limit(0)
    pool.allocate(64 * MIB)


def test_limit_is_met_by_giving_back_the_cache(pool: Pool) -> None:
    pool.set_limit(8 * MIB)
    fences = []
    for _ in range(12):  # free pieces of 512 KiB, each between live ones
        piece = pool.allocate(512 * KIB)
        fences.append(pool.allocate(64))
        pool.free(piece)
        pool.allocate(1)
    pool.allocate(5 * MIB)
    assert pool.stats().reserved_bytes <= 8 * MIB


def test_limit_below_what_is_reserved(pool: Pool) -> None:
    kept = pool.allocate(2 * MIB)
    pool.free(pool.allocate(8 * MIB))
    pool.set_limit(MIB)
    assert pool.stats().reserved_bytes < 3 * MIB
    with pytest.raises(blualloc.OutOfMemoryError):
        pool.allocate(MIB)
    pool.free(kept)
    pool.allocate(512 * KIB)


def test_impossible_sizes_are_out_of_memory(pool: Pool) -> None:
    for size in (1 << 57, (1 << 64) - 1):
        with pytest.raises(blualloc.OutOfMemoryError) as caught:
            pool.allocate(size)
        assert caught.value.requested == size
        assert caught.value.limit == 0
    pool.allocate(1)


@pytest.mark.parametrize(
    ("size", "error"), [(-1, ValueError), (1 << 64, ValueError), (1.5, TypeError), ("1", TypeError)]
)
def test_sizes_must_be_unsigned(pool: Pool, size: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="num_bytes"):
        pool.allocate(size)  # type: ignore[arg-type]
    with pytest.raises(error, match="num_bytes"):
        pool.set_limit(size)  # type: ignore[arg-type]


def test_end_of_step(pool: Pool, variant: Variant) -> None:
    pool.free(pool.allocate(16 * MIB, tag="start-up"))
    kept = [pool.allocate(size) for size in (1000, 1000, 1024, 40 * KIB, 40 * KIB)]
    report = pool.end_of_step(0)
    assert (report.tuned, report.step) == (True, 0)
    assert report.peak_live_bytes == 16 * MIB
    # What is kept lies where start-up was, shuffled all over it: its granules stay, whole, that segment stays.
    num_touched = len(kept) + 1 if variant.is_shuffled else 1
    assert report.returned_bytes >= 16 * MIB - max(MIB, num_touched * variant.granularity) or variant.is_whole
    assert report.reserved_bytes == pool.stats().reserved_bytes
    assert report.alignment_after == pool.stats().alignment
    assert [c.alignment for c in report.candidates] == [variant.alignment << i for i in range(4)]
    for candidate in report.candidates:
        rounded = [-(-size // candidate.alignment) * candidate.alignment for size in (16 * MIB, 1000, 1000, 1024)]
        assert candidate.wasted_bytes == sum(rounded) - 16 * MIB - 3024
    pool.free(pool.allocate(2 * MIB))
    later = pool.end_of_step(1)
    assert (later.tuned, later.returned_bytes) == (False, 0)
    assert later.peak_live_bytes == sum((1000, 1000, 1024, 80 * KIB)) + 2 * MIB
    for address in kept:
        pool.free(address)
    check_invariants(pool)


def test_alignment_follows_the_sizes(variant: Variant) -> None:
    base = variant.alignment
    # Large sizes that differ by one unit of the least alignment: rounding to 8 units makes them one, at little cost.
    # (1 MiB and a few hundred bytes lose less than a thousandth.)
    with variant.make(alignment=base) as pool:
        for i in range(1, 9):
            pool.free(pool.allocate(4 * MIB + i * base))
        assert pool.end_of_step(0).alignment_after == 8 * base
        address = pool.allocate(1)
        assert pool.find_block(address).bytes >= 8 * base
        pool.free(address)
    # Small sizes would lose too much.
    with variant.make(alignment=base) as pool:
        for i in range(1, 9):
            pool.free(pool.allocate(i * base))
        assert pool.end_of_step(0).alignment_after == base


def sequence_of_calls(pool: Pool) -> list[tuple[int, int]]:
    """Some calls of all kinds; the places they got."""
    places = []
    held = []
    state = 12345
    for i in range(400):
        state = (state * 1103515245 + 12345) % (1 << 31)
        if held and state % 5 < 2:
            pool.free(held.pop(state // 8 % len(held)), stream=state // 16 % 2)
        else:
            held.append(pool.allocate(1 + state % (200 * KIB), stream=state // 16 % 2))
            block = pool.find_block(held[-1])
            places.append((block.segment, block.segment_offset))
        if i == 200:
            pool.end_of_step(0)
        if i == 300:
            pool.empty_cache()
    for address in held:
        pool.free(address)
    return places


def test_same_calls_same_places(variant: Variant) -> None:
    with variant.make() as first, variant.make() as second:
        assert sequence_of_calls(first) == sequence_of_calls(second)


def test_shuffling_moves_blocks() -> None:
    with Pool(shuffle_seed=1) as first, Pool(shuffle_seed=2) as second, Pool() as third:
        places = [sequence_of_calls(pool) for pool in (first, second, third)]
    assert places[0] != places[1]
    assert places[0] != places[2]


def test_threads(pool: Pool, variant: Variant) -> None:
    failures = []

    def work(number: int) -> None:
        try:
            for i in range(300):
                size = 1 + (i * 7919 + number * 104729) % (64 * KIB)
                address = pool.allocate(size, stream=number, tag=f"thread {number}")
                if variant.is_host:
                    fill(address, size, number)
                    assert holds(address, size, number)
                if i % 50 == 0:
                    pool.stats()
                    pool.empty_cache()
                pool.free(address, stream=number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert pool.stats().num_allocations == pool.stats().num_frees == 1200
    check_invariants(pool)


def test_close(variant: Variant) -> None:
    pool = variant.make()
    pool.allocate(100, tag="forgotten")
    with pytest.raises(ValueError, match="'forgotten'"):
        pool.close()
    assert pool.stats().num_live == 1
    pool.close(force=True)
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.allocate(1)


def test_exceptions_pass_through_with(variant: Variant) -> None:
    def fail_with_live_blocks() -> None:
        with variant.make() as pool:
            pool.allocate(100)
            raise KeyError("a user's error")

    with pytest.raises(KeyError, match="a user's error"):
        fail_with_live_blocks()


def test_tags_must_be_text(pool: Pool) -> None:
    for tag in (5, b"bytes"):
        with pytest.raises(TypeError, match=r"\[allocate\] expected a string for `tag`, got"):
            pool.allocate(1, tag=tag)  # type: ignore[arg-type]
    address = pool.allocate(1, tag="named")
    for tag in (None, 5):
        with pytest.raises(TypeError, match=r"\[set_tag\] expected a string for `tag`, got"):
            pool.set_tag(address, tag)  # type: ignore[arg-type]
    assert [block.tag for block in pool.snapshot() if block.state is BlockState.LIVE] == ["named"]
