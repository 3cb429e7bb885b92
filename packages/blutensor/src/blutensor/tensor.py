"""Tensor: a handle to a native tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import EllipsisType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from . import _native, dtypes
from ._arguments import flag, flag_or_none
from ._naming import named
from ._tensor_arithmetic import Arithmetic
from ._tensor_methods import Methods
from .devices import CPU, DeviceKey, as_device, device_name
from .errors import AutogradError, DTypeError, ShapeError

Scalar = bool | int | float
Index = int | slice | None | EllipsisType

_lib = _native.lib
_release = _lib.blutensor_tensor_release
_info_type = _native.TensorInfo
_get_info = _lib.blutensor_tensor_get_info


def _operators() -> Any:
    from . import _operators as module

    return module


def _transfer() -> Any:
    """The module that copies between devices, which needs this one."""
    from . import transfer as module

    return module


class Tensor(Methods, Arithmetic):
    """An n-dimensional array on a device, with reverse-mode gradients.

    Tensors are made by the functions of :mod:`blutensor` (`asarray`, `zeros`, ...), never by calling the class. Views
    share memory; shape, strides and dtype never change.
    """

    __slots__ = ("__weakref__", "_geometry", "_handle")
    __array_priority__ = 1000

    _handle: int
    _geometry: tuple[tuple[int, ...], tuple[int, ...], dtypes.DType, DeviceKey] | None

    def __init__(self) -> None:
        raise DTypeError("Tensor() cannot be called; use blutensor.asarray, zeros, empty or from_dlpack")

    @classmethod
    def _adopt(cls, handles: ctypes.Array[ctypes.c_void_p], i: int = 0) -> Self:
        """Takes over an owned native handle, which leaves NULL in its place.

        Signal handlers run between calls, not between assignments: a Ctrl-C finds the handle in one of the two places.
        """
        self = object.__new__(cls)
        self._geometry = None
        self._handle = handles[i]  # type: ignore[assignment]
        handles[i] = None
        return self

    @classmethod
    def _moved_from(cls, tensor: Tensor) -> Self:
        """Takes over the handle of a tensor, which is unusable from then on."""
        self = object.__new__(cls)
        self._geometry = None
        self._handle, tensor._handle = tensor._handle, 0
        return self

    def __del__(self, _release: Callable[[int], None] = _release) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            _release(handle)

    # ---------------------------------------------------------------- description

    def _info(self) -> _native.TensorInfo:
        info = _info_type(ctypes.sizeof(_info_type))
        _native.check(_get_info(self._handle, ctypes.byref(info)))
        return info

    def _fixed(self) -> tuple[tuple[int, ...], tuple[int, ...], dtypes.DType, DeviceKey]:
        if self._geometry is None:
            info = self._info()
            rank = info.rank
            device = (info.device_type, info.device_index)
            self._geometry = (tuple(info.shape[:rank]), tuple(info.strides[:rank]), dtypes.ALL[info.dtype], device)
        return self._geometry

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return self._fixed()[0]

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) between neighbours along each axis."""
        return self._fixed()[1]

    @property
    def dtype(self) -> dtypes.DType:
        """Type of the elements."""
        return self._fixed()[2]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        """Bytes of its elements (of the view, not of the storage)."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> str:
        """Where the memory is: "cpu" or "cuda:<index>"."""
        return device_name(self._fixed()[3])

    def is_contiguous(self) -> bool:
        """Whether it is row-major without gaps."""
        return bool(self._info().contiguous)

    @property
    def storage_id(self) -> int:
        """Identity of the memory that views share."""
        return int(self._info().storage_id)

    @property
    def version(self) -> int:
        """Writes in place to the storage so far."""
        return int(self._info().version)

    @property
    def requires_grad(self) -> bool:
        """Whether backward computes a gradient for it: set on a leaf, inherited by results."""
        return bool(self._info().requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        _native.check(_lib.blutensor_set_requires_grad(self._handle, flag("requires_grad", "requires_grad", value)))

    def requires_grad_(self, value: bool = True) -> Self:
        """Sets `requires_grad` and returns the tensor."""
        self.requires_grad = flag("requires_grad_", "value", value)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operator produced it."""
        return bool(self._info().is_leaf)

    @property
    def grad_fn(self) -> str | None:
        """Name of the operator that produced it, when that is recorded."""
        name = self._info().grad_fn
        return name.decode() if name else None

    # ---------------------------------------------------------------- values on the host

    def _address(self, op: str, write: bool = False) -> int:
        data = ctypes.c_void_p()
        _native.check(_lib.blutensor_tensor_data(self._handle, int(write), op.encode(), ctypes.byref(data)))
        return data.value or 0

    def numpy(self) -> npt.NDArray[Any]:
        """A NumPy array over the same memory. bfloat16, which NumPy has not, comes as uint16: its bits.

        With the package ml_dtypes `x.numpy().view(ml_dtypes.bfloat16)` has the numbers, and `asarray` takes it back
        over the same memory; `np.asarray(x)` is a copy of the numbers in float32.

        Raises:
            DTypeError: For a tensor on another device: use `.cpu().numpy()`.
            CaptureError: During a capture, or for a tensor that a captured function left behind.
            AutogradError: For a tensor that requires a gradient: use `.detach().numpy()`.
        """
        if self.requires_grad:
            raise AutogradError(
                "[numpy] expected a tensor outside the graph, got one that requires a gradient; use .detach().numpy()"
            )
        return self._view("numpy")

    def _view(self, op: str, write: bool = False) -> npt.NDArray[Any]:
        shape, strides, dtype, _ = self._fixed()
        return _transfer().array_over(self._address(op, write), shape, strides, dtype, keep=self)  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        copy = flag_or_none("__array__", "copy", copy)
        array = self.detach()._view("__array__")
        if self.dtype is dtypes.bfloat16:  # its numbers, never its bits
            if dtype is not None and dtypes.is_bfloat16(np.dtype(dtype)):
                array = array.view(dtype)
            elif copy is False:
                raise ShapeError("[__array__] a copy is needed to go from bfloat16, which NumPy has not")
            else:
                array, copy = self._values("__array__"), None
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ShapeError(f"[__array__] a copy is needed to go from {self.dtype.name} to {np.dtype(dtype)}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def item(self) -> Scalar:
        """The value of a tensor of one element.

        Raises:
            ShapeError: It has more or fewer elements.
            CaptureError: During a capture.
        """
        if self.size != 1:
            raise ShapeError(f"[item] expected a tensor of one element, got shape {self.shape}")
        value: Scalar = self._values("item").reshape(()).item()
        return value

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self._values("tolist").tolist()

    def _values(self, op: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = _transfer().host_array(self, op)
        return (array.astype(np.uint32) << 16).view(np.float32) if self.dtype is dtypes.bfloat16 else array

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        if not self.is_leaf:
            raise ShapeError(f"[copy] expected a leaf, got a result of '{self.grad_fn}'; use .detach()")
        twin = type(self)._moved_from(_operators().copy(self.detach()))
        if self.requires_grad:
            twin.requires_grad = True
        memo[id(self)] = twin
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_leaf:
            raise ShapeError(f"[pickle] expected a leaf, got a result of '{self.grad_fn}'; use .detach()")
        values = np.array(_transfer().host_array(self.detach(), "pickle"))
        return _restore, (type(self), values, self.dtype.name, self.requires_grad, self.device)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.dtype.kind != "integer":
            raise DTypeError(f"[index] expected an integer tensor, got {self.dtype.name}")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError("[len] a tensor of rank 0 has no length")
        return self.shape[0]

    def __format__(self, spec: str) -> str:
        """The number of a tensor of one element by a format such as ``.3f``; without one, the text of any tensor."""
        return format(self.item(), spec) if spec else str(self)

    def __repr__(self) -> str:
        if _lib.blutensor_capture_active():
            return f"Tensor(shape={self.shape}, dtype={self.dtype.name}, captured)"
        where = "" if self._fixed()[3] == CPU else f", device={self.device}"
        with np.printoptions(threshold=64, edgeitems=3):
            values = np.array2string(self._values("repr"), separator=", ", prefix="Tensor(")
        grad = f", grad_fn={self.grad_fn}" if self.grad_fn else ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({values}, shape={self.shape}, dtype={self.dtype.name}{where}{grad})"

    def __dlpack__(self, *, stream: object = None, max_version: object = None, dl_device: object = None,
                   copy: bool | None = None) -> object:  # fmt: skip
        from .interop import to_capsule

        return to_capsule(self, copy=copy, stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._fixed()[3]
        return (2 if kind == 1 else 1, index)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions of the Python array API standard: the module `blutensor`.

        Raises:
            DTypeError: A version of the standard that it does not follow.
        """
        import blutensor

        from .namespace import checked_version

        checked_version(api_version)
        return blutensor

    # ---------------------------------------------------------------- devices

    @named("to")
    def to(self, device: str | dtypes.DType | None = None, dtype: dtypes.DType | str | None = None) -> Tensor:
        """The tensor on a device and of a dtype: itself when it is that already, else a row-major copy.

        `to(dtype)` works too. Gradients flow back through it.

        Raises:
            DTypeError: No name of a device, or no dtype.
            UnsupportedError: A device that cannot be used here.
            CaptureError: Another device, during a capture.
        """
        if isinstance(device, dtypes.DType):
            device, dtype = None, device
        converted = self if dtype is None else self.astype(dtype)
        key = self._fixed()[3] if device is None else as_device("to", device)
        if key == converted._fixed()[3]:
            return converted
        return _transfer().moved(converted, key)  # type: ignore[no-any-return]

    def to_device(self, device: str, /, *, stream: object = None) -> Tensor:
        """`to(device)`, by the name of the array API standard; work is in order without `stream`."""
        return self.to(device)

    def cpu(self) -> Tensor:
        """`to("cpu")`."""
        return self.to("cpu")

    def cuda(self, index: int = 0) -> Tensor:
        """`to(f"cuda:{index}")`."""
        return self.to(f"cuda:{index}")

    # ---------------------------------------------------------------- gradients

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf, or None. Zeros after `zero_grad()` that kept the buffer."""
        out = _native.OwnedHandle()
        _native.check(_lib.blutensor_get_grad(self._handle, out))
        return Tensor._adopt(out) if out[0] else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise DTypeError(f"[grad] expected a tensor or None, got {type(value).__name__}")
        _native.check(_lib.blutensor_set_grad(self._handle, None if value is None else value._handle))

    def backward(self, grad: Tensor | None = None, *, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Accumulates the gradient of this tensor into the `.grad` of every leaf that it depends on.

        Args:
            grad: Gradient of this tensor, same shape and dtype; may be omitted for one element.
            retain_graph: Keep the graph for another pass.
            create_graph: Record the backward pass itself, for higher derivatives (implies retain_graph). A leaf and its
                `.grad` then hold each other until `.grad = None`; `blutensor.grad` has no such cycle.

        Raises:
            ShapeError: No gradient is required, or `grad` does not fit.
            AutogradError: The graph was freed, or a saved tensor was written in place.
        """
        from .autograd import backward

        backward([self], [grad], retain_graph=retain_graph, create_graph=create_graph)

    def detach(self) -> Tensor:
        """The same memory outside the graph."""
        out = _native.OwnedHandle()
        _native.check(_lib.blutensor_detach(self._handle, out))
        return Tensor._adopt(out)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Any:
        """Calls `hook(grad)` with the complete gradient of this tensor; what it returns (if not None) replaces it.

        Returns:
            A handle with `.remove()`.
        """
        from .autograd import register_hook

        return register_hook(self, hook)


def _restore(
    cls: type[Tensor], values: npt.NDArray[Any], dtype: str, requires_grad: bool, device: str = "cpu"
) -> Tensor:
    """A tensor out of a pickle."""
    from .interop import empty

    made = empty(values.shape, dtype=dtype, device=device)
    _transfer().write_array(made, values, bits=True)
    tensor = cls._moved_from(made)
    tensor.requires_grad = requires_grad
    return tensor
