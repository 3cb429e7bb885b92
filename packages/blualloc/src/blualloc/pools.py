"""Memory pools: the default pool of each device, and private ones.

Addresses are plain integers, streams too: the device's own handle, 0 for its default stream.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from blualloc import _native
from blualloc.errors import check

__all__ = [
    "Block",
    "BlockState",
    "CandidateAlignment",
    "Pool",
    "SizeCount",
    "Stats",
    "StepReport",
    "configure",
    "cuda_reason",
    "default_pool",
    "device_count",
    "device_memory",
]

_DEVICE_TYPES = ("cpu", "cuda", "pinned")


@dataclass(frozen=True)
class Stats:
    """Counters of a pool at one moment. Sizes are bytes; ``num_`` fields count since the pool was made."""

    #: Asked for by the live blocks.
    live_bytes: int
    #: Greatest ``live_bytes`` since the pool was made, or since ``reset_peak``.
    peak_live_bytes: int
    #: Size of the live blocks, rounding included.
    live_block_bytes: int
    #: Memory taken from the device.
    reserved_bytes: int
    #: Greatest ``reserved_bytes`` since the pool was made, or since ``reset_peak``.
    peak_reserved_bytes: int
    #: Reserved and free.
    cached_bytes: int
    #: Largest free block.
    largest_free_bytes: int
    #: Lost inside live blocks: ``live_block_bytes - live_bytes``.
    wasted_bytes: int
    #: Live blocks now.
    num_live: int
    num_allocations: int
    num_frees: int
    num_splits: int
    num_merges: int
    #: Times that memory was taken from the device.
    num_maps: int
    #: Times that memory was given back to the device.
    num_unmaps: int
    #: Times that a stream was made to wait for another one.
    num_event_waits: int
    #: Allocations that failed.
    num_out_of_memory: int
    #: Asked for since the pool was made.
    requested_total: int
    #: Lost to rounding since the pool was made.
    wasted_total: int
    #: What sizes are rounded up to.
    alignment: int
    #: Most that may be reserved; 0 is no limit.
    limit_bytes: int
    #: Pieces of address space.
    num_segments: int


@dataclass(frozen=True)
class SizeCount:
    """How often a size was asked for."""

    #: As asked for, in bytes.
    bytes: int
    #: Allocations of that size.
    count: int


class BlockState(enum.Enum):
    """What a piece of a pool's address space is."""

    LIVE = 0
    #: Has memory behind it and is reusable.
    FREE = 1
    #: Address space only.
    UNMAPPED = 2


@dataclass(frozen=True)
class Block:
    """One piece of a pool's address space."""

    address: int
    #: Size in bytes.
    bytes: int
    #: Bytes asked for; 0 unless live.
    requested: int
    #: The owner; empty unless live.
    tag: str
    #: Stream it was allocated for (live) or last used on (free).
    stream: int
    state: BlockState
    #: Number of the allocation in the pool, from 1; 0 unless live.
    sequence: int
    #: Number of the segment, from 0.
    segment: int
    #: Bytes from the start of the segment: the same in every process for the same sequence of calls.
    segment_offset: int


@dataclass(frozen=True)
class CandidateAlignment:
    """What an alignment would have meant for all allocations so far."""

    #: In bytes.
    alignment: int
    #: Bytes that rounding to it would have lost.
    wasted_bytes: int
    #: Different block sizes it would have left.
    distinct_sizes: int


@dataclass(frozen=True)
class StepReport:
    """What ``end_of_step`` found and did. Sizes are bytes."""

    step: int
    #: Whether this call chose the alignment (step 0 does).
    tuned: bool
    alignment_before: int
    alignment_after: int
    candidates: tuple[CandidateAlignment, ...]
    #: Asked for since the pool was made.
    requested_total: int
    #: Given back to the device by this call.
    returned_bytes: int
    #: Greatest number of live bytes during the step that ended.
    peak_live_bytes: int
    #: Taken from the device, after this call.
    reserved_bytes: int


