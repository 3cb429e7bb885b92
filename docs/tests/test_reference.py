"""The generated references say everything and nothing else; no page names a flag, command or key that is not there."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from blutrain.config import Config
from blutrain.config_io import known_keys

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_reference  # noqa: E402

PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in ("decisions.md", "roadmap.md")),
]
_SECTION = re.compile(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def documented_options() -> dict[str, set[str]]:
    """Command -> flags of its part of the reference's page."""
    found = {}
    for name, text in _SECTION.findall(docs_reference.command_page()):
        entries = re.findall(r"^- `([^`]+)`", text, re.MULTILINE)
        found[name] = {flag for entry in entries for flag in _FLAG.findall(entry)}
    return found


def mentioned_commands(text: str) -> list[list[str]]:
    """Command lines of ``blutrain`` in a page: of its code blocks, and of code in its sentences."""
    joined = text.replace("\\\n", " ")
    spans = re.findall(r"`(blutrain [^`]+)`", joined)
    lines = [line.strip() for line in joined.splitlines()]
    spans += [line[line.index("blutrain ") :] for line in lines if re.match(r"(\S*/)?blutrain [a-z]", line)]
    return [_words(span.replace("\\|", "|")) for span in spans]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote of the sentence
        return text.split()


def test_the_reference_of_commands_is_complete_and_says_nothing_else() -> None:
    documented = documented_options()
    commands = docs_reference.commands()
    assert set(documented) == set(commands)
    for name, (command, _) in commands.items():
        # `--version` and the like have one entry for all their spellings.
        assert documented[name] == docs_reference.options_of(command), name


def test_every_option_and_command_says_what_it_does() -> None:
    for name, (command, _) in docs_reference.commands().items():
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


def test_the_readme_has_every_command() -> None:
    text = (ROOT / "packages" / "blutrain" / "README.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(blutrain [a-z-]+)", text, re.MULTILINE))
    assert rows == set(docs_reference.commands()) - {"blutrain"}


def test_pages_name_only_flags_and_commands_that_there_are() -> None:
    commands = docs_reference.commands()
    checked = 0
    for page in PAGES:
        for words in mentioned_commands(page.read_text(encoding="utf-8")):
            names = [word.strip("[]") for word in words]
            first = next((word for word in names[1:] if not word.startswith("-")), None)
            if first is None or not re.fullmatch(r"[a-z-]+", first):
                continue
            name = f"blutrain {first}"
            assert name in commands, f"{page.name}: {' '.join(words)}"
            allowed = docs_reference.options_of(commands[name][0]) | {"--help", "-h"}
            allowed |= docs_reference.options_of(commands["blutrain"][0])
            flags = [flag.partition("=")[0] for flag in names if _FLAG.match(flag) and flag != "-"]
            assert set(flags) <= allowed, f"{page.name}: {' '.join(words)}"
            checked += 1
    assert checked > 30


def test_pages_name_only_keys_that_there_are() -> None:
    sections = "|".join(field.name for field in dataclasses.fields(Config))
    key = re.compile(rf"(?:--set |[`\"'])((?:{sections})\.[a-z_0-9]+)(?= ?[=`\"'])")
    mentioned = {(page.name, found) for page in PAGES for found in key.findall(page.read_text(encoding="utf-8"))}
    mentioned = {pair for pair in mentioned if not pair[1].endswith((".py", ".toml", ".safetensors"))}
    assert len(mentioned) > 10
    wrong = {pair for pair in mentioned if pair[1] not in known_keys()}
    assert wrong == {("python_api.md", "train.stepz")}  # which shows what the mistake is answered with


def test_every_key_is_in_the_reference_of_the_configuration_with_its_meaning() -> None:
    page = docs_reference.configuration_page()
    entries = dict(re.findall(r"^- `([a-z_.0-9]+)` \([^\n]*?\): ?(.*)$", page, re.MULTILINE))
    assert list(entries) == known_keys()
    assert [key for key, text in entries.items() if len(text) < 15] == []


def test_every_operator_is_in_the_reference() -> None:
    from blutensor._table import OPERATORS

    page = docs_reference.operator_page()
    for spec in OPERATORS.values():
        if spec.category != "registered":
            assert f"### `{spec.name}`\n" in page if spec.public else f"- `{spec.name}`: " in page, spec.name
            assert spec.doc, spec.name


@pytest.mark.parametrize("package", docs_reference.PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    import importlib

    module = importlib.import_module(package)
    for name in docs_reference.public_names(package):
        value = getattr(module, name)
        if callable(value):
            assert value.__doc__, f"{package}.{name}"
        assert f"{package}.{name}" in docs_reference.package_page(package) or not hasattr(value, "__doc__")


def test_a_flag_without_documentation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from blutrain.cli.training import train

    hidden = click.Option(["--new"], hidden=True)
    monkeypatch.setattr(train, "params", [*train.params, hidden])
    with pytest.raises(AssertionError, match="blutrain train"):
        test_the_reference_of_commands_is_complete_and_says_nothing_else()
    with pytest.raises(AssertionError, match="blutrain train new"):
        test_every_option_and_command_says_what_it_does()
