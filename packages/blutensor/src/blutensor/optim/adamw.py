"""AdamW."""

from __future__ import annotations

from .._arguments import not_negative, number
from .._operators import private
from ..errors import DTypeError, ShapeError
from ..tensor import Tensor
from .base import Group, Optimizer, Params, select

_adamw = private("adamw_")


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), all parameters of a group in one pass.

    The formulas are those of `torch.optim.AdamW`.

    Args:
        params: As for `Optimizer`; groups may set betas, eps and weight_decay.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the square root of the second moment.
        weight_decay: Each step multiplies parameters by 1 - lr * weight_decay.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, lr, options, ("exp_avg", "exp_avg_sq"))
        for group in self.groups:
            given = group.options["betas"]
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise DTypeError(f"[AdamW] expected a pair of numbers for betas, got {given!r}")
            if not all(0.0 <= number("AdamW", "betas", b) < 1.0 for b in given):
                raise ShapeError(f"[AdamW] expected betas from 0 to below 1, got {given}")
            for name in ("eps", "weight_decay"):
                group.options[name] = not_negative("AdamW", name, group.options[name])

    def _update(
        self,
        group: Group,
        indices: list[int],
        grads: list[Tensor],
        lr: Tensor,
        grad_scale: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        beta1, beta2 = group.options["betas"]
        _adamw(
            lr,
            self.step_count,
            params=select(group.params, indices),
            grads=grads,
            exp_avgs=select(group.state["exp_avg"], indices),
            exp_avg_sqs=select(group.state["exp_avg_sq"], indices),
            grad_scale=grad_scale,
            skip=skip,
            beta1=beta1,
            beta2=beta2,
            eps=group.options["eps"],
            weight_decay=group.options["weight_decay"],
        )
