"""The matrix product with its epilogues."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from blublas import _native
from blublas._batch import batch_shape
from blublas._call import Product, new_array
from blublas._cuda import Producer, stream_number
from blublas._views import DTYPE_NAMES, Array, View, cuda_device
from blublas._views import view as look_at
from blublas.errors import InvalidTypeError, InvalidValueError, integer

__all__ = ["Activation", "Approximate", "Math", "gemm"]

Math = Literal["ieee", "tf32"]
Activation = Literal["gelu_tanh", "gelu_erf"]
Approximate = Literal["tanh", "none"]

_Out = TypeVar("_Out", bound=Array)

_MOST_THREADS = 2**31 - 1  # what the native interface holds

_ACTIVATIONS = {"gelu_tanh": _native.EPILOGUE_GELU_TANH, "gelu_erf": _native.EPILOGUE_GELU_ERF}
_MATH = {"ieee": _native.MATH_IEEE, "tf32": _native.MATH_TF32}
_GRADIENTS = {"tanh": _native.EPILOGUE_GELU_TANH_GRADIENT, "none": _native.EPILOGUE_GELU_ERF_GRADIENT}


@overload
def gemm(
    a: Array,
    b: Array,
    out: None = None,
    *,
    alpha: float = ...,
    beta: float = ...,
    transpose_a: bool = ...,
    transpose_b: bool = ...,
    bias: Array | None = ...,
    activation: Activation | None = ...,
    preactivation: Array | None = ...,
    gelu_gradient_of: Array | None = ...,
    approximate: Approximate = ...,
    residual: Array | None = ...,
    accumulate: bool = ...,
    column_sum: Array | None = ...,
    column_sum_accumulate: bool = ...,
    row_sum_a: Array | None = ...,
    row_sum_a_accumulate: bool = ...,
    num_threads: int = ...,
    math: Math = ...,
    stream: object = ...,
) -> NDArray[Any]: ...
@overload
def gemm(
    a: Array,
    b: Array,
    out: _Out,
    *,
    alpha: float = ...,
    beta: float = ...,
    transpose_a: bool = ...,
    transpose_b: bool = ...,
    bias: Array | None = ...,
    activation: Activation | None = ...,
    preactivation: Array | None = ...,
    gelu_gradient_of: Array | None = ...,
    approximate: Approximate = ...,
    residual: Array | None = ...,
    accumulate: bool = ...,
    column_sum: Array | None = ...,
    column_sum_accumulate: bool = ...,
    row_sum_a: Array | None = ...,
    row_sum_a_accumulate: bool = ...,
    num_threads: int = ...,
    math: Math = ...,
    stream: object = ...,
) -> _Out: ...
def gemm(
    a: Array,
    b: Array,
    out: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: Array | None = None,
    activation: Activation | None = None,
    preactivation: Array | None = None,
    gelu_gradient_of: Array | None = None,
    approximate: Approximate = "tanh",
    residual: Array | None = None,
    accumulate: bool = False,
    column_sum: Array | None = None,
    column_sum_accumulate: bool = False,
    row_sum_a: Array | None = None,
    row_sum_a_accumulate: bool = False,
    num_threads: int = 0,
    math: Math = "ieee",
    stream: object = None,
) -> Array:
    """Matrix product with fused epilogues.

    In this order, in float32 (float64 for float64 operands)::

        v  = alpha * a @ b
        v += beta * out                     # out is not read when beta is 0
        v += bias
        preactivation = v
        v  = gelu(v)                        # activation
        v *= gelu'(gelu_gradient_of)
        v += residual
        v += out                            # accumulate
        out = v
        column_sum (+)= v.sum(-2); row_sum_a (+)= a.sum(-1)

    Arrays are NumPy arrays, or CPU or CUDA arrays with ``__dlpack__`` (PyTorch, CuPy, JAX, blutensor), all on one
    device. Nothing is copied. What is read may have any strides; what is written must not overlap itself or anything
    read, except that ``residual`` and ``gelu_gradient_of`` may be ``out``. The result has the same bits for any number
    of threads, and every time. On CUDA the work is in the stream when the function returns.

    Args:
        a: [..., M, K] (with ``transpose_a`` [..., K, M]); float32, float64 or bfloat16.
        b: [..., K, N] (with ``transpose_b`` [..., N, K]), of a's dtype. Leading axes broadcast with a's.
        out: [..., M, N], of a's dtype, or float32 for bfloat16 operands. None makes a NumPy array of a's dtype, of
            float32 for bfloat16; on CUDA an array of a's library and dtype.
        alpha: factor of the product.
        beta: factor of what ``out`` held.
        transpose_a: swap the last two axes of a.
        transpose_b: swap the last two axes of b.
        bias: [..., N], contiguous along N, broadcasts. It, preactivation, gelu_gradient_of and residual are of float32
            (float64 for float64 operands) or of out's dtype.
        activation: ``gelu_tanh`` or ``gelu_erf``.
        preactivation: [..., M, N], where the value before the activation is stored.
        gelu_gradient_of: [..., M, N], broadcasts: pre-activation whose GELU derivative the result is multiplied with.
        approximate: which GELU's derivative that is: ``tanh`` or ``none`` (erf), as PyTorch names them.
        residual: broadcasts to [..., M, N]; added after the activation.
        accumulate: add to what ``out`` held, after everything else.
        column_sum: [..., N], contiguous along N, float32 (float64 for float64 operands): where the sums of the result's
            columns are stored, taken before the result is rounded to out's dtype.
        column_sum_accumulate: add to what ``column_sum`` held.
        row_sum_a: [..., M], likewise: sums of a's rows (of the operand after ``transpose_a``, without alpha).
        row_sum_a_accumulate: add to what ``row_sum_a`` held.
        num_threads: at most this many of the pool's threads; 0 is all of them. Of no matter on CUDA.
        math: how float32 operands are multiplied on CUDA: ``ieee``, or ``tf32`` on tensor cores, with operands rounded
            to the nearest number of 10 bits of mantissa and float32 sums. Of no matter elsewhere.
        stream: CUDA stream to work on: a handle, or an object with ``__cuda_stream__``, ``cuda_stream`` or ``ptr``.
            None is the current one of a's library (PyTorch, CuPy), otherwise the legacy default stream.

    Returns:
        ``out``, or the new array.

    Raises:
        InvalidValueError: shapes, strides, overlaps or options that do not fit.
        InvalidTypeError: dtypes that do not fit, no arrays, or flags that are no bools.
        OutOfMemoryError: no memory for the new array or for the workspace.
        UnsupportedError: an array on another device.
    """
    transpose_a, transpose_b = _flag("transpose_a", transpose_a), _flag("transpose_b", transpose_b)
    accumulate = _flag("accumulate", accumulate)
    column_sum_accumulate = _flag("column_sum_accumulate", column_sum_accumulate)
    row_sum_a_accumulate = _flag("row_sum_a_accumulate", row_sum_a_accumulate)
    device = cuda_device(a)
    producer = None if device is None else Producer(a, device)
    number = 0
    if stream is not None:
        number = stream_number(stream)
    elif producer is not None:
        number = producer.current_stream()

    def view(array: Array, name: str, *, written: bool = False) -> View:
        own = cuda_device(array)
        if own != device:
            raise InvalidValueError(
                f"[gemm] expected all arrays on one device, got a on {_device_name(device)} and {name} on "
                f"{_device_name(own)}"
            )
        return look_at(array, name, written=written, stream=number)

    view_a, view_b = _operand(view(a, "a"), transpose_a), _operand(view(b, "b"), transpose_b)
    batch = batch_shape(view_a, view_b)
    rows, cols = view_a.shape[-2], view_b.shape[-1]
    shape = (*batch, rows, cols)
    if view_a.shape[-1] != view_b.shape[-2]:
        raise InvalidValueError(
            f"[gemm] expected a [..., M, K] and b [..., K, N] with one K, got {view_a.shape} and {view_b.shape} (after "
            "transpose_a and transpose_b)"
        )
    if out is None:
        if _factor("beta", beta) != 0 or accumulate:
            raise InvalidValueError("[gemm] expected out with beta or accumulate, got None; pass the array to add to")
        if producer is not None:
            out = cast(Array, producer.empty_like(shape, number))
        else:
            out = new_array("the result", shape, np.float64 if view_a.dtype == _native.FLOAT64 else np.float32)
    view_c = _shaped(view(out, "out", written=True), shape)

    epilogue = _native.EPILOGUE_ACCUMULATE if accumulate else 0
    view_bias = None if bias is None else _vector(view(bias, "bias"), (*batch, cols))
    if view_bias is not None:
        epilogue |= _native.EPILOGUE_BIAS
    if activation is not None:
        epilogue |= _choice("activation", activation, _ACTIVATIONS)
    aux, gradient = None, _choice("approximate", approximate, _GRADIENTS)
    if preactivation is not None:
        if gelu_gradient_of is not None:
            raise InvalidValueError("[gemm] expected preactivation or gelu_gradient_of, got both; leave one out")
        aux = _shaped(view(preactivation, "preactivation", written=True), shape)
        epilogue |= _native.EPILOGUE_STORE_PREACTIVATION
    elif gelu_gradient_of is not None:
        aux = view(gelu_gradient_of, "gelu_gradient_of").broadcast(shape)
        epilogue |= gradient
    view_residual = None if residual is None else view(residual, "residual").broadcast(shape)
    if view_residual is not None:
        epilogue |= _native.EPILOGUE_RESIDUAL
    sum_dtype = _native.FLOAT64 if view_a.dtype == _native.FLOAT64 else _native.FLOAT32
    seen_column_sum = None if column_sum is None else view(column_sum, "column_sum", written=True)
    view_column_sum = _sum("column_sum", seen_column_sum, (*batch, cols), sum_dtype, column_sum_accumulate)
    if view_column_sum is not None:
        epilogue |= _native.EPILOGUE_COLUMN_SUM
        epilogue |= _native.EPILOGUE_COLUMN_SUM_ACCUMULATE if column_sum_accumulate else 0
    seen_row_sum_a = None if row_sum_a is None else view(row_sum_a, "row_sum_a", written=True)
    view_row_sum_a = _sum("row_sum_a", seen_row_sum_a, (*batch, rows), sum_dtype, row_sum_a_accumulate)
    if view_row_sum_a is not None:
        epilogue |= _native.EPILOGUE_ROW_SUM_A
        epilogue |= _native.EPILOGUE_ROW_SUM_A_ACCUMULATE if row_sum_a_accumulate else 0

    Product(
        a=view_a.broadcast((*batch, *view_a.shape[-2:])),
        b=view_b.broadcast((*batch, *view_b.shape[-2:])),
        c=view_c,
        epilogue=epilogue,
        alpha=_factor("alpha", alpha),
        beta=_factor("beta", beta),
        num_threads=_thread_limit(num_threads),
        bias=view_bias,
        aux=aux,
        residual=view_residual,
        column_sum=view_column_sum,
        row_sum_a=view_row_sum_a,
        math=_choice("math", math, _MATH),
        producer=producer,
        stream=number,
    ).run()
    return out


def _device_name(device: int | None) -> str:
    return "the CPU" if device is None else f"cuda:{device}"


def _operand(seen: View, transpose: bool) -> View:
    if len(seen.shape) < 2:
        raise InvalidValueError(
            f"[gemm] expected {seen.name} with two or more axes, got shape {seen.shape}; add one of size 1"
        )
    return seen.transposed() if transpose else seen


def _shaped(seen: View, shape: tuple[int, ...]) -> View:
    if seen.shape != shape:
        raise InvalidValueError(f"[gemm] expected {seen.name} of shape {shape}, got {seen.shape}")
    return seen


def _vector(seen: View, shape: tuple[int, ...]) -> View:
    """A vector per member of the batch, which the native library wants contiguous."""
    if seen.shape[-1:] != shape[-1:] or (shape[-1] > 1 and seen.strides[-1] != 1):
        raise InvalidValueError(
            f"[gemm] expected {seen.name} [..., {shape[-1]}] with a contiguous last axis, got shape {seen.shape} with "
            f"strides {seen.strides}; pass a copy"
        )
    return seen.broadcast(shape)


def _sum(name: str, array: View | None, shape: tuple[int, ...], dtype: int, accumulate: bool) -> View | None:
    if array is None:
        if accumulate:
            raise InvalidValueError(
                f"[gemm] expected {name} with {name}_accumulate, got None; pass the array to add to"
            )
        return None
    seen = _vector(_shaped(array, shape), shape)
    if seen.dtype != dtype:
        raise InvalidTypeError(f"[gemm] expected {name} as {DTYPE_NAMES[dtype]}, got {DTYPE_NAMES[seen.dtype]}")
    return seen


def _choice(name: str, value: str, flags: dict[str, int]) -> int:
    if not isinstance(value, str) or value not in flags:
        raise InvalidValueError(f"[gemm] expected {name} of {', '.join(map(repr, flags))}, got {value!r}")
    return flags[value]


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidTypeError(f"[gemm] expected {name} of True or False, got {value!r}")
    return bool(value)


def _thread_limit(number: int) -> int:
    limit = integer("gemm", "num_threads", number)
    if limit < 0:
        raise InvalidValueError(f"[gemm] expected num_threads of 0 or more, got {limit}")
    if limit > _MOST_THREADS:
        raise InvalidValueError(
            f"[gemm] expected num_threads of at most {_MOST_THREADS}, got {limit}; 0 is all of them"
        )
    return limit


def _factor(name: str, value: float) -> float:
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
        except OverflowError:
            raise InvalidValueError(f"[gemm] expected {name} that float64 holds, got a larger integer") from None
    raise InvalidTypeError(f"[gemm] expected {name} as a number, got {value!r}")
