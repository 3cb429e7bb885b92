"""What all optimizers share: groups of named parameters, learning rates on the device, state in a flat dictionary."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy.typing as npt

from .. import _native, dtypes
from .._arguments import flag, not_negative, text
from .._calls import need_tensor
from .._naming import named
from .._operators import private
from ..autograd import no_grad
from ..creation import full, zeros
from ..dtypes import described
from ..errors import DTypeError, ShapeError
from ..interop import state_tensors
from ..tensor import Tensor

_increment_step = private("increment_step_")

_T = TypeVar("_T")

Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Mapping[str, Any]]


@named("zero_grad")
def zero_grad(params: Iterable[Tensor], set_to_none: bool = False) -> None:
    """Keeps the gradient buffers and marks them stale: the next backward overwrites them, and reading gives zeros.

    Args:
        params: Leaves.
        set_to_none: Drop the buffers instead.
    """
    lib, set_to_none = _native.lib, flag("zero_grad", "set_to_none", set_to_none)
    for p in params:
        if set_to_none:
            need_tensor("zero_grad", "params", p).grad = None
        else:
            _native.check(lib.blutensor_mark_grad_stale(need_tensor("zero_grad", "params", p)._handle))


def fresh_grad(p: Tensor) -> Tensor | None:
    """The gradient of a leaf unless there is none or it is stale."""
    fresh = ctypes.c_int32()
    _native.check(_native.lib.blutensor_has_fresh_grad(p._handle, ctypes.byref(fresh)))
    return p.grad if fresh.value else None


def state_dtype(p: Tensor) -> dtypes.DType:
    """The dtype of the optimizer's tensors for a parameter, and of its gradient."""
    return dtypes.float32 if p.dtype is dtypes.bfloat16 else p.dtype


class Group:
    """Parameters that share options.

    Attributes:
        names: One per parameter.
        params: The parameters.
        options: Hyperparameters other than the learning rate (floats and booleans).
        lr: Learning rate, 0-d float64 on the device.
        state: Per state name, a tensor per parameter.
        masters: Of an optimizer that has them: per parameter, its float32 master or None.
    """

    def __init__(self, names: list[str], params: list[Tensor], lr: float, options: dict[str, Any]) -> None:
        self.names, self.params, self.options = names, params, options
        self.lr = full((), lr, dtype=dtypes.float64, device=params[0].device if params else None)
        self.state: dict[str, list[Tensor]] = {}
        self.masters: list[Tensor | None] = []


@dataclass(frozen=True)
class Part:
    """Of one group, the parameters that a step updates.

    Attributes:
        group: The group.
        indices: Which of its parameters.
        grads: Their gradients.
        lr: 0-d.
    """

    group: Group
    indices: list[int]
    grads: list[Tensor]
    lr: Tensor

    def params(self) -> list[Tensor]:
        """The parameters."""
        return select(self.group.params, self.indices)

    def state(self, name: str) -> list[Tensor]:
        """Their state tensors of a name."""
        return select(self.group.state[name], self.indices)


