"""The methods of a tensor that call operators: writes in place, shapes, types, reductions, indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt

from . import dtypes
from .errors import ShapeError

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

    def copy_(self, source: Tensor | npt.NDArray[Any]) -> Self:
        """Writes `source` (broadcast, cast; from any device) into this tensor's memory."""
        if isinstance(source, np.ndarray):
            _transfer().write_array(self, source)
        elif isinstance(source, Methods) and source._fixed()[3] != self._fixed()[3]:
            _transfer().copy_between(self, source)
        else:
            _operators().copy_(self, source)
        return self

    def add_(self, other: Tensor | Scalar) -> Self:
        """Adds `other` (broadcast) in place."""
        if not isinstance(other, Methods):
            from ._calls import full_on

            other = full_on((), other, self.dtype, self._fixed()[3])
        _operators().add_(self, other)
        return self

    def fill_(self, value: Scalar) -> Self:
        """Sets every element.

        Raises:
            ShapeError: Elements share memory (a broadcast view).
        """
        _operators().fill_(self, value)
        return self

    def zero_(self) -> Self:
        """Sets every element to 0."""
        return self.fill_(0)

    # ---------------------------------------------------------------- shape and type

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in another shape; one size may be -1. A view when the strides allow, else a copy."""
        return _operators().reshape(self, _flat(shape))  # type: ignore[no-any-return]

    def permute_dims(self, *axes: int | Sequence[int]) -> Tensor:
        """A view with the axes in another order."""
        return _operators().permute_dims(self, _flat(axes))  # type: ignore[no-any-return]

    def transpose(self, axis0: int, axis1: int) -> Tensor:
        """A view with two axes exchanged."""
        order = list(range(self.ndim))
        try:
            order[axis0], order[axis1] = order[axis1], order[axis0]
        except IndexError:
            raise ShapeError(
                f"[transpose] expected axes of a rank {self.ndim} tensor, got {axis0} and {axis1}"
            ) from None
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


def _flat(values: tuple[Any, ...]) -> tuple[int, ...]:
    if len(values) == 1 and not hasattr(values[0], "__index__"):
        return tuple(values[0])
    return values
