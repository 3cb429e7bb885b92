"""AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar

import numpy.typing as npt

from .. import _native, dtypes
from .._arguments import not_negative, number
from .._naming import named
from .._operators import private
from ..autograd import no_grad
from ..errors import DTypeError, ShapeError
from ..tensor import Tensor
from .base import Group, Optimizer, Params, Part, select

_adamw = private("adamw_")

_T = TypeVar("_T")


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), all parameters in one pass.

    The formulas are those of `torch.optim.AdamW`.

    A bfloat16 parameter has a float32 master, which is what each step updates; the parameter is the master, rounded to
    nearest even. Its gradient is kept in float32 from now on (a gradient that it has is dropped). `state_dict` holds
    the masters as `master.<parameter name>`, and loading them writes the parameters too.

    Args:
        params: As for `Optimizer`; groups may set betas, eps and weight_decay.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the square root of the second moment.
        weight_decay: Each step multiplies parameters by 1 - lr * weight_decay.
        masters: float32 values of bfloat16 parameters by name, from before they were rounded; their memory becomes the
            masters'. A parameter without an entry starts from its rounded values.

    Raises:
        ShapeError: As for `Optimizer`, or masters of names or shapes that no bfloat16 parameter has.
        DTypeError: As for `Optimizer`, or masters that are not float32.
    """

    param_dtypes = (dtypes.float32, dtypes.float64, dtypes.bfloat16)

    @named("AdamW")
    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        masters: Mapping[str, Tensor] | None = None,
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
        self._make_masters({} if masters is None else dict(masters))

    def _make_masters(self, given: dict[str, Tensor]) -> None:
        problems: list[str] = []
        for group in self.groups:
            for name, p in zip(group.names, group.params, strict=True):
                if p.dtype is not dtypes.bfloat16:
                    group.masters.append(None)
                    continue
                _native.check(_native.lib.blutensor_set_grad_dtype(p._handle, dtypes.float32.number))
                master = given.pop(name, None)
                if master is None:
                    master = p.detach().astype(dtypes.float32)
                elif not isinstance(master, Tensor) or master.dtype is not dtypes.float32:
                    what = master.dtype.name if isinstance(master, Tensor) else type(master).__name__
                    raise DTypeError(f"[AdamW] expected float32 masters, '{name}' is {what}")
                elif master.shape != p.shape or master.device != p.device:
                    problems.append(
                        f"master '{name}' is {master.shape} on {master.device}, the parameter {p.shape} on {p.device}"
                    )
                group.masters.append(master.detach())
        problems += [f"master '{name}' belongs to no bfloat16 parameter" for name in given]
        if problems:
            raise ShapeError(f"[AdamW] {'; '.join(problems)}")
        self._write_params()

    def _write_params(self) -> None:
        with no_grad():
            for group in self.groups:
                for p, master in zip(group.params, group.masters, strict=True):
                    if master is not None:
                        p.copy_(master)

    def state_dict(self) -> dict[str, Tensor]:
        """As `Optimizer.state_dict`, with `master.<parameter name>` for bfloat16 parameters."""
        state = super().state_dict()
        for group in self.groups:
            named = zip(group.names, group.masters, strict=True)
            state.update({f"master.{name}": master for name, master in named if master is not None})
        return state

    def load_state_dict(self, state: Mapping[str, Tensor | npt.NDArray[Any]]) -> None:
        """As `Optimizer.load_state_dict`; bfloat16 parameters are written from their masters."""
        super().load_state_dict(state)
        self._write_params()

    def _update(self, parts: list[Part], grad_scale: Tensor | None, skip: Tensor | None) -> None:
        _adamw(
            self.step_count,
            params=_joined(part.params() for part in parts),
            grads=_joined(part.grads for part in parts),
            exp_avgs=_joined(part.state("exp_avg") for part in parts),
            exp_avg_sqs=_joined(part.state("exp_avg_sq") for part in parts),
            masters=_joined(select(part.group.masters, part.indices) for part in parts),
            lrs=_joined([part.lr] * len(part.indices) for part in parts),
            grad_scale=grad_scale,
            skip=skip,
            beta1=_setting(parts, lambda group: group.options["betas"][0]),
            beta2=_setting(parts, lambda group: group.options["betas"][1]),
            eps=_setting(parts, lambda group: group.options["eps"]),
            weight_decay=_setting(parts, lambda group: group.options["weight_decay"]),
        )


def _joined(lists: Iterable[list[_T]]) -> list[_T]:
    return list(chain.from_iterable(lists))


def _setting(parts: list[Part], of: Callable[[Group], float]) -> float | tuple[float, ...]:
    """One number if the groups agree, else one for each parameter."""
    values = [of(part.group) for part in parts]
    if len(set(values)) == 1:
        return values[0]
    return tuple(_joined([value] * len(part.indices) for value, part in zip(values, parts, strict=True)))
