"""Configuration in and out: TOML files, ``key=value`` settings, presets. Everything wrong is reported in one error."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from blutrain.arguments import checked
from blutrain.config import Config
from blutrain.data.tokenizer import is_path
from blutrain.errors import ConfigError, ConfigFileError, ConfigFileNotFoundError, InvalidInputError, Problem
from blutrain.presets import PRESETS

_SECTIONS: dict[str, Any] = get_type_hints(Config)
_KEYS: dict[str, Any] = {
    f"{section}.{name}": hint for section, cls in _SECTIONS.items() for name, hint in get_type_hints(cls).items()
}


def known_keys() -> list[str]:
    """Every dotted key of the tree, for example ``train.steps``."""
    return list(_KEYS)


@checked("config")
def load_config(
    path: str | Path | None = None,
    *,
    preset: str | None = None,
    settings: Iterable[str] = (),
    base: Config | None = None,
) -> Config:
    """Build a configuration: defaults, then the preset, then the file, then the settings; the later wins.

    A file may name a preset itself with a top-level ``preset = "NAME"``. Impossible values are no error here: see
    ``validation.check_config``. Where there is an error, it names them too.

    Args:
        path: TOML file.
        preset: name of a preset.
        settings: ``key=value`` texts; the value is TOML, or plain text where the key is text or a list of texts
            (then with commas between them).
        base: configuration to start from in place of the defaults.

    Returns:
        The configuration.

    Raises:
        ConfigError: unknown preset or keys (with the nearest known one), values of a wrong type, all of them at once.
        ConfigFileNotFoundError: there is no such file.
        ConfigFileError: it can not be read.
        InvalidInputError: ``settings`` is one text, or a mapping.
    """
    if isinstance(settings, str | bytes | Mapping):
        kind = type(settings).__name__
        raise InvalidInputError(f"[config] expected settings as a list of 'key=value' texts, got {kind}: {settings!r}")
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    if path is not None:
        tree = _read_toml(Path(path), problems)
        named = tree.pop("preset", None)
        if preset is None and named is not None:
            preset = str(named)
        _flatten(tree, values, problems)
    for setting in settings:
        _apply_setting(setting, values, problems)
    start = Config() if base is None else base
    if preset is not None:
        if preset in PRESETS:
            start = PRESETS[preset]
        else:
            message = f"unknown preset {preset!r}{_nearest(preset, PRESETS)}; known: {', '.join(PRESETS)}"
            problems.append(Problem("preset", message))
    config = _replace(start, values, problems)
    if problems:
        raise ConfigError(problems + _impossible(config, values, problems))
    return config


def _impossible(config: Config, given: Mapping[str, Any], problems: Iterable[Problem]) -> list[Problem]:
    """The impossible values beside those that were not understood, so that one error names them all."""
    from blutrain.validation import problems_beside

    not_understood = keys_of(problems)
    if "preset" in not_understood:  # what it would have set is not known
        not_understood |= _KEYS.keys() - given.keys()
    return problems_beside(config, not_understood)


def config_from_dict(tree: Mapping[str, Any]) -> Config:
    """The inverse of ``config_to_dict``.

    Args:
        tree: sections holding keys holding values.

    Returns:
        The configuration; keys that are absent take their defaults.

    Raises:
        ConfigError: unknown keys or values of a wrong type, or something else than a table of tables.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError([Problem("configuration", f"expected a table of sections, got {tree!r:.100}")])
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    _flatten(tree, values, problems)
    config = _replace(Config(), values, problems)
    if problems:
        raise ConfigError(problems)
    return config


