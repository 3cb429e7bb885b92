"""The CUDA driver through ctypes: streams, fills and copies, for tests that put work on a device without PyTorch."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

_PRIMARY_STREAM_FLAGS = 1  # CU_STREAM_NON_BLOCKING: not ordered by the default stream


class Cuda:
    """One device, its primary context made current on the thread that makes this."""

    def __init__(self, index: int = 0) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", c_uint(0))
        device, self.context = c_int(), c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), c_int(index))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.make_current()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; any result but success is an error."""
        result = getattr(self._driver, name)(*arguments)
        assert result == 0, f"{name} returned {result}"

    def make_current(self) -> None:
        """Make the context current on this thread too."""
        self.call("cuCtxSetCurrent", self.context)

    def stream(self) -> int:
        """A new stream; made on any thread."""
        self.make_current()
        made = c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), c_uint(_PRIMARY_STREAM_FLAGS))
        assert made.value
        return made.value

    def destroy_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", c_void_p(stream))

    def order(self, first: int, second: int) -> None:
        """Let later work of one stream wait for what another was given so far."""
        event = c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), c_uint(2))
        self.call("cuEventRecord", event, c_void_p(first))
        self.call("cuStreamWaitEvent", c_void_p(second), event, c_uint(0))
        self.call("cuEventDestroy_v2", event)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def synchronize_stream(self, stream: int) -> None:
        self.call("cuStreamSynchronize", c_void_p(stream))

    def allocate(self, num_bytes: int) -> int:
        """Memory of the driver's own, beside all pools."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), c_size_t(num_bytes))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", c_uint64(address))

    def fill(self, address: int, num_bytes: int, value: int, stream: int = 0) -> None:
        """Write every byte, on a stream."""
        self.call("cuMemsetD8Async", c_uint64(address), c_ubyte(value), c_size_t(num_bytes), c_void_p(stream))

    def copy(self, to: int, source: int, num_bytes: int, stream: int = 0) -> None:
        """Copy on a stream, between any two addresses."""
        self.call("cuMemcpyAsync", c_uint64(to), c_uint64(source), c_size_t(num_bytes), c_void_p(stream))

    def read(self, address: int, num_bytes: int) -> bytes:
        """Bytes of the device; waits for everything first."""
        self.synchronize()
        out = ctypes.create_string_buffer(num_bytes)
        self.call("cuMemcpyDtoH_v2", out, c_uint64(address), c_size_t(num_bytes))
        return out.raw
