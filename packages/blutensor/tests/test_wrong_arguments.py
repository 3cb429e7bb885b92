"""Arguments of the wrong type, and numbers beyond all bounds: one typed error that names what was called."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sample_calls import call, functions, x

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import nn, optim
from blutensor._naming import named

FUNCTIONS = functions()
WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a flag": lambda: True,
    "text": lambda: "no",
    "bytes": lambda: b"no",
    "a float": lambda: 2.5,
    "a negative": lambda: -1,
    "70 bits": lambda: 2**70,
    "5000 digits": lambda: 10**5000,
    "NaN": lambda: math.nan,
    "complex": lambda: 1j,
    "an object": object,
    "a type": lambda: int,
    "nothing": list,
    "floats": lambda: [1.5],
    "ragged": lambda: [[1], [1, 2]],
    "a dictionary": dict,
    "objects": lambda: np.array([1, None], object),
    "texts": lambda: np.array(["a"]),
    "swapped bytes": lambda: np.arange(3, dtype=">f4"),
    "an array": lambda: np.ones((2, 3)),
    "a scalar array": lambda: np.array(1.5),
    "a tensor of no axes": lambda: bt.asarray(1.0),
    "an empty tensor": lambda: bt.zeros((0,)),
    "integers": lambda: bt.asarray([0, 1]),
}


def error_of(name: str, parameter: inspect.Parameter, given: Any) -> Exception | None:
    is_many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
    try:
        call(name, FUNCTIONS[name], **{parameter.name: (given,) if is_many else given})
    except MemoryError:
        return None
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_and_argument(name: str) -> None:
    """Whatever is given: it is taken, or refused by an error of ours that begins with the function's name."""
    call(name, FUNCTIONS[name])
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        for what, value in WRONG.items():
            error = error_of(name, parameter, value())
            if error is not None:
                assert type(error).__module__ == "blutensor.errors", (parameter.name, what, error)
                assert str(error).startswith(f"[{name.rpartition('.')[2]}] "), (parameter.name, what)
                assert len(str(error)) < 500, (parameter.name, what)


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # the inner operator is another one
    (lambda: bt.sort(x(), axis=5), IndexError, r"\[sort\] expected an axis from -2 to 1, got 5"),
    (lambda: bt.einsum(3, x()), TypeError, r"\[einsum\] expected str for 'subscripts', got 3"),  # type: ignore[arg-type]
    (lambda: bt.einsum("ij", 3), TypeError, r"\[einsum\] expected a blutensor.Tensor for 'x1', got int"),  # type: ignore[arg-type]
    (lambda: bt.take(x(), bt.asarray([9]), axis=0), IndexError, r"\[take\].*9"),
    (lambda: bt.stack([x()], axis=7), IndexError, r"\[stack\]"),
    (lambda: bt.diff(bt.ones(3, dtype="bool"), n=1), TypeError, r"\[diff\]"),
    (lambda: bt.eye(2**62), ValueError, r"\[eye\] expected fewer than 2\^62 elements"),
    (lambda: x() + 2**2000, ValueError, r"\[add\] expected a number that float64 holds for value, got 0x1000"),
    (lambda: bt.arange(3) + 2**70, ValueError, r"\[add\] expected an integer from -9223372036854775808"),
    (lambda: x().add_(None), TypeError, r"\[add_\] expected a tensor or a number, got None"),  # type: ignore[arg-type]
    (lambda: bt.broadcast_to(x(), -1), ValueError, r"\[broadcast_to\] expected sizes of at least 0"),
    (lambda: x().transpose(0, 5), ValueError, r"\[transpose\] expected axes of a rank 2 tensor, got 0 and 5"),
    # indices
    (lambda: x()[::0], ValueError, r"\[index\] expected a slice with a step other than 0, got slice"),
    (lambda: x()[1.5:], TypeError, r"\[index\] expected integers or None in a slice, got slice\(1.5"),  # type: ignore[misc]
    (lambda: x()[int], TypeError, r"\[index\] expected integers, slices"),  # type: ignore[index]
    (lambda: x()[10**5000], IndexError, r"\[index\] expected an index from -2 to 1 of axis 0, got 0x"),
    (lambda: x().__setitem__(slice(None, None, 0), 1), ValueError, r"\[setitem\] expected a slice with a step"),
    (lambda: x().__setitem__(0, np.ones(2)), ValueError, r"\[setitem\] expected values that broadcast to shape \(3,\)"),
    (lambda: x().__setitem__(0, np.array(["a", "b", "c"])), TypeError, r"\[setitem\] expected real numbers, got <U1"),
    # sizes that would wrap around
    (lambda: bt.empty(2**70), ValueError, r"\[empty\] expected shape below 2\^63, got 1180591620717411303424"),
    (lambda: bt.zeros((2, 2**64)), ValueError, r"\[zeros\] expected an integer of 64 bits for 'shape', got 18446744"),
    (lambda: bt.empty(b"xy"), TypeError, r"\[empty\] expected an integer or a sequence of them for shape"),  # type: ignore[arg-type]
    (lambda: bt.empty(True), TypeError, r"\[empty\] expected an integer for shape, got True"),
    (lambda: x().to("cuda:4294967296"), TypeError, r"\[to\] expected device"),
    # what was ignored or taken for something else
    (lambda: bt.asarray([[1], [1, 2]]), ValueError, r"\[asarray\] expected nested sequences of equal leng"),
    (lambda: bt.asarray([[1], [1, 2]], dtype="int8"), ValueError, r"\[asarray\] expected nested sequences of equal"),
    (lambda: bt.asarray(x(), dtype=np.float64(2)), TypeError, r"\[asarray\] expected one of float32"),  # type: ignore[arg-type]
    (lambda: x().astype(None), TypeError, r"\[astype\] expected one of float32"),  # type: ignore[arg-type]
    (lambda: x().copy_(np.ones((2, 3), complex)), TypeError, r"\[copy_\] expected real numbers, got complex128"),
    (lambda: bt.repeat(x(), [1.5, 2.0], axis=0), TypeError, r"\[repeat\] expected integers for repeats"),  # type: ignore[list-item]
    (lambda: bt.flip(np.ones(3)), TypeError, r"\[flip\] expected a blutensor.Tensor for 'x', got ndarray"),  # type: ignore[arg-type]
    (lambda: bt.unstack(np.ones(3)), TypeError, r"\[unstack\] expected a blutensor.Tensor"),  # type: ignore[arg-type]
    (lambda: bt.broadcast_shapes("ab"), TypeError, r"\[broadcast_shapes\]"),
    (lambda: bt.diff(x(), axis=True), TypeError, r"\[diff\] expected an integer for axis, got True"),
    (lambda: F.qkv_attention(bt.ones((1, 2, 12)), 2, scale=0.0), ValueError, r"expected a scale other than 0, or None"),
    (lambda: F.softmax(x(), axis="1"), TypeError, r"\[softmax\] expected integer for 'axis', got '1'"),  # type: ignore[arg-type]
    (lambda: bt.layer_norm(x(), 3, eps="1e-5"), TypeError, r"\[layer_norm\] expected a number for eps, got '1e-5'"),  # type: ignore[arg-type]
    # layers and optimizers
    (lambda: nn.Sequential(3), TypeError, r"\[Sequential\] expected modules, got 3"),  # type: ignore[arg-type]
    (lambda: nn.ModuleList(3), TypeError, r"\[ModuleList\] expected .* for 'modules', got 3"),  # type: ignore[arg-type]
    (lambda: nn.ModuleList().append(None), TypeError, r"\[ModuleList\] expected modules, got None"),  # type: ignore[arg-type]
    (lambda: nn.Linear(3, 2, dtype="float23"), TypeError, r"\[Linear\] expected one of float32"),
    (lambda: nn.Parameter([1.0]), TypeError, r"\[Parameter\] expected a blutensor.Tensor for 'data', got list"),  # type: ignore[arg-type]
    (lambda: optim.SGD(None), TypeError, r"\[SGD\] expected Params for 'params', got None"),  # type: ignore[arg-type]
    (lambda: optim.AdamW([x()], masters=[1]), TypeError, r"\[AdamW\] expected .* for 'masters', got \[1\]"),  # type: ignore[arg-type]
    (lambda: bt.backward([3]), TypeError, r"\[backward\] expected a blutensor.Tensor for 'roots', got int"),  # type: ignore[list-item]
    (lambda: bt.ProgramFamily(3), TypeError, r"\[ProgramFamily\] expected a string for name, got 3"),  # type: ignore[arg-type]
    (lambda: bt.ProgramFamily(device="gpu"), TypeError, r"\[ProgramFamily\] expected device"),
    (lambda: bt.capture(abs, name=3), TypeError, r"\[capture\] expected a string for name, got 3"),  # type: ignore[arg-type]
    (lambda: bt.capture(abs, max_programs=True), TypeError, r"\[capture\] expected an integer for max_programs"),
    (lambda: nn.Sequential(nn.GELU())[1], IndexError, r"\[Sequential\] expected an index below 1, got 1"),
    (lambda: nn.ModuleList([nn.GELU()])["a"], TypeError, r"\[ModuleList\] expected an integer for index, got 'a'"),  # type: ignore[index]
    (lambda: nn.GELU().register_buffer("a", 3), TypeError, r"\[register_buffer\] expected a blutensor.Tensor"),  # type: ignore[arg-type]
    (lambda: nn.GELU().apply(None), TypeError, r"\[apply\] expected a function for function, got None"),  # type: ignore[arg-type]
    (lambda: nn.LayerNorm(()), ValueError, r"\[LayerNorm\] expected at least one size for normalized_shape"),
    (lambda: optim.SGD([{"lr": 1.0}]), ValueError, r"\[SGD\] expected 'params' in group 0, an iterable, got {"),
    (lambda: optim.SGD([("a", x()), ("a", x())]), ValueError, r"\[SGD\] expected every name once, got 'a' twice"),
    (lambda: optim.SGD([(1, x())]), TypeError, r"\[SGD\] expected a string for the name of a parameter, got 1"),  # type: ignore[list-item]
    (lambda: bt.ProgramFamily().run(2.5, schedule=[]), TypeError, r"\[run\] expected an integer for steps, got 2.5"),  # type: ignore[arg-type]
    (lambda: bt.ProgramFamily().run(1, schedule=[(abs, 1)]), TypeError, r"\[run\] expected captured functions"),  # type: ignore[list-item]
    (lambda: bt.ProgramFamily().run(1, schedule=[], metrics=[3]), TypeError, r"\[run\] expected a blutensor.Tensor"),  # type: ignore[list-item]
    (lambda: setattr(bt.default_generator, "op_id", -1), ValueError, r"\[op_id\] expected op_id of at least 0, got -1"),
    (lambda: x().register_hook(3), TypeError, r"\[register_hook\] expected a function for hook, got 3"),  # type: ignore[arg-type]
    (lambda: bt.recompute(3), TypeError, r"\[recompute\] expected a function for function, got 3"),  # type: ignore[arg-type]
    (lambda: bt.gradcheck(3, [x()]), TypeError, r"\[gradcheck\] expected a function for function, got 3"),  # type: ignore[arg-type]
    (lambda: bt.register_operator("a", inputs=["x"], infer=3, launch=abs), TypeError, r"expected a function for infer"),  # type: ignore[arg-type]
    (lambda: bt.register_operator(3, inputs=["x"], infer=abs, launch=abs), TypeError, r"expected a string for name"),  # type: ignore[arg-type]
    (lambda: bt.asarray(np.ma.array([1.0, 2.0], mask=[0, 1])), TypeError, r"without masked elements; use x.filled"),
    (lambda: bt.set_isa(3), TypeError, r"\[set_isa\] expected str for 'name', got 3"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(MISTAKES)), ids=lambda i: f"{i} {MISTAKES[i][2][:24]}")
