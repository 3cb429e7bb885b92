"""Stochastic gradient descent."""

from __future__ import annotations

from .._operators import private
from ..errors import ShapeError
from ..tensor import Tensor
from .base import Group, Optimizer, Params, select

_sgd, _sgd_momentum = private("sgd_"), private("sgd_momentum_")


class SGD(Optimizer):
    """Gradient descent with momentum and (coupled) weight decay; formulas of `torch.optim.SGD` without dampening.

    Args:
        params: As for `Optimizer`; groups may set weight_decay.
        lr: Learning rate.
        momentum: 0 for none.
        weight_decay: Adds weight_decay * parameter to the gradient.
        nesterov: Nesterov's momentum.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if momentum < 0 or weight_decay < 0 or (nesterov and momentum == 0):
            raise ShapeError(
                "[SGD] expected momentum and weight_decay of at least 0, and momentum above 0 for nesterov, got "
                f"momentum {momentum}, weight_decay {weight_decay}, nesterov {nesterov}"
            )
        self._momentum, self._nesterov = momentum, nesterov
        super().__init__(params, lr, {"weight_decay": weight_decay}, ("momentum",) if momentum else ())

    def _update(
        self,
        group: Group,
        indices: list[int],
        grads: list[Tensor],
        lr: Tensor,
        grad_scale: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        params, decay = select(group.params, indices), group.options["weight_decay"]
        if not self._momentum:
            _sgd(lr, params, grads, grad_scale=grad_scale, skip=skip, weight_decay=decay)
            return
        _sgd_momentum(
            lr,
            params,
            grads,
            select(group.state["momentum"], indices),
            grad_scale=grad_scale,
            skip=skip,
            momentum=self._momentum,
            nesterov=self._nesterov,
            weight_decay=decay,
        )
