"""The methods of a tensor that call operators: writes in place, shapes, types, reductions, indexing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt

from . import dtypes
from ._arguments import integer
from ._naming import named
from .errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from .devices import DeviceKey
    from .tensor import Index, Scalar, Tensor


def _operators() -> Any:
    from . import _operators as module

    return module


def _transfer() -> Any:
    """The module that copies between devices, which needs the class that this is mixed into."""
    from . import transfer as module

    return module


class Methods:
    """Mixed into :class:`blutensor.Tensor`."""

    __slots__ = ()

    if TYPE_CHECKING:  # what the class provides

        @property
        def device(self) -> str: ...

        def _fixed(self) -> tuple[tuple[int, ...], tuple[int, ...], dtypes.DType, DeviceKey]: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def ndim(self) -> int: ...
        @property
        def dtype(self) -> dtypes.DType: ...
        def is_contiguous(self) -> bool: ...
        def __len__(self) -> int: ...

    # ---------------------------------------------------------------- in place

    @named("copy_")
    def copy_(self, source: Tensor | npt.NDArray[Any]) -> Self:
        """Writes `source` (broadcast, cast; from any device) into this tensor's memory.

        Raises:
            AutogradError: As for `add_`.
        """
        if self._recorded():
            self._replace("copy_", lambda: self._like(source))
        elif isinstance(source, np.ndarray):
            _transfer().write_array(self, source)
        elif isinstance(source, Methods) and source._fixed()[3] != self._fixed()[3]:
            _transfer().copy_between(self, source)
        else:
            _operators().copy_(self, source)
        return self

    def add_(self, other: Tensor | Scalar) -> Self:
        """Adds `other` (broadcast) in place.

        A result that is part of a graph, and whose memory no other tensor has, becomes the sum as a new result.

        Raises:
            AutogradError: A leaf that requires a gradient, a result that shares its memory, or a gradient that would
                have to pass through the write.
        """
        return self._update("add", other)

    def sub_(self, other: Tensor | Scalar) -> Self:
        """Subtracts `other` (broadcast) in place; see `add_`."""
        return self._update("subtract", other)

    def mul_(self, other: Tensor | Scalar) -> Self:
        """Multiplies by `other` (broadcast) in place; see `add_`."""
        return self._update("multiply", other)

    def div_(self, other: Tensor | Scalar) -> Self:
        """Divides by `other` (broadcast) in place; floating dtypes. See `add_`."""
        return self._update("divide", other)

    @named("fill_")
    def fill_(self, value: Scalar) -> Self:
        """Sets every element.

        Raises:
            ShapeError: Elements share memory (a broadcast view).
            NumberRangeError: A number that the integer dtype does not hold.
            AutogradError: As for `add_`.
        """
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, (int, float)):
            dtypes.check_number("fill_", value, self.dtype)
        if self._recorded():
            self._replace("fill_", lambda: self._full(value, self.shape))
        elif isinstance(value, int) and not 0 <= value < 2**7:
            # fill_'s attribute is a float64, which does not hold every integer.
            _operators().copy_(self, self._full(value))
        else:
            _operators().fill_(self, value)
        return self

    def zero_(self) -> Self:
        """Sets every element to 0."""
        return self.fill_(0)

    def _recorded(self) -> bool:
        from ._in_place import is_recorded

        return is_recorded(cast("Tensor", self))

    def _replace(self, op: str, compute: Callable[[], Tensor]) -> None:
        from ._in_place import replace

        replace(op, cast("Tensor", self), compute)

    def _full(self, value: Scalar, shape: tuple[int, ...] = (), op: str = "fill_") -> Tensor:
        """A number as a tensor of this one's dtype and device."""
        from ._calls import full_on

        return full_on(shape, value, self.dtype, self._fixed()[3], op)

    def _like(self, source: Tensor | npt.NDArray[Any]) -> Tensor:
        """A copy of `source` with this tensor's shape, dtype and device."""
        if isinstance(source, np.ndarray):
            from .interop import asarray

            source = asarray(source, device="cpu")
        moved = source.to(self.device, self.dtype)
        return _operators().copy(_operators().broadcast_to(moved, self.shape))  # type: ignore[no-any-return]

    def _update(self, name: str, other: Any) -> Self:
        """The binary operator `name` in place."""
        op = {"add": "add_", "subtract": "sub_", "multiply": "mul_", "divide": "div_"}.get(name, name)
        if self._recorded():
            self._replace(op, lambda: getattr(_operators(), name)(self, other))
            return self
        is_number = isinstance(other, (bool, int, float, np.generic))
        if not is_number and not isinstance(other, Methods):
            raise DTypeError(f"[{op}] expected a tensor or a number, got {dtypes.described(other)}")
        if isinstance(other, (float, np.floating)) and not self.dtype.is_floating:
            raise DTypeError(
                f"[{op}] expected an operand that keeps {self.dtype.name} in place, got {dtypes.described(other)}"
            )
        if op != name:
            getattr(_operators(), op)(self, other if isinstance(other, Methods) else self._full(other, op=op))
            return self
        result = getattr(_operators(), name)(self, other)
        if result.dtype is not self.dtype or result.shape != self.shape:
            raise DTypeError(
                f"[{name}] expected an operand that keeps {self.dtype.name}{self.shape} in place, got a result of "
                f"{result.dtype.name}{result.shape}"
            )
        return self.copy_(result)

    # ---------------------------------------------------------------- shape and type

    @named("reshape")
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in another shape; one size may be -1. A view when the strides allow, else a copy."""
        return _operators().reshape(self, _flat(shape))  # type: ignore[no-any-return]

    @named("permute_dims")
    def permute_dims(self, *axes: int | Sequence[int]) -> Tensor:
        """A view with the axes in another order."""
        return _operators().permute_dims(self, _flat(axes))  # type: ignore[no-any-return]

    @named("transpose")
    def transpose(self, axis0: int, axis1: int) -> Tensor:
        """A view with two axes exchanged."""
        order = list(range(self.ndim))
        first, second = integer("transpose", "axis0", axis0), integer("transpose", "axis1", axis1)
        if not all(-self.ndim <= axis < self.ndim for axis in (first, second)):
            got = f"{dtypes.shown(first)} and {dtypes.shown(second)}"
            raise ShapeError(f"[transpose] expected axes of a rank {self.ndim} tensor, got {got}")
        order[first], order[second] = order[second], order[first]
        return self.permute_dims(order)

    @property
    def T(self) -> Tensor:
        """Transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError(f"[T] expected a matrix, got shape {self.shape}; use permute_dims")
        return self.permute_dims(1, 0)

    @property
    def mT(self) -> Tensor:
        """Transpose of the last two axes."""
        if self.ndim < 2:
            raise ShapeError(f"[mT] expected at least 2 axes, got shape {self.shape}")
        return self.transpose(-1, -2)

    def contiguous(self) -> Tensor:
        """Itself when row-major, else a row-major copy."""
        return cast("Tensor", self if self.is_contiguous() else _operators().contiguous(self))

    @named("astype")
    def astype(self, dtype: dtypes.DType | str) -> Tensor:
        """A copy of another dtype (itself when it has it already)."""
        target = dtypes.as_dtype(dtype)
        return cast("Tensor", self if target is self.dtype else _operators().astype(self, target))

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Sum over axes, by default all."""
        return _operators().sum(self, axis, keepdims)  # type: ignore[no-any-return]

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Mean over axes, by default all."""
        return _operators().mean(self, axis, keepdims)  # type: ignore[no-any-return]

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Largest element over axes, by default all; NaN when there is one."""
        return _operators().max(self, axis, keepdims)  # type: ignore[no-any-return]

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Smallest element over axes, by default all; NaN when there is one."""
        return _operators().min(self, axis, keepdims)  # type: ignore[no-any-return]

    def prod(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Product over axes, by default all."""
        return _operators().prod(self, axis, keepdims)  # type: ignore[no-any-return]

    def any(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Whether any element over axes, by default all, is not zero."""
        return _operators().any(self, axis, keepdims)  # type: ignore[no-any-return]

    def all(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Whether all elements over axes, by default all, are not zero."""
        return _operators().all(self, axis, keepdims)  # type: ignore[no-any-return]

    def var(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0) -> Tensor:
        """Variance over axes, by default all: squared deviations by n - correction."""
        return _operators().var(self, axis, keepdims, correction)  # type: ignore[no-any-return]

    def std(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0) -> Tensor:
        """Standard deviation over axes, by default all: the root of `var`."""
        return _operators().std(self, axis, keepdims, correction)  # type: ignore[no-any-return]

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        from .indexing import get_item

        return get_item(cast("Tensor", self), index)

    def __setitem__(
        self, index: Index | tuple[Index, ...], value: Tensor | Scalar | npt.NDArray[Any] | Sequence[Any]
    ) -> None:
        from .indexing import set_item

        set_item(cast("Tensor", self), index, value)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))


def _flat(values: tuple[Any, ...]) -> Any:
    """What the operator takes: one integer or sequence, or several integers."""
    return values[0] if len(values) == 1 else values
