"""CUDA arrays of other libraries: their current stream, and new arrays from their allocators.

blublas allocates no device memory: results and workspace come from the library that made the operand ``a``.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from blublas._views import data_pointer
from blublas.errors import InvalidTypeError

__all__ = ["Producer", "stream_number"]

#: DLPack's number of CUDA's legacy default stream, which is NULL in CUDA itself.
_LEGACY_STREAM = 1
_ALIGNMENT = 256


def stream_number(stream: object) -> int:
    """The number that DLPack gives a stream: its handle, 1 for the legacy default stream.

    Args:
        stream: a handle, or an object with ``__cuda_stream__``, ``cuda_stream`` (PyTorch) or ``ptr`` (CuPy).

    Raises:
        InvalidTypeError: anything else.
    """
    handle: Any = stream
    if hasattr(stream, "__cuda_stream__"):
        protocol: Any = stream.__cuda_stream__
        handle = (protocol() if callable(protocol) else protocol)[1]
    else:
        for name in ("cuda_stream", "ptr"):
            handle = getattr(handle, name, handle)
    if not isinstance(handle, int) or isinstance(handle, bool) or not 0 <= handle < 2**64:
        raise InvalidTypeError(f"[gemm] expected stream as a CUDA stream or its handle, got {type(stream).__name__}")
    return handle or _LEGACY_STREAM


class Producer:
    """The library of an array on a CUDA device."""

    def __init__(self, array: Any, device: int) -> None:
        self._array = array
        self._device = device
        self._name = type(array).__module__.partition(".")[0]
        self._module: Any = sys.modules.get(self._name)

    def current_stream(self) -> int:
        """Number of the stream that the library works on now; the legacy default stream where it does not say."""
        if self._name == "torch":
            return stream_number(self._module.cuda.current_stream(self._device))
        if self._name == "cupy":
            return stream_number(self._module.cuda.get_current_stream())
        return _LEGACY_STREAM

    def _on(self, stream: int) -> AbstractContextManager[Any]:
        """Makes the library allocate for work on a stream, so that it gives memory to others only after that work."""
        if self._name not in ("torch", "cupy") or stream == self.current_stream():
            return nullcontext()
        handle = 0 if stream == _LEGACY_STREAM else stream
        cuda = self._module.cuda
        if self._name == "torch":
            context: AbstractContextManager[Any] = cuda.stream(cuda.ExternalStream(handle, device=self._device))
            return context
        external: AbstractContextManager[Any] = cuda.ExternalStream(handle, self._device)
        return external

    def empty_like(self, shape: tuple[int, ...], stream: int) -> Any:
        """A new array of the operand's dtype.

        Raises:
            InvalidTypeError: the library offers no way that is known here.
        """
        with self._on(stream):
            return self._empty(shape, None)

    def workspace(self, num_bytes: int, stream: int) -> tuple[object, int]:
        """Memory of that many bytes: what keeps it alive, and its aligned address."""
        with self._on(stream):
            buffer = self._empty((num_bytes + _ALIGNMENT,), "uint8")
        return buffer, -(-data_pointer(buffer, stream) // _ALIGNMENT) * _ALIGNMENT

    def _empty(self, shape: tuple[int, ...], dtype: str | None) -> Any:
        array = self._array
        if self._name == "torch":
            return array.new_empty(shape, dtype=getattr(self._module, dtype) if dtype else array.dtype)
        namespace = array.__array_namespace__() if hasattr(array, "__array_namespace__") else self._module
        if not hasattr(namespace, "empty"):
            raise InvalidTypeError(
                f"[gemm] expected arrays whose library can make new ones, got {type(array).__name__}, which has "
                "neither __array_namespace__ nor a function empty in its module"
            )
        kind = getattr(namespace, dtype) if dtype else array.dtype
        if self._name == "cupy":  # whose arrays lie on the current device
            with self._module.cuda.Device(self._device):
                return namespace.empty(shape, dtype=kind)
        return namespace.empty(shape, dtype=kind, device=array.device)
