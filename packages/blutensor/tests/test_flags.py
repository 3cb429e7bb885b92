"""Flags are True or False, and nothing that Python would take for one of them, in every public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sample_calls import call, flags, x

import blutensor as bt
import blutensor.nn.functional as F

FLAGS = list(flags())


def test_they_are_found() -> None:
    names = {f"{name}({flag})" for name, flag, _ in FLAGS}
    assert {
        "sum(keepdims)", "max(keepdims)", "var(keepdims)", "cumulative_sum(reverse)", "sort(stable)",
        "argsort(descending)", "linspace(endpoint)", "reshape(copy)", "astype(copy)", "asarray(copy)",
        "from_dlpack(copy)",
        "nn.functional.dropout(training)",
        "scaled_dot_product_attention(is_causal)", "qkv_attention(is_causal)", "backward(retain_graph)",
        "grad(allow_unused)", "Tensor.requires_grad_(value)", "Tensor.sum(keepdims)",
        "Tensor.backward(create_graph)", "Linear.__init__(bias)", "Module.train(mode)",
        "Module.load_state_dict(strict)",
        "SGD.__init__(nesterov)", "Optimizer.zero_grad(set_to_none)", "ProgramFamily.run(prefetch)",
    } <= names  # fmt: skip
    assert len(names) == len(FLAGS) > 50


@pytest.mark.parametrize(("name", "flag", "function"), FLAGS, ids=[f"{n}-{f}" for n, f, _ in FLAGS])
def test_only_true_and_false(name: str, flag: str, function: Callable[..., Any]) -> None:
    for value in ("no", "False", 0, 1, 1.0, [], np.array([True]), bt.asarray(True)):
        with pytest.raises(bt.DTypeError, match=rf"^\[\w+\] expected True(,| or) False (or None )?for {flag}, got "):
            call(name, function, **{flag: value})
    for value in (True, False, np.True_, np.False_):
        call(name, function, **{flag: value})


def test_the_attribute_of_a_tensor() -> None:
    t = x()
    for value in ("yes", 1, None):
        with pytest.raises(bt.DTypeError, match=r"\[requires_grad\] expected True or False for requires_grad, got"):
            t.requires_grad = value  # type: ignore[assignment]
    assert not t.requires_grad
    t.requires_grad = np.True_  # type: ignore[assignment]
    assert t.requires_grad


def test_attributes_that_are_kept_make_no_exceptions() -> None:
    """Attributes are kept for the next call, by values among which 1, 1.0 and True are equal."""
    t = x()
    assert t.sum(1, True).shape == (2, 1)
    assert F.softmax(t, 1).shape == (2, 3)
    assert t.sum((0, 1)).item() == 15
    with pytest.raises(bt.DTypeError, match="keepdims"):
        t.sum(1, 1)  # type: ignore[arg-type]
    for axis in (1.0, True, np.True_):
        with pytest.raises(bt.DTypeError, match=r"\[softmax\] expected integer for 'axis', got "):
            F.softmax(t, axis)  # type: ignore[arg-type]
    for axes in ((0, True), (0.0, 1), (0, 1.0)):
        with pytest.raises(bt.DTypeError, match=r"\[sum\] expected axes for 'axis', got "):
            t.sum(axes)  # type: ignore[arg-type]
