"""Naming devices, and where new tensors are made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from . import _native
from .dtypes import described
from .errors import DTypeError

DeviceKey = tuple[int, int]
"""(type, index): 0 is the cpu, 1 is CUDA."""

CPU: DeviceKey = (0, 0)


class _Default(threading.local):
    key: DeviceKey = CPU


_default = _Default()


def as_device(op: str, device: object) -> DeviceKey:
    """The device of a name: "cpu", "cuda" (the first one) or "cuda:<index>". None is the default device.

    Raises:
        DTypeError: Another name.
        UnsupportedError: A device that cannot be used here; the message says why, and what to do.
    """
    if device is None:
        return _default.key
    name = "" if isinstance(device, int) else str(device)
    kind, colon, index = name.partition(":")
    if kind == "cpu" and index in ("", "0"):
        return CPU
    # Nine digits fit the 32 bits of the native interface.
    if kind != "cuda" or (colon and not (index.isascii() and index.isdecimal() and len(index) < 10)):
        raise DTypeError(f"[{op}] expected device 'cpu' or 'cuda:<index>', got {described(device)}")
    key = (1, int(index or 0))
    _native.check(_native.lib.blutensor_check_device(*key))
    return key


def device_name(key: DeviceKey) -> str:
    """The name of a device: "cpu" or "cuda:<index>"."""
    return "cpu" if key[0] == 0 else f"cuda:{key[1]}"


def set_default_device(device: str) -> None:
    """Makes new tensors of this thread on `device`, where nothing else says where: "cpu" at first.

    Raises:
        DTypeError: No name of a device.
        UnsupportedError: A device that cannot be used here.
    """
    key = as_device("set_default_device", device)
    _native.check(_native.lib.blutensor_set_default_device(*key))
    _default.key = key


def get_default_device() -> str:
    """Where new tensors of this thread are made."""
    return device_name(_default.key)


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    """`set_default_device` for the length of a block (or of a decorated function)."""
    before = get_default_device()
    try:
        set_default_device(device)
        yield
    finally:
        set_default_device(before)
