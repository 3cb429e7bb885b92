"""The public operators, one Python function each, made from the native table when the module is imported.

Every function gets a real signature: its source is generated, compiled once, and does nothing but convert and call.
The stub beside this file (`_operators.pyi`) is generated from the same table by `python -m blutensor.stubs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from . import _calls, random
from ._table import OPERATORS, OperatorSpec

RESERVED_STATE = "state"  # a random operator's input: the generator's state, filled in when not given
RESERVED_OP_ID = "op_id"  # and its attribute: the number of the random operator in its step


def default_text(value: Any) -> str:
    """A default value as Python source."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return f'"{text}"'


def is_random(spec: OperatorSpec) -> bool:
    """Whether it draws random bits: it takes the generator's state and an op id."""
    # The module's own `any` is an operator.
    return RESERVED_STATE in [i.name for i in spec.inputs] and RESERVED_OP_ID in [a.name for a in spec.attrs]


def parameters(spec: OperatorSpec) -> list[tuple[str, str | None, str]]:
    """(name, default source or None, annotation) of the Python function's parameters, required ones first."""
    kinds = {
        "integer": "int",
        "floating": "float",
        "boolean": "bool",
        "integers": "int | Sequence[int]",
        "axes": "int | Sequence[int] | None",
        "dtype": "DType | str",
        "string": "str",
        "floats": "float | Sequence[float]",
    }
    required: list[tuple[str, str | None, str]] = []
    optional: list[tuple[str, str | None, str]] = []
    for i in spec.inputs:
        if is_random(spec) and i.name == RESERVED_STATE:
            continue
        if i.kind == "list":
            required.append((i.name, None, "Sequence[Tensor]"))
        elif i.kind == "optional_list":
            optional.append((i.name, "None", "Sequence[Tensor | None] | None"))
        elif i.kind == "optional":
            optional.append((i.name, "None", "Tensor | None"))
        else:
            required.append((i.name, None, "Tensor | Scalar" if i.accepts_scalar else "Tensor"))
    for a in spec.attrs:
        if is_random(spec) and a.name == RESERVED_OP_ID:
            continue
        annotation = kinds[a.kind]
        if a.choices:
            annotation = f"Literal[{', '.join(_quoted(c) for c in a.choices)}]"
        if a.required:
            required.append((a.name, None, annotation))
        else:
            optional.append((a.name, default_text(a.default), annotation))
    return required + optional


def result_annotation(spec: OperatorSpec) -> str:
    """Annotation of the Python function's result."""
    if spec.num_outputs == 1:
        return "Tensor"
    if spec.num_outputs < 0:
        return "list[Tensor]"
    return "None" if spec.num_outputs == 0 else f"tuple[{', '.join(['Tensor'] * spec.num_outputs)}]"


def _identifier(spec: OperatorSpec) -> str:
    """The name as an identifier: operators of other libraries may have dots in theirs."""
    return re.sub(r"\W", "_", f"_{spec.name}" if spec.name[:1].isdigit() else spec.name)


