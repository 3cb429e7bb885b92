"""Parameter: a tensor that a module owns and trains."""

from __future__ import annotations

import ctypes
from typing import Self

from .. import _native, dtypes
from .._arguments import flag
from .._calls import need_tensor
from .._naming import named
from ..tensor import Tensor


def replace_data(tensor: Tensor, data: Tensor) -> None:
    """Gives a leaf other memory (of any dtype, on any device): the Python object stays, its gradient is dropped."""
    trained = tensor.requires_grad
    view = data.detach()
    tensor._geometry = None
    tensor._handle, view._handle = view._handle, tensor._handle
    del view  # with what the tensor was before
    if trained:
        tensor.requires_grad = True


class Parameter(Tensor):
    """A leaf that requires a gradient; assigning it to a module's attribute registers it.

    Args:
        data: Its memory becomes the parameter's, without a copy.
        requires_grad: False for a frozen parameter.
    """

    __slots__ = ()

    @named("Parameter")
    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Self:
        """Takes over a view of the data."""
        trained = flag("Parameter", "requires_grad", requires_grad)
        self = cls._moved_from(need_tensor("Parameter", "data", data).detach())
        if trained:
            self.requires_grad = True
        return self

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        pass  # __new__ did it: a handle is taken over, not made

    @property
    def grad_dtype(self) -> dtypes.DType:
        """The dtype that the gradient is kept in: the parameter's own, or float32 for a 16-bit one.

        Gradients are summed in float32; float32 buffers keep the sums unrounded. Setting another dtype drops the
        gradient.
        """
        number = ctypes.c_int32()
        _native.check(_native.lib.blutensor_get_grad_dtype(self._handle, ctypes.byref(number)))
        return dtypes.ALL[number.value]

    @grad_dtype.setter
    def grad_dtype(self, value: dtypes.DType | str) -> None:
        _native.check(_native.lib.blutensor_set_grad_dtype(self._handle, dtypes.as_dtype(value).number))
