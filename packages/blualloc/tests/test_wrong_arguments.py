"""What is no argument at all: one typed error that names function and parameter, wherever it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import blualloc

GIVEN: dict[str, Any] = {
    "num_bytes": 64,
    "address": 0,
    "stream": 0,
    "tag": "x",
    "step": 1,
    "identity": 1,
    "kind": "cpu",
    "buffers": [],
    "hint": None,
    "callback": print,
}


def functions() -> dict[str, Callable[..., Any]]:
    found = {n: getattr(blualloc, n) for n in blualloc.__all__ if inspect.isfunction(getattr(blualloc, n))}
    methods = {
        f"Pool.{n}": (lambda name: lambda **given: getattr(blualloc.default_pool(), name)(**given))(n)
        for n, f in vars(blualloc.Pool).items()
        if inspect.isfunction(f) and not n.startswith("_")
    }
    return found | methods | {"Pool": blualloc.Pool}


def parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    for name in functions():
        owner: Any = getattr(blualloc.Pool, name[5:]) if name.startswith("Pool.") else getattr(blualloc, name)
        for p in inspect.signature(owner).parameters.values():
            if p.name != "self":
                yield name, p


def call(name: str, parameter: str, value: Any) -> Any:
    needed = [p for n, p in parameters() if n == name and p.default is p.empty and p.name != parameter]
    return functions()[name](**{p.name: GIVEN[p.name] for p in needed}, **{parameter: value})


@pytest.mark.parametrize(("name", "parameter"), [(n, p.name) for n, p in parameters()])
@pytest.mark.parametrize("value", [2.5, object(), b"cpu", [1], 1j], ids=lambda v: type(v).__name__)
def test_another_type(name: str, parameter: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^\[[a-z_]+\] expected "):
        call(name, parameter, value)


NUMBERS = [(n, p.name) for n, p in parameters() if p.annotation == "int"]


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_numbers_that_are_none_or_do_not_fit(name: str, parameter: str) -> None:
    for value, error in ((True, TypeError), ("1", TypeError), (-1, ValueError), (2**70, ValueError)):
        with pytest.raises(error, match=rf"expected .*`{parameter}`"):
            call(name, parameter, value)


def test_flags() -> None:
    flags = [(n, p.name) for n, p in parameters() if "bool" in str(p.annotation)]
    assert flags == [("Pool.close", "force")]
    pool = blualloc.Pool()
    for value in (1, "no", None, 0):
        with pytest.raises(TypeError, match=r"\[close\] expected True or False for `force`, got"):
            pool.close(force=value)  # type: ignore[arg-type]
    pool.close(force=False)


@pytest.mark.parametrize("device", ["cpu:", "cuda:4294967296", "cuda:²", "gpu", ""])
def test_names_of_no_device(device: str) -> None:
    with pytest.raises(ValueError, match=r"expected a device such as"):
        blualloc.Pool(device)
