"""The generated pages of the documentation: command line, configuration, operators, and the packages' public names.

Each function returns a page's text, made from what is installed: click's commands, dataclasses and their docstrings,
the native operator table, ``__all__``. Nothing of it is kept in the repository.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

PACKAGES = ("blualloc", "blublas", "blutensor", "blutrain")
_SPECIAL = re.compile(r"[*_\[\]<]")
_CODE = re.compile(r"(`[^`]*`)")
_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", tuple: "a list of texts"}

# ---- command line ----------------------------------------------------------------------------------------------


def commands() -> dict[str, tuple[click.Command, click.Context]]:
    """Every command of ``blutrain`` by its whole name, the program itself first."""
    from blutrain.cli import cli

    return dict(_walk(cli, click.Context(cli, info_name="blutrain", **cli.context_settings)))


def options_of(command: click.Command) -> set[str]:
    """Every flag that a command takes, but for ``--help``."""
    return {
        flag
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }


def command_page() -> str:
    """Markdown: what every command takes."""
    lines = ["# Command line", "", "Every command also has `-h` and `--help`.", ""]
    for name, (command, context) in commands().items():
        lines += [f"## `{name}`", "", f"    {name} {' '.join(command.collect_usage_pieces(context))}", ""]
        lines += [inspect.cleandoc(command.help or ""), ""]
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if record is not None and record[1]:
                lines.append(f"- `{record[0]}`: {_escaped(record[1])}")
        lines.append("")
    return "\n".join(lines)


def _walk(command: click.Command, context: click.Context) -> Iterator[tuple[str, tuple[click.Command, click.Context]]]:
    yield context.command_path, (command, context)
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from _walk(child, click.Context(child, parent=context, info_name=name, **child.context_settings))


# ---- configuration ---------------------------------------------------------------------------------------------


def field_docs(cls: type) -> dict[str, str]:
    """The docstring of every field of a dataclass: the text below it in its source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[name] = " ".join(meaning.split())
    return found


def configuration_page() -> str:
    """Markdown: every key with type, default and meaning, and what the presets set."""
    from blutrain.config import Config
    from blutrain.presets import PRESETS

    base = Config()
    lines = ["# Configuration", "", "Keys of a run's TOML file, and of `--set section.key=value`.", ""]
    for section in dataclasses.fields(Config):
        values = getattr(base, section.name)
        docs = field_docs(type(values))
        lines += [f"## `[{section.name}]`", "", " ".join((inspect.getdoc(type(values)) or "").split()), ""]
        for field in dataclasses.fields(values):
            value = getattr(values, field.name)
            kind = _KINDS[type(value)]
            text = docs.get(field.name, "")
            lines.append(f"- `{section.name}.{field.name}` ({kind}, default `{_toml(value)}`): {text}")
        lines.append("")
    lines += ["## Presets", "", "What a preset sets beside the defaults; `run.folder` is `runs/<preset>`.", ""]
    for name, preset in PRESETS.items():
        changed = ", ".join(f"`{key} = {_toml(value)}`" for key, value in _differences(base, preset).items())
        lines.append(f"- `{name}`: {changed}")
    return "\n".join([*lines, ""])


def _differences(base: Any, other: Any) -> dict[str, Any]:
    return {
        f"{section.name}.{field.name}": getattr(getattr(other, section.name), field.name)
        for section in dataclasses.fields(base)
        for field in dataclasses.fields(getattr(base, section.name))
        if getattr(getattr(other, section.name), field.name) != getattr(getattr(base, section.name), field.name)
        and f"{section.name}.{field.name}" != "run.folder"
    }


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# ---- operators -------------------------------------------------------------------------------------------------


