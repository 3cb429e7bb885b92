"""Writes in place to results that are part of a graph: recorded as the operator that makes a new tensor.

Autograd records no write. A result that nothing else has the memory of needs none: `x += y` computes `x + y`, and the
Python object becomes that tensor. What backward saved of the old one stays as it was. Everything else is refused: views
would not see the new values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import _native
from .autograd import is_grad_enabled
from .errors import AutogradError, DTypeError, ShapeError

if TYPE_CHECKING:
    from .tensor import Tensor

_lib = _native.lib


def is_recorded(tensor: Tensor) -> bool:
    """Whether a write to it would have to be recorded for backward: a result that is part of a graph."""
    return is_grad_enabled() and tensor.requires_grad and not tensor.is_leaf


def replace(op: str, tensor: Tensor, compute: Callable[[], Tensor]) -> None:
    """Makes the tensor the result of `compute`, of its shape and dtype.

    Raises:
        AutogradError: Its memory is another tensor's too.
        ShapeError: The result has another shape.
        DTypeError: The result has another dtype.
    """
    if _lib.blutensor_tensor_is_shared(tensor._handle):
        raise AutogradError(
            f"[{op}] cannot write in place to a result of '{tensor.grad_fn}' that is part of the graph and shares its "
            "memory with another tensor (a view, or what backward saved): use an expression that makes a new tensor, "
            "or write to a copy"
        )
    result = compute()
    if result.shape != tensor.shape:
        raise ShapeError(
            f"[{op}] expected values that broadcast to shape {tensor.shape}, got a result of {result.shape}"
        )
    if result.dtype is not tensor.dtype:
        raise DTypeError(f"[{op}] expected values that keep the dtype {tensor.dtype.name}, got {result.dtype.name}")
    tensor._geometry = None
    tensor._handle, result._handle = result._handle, tensor._handle  # released with the result, also after a Ctrl-C
