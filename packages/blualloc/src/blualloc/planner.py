"""Packing buffers with known lifetimes into one arena."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from blualloc import _native
from blualloc.errors import check

_Item = TypeVar("_Item")

__all__ = ["Buffer", "LaneEvent", "Plan", "plan"]


@dataclass(frozen=True)
class Buffer:
    """A buffer to place."""

    #: Size; 0 takes no room.
    bytes: int
    #: (lane, index) of every operation that uses it. The first is its first write; all others come after it, or are the
    #: same operation. A buffer without uses takes no room.
    uses: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class LaneEvent:
    """Operation (from_lane, from_index) is complete before (to_lane, to_index) starts."""

    from_lane: int
    from_index: int
    to_lane: int
    to_index: int


@dataclass(frozen=True)
class Plan:
    """Where buffers go. Sizes and offsets are bytes."""

    #: One per buffer, a multiple of the alignment.
    offsets: tuple[int, ...]
    #: Size of the arena.
    arena_bytes: int
    #: Lower bound of any plan: the most that must exist at once.
    peak_live_bytes: int
    #: Sum of all buffers: the arena if nothing were shared.
    total_bytes: int
    #: Placements that were tried.
    num_placements: int
    #: What found the plan.
    heuristic: str


def _signed(value: int, bits: int, name: str) -> int:
    number = _native.integer(value, "plan", name)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"[plan] expected `{name}` to fit {bits} bits, got {number}")
    return number


def _listed(items: Iterable[_Item], kind: type[_Item], name: str) -> tuple[_Item, ...]:
    try:
        listed = tuple(items)
    except TypeError:
        raise TypeError(f"[plan] expected `{name}` as a sequence of {kind.__name__}, got {items!r}") from None
    for i, item in enumerate(listed):
        if not isinstance(item, kind):
            raise TypeError(f"[plan] expected a {kind.__name__} for `{name}[{i}]`, got {type(item).__name__}")
    return listed


def _check_uses(buffers: Sequence[Buffer]) -> None:
    for i, buffer in enumerate(buffers):
        uses = buffer.uses
        if not isinstance(uses, Sequence) or not all(isinstance(use, (tuple, list)) and len(use) == 2 for use in uses):
            raise TypeError(f"[plan] expected `buffers[{i}].uses` as a sequence of (lane, index), got {uses!r}")


def plan(
    buffers: Sequence[Buffer],
    events: Iterable[LaneEvent] = (),
    *,
    alignment: int = 64,
    num_lanes: int | None = None,
    search_effort: int = 0,
) -> Plan:
    """Pack buffers into one arena.

    Operations are numbered per lane and run in that order; between lanes only ``events`` give an order. Two buffers
    overlap only if every use of one happens before the first write of the other. Several greedy sequences (by size, by
    lifetime, nested lifetimes, area) are tried with best and first fit, then a local search lowers the top of the best
    one. The result depends on the arguments alone.

    Args:
        buffers: what to place.
        events: order between lanes.
        alignment: of the offsets, a power of two.
        num_lanes: lanes are numbered from 0; None takes the greatest one in use.
        search_effort: placements that the local search tries; 0 chooses from the number of buffers (at most half a
            second of work).

    Raises:
        ValueError: a negative or overflowing number, cyclic events, a use not ordered after its buffer's first write.
        TypeError: not an integer.
    """
    buffers, events = _listed(buffers, Buffer, "buffers"), _listed(events, LaneEvent, "events")
    _check_uses(buffers)
    sizes = [_native.unsigned(buffer.bytes, "plan", f"buffers[{i}].bytes") for i, buffer in enumerate(buffers)]
    offsets = [0]
    for buffer in buffers:
        offsets.append(offsets[-1] + len(buffer.uses))
    uses = (_native.Use * offsets[-1])()
    lanes = [0]
    for target, (lane, index) in zip(uses, (use for buffer in buffers for use in buffer.uses), strict=True):
        target.lane, target.index = _signed(lane, 32, "lane"), _signed(index, 64, "index")
        lanes.append(lane)
    native_events = (_native.PlanEvent * len(events))()
    for target, event in zip(native_events, events, strict=True):
        target.from_lane = _signed(event.from_lane, 32, "from_lane")
        target.from_index = _signed(event.from_index, 64, "from_index")
        target.to_lane = _signed(event.to_lane, 32, "to_lane")
        target.to_index = _signed(event.to_index, 64, "to_index")
        lanes += (event.from_lane, event.to_lane)
    request = _native.sized(
        _native.PlanRequest(
            num_lanes=max(lanes) + 1 if num_lanes is None else _signed(num_lanes, 32, "num_lanes"),
            num_buffers=len(sizes),
            bytes=(ctypes.c_uint64 * len(sizes))(*sizes),
            use_offsets=(ctypes.c_uint64 * len(offsets))(*offsets),
            uses=uses,
            num_events=len(events),
            events=native_events,
            alignment=_native.unsigned(alignment, "plan", "alignment"),
            search_effort=_native.unsigned(search_effort, "plan", "search_effort"),
        )
    )
    placed = (ctypes.c_uint64 * len(sizes))()
    result = _native.sized(_native.PlanResult(offsets=placed))
    check(_native.library.blualloc_plan(request, result))
    return Plan(
        offsets=tuple(placed),
        arena_bytes=result.arena_bytes,
        peak_live_bytes=result.peak_live_bytes,
        total_bytes=result.total_bytes,
        num_placements=result.num_placements,
        heuristic=result.heuristic.decode(),
    )
