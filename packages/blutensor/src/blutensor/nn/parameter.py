"""Parameter: a tensor that a module owns and trains."""

from __future__ import annotations

from typing import Self

from ..tensor import Tensor


class Parameter(Tensor):
    """A leaf that requires a gradient; assigning it to a module's attribute registers it.

    Args:
        data: Its memory becomes the parameter's, without a copy.
        requires_grad: False for a frozen parameter.
    """

    __slots__ = ()

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Self:
        """Takes over a view of the data."""
        self = cls._adopt(data.detach()._detach_handle())
        if requires_grad:
            self.requires_grad = True
        return self

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        pass  # __new__ did it: a handle is taken over, not made
