"""NumPy and DLPack, both ways, without copies."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native, dtypes
from ._arguments import flag_or_none, integer
from ._naming import named
from .devices import CPU, as_device, device_name
from .errors import AutogradError, DTypeError, ShapeError
from .tensor import Tensor

_lib = _native.lib
_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_IsValid.restype = ctypes.c_int
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.restype = ctypes.c_int
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

_DLTENSOR, _USED = b"dltensor", b"used_dltensor"

# What foreign storages keep alive, by the context number that their release callback gets.
_alive: dict[int, object] = {}
_contexts = itertools.count(1)


def _forget(context: int | None) -> None:
    if context is not None:
        _alive.pop(context, None)


_forget_callback = _native.ReleaseFn(_forget)


_capsule_destructor = _lib.blutensor_dlpack_destructor(
    *(ctypes.cast(function, ctypes.c_void_p) for function in (_python.PyCapsule_IsValid, _python.PyCapsule_GetPointer))
)


_LEGACY_STREAM = 1  # what DLPack calls CUDA's default stream; CUDA takes the number for a handle of it


def to_capsule(tensor: Tensor, copy: bool | None = None, stream: Any = None) -> object:
    """A DLPack capsule over the tensor's memory (`copy=True`: over a copy).

    `stream`, of a CUDA tensor: what will read the memory (1: the legacy default stream, also when not given; 2: that of
    the thread; else its address). It is made to wait for what computes the tensor; -1: it is not.
    """
    if tensor.requires_grad:
        raise AutogradError(
            "[__dlpack__] expected a tensor outside the graph, got one that requires a gradient; export .detach()"
        )
    if flag_or_none("__dlpack__", "copy", copy):
        from . import _operators

        tensor = _operators.copy(tensor)
    if tensor._fixed()[3] != CPU and stream != -1:
        if stream == 0:
            raise ShapeError(
                "[__dlpack__] expected stream 1 or 2 for CUDA's default streams, got 0, which is ambiguous"
            )
        _native.check(_lib.blutensor_stream_begin(tensor._handle, _LEGACY_STREAM if stream is None else int(stream)))
    managed = ctypes.c_void_p()
    _native.check(_lib.blutensor_to_dlpack(tensor._handle, ctypes.byref(managed)))
    return _python.PyCapsule_New(managed, _DLTENSOR, _capsule_destructor)


@named("from_dlpack")
def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of any object with `__dlpack__` on the cpu or a GPU, without a copy.

    The memory of a GPU is ready when what its owner had started is done: no synchronization of the host.

    Args:
        x: The object.
        device: Where the tensor shall be: by default where x is.
        copy: True copies always, False never (an error when it would have to), None when needed.

    Raises:
        DTypeError: No DLPack object, another device, or an element type that has no counterpart here.
        ShapeError: A copy is needed and `copy` is False.
        UnsupportedError: A GPU that cannot be used here.
    """
    copy = flag_or_none("from_dlpack", "copy", copy)
    shared = _shared_memory(x)
    return shared if device is None and copy is None else asarray(shared, device=device, copy=copy)


def _shared_memory(x: Any) -> Tensor:
    """`from_dlpack` without a copy."""
    if not hasattr(x, "__dlpack__"):
        raise DTypeError(f"[from_dlpack] expected an object with __dlpack__, got {type(x).__name__}")
    try:
        device = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (1, 0)
    except ValueError as error:  # PyTorch's meta tensors, which have no memory
        raise DTypeError(f"[from_dlpack] {type(x).__name__} has no device that DLPack knows: {error}") from error
    if device[0] not in (1, 2, 3, 13):
        raise DTypeError(
            f"[from_dlpack] expected memory of the cpu or of a CUDA device, got DLPack device {tuple(device)}"
        )
    keywords: dict[str, Any] = {}
    if device[0] in (2, 13):
        stream = ctypes.c_void_p()
        key = as_device("from_dlpack", f"cuda:{int(device[1])}")
        _native.check(_lib.blutensor_compute_stream(*key, ctypes.byref(stream)))
        keywords["stream"] = stream.value
    try:
        capsule = x.__dlpack__(**keywords)
    except BufferError as error:  # read-only memory, or a tensor that requires a gradient
        raise ShapeError(f"[from_dlpack] {type(x).__name__} does not export its memory: {error}") from error
    if not _python.PyCapsule_IsValid(capsule, _DLTENSOR):
        raise DTypeError("[from_dlpack] expected a fresh 'dltensor' capsule")
    out = _native.OwnedHandle()
    _native.check(_lib.blutensor_from_dlpack(_python.PyCapsule_GetPointer(capsule, _DLTENSOR), out))
    _python.PyCapsule_SetName(capsule, _USED)
    return Tensor._adopt(out)


