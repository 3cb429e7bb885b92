"""How a captured function is made and called: what is refused, what a replay returns, what it is bound to."""

from __future__ import annotations

import pytest

import blutensor as bt


def test_what_cannot_be_captured_is_refused_at_once() -> None:
    for value in (5, None, bt.ones(2)):
        with pytest.raises(TypeError, match=r"\[capture\] expected a function of tensors, got"):
            bt.capture(value)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"\[capture\] expected a function of tensors, got"):
            bt.ProgramFamily().capture(value)  # type: ignore[arg-type]
    for number in (0, -1):
        with pytest.raises(bt.ShapeError, match="max_programs of at least 1"):
            bt.capture(bt.exp, max_programs=number)
    with pytest.raises(bt.DTypeError, match="integer for max_programs"):
        bt.capture(bt.exp, max_programs=1.5)  # type: ignore[arg-type]


def test_arguments_by_keyword_are_refused() -> None:
    f = bt.capture(lambda x, y: x + y, name="total")
    with pytest.raises(TypeError, match=r"\[capture total\] .*keyword arguments y; pass tensors by position"):
        f(bt.ones(2), y=bt.ones(2))
    assert f.state == "new"
    assert [f(bt.ones(2), bt.ones(2)).tolist() for _ in range(3)] == [[2, 2]] * 3


def test_a_replay_overwrites_what_the_call_before_returned() -> None:
    f = bt.capture(lambda x: x * 2)
    for _ in range(2):
        f(bt.zeros(2))
    first = f(bt.ones(2))
    kept = bt.copy(first)
    second = f(bt.full(2, 5.0))
    assert first is second
    assert (first.tolist(), kept.tolist()) == ([10, 10], [2, 2])


def test_tensors_that_a_function_closes_over_are_bound_when_it_is_recorded() -> None:
    held = {"scale": bt.full((), 2.0)}
    f = bt.capture(lambda x: x * held["scale"])
    bound = held["scale"]
    for _ in range(3):
        assert f(bt.ones(2)).tolist() == [2, 2]
    held["scale"] = bt.full((), 3.0)
    assert f(bt.ones(2)).tolist() == [2, 2]
    bound.fill_(4.0)
    assert f(bt.ones(2)).tolist() == [4, 4]