def test_mistakes(index: int) -> None:
    mistake, kind, message = MISTAKES[index]
    with pytest.raises(kind, match=message):
        mistake()


def test_no_axis_is_none_of_them_by_accident() -> None:
    """An axis of None is all of them where that is said, and an error elsewhere."""
    for function in (F.softmax, F.log_softmax, bt.softmax, bt.log_softmax, bt.expand_dims, bt.stack, bt.unstack):
        with pytest.raises(bt.DTypeError, match=r"expected (an )?integer for '?axis'?, got None"):
            function([x()] if function is bt.stack else x(), axis=None)  # type: ignore[operator]
    for function in (bt.argsort, bt.sort, bt.diff, bt.vecdot):
        with pytest.raises(bt.DTypeError, match=r"expected .* for '?axis'?, got None"):
            function(*(x(),) * (2 if function is bt.vecdot else 1), axis=None)  # type: ignore[operator]
    with pytest.raises(bt.DTypeError, match=r"\[split\] expected integer for 'axis', got None"):
        bt.split(x(), 2, None)  # type: ignore[arg-type]
    with pytest.raises(bt.DTypeError, match=r"\[rotary_embedding\] expected a number for base, got None"):
        bt.rotary_embedding(bt.ones((1, 2, 3, 4)), base=None)  # type: ignore[arg-type]
    assert bt.max(x(), None).item() == 5
    assert bt.concat([x(), x()], None).shape == (12,)


