"""The matrix product with its epilogues."""

from __future__ import annotations

import ctypes
import threading
from typing import Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from blublas import _native
from blublas._batch import batch_shape, batch_stride, matrix, pointers
from blublas._views import DTYPE_NAMES, Array, View, view
from blublas.errors import check

__all__ = ["Activation", "gemm"]

Activation = Literal["gelu_tanh", "gelu_erf", "gelu_tanh_gradient", "gelu_erf_gradient"]

_Out = TypeVar("_Out", bound=Array)

_ACTIVATIONS: dict[str, int] = {
    "gelu_tanh": _native.EPILOGUE_GELU_TANH,
    "gelu_erf": _native.EPILOGUE_GELU_ERF,
    "gelu_tanh_gradient": _native.EPILOGUE_GELU_TANH_GRADIENT,
    "gelu_erf_gradient": _native.EPILOGUE_GELU_ERF_GRADIENT,
}
_ALIGNMENT = 64


class _Workspace(threading.local):
    """A buffer per thread that grows to what was needed most."""

    def __init__(self) -> None:
        self.buffer: NDArray[np.uint8] = np.empty(0, np.uint8)

    def at_least(self, num_bytes: int) -> int:
        """Address of that many bytes, aligned."""
        if self.buffer.nbytes < num_bytes + _ALIGNMENT:
            self.buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        return -(-self.buffer.ctypes.data // _ALIGNMENT) * _ALIGNMENT


_workspace = _Workspace()


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
    residual: Array | None = ...,
    accumulate: bool = ...,
    column_sum: Array | None = ...,
    column_sum_accumulate: bool = ...,
    row_sum_a: Array | None = ...,
    row_sum_a_accumulate: bool = ...,
    num_threads: int = ...,
) -> np.ndarray: ...
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
    residual: Array | None = ...,
    accumulate: bool = ...,
    column_sum: Array | None = ...,
    column_sum_accumulate: bool = ...,
    row_sum_a: Array | None = ...,
    row_sum_a_accumulate: bool = ...,
    num_threads: int = ...,
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
    residual: Array | None = None,
    accumulate: bool = False,
    column_sum: Array | None = None,
    column_sum_accumulate: bool = False,
    row_sum_a: Array | None = None,
    row_sum_a_accumulate: bool = False,
    num_threads: int = 0,
) -> Array:
    """Matrix product with fused epilogues: ``out = f(alpha a @ b + beta out)``.

    In this order, in float32 (float64 for float64 operands)::

        v  = alpha * a @ b + beta * out     # out is not read when beta is 0
        v += bias
        preactivation = v                   # when given, unless the activation is a gradient
        v  = gelu(v), or v *= gelu'(preactivation)
        v += residual
        v += out                            # accumulate
        out = v
        column_sum (+)= v.sum(-2); row_sum_a (+)= a.sum(-1)

    Arrays are NumPy arrays, or CPU arrays with ``__dlpack__`` (PyTorch, JAX); nothing is copied, any strides are fine for
    what is read, and what is written must not overlap itself. The result has the same bits for any number of threads.

    Args:
        a: [..., M, K] (with ``transpose_a`` [..., K, M]); float32, float64 or bfloat16.
        b: [..., K, N] (with ``transpose_b`` [..., N, K]), of a's dtype. Leading dimensions broadcast with a's.
        out: [..., M, N], of a's dtype or, for bfloat16 operands, float32. A new NumPy array when None: of a's dtype, float32
            for bfloat16.
        alpha: factor of the product.
        beta: factor of what ``out`` held.
        transpose_a: swap the last two dimensions of a.
        transpose_b: swap the last two dimensions of b.
        bias: [N]; like the next two of the accumulation dtype or out's.
        activation: ``gelu_tanh`` or ``gelu_erf``, or the factor ``gelu_tanh_gradient`` or ``gelu_erf_gradient``.
        preactivation: [..., M, N]; stored, or read by the gradients.
        residual: [..., M, N], added after the activation; may be ``out``. Broadcasts.
        accumulate: add to what ``out`` held, after everything else.
        column_sum: [..., N], of the accumulation dtype; sums of the result's columns.
        column_sum_accumulate: add to what ``column_sum`` held.
        row_sum_a: [..., M], of the accumulation dtype; sums of a's rows.
        row_sum_a_accumulate: add to what ``row_sum_a`` held.
        num_threads: at most this many of the pool's threads; 0 is all of them.

    Returns:
        ``out``, or the new array.

    Raises:
        ValueError: shapes, strides, overlaps or options that do not fit.
        TypeError: dtypes that do not fit, or no arrays.
        NotImplementedError: an array on another device.
    """
    view_a, view_b = (_operand(x, name, flip) for x, name, flip in ((a, "a", transpose_a), (b, "b", transpose_b)))
    batch = batch_shape(a=view_a, b=view_b)
    shape = (*batch, view_a.shape[-2], view_b.shape[-1])
    if out is None:
        if beta != 0 or accumulate:
            raise ValueError("[gemm] expected out with beta or accumulate, got None; pass the array to add to")
        out = np.empty(shape, np.float64 if view_a.dtype == _native.FLOAT64 else np.float32)
    view_c = _operand(out, "out", False, written=True)
    _expect_shape("out", view_c, shape)

    args = _native.GemmArgs(struct_size=ctypes.sizeof(_native.GemmArgs), num_threads=num_threads)
    args.batch = int(np.prod(batch, dtype=np.int64))
    args.alpha, args.beta = alpha, beta
    for name, operand in (("a", view_a), ("b", view_b), ("c", view_c)):
        stride = batch_stride(operand, batch)
        setattr(args, name, matrix(operand, stride or 0))
        if stride is None:
            setattr(args, f"{name}_array", pointers(operand, batch))

    keep = [
        _set_bias(args, bias),
        _set_preactivation(args, activation, preactivation, shape),
        _set_residual(args, residual, shape),
        _set_sum(args, "column_sum", column_sum, (*batch, shape[-1]), column_sum_accumulate),
        _set_sum(args, "row_sum_a", row_sum_a, (*batch, shape[-2]), row_sum_a_accumulate),
    ]
    if accumulate:
        args.epilogue |= _native.EPILOGUE_ACCUMULATE

    num_bytes = ctypes.c_size_t()
    check(_native.library.blublas_gemm_workspace(args, num_bytes))
    args.workspace = _workspace.at_least(num_bytes.value)
    args.workspace_bytes = num_bytes.value
    check(_native.library.blublas_gemm(args))
    del keep  # alive until here
    return out


