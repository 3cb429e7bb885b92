"""Views of foreign arrays: address, dtype, shape, strides of NumPy arrays and of arrays with ``__dlpack__``.

Nothing is copied. A view keeps what it looks at alive.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from blublas import _native
from blublas.errors import InvalidTypeError, InvalidValueError, UnsupportedError

__all__ = ["DTYPE_NAMES", "Array", "View", "cuda_device", "data_pointer", "view"]


class SupportsDLPack(Protocol):
    """An array that exports itself through DLPack."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        """Return a capsule named "dltensor"."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (device type, device index)."""
        ...


#: What the functions of blublas take as arrays.
Array = NDArray[Any] | SupportsDLPack

DTYPE_NAMES = {_native.FLOAT32: "float32", _native.BFLOAT16: "bfloat16", _native.FLOAT64: "float64"}
_ITEM_BYTES = {_native.FLOAT32: 4, _native.BFLOAT16: 2, _native.FLOAT64: 8}
# bfloat16 has no NumPy dtype of its own: it comes through DLPack alone.
_NUMPY_DTYPES = {np.dtype(np.float32): _native.FLOAT32, np.dtype(np.float64): _native.FLOAT64}


class View(NamedTuple):
    """An array in memory."""

    #: What messages call it.
    name: str
    address: int
    dtype: int
    shape: tuple[int, ...]
    #: In elements.
    strides: tuple[int, ...]
    #: What has to live as long as the view.
    owner: object
    #: Index of the CUDA device; None for memory of the host.
    device: int | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return _ITEM_BYTES[self.dtype]

    def transposed(self) -> View:
        """The last two axes swapped."""
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return self._replace(shape=shape, strides=(*self.strides[:-2], self.strides[-1], self.strides[-2]))

    def broadcast(self, shape: tuple[int, ...]) -> View:
        """The view in a larger shape: missing axes and those of size 1 are walked with stride 0.

        Raises:
            InvalidValueError: the shapes do not fit.
        """
        if self.shape == shape:
            return self
        missing = len(shape) - len(self.shape)
        own = (1,) * missing + self.shape
        if missing < 0 or any(size not in (1, wanted) for size, wanted in zip(own, shape, strict=True)):
            raise InvalidValueError(f"[gemm] expected {self.name} that broadcasts to {shape}, got shape {self.shape}")
        sizes = zip(own, (0,) * missing + self.strides, strict=True)
        return self._replace(shape=shape, strides=tuple(0 if size == 1 else stride for size, stride in sizes))

    def member(self, index: int) -> View:
        """One entry along the first axis."""
        address = self.address + index * self.strides[0] * self.item_bytes
        return self._replace(address=address, shape=self.shape[1:], strides=self.strides[1:])


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


# DLPack's (type code, bits, lanes): 2 is IEEE floating point, 4 is bfloat.
_DLPACK_DTYPES = {(2, 32, 1): _native.FLOAT32, (2, 64, 1): _native.FLOAT64, (4, 16, 1): _native.BFLOAT16}
# kDLCPU, kDLCUDAHost: memory that the CPU reads; kDLCUDA, kDLCUDAManaged: memory of a device.
_DLPACK_HOST = (1, 3)
_DLPACK_CUDA = (2, 13)

# A function object of our own: the one of ctypes.pythonapi is shared by everybody who sets its types.
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def cuda_device(array: Array) -> int | None:
    """Index of the CUDA device that an array lies on; None for everything else."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return None
    device_type, device_index = _dlpack_device(array)
    return device_index if device_type in _DLPACK_CUDA else None


def _dlpack_device(array: SupportsDLPack) -> tuple[int, int]:
    try:
        device_type, device_index = array.__dlpack_device__()
    except Exception as error:  # PyTorch's meta tensors, which have no memory
        raise UnsupportedError(
            f"[gemm] expected arrays in host memory or on a CUDA device, got a {type(array).__name__} whose device "
            f"DLPack does not know: {error}"
        ) from error
    return int(device_type), int(device_index)


def view(array: Array, name: str, *, written: bool = False, stream: int | None = None) -> View:
    """Look at an array.

    Args:
        array: NumPy array (float32, float64), or CPU or CUDA array with ``__dlpack__`` (these and bfloat16).
        name: what messages call it.
        written: whether it will be written.
        stream: CUDA stream that will work on it (DLPack's number), for an array on a CUDA device.

    Raises:
        InvalidTypeError: no array, one that does not export its memory, or another dtype.
        InvalidValueError: a read-only array that is to be written, or one whose elements are not aligned.
        UnsupportedError: an array on another device.
    """
    if isinstance(array, np.ndarray):
        return _view_numpy(array, name, written)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _view_dlpack(array, name, stream)
    raise InvalidTypeError(
        f"[gemm] expected {name} as a NumPy array or an array with __dlpack__, got {type(array).__name__}; "
        "convert it with numpy.asarray"
    )


def _view_numpy(array: NDArray[Any], name: str, written: bool) -> View:
    dtype = _NUMPY_DTYPES.get(array.dtype)
    if dtype is None:
        raise _wrong_dtype(name, array.dtype.name if array.dtype.isnative else array.dtype.str)
    if written and not array.flags.writeable:
        raise InvalidValueError(f"[gemm] expected {name} to be writeable, got a read-only array; pass a copy")
    item = array.itemsize
    strides = tuple(stride // item for stride in array.strides)
    if array.size and not (array.flags.aligned and all(stride % item == 0 for stride in array.strides)):
        raise InvalidValueError(
            f"[gemm] expected {name} with aligned elements, got strides of {array.strides} bytes for {item}-byte "
            "elements; pass a copy"
        )
    return View(name, array.__array_interface__["data"][0], dtype, array.shape, strides, array)


def _view_dlpack(array: SupportsDLPack, name: str, stream: int | None) -> View:
    device_type, device_index = _dlpack_device(array)
    on_cuda = device_type in _DLPACK_CUDA
    if not on_cuda and device_type not in _DLPACK_HOST:
        raise UnsupportedError(
            f"[gemm] expected {name} in host memory or on a CUDA device, got DLPack device ({device_type}, "
            f"{device_index}); move it to the CPU"
        )
    try:
        # Never consumed: the capsule stays its exporter's and gives the memory back when the view goes.
        capsule = array.__dlpack__(stream=stream) if on_cuda else array.__dlpack__()
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    except (BufferError, RuntimeError, ValueError) as error:
        raise InvalidTypeError(
            f"[gemm] expected {name} to export its memory, got from {type(array).__name__}: {error}"
        ) from error
    kind = (tensor.type_code, tensor.type_bits, tensor.type_lanes)
    dtype = _DLPACK_DTYPES.get(kind)
    if dtype is None:
        raise _wrong_dtype(name, f"DLPack type {kind}")
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.ndim and tensor.strides else _row_major(shape)
    device = int(device_index) if on_cuda else None
    return View(name, (tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, capsule, device)


def data_pointer(array: SupportsDLPack, stream: int) -> int:
    """Address of a CUDA array's first element, of any dtype."""
    capsule = array.__dlpack__(stream=stream)  # holds what the pointer points to
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    return int(tensor.data or 0) + int(tensor.byte_offset)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides))[: len(shape)]


def _wrong_dtype(name: str, dtype: str) -> InvalidTypeError:
    return InvalidTypeError(f"[gemm] expected {name} as float32, float64 or bfloat16, got {dtype}; convert it first")
