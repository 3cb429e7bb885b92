"""Views of foreign arrays: address, dtype, shape and strides of NumPy arrays and of anything with ``__dlpack__`` on the CPU.

Nothing is copied. A view keeps what it looks at alive.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from blublas import _native

__all__ = ["Array", "View", "view"]


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array that exports itself through DLPack."""

    def __dlpack__(self) -> object:
        """Return a capsule named "dltensor"."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (device type, device index)."""
        ...


#: What the functions of blublas take as arrays.
Array = np.ndarray | SupportsDLPack

DTYPE_NAMES = {_native.FLOAT32: "float32", _native.BFLOAT16: "bfloat16", _native.FLOAT64: "float64"}
_DTYPES = {name: number for number, name in DTYPE_NAMES.items()}
ITEM_BYTES = {_native.FLOAT32: 4, _native.BFLOAT16: 2, _native.FLOAT64: 8}


@dataclass(frozen=True, slots=True)
class View:
    """An array in memory; strides in elements."""

    address: int
    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    #: What has to live as long as the view.
    owner: object

    def transposed(self) -> View:
        """The last two dimensions swapped."""
        return View(
            self.address,
            self.dtype,
            (*self.shape[:-2], self.shape[-1], self.shape[-2]),
            (*self.strides[:-2], self.strides[-1], self.strides[-2]),
            self.owner,
        )


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


# DLPack's (type code, bits): 2 is IEEE floating point, 4 is bfloat.
_DLPACK_DTYPES = {(2, 32): _native.FLOAT32, (2, 64): _native.FLOAT64, (4, 16): _native.BFLOAT16}
# kDLCPU, kDLCUDAHost: memory that the CPU reads.
_DLPACK_HOST = (1, 3)

# A function object of our own: the one of ctypes.pythonapi is shared by everybody who sets its types.
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def view(array: Array, name: str, *, written: bool = False) -> View:
    """Look at an array.

    Args:
        array: NumPy array, or CPU array with ``__dlpack__``; float32, float64 or bfloat16.
        name: what messages call it.
        written: whether it will be written.

    Raises:
        TypeError: no array, or another dtype.
        ValueError: a read-only array that is to be written, or one whose elements are not aligned.
        NotImplementedError: an array on another device.
    """
    if isinstance(array, np.ndarray):
        return _view_numpy(array, name, written)
    if isinstance(array, SupportsDLPack):
        return _view_dlpack(array, name)
    raise TypeError(
        f"[blublas] expected {name} as a NumPy array or an array with __dlpack__, got {type(array).__name__}; "
        "convert it with numpy.asarray"
    )


def _view_numpy(array: np.ndarray, name: str, written: bool) -> View:
    dtype = _DTYPES.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        raise _wrong_dtype(name, array.dtype.name if array.dtype.isnative else array.dtype.str)
    if written and not array.flags.writeable:
        raise ValueError(f"[blublas] expected {name} to be writeable, got a read-only array; pass a copy")
    item = array.itemsize
    if array.size and (not array.flags.aligned or any(stride % item for stride in array.strides)):
        raise ValueError(
            f"[blublas] expected {name} with aligned elements, got strides {array.strides} bytes for {item}-byte elements; "
            "pass a copy"
        )
    return View(array.ctypes.data, dtype, array.shape, tuple(stride // item for stride in array.strides), array)


def _view_dlpack(array: SupportsDLPack, name: str) -> View:
    device_type, device_index = array.__dlpack_device__()
    if int(device_type) not in _DLPACK_HOST:
        raise NotImplementedError(
            f"[blublas] expected {name} in host memory, got DLPack device ({int(device_type)}, {device_index}); "
            "move it to the CPU"
        )
    capsule = array.__dlpack__()
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    dtype = _DLPACK_DTYPES.get((tensor.type_code, tensor.type_bits)) if tensor.type_lanes == 1 else None
    if dtype is None:
        raise _wrong_dtype(name, f"DLPack type ({tensor.type_code}, {tensor.type_bits}, {tensor.type_lanes})")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _row_major(shape)
    return View((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, capsule)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides))[: len(shape)]


def _wrong_dtype(name: str, dtype: str) -> TypeError:
    return TypeError(f"[blublas] expected {name} as float32, float64 or bfloat16, got {dtype}; convert it first")
