"""Operators of the user's own, in the same table as the built-in ones: eager, differentiated, captured and replayed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from . import _native, dtypes
from ._arguments import function, integer, text
from ._operators import build
from ._table import ATTR_KINDS, OPERATORS, load
from .autograd import borrowed, give
from .errors import ShapeError
from .tensor import Tensor
from .transfer import array_over

Infer = Callable[..., Sequence[tuple[Sequence[int], dtypes.DType | str]]]
Launch = Callable[..., None]
Gradient = Callable[..., Sequence[Tensor | None]]

_KIND_NAMES = {number: kind for kind, number in ATTR_KINDS.items()}
_registered: list[object] = []  # callbacks live as long as the process: programs may hold on to an operator


def _attributes(names: Sequence[str], attrs: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for k, name in enumerate(names):
        attr = attrs[k]
        kind = _KIND_NAMES[attr.kind]
        if kind == "floating":
            values[name] = attr.f
        elif kind == "integers" or (kind == "axes" and not attr.i):
            values[name] = tuple(attr.ints[: attr.count])
        elif kind == "axes":
            values[name] = None
        elif kind == "floats":
            values[name] = tuple(attr.floats[: attr.count])
        elif kind == "dtype":
            values[name] = dtypes.ALL[attr.i]
        elif kind == "string":
            values[name] = attr.s.decode()
        else:
            values[name] = bool(attr.i) if kind == "boolean" else attr.i
    return values


def _array(view: _native.NativeView) -> npt.NDArray[Any]:
    shape, strides = tuple(view.shape[: view.rank]), tuple(view.strides[: view.rank])
    return array_over(view.data or 0, shape, strides, dtypes.ALL[view.dtype])


def register_operator(
    name: str,
    *,
    inputs: Sequence[str],
    infer: Infer,
    launch: Launch,
    gradient: Gradient | None = None,
    attributes: Mapping[str, str] | None = None,
    num_outputs: int = 1,
    doc: str = "",
) -> Callable[..., Any]:
    """Adds an operator that Python computes; other libraries register native ones through `blutensor.h`.

    Args:
        name: New in the table.
        inputs: Names of the tensors that it takes.
        infer: `infer(shapes, dtypes, **attributes)` gives a (shape, dtype) per output; it raises for what does not fit.
        launch: `launch(inputs, outputs, **attributes)` fills the outputs; all are NumPy arrays over the tensors' memory
            (bfloat16 as its bits). Replays call it too.
        gradient: `gradient(grads, inputs, outputs, **attributes)` gives the gradient of every input (or None) from
            those of the outputs (None where unused), by calling operators. Without it there is no gradient.
        attributes: Name to kind: "integer", "floating", "boolean", "integers", "dtype", "string",
            "floats" (a number, or a sequence of them; a tuple for the callbacks) or "axes" (an integer, a sequence of
            them, or None for all; a tuple or None for the callbacks).
        num_outputs: Tensors that it returns.
        doc: What it computes.

    Returns:
        The function: tensors first, then attributes.

    Raises:
        ShapeError: The name is taken, or an attribute has an unknown kind.
    """
    for what, value in (("name", name), *(("inputs", i) for i in inputs)):
        text("register_operator", what, value)
    for what, callback in (("infer", infer), ("launch", launch), ("gradient", gradient)):
        if what != "gradient" or callback is not None:
            function("register_operator", what, callback)
    num_outputs = integer("register_operator", "num_outputs", num_outputs, least=0)
    kinds = dict(attributes or {})
    for attribute, kind in kinds.items():
        if kind not in ATTR_KINDS:
            raise ShapeError(
                f"[register_operator] expected a kind out of {', '.join(ATTR_KINDS)} for '{attribute}', got {kind!r}"
            )
    n, names = len(inputs), list(kinds)

    def call_infer(_context: int, ins: Any, attrs: Any, outs: Any) -> int:
        try:
            shapes = [tuple(ins[i].shape[: ins[i].rank]) for i in range(n)]
            results = infer(shapes, [dtypes.ALL[ins[i].dtype] for i in range(n)], **_attributes(names, attrs))
            if len(results) != num_outputs:
                raise ShapeError(f"[{name}] expected {num_outputs} results of infer, got {len(results)}")
            for i, (shape, dtype) in enumerate(results):
                if len(shape) > _native.MAX_RANK:
                    raise ShapeError(f"[{name}] expected at most {_native.MAX_RANK} axes, got {len(shape)}")
                outs[i].rank, outs[i].dtype = len(shape), dtypes.as_dtype(dtype).number
                outs[i].shape[: len(shape)] = [int(d) for d in shape]
            return 0
        except BaseException as error:
            return _native.callback_failed(error)

    def call_launch(_context: int, ins: Any, attrs: Any, outs: Any, _stream: int) -> int:
        try:
            results = [_array(outs[i]) for i in range(num_outputs)]
            launch([_array(ins[i]) for i in range(n)], results, **_attributes(names, attrs))
            return 0
        except BaseException as error:
            return _native.callback_failed(error)

    def call_gradient(_context: int, ins: Any, outs: Any, grads: Any, attrs: Any, results: Any) -> int:
        def tensors(handles: Any, count: int) -> list[Tensor | None]:
            return [borrowed(handles[i]) if handles[i] else None for i in range(count)]

        try:
            assert gradient is not None
            found = gradient(
                tensors(grads, num_outputs), tensors(ins, n), tensors(outs, num_outputs), **_attributes(names, attrs)
            )
            if len(found) != n:
                raise ShapeError(f"[{name}] expected {n} gradients, one per input, got {len(found)}")
            for i, g in enumerate(found):
                results[i] = None if g is None else give(g)
            return 0
        except BaseException as error:
            return _native.callback_failed(error)

    saved = (1 << 64) - 1 if gradient is not None else 0
    callbacks = (
        _native.InferFn(call_infer),
        _native.LaunchFn(call_launch),
        _native.GradientFn(call_gradient) if gradient is not None else _native.GradientFn(),
    )
    desc = _native.OperatorDesc(
        struct_size=ctypes.sizeof(_native.OperatorDesc),
        num_inputs=n,
        num_outputs=num_outputs,
        num_attrs=len(names),
        name=name.encode(),
        doc=doc.encode(),
        input_names=(ctypes.c_char_p * n)(*[i.encode() for i in inputs]),
        attr_names=(ctypes.c_char_p * len(names))(*[a.encode() for a in names]),
        attr_kinds=(ctypes.c_int32 * len(names))(*[ATTR_KINDS[k] for k in kinds.values()]),
        saved_inputs=saved,
        saved_outputs=saved,
        infer=callbacks[0],
        launch_cpu=callbacks[1],
        gradient=callbacks[2],
    )
    op_id = ctypes.c_uint32()
    _native.check(_native.lib.blutensor_register_operator(ctypes.byref(desc), ctypes.byref(op_id)))
    _registered.append(callbacks)
    OPERATORS[name] = load()[name]
    return build(OPERATORS[name])


def registered(name: str) -> Callable[..., Any]:
    """The Python function of an operator that another library registered through C.

    Raises:
        ShapeError: There is no such operator.
    """
    table = load()
    if name not in table:
        raise ShapeError(f"[registered] expected the name of an operator, got {name!r}")
    OPERATORS[name] = table[name]
    return build(OPERATORS[name])
