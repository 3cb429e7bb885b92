"""ctypes declarations of ``include/blualloc/blualloc.h``: the only place that knows the native interface.

The structures mirror the header field by field; ``tests/test_native.py`` compiles the header to compare their layouts.
"""

from __future__ import annotations

import ctypes
import operator
from ctypes import POINTER, c_char, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import SupportsIndex, TypeVar

import libblualloc

__all__ = [
    "BlockInfo",
    "DeviceOps",
    "Event",
    "Hook",
    "OomInfo",
    "PlanEvent",
    "PlanRequest",
    "PlanResult",
    "PoolOptions",
    "SizeCount",
    "Stats",
    "StepReport",
    "Use",
    "address",
    "library",
    "sized",
    "unsigned",
]

_Structure = TypeVar("_Structure", bound=ctypes.Structure)

OUT_OF_MEMORY = 3
MAX_HOLDERS = 10
NUM_ALIGNMENTS = 4
WHOLE_SEGMENTS = 1


class PoolOptions(ctypes.Structure):
    """blualloc_pool_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("device", c_void_p),
        ("name", c_char_p),
        ("segment_bytes", c_uint64),
        ("growth_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("alignment", c_uint64),
        ("shuffle_seed", c_uint64),
    )


class Stats(ctypes.Structure):
    """blualloc_stats."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("live_bytes", c_uint64),
        ("peak_live_bytes", c_uint64),
        ("live_block_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("peak_reserved_bytes", c_uint64),
        ("cached_bytes", c_uint64),
        ("largest_free_bytes", c_uint64),
        ("wasted_bytes", c_uint64),
        ("num_live", c_uint64),
        ("num_allocations", c_uint64),
        ("num_frees", c_uint64),
        ("num_splits", c_uint64),
        ("num_merges", c_uint64),
        ("num_maps", c_uint64),
        ("num_unmaps", c_uint64),
        ("num_event_waits", c_uint64),
        ("num_out_of_memory", c_uint64),
        ("requested_total", c_uint64),
        ("wasted_total", c_uint64),
        ("alignment", c_uint64),
        ("limit_bytes", c_uint64),
        ("num_segments", c_uint64),
    )


class SizeCount(ctypes.Structure):
    """blualloc_size_count."""

    _fields_ = (("bytes", c_uint64), ("count", c_uint64))


class BlockInfo(ctypes.Structure):
    """blualloc_block_info."""

    _fields_ = (
        ("address", c_void_p),
        ("stream", c_void_p),
        ("tag", c_char_p),
        ("bytes", c_uint64),
        ("requested", c_uint64),
        ("sequence", c_uint64),
        ("segment", c_uint64),
        ("segment_offset", c_uint64),
        ("state", c_int32),
        ("reserved", c_int32),
    )


class StepReport(ctypes.Structure):
    """blualloc_step_report."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("tuned", c_uint32),
        ("step", c_uint64),
        ("alignment_before", c_uint64),
        ("alignment_after", c_uint64),
        ("candidates", c_uint64 * NUM_ALIGNMENTS),
        ("wasted", c_uint64 * NUM_ALIGNMENTS),
        ("distinct_sizes", c_uint64 * NUM_ALIGNMENTS),
        ("requested_total", c_uint64),
        ("returned_bytes", c_uint64),
        ("peak_live_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
    )


class Holder(ctypes.Structure):
    """blualloc_holder."""

    _fields_ = (("tag", c_char * 64), ("bytes", c_uint64), ("count", c_uint64))


class OomInfo(ctypes.Structure):
    """blualloc_oom_info."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("num_holders", c_uint32),
        ("requested_bytes", c_uint64),
        ("live_bytes", c_uint64),
        ("cached_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("holders", Holder * MAX_HOLDERS),
        ("pool_name", c_char * 64),
        ("device_free_bytes", c_uint64),
        ("device_total_bytes", c_uint64),
    )


class Event(ctypes.Structure):
    """blualloc_event."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("pool", c_void_p),
        ("address", c_void_p),
        ("stream", c_void_p),
        ("tag", c_char_p),
        ("bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("sequence", c_uint64),
        ("live_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
    )


#: blualloc_hook.
Hook = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Event))


class Use(ctypes.Structure):
    """blualloc_use."""

    _fields_ = (("lane", c_int32), ("reserved", c_int32), ("index", c_int64))


class PlanEvent(ctypes.Structure):
    """blualloc_plan_event."""

    _fields_ = (("from_lane", c_int32), ("to_lane", c_int32), ("from_index", c_int64), ("to_index", c_int64))


class PlanRequest(ctypes.Structure):
    """blualloc_plan_request."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("num_lanes", c_int32),
        ("num_buffers", c_uint64),
        ("bytes", POINTER(c_uint64)),
        ("use_offsets", POINTER(c_uint64)),
        ("uses", POINTER(Use)),
        ("num_events", c_uint64),
        ("events", POINTER(PlanEvent)),
        ("alignment", c_uint64),
        ("search_effort", c_uint64),
    )


