"""Stochastic gradient descent."""

from __future__ import annotations

from .._arguments import flag, not_negative
from .._naming import named
from .._operators import private
from ..errors import ShapeError
from ..tensor import Tensor
from .base import Optimizer, Params, Part

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

    @named("SGD")
    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self._momentum = not_negative("SGD", "momentum", momentum)
        self._nesterov = flag("SGD", "nesterov", nesterov)
        if self._nesterov and self._momentum == 0:
            raise ShapeError(f"[SGD] expected momentum above 0 for nesterov, got {momentum}")
        super().__init__(params, lr, {"weight_decay": weight_decay}, ("momentum",) if momentum else ())
        for group in self.groups:
            group.options["weight_decay"] = not_negative("SGD", "weight_decay", group.options["weight_decay"])

    def _update(self, parts: list[Part], grad_scale: Tensor | None, skip: Tensor | None) -> None:
        for part in parts:
            params, decay = part.params(), part.group.options["weight_decay"]
            if not self._momentum:
                _sgd(part.lr, params, part.grads, grad_scale=grad_scale, skip=skip, weight_decay=decay)
                continue
            _sgd_momentum(
                part.lr,
                params,
                part.grads,
                part.state("momentum"),
                grad_scale=grad_scale,
                skip=skip,
                momentum=self._momentum,
                nesterov=self._nesterov,
                weight_decay=decay,
            )