def _parse_device(device: str, operation: str) -> tuple[int, int]:
    if not isinstance(device, str):
        raise TypeError(f"[{operation}] expected a string for `device`, got {type(device).__name__}")
    name, colon, index = device.partition(":")
    # Nine digits fit 32 bits, and are more devices than there are.
    if name not in _DEVICE_TYPES or (colon and not (index.isascii() and index.isdecimal() and len(index) < 10)):
        raise ValueError(f"[{operation}] expected a device such as cpu, cuda, cuda:1 or pinned, got {device!r}")
    return _DEVICE_TYPES.index(name), int(index or "0")


def _place(operation: str, address: int, stream: int) -> tuple[int, int]:
    return _native.unsigned(address, operation, "address"), _native.unsigned(stream, operation, "stream")


def _block(info: _native.BlockInfo) -> Block:
    return Block(
        address=info.address or 0,
        bytes=info.bytes,
        requested=info.requested,
        tag=(info.tag or b"").decode(errors="replace"),
        stream=info.stream or 0,
        state=BlockState(info.state),
        sequence=info.sequence,
        segment=info.segment,
        segment_offset=info.segment_offset,
    )


def _options(
    operation: str,
    *,
    device: str,
    device_table: int = 0,
    name: str | None = None,
    segment_bytes: int = 0,
    growth_bytes: int = 0,
    limit_bytes: int = 0,
    alignment: int = 0,
    shuffle_seed: int = 0,
) -> _native.PoolOptions:
    device_type, device_index = _parse_device(device, operation)
    return _native.sized(
        _native.PoolOptions(
            device_type=device_type,
            device_index=device_index,
            device=_native.unsigned(device_table, operation, "device_table"),
            name=None if name is None else _native.text(name, operation, "name"),
            segment_bytes=_native.unsigned(segment_bytes, operation, "segment_bytes"),
            growth_bytes=_native.unsigned(growth_bytes, operation, "growth_bytes"),
            limit_bytes=_native.unsigned(limit_bytes, operation, "limit_bytes"),
            alignment=_native.unsigned(alignment, operation, "alignment"),
            shuffle_seed=_native.unsigned(shuffle_seed, operation, "shuffle_seed"),
        )
    )