def operator_page() -> str:
    """Markdown: every row of the operator table, public ones with their signatures."""
    from blutensor._table import OPERATORS

    rows = [spec for spec in OPERATORS.values() if spec.category != "registered"]
    lines = [
        *("# Operators", ""),
        f"The {len(rows)} rows of the native operator table, from which the Python functions, their stubs and the",
        "gradient checks are made. `blutensor.<name>` calls one; those under *Called by others* have no function of",
        *("their own and stand here because Programs show them.", ""),
    ]
    for category in dict.fromkeys(spec.category for spec in rows if spec.public):
        lines += [f"## {category}", ""]
        for spec in rows:
            if spec.category == category and spec.public:
                lines += _operator(spec)
    lines += ["## Called by others", ""]
    lines += [f"- `{spec.name}`: {_escaped(' '.join(spec.doc.split()))}" for spec in rows if not spec.public]
    return "\n".join([*lines, ""])


def _operator(spec: Any) -> list[str]:
    from blutensor._operators import parameters, result_annotation

    arguments = [
        f"{name}: {annotation}" + ("" if default is None else f" = {default}")
        for name, default, annotation in parameters(spec)
    ]
    facts = ["a view of its input"] if spec.view else []
    facts += ["made of other operators"] if spec.composite else []
    facts += [] if spec.differentiable else ["no gradient"]
    facts += [f"writes into `{entry.name}`" for entry in spec.inputs if entry.written]
    told = f" ({', '.join(facts)})" if facts else ""
    return [
        *(f"### `{spec.name}`", "", "```python"),
        *(f"{spec.name}({', '.join(arguments)}) -> {result_annotation(spec)}", "```", ""),
        *(f"{_escaped(' '.join(spec.doc.split()))}{told}", ""),
    ]


# ---- packages --------------------------------------------------------------------------------------------------

_MODULES: Mapping[str, tuple[str, ...]] = {
    "blualloc": ("blualloc.torch",),
    "blublas": (),
    "blutensor": (
        *("blutensor.nn", "blutensor.nn.functional", "blutensor.nn.init", "blutensor.optim", "blutensor.random"),
        "blutensor.cuda",
    ),
    "blutrain": (
        *("blutrain.config", "blutrain.errors", "blutrain.console", "blutrain.huggingface", "blutrain.comparison"),
        "blutrain.loggers",
    ),
}
"""Public modules of each package beside the package itself."""


def public_names(module: str) -> list[str]:
    """What a module's documentation lists: ``__all__``, else what it defines; operators have a page of their own."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        names = [name for name, value in vars(loaded).items() if _is_defined_in(value, module) and name[0] != "_"]
    operators = set()
    if module == "blutensor":
        from blutensor import _operators

        operators = set(_operators.__all__)
    return [name for name in names if name not in operators and name != "__version__"]


def package_page(package: str) -> str:
    """reStructuredText: the public names of a package for autodoc."""
    lines = [package, "=" * len(package), ""]
    for module in (package, *_MODULES[package]):
        if module != package:
            lines += [module, "-" * len(module), ""]
        lines += [f".. automodule:: {module}", "   :no-members:", ""]
        for name in public_names(module):
            lines += _entry(module, name)
    return "\n".join(lines)


def _entry(module: str, name: str) -> list[str]:
    value = getattr(importlib.import_module(module), name)
    if inspect.ismodule(value):
        return []
    if inspect.isclass(value):
        if issubclass(value, BaseException):
            return [f".. autoexception:: {module}.{name}", "   :show-inheritance:", ""]
        return [
            f".. autoclass:: {module}.{name}",
            "   :members:",
            "   :inherited-members: object,Exception,Protocol",
            "",
        ]
    if callable(value) and not isinstance(value, type) and hasattr(value, "__name__"):
        return [f".. autofunction:: {module}.{name}", ""]
    # Not autodata: for an instance of a class of ours it would list the class's members once more.
    return [f".. py:data:: {module}.{name}", f"   :type: {type(value).__name__}", ""]


def _is_defined_in(value: object, module: str) -> bool:
    return getattr(value, "__module__", None) == module


def _escaped(text: str) -> str:
    """Text of ours in Markdown: nothing in it is emphasis or a link."""
    return "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\g<0>", part) for part in _CODE.split(text))