class Optimizer:
    """Base of the optimizers. State is allocated at construction, so that captured steps find it in place.

    Args:
        params: Tensors, (name, tensor) pairs, or dictionaries {"params": ..., "lr": ..., other options} (groups).
        lr: Default learning rate.
        options: Default options of the subclass.
        state_names: Names of the per-parameter state tensors, zeros at the start (float32 for bfloat16 parameters).

    Raises:
        ShapeError: No parameters, one twice, unknown options, or a negative or not finite learning rate.
        DTypeError: Something that is no tensor of a dtype in `param_dtypes`, or a learning rate that is no number.
    """

    #: What parameters may be.
    param_dtypes: tuple[dtypes.DType, ...] = (dtypes.float32, dtypes.float64)

    def __init__(self, params: Params, lr: float, options: dict[str, Any], state_names: Sequence[str]) -> None:
        self._name = type(self).__name__
        entries: list[Any] = list(params)
        if not entries:
            raise ShapeError(f"[{self._name}] expected at least one parameter, got none")
        groups = entries if isinstance(entries[0], Mapping) else [{"params": entries}]
        self.groups: list[Group] = []
        seen: dict[int, str] = {}
        for g, entry in enumerate(groups):
            own = dict(entry)
            if "params" not in own or not isinstance(own["params"], Iterable):
                raise ShapeError(f"[{self._name}] expected 'params' in group {g}, an iterable, got {described(own)}")
            listed = list(own.pop("params"))
            rate = own.pop("lr", lr)
            unknown = sorted(set(own) - set(options))
            if unknown:
                raise ShapeError(
                    f"[{self._name}] unknown options {unknown} in group {g}; expected {sorted(options)} or lr"
                )
            rate = not_negative(self._name, "learning rate", rate)
            names, tensors = [], []
            for i, item in enumerate(listed):
                name, p = item if isinstance(item, tuple) and len(item) == 2 else (f"{g}.{i}", item)
                text(self._name, "the name of a parameter", name)
                if not isinstance(p, Tensor) or p.dtype not in self.param_dtypes:
                    what = p.dtype.name if isinstance(p, Tensor) else type(p).__name__
                    expected = " or ".join(d.name for d in self.param_dtypes)
                    raise DTypeError(f"[{self._name}] expected {expected} tensors, '{name}' is {what}")
                if id(p) in seen:
                    raise ShapeError(f"[{self._name}] parameter '{name}' is already there as '{seen[id(p)]}'")
                if name in seen.values():
                    raise ShapeError(f"[{self._name}] expected every name once, got '{name}' twice")
                seen[id(p)] = name
                names.append(name)
                tensors.append(p)
            group = Group(names, tensors, rate, options | own)
            group.state = {
                s: [zeros(p.shape, dtype=state_dtype(p), device=p.device) for p in tensors] for s in state_names
            }
            self.groups.append(group)
        #: Steps taken (skipped ones do not count): 0-d int64 on the device.
        self.step_count = zeros((), dtype=dtypes.int64, device=self.groups[0].lr.device)

    @property
    def lr(self) -> float:
        """Learning rate of the first group; assigning sets it for all."""
        return float(self.groups[0].lr.item())

    @lr.setter
    def lr(self, value: float) -> None:
        rate = not_negative(self._name, "learning rate", value)
        for group in self.groups:
            group.lr.fill_(rate)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """See `zero_grad`: by default the buffers stay and the next backward overwrites them."""
        for group in self.groups:
            zero_grad(group.params, set_to_none)

    def step(
        self, *, lr: Tensor | float | None = None, grad_scale: Tensor | None = None, skip: Tensor | None = None
    ) -> None:
        """One step in place. Parameters without a fresh gradient are left alone.

        Args:
            lr: Learning rate of this step for all groups: 0-d tensor (captures read it on the device) or a number. By
                default each group's.
            grad_scale: 0-d; gradients are multiplied by it.
            skip: 0-d; when not zero on the device, nothing is written.
        """
        rate = lr
        if rate is not None and not isinstance(rate, Tensor):
            value = not_negative(f"{self._name}.step", "learning rate", rate)
            rate = full((), value, dtype=dtypes.float64, device=self.step_count.device)
        with no_grad():
            _increment_step(self.step_count, skip)
            parts = []
            for group in self.groups:
                pairs = [(i, g) for i, p in enumerate(group.params) if (g := fresh_grad(p)) is not None]
                if pairs:
                    indices, grads = [i for i, _ in pairs], [g for _, g in pairs]
                    parts.append(Part(group, indices, grads, group.lr if rate is None else rate))
            if parts:
                self._update(parts, grad_scale, skip)

    def _update(self, parts: list[Part], grad_scale: Tensor | None, skip: Tensor | None) -> None:
        raise TypeError(f"{self._name} defines no update")

    def state_dict(self) -> dict[str, Tensor]:
        """`step`, and `<state>.<parameter name>` per parameter: the optimizer's own tensors, sharing memory."""
        state = {"step": self.step_count}
        for group in self.groups:
            for kind, tensors in group.state.items():
                state.update({f"{kind}.{name}": t for name, t in zip(group.names, tensors, strict=True)})
        return state

    def load_state_dict(self, state: Mapping[str, Tensor | npt.NDArray[Any]]) -> None:
        """Copies values into the optimizer's tensors. All problems are reported at once, before anything is written.

        Raises:
            ShapeError: Missing or unexpected names, or shapes that differ.
            DTypeError: Values that are neither tensors nor NumPy arrays.
        """
        own = self.state_dict()
        state = state_tensors(f"{self._name}.load_state_dict", state)
        problems = [f"missing '{n}'" for n in own if n not in state] + [
            f"unexpected '{n}'" for n in state if n not in own
        ]
        problems += [
            f"'{n}' has shape {state[n].shape}, expected {t.shape}"
            for n, t in own.items()
            if n in state and state[n].shape != t.shape
        ]
        if problems:
            raise ShapeError(f"[{self._name}.load_state_dict] {'; '.join(problems)}")
        for name, tensor in own.items():
            tensor.copy_(state[name])


def select(tensors: list[_T], indices: list[int]) -> list[_T]:
    """Elements by index."""
    return [tensors[i] for i in indices]
