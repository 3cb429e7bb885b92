"""The native operator table, as Python objects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from . import _native

ATTR_KINDS = {
    "integer": 0,
    "floating": 1,
    "boolean": 2,
    "integers": 3,
    "dtype": 4,
    "string": 5,
    "floats": 6,
    "axes": 7,
}


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An operand: `kind` is "required", "optional", "list" or "optional_list" (entries may be None)."""

    name: str
    kind: str
    written: bool
    accepts_scalar: bool


@dataclass(frozen=True, slots=True)
class AttrSpec:
    """An attribute: `kind` is a key of ATTR_KINDS. None among axes means all of them."""

    name: str
    kind: str
    required: bool
    default: Any
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GradCase:
    """A gradient check that the table asks for: input shapes, attribute values, how inputs are drawn."""

    shapes: tuple[tuple[int, ...], ...]
    attrs: tuple[Any, ...]
    domain: str


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """One row of the operator table."""

    id: int
    name: str
    doc: str
    category: str
    public: bool
    view: bool
    composite: bool
    differentiable: bool
    effect: str
    lane: str
    inputs: tuple[InputSpec, ...]
    attrs: tuple[AttrSpec, ...]
    num_outputs: int
    outputs: tuple[str, ...]
    grad_cases: tuple[GradCase, ...]


def _number(kind: str, value: Any) -> Any:
    if kind == "floating":
        return float(value)
    if kind == "floats":
        return tuple(float(v) for v in value)
    return tuple(value) if isinstance(value, list) else value


def _row(row: dict[str, Any]) -> OperatorSpec:
    attrs = tuple(
        AttrSpec(a["name"], a["kind"], a["required"], _number(a["kind"], a["default"]), tuple(a["choices"]))
        for a in row["attrs"]
    )
    cases = tuple(
        GradCase(
            tuple(tuple(s) for s in c["shapes"]),
            tuple(_number(spec.kind, value) for spec, value in zip(attrs, c["attrs"], strict=False)),
            c["domain"],
        )
        for c in row["grad_cases"]
    )
    plain = {k: row[k] for k in ("id", "name", "doc", "category", "public", "view", "composite", "differentiable")}
    return OperatorSpec(
        **plain,
        effect=row["effect"],
        lane=row["lane"],
        inputs=tuple(InputSpec(**i) for i in row["inputs"]),
        attrs=attrs,
        num_outputs=row["num_outputs"],
        outputs=tuple(row["outputs"]),
        grad_cases=cases,
    )


def load() -> dict[str, OperatorSpec]:
    """All operators by name, in the order of the table.

    Raises:
        RuntimeError: The native table could not be read.
    """
    text: bytes = _native.lib.blutensor_operator_table()
    if not text:
        raise RuntimeError(_native.last_error())
    return {row["name"]: _row(row) for row in json.loads(text)}


OPERATORS = load()
