"""Operators that are registered from outside: through Python, and through the C interface as another library would."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from models import bits

import blutensor as bt
from blutensor import _calls, _native
from blutensor._table import ATTR_KINDS, OPERATORS

_numbers = itertools.count()
_KEPT: list[object] = []


def fresh(name: str) -> str:
    """The table of a process takes every name once."""
    return f"test.{name}{next(_numbers)}"


def scaled_square(name: str) -> Any:
    """Factor * x^2, with a gradient made of operators."""

    def infer(shapes: Any, dtypes: Any, factor: float) -> Any:
        return [(shapes[0], dtypes[0])]

    def launch(inputs: Any, outputs: Any, factor: float) -> None:
        np.multiply(inputs[0] * inputs[0], factor, out=outputs[0])

    def gradient(grads: Any, inputs: Any, outputs: Any, factor: float) -> Any:
        return [grads[0] * inputs[0] * (2.0 * factor)]

    return bt.register_operator(
        name, inputs=["x"], infer=infer, launch=launch, gradient=gradient, attributes={"factor": "floating"},
        doc="factor * x^2.",
    )  # fmt: skip


def test_eager_gradient_and_views() -> None:
    name = fresh("scaled_square")
    operator = scaled_square(name)
    assert operator.__doc__ == "factor * x^2."
    x = bt.asarray(np.arange(6.0).reshape(2, 3)).permute_dims(1, 0)
    np.testing.assert_array_equal(operator(x, 3.0).numpy(), 3 * x.numpy() ** 2)
    assert operator(bt.zeros((0, 2), dtype="float64"), 3.0).shape == (0, 2)
    x.requires_grad = True
    assert operator(x, 3.0).grad_fn == name
    bt.gradcheck(lambda t: operator(t, 0.5), [x])
    assert bt.registered(name)(x, 2.0).shape == (3, 2)


def test_captured() -> None:
    operator = scaled_square(fresh("scaled_square"))
    w = bt.asarray([1.0, 2.0, 3.0]).requires_grad_()

    def step(x: bt.Tensor) -> Any:
        loss = operator(x * w, 2.0).sum()
        return loss, bt.grad(loss, w)[0]

    f = bt.capture(step)
    for i in range(5):
        x = bt.full((3,), float(i))
        expected = [bits(t) for t in step(x)]
        assert [bits(t) for t in f(x)] == expected
    f.program.replay("operator")
    assert [bits(t) for t in f.program.outputs] == expected
    assert operator.__name__ in str(f.program)


def test_several_outputs_and_attributes_of_every_kind() -> None:
    seen = {}

    def infer(shapes: Any, dtypes: Any, **attributes: Any) -> Any:
        return [(shapes[0][:1], "int64"), ((), dtypes[1])]

    def launch(inputs: Any, outputs: Any, **attributes: Any) -> None:
        seen.update(attributes)
        outputs[0][...] = inputs[0].sum(1)
        outputs[1][...] = inputs[1].sum()

    kinds = {
        "a": "integer",
        "b": "floating",
        "c": "boolean",
        "d": "integers",
        "e": "dtype",
        "f": "string",
        "g": "floats",
    }
    operator = bt.register_operator(
        fresh("many"), inputs=["x", "y"], infer=infer, launch=launch, attributes=kinds, num_outputs=2
    )
    sums, total = operator(bt.ones((2, 3)), bt.ones(4), -7, 0.5, True, (1, 2), "float16", "text", [0.5, -0.0])
    assert sums.tolist() == [3, 3]
    assert total.item() == 4
    assert seen == {"a": -7, "b": 0.5, "c": True, "d": (1, 2), "e": bt.float16, "f": "text", "g": (0.5, -0.0)}
    with pytest.raises(NotImplementedError, match="no gradient"):
        operator(bt.ones((2, 3)), bt.ones(4).requires_grad_(), 1, 1.0, True, (), "float16", "", 2)[1].backward()


def test_errors_come_out_as_they_are() -> None:
    class Own(Exception):
        pass

    def fail(*_: Any, **__: Any) -> Any:
        raise Own("from the callback")

    def infer(shapes: Any, dtypes: Any) -> Any:
        return [(shapes[0], dtypes[0])]

    for name, callbacks in (("infer", (fail, lambda i, o: None)), ("launch", (infer, fail))):
        operator = bt.register_operator(fresh(name), inputs=["x"], infer=callbacks[0], launch=callbacks[1])
        with pytest.raises(Own, match="from the callback"):
            operator(bt.ones(2))
    wrong = bt.register_operator(fresh("wrong"), inputs=["x"], infer=lambda s, d: [], launch=lambda i, o: None)
    with pytest.raises(ValueError, match="expected 1 results of infer, got 0"):
        wrong(bt.ones(2))
    ranks = bt.register_operator(fresh("r"), inputs=["x"], infer=lambda s, d: [((1,) * 9, "float32")], launch=fail)
    with pytest.raises(ValueError, match="at most 8 axes"):
        ranks(bt.ones(2))
    negative = bt.register_operator(fresh("n"), inputs=["x"], infer=lambda s, d: [((-1,), "float32")], launch=fail)
    with pytest.raises(ValueError, match="at least 0"):
        negative(bt.ones(2))
    grads = bt.register_operator(
        fresh("g"), inputs=["x"], infer=infer, launch=lambda i, o: None, gradient=lambda g, i, o: []
    )
    with pytest.raises(ValueError, match="expected 1 gradients"):
        grads(bt.ones(()).requires_grad_()).backward()


def test_registration_is_checked() -> None:
    name = fresh("once")
    scaled_square(name)
    with pytest.raises(ValueError, match="taken"):
        scaled_square(name)
    with pytest.raises(ValueError, match="taken"):
        scaled_square("add")
    with pytest.raises(ValueError, match="kind out of"):
        bt.register_operator(fresh("k"), inputs=[], infer=list, launch=list, attributes={"a": "complex"})
    with pytest.raises(ValueError, match="identifiers"):
        bt.register_operator(fresh("i"), inputs=["a b"], infer=list, launch=list)
    with pytest.raises(ValueError, match="name of an operator"):
        bt.registered("nothing")


def test_through_the_c_interface() -> None:
    """What another library does: a descriptor with function pointers, and calls by id."""

    def infer(_: int, inputs: Any, attrs: Any, outputs: Any) -> int:
        if inputs[0].data is not None or inputs[0].rank != 1:
            _native.lib.blutensor_set_error(b"[negate] expected a vector")
            return 1
        outputs[0].dtype, outputs[0].rank, outputs[0].shape[0] = inputs[0].dtype, 1, inputs[0].shape[0]
        return 0

    def launch(_: int, inputs: Any, attrs: Any, outputs: Any, stream: int) -> int:
        source, target = (ctypes.cast(v[0].data, ctypes.POINTER(ctypes.c_float)) for v in (inputs, outputs))
        for i in range(inputs[0].shape[0]):
            target[i] = -source[i * inputs[0].strides[0]]
        return 0

    def gradient(_: int, inputs: Any, outputs: Any, grads: Any, attrs: Any, results: Any) -> int:
        count = ctypes.c_int32()
        negative = bt._table.OPERATORS["negative"].id
        arguments = (ctypes.c_void_p * 1)(grads[0])
        return int(_native.lib.blutensor_call(negative, arguments, 1, 0, None, 0, results, 1, ctypes.byref(count)))

    callbacks = _native.InferFn(infer), _native.LaunchFn(launch), _native.GradientFn(gradient)
    name = fresh("negate")
    desc = _native.OperatorDesc(
        struct_size=ctypes.sizeof(_native.OperatorDesc), num_inputs=1, num_outputs=1, name=name.encode(),
        input_names=(ctypes.c_char_p * 1)(b"x"), infer=callbacks[0], launch_cpu=callbacks[1], gradient=callbacks[2],
    )  # fmt: skip
    op_id = ctypes.c_uint32()
    register = _native.lib.blutensor_register_operator
    assert register(ctypes.byref(desc), ctypes.byref(op_id)) == 0
    negate = bt.registered(name)
    x = bt.asarray([1.0, 2.0, 3.0])[::-2].requires_grad_()
    y = negate(x)
    assert y.tolist() == [-3, -1]
    (y * bt.asarray([10.0, 20.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-10, -20]
    with pytest.raises(ValueError, match=r"\[negate\] expected a vector"):
        negate(bt.ones((2, 2)))
    f = bt.capture(lambda t: negate(t) * 2)
    assert [f(bt.full((2,), float(i))).tolist() for i in range(4)] == [[-2.0 * i] * 2 for i in range(4)]
    for field, value in (("struct_size", 8), ("lane", 9), ("effect", -1), ("num_inputs", -1), ("name", None)):
        broken = _native.OperatorDesc.from_buffer_copy(desc)
        setattr(broken, field, value)
        assert register(ctypes.byref(broken), ctypes.byref(op_id)) == 1
        assert "[register" in _native.last_error()
    wrong_kind = (_native.Attr * 1)(_native.Attr(kind=1))
    softmax = bt._table.OPERATORS["softmax"].id
    out, count = (ctypes.c_void_p * 1)(), ctypes.c_int32()
    call = _native.lib.blutensor_call
    handles = (ctypes.c_void_p * 1)(x._handle)
    assert call(softmax, handles, 1, 0, wrong_kind, 1, out, 1, ctypes.byref(count)) == 2
    assert call(softmax, handles, 1, 0, None, 0, out, 1, ctypes.byref(count)) == 1
    assert call(10**6, handles, 1, 0, None, 0, out, 1, ctypes.byref(count)) == 1
    _KEPT.append(callbacks)  # the table has no way to forget an operator


def test_axes_all_some_or_none() -> None:
    seen: list[Any] = []

    def infer(shapes: Any, dtypes: Any, *, axis: Any) -> Any:
        seen.append(axis)
        return [(shapes[0], dtypes[0])]

    def launch(inputs: Any, outputs: Any, *, axis: Any) -> None:
        seen.append(axis)
        outputs[0][...] = inputs[0]

    f = bt.register_operator(
        fresh("names_axes"), inputs=["x"], infer=infer, launch=launch, attributes={"axis": "axes"}, doc="x itself."
    )
    for given, expected in ((None, None), ((), ()), ([], ()), (1, (1,)), ([0, -1], (0, -1)), (np.array([1]), (1,))):
        seen.clear()
        assert f(bt.ones((2, 3)), given).shape == (2, 3)
        assert seen == [expected, expected]
    with pytest.raises(bt.DTypeError, match=r"expected axes for 'axis', got '1'"):
        f(bt.ones((2, 3)), "1")


def test_a_caller_of_before_axes_had_a_kind() -> None:
    """In the C interface until 1.2 axes were integers, and none of them meant all."""
    x = bt.arange(6, dtype="float32").reshape(2, 3)

    def total(kind: str, values: list[int], all_axes: int = 0) -> Any:
        attrs = (_native.Attr * 2)()
        listed = _native.int64_array(values)
        attrs[0].kind, attrs[0].count, attrs[0].i = ATTR_KINDS[kind], len(values), all_axes
        attrs[0].ints = ctypes.cast(listed, ctypes.POINTER(ctypes.c_int64))
        attrs[1].kind = ATTR_KINDS["boolean"]
        return _calls.invoke_one(OPERATORS["sum"].id, (x,), attrs).tolist()

    assert total("integers", []) == 15
    assert total("integers", [1]) == [3, 12]
    assert total("axes", []) == [[0, 1, 2], [3, 4, 5]]
    assert total("axes", [1]) == [3, 12]
    assert total("axes", [], all_axes=1) == total("axes", [1], all_axes=1) == 15
    with pytest.raises(bt.DTypeError, match=r"\[sum\] expected kind 7 for 'axis', got 4"):
        total("dtype", [])
