"""Stream-ordered caching memory pools, and a planner that packs known lifetimes into one arena.

The functions of this module act on the default pool of a device, which all Blu packages share; :class:`Pool` makes a
private one. Sizes are bytes.
"""

from __future__ import annotations

from blualloc.errors import Holder, OutOfMemoryError, set_oom_hint
from blualloc.hooks import Event, EventKind, add_hook, remove_hook
from blualloc.planner import Buffer, LaneEvent, Plan, plan
from blualloc.pools import (
    Block,
    BlockState,
    CandidateAlignment,
    Pool,
    SizeCount,
    Stats,
    StepReport,
    configure,
    cuda_reason,
    default_pool,
    device_count,
    device_memory,
)
from libblualloc import VERSION as __version__

__all__ = [
    "Block",
    "BlockState",
    "Buffer",
    "CandidateAlignment",
    "Event",
    "EventKind",
    "Holder",
    "LaneEvent",
    "OutOfMemoryError",
    "Plan",
    "Pool",
    "SizeCount",
    "Stats",
    "StepReport",
    "__version__",
    "add_hook",
    "configure",
    "cuda_reason",
    "default_pool",
    "device_count",
    "device_memory",
    "empty_cache",
    "end_of_step",
    "plan",
    "remove_hook",
    "reset_peak",
    "set_limit",
    "set_oom_hint",
    "snapshot",
    "stats",
]


def stats(device: str = "cpu") -> Stats:
    """Counters of a device's default pool.

    Raises:
        NotImplementedError: this build or machine has no such device.
    """
    return default_pool(device).stats()


def snapshot(device: str = "cpu") -> tuple[Block, ...]:
    """All blocks of a device's default pool with their owners' tags, by segment and address.

    Raises:
        NotImplementedError: this build or machine has no such device.
    """
    return default_pool(device).snapshot()


def set_limit(num_bytes: int, device: str = "cpu") -> None:
    """Limit what a device's default pool takes from the device; 0 is no limit.

    Raises:
        NotImplementedError: this build or machine has no such device.
        ValueError: a negative number.
    """
    default_pool(device).set_limit(num_bytes)


def empty_cache(device: str = "cpu") -> int:
    """Give everything that is free in a device's default pool back to the device; returns the bytes.

    Raises:
        NotImplementedError: this build or machine has no such device.
    """
    return default_pool(device).empty_cache()


def reset_peak(device: str = "cpu") -> None:
    """Set both peaks of the statistics of a device's default pool to the present values.

    Raises:
        NotImplementedError: this build or machine has no such device.
    """
    default_pool(device).reset_peak()


def end_of_step(step: int, device: str = "cpu") -> StepReport:
    """Tell a device's default pool that a training step ended: see :meth:`Pool.end_of_step`.

    Raises:
        NotImplementedError: this build or machine has no such device.
    """
    return default_pool(device).end_of_step(step)