def _operand(array: Array, name: str, flip: bool, *, written: bool = False) -> View:
    seen = view(array, name, written=written)
    if len(seen.shape) < 2:
        raise ValueError(f"[gemm] expected {name} with two or more dimensions, got shape {seen.shape}; add one of size 1")
    return seen.transposed() if flip else seen


def _expect_shape(name: str, seen: View, shape: tuple[int, ...]) -> None:
    if seen.shape != shape:
        raise ValueError(f"[gemm] expected {name} of shape {shape}, got {seen.shape}")


def _single_stride(name: str, seen: View, batch: tuple[int, ...], core: int = 2) -> int:
    stride = batch_stride(seen, batch, core)
    if stride is None:
        raise ValueError(
            f"[gemm] expected {name} with one stride over the whole batch {batch}, got strides {seen.strides}; "
            "make it contiguous"
        )
    return stride


def _set_bias(args: _native.GemmArgs, bias: Array | None) -> View | None:
    if bias is None:
        return None
    seen = view(bias, "bias")
    _expect_shape("bias", seen, (args.b.cols,))
    if seen.shape[0] > 1 and seen.strides != (1,):
        raise ValueError(f"[gemm] expected a contiguous bias, got stride {seen.strides[0]}; pass a copy")
    args.epilogue |= _native.EPILOGUE_BIAS
    args.bias, args.bias_dtype = seen.address, seen.dtype
    return seen


def _set_preactivation(
    args: _native.GemmArgs, activation: str | None, preactivation: Array | None, shape: tuple[int, ...]
) -> View | None:
    if activation is not None:
        if activation not in _ACTIVATIONS:
            raise ValueError(f"[gemm] expected an activation of {', '.join(_ACTIVATIONS)} or None, got {activation!r}")
        args.epilogue |= _ACTIVATIONS[activation]
    gradient = activation is not None and activation.endswith("_gradient")
    if preactivation is None:
        if gradient:
            raise ValueError(f"[gemm] expected preactivation with {activation}, got None; pass the forward pass's")
        return None
    if not gradient:
        args.epilogue |= _native.EPILOGUE_STORE_PREACTIVATION
    seen = view(preactivation, "preactivation", written=not gradient)
    _expect_shape("preactivation", seen, shape)
    args.aux = matrix(seen, _single_stride("preactivation", seen, shape[:-2]))
    return seen


def _set_residual(args: _native.GemmArgs, residual: Array | None, shape: tuple[int, ...]) -> View | None:
    if residual is None:
        return None
    seen = view(residual, "residual")
    try:
        fits = np.broadcast_shapes(seen.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"[gemm] expected residual that broadcasts to {shape}, got {seen.shape}")
    # Missing dimensions and those of size 1 are walked with stride 0.
    missing = len(shape) - len(seen.shape)
    own = zip((1,) * missing + seen.shape, (0,) * missing + seen.strides, strict=True)
    seen = View(seen.address, seen.dtype, shape, tuple(0 if size == 1 else stride for size, stride in own), seen.owner)
    args.epilogue |= _native.EPILOGUE_RESIDUAL
    args.residual = matrix(seen, _single_stride("residual", seen, shape[:-2]))
    return seen


def _set_sum(
    args: _native.GemmArgs, name: str, vector: Array | None, shape: tuple[int, ...], accumulate: bool
) -> View | None:
    if vector is None:
        if accumulate:
            raise ValueError(f"[gemm] expected {name} with {name}_accumulate, got None")
        return None
    seen = view(vector, name, written=True)
    _expect_shape(name, seen, shape)
    if seen.shape[-1] > 1 and seen.strides[-1] != 1:
        raise ValueError(f"[gemm] expected {name} with contiguous vectors, got stride {seen.strides[-1]}")
    expected = _native.FLOAT64 if args.a.dtype == _native.FLOAT64 else _native.FLOAT32
    if seen.dtype != expected:
        raise TypeError(f"[gemm] expected {name} as {DTYPE_NAMES[expected]}, got {DTYPE_NAMES[seen.dtype]}")
    flag: int = getattr(_native, f"EPILOGUE_{name.upper()}")
    if accumulate:
        flag |= getattr(_native, f"EPILOGUE_{name.upper()}_ACCUMULATE")
    args.epilogue |= flag
    setattr(args, name, seen.address)
    setattr(args, f"{name}_batch_stride", _single_stride(name, seen, shape[:-1], core=1))
    return seen