def with_readable_values(config: Config) -> tuple[Config, list[Problem]]:
    """A configuration that Python code made, with defaults for values that no file could hold.

    Args:
        config: its values may be of any type.

    Returns:
        The configuration, and what is wrong with the values that were left out.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for section, kind in _SECTIONS.items():
        part = getattr(config, section)
        if isinstance(part, kind):
            values |= {f"{section}.{key}": _plain(value) for key, value in vars(part).items()}
        else:
            problems.append(Problem(section, f"expected a {kind.__name__}, got {type(part).__name__}"))
    return _replace(Config(), values, problems), problems


def _plain(value: Any) -> Any:
    """A float of NumPy's as Python's, which it is an instance of."""
    return float(value) if isinstance(value, float) else value


def keys_of(problems: Iterable[Problem]) -> set[str]:
    """The keys that problems are about; one with a whole section is about all of its keys."""
    named = {problem.key for problem in problems}
    return named | {key for key in _KEYS if key.partition(".")[0] in named}


def config_to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """The tree as plain dictionaries and lists, complete, in the order of declaration."""
    return {
        section: {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        for section, values in dataclasses.asdict(config).items()
    }


def config_to_toml(config: Config) -> str:
    """The complete tree as TOML text; ``load_config`` reads it back to an equal configuration."""
    return tomli_w.dumps(config_to_dict(config))


def with_absolute_paths(config: Config) -> Config:
    """The configuration as it is kept: its paths mean the same from any working folder."""
    data, run = config.data, config.run
    if is_path(data.tokenizer):
        data = dataclasses.replace(data, tokenizer=os.path.abspath(data.tokenizer))
    return dataclasses.replace(
        config,
        data=dataclasses.replace(data, path=os.path.abspath(data.path) if data.path else ""),
        run=dataclasses.replace(run, folder=os.path.abspath(run.folder)),
    )


def save_config(config: Config, path: str | Path) -> None:
    """Write the complete tree to a TOML file.

    Args:
        config: what to write.
        path: file, replaced when it exists.

    Raises:
        OSError: the file can not be written.
    """
    Path(path).write_text(config_to_toml(config), encoding="utf-8")


def _read_toml(path: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or an integer of too many digits
        problems.append(Problem(str(path), f"not a TOML file: {error}"))
        return {}
    except FileNotFoundError:
        message = f"[config] expected a TOML file or the folder of a run, got nothing at {path}: check the path, or"
        raise ConfigFileNotFoundError(message + " start from --preset NAME") from None
    except OSError as error:
        message = f"[config] expected a TOML file that can be read, got '{error.strerror or error}' for {path}"
        raise ConfigFileError(message + ": check its permissions") from error


def _nearest(name: str, known: Iterable[str]) -> str:
    """``, did you mean '...'?`` or nothing. A key without its section is matched by its last part too."""
    candidates = list(known)
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    if not close:
        tails = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
        tail = difflib.get_close_matches(name.rpartition(".")[2], tails, n=1, cutoff=0.6)
        close = [tails[tail[0]]] if tail else []
    return f", did you mean {close[0]!r}?" if close else ""


def _unknown(key: str) -> Problem:
    return Problem(key, f"unknown key{_nearest(key, _KEYS)}")


def _flatten(tree: Mapping[str, Any], values: dict[str, Any], problems: list[Problem]) -> None:
    for section, content in tree.items():
        if section not in _SECTIONS:
            if isinstance(content, Mapping):
                problems.append(Problem(section, f"unknown section{_nearest(section, _SECTIONS)}"))
            else:
                problems.append(_unknown(section))
        elif not isinstance(content, Mapping):
            problems.append(Problem(section, f"expected a table [{section}], got {content!r}"))
        else:
            values.update({f"{section}.{name}": value for name, value in content.items()})


def _apply_setting(setting: str, values: dict[str, Any], problems: list[Problem]) -> None:
    if not isinstance(setting, str):
        problems.append(Problem("--set", f"expected key=value, got {setting!r}"))
        return
    key, equals, text = setting.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        problems.append(Problem("--set", f"expected key=value, got {setting!r}"))
        return
    if _KEYS.get(key) is str and not text.startswith(('"', "'")):
        values[key] = text
        return
    try:
        values[key] = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also an integer of more digits than Python converts
        values[key] = text


def _replace(config: Config, values: Mapping[str, Any], problems: list[Problem]) -> Config:
    changes: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key not in _KEYS:
            problems.append(_unknown(key))
            continue
        wanted = _KEYS[key]
        if type(value) is int and not -(2**63) <= value < 2**63:
            problems.append(Problem(key, f"expected a number that fits 64 bits, got {_shortened(value)}"))
            continue
        if wanted is float and type(value) is int:
            value = float(value)
        if wanted == _TEXTS:
            value = _as_texts(value)
            if value is None or not all(map(_is_utf8, value)):
                problems.append(Problem(key, f"expected {_TYPE_NAMES[wanted]}, got {values[key]!r}"))
                continue
        elif type(value) is not wanted:  # exact: a bool is an int to Python, never to a configuration
            problems.append(Problem(key, f"expected {_TYPE_NAMES[wanted]}, got {value!r}"))
            continue
        if wanted is str and not _is_utf8(value):
            problems.append(Problem(key, f"expected text in UTF-8, got {value!r}"))
            continue
        section, _, name = key.partition(".")
        changes.setdefault(section, {})[name] = value
    sections = {name: dataclasses.replace(getattr(config, name), **new) for name, new in changes.items()}
    return dataclasses.replace(config, **sections)


def _as_texts(value: Any) -> tuple[str, ...] | None:
    """A list of texts, or one text with commas between them, which spares a command line its quotes."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    whole = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    return tuple(value) if whole else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(value: int) -> str:
    digits = hex(value) if value.bit_length() > 10000 else str(value)  # Python refuses long decimal conversions
    return digits if len(digits) <= 40 else f"{digits[:20]}... ({value.bit_length()} bits)"


_TEXTS = tuple[str, ...]
_TYPE_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    _TEXTS: "a list of texts",
}
