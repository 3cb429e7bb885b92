"""The errors of hand-written functions: they name what was called, and the argument that does not fit.

The functions themselves check what their annotations do not say. Arguments of other types than annotated are looked for
only when a call has failed, so that checking them costs nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Literal, ParamSpec, TypeVar, Union

import numpy as np

from .dtypes import described
from .errors import CaptureError, DTypeError, IndexOutOfRangeError, ShapeError, UnsupportedError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_LABEL = re.compile(r"(\[[^]]*\] )?")
_EARLIER = "by an earlier call than the one that waited for it"
"""In what kernels report (ops/cuda/report.cpp): the label names that call."""


def named(name: str, *, of: Collection[str] | None = None) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Makes the errors of a function begin with ``[name]``, whichever operator inside of it found them.

    What Python itself raises for an argument of another type than annotated becomes a `DTypeError` that names it.

    Args:
        name: What was called.
        of: Labels that are replaced; all by default. What runs operators that the user has called before keeps theirs.
    """

    def wrap(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
            try:
                return function(*args, **keywords)
            except (ShapeError, DTypeError, IndexOutOfRangeError, CaptureError, UnsupportedError) as error:
                message = str(error)
                label = _LABEL.match(message)
                if _EARLIER not in message and (of is None or (label and label[0][1:-2] in of)):
                    error.args = (_LABEL.sub(lambda _: f"[{name}] ", message, count=1),)
                raise
            except (TypeError, AttributeError, ValueError, ArithmeticError, LookupError):
                misfit = _misfit(function, args, keywords)
                if misfit is None:
                    raise
                raise DTypeError(f"[{name}] {misfit}") from None

        return call

    return wrap


def _misfit(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str | None:
    """What is wrong with the first argument that is not of the annotated type."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **keywords).arguments
    except TypeError:
        return None  # Python's own message names what is missing
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # of what is imported for type checkers only
        return None
    for name, value in bound.items():
        many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for each in value if many else (value,):
            if name in hints and not _fits(each, hints[name]):
                return _expectation(signature.parameters[name], each)
    return None


def _expectation(parameter: inspect.Parameter, value: Any) -> str:
    wanted = str(parameter.annotation)
    if wanted == "Tensor":
        return f"expected a blutensor.Tensor for '{parameter.name}', got {type(value).__name__}; use blutensor.asarray"
    return f"expected {wanted} for '{parameter.name}', got {described(value)}"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; of one that is not known here, always."""
    if isinstance(hint, TypeVar):
        hint = hint.__bound__
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each_hint = inner[:1] * len(value) if Ellipsis in inner else inner
        return len(value) == len(each_hint) and all(map(_fits, value, each_hint))
    if origin in (Sequence, Iterable, list):
        if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
            return False
        if origin is not Iterable and isinstance(value, (Mapping, Set)):
            return False
        if isinstance(value, np.ndarray) and value.ndim == 0:
            return False
        return not isinstance(value, (Collection, np.ndarray)) or all(_fits(each, inner[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, Mapping)
    if hint is bool:
        return isinstance(value, (bool, np.bool_))
    if hint is int:
        with contextlib.suppress(TypeError):
            operator.index(value)
            return not isinstance(value, (bool, np.bool_))
        return False
    if hint is float:
        return isinstance(value, (int, float, np.number))
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)
