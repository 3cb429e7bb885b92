"""Python's operators on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .tensor import Scalar, Tensor


def _operators() -> Any:
    from . import _operators as module

    return module


class Arithmetic:
    """Mixed into :class:`blutensor.Tensor`."""

    __slots__ = ()

    def __add__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().add(self, other)  # type: ignore[no-any-return]

    def __radd__(self, other: Scalar) -> Tensor:
        return _operators().add(other, self)  # type: ignore[no-any-return]

    def __sub__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().subtract(self, other)  # type: ignore[no-any-return]

    def __rsub__(self, other: Scalar) -> Tensor:
        return _operators().subtract(other, self)  # type: ignore[no-any-return]

    def __mul__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().multiply(self, other)  # type: ignore[no-any-return]

    def __rmul__(self, other: Scalar) -> Tensor:
        return _operators().multiply(other, self)  # type: ignore[no-any-return]

    def __truediv__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().divide(self, other)  # type: ignore[no-any-return]

    def __rtruediv__(self, other: Scalar) -> Tensor:
        return _operators().divide(other, self)  # type: ignore[no-any-return]

    def __floordiv__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().floor_divide(self, other)  # type: ignore[no-any-return]

    def __rfloordiv__(self, other: Scalar) -> Tensor:
        return _operators().floor_divide(other, self)  # type: ignore[no-any-return]

    def __mod__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().remainder(self, other)  # type: ignore[no-any-return]

    def __rmod__(self, other: Scalar) -> Tensor:
        return _operators().remainder(other, self)  # type: ignore[no-any-return]

    def __pow__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().pow(self, other)  # type: ignore[no-any-return]

    def __rpow__(self, other: Scalar) -> Tensor:
        return _operators().pow(other, self)  # type: ignore[no-any-return]

    def __matmul__(self, other: Tensor) -> Tensor:
        from .linear_algebra import matmul

        return matmul(self, other)  # type: ignore[arg-type]

    def __rmatmul__(self, other: Tensor) -> Tensor:
        from .linear_algebra import matmul

        return matmul(other, self)  # type: ignore[arg-type]

    def __and__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().bitwise_and(self, other)  # type: ignore[no-any-return]

    def __rand__(self, other: Scalar) -> Tensor:
        return _operators().bitwise_and(other, self)  # type: ignore[no-any-return]

    def __or__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().bitwise_or(self, other)  # type: ignore[no-any-return]

    def __ror__(self, other: Scalar) -> Tensor:
        return _operators().bitwise_or(other, self)  # type: ignore[no-any-return]

    def __xor__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().bitwise_xor(self, other)  # type: ignore[no-any-return]

    def __rxor__(self, other: Scalar) -> Tensor:
        return _operators().bitwise_xor(other, self)  # type: ignore[no-any-return]

    def __lshift__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().bitwise_left_shift(self, other)  # type: ignore[no-any-return]

    def __rlshift__(self, other: Scalar) -> Tensor:
        return _operators().bitwise_left_shift(other, self)  # type: ignore[no-any-return]

    def __rshift__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().bitwise_right_shift(self, other)  # type: ignore[no-any-return]

    def __rrshift__(self, other: Scalar) -> Tensor:
        return _operators().bitwise_right_shift(other, self)  # type: ignore[no-any-return]

    def __invert__(self) -> Tensor:
        return _operators().bitwise_invert(self)  # type: ignore[no-any-return]

    def __neg__(self) -> Tensor:
        return _operators().negative(self)  # type: ignore[no-any-return]

    def __pos__(self) -> Tensor:
        from .elementwise import positive

        return positive(self)  # type: ignore[arg-type]

    def __abs__(self) -> Tensor:
        return _operators().abs(self)  # type: ignore[no-any-return]

    # ---------------------------------------------------------------- in place (see `add_`)

    if TYPE_CHECKING:  # what the class provides

        def _update(self, name: str, other: Any) -> Self: ...

    def __iadd__(self, other: Tensor | Scalar) -> Self:
        return self._update("add", other)

    def __isub__(self, other: Tensor | Scalar) -> Self:
        return self._update("subtract", other)

    def __imul__(self, other: Tensor | Scalar) -> Self:
        return self._update("multiply", other)

    def __itruediv__(self, other: Tensor | Scalar) -> Self:
        return self._update("divide", other)

    def __ipow__(self, other: Tensor | Scalar) -> Self:
        return self._update("pow", other)

    # ---------------------------------------------------------------- comparisons

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None or isinstance(other, str):  # equal to no tensor: Python then says False
            return NotImplemented
        return _operators().equal(self, other)  # type: ignore[no-any-return]

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None or isinstance(other, str):
            return NotImplemented
        return _operators().not_equal(self, other)  # type: ignore[no-any-return]

    def __lt__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().less(self, other)  # type: ignore[no-any-return]

    def __le__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().less_equal(self, other)  # type: ignore[no-any-return]

    def __gt__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().greater(self, other)  # type: ignore[no-any-return]

    def __ge__(self, other: Tensor | Scalar) -> Tensor:
        return _operators().greater_equal(self, other)  # type: ignore[no-any-return]

    __hash__ = object.__hash__
