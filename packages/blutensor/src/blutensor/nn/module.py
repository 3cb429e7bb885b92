"""Module: a tree of parameters, buffers and submodules with a forward function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy.typing as npt

from .. import _arguments, dtypes
from .._arguments import flag, text
from .._calls import need_tensor
from .._naming import named
from ..errors import DTypeError, ShapeError
from ..interop import state_tensors
from ..tensor import Tensor
from .parameter import Parameter, replace_data


class Module:
    """Base of all layers and models; names and behaviour follow `torch.nn.Module`.

    Assigned `Parameter`s and `Module`s are registered under their attribute names; `register_buffer` adds tensors that
    are saved but not trained.
    """

    training: bool

    def __init__(self) -> None:
        object.__setattr__(self, "_parameters", {})
        object.__setattr__(self, "_buffers", {})
        object.__setattr__(self, "_modules", {})
        object.__setattr__(self, "training", True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise TypeError(f"{type(self).__name__} defines no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `forward`."""
        return self.forward(*args, **kwargs)

    # ---------------------------------------------------------------- registration

    def _registry(self, kind: str) -> dict[str, Any]:
        try:
            registry: dict[str, Any] = self.__dict__[kind]
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__}.__init__ must call super().__init__() before it assigns attributes"
            ) from None
        return registry

    def __setattr__(self, name: str, value: Any) -> None:
        kinds = {"_parameters": Parameter, "_modules": Module}
        for kind, cls in kinds.items():
            if isinstance(value, cls):
                for other in ("_parameters", "_buffers", "_modules"):
                    self._registry(other).pop(name, None)
                self.__dict__.pop(name, None)
                self._registry(kind)[name] = value
                return
        buffers = self.__dict__.get("_buffers", {})
        if name in buffers:
            if not isinstance(value, Tensor):
                raise DTypeError(f"[Module] expected a tensor for buffer '{name}', got {type(value).__name__}")
            buffers[name] = value
            return
        for kind in kinds:
            if name in self.__dict__.get(kind, {}):
                del self.__dict__[kind][name]
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for kind in ("_parameters", "_buffers", "_modules"):
            registry = self.__dict__.get(kind, {})
            if name in registry:
                return registry[name]
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        for kind in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(kind, {}):
                del self.__dict__[kind][name]
                return
        object.__delattr__(self, name)

    def register_buffer(self, name: str, value: Tensor) -> None:
        """A tensor that `state_dict` holds and no optimizer trains."""
        text("register_buffer", "name", name)
        need_tensor("register_buffer", "value", value)
        if "." in name or name in self._registry("_parameters") or name in self._registry("_modules"):
            raise ShapeError(f"[register_buffer] '{name}' is taken or contains a dot")
        self._registry("_buffers")[name] = value

    # ---------------------------------------------------------------- iteration

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, depth first."""
        seen: set[int] = set()

        def walk(module: Module, at: str) -> Iterator[tuple[str, Module]]:
            if id(module) in seen:
                return
            seen.add(id(module))
            yield at, module
            for name, child in module._registry("_modules").items():
                yield from walk(child, f"{at}.{name}" if at else name)

        yield from walk(self, prefix)

    def modules(self) -> Iterator[Module]:
        """`named_modules` without the names."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct submodules."""
        yield from self._registry("_modules").items()

    def children(self) -> Iterator[Module]:
        """`named_children` without the names."""
        return (m for _, m in self.named_children())

    def _named(self, kind: str, prefix: str) -> Iterator[tuple[str, Any]]:
        for path, module in self.named_modules(prefix):
            for name, value in module._registry(kind).items():
                yield (f"{path}.{name}" if path else name), value

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters, each once (a tied one under its first name)."""
        seen: set[int] = set()
        for name, p in self._named("_parameters", prefix):
            if id(p) not in seen:
                seen.add(id(p))
                yield name, p

    def parameters(self) -> Iterator[Parameter]:
        """`named_parameters` without the names."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """All buffers."""
        return self._named("_buffers", prefix)

    # ---------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by dotted name, sharing memory with the module (outside the graph)."""
        state: dict[str, Tensor] = {name: p.detach() for name, p in self.named_parameters()}
        state.update({name: b.detach() for name, b in self.named_buffers()})
        return state

    def load_state_dict(self, state: Mapping[str, Tensor | npt.NDArray[Any]], strict: bool = True) -> None:
        """Copies values into parameters and buffers. All problems are reported at once, before anything is written.

        Raises:
            ShapeError: Missing or unexpected names (with strict), or shapes that differ.
            DTypeError: Values that are neither tensors nor NumPy arrays.
        """
        strict = flag("load_state_dict", "strict", strict)
        own = self.state_dict()
        state = state_tensors("load_state_dict", state)
        problems = [f"missing '{n}'" for n in own if strict and n not in state]
        problems += [f"unexpected '{n}'" for n in state if strict and n not in own]
        problems += [
            f"'{n}' has shape {state[n].shape}, expected {t.shape}"
            for n, t in own.items()
            if n in state and state[n].shape != t.shape
        ]
        if problems:
            raise ShapeError(f"[load_state_dict] {'; '.join(problems)}")
        for name, tensor in own.items():
            if name in state:
                tensor.copy_(state[name].detach())

    def train(self, mode: bool = True) -> Self:
        """Training mode (dropout drops) for this module and all below it."""
        mode = flag("train", "mode", mode)
        for m in self.modules():
            object.__setattr__(m, "training", mode)
        return self

    def eval(self) -> Self:
        """Evaluation mode."""
        return self.train(False)

    @named("Module.to")
    def to(self, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Self:
        """Converts floating-point parameters and buffers, and moves all; objects stay the same, gradients are dropped.

        For training in bfloat16, keep the float32 values for the optimizer, which rounds to the parameters:

            masters = {name: p.detach() for name, p in model.named_parameters()}
            model.to("bfloat16")
            optimizer = AdamW(model.named_parameters(), masters=masters)

        Convert before a step is captured: a program keeps the memory that it was recorded with.

        Args:
            dtype: A floating-point dtype; None leaves dtypes as they are.
            device: "cpu" or "cuda:<index>"; None leaves everything where it is.

        Raises:
            DTypeError: A dtype that is not floating-point, or no name of a device.
            UnsupportedError: A device that cannot be used here.
        """
        target = None if dtype is None else dtypes.as_dtype(dtype)
        if target is not None and target.kind != "floating":
            raise DTypeError(f"[Module.to] expected a floating-point dtype, got {target.name}")
        tensors = {id(t): t for kind in ("_parameters", "_buffers") for _, t in self._named(kind, "")}
        for tensor in tensors.values():
            moved = tensor.detach().to(device)
            if target is not None and tensor.dtype.kind == "floating":
                moved = moved.astype(target)
            if moved.device != tensor.device or moved.dtype is not tensor.dtype:
                replace_data(tensor, moved)
        return self

    def requires_grad_(self, value: bool = True) -> Self:
        """Trains or freezes all parameters."""
        value = flag("requires_grad_", "value", value)
        for p in self.parameters():
            p.requires_grad = value
        return self

    def zero_grad(self, set_to_none: bool = False) -> None:
        """See `Optimizer.zero_grad`."""
        from ..optim.base import zero_grad

        zero_grad(self.parameters(), set_to_none)

    def apply(self, function: Callable[[Module], None]) -> Self:
        """Calls `function` with every module, children first."""
        _arguments.function("apply", "function", function)
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def extra_repr(self) -> str:
        """Shown between the parentheses of `repr`."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}({self.extra_repr()}\n  " + "\n  ".join(lines) + "\n)"
