"""CUDA devices: what there is, waiting for them, host memory that copies overlap with."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _native, dtypes
from .devices import as_device
from .errors import DTypeError
from .interop import sizes_of
from .tensor import Tensor

_lib = _native.lib


@dataclass(frozen=True)
class DeviceProperties:
    """What the driver says of a GPU.

    Attributes:
        name: Such as "NVIDIA H200".
        total_bytes: Its memory.
        free_bytes: What nobody uses now, other processes included.
        capability: Compute capability, (9, 0) for H200.
        multiprocessors: Streaming multiprocessors.
        driver: CUDA version of the driver.
        runtime: CUDA version of this build.
    """

    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    driver: str
    runtime: str


def device_count() -> int:
    """GPUs that can be used; 0 without driver, GPU or CUDA in the build."""
    return int(_lib.blutensor_device_count(1))


def is_available() -> bool:
    """Whether there is a GPU that can be used."""
    return device_count() > 0


def unavailable_reason() -> str:
    """Why there is none, and what to do about it; empty when there is one."""
    reason: bytes = _lib.blutensor_cuda_unavailable_reason()
    return reason.decode(errors="replace")


def _index(op: str, device: str) -> int:
    kind, index = as_device(op, device)
    if kind != 1:
        raise DTypeError(f"[{op}] expected a CUDA device, got {device!r}")
    return index


def device_properties(device: str = "cuda:0") -> DeviceProperties:
    """Name, memory and versions of a GPU.

    Raises:
        UnsupportedError: It cannot be used here.
    """
    text: bytes = _lib.blutensor_device_properties(_index("device_properties", device))
    if not text:
        raise RuntimeError(_native.last_error())
    values: dict[str, Any] = json.loads(text)
    return DeviceProperties(**values | {"capability": tuple(values["capability"])})


def synchronize(device: str = "cuda:0") -> None:
    """Waits until everything that was started on a GPU is done.

    Raises:
        IndexOutOfRangeError: A kernel met an id or a target out of range.
        DeviceLostError: The GPU faulted.
    """
    _native.check(_lib.blutensor_synchronize(1, _index("synchronize", device)))


def compute_stream(device: str = "cuda:0") -> int:
    """Address (cudaStream_t) of the stream that all work of the device goes to."""
    stream = ctypes.c_void_p()
    _native.check(_lib.blutensor_compute_stream(1, _index("compute_stream", device), ctypes.byref(stream)))
    return stream.value or 0


class Event:
    """A mark in what was started on a GPU so far, to wait for that and no more: a copy to pinned memory, say."""

    def __init__(self, device: str = "cuda:0") -> None:
        """Marks the present end of the device's work.

        Raises:
            UnsupportedError: It cannot be used here.
        """
        event = ctypes.c_void_p()
        _native.check(_lib.blutensor_event_record(1, _index("Event", device), ctypes.byref(event)))
        self._event = event

    def wait(self) -> None:
        """Returns when the device has passed the mark; other threads run meanwhile.

        Raises:
            DeviceLostError: The GPU faulted.
        """
        _native.check(_lib.blutensor_event_wait(self._event))

    def __del__(self, _release: Any = _lib.blutensor_event_release) -> None:
        if getattr(self, "_event", None):
            _release(self._event)


def empty_pinned(shape: int | Sequence[int], *, dtype: dtypes.DType | str = dtypes.float32) -> Tensor:
    """Uninitialised memory of the cpu that copies to and from a GPU overlap with.

    Such copies only start: write to the tensor again after `synchronize`.

    Raises:
        UnsupportedError: There is no GPU.
    """
    sizes = sizes_of("empty_pinned", shape)
    out = _native.OwnedHandle()
    number = dtypes.as_dtype(dtype).number
    _native.check(_lib.blutensor_empty_pinned(_native.int64_array(sizes), len(sizes), number, out))
    return Tensor._adopt(out)
