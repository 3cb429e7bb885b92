"""A device that only exists on paper: addresses without memory, streams whose order is tracked by vector clocks.

It is what asynchronous pools are tested on, and the judge of them: `Ledger` remembers which work used which addresses
and fails when an allocation hands out addresses whose former users are not ordered before the new ones.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from blualloc import _native

OK, OUT_OF_MEMORY, FAILURE = 0, 3, 5
Clock = dict[int, int]  # stream -> number of its operations known to be complete


def merged(a: Clock, b: Clock) -> Clock:
    return {stream: max(a.get(stream, 0), b.get(stream, 0)) for stream in a.keys() | b.keys()}


class FakeDevice:
    """A device for pools and their judges.

    Set `memory_bytes` for one that runs out, `events_done` for one whose events are complete when asked, `is_whole` for
    one that gives memory in whole reservations only, `has_pieces` for one that unmaps the larger parts of a large map
    only whole.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 1 << 40,
        granularity: int = 1 << 16,
        min_alignment: int = 256,
        is_whole: bool = False,
        has_pieces: bool = False,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.mapped: dict[int, int] = {}  # granule -> 1
        self.granularity = granularity
        self.is_whole = is_whole
        self.pieces: dict[int, int] = {}  # granule -> first granule of the piece it belongs to
        self.reservations: dict[int, int] = {}
        self.next_base = 1 << 44
        self.events: dict[int, Clock] = {}
        self.events_done = False
        self.event_ids = itertools.count(1)
        self.submitted: Clock = defaultdict(int)
        self.known: dict[int, Clock] = defaultdict(dict)
        self.host: Clock = {}
        self.num_recorded = 0
        self.num_synchronized = 0
        self.errors: list[str] = []
        mapping = {"map": _native.RANGE(self._guarded(self._map)), "unmap": _native.RANGE(self._guarded(self._unmap))}
        self.table = _native.sized(
            _native.DeviceOps(
                flags=_native.WHOLE_SEGMENTS if is_whole else 0,
                name=b"fake:0",
                granularity=granularity,
                min_alignment=min_alignment,
                reserve=_native.RESERVE(self._guarded(self._reserve)),
                release=_native.RANGE(self._guarded(self._release)),
                record_event=_native.RECORD_EVENT(self._guarded(self._record)),
                wait_event=_native.WAIT_EVENT(self._guarded(self._wait)),
                query_event=_native.QUERY_EVENT(self._guarded(self._query)),
                synchronize_event=_native.ON_EVENT(self._guarded(self._synchronize)),
                memory=_native.MEMORY(self._guarded(self._memory)),
                destroy_event=_native.ON_EVENT(self._guarded(self._destroy)),
                **({} if is_whole else mapping),
                **({"piece": _native.PIECE(self._guarded(self._piece))} if has_pieces else {}),
            )
        )

    @property
    def address(self) -> int:
        return _native.address(self.table)

    @property
    def mapped_bytes(self) -> int:
        return len(self.mapped) * self.granularity

    def submit(self, stream: int) -> int:
        """Put one operation on a stream; returns its number there."""
        self.submitted[stream] += 1
        self.known[stream] = merged(self.now(stream), {stream: self.submitted[stream]})
        return self.submitted[stream]

    def now(self, stream: int) -> Clock:
        """What is complete before the next operation of a stream starts."""
        return merged(self.known[stream], self.host)

    # ---- callbacks ----

    def _guarded(self, callback: Callable[..., int]) -> Callable[..., int]:
        def call(_: int | None, *arguments: Any) -> int:
            try:
                return callback(*arguments)
            except Exception as error:  # an exception would be lost in ctypes
                self.errors.append(f"{callback.__name__}: {error!r}")
                return FAILURE

        return call

    def _granules(self, address: int, size: int) -> range:
        assert address % self.granularity == size % self.granularity == 0 < size
        assert any(base <= address and address + size <= base + n for base, n in self.reservations.items())
        return range(address // self.granularity, (address + size) // self.granularity)

    def _reserve(self, size: int, out: Any) -> int:
        base, self.next_base = self.next_base, self.next_base + size + self.granularity
        self.reservations[base] = size
        if self.is_whole and self._map(base, size) != OK:
            del self.reservations[base]
            return OUT_OF_MEMORY
        out[0] = base
        return OK

    def _release(self, address: int, size: int) -> int:
        assert self.reservations.pop(address) == size
        first, last = address // self.granularity, (address + size) // self.granularity
        self.mapped = {granule: 1 for granule in self.mapped if not first <= granule < last}
        self.pieces = {granule: piece for granule, piece in self.pieces.items() if granule in self.mapped}
        return OK

    def _map(self, address: int, size: int) -> int:
        granules = self._granules(address, size)
        assert not any(granule in self.mapped for granule in granules)
        if self.mapped_bytes + size > self.memory_bytes:
            return OUT_OF_MEMORY
        self.mapped.update(dict.fromkeys(granules, 1))
        share = max(1, len(granules) // 8)
        self.pieces.update({granule: granules[i // share * share] for i, granule in enumerate(granules)})
        return OK

    def _unmap(self, address: int, size: int) -> int:
        granules = self._granules(address, size)
        if self.table.piece:
            firsts = {self.pieces[granule] for granule in granules}
            whole = {granule for granule, first in self.pieces.items() if first in firsts}
            assert whole == set(granules), "a piece can only be unmapped whole"
        for granule in granules:
            del self.mapped[granule], self.pieces[granule]
        return OK

    def _piece(self, address: int, start: Any, size: Any) -> int:
        first = self.pieces[address // self.granularity]
        start[0] = first * self.granularity
        size[0] = sum(other == first for other in self.pieces.values()) * self.granularity
        return OK

    def _memory(self, free: Any, total: Any) -> int:
        free[0], total[0] = self.memory_bytes - self.mapped_bytes, self.memory_bytes
        return OK

    def _record(self, stream: int | None, out: Any) -> int:
        event = next(self.event_ids)
        self.events[event] = self.now(stream or 0)
        self.num_recorded += 1
        out[0] = event
        return OK

    def _wait(self, stream: int | None, event: int) -> int:
        self.known[stream or 0] = merged(self.now(stream or 0), self.events[event])
        return OK

    def _query(self, event: int, done: Any) -> int:
        done[0] = int(self.events_done)
        if self.events_done:
            self.host = merged(self.host, self.events[event])
        return OK

    def _synchronize(self, event: int) -> int:
        self.host = merged(self.host, self.events[event])
        self.num_synchronized += 1
        return OK

    def _destroy(self, event: int) -> int:
        del self.events[event]
        return OK


class Ledger:
    """Who used which addresses when."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.uses: list[tuple[int, int, int, int]] = []  # start, end, stream, number of the operation

    def check_new(self, address: int, size: int, stream: int) -> None:
        """Fail unless all former users of the addresses are ordered before the stream's next operation."""
        known = self.device.now(stream)
        end = address + size
        kept = []
        for first, last, user, operation in self.uses:
            if first < end and address < last:
                assert operation <= known.get(user, 0), (
                    f"stream {stream} got memory that operation {operation} of stream {user} may still use"
                )
                # What it used outside of the new block still counts.
                parts = [(first, min(last, address)), (max(first, end), last)]
                kept += [(a, b, user, operation) for a, b in parts if a < b]
            else:
                kept.append((first, last, user, operation))
        self.uses = kept

    def use(self, address: int, size: int, stream: int) -> None:
        self.uses.append((address, address + size, stream, self.device.submit(stream)))
