"""A call that works of every public function, for tests that change one argument of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import nn, optim
from blutensor._table import OPERATORS

Arguments = dict[str, Any]


def x() -> bt.Tensor:
    return bt.arange(6, dtype="float32").reshape(2, 3)


def i() -> bt.Tensor:
    return bt.arange(6).reshape(2, 3)


def b() -> bt.Tensor:
    return bt.ones((2, 3), dtype="bool")


def t() -> bt.Tensor:
    """[3, 2]."""
    return bt.ones((3, 2))


def ids() -> bt.Tensor:
    return bt.asarray(np.array([0, 1]))


def q() -> bt.Tensor:
    return bt.ones((1, 2, 3, 4))


def leaf() -> bt.Tensor:
    return x().requires_grad_()


def loss() -> bt.Tensor:
    return (leaf() * 2).sum()


# What a parameter of a name is in a call, where the table below says nothing else.
USUAL: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("x", "a", "b", "x1", "x2", "source", "other", "condition", "logits", "weight"), x),
    **dict.fromkeys(("tensor", "self", "w1"), x),
    **dict.fromkeys(("q", "k", "v", "k_cache", "v_cache"), q),
    **dict.fromkeys(("ids", "targets"), ids),
    **dict.fromkeys(("shape", "num", "n_rows", "stop", "normalized_shape", "num_heads"), lambda: 3),
    **dict.fromkeys(("start", "seed", "axis", "axis0", "axis1", "value", "number"), lambda: 0),
    "dtype": lambda: "float64",
    "device": lambda: "cpu",
    "type": lambda: "float32",
}
CALLS: dict[str, Callable[[], Arguments]] = {
    "attention_decode": lambda: {
        "query": bt.ones((1, 2, 1, 4)), "key_cache": q(), "value_cache": q(), "position": bt.asarray(1)
    },
    "nn.functional.attention_decode": lambda: {
        "q": bt.ones((1, 2, 1, 4)), "k_cache": q(), "v_cache": q(), "position": bt.asarray(1)
    },
    "backward": lambda: {"roots": [loss()]},
    "broadcast_arrays": lambda: {"arrays": (x(), x())},
    "broadcast_shapes": lambda: {"shapes": ((2, 3), (3,))},
    "broadcast_to": lambda: {"x": x(), "shape": (2, 2, 3)},
    "can_cast": lambda: {"from_": "int8", "to": "int16"},
    "concat": lambda: {"tensors": [x(), x()]},
    "cumulative_prod": lambda: {"x": x(), "axis": 0},
    "cumulative_sum": lambda: {"x": x(), "axis": 0},
    "einsum": lambda: {"subscripts": "ij->ji", "operands": (x(),)},
    "fill_": lambda: {"x": x(), "value": 1.0},
    "full": lambda: {"shape": (2,), "fill_value": 1.0},
    "full_like": lambda: {"x": x(), "fill_value": 1.0},
    "grad": lambda: (lambda a: {"outputs": (a * 2).sum(), "inputs": a})(leaf()),
    "iinfo": lambda: {"type": "int8"},
    "index_write_": lambda: {"target": x(), "source": bt.ones((1, 3)), "position": bt.asarray(0), "axis": 0},
    "isdtype": lambda: {"dtype": bt.float32, "kind": "numeric"},
    "linspace": lambda: {"start": 0, "stop": 1, "num": 3},
    "matmul": lambda: {"x1": x(), "x2": t()},
    "meshgrid": lambda: {"arrays": (bt.ones(2), bt.ones(3))},
    "mlp": lambda: {"x": x(), "w1": x(), "b1": None, "w2": bt.ones((3, 2)), "b2": None},
    "moveaxis": lambda: {"x": x(), "source": 0, "destination": 1},
    "outer": lambda: {"x1": bt.ones(2), "x2": bt.ones(3)},
    "permute_dims": lambda: {"x": x(), "axes": (1, 0)},
    "qkv_attention": lambda: {"qkv": bt.ones((1, 2, 12)), "num_heads": 2},
    "repeat": lambda: {"x": x(), "repeats": 2},
    "reshape": lambda: {"x": x(), "shape": (3, 2)},
    "result_type": lambda: {"arrays_and_dtypes": (bt.float32, 1)},
    "roll": lambda: {"x": x(), "shift": 1},
    "rotary_embedding": lambda: {"x": q()},
    "searchsorted": lambda: {"x1": bt.arange(3, dtype="float32"), "x2": x()},
    "slice": lambda: {"x": x(), "start": (0, 0), "length": (1, 1), "step": (1, 1)},
    "split": lambda: {"x": x(), "sections": (1, 1)},
    "squeeze": lambda: {"x": bt.ones((2, 1)), "axis": 1},
    "stack": lambda: {"tensors": [x(), x()]},
    "take": lambda: {"x": x(), "indices": ids(), "axis": 0},
    "take_along_axis": lambda: {"x": x(), "indices": bt.zeros((2, 3), dtype="int64")},
    "tensordot": lambda: {"x1": x(), "x2": t(), "axes": 1},
    "tile": lambda: {"x": x(), "repetitions": (2, 1)},
    "where": lambda: {"condition": b(), "a": x(), "b": x()},
    **{f"bitwise_{n}": lambda: {"a": i(), "b": i()} for n in ("and", "or", "xor", "left_shift", "right_shift")},
    **{f"logical_{n}": lambda: {"a": b(), "b": b()} for n in ("and", "or", "xor")},
    "bitwise_invert": lambda: {"x": i()},
    "logical_not": lambda: {"x": b()},
    "Tensor.requires_grad_": lambda: {"self": x()},
    "Tensor.reshape": lambda: {"self": x(), "shape": ((3, 2),)},
    "Tensor.permute_dims": lambda: {"self": x(), "axes": ((1, 0),)},
    "Tensor.backward": lambda: {"self": loss()},
    "clip_grad_norm_": lambda: {"params": [trained()], "max_norm": 1.0},
    "grad_norm": lambda: {"params": [trained()]},
    "clip_scale": lambda: {"norm": bt.asarray(1.0), "max_norm": 1.0},
    "SGD.__init__": lambda: {"params": [leaf()], "momentum": 0.5},
    "Optimizer.zero_grad": lambda: {"self": optim.SGD([leaf()])},
    "AdamW.__init__": lambda: {"params": [leaf()]},
    "Parameter.__new__": lambda: {"data": x()},
    "Linear.__init__": lambda: {"in_features": 3, "out_features": 2},
    "Embedding.__init__": lambda: {"num_embeddings": 3, "embedding_dim": 2},
    "Module.load_state_dict": lambda: {"self": nn.Linear(3, 2), "state": nn.Linear(3, 2).state_dict()},
    "Module.train": lambda: {"self": nn.Linear(3, 2)},
    "Module.requires_grad_": lambda: {"self": nn.Linear(3, 2)},
    "Module.zero_grad": lambda: {"self": nn.Linear(3, 2)},
    "ProgramFamily.run": lambda: {"self": bt.ProgramFamily(), "steps": 0, "schedule": []},
}  # fmt: skip


def trained() -> bt.Tensor:
    a = leaf()
    (a * 2).sum().backward()
    return a


# Functions of functions, of the process or of contexts: nothing here calls them.
OTHERS = (
    "capture", "custom_gradient", "default_device", "enable_grad", "float32_math", "get_default_device", "gradcheck",
    "graph_stats", "is_capturing", "is_grad_enabled", "isa", "no_grad", "num_threads", "own_generator", "recompute",
    "register_operator", "registered", "set_default_device", "set_float32_math", "set_isa", "set_num_threads",
)  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    """The public functions by name, but for OTHERS; of two of one name the second with its module."""
    found: dict[str, Callable[..., Any]] = {}
    for module in (bt, F, optim):
        for name in getattr(module, "__all__", None) or vars(module):
            f = getattr(module, name)
            if not inspect.isfunction(f) or name in OTHERS or name.startswith("_") or not _is_defined_in(f, module):
                continue
            if found.setdefault(name, f) is not f:
                found[f"{module.__name__.removeprefix('blutensor.')}.{name}"] = f
    return found


def _is_defined_in(function: Callable[..., Any], module: Any) -> bool:
    """Whether a module without `__all__` has it not only by importing it for itself."""
    return hasattr(module, "__all__") or function.__module__ in (module.__name__, "blutensor.nn.rotary")


def methods() -> dict[str, Callable[..., Any]]:
    """Public methods and constructors of the public classes, by qualified name."""
    classes: dict[str, type] = {}
    for module in (bt, nn, optim):
        classes |= {n: c for n, c in vars(module).items() if inspect.isclass(c) and not n.startswith("_")}
    own = {n: c for n, c in classes.items() if c.__module__.startswith("blutensor")}
    return {
        f"{n}.{m}": f
        for n, c in own.items()
        for m, f in vars(c).items()
        if inspect.isfunction(f) and (not m.startswith("_") or m == ("__new__" if "__new__" in vars(c) else "__init__"))
    } | {f"Tensor.{m}": getattr(bt.Tensor, m) for m in dir(bt.Tensor) if not m.startswith("_")
         and inspect.isfunction(getattr(bt.Tensor, m))}  # fmt: skip


def arguments(name: str, function: Callable[..., Any]) -> Arguments:
    """Arguments with which the call works."""
    sample = CALLS.get(name, CALLS.get(name.removeprefix("nn.functional.")))
    if sample is not None:
        return sample()
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    plain = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: USUAL[p.name]() for p in needed if p.kind not in plain and p.name != "cls"}


def call(name: str, function: Callable[..., Any], **changed: Any) -> Any:
    """The call with some arguments changed; `self` is the object of a method."""
    signature = inspect.signature(function)
    given = signature.bind_partial()
    given.arguments.update(arguments(name, function) | changed)
    if name.endswith(".__init__"):
        owner = next(getattr(m, name[:-9]) for m in (bt, nn, optim) if hasattr(m, name[:-9]))
        return owner(**{n: v for n, v in given.arguments.items() if n != "self"})
    if name.endswith(".__new__"):
        return nn.Parameter(**given.arguments)
    order = [p for p in signature.parameters if p in given.arguments]
    given.arguments = {p: given.arguments[p] for p in order}
    return function(*given.args, **given.kwargs)


def flags() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Name, flag and function of every public function that has a flag."""
    for name, function in (functions() | methods()).items():
        spec = OPERATORS.get(name)
        if spec is not None and function.__module__ == "blutensor._operators":  # made from the table, not annotated
            yield from ((name, a.name, function) for a in spec.attrs if a.kind == "boolean")
            continue
        for p in inspect.signature(function).parameters.values():
            if str(p.annotation) in ("bool", "bool | None"):
                yield name, p.name, function
