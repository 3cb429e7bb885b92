"""Plans against an oracle that knows nothing of vector clocks, and on the trace of a training step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_trace import COMMUNICATION, gpt2_step

import blualloc
from blualloc import Buffer, LaneEvent

Place = tuple[int, int]


class Order:
    """All ordered pairs of operations: the transitive closure, by brute force (Warshall, one bit per operation)."""

    def __init__(self, places: set[Place], events: Sequence[LaneEvent]) -> None:
        places = places | {(e.from_lane, e.from_index) for e in events} | {(e.to_lane, e.to_index) for e in events}
        self.number = {place: i for i, place in enumerate(sorted(places))}
        self.after = [0] * len(places)
        for (a, i), (b, j) in itertools.product(self.number.items(), repeat=2):
            if a[0] == b[0] and a[1] < b[1]:
                self.after[i] |= 1 << j
        for e in events:
            self.after[self.number[e.from_lane, e.from_index]] |= 1 << self.number[e.to_lane, e.to_index]
        for middle in range(len(places)):
            for i in range(len(places)):
                if self.after[i] >> middle & 1:
                    self.after[i] |= self.after[middle]

    def before(self, a: Place, b: Place) -> bool:
        return bool(self.after[self.number[a]] >> self.number[b] & 1)


def check_plan(buffers: Sequence[Buffer], events: Sequence[LaneEvent], alignment: int = 64) -> blualloc.Plan:
    """Plan, and compare with the oracle."""
    plan = blualloc.plan(buffers, events, alignment=alignment)
    assert plan == blualloc.plan(buffers, events, alignment=alignment)
    order = Order({use for buffer in buffers for use in buffer.uses}, events)

    def over_before(a: Buffer, b: Buffer) -> bool:
        return all(order.before(use, b.uses[0]) for use in a.uses)

    placed = [(b, o) for b, o in zip(buffers, plan.offsets, strict=True) if b.bytes and b.uses]
    for buffer, offset in placed:
        assert offset % alignment == 0
        assert offset + buffer.bytes <= plan.arena_bytes
    for (a, start_a), (b, start_b) in itertools.combinations(placed, 2):
        if start_a < start_b + b.bytes and start_b < start_a + a.bytes:
            assert over_before(a, b) or over_before(b, a), "they overlap in the arena and may exist at the same time"
    assert plan.arena_bytes % alignment == 0
    assert plan.total_bytes == sum(b.bytes for b in buffers)
    assert plan.peak_live_bytes <= plan.arena_bytes
    assert plan.arena_bytes <= sum(-(-b.bytes // alignment) * alignment for b, _ in placed)
    return plan


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Buffer], list[LaneEvent]]:
    """Random lanes and lifetimes. Events go forward in one hidden order of all operations, so that none is a cycle."""
    lanes = draw(st.integers(1, 4))
    hidden = draw(st.lists(st.integers(0, lanes - 1), min_size=1, max_size=24))
    counters = [0] * lanes
    places: list[Place] = []
    for lane in hidden:
        places.append((lane, counters[lane]))
        counters[lane] += draw(st.sampled_from([1, 1, 1, 5]))
    pair = st.tuples(st.integers(0, len(places) - 1), st.integers(0, len(places) - 1))
    events = []
    for a, b in draw(st.lists(pair, max_size=12)):
        if a != b:
            (from_lane, from_index), (to_lane, to_index) = places[min(a, b)], places[max(a, b)]
            events.append(LaneEvent(from_lane, from_index, to_lane, to_index))
    order = Order(set(places), events)
    buffers = []
    for _ in range(draw(st.integers(0, 14))):
        first = draw(st.sampled_from(places))
        later = [place for place in places if place == first or order.before(first, place)]
        uses = [first, *draw(st.lists(st.sampled_from(later), max_size=4))]
        size = draw(st.sampled_from([0, 1, 63, 64, 65, 100, 1000, 4096]))
        buffers.append(Buffer(size, draw(st.sampled_from([uses, uses, uses, []]))))
    return buffers, events


@settings(max_examples=300, deadline=None)
@given(program=programs(), alignment=st.sampled_from([64, 1, 256]))
def test_plans_agree_with_the_oracle(program: tuple[list[Buffer], list[LaneEvent]], alignment: int) -> None:
    check_plan(*program, alignment=alignment)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(1, 5000)), max_size=25))
def test_peak_on_one_lane_is_exact(intervals: list[tuple[int, int, int]]) -> None:
    buffers = [Buffer(size, [(0, start), (0, start + length)]) for start, length, size in intervals]
    plan = check_plan(buffers, [])
    live = [sum(size for start, length, size in intervals if start <= t <= start + length) for t in range(41)]
    assert plan.peak_live_bytes == max(live)


def test_nothing() -> None:
    plan = blualloc.plan([])
    assert (plan.offsets, plan.arena_bytes, plan.peak_live_bytes) == ((), 0, 0)


def test_no_bytes_and_no_uses_take_no_room() -> None:
    plan = blualloc.plan([Buffer(0, [(0, 0)]), Buffer(1 << 30, []), Buffer(10, [(0, 0)])])
    assert plan.offsets == (0, 0, 0)
    assert (plan.arena_bytes, plan.peak_live_bytes) == (64, 10)


def test_an_operation_does_not_write_over_what_it_reads() -> None:
    plan = blualloc.plan([Buffer(64, [(0, 0), (0, 1)]), Buffer(64, [(0, 1), (0, 2)])])
    assert plan.arena_bytes == 128


def test_lanes_share_only_behind_events() -> None:
    buffers = [Buffer(64, [(0, 0), (0, 1)]), Buffer(64, [(1, 5), (1, 6)])]
    assert blualloc.plan(buffers).arena_bytes == 128
    assert blualloc.plan(buffers, [LaneEvent(0, 1, 1, 5)]).arena_bytes == 64
    assert blualloc.plan(buffers, [LaneEvent(0, 1, 1, 6)]).arena_bytes == 128  # too late
    assert blualloc.plan(buffers, [LaneEvent(0, 0, 1, 5)]).arena_bytes == 128  # too early
    assert blualloc.plan(buffers, [LaneEvent(1, 6, 0, 0)]).arena_bytes == 64
    # Through a third lane.
    chain = [LaneEvent(0, 1, 2, 7), LaneEvent(2, 9, 1, 4)]
    assert blualloc.plan(buffers, chain).arena_bytes == 64


@pytest.mark.parametrize(
    ("buffers", "events", "options", "message"),
    [
        ([Buffer(-1, [(0, 0)])], [], {}, r"buffers\[0\].bytes"),
        ([Buffer(1 << 63, [(0, 0)])], [], {}, "buffer 0"),
        ([Buffer(1 << 62, [(0, 0)]), Buffer(1 << 62, [(0, 0)])], [], {}, "buffer 1"),
        ([Buffer(1, [(0, -1)])], [], {}, r"\(lane 0, index -1\) in buffer 0"),
        ([Buffer(1, [(-1, 0)])], [], {"num_lanes": 2}, "lane -1"),
        ([Buffer(1, [(2, 0)])], [], {"num_lanes": 2}, "lanes 0 to 1"),
        ([Buffer(1, [(64, 0)])], [], {}, "1 to 64 lanes, got 65"),
        ([], [], {"num_lanes": 0}, "1 to 64 lanes, got 0"),
        ([Buffer(1, [(0, 5), (0, 4)])], [], {}, r"buffer 0 to come after its first write at \(lane 0, index 5\)"),
        ([Buffer(1, [(0, 5), (1, 9)])], [], {}, "add an event"),
        ([], [LaneEvent(0, 5, 0, 5)], {}, "go forward"),
        ([], [LaneEvent(0, 0, 1, 3), LaneEvent(1, 3, 0, 0)], {}, "cycles"),
        ([], [LaneEvent(0, 4, 1, 3), LaneEvent(1, 7, 0, 2)], {}, "cycles"),
        ([], [LaneEvent(0, -4, 1, 3)], {}, "event 0"),
        ([], [], {"alignment": 48}, "power of two"),
    ],
)
def test_nonsense_is_named(
    buffers: list[Buffer], events: list[LaneEvent], options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        blualloc.plan(buffers, events, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("buffers", "events", "message"),
    [
        (None, [], r"\[plan\] expected `buffers` as a sequence of Buffer, got None"),
        ([(1, [(0, 0)])], [], r"\[plan\] expected a Buffer for `buffers\[0\]`, got tuple"),
        ([Buffer(1, None)], [], r"\[plan\] expected `buffers\[0\].uses` as a sequence of \(lane, index\), got None"),
        ([Buffer(1, []), Buffer(1, [3])], [], r"`buffers\[1\].uses` as a sequence of \(lane, index\), got \[3\]"),
        ([Buffer(1, [(0, 0)])], [(0, 0, 1, 0)], r"\[plan\] expected a LaneEvent for `events\[0\]`, got tuple"),
        ([Buffer(1, [(0, 0)])], 5, r"\[plan\] expected `events` as a sequence of LaneEvent, got 5"),
    ],
)
def test_other_objects_are_named(buffers: Any, events: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        blualloc.plan(buffers, events)


def test_types_are_checked() -> None:
    with pytest.raises(TypeError, match="bytes"):
        blualloc.plan([Buffer(1.5, [(0, 0)])])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="index"):
        blualloc.plan([Buffer(1, [(0, "0")])])  # type: ignore[list-item]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("all_reduce", [False, True], ids=["one_lane", "two_lanes"])
@pytest.mark.parametrize("batch", [1, 4])
def test_training_step_is_within_5_percent_of_its_peak(recompute: bool, all_reduce: bool, batch: int) -> None:
    trace = gpt2_step(batch=batch, recompute=recompute, all_reduce=all_reduce)
    plan = check_plan(trace.buffers, trace.events)
    assert plan.arena_bytes <= 1.05 * plan.peak_live_bytes
    assert plan.arena_bytes < 0.8 * plan.total_bytes
    assert any(lane == COMMUNICATION for b in trace.buffers for lane, _ in b.uses) == all_reduce


@pytest.mark.parametrize("channels", [96, 100, 512, 1600])
def test_training_steps_of_other_sizes(channels: int) -> None:
    trace = gpt2_step(layers=6, channels=channels, heads=4, context=37, batch=3, vocabulary=211)
    plan = check_plan(trace.buffers, trace.events)
    assert plan.arena_bytes <= 1.05 * plan.peak_live_bytes


def test_many_buffers() -> None:
    trace = gpt2_step(layers=200, context=64, batch=1)
    assert len(trace.buffers) > 5000
    plan = blualloc.plan(trace.buffers, trace.events)
    assert plan.arena_bytes <= 1.05 * plan.peak_live_bytes
