"""Statuses of the native library as exceptions."""

from __future__ import annotations

from dataclasses import dataclass

from blualloc import _native

__all__ = ["Holder", "OutOfMemoryError", "check", "set_oom_hint"]


@dataclass(frozen=True)
class Holder:
    """Who holds live memory."""

    #: The tag its blocks were allocated with, cut to 63 bytes.
    tag: str
    #: Bytes asked for, summed over its live blocks.
    bytes: int
    #: Number of its live blocks.
    count: int


class OutOfMemoryError(MemoryError):
    """An allocation failed although the cache was given back first. The pool is as usable as before.

    All sizes are bytes.

    Attributes:
        requested: what was asked for.
        live: what was in use.
        cached: what was reserved and free before the cache was given back.
        limit: the pool's limit, 0 without one.
        device_free: what the device still had, whoever holds the rest; 0 with ``device_total`` 0 when it cannot tell.
        device_total: all that the device has.
        holders: the largest ten holders of live memory by tag, largest first.
        pool: name of the pool.
    """

    def __init__(
        self,
        message: str,
        *,
        requested: int,
        live: int,
        cached: int,
        limit: int,
        holders: tuple[Holder, ...],
        pool: str,
        device_free: int = 0,
        device_total: int = 0,
    ) -> None:
        super().__init__(message)
        self.requested = requested
        self.live = live
        self.cached = cached
        self.limit = limit
        self.holders = holders
        self.pool = pool
        self.device_free = device_free
        self.device_total = device_total


_EXCEPTIONS: dict[int, type[Exception] | type[KeyboardInterrupt]] = {
    1: ValueError,
    2: TypeError,
    4: NotImplementedError,
    5: RuntimeError,
    6: OSError,
    7: KeyboardInterrupt,
    8: IndexError,
}


def _out_of_memory(message: str) -> OutOfMemoryError:
    info = _native.sized(_native.OomInfo())
    _native.library.blualloc_last_oom(info)
    holders = tuple(
        Holder(holder.tag.decode(errors="replace"), holder.bytes, holder.count)
        for holder in info.holders[: info.num_holders]
    )
    return OutOfMemoryError(
        message,
        requested=info.requested_bytes,
        live=info.live_bytes,
        cached=info.cached_bytes,
        limit=info.limit_bytes,
        holders=holders,
        pool=info.pool_name.decode(errors="replace"),
        device_free=info.device_free_bytes,
        device_total=info.device_total_bytes,
    )


def check(status: int) -> None:
    """Raise what a status of the native library stands for; 0 is success.

    Raises:
        ValueError: 1, an impossible value.
        TypeError: 2, a wrong type.
        OutOfMemoryError: 3.
        NotImplementedError: 4, this build or machine has no such device.
        RuntimeError: 5, and any status this version does not know.
        OSError: 6.
        KeyboardInterrupt: 7.
        IndexError: 8.
    """
    if status == 0:
        return
    message = _native.library.blualloc_last_error().decode(errors="replace")
    if status == _native.OUT_OF_MEMORY:
        raise _out_of_memory(message)
    raise _EXCEPTIONS.get(status, RuntimeError)(message)


def set_oom_hint(hint: str | None) -> None:
    """The advice that ends out-of-memory messages in this process; None is the default one.

    Raises:
        TypeError: not a string.
    """
    check(_native.library.blualloc_set_oom_hint(None if hint is None else _native.text(hint, "set_oom_hint", "hint")))
