"""Calling native operators: handles and attributes in, tensors out."""

from __future__ import annotations

import contextlib
import ctypes
import operator
from array import array as doubles
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _native, devices, dtypes
from ._arguments import flag, number
from ._table import ATTR_KINDS, OPERATORS, OperatorSpec
from .errors import DTypeError, ShapeError
from .tensor import Tensor

_lib_call = _native.lib.blutensor_call
_lib_call_on = _native.lib.blutensor_call_on
_ARRAYS = [ctypes.c_void_p * n for n in range(64)]
_CACHE_LIMIT = 8192

AttrArray = ctypes.Array[_native.Attr]


def _handles(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    n = len(tensors)
    array = _ARRAYS[n] if n < 64 else ctypes.c_void_p * n
    return array(*[None if t is None else t._handle for t in tensors])


def invoke(
    op_id: int, tensors: Sequence[Tensor | None], attrs: AttrArray | None, num_outputs: int, list_length: int = 0
) -> list[Tensor]:
    """One native call. `tensors`: fixed inputs, then the lists."""
    outputs = (ctypes.c_void_p * num_outputs)()
    count = ctypes.c_int32()
    try:
        status = _lib_call(
            op_id,
            _handles(tensors),
            len(tensors),
            list_length,
            attrs,
            0 if attrs is None else len(attrs),
            outputs,
            num_outputs,
            ctypes.byref(count),
        )
        if status:
            _native.raise_status(status)
        return [Tensor._adopt(outputs, i) for i in range(count.value)]
    except BaseException:  # a Ctrl-C during the call is raised after it
        _native.release_handles(outputs)
        raise


def invoke_one(op_id: int, tensors: Sequence[Tensor | None], attrs: AttrArray | None) -> Tensor:
    """One native call with one output."""
    n = len(tensors)
    output = _ARRAYS[1]()
    count = ctypes.c_int32()
    try:
        status = _lib_call(
            op_id,
            _handles(tensors),
            n,
            0,
            attrs,
            0 if attrs is None else len(attrs),
            output,
            1,
            ctypes.byref(count),
        )
        if status:
            _native.raise_status(status)
        return Tensor._adopt(output)
    except BaseException:  # a Ctrl-C during the call is raised after it
        _native.release_handles(output)
        raise


def invoke_on(device: devices.DeviceKey, op_id: int, attrs: AttrArray | None) -> Tensor:
    """One native call of an operator without tensors: its one output, made on `device`."""
    output = _native.OwnedHandle()
    count = ctypes.c_int32()
    status = _lib_call_on(
        *device,
        op_id,
        _handles(()),
        0,
        0,
        attrs,
        0 if attrs is None else len(attrs),
        output,
        1,
        ctypes.byref(count),
    )
    if status:
        _native.raise_status(status)
    return Tensor._adopt(output)


def _whole(op: str, name: str, value: Any) -> int:
    """An integer of 64 bits; a flag is none."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, Tensor) and value.size != 1):
        raise TypeError
    number: int = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise ShapeError(f"[{op}] expected an integer of 64 bits for '{name}', got {dtypes.shown(number)}")
    return number


def _listed(value: Any) -> Any:
    """What is listed, of one value or several; no text, and no dictionary."""
    if isinstance(value, (str, bytes, Mapping)):
        raise TypeError
    is_one = value.ndim == 0 if isinstance(value, (Tensor, np.ndarray)) else hasattr(value, "__index__")
    return [value] if is_one else value


def _set(attr: _native.Attr, op: str, name: str, kind: str, value: Any, keep: list[Any]) -> None:
    attr.kind = ATTR_KINDS[kind]
    try:
        if kind == "floating":
            attr.f = number(op, name, value)
        elif kind == "axes" and value is None:
            attr.i = 1
        elif kind in ("integers", "axes"):
            values = [_whole(op, name, v) for v in _listed(value)]
            if len(values) > _native.MAX_RANK:
                raise ShapeError(f"[{op}] expected at most {_native.MAX_RANK} values for '{name}', got {len(values)}")
            array = _native.int64_array(values)
            keep.append(array)
            attr.count, attr.ints = len(values), ctypes.cast(array, ctypes.POINTER(ctypes.c_int64))
        elif kind == "floats":
            numbers = [number(op, name, v) for v in ([value] if hasattr(value, "__float__") else value)]
            values_of = (ctypes.c_double * len(numbers))(*numbers)
            keep.append(values_of)
            attr.count, attr.floats = len(numbers), ctypes.cast(values_of, ctypes.POINTER(ctypes.c_double))
        elif kind == "dtype":
            attr.i = dtypes.as_dtype(value, op).number
        elif kind == "string":
            text = value.encode()
            keep.append(text)
            attr.s = text
        elif kind == "boolean":
            attr.i = flag(op, name, value)
        else:
            attr.i = _whole(op, name, value)
    except (AttributeError, TypeError) as error:
        if isinstance(error, DTypeError) and str(error).startswith(f"[{op}]"):
            raise
        raise DTypeError(f"[{op}] expected {kind} for '{name}', got {dtypes.described(value)}") from None


class AttrBuilder:
    """Builds (and keeps) the attribute arrays of one operator; called with the values in the table's order."""

    def __init__(self, spec: OperatorSpec) -> None:
        self._spec = spec
        self._cache: dict[tuple[Any, ...], AttrArray] = {}
        self._floats = [k for k, attr in enumerate(spec.attrs) if attr.kind == "floats"]
        self._floating = [k for k, attr in enumerate(spec.attrs) if attr.kind == "floating"]
        self._lists = [k for k, attr in enumerate(spec.attrs) if attr.kind in ("integers", "axes")]

    def __call__(self, *values: Any) -> AttrArray:
        for k in self._lists:
            if type(values[k]) in (tuple, list) and any(type(v) is not int for v in values[k]):
                return self.build(values)  # (0, True) and (0.0, 1) are keys equal to (0, 1)
        key = self._with_bits(values) if self._floats else values
        key = (*key, *map(type, values))  # as are True and 1.0 to 1
        try:
            found = self._cache.get(key)
        except TypeError:  # a list
            try:
                key = tuple(tuple(v) if isinstance(v, list) else v for v in key)
                found = self._cache.get(key)
            except TypeError:  # an array, or a mistake
                return self.build(values)
        if found is not None and not any(values[k] == 0 for k in self._floating):  # 0.0 == -0.0
            return found
        array = self.build(values)
        if len(self._cache) >= _CACHE_LIMIT:
            self._cache.clear()
        self._cache[key] = array
        return array

    def _with_bits(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sequences of floats as their bits, in which 0.0 is not -0.0."""
        key = list(values)
        for k in self._floats:
            if isinstance(key[k], (tuple, list)):
                with contextlib.suppress(TypeError):  # no numbers: build() says so
                    key[k] = doubles("d", key[k]).tobytes()
        return tuple(key)

    def build(self, values: Sequence[Any]) -> AttrArray:
        """A fresh array."""
        spec = self._spec
        keep: list[Any] = []
        array = (_native.Attr * len(spec.attrs))()
        for attr, given, slot in zip(spec.attrs, values, array, strict=True):
            if attr.choices and not (isinstance(given, str) and given in attr.choices):
                choices = ", ".join(attr.choices)
                raise ShapeError(
                    f"[{spec.name}] expected {attr.name} to be one of {choices}, got {dtypes.described(given)}"
                )
            _set(slot, spec.name, attr.name, attr.kind, given, keep)
        array._keep = keep  # type: ignore[attr-defined]
        return array


_full_attrs = AttrBuilder(OPERATORS["full"])
_full_integer_attrs = AttrBuilder(OPERATORS["full_integer"])
EXACT_INTEGERS = 2**53  # larger ones are not all float64 numbers
_arange_attrs = AttrBuilder(OPERATORS["arange"])


def full_on(shape: Any, value: Any, dtype: Any, device: devices.DeviceKey | None, op: str = "full") -> Tensor:
    """The operator `full` on a device, None for the default one; errors name `op`.

    Raises:
        NumberRangeError: A number that the integer dtype does not hold.
    """
    attrs, op_id = None, OPERATORS["full"].id
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in (int, float) and not 0 <= value <= 127:  # what every integer dtype holds
        target = dtypes.as_dtype(dtype)
        if target.kind == "integer":
            dtypes.check_number(op, value, target)
            if type(value) is int and not -EXACT_INTEGERS <= value <= EXACT_INTEGERS:
                op_id = OPERATORS["full_integer"].id
                attrs = _full_integer_attrs(shape, value - 2**64 if value >= 2**63 else value, target)
        else:
            value = number(op, "value", value)
    if attrs is None:
        attrs = _full_attrs(shape, value, dtype)
    return invoke_one(op_id, (), attrs) if device is None else invoke_on(device, op_id, attrs)


def arange_on(start: float, stop: float, step: float, dtype: Any, device: devices.DeviceKey) -> Tensor:
    """The operator `arange` on a device."""
    return invoke_on(device, OPERATORS["arange"].id, _arange_attrs(start, stop, step, dtype))


def need_tensor(op: str, name: str, value: object) -> Tensor:
    """The value, if it is a tensor.

    Raises:
        DTypeError: It is something else.
    """
    if not isinstance(value, Tensor):
        raise DTypeError(
            f"[{op}] expected a blutensor.Tensor for '{name}', got {type(value).__name__}; use blutensor.asarray"
        )
    return value


def scalars_to_tensors(
    op: str, values: tuple[Any, ...], names: tuple[str, ...], full: Callable[..., Tensor]
) -> tuple[Tensor, ...]:
    """Turns Python numbers among operands into 0-d tensors of the first tensor's dtype.

    They are made on the device of the first tensor.
    A float beside integer tensors becomes float32, as in PyTorch; numbers alone become float32, int64 or bool.

    Raises:
        NumberRangeError: An integer out of the range of the integer dtype.
        DTypeError: A negative integer as the exponent of integers, which would give 0.
    """
    first = next((v for v in values if isinstance(v, Tensor)), None)
    dtype, device = (None, None) if first is None else first._fixed()[2:]

    def convert(value: Any, name: str) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, (bool, int, float)):
            return need_tensor(op, name, value)
        if op == "pow" and name == names[1] and isinstance(value, int) and value < 0:
            base = dtypes.scalar_dtype(values[0], None) if dtype is None else dtype
            if not base.is_floating:
                raise DTypeError(f"[pow] expected floats for the exponent {value}, got {base.name}; use {value}.0")
        return full((), value, dtypes.scalar_dtype(value, dtype), device, op)

    return tuple(convert(v, n) for v, n in zip(values, names, strict=True))