def from_numpy(array: npt.NDArray[Any]) -> Tensor:
    """A tensor over the memory of a NumPy array, without a copy; it keeps the array alive.

    Raises:
        DTypeError: An element type without counterpart, or a byte order that is not the machine's.
        ShapeError: Memory that may not be written, or strides that are no multiple of the element size.
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"[from_numpy] expected a NumPy array, got {type(array).__name__}")
    if not array.dtype.isnative:
        raise DTypeError(
            f"[from_numpy] expected the machine's byte order, got {array.dtype}; use asarray(array, copy=True)"
        )
    dtype = dtypes.as_dtype(array.dtype, "from_numpy")
    if not array.flags.writeable:
        raise ShapeError("[from_numpy] expected a writeable array; use asarray(array, copy=True)")
    if any(s % dtype.itemsize for s in array.strides):
        raise ShapeError(
            f"[from_numpy] expected strides in whole elements of {dtype.itemsize} bytes, got {array.strides}"
        )
    context = next(_contexts)
    _alive[context] = array
    out = _native.OwnedHandle()
    status = _lib.blutensor_from_memory(
        array.ctypes.data,
        _native.int64_array(list(array.shape)),
        _native.int64_array([s // dtype.itemsize for s in array.strides]),
        array.ndim,
        dtype.number,
        0,
        0,
        _forget_callback,
        context,
        out,
    )
    if status:
        _alive.pop(context, None)
    _native.check(status)
    return Tensor._adopt(out)


def state_tensors(op: str, state: Any) -> dict[str, Tensor]:
    """The values of a state dictionary as tensors; NumPy arrays are converted.

    Raises:
        DTypeError: No mapping, or values that are neither; all are named.
    """
    if not isinstance(state, Mapping):
        raise DTypeError(f"[{op}] expected a mapping of names to tensors, got {type(state).__name__}")
    wrong = [
        f"'{n}' is {type(v).__name__}" for n, v in state.items() if not isinstance(v, (Tensor, np.ndarray, np.generic))
    ]
    if wrong:
        raise DTypeError(f"[{op}] expected tensors or NumPy arrays, got other values: {'; '.join(wrong)}")
    return {n: v if isinstance(v, Tensor) else asarray(v, device="cpu") for n, v in state.items()}


def array_tensor(array: npt.NDArray[Any], dtype: dtypes.DType) -> Tensor:
    """A tensor on the cpu over an array of a dtype's NumPy counterpart; for bfloat16 the array holds its bits."""
    tensor = empty(array.shape, dtype=dtype, device="cpu")
    tensor._view("array_tensor", write=True)[...] = array
    return tensor