def _source(spec: OperatorSpec) -> str:
    for name, _, _ in parameters(spec):
        if not name.isidentifier():
            raise _calls.ShapeError(
                f"[{spec.name}] expected identifiers as names of inputs and attributes, got {name!r}"
            )
    signature = ", ".join(f"{n}={d}" if d is not None else n for n, d, _ in parameters(spec))
    lines = [f"def {_identifier(spec)}({signature}):"]
    fixed = [i for i in spec.inputs if not i.kind.endswith("list")]
    lists = [i for i in spec.inputs if i.kind.endswith("list")]
    scalars = [i.name for i in fixed if i.accepts_scalar]
    if is_random(spec):
        beside = next((i.name for i in spec.inputs if i.name != RESERVED_STATE), "None")
        lines.append(f"    {RESERVED_STATE}, {RESERVED_OP_ID} = _next_random({beside})")
    for i in fixed:
        if i.accepts_scalar or i.name == RESERVED_STATE:
            continue
        condition = f"{i.name} is not None and " if i.kind == "optional" else ""
        lines.append(f"    if {condition}type({i.name}) is not Tensor: _need({spec.name!r}, {i.name!r}, {i.name})")
    if scalars:
        names = ", ".join(scalars)
        test = " or ".join(f"type({n}) is not Tensor" for n in scalars)
        trailing = "," if len(scalars) == 1 else ""
        lines.append(f"    if {test}:")
        lines.append(f"        {names}{trailing} = _scalars({spec.name!r}, ({names},), {tuple(scalars)!r}, _full)")
    tensors = ", ".join(i.name for i in fixed)
    operands = f"({tensors},)" if fixed else "()"
    length = "0"
    if lists:
        operands = "(" + "".join(f"{i.name}, " for i in fixed) + ", ".join(f"*{i.name}" for i in lists) + ",)"
        length = f"len({lists[0].name})"
        for i in lists:
            if i.kind == "optional_list":
                lines.append(f"    if {i.name} is None: {i.name} = [None] * {length}")
        for i in lists[1:]:
            lines.append(f"    _same_length({spec.name!r}, {lists[0].name!r}, {lists[0].name}, {i.name!r}, {i.name})")
        for i in lists:
            condition = "_t is None or " if i.kind == "optional_list" else ""
            lines.append(f"    for _t in {i.name}: {condition}_need({spec.name!r}, {i.name!r}, _t)")
        if not fixed:
            lines.append(f"    if not {lists[0].name}: _empty_list({spec.name!r}, {lists[0].name!r})")
    attrs = f"_attrs({', '.join(a.name for a in spec.attrs)})" if spec.attrs else "None"
    if spec.num_outputs == 1 and not lists:
        lines.append(f"    return _one({spec.id}, {operands}, {attrs})")
    else:
        room = str(spec.num_outputs) if spec.num_outputs >= 0 else "_MAX_OUTPUTS"
        call = f"_invoke({spec.id}, {operands}, {attrs}, {room}, {length})"
        if spec.num_outputs == 1:
            lines.append(f"    return {call}[0]")
        elif spec.num_outputs == 0:
            lines.append(f"    {call}")
        else:
            lines.append(f"    return {call if spec.num_outputs < 0 else f'tuple({call})'}")
    return "\n".join(lines) + "\n"


def docstring(spec: OperatorSpec) -> str:
    """The docstring of the Python function."""
    lines = [spec.doc, ""]
    if not spec.differentiable:
        lines += ["Not differentiable.", ""]
    return "\n".join(lines).strip()


def _same_length(op: str, first: str, a: list[Any], second: str, b: list[Any]) -> None:
    if len(a) != len(b):
        raise _calls.ShapeError(
            f"[{op}] expected lists of one length, got {len(a)} for '{first}' and {len(b)} for '{second}'"
        )


def _empty_list(op: str, name: str) -> None:
    raise _calls.ShapeError(f"[{op}] expected at least one tensor in '{name}'")


def _need(op: str, name: str, value: object) -> None:
    _calls.need_tensor(op, name, value)  # a subclass passes


def build(spec: OperatorSpec) -> Callable[..., Any]:
    """The Python function of one operator."""
    namespace: dict[str, Any] = {
        "Tensor": _calls.Tensor,
        "_need": _need,
        "_scalars": _calls.scalars_to_tensors,
        "_full": _calls.full_on,
        "_attrs": _calls.AttrBuilder(spec),
        "_one": _calls.invoke_one,
        "_invoke": _calls.invoke,
        "_same_length": _same_length,
        "_empty_list": _empty_list,
        "_next_random": random.next_random,
        "_MAX_OUTPUTS": 1024,
    }
    from . import dtypes

    namespace |= {d.name: d for d in dtypes.ALL if d.name != "bool"}
    exec(compile(_source(spec), f"<operator {spec.name}>", "exec"), namespace)
    function: Callable[..., Any] = namespace[_identifier(spec)]
    function.__name__ = function.__qualname__ = spec.name
    function.__doc__ = docstring(spec)
    function.__module__ = __name__
    return function


# Operators that the package wraps in functions of the same name.
WRAPPED = (
    "arange", "argsort", "astype", "clip", "concat", "cross_entropy", "cumulative_prod", "cumulative_sum", "full",
    "index_write_", "layer_norm", "linear_cross_entropy", "matmul", "mlp", "prod", "qkv_attention", "reshape",
    "rms_norm", "rotary_embedding", "scaled_dot_product_attention", "searchsorted", "sum", "take_along_axis",
)  # fmt: skip

__all__ = [spec.name for spec in OPERATORS.values() if spec.public and spec.name not in WRAPPED]
globals().update({spec.name: build(spec) for spec in OPERATORS.values() if spec.public})


def private(name: str) -> Callable[..., Any]:
    """The Python function of an operator that has no public one (optimizers, cache writes)."""
    return build(OPERATORS[name])
