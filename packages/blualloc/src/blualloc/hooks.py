"""Watching allocations: callbacks for the events of all pools."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from dataclasses import dataclass

from blualloc import _native
from blualloc.errors import check

__all__ = ["Event", "EventKind", "add_hook", "remove_hook"]


class EventKind(enum.Enum):
    """What happened."""

    ALLOCATE = 0
    FREE = 1
    #: Memory was taken from the device.
    MAP = 2
    #: Memory was given back to the device.
    UNMAP = 3
    OUT_OF_MEMORY = 4


@dataclass(frozen=True)
class Event:
    """One event of a pool. Sizes are bytes."""

    kind: EventKind
    #: The ``blualloc_pool*`` (``Pool.handle``).
    pool: int
    address: int
    stream: int
    tag: str
    #: Asked for, or mapped.
    bytes: int
    #: Size of the block.
    block_bytes: int
    #: Order of the events within the pool: those of several threads may be delivered out of order.
    sequence: int
    #: In use after the event.
    live_bytes: int
    #: Taken from the device after the event.
    reserved_bytes: int


# Native code calls these until they are removed, so that they must stay alive.
_callbacks: dict[int, object] = {}


def add_hook(callback: Callable[[Event], None]) -> int:
    """Call ``callback`` after every event of every pool, on the thread that caused it.

    The callback may use pools; events that it causes are not reported. What it raises is reported by
    ``sys.unraisablehook`` and goes no further.

    Returns:
        The id for :func:`remove_hook`.

    Raises:
        TypeError: not a function.
    """
    if not callable(callback):
        raise TypeError(f"[add_hook] expected a function of an Event, got {type(callback).__name__}")

    def deliver(_: int | None, pointer: ctypes._Pointer[_native.Event]) -> None:
        event = pointer.contents
        callback(
            Event(
                kind=EventKind(event.kind),
                pool=event.pool or 0,
                address=event.address or 0,
                stream=event.stream or 0,
                tag=(event.tag or b"").decode(errors="replace"),
                bytes=event.bytes,
                block_bytes=event.block_bytes,
                sequence=event.sequence,
                live_bytes=event.live_bytes,
                reserved_bytes=event.reserved_bytes,
            )
        )

    function = _native.Hook(deliver)
    identity = ctypes.c_uint64()
    check(_native.library.blualloc_add_hook(function, None, identity))
    _callbacks[identity.value] = function
    return identity.value


def remove_hook(identity: int) -> None:
    """Stop a hook. After the call it does not run any more, unless the call came from within a hook.

    Raises:
        ValueError: no hook has this id.
    """
    check(_native.library.blualloc_remove_hook(_native.unsigned(identity, "remove_hook", "identity")))
    # The callback stays in _callbacks: a hook that removed itself is still running.