def sizes_of(op: str, shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple.

    Raises:
        ShapeError: More than 8 axes, or a negative size.
        DTypeError: Something else than an integer or several.
    """
    if isinstance(shape, (str, bytes, Mapping)):
        raise DTypeError(f"[{op}] expected an integer or a sequence of them for shape, got {dtypes.described(shape)}")
    listed = shape if hasattr(shape, "__iter__") and getattr(shape, "ndim", 1) != 0 else (shape,)
    sizes = tuple(integer(op, "shape", d, least=0) for d in listed)
    if len(sizes) > _native.MAX_RANK:
        raise ShapeError(f"[{op}] expected at most {_native.MAX_RANK} axes, got {len(sizes)}")
    return sizes


@named("empty")
def empty(shape: int | Sequence[int], *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """Uninitialised memory, row-major, float32 on the default device unless others are given.

    Raises:
        DTypeError: No name of a device.
        UnsupportedError: A device that cannot be used here.
        ShapeError: A negative size, more than 8 axes, or more than 2^63 bytes.
        OutOfMemoryError: There is not enough memory.
    """
    key = as_device("empty", device)
    sizes = sizes_of("empty", shape)
    out = _native.OwnedHandle()
    number = (dtypes.float32 if dtype is None else dtypes.as_dtype(dtype)).number
    _native.check(_lib.blutensor_empty(_native.int64_array(sizes), len(sizes), number, *key, out))
    return Tensor._adopt(out)


@named("asarray")
def asarray(
    x: Any, *, dtype: dtypes.DType | str | None = None, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor from a tensor, a NumPy array, a DLPack object, a number or nested lists.

    Arrays of ml_dtypes' bfloat16 are known; other arrays hold numbers, those of uint16 too, also when they become
    bfloat16. Python numbers have to fit an integer dtype; only their fraction is cut off. Arrays and tensors are
    converted as by their `astype`, which keeps low bits of integers.

    Args:
        x: The values. NumPy and DLPack memory is shared where that is possible and `copy` is not True.
        dtype: Wanted type; by default x's own, float32 for Python floats, int64 for Python integers.
        device: Where: "cpu" or "cuda:<index>". By default where x is, and the default device for what is no tensor.
        copy: True copies always, False never (an error when it would have to), None when needed.

    Raises:
        DTypeError: Values or a type that have no counterpart here.
        NumberRangeError: A Python number that the integer dtype does not hold: out of its range, infinite or NaN.
        ShapeError: A copy is needed and `copy` is False.
        UnsupportedError: A device that cannot be used here.
        CaptureError: During a capture: constants are made outside of it.
    """
    copy = flag_or_none("asarray", "copy", copy)
    if not isinstance(x, Tensor) and hasattr(x, "__dlpack__") and not isinstance(x, (np.ndarray, np.generic)):
        return asarray(from_dlpack(x), dtype=dtype, device=device, copy=copy)
    key = x._fixed()[3] if device is None and isinstance(x, Tensor) else as_device("asarray", device)
    if key != (x._fixed()[3] if isinstance(x, Tensor) else CPU):
        if copy is False:
            raise ShapeError(f"[asarray] a copy is needed to go to {device_name(key)}")
        return asarray(x, dtype=dtype, device=None if isinstance(x, Tensor) else "cpu").to(device_name(key))
    target = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(x, Tensor):
        if target is not None and target is not x.dtype:
            if copy is False:
                raise ShapeError(f"[asarray] a copy is needed to go from {x.dtype.name} to {target.name}")
            return x.astype(target)
        if not copy:
            return x
        from . import _operators

        return _operators.copy(x)
    shared = isinstance(x, np.ndarray)
    if shared and np.ma.is_masked(x):
        raise DTypeError("[asarray] expected an array without masked elements; use x.filled(value)")
    if target is None and not isinstance(x, (np.ndarray, np.generic)):
        array = dtypes.nested_array("asarray", x)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
    elif target is None or (shared and x.dtype.kind != "O"):
        array = np.asarray(x)
    else:
        array = dtypes.numbers_array("asarray", x, target)
    dtypes.check_real("asarray", array)
    wanted = dtypes.as_dtype(array.dtype.newbyteorder("="), "asarray") if target is None else target
    needs_copy = not (shared and array.flags.writeable and _is_memory_of(array, wanted))
    needs_copy = needs_copy or any(s % array.itemsize for s in array.strides)
    if copy is False and needs_copy:
        raise ShapeError(f"[asarray] a copy is needed to make {wanted.name} of {type(x).__name__}")
    if not (copy or needs_copy):
        return from_numpy(array)
    out = empty(array.shape, dtype=wanted, device="cpu")
    out.copy_(array)
    return out


def _is_memory_of(array: npt.NDArray[Any], dtype: dtypes.DType) -> bool:
    """Whether an array's bytes are those of a tensor of a dtype; uint16 may be any bits, and counts as numbers."""
    if dtype is dtypes.bfloat16:
        return dtypes.is_bfloat16(array.dtype)
    return dtype.numpy == array.dtype


def converted(op: str, array: npt.NDArray[Any], dtype: dtypes.DType) -> npt.NDArray[Any]:
    """An array's numbers in a dtype's NumPy counterpart, converted as by `astype`; for bfloat16 as its bits.

    Raises:
        DTypeError: Something else than real numbers.
        NumberRangeError: A Python number, in an array of objects, that the integer dtype does not hold.
    """
    dtypes.check_real(op, array)
    if array.dtype.kind == "O":
        dtypes.numbers_array(op, array, dtype)
    if dtype is dtypes.bfloat16 and dtypes.is_bfloat16(array.dtype):
        return array.view(np.uint16)
    is_plain = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
    is_exact = dtype.kind != "integer" or array.dtype.kind in "biuO"
    if dtype is not dtypes.bfloat16 and is_exact:
        return array.astype(dtype.numpy, copy=False)
    numbers = array if is_plain else array.astype(np.float64)
    return from_numpy(np.array(numbers, numbers.dtype.newbyteorder("="), order="C")).astype(dtype).numpy()