class Pool:
    """A private stream-ordered caching pool.

    Free blocks are kept ordered by size and place; an allocation takes the smallest that fits, splits off the rest, and
    a free merges neighbours. Where a block lies depends on the sequence of calls alone. May be used from any thread.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"pinned"``: host memory that every CUDA device reads and
            writes directly.
        name: shown in messages; the device's name when None.
        segment_bytes: address space taken at a time; 0 chooses 64 GiB, less where that fails.
        growth_bytes: least memory taken from the device at a time; 0 chooses 2 MiB.
        limit_bytes: most memory taken from the device; 0 is no limit.
        alignment: sizes are rounded up to it; a power of two, 0 chooses the device's least (64 on the host).
        shuffle_seed: when not 0, blocks lie at varied addresses drawn from it: for tests that results do not depend on
            addresses.
        device_table: address of a ``blualloc_device_ops`` (see the header) to use instead of a registered device; it is
            copied, what it points at must outlive the pool.

    Raises:
        ValueError: an impossible option.
        NotImplementedError: this build or machine has no such device.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        name: str | None = None,
        segment_bytes: int = 0,
        growth_bytes: int = 0,
        limit_bytes: int = 0,
        alignment: int = 0,
        shuffle_seed: int = 0,
        device_table: int = 0,
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._is_private = True
        options = _options(
            "pool_create",
            device=device,
            device_table=device_table,
            name=name,
            segment_bytes=segment_bytes,
            growth_bytes=growth_bytes,
            limit_bytes=limit_bytes,
            alignment=alignment,
            shuffle_seed=shuffle_seed,
        )
        check(_native.library.blualloc_pool_create(options, self._handle))

    @classmethod
    def _default(cls, device: str) -> Pool:
        self = cls.__new__(cls)
        self._handle = ctypes.c_void_p()
        self._is_private = False
        check(_native.library.blualloc_default_pool(*_parse_device(device, "default_pool"), self._handle))
        return self

    @property
    def handle(self) -> int:
        """The ``blualloc_pool*``, for native libraries.

        Raises:
            ValueError: the pool is closed.
        """
        if not self._handle.value:
            raise ValueError("[handle] expected an open pool, got a closed one")
        return self._handle.value

    def allocate(self, num_bytes: int, *, stream: int = 0, tag: str | None = None) -> int:
        """Allocate memory for use on a stream.

        Args:
            num_bytes: size; 0 gives address 0.
            stream: the stream that will use it.
            tag: owner's name for snapshots and messages.

        Returns:
            The address, a multiple of 64 or of what the device needs. Contents are undefined.

        Raises:
            OutOfMemoryError: the limit or the device's memory is reached; the cache was given back before.
            TypeError: a size that is no integer, a tag that is no string.
        """
        out = ctypes.c_void_p()
        size = _native.unsigned(num_bytes, "allocate", "num_bytes")
        encoded = None if tag is None else _native.text(tag, "allocate", "tag")
        on = _native.unsigned(stream, "allocate", "stream")
        check(_native.library.blualloc_allocate(self.handle, size, on, encoded, out))
        return out.value or 0

    def free(self, address: int, *, stream: int = 0) -> None:
        """Free in stream order: work already on ``stream`` may still use the memory. Address 0 is allowed.

        Raises:
            ValueError: not the start of a live block of this pool (a double free, for example).
        """
        check(_native.library.blualloc_free(self.handle, *_place("free", address, stream)))

    def record_use(self, address: int, *, stream: int) -> None:
        """Declare that another stream uses the block too: reuse after its free waits for that stream.

        Raises:
            ValueError: not the start of a live block of this pool.
        """
        check(_native.library.blualloc_record_use(self.handle, *_place("record_use", address, stream)))

    def forget_stream(self, stream: int) -> None:
        """Declare that a stream has been synchronized and goes away; its free blocks are then anybody's."""
        check(_native.library.blualloc_forget_stream(self.handle, _native.unsigned(stream, "forget_stream", "stream")))

    def set_tag(self, address: int, tag: str) -> None:
        """Rename the owner of a live block.

        Raises:
            ValueError: not the start of a live block of this pool.
        """
        block = _native.unsigned(address, "set_tag", "address")
        check(_native.library.blualloc_set_tag(self.handle, block, _native.text(tag, "set_tag", "tag")))

    def set_limit(self, num_bytes: int) -> None:
        """Limit what the pool takes from the device; 0 is no limit. Above it already, the cache is given back."""
        check(_native.library.blualloc_set_limit(self.handle, _native.unsigned(num_bytes, "set_limit", "num_bytes")))

    def empty_cache(self) -> int:
        """Give everything that is free back to the device, waiting for pending work on it; returns the bytes."""
        returned = ctypes.c_uint64()
        check(_native.library.blualloc_trim(self.handle, returned))
        return returned.value

    def stats(self) -> Stats:
        """Counters as they are now."""
        out = _native.sized(_native.Stats())
        check(_native.library.blualloc_get_stats(self.handle, out))
        return Stats(**{field.name: getattr(out, field.name) for field in dataclasses.fields(Stats)})

    def reset_peak(self) -> None:
        """Set both peaks of the statistics to the present values."""
        check(_native.library.blualloc_reset_peak(self.handle))

    def histogram(self) -> tuple[SizeCount, ...]:
        """How often each size was asked for, ascending by size."""
        count = ctypes.c_uint64()
        items: Sequence[_native.SizeCount] = ()
        capacity = 0
        while True:
            array = (_native.SizeCount * capacity)()
            check(_native.library.blualloc_histogram(self.handle, array, capacity, count))
            items = array[: count.value]
            if count.value <= capacity:
                return tuple(SizeCount(item.bytes, item.count) for item in items)
            capacity = count.value + 16  # other threads may be allocating

    def snapshot(self) -> tuple[Block, ...]:
        """All blocks, live, free and without memory behind them, by segment and address."""
        count = ctypes.c_uint64()
        item_size = ctypes.sizeof(_native.BlockInfo)
        capacity = 0
        while True:
            array = (_native.BlockInfo * capacity)()
            check(_native.library.blualloc_snapshot(self.handle, array, item_size, capacity, count))
            if count.value <= capacity:
                return tuple(_block(info) for info in array[: count.value])
            capacity = count.value + 16  # other threads may be allocating

    def find_block(self, address: int) -> Block:
        """The live block that holds an address, which may point inside it.

        Raises:
            ValueError: no live block of this pool holds it.
        """
        info = _native.BlockInfo()
        inside = _native.unsigned(address, "find_block", "address")
        check(_native.library.blualloc_find_block(self.handle, inside, info, ctypes.sizeof(info)))
        return _block(info)

    def end_of_step(self, step: int) -> StepReport:
        """Tell the pool that a training step ended.

        Step 0 chooses the alignment from the sizes seen so far (the largest of 64, 128, 256 and 512 bytes that loses at
        most 1/1024 of what was asked for and leaves fewer different sizes) and gives back what only start-up needed.
        Later steps only report.
        """
        out = _native.sized(_native.StepReport())
        check(_native.library.blualloc_end_of_step(self.handle, _native.unsigned(step, "end_of_step", "step"), out))
        return StepReport(
            step=out.step,
            tuned=bool(out.tuned),
            alignment_before=out.alignment_before,
            alignment_after=out.alignment_after,
            candidates=tuple(
                CandidateAlignment(*row) for row in zip(out.candidates, out.wasted, out.distinct_sizes, strict=True)
            ),
            requested_total=out.requested_total,
            returned_bytes=out.returned_bytes,
            peak_live_bytes=out.peak_live_bytes,
            reserved_bytes=out.reserved_bytes,
        )

    def close(self, *, force: bool = False) -> None:
        """Give everything back to the device. Closing twice is allowed.

        Args:
            force: also when blocks are live; their addresses are then invalid.

        Raises:
            ValueError: blocks are live and ``force`` is False, or this is a default pool.
            TypeError: ``force`` is no bool.
        """
        if not isinstance(force, bool):
            raise TypeError(f"[close] expected True or False for `force`, got {force!r}")
        if self._handle.value:
            check(_native.library.blualloc_pool_destroy(self._handle, int(force)))
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; after an exception also when blocks are live, so that it is the exception that is seen."""
        if self._is_private:
            self.close(force=error is not None)

    def __del__(self) -> None:
        """A private pool that nobody closed is closed with its last reference, unless blocks of it are live."""
        if getattr(self, "_is_private", False) and self._handle.value:
            _native.library.blualloc_pool_destroy(self._handle, 0)

    def __repr__(self) -> str:
        state = "closed" if not self._handle.value else f"handle={self._handle.value:#x}"
        return f"<blualloc.Pool {'private' if self._is_private else 'default'} {state}>"


def device_count(kind: str = "cuda") -> int:
    """How many devices of a kind, ``"cpu"``, ``"cuda"`` or ``"pinned"``, this process can use.

    Raises:
        ValueError: not a kind of device.
    """
    if kind not in _DEVICE_TYPES:
        raise ValueError(f"[device_count] expected one of {', '.join(_DEVICE_TYPES)}, got {kind!r}")
    return int(_native.library.blualloc_device_count(_DEVICE_TYPES.index(kind)))


def cuda_reason() -> str:
    """Why there is no CUDA device and what to do about it; empty when there is one."""
    return str(_native.library.blualloc_cuda_reason().decode(errors="replace"))


def device_memory(device: str = "cpu") -> tuple[int, int]:
    """Bytes that a device has free now, whoever holds the rest, and all that it has.

    Raises:
        ValueError: not a device name.
        NotImplementedError: this build or machine has no such device, or it cannot tell.
    """
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    check(_native.library.blualloc_device_memory(*_parse_device(device, "device_memory"), free, total))
    return free.value, total.value


def default_pool(device: str = "cpu") -> Pool:
    """The process-wide pool of a device, which the other Blu packages allocate from.

    Raises:
        ValueError: not a device name.
        NotImplementedError: this build or machine has no such device.
    """
    return Pool._default(device)


def configure(
    device: str = "cpu",
    *,
    segment_bytes: int = 0,
    growth_bytes: int = 0,
    limit_bytes: int = 0,
    alignment: int = 0,
    shuffle_seed: int = 0,
) -> None:
    """Set the options of a device's default pool before its first use; their meaning is that of :class:`Pool`.

    Raises:
        ValueError: an impossible option, or the pool is in use already.
        NotImplementedError: this build or machine has no such device.
    """
    options = _options(
        "configure",
        device=device,
        segment_bytes=segment_bytes,
        growth_bytes=growth_bytes,
        limit_bytes=limit_bytes,
        alignment=alignment,
        shuffle_seed=shuffle_seed,
    )
    check(_native.library.blualloc_configure(options))
