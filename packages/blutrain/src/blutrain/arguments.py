"""Arguments of the public functions, checked in one place against the functions' own annotations.

So a value of a wrong type is an error of ours that names function, argument and types, before anything was done; deep
inside it would be an AttributeError of whatever touches it first.
"""

from __future__ import annotations

import collections.abc
import errno
import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, ParamSpec, TypeVar

import numpy as np

from blutrain.errors import InvalidInputError, InvalidTypeError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NUMBERS: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real}
_TEXTS = (str, bytes)


def checked(command: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a function check its arguments when it is called.

    Numbers of NumPy are numbers, whatever `os.PathLike` is a path, and a text is no sequence of texts.

    Args:
        command: what errors begin with.

    Returns:
        A decorator. The function then raises:
            InvalidTypeError: an argument is missing, unknown or of a type that it can not be of.
            InvalidInputError: a path that no file can have.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @functools.cache
        def hints() -> dict[str, Any]:
            return typing.get_type_hints(function)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError as error:
                name = getattr(function, "__name__", command)
                raise InvalidTypeError(f"[{command}] expected {name}{signature}, got: {error}") from None
            check_values(command, given.arguments, hints())
            given.arguments.update({name: _plain(value) for name, value in given.arguments.items()})
            return function(*given.args, **given.kwargs)

        return call

    return decorate


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's, and what says that it is a path as one."""
    if isinstance(value, np.generic):
        return value.item()
    return Path(value) if isinstance(value, os.PathLike) and not isinstance(value, PurePath) else value


def check_fields(command: str, instance: object) -> None:
    """Check the fields of a dataclass against their annotations.

    Args:
        command: what errors begin with.
        instance: of the dataclass.

    Raises:
        InvalidTypeError: a field is of a type that it can not be of.
    """
    check_values(command, vars(instance), typing.get_type_hints(type(instance)))


def check_values(command: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Check values by name against types by name.

    Args:
        command: what errors begin with.
        values: some may have no type.
        hints: as `typing.get_type_hints` gives them.

    Raises:
        InvalidTypeError: a value is of another type.
        InvalidInputError: a path that no file can have.
    """
    for name, value in values.items():
        if name not in hints:
            continue
        if not _is(value, hints[name]):
            found = _found(value, hints[name])
            raise InvalidTypeError(f"[{command}] expected {name} of type {_text(hints[name])}, got {found}")
        if os.PathLike in map(_class_of, _alternatives(hints[name])):
            _check_path(command, name, value)


_ALIASES: Any = getattr(typing, "TypeAliasType", ())
"""Since Python 3.12."""


def _resolved(hint: Any) -> Any:
    """What a type alias stands for: NumPy's ``NDArray`` is one, of late."""
    alias: Any = typing.get_origin(hint) or hint
    return _resolved(alias.__value__) if isinstance(alias, _ALIASES) else hint


def _alternatives(hint: Any) -> tuple[Any, ...]:
    hint = _resolved(hint)
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(map(_resolved, typing.get_args(hint))) if is_union else (hint,)


def _class_of(hint: Any) -> Any:
    """What stands for a hint in ``isinstance``; paths are whatever says that it is one."""
    hint = _resolved(hint)
    kind = typing.get_origin(hint) or hint
    return os.PathLike if isinstance(kind, type) and issubclass(kind, os.PathLike) else kind


def _is(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    kinds = _alternatives(hint)
    if len(kinds) > 1:
        return any(_is(value, kind) for kind in kinds)
    kind = _class_of(hint)
    if kind in (None, types.NoneType):
        return value is None
    if kind is typing.Literal:
        return value in typing.get_args(hint)
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, (bool, np.bool_))
    if kind is np.ndarray:
        return isinstance(value, (np.ndarray, collections.abc.Sequence)) and not isinstance(value, _TEXTS)
    if kind is collections.abc.Sequence:
        is_one = isinstance(value, collections.abc.Sequence) and not isinstance(value, _TEXTS)
        return is_one and _items_are(value, hint)
    if getattr(kind, "_is_protocol", False) and not isinstance(value, type):
        members = [name for name in vars(kind) if not name.startswith("_")]
        return value is not None and all(hasattr(value, name) for name in members)
    return isinstance(value, kind) if isinstance(kind, type) else True


def _items_are(values: Any, hint: Any) -> bool:
    (item,) = typing.get_args(hint) or (Any,)
    return all(_is(value, item) for value in values)


def _check_path(command: str, name: str, value: Any) -> None:
    if not isinstance(value, (str, os.PathLike)):
        return  # another of the hint's types
    path: Any = os.fspath(value)
    if not isinstance(path, str):
        raise InvalidTypeError(f"[{command}] expected {name} to be a path of text, got {path!r}")
    if not is_possible_path(path):
        raise InvalidInputError(f"[{command}] expected a path that a file can have as {name}, got {path!r:.300}")


def is_possible_path(path: str) -> bool:
    """Whether a file can have a path, whatever is there."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    except ValueError:  # a null character, or half of a surrogate pair
        return False
    return True


def _found(value: object, hint: Any) -> str:
    """The type of a value, and that of what is wrong in it."""
    kinds = [kind for kind in _alternatives(hint) if typing.get_origin(kind) is collections.abc.Sequence]
    if kinds and isinstance(value, collections.abc.Sequence) and not isinstance(value, _TEXTS):
        (item,) = typing.get_args(kinds[0]) or (Any,)
        wrong: Iterable[str] = (type(each).__name__ for each in value if not _is(each, item))
        return f"{type(value).__name__} with {next(iter(wrong))}"
    return type(value).__name__


def _text(hint: Any) -> str:
    """A hint for people; that a value may be left out is not said."""
    kinds = [kind for kind in _alternatives(hint) if kind not in (None, types.NoneType)]
    if len(kinds) > 1:
        return " or ".join(dict.fromkeys(map(_text, kinds)))
    (kind,) = kinds or (type(None),)
    base = typing.get_origin(kind) or kind
    if base is collections.abc.Sequence:
        return f"list of {_text((typing.get_args(kind) or (Any,))[0])}"
    if base is collections.abc.Callable:
        return "function"
    if base is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    return "Path" if _class_of(kind) is os.PathLike else str(getattr(base, "__name__", base))