class PlanResult(ctypes.Structure):
    """blualloc_plan_result."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("offsets", POINTER(c_uint64)),
        ("arena_bytes", c_uint64),
        ("peak_live_bytes", c_uint64),
        ("total_bytes", c_uint64),
        ("num_placements", c_uint64),
        ("heuristic", c_char_p),
    )


RESERVE = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, POINTER(c_void_p))
RANGE = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64)
RECORD_EVENT = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(c_void_p))
WAIT_EVENT = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p)
QUERY_EVENT = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(c_int32))
MEMORY = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint64), POINTER(c_uint64))
PIECE = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_uint64))
ON_EVENT = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p)


class DeviceOps(ctypes.Structure):
    """blualloc_device_ops."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("ctx", c_void_p),
        ("granularity", c_uint64),
        ("min_alignment", c_uint64),
        ("reserve", RESERVE),
        ("release", RANGE),
        ("map", RANGE),
        ("unmap", RANGE),
        ("record_event", RECORD_EVENT),
        ("wait_event", WAIT_EVENT),
        ("query_event", QUERY_EVENT),
        ("synchronize_event", ON_EVENT),
        ("destroy_event", ON_EVENT),
        ("memory", MEMORY),
        ("piece", PIECE),
    )


_PROTOTYPES = {
    "cuda_device": (c_int32, c_int32, POINTER(c_void_p)),
    "device_count": (c_int32,),
    "device_memory": (c_int32, c_int32, POINTER(c_uint64), POINTER(c_uint64)),
    "register_device": (c_int32, c_int32, c_void_p),
    "default_pool": (c_int32, c_int32, POINTER(c_void_p)),
    "configure": (POINTER(PoolOptions),),
    "pool_create": (POINTER(PoolOptions), POINTER(c_void_p)),
    "pool_destroy": (c_void_p, c_int32),
    "allocate": (c_void_p, c_uint64, c_void_p, c_char_p, POINTER(c_void_p)),
    "free": (c_void_p, c_void_p, c_void_p),
    "record_use": (c_void_p, c_void_p, c_void_p),
    "forget_stream": (c_void_p, c_void_p),
    "set_tag": (c_void_p, c_void_p, c_char_p),
    "set_limit": (c_void_p, c_uint64),
    "trim": (c_void_p, POINTER(c_uint64)),
    "get_stats": (c_void_p, POINTER(Stats)),
    "reset_peak": (c_void_p,),
    "histogram": (c_void_p, POINTER(SizeCount), c_uint64, POINTER(c_uint64)),
    "snapshot": (c_void_p, POINTER(BlockInfo), c_uint32, c_uint64, POINTER(c_uint64)),
    "find_block": (c_void_p, c_void_p, POINTER(BlockInfo), c_uint32),
    "end_of_step": (c_void_p, c_uint64, POINTER(StepReport)),
    "last_oom": (POINTER(OomInfo),),
    "set_oom_hint": (c_char_p,),
    "add_hook": (Hook, c_void_p, POINTER(c_uint64)),
    "remove_hook": (c_uint64,),
    "plan": (POINTER(PlanRequest), POINTER(PlanResult)),
}


def _load() -> ctypes.CDLL:
    loaded = libblualloc.load_library()
    for name, arguments in _PROTOTYPES.items():
        function = getattr(loaded, f"blualloc_{name}")
        function.argtypes = arguments
        function.restype = c_int32
    for name in ("last_error", "cuda_reason"):
        function = getattr(loaded, f"blualloc_{name}")
        function.argtypes = ()
        function.restype = c_char_p
    return loaded


#: The loaded library with typed functions; see :mod:`blualloc.errors` for the meaning of their statuses.
library = _load()


def sized(structure: _Structure) -> _Structure:
    """The same structure, its ``struct_size`` filled in."""
    structure.struct_size = ctypes.sizeof(structure)
    return structure


def integer(value: SupportsIndex, operation: str, name: str) -> int:
    """``value`` as an integer; a flag is none.

    Raises:
        TypeError: not an integer.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"[{operation}] expected an integer for `{name}`, got {type(value).__name__}")


def unsigned(value: SupportsIndex, operation: str, name: str) -> int:
    """``value`` as an integer that fits uint64; ctypes itself would wrap others around silently.

    Raises:
        TypeError: not an integer.
        ValueError: negative, or 2^64 or more.
    """
    number = integer(value, operation, name)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"[{operation}] expected `{name}` from 0 to 2^64 - 1, got {number}")
    return number


def text(value: str, operation: str, name: str) -> bytes:
    """``value`` as bytes for native code.

    Raises:
        TypeError: not a string.
    """
    if not isinstance(value, str):
        raise TypeError(f"[{operation}] expected a string for `{name}`, got {type(value).__name__}")
    return value.encode(errors="replace")


def address(structure: ctypes.Structure) -> int:
    """Where a structure lies, for native code that takes it by pointer."""
    return ctypes.addressof(structure)
