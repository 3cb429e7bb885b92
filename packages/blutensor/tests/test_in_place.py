"""Writes in place: values, versions, what autograd records of them and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blutensor as bt

FORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "add_": (lambda x, y: x.add_(y), lambda a, b: a + b),
    "sub_": (lambda x, y: x.sub_(y), lambda a, b: a - b),
    "mul_": (lambda x, y: x.mul_(y), lambda a, b: a * b),
    "div_": (lambda x, y: x.div_(y), lambda a, b: a / b),
    "+=": (lambda x, y: x.__iadd__(y), lambda a, b: a + b),
    "-=": (lambda x, y: x.__isub__(y), lambda a, b: a - b),
    "*=": (lambda x, y: x.__imul__(y), lambda a, b: a * b),
    "/=": (lambda x, y: x.__itruediv__(y), lambda a, b: a / b),
    "**=": (lambda x, y: x.__ipow__(y), lambda a, b: a**b),
    "copy_": (
        lambda x, y: x.copy_(bt.asarray(y)),
        lambda a, b: np.broadcast_to(b, a.shape),
    ),
}


def values(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("other", [(3, 4), (4,), (3, 1), (), "number"])
def test_values_and_versions(form: str, other: Any) -> None:
    write, expected = FORMS[form]
    a = values(3, 4)
    b = 1.5 if other == "number" else values(*other, seed=2)
    x = bt.asarray(a.copy())
    view, version, storage = x[1], x.version, x.storage_id
    got = write(x, b if other == "number" else bt.asarray(b))
    assert got is x
    assert (x.storage_id, x.version > version) == (storage, True)
    want = expected(a, np.float32(b) if other == "number" else b)
    # float32 pow is within a few roundings of NumPy's; the others are the same bits.
    np.testing.assert_allclose(x.numpy(), want, rtol=2.0**-21 if form == "**=" else 0)
    np.testing.assert_array_equal(view.numpy(), x.numpy()[1])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int64", "int32", "uint8"])
def test_dtypes_stay(dtype: str) -> None:
    x = bt.asarray([6, 4, 2]).astype(dtype)
    x += 2
    x *= bt.asarray([1, 2, 3]).astype(dtype)
    x -= 1
    assert x.dtype.name == dtype
    assert x.astype("int64").tolist() == [7, 11, 11]
    if x.dtype.is_floating:
        x /= 2
        assert x.astype("float64").tolist() == [3.5, 5.5, 5.5]
    else:
        with pytest.raises(bt.DTypeError, match=r"\[div_\] expected a floating-point tensor"):
            x /= 2


def test_parts_are_written_through_views() -> None:
    x = bt.zeros((3, 4))
    x[1] += 2
    x[:, 1:3].mul_(3.0)
    x.permute_dims(1, 0)[0] -= 1
    assert x.tolist() == [[-1, 0, 0, 0], [1, 6, 6, 2], [-1, 0, 0, 0]]


def test_what_does_not_fit_is_refused() -> None:
    x = bt.ones(3)
    with pytest.raises(bt.ShapeError, match=r"\[mul_\] expected a source that broadcasts to shape \(3,\)"):
        x *= bt.ones((2, 3))
    y = bt.broadcast_to(bt.ones(1), (3,))
    with pytest.raises(bt.ShapeError, match=r"memory|share"):
        y *= 2
    n = bt.asarray([1, 2])
    with pytest.raises(bt.DTypeError, match="without loss of kind"):
        n += bt.asarray([0.5, 0.5])
    assert (x.tolist(), n.tolist()) == ([1, 1, 1], [1, 2])


# ---------------------------------------------------------------- autograd


@pytest.mark.parametrize("form", list(FORMS))
def test_a_result_with_memory_of_its_own_is_written_and_recorded(form: str) -> None:
    write, _ = FORMS[form]
    plain = {"+=": "add_", "-=": "sub_", "*=": "mul_", "/=": "div_"}.get(form, form)
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "add_": bt.add,
        "sub_": bt.subtract,
        "mul_": bt.multiply,
        "div_": bt.divide,
        "**=": bt.pow,
        "copy_": lambda x, y: bt.broadcast_to(y, x.shape),
    }

    def in_place(w: bt.Tensor, v: bt.Tensor) -> bt.Tensor:
        x = w * 2.0
        alias = x
        write(x, v)
        assert alias is x
        assert alias.grad_fn != "multiply" or plain == "mul_"
        return x * x

    def out_of_place(w: bt.Tensor, v: bt.Tensor) -> bt.Tensor:
        x = functions[plain](w * 2.0, v)
        return x * x

    results = []
    for function in (in_place, out_of_place):
        w, v = bt.asarray(values(3, 4)).requires_grad_(), bt.asarray(values(4, seed=2)).requires_grad_()
        y = function(w, v)
        y.sum().backward()
        results.append([y.detach().numpy(), *(None if t.grad is None else t.grad.numpy() for t in (w, v))])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_used_the_old_value_keeps_it() -> None:
    w = bt.asarray([2.0, 3.0]).requires_grad_()
    x = w * 1.0
    y = x * x  # saves the old x
    x += 10.0
    (y + x).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [5, 7]
    assert x.tolist() == [12, 13]


def test_assigned_elements_are_recorded() -> None:
    w, v = bt.asarray(values(3, 4)).requires_grad_(), bt.asarray(values(2, seed=3)).requires_grad_()
    x = w * 3.0
    x[1:, -1] = v
    x[0, ::2] = 5.0
    x[x > 4.9] = 0.0
    x[2] = [1.0, 2, 3, 4]
    expected = w.detach().numpy() * np.float32(3)
    expected[1:, -1] = v.detach().numpy()
    expected[0, ::2] = 5
    kept = expected <= 4.9
    expected[~kept] = 0
    expected[2] = [1, 2, 3, 4]
    np.testing.assert_array_equal(x.detach().numpy(), expected)
    x.sum().backward()
    reaches = np.full((3, 4), 3.0)
    reaches[1:, -1] = reaches[0, ::2] = 0
    reaches[~kept] = reaches[2] = 0
    assert w.grad is not None
    assert v.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), reaches)
    np.testing.assert_array_equal(v.grad.numpy(), [1, 0])
    x = w * 3.0
    with pytest.raises(bt.AutogradError, match=r"\[setitem\].*arrays of indices.*'multiply'.*use where"):
        x[[0, 1]] = 0.0


def test_not_a_number_does_not_survive_an_assignment() -> None:
    w = bt.asarray([1.0, 2.0]).requires_grad_()
    x = w * bt.asarray([float("inf"), 1.0])
    x[0] = 1.0
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize("form", list(FORMS))
def test_leaves_that_require_a_gradient_are_refused(form: str) -> None:
    w = bt.ones((3, 4)).requires_grad_()
    with pytest.raises(bt.AutogradError, match=r"leaf that requires a gradient; use no_grad\(\)"):
        FORMS[form][0](w, bt.ones((3, 4)))
    with bt.no_grad():
        FORMS[form][0](w, bt.full((3, 4), 2.0))
    assert w.requires_grad
    assert w.is_leaf


def test_a_gradient_that_would_be_lost_is_refused() -> None:
    x, w = bt.zeros(2), bt.ones(2).requires_grad_()
    for write in (lambda: x.add_(w), lambda: x.copy_(w), lambda: x.__setitem__(0, w[0])):
        with pytest.raises(bt.AutogradError, match=r"not recorded.*expression that makes a new tensor"):
            write()
    x += w.detach()
    assert x.tolist() == [1, 1]


def test_shared_results_are_refused() -> None:
    w = bt.ones((2, 2)).requires_grad_()
    x = w * 2.0
    views = [x[0]]
    for write in (lambda: x.add_(1.0), lambda: views[0].mul_(2.0), lambda: x.__setitem__(0, 1.0), lambda: x.fill_(0.0)):
        with pytest.raises(bt.AutogradError, match=r"result of '(multiply|slice|squeeze)'.*shares its memory"):
            write()
    saved = bt.exp(w)  # backward reads what exp returned
    with pytest.raises(bt.AutogradError, match=r"\[add_\].*'exp'.*shares its memory"):
        saved += 1.0
    views.clear()
    x += 1.0
    x.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [[2, 2], [2, 2]]


def test_writing_over_what_backward_needs_names_both_operators() -> None:
    w = bt.ones(3).requires_grad_()
    writes: dict[str, Callable[[Any], Any]] = {
        "mul_": lambda t: t.mul_(2.0),
        "sub_": lambda t: t.sub_(1.0),
        "div_": lambda t: t.div_(2.0),
        "scatter_": lambda t: t.__setitem__([0], 5.0),
    }
    for name, write in writes.items():
        x = bt.ones(3)
        y = (w * x).sum()
        write(x)
        with pytest.raises(bt.AutogradError, match=rf"'multiply' saved its input 1.*'{name}' wrote to it in place"):
            y.backward()


def test_captured_writes_have_the_same_bits() -> None:
    w = bt.asarray(values(4)).requires_grad_()
    total = bt.zeros(4)

    def step(x: bt.Tensor) -> bt.Tensor:
        w.grad = None
        h = w * x
        h += x
        h *= 2.0
        h[1] = 0.0
        h.sum().backward()
        with bt.no_grad():
            total.add_(h.detach())
        total.mul_(0.5)
        return bt.copy(w.grad)  # type: ignore[arg-type]

    results = []
    for function in (step, bt.capture(step)):
        total.zero_()
        results.append([function(bt.asarray(values(4, seed=s))).tolist() for s in range(5)] + [total.tolist()])
    assert results[0] == results[1]
