"""Generates `_operators.pyi`, the typed signatures of the operators, from the native table.

python -m blutensor.stubs --write FILE      writes the stub
python -m blutensor.stubs --check FILE      exit status 1 when FILE is not what the table says
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from ._operators import WRAPPED, docstring, parameters, result_annotation
from ._table import OPERATORS, OperatorSpec

DEFAULT = Path(__file__).with_name("_operators.pyi")
WIDTH = 120

HEADER = '''"""Signatures of the operators, generated from the native table by `python -m blutensor.stubs --write`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, overload

from ._table import OperatorSpec
from .dtypes import DType
from .tensor import Scalar, Tensor

WRAPPED: tuple[str, ...]

def default_text(value: Any) -> str: ...
def is_random(spec: OperatorSpec) -> bool: ...
def parameters(spec: OperatorSpec) -> list[tuple[str, str | None, str]]: ...
def result_annotation(spec: OperatorSpec) -> str: ...
def docstring(spec: OperatorSpec) -> str: ...
def build(spec: OperatorSpec) -> Callable[..., Any]: ...
'''


def _default(text: str) -> str:
    return text if text in ("None", "True", "False") or text[0] in "\"'-0123456789" else "..."


def _arguments(spec: OperatorSpec, first: list[str]) -> list[str]:
    listed = list(first)
    for name, default, annotation in parameters(spec):
        listed.append(f"{name}: {annotation}" if default is None else f"{name}: {annotation} = {_default(default)}")
    return listed


def _wrapped(head: str, arguments: list[str], tail: str, indent: str) -> list[str]:
    """`head(arguments) tail` as ruff formats it."""
    line = f"{indent}{head}({', '.join(arguments)}){tail}"
    if len(line) <= WIDTH:
        return [line]
    inner = f"{indent}    {', '.join(arguments)}"
    if len(inner) <= WIDTH:
        return [f"{indent}{head}(", inner, f"{indent}){tail}"]
    return [f"{indent}{head}(", *(f"{indent}    {a}," for a in arguments), f"{indent}){tail}"]


def _comment(spec: OperatorSpec) -> list[str]:
    """The documentation, as comments: a stub has no docstrings."""
    text = " ".join(docstring(spec).split())
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)]


def _public(spec: OperatorSpec) -> list[str]:
    head = _wrapped(f"def {spec.name}", _arguments(spec, []), f" -> {result_annotation(spec)}: ...", "")
    return [*_comment(spec), *head]


def _protocol_name(spec: OperatorSpec) -> str:
    return (
        "_"
        + "".join(part.capitalize() for part in spec.name.strip("_").split("_"))
        + ("InPlace" if spec.name.endswith("_") else "")
    )


def _protocol(spec: OperatorSpec) -> list[str]:
    call = _wrapped("def __call__", _arguments(spec, ["self"]), f" -> {result_annotation(spec)}: ...", "    ")
    return ["", f"class {_protocol_name(spec)}(Protocol):", *call]


def render() -> str:
    """The text of the stub."""
    public = [spec for spec in OPERATORS.values() if spec.public and spec.category != "registered"]
    hidden = [s for s in OPERATORS.values() if s.category != "registered" and (not s.public or s.name in WRAPPED)]
    lines = HEADER.splitlines()
    lines += [
        "",
        "__all__ = [  # noqa: RUF022",
        *(f"    {_quoted(name)}," for name in sorted(spec.name for spec in public if spec.name not in WRAPPED)),
        "]",
    ]
    for spec in public:
        lines += ["", *_public(spec)]
    for spec in hidden:
        lines += _protocol(spec)
    lines.append("")
    for spec in hidden:
        lines += ["@overload", f"def private(name: Literal[{_quoted(spec.name)}]) -> {_protocol_name(spec)}: ..."]
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return f'"{name}"'


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m blutensor.stubs", description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the stub")
    action.add_argument("--check", action="store_true", help="compare it")
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT, help="the stub, beside this module by default")
    options = parser.parse_args(arguments)
    text = render()
    if options.write:
        options.file.write_text(text, encoding="utf-8")
        return 0
    if options.file.is_file() and options.file.read_text(encoding="utf-8") == text:
        return 0
    print(f"{options.file} is not what the operator table says; run python -m blutensor.stubs --write {options.file}")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