def test_numbers_of_numpy_are_numbers() -> None:
    assert bt.arange(np.int64(1), np.int8(4)).tolist() == [1, 2, 3]
    assert bt.arange(np.int64(4)).dtype is bt.int64
    assert bt.arange(np.float64(2)).dtype is bt.float32
    assert x()[:: 2**70].tolist() == [[0, 1, 2]]
    assert x().sum(np.array([0, 1])).item() == 15
    assert x().reshape(np.array([3, 2])).shape == (3, 2)


def test_named() -> None:
    @named("outer")
    def outer(n: int, *, label: str | None = None) -> int:
        """What it does."""
        if n < 0:
            raise bt.ShapeError("[inner] expected more")
        if n == 0:
            raise bt.IndexOutOfRangeError("expected something")
        if n > 5:
            raise KeyError("a fault of the function's own")
        return n + len(label or "")

    assert outer.__name__ == "outer"
    assert outer.__doc__ == "What it does."
    assert outer(3, label="ab") == 5
    with pytest.raises(bt.ShapeError, match=r"^\[outer\] expected more$"):
        outer(-1)
    with pytest.raises(bt.IndexOutOfRangeError, match=r"^\[outer\] expected something$"):
        outer(0)
    with pytest.raises(bt.DTypeError, match=r"^\[outer\] expected int for 'n', got 'no'$"):
        outer("no")  # type: ignore[arg-type]
    with pytest.raises(bt.DTypeError, match=r"^\[outer\] expected str \| None for 'label', got 3$"):
        outer(1, label=3)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="own"):
        outer(6)
    with pytest.raises(TypeError, match="missing 1 required"):
        outer()  # type: ignore[call-arg]
