"""Signatures of the operators, generated from the native table by `python -m blutensor.stubs --write`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, overload

from ._table import OperatorSpec
from .dtypes import DType
from .tensor import Scalar, Tensor

WRAPPED: tuple[str, ...]

def default_text(value: Any) -> str: ...
def is_random(spec: OperatorSpec) -> bool: ...
def parameters(spec: OperatorSpec) -> list[tuple[str, str | None, str]]: ...
def result_annotation(spec: OperatorSpec) -> str: ...
def docstring(spec: OperatorSpec) -> str: ...
def build(spec: OperatorSpec) -> Callable[..., Any]: ...

__all__ = [  # noqa: RUF022
    "abs",
    "acos",
    "acosh",
    "add",
    "add_",
    "all",
    "any",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "attention_decode",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "broadcast_to",
    "ceil",
    "contiguous",
    "copy",
    "copy_",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "div_",
    "divide",
    "dropout",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "fill_",
    "floor",
    "floor_divide",
    "gelu",
    "greater",
    "greater_equal",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linear",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mul_",
    "multiply",
    "negative",
    "nextafter",
    "normal",
    "not_equal",
    "permute_dims",
    "pow",
    "reciprocal",
    "relu",
    "remainder",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinh",
    "slice",
    "softmax",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "std",
    "sub_",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "uniform",
    "var",
    "where",
]

# A tensor of one value, converted to the dtype. Not differentiable.
def full(shape: int | Sequence[int], value: float, dtype: DType | str = "float32") -> Tensor: ...

# start, start + step, ... below stop (above it for a negative step), computed in float64 and converted: 1-d. Not
# differentiable.
def arange(start: float, stop: float, step: float = 1.0, dtype: DType | str = "float32") -> Tensor: ...

# The elements of x in row-major order in another shape; one size may be -1. A view where the strides of x allow one,
# else of a copy.
def reshape(x: Tensor, shape: int | Sequence[int]) -> Tensor: ...

# The axes of x in the order `axes`: a view.
def permute_dims(x: Tensor, axes: int | Sequence[int]) -> Tensor: ...

# x repeated to `shape` by NumPy's broadcasting rules: a view with strides of 0.
def broadcast_to(x: Tensor, shape: int | Sequence[int]) -> Tensor: ...

# x without the given axes, which must have size 1 (none given: without all such axes): a view.
def squeeze(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor: ...

# x with a new axis of size 1 at position `axis`: a view.
def expand_dims(x: Tensor, axis: int = 0) -> Tensor: ...

# Every step-th element from start, `length` of them, along each axis: a view. start, length and step have one value per
# axis; step may be negative.
def slice(x: Tensor, start: int | Sequence[int], length: int | Sequence[int], step: int | Sequence[int]) -> Tensor: ...

# x cut along an axis, as views. sections: one number: that many equal parts; several (at most 8): their sizes.
def split(x: Tensor, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]: ...

# -x, elementwise. Integers wrap. x: any shape, numeric; out: the same shape and dtype.
def negative(x: Tensor) -> Tensor: ...

# |x|, elementwise; the gradient at 0 is 0. x: any shape, numeric; out: the same shape and dtype.
def abs(x: Tensor) -> Tensor: ...

# -1, 0 or 1 by the sign of x, elementwise; zeros and NaN stay what they are; the gradient is 0. x: any shape, numeric;
# out: the same shape and dtype.
def sign(x: Tensor) -> Tensor: ...

# x x, elementwise. x: any shape, numeric; out: the same shape and dtype.
def square(x: Tensor) -> Tensor: ...

# 1 / x, elementwise. x: any shape, floating; out: the same shape and dtype.
def reciprocal(x: Tensor) -> Tensor: ...

# e to the power x, elementwise. x: any shape, floating; out: the same shape and dtype.
def exp(x: Tensor) -> Tensor: ...

# Natural logarithm, elementwise: -inf at 0, NaN below. x: any shape, floating; out: the same shape and dtype.
def log(x: Tensor) -> Tensor: ...

# Square root, elementwise, correctly rounded. x: any shape, floating; out: the same shape and dtype.
def sqrt(x: Tensor) -> Tensor: ...

# 1 / sqrt(x), elementwise. x: any shape, floating; out: the same shape and dtype.
def rsqrt(x: Tensor) -> Tensor: ...

# Hyperbolic tangent, elementwise. x: any shape, floating; out: the same shape and dtype.
def tanh(x: Tensor) -> Tensor: ...

# Error function, elementwise. x: any shape, floating; out: the same shape and dtype.
def erf(x: Tensor) -> Tensor: ...

# Whether x is NaN, elementwise. x: any shape and dtype; out: the same shape, bool. Not differentiable.
def isnan(x: Tensor) -> Tensor: ...

# Whether x is neither NaN nor infinite, elementwise. x: any shape and dtype; out: the same shape, bool. Not
# differentiable.
def isfinite(x: Tensor) -> Tensor: ...

# not x, elementwise; numbers count as true when they are not zero. x: any shape and dtype; out: the same shape, bool.
# Not differentiable.
def logical_not(x: Tensor) -> Tensor: ...

# Gaussian error linear unit (Hendrycks and Gimpel 2016), elementwise. approximate="none": x (1 + erf(x / sqrt 2)) / 2;
# "tanh": x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. x: any shape, floating; out: the same shape and dtype.
def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor: ...

# a + b, elementwise. Shapes broadcast, dtypes promote; integers wrap.
def add(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a - b, elementwise. Shapes broadcast, dtypes promote; integers wrap.
def subtract(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a b, elementwise. Shapes broadcast, dtypes promote; integers wrap.
def multiply(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a / b, elementwise. Shapes broadcast, dtypes promote to a floating-point one (two integers are an error).
def divide(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# The larger of a and b, elementwise; NaN where either is. Shapes broadcast, dtypes promote. The gradient is halved
# between equal operands.
def maximum(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# The smaller of a and b, elementwise; NaN where either is. Shapes broadcast, dtypes promote. The gradient is halved
# between equal operands.
def minimum(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a to the power b, elementwise. Shapes broadcast, dtypes promote; integers wrap, and a negative integer exponent
# truncates towards zero.
def pow(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a == b, elementwise: bool. Shapes broadcast; compared in the promoted dtype. Not differentiable.
def equal(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a != b, elementwise: bool. Shapes broadcast; compared in the promoted dtype. Not differentiable.
def not_equal(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a < b, elementwise: bool. Shapes broadcast; compared in the promoted dtype. Not differentiable.
def less(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a <= b, elementwise: bool. Shapes broadcast; compared in the promoted dtype. Not differentiable.
def less_equal(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a > b, elementwise: bool. Shapes broadcast; compared in the promoted dtype. Not differentiable.
def greater(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a >= b, elementwise: bool. Shapes broadcast; compared in the promoted dtype. Not differentiable.
def greater_equal(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a and b, elementwise: bool; numbers count as true when they are not zero. Shapes broadcast. Not differentiable.
def logical_and(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a or b, elementwise: bool; numbers count as true when they are not zero. Shapes broadcast. Not differentiable.
def logical_or(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# Either a or b but not both, elementwise: bool; numbers count as true when they are not zero. Shapes broadcast. Not
# differentiable.
def logical_xor(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a where condition is true, b elsewhere, elementwise. condition: bool (numbers count as true when they are not zero);
# a, b: any dtype, promoted; all three are broadcast.
def where(condition: Tensor, a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# The larger of x and 0, elementwise; NaN stays. The gradient at 0 is 0. x: any shape, numeric; out: the same shape and
# dtype.
def relu(x: Tensor) -> Tensor: ...

# 1 / (1 + e^-x), elementwise. x: any shape, floating; out: the same shape and dtype.
def sigmoid(x: Tensor) -> Tensor: ...

# x sigmoid(x), elementwise (Elfwing et al. 2018; "swish"). x: any shape, floating; out: the same shape and dtype.
def silu(x: Tensor) -> Tensor: ...

# Sine of x radians, elementwise; NaN for infinities. x: any shape, floating; out: the same shape and dtype. Computed in
# float64.
def sin(x: Tensor) -> Tensor: ...

# Cosine of x radians, elementwise; NaN for infinities. x: any shape, floating; out: the same shape and dtype. Computed
# in float64.
def cos(x: Tensor) -> Tensor: ...

# Tangent of x radians, elementwise; NaN for infinities. x: any shape, floating; out: the same shape and dtype. Computed
# in float64.
def tan(x: Tensor) -> Tensor: ...

# Arc sine in radians, elementwise; NaN outside [-1, 1]. x: any shape, floating; out: the same shape and dtype. Computed
# in float64.
def asin(x: Tensor) -> Tensor: ...

# Arc cosine in radians, elementwise; NaN outside [-1, 1]. x: any shape, floating; out: the same shape and dtype.
# Computed in float64.
def acos(x: Tensor) -> Tensor: ...

# Arc tangent in radians, elementwise. x: any shape, floating; out: the same shape and dtype. Computed in float64.
def atan(x: Tensor) -> Tensor: ...

# Hyperbolic sine, elementwise. x: any shape, floating; out: the same shape and dtype. Computed in float64.
def sinh(x: Tensor) -> Tensor: ...

# Hyperbolic cosine, elementwise. x: any shape, floating; out: the same shape and dtype. Computed in float64.
def cosh(x: Tensor) -> Tensor: ...

# Inverse hyperbolic sine, elementwise. x: any shape, floating; out: the same shape and dtype. Computed in float64.
def asinh(x: Tensor) -> Tensor: ...

# Inverse hyperbolic cosine, elementwise; NaN below 1. x: any shape, floating; out: the same shape and dtype. Computed
# in float64.
def acosh(x: Tensor) -> Tensor: ...

# Inverse hyperbolic tangent, elementwise; NaN outside [-1, 1]. x: any shape, floating; out: the same shape and dtype.
# Computed in float64.
def atanh(x: Tensor) -> Tensor: ...

# e^x - 1, elementwise, accurate near 0. x: any shape, floating; out: the same shape and dtype. Computed in float64.
def expm1(x: Tensor) -> Tensor: ...

# Natural logarithm of 1 + x, elementwise, accurate near 0; NaN below -1. x: any shape, floating; out: the same shape
# and dtype. Computed in float64.
def log1p(x: Tensor) -> Tensor: ...

# Logarithm to the base 2, elementwise: -inf at 0, NaN below. x: any shape, floating; out: the same shape and dtype.
# Computed in float64.
def log2(x: Tensor) -> Tensor: ...

# Logarithm to the base 10, elementwise: -inf at 0, NaN below. x: any shape, floating; out: the same shape and dtype.
# Computed in float64.
def log10(x: Tensor) -> Tensor: ...

# The largest whole number that is not above x, elementwise. Integers stay; the gradient is 0. x: any shape, numeric;
# out: the same shape and dtype.
def floor(x: Tensor) -> Tensor: ...

# The smallest whole number that is not below x, elementwise. Integers stay; the gradient is 0. x: any shape, numeric;
# out: the same shape and dtype.
def ceil(x: Tensor) -> Tensor: ...

# x without its fraction, elementwise. Integers stay; the gradient is 0. x: any shape, numeric; out: the same shape and
# dtype.
def trunc(x: Tensor) -> Tensor: ...

# The whole number next to x, halves to the even one, elementwise. Integers stay; the gradient is 0. x: any shape,
# numeric; out: the same shape and dtype.
def round(x: Tensor) -> Tensor: ...

# All bits of x exchanged (bool: not x), elementwise. x: any shape, integer or bool; out: the same shape and dtype. Not
# differentiable.
def bitwise_invert(x: Tensor) -> Tensor: ...

# Whether x is infinite, elementwise. x: any shape and dtype; out: the same shape, bool. Not differentiable.
def isinf(x: Tensor) -> Tensor: ...

# Whether the sign of x is negative, also of -0 and NaN, elementwise. x: any shape, floating; out: the same shape, bool.
# Not differentiable.
def signbit(x: Tensor) -> Tensor: ...

# The whole number below a / b, elementwise; integers by 0 give 0, and the lowest by -1 wraps. The gradient is 0. Shapes
# broadcast, dtypes promote.
def floor_divide(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a - b floor(a / b), elementwise: it has the sign of b; integers by 0 give 0. Shapes broadcast, dtypes promote.
def remainder(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# The angle of the point (b, a) in radians, elementwise. Shapes broadcast, dtypes promote.
def atan2(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# sqrt(a^2 + b^2), elementwise, without overflow. Shapes broadcast, dtypes promote.
def hypot(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# log(e^a + e^b), elementwise, without overflow. Shapes broadcast, dtypes promote.
def logaddexp(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# |a| with the sign of b, elementwise; the gradient of b is 0. Shapes broadcast, dtypes promote.
def copysign(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# Bits that a and b have, elementwise. Integers or bool, promoted; shapes broadcast. Not differentiable.
def bitwise_and(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# Bits that a or b has, elementwise. Integers or bool, promoted; shapes broadcast. Not differentiable.
def bitwise_or(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# Bits that either a or b has, elementwise. Integers or bool, promoted; shapes broadcast. Not differentiable.
def bitwise_xor(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a 2^b, elementwise; what leaves the dtype is lost. Integers, promoted; shapes broadcast. Not differentiable.
def bitwise_left_shift(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# a / 2^b towards minus infinity, elementwise. Integers, promoted; shapes broadcast. Not differentiable.
def bitwise_right_shift(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# The number of the dtype next to a in the direction of b, elementwise. Floating, promoted; shapes broadcast. Not
# differentiable.
def nextafter(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor: ...

# x, but not below low and not above high, elementwise; NaN where any of them is. low and high: none, or tensors of x's
# dtype (numbers take it) whose shapes broadcast with x's. The gradient of x is that of out where x lies within the
# bounds, boundaries included, else that of the bound. x: numeric; out: x's dtype.
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor: ...

# A row-major copy of x. x: any shape, dtype and strides; out: the same shape and dtype.
def contiguous(x: Tensor) -> Tensor: ...

# A copy of x with memory of its own, row-major. x: any shape and dtype; out: the same.
def copy(x: Tensor) -> Tensor: ...

# x converted to another dtype, always a copy. To floating-point dtypes: rounded to nearest even. Floating to integer:
# truncated, out of range saturates, NaN gives 0. Integer to integer: low bits. To bool: not zero.
def astype(x: Tensor, dtype: DType | str) -> Tensor: ...

# x = source in place, broadcast to x's shape and converted to its dtype (as astype does). Not differentiable.
def copy_(x: Tensor, source: Tensor) -> None: ...

# x += other in place; other broadcasts to x's shape and is converted to its dtype. Not differentiable.
def add_(x: Tensor, other: Tensor) -> None: ...

# x -= other in place; other broadcasts to x's shape and is converted to its dtype. Not differentiable.
def sub_(x: Tensor, other: Tensor) -> None: ...

# x *= other in place; other broadcasts to x's shape and is converted to its dtype. Not differentiable.
def mul_(x: Tensor, other: Tensor) -> None: ...

# x /= other in place; other broadcasts to x's shape and is converted to its dtype. Not differentiable.
def div_(x: Tensor, other: Tensor) -> None: ...

# Every element of x becomes `value`, converted to x's dtype. Not differentiable.
def fill_(x: Tensor, value: float) -> None: ...

# The tensors one after the other along an axis. tensors: equal shapes but for that axis, dtypes promote; out: sizes
# along the axis add up.
def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor: ...

# Writes new into cache in place at [position, position + n) of an axis, n = new.shape[axis]: the step of a key-value
# cache. cache: any shape and dtype; new: the same but for the axis; position: one int32 or int64, read on the device,
# checked against the axis. Not differentiable.
def index_write_(cache: Tensor, new: Tensor, position: Tensor, axis: int = 0) -> None: ...

# Sum over axes (none given: all). float32 and the 16-bit floats accumulate in float64, float64 with compensation;
# signed integers and bool give int64, unsigned ones uint64, and wrap. keepdims keeps the axes with size 1. The sum of
# nothing is 0.
def sum(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Arithmetic mean over axes (none given: all) of a floating-point tensor, accumulated as sum does. keepdims keeps the
# axes with size 1. The mean of nothing is NaN.
def mean(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Largest element over axes (none given: all); NaN where there is one. keepdims keeps the axes with size 1. The gradient
# is shared between equal elements.
def max(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Smallest element over axes (none given: all); NaN where there is one. keepdims keeps the axes with size 1. The
# gradient is shared between equal elements.
def min(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Position of the largest element along one axis (none given: in row-major order over all): int64. The first of equals;
# the first NaN where there is one. Not differentiable.
def argmax(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Position of the smallest element along one axis (none given: in row-major order over all): int64. The first of equals;
# the first NaN where there is one. Not differentiable.
def argmin(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Whether any element over axes (none given: all) is true: bool; numbers count as true when they are not zero (NaN is
# true). keepdims keeps the axes with size 1. Of nothing: false. Not differentiable.
def any(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Whether all elements over axes (none given: all) are true: bool; numbers count as true when they are not zero (NaN is
# true). keepdims keeps the axes with size 1. Of nothing: true. Not differentiable.
def all(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# How many elements over axes (none given: all) are not zero: int64 (NaN is not zero). keepdims keeps the axes with size
# 1. Not differentiable.
def count_nonzero(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Product over axes (none given: all). Floats accumulate in float64; signed integers and bool give int64, unsigned ones
# uint64, and wrap. keepdims keeps the axes with size 1. The product of nothing is 1.
def prod(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Variance over axes (none given: all) of a floating-point tensor: the sum of squared deviations from the mean by n -
# correction (0: of a population, 1: of a sample), accumulated in float64. keepdims keeps the axes with size 1. NaN
# where n - correction is not positive.
def var(
    x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0.0
) -> Tensor: ...

# Standard deviation over axes (none given: all) of a floating-point tensor: the root of var. The gradient at 0 is 0.
def std(
    x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0.0
) -> Tensor: ...

# log(sum(e^x)) over axes (none given: all) of a floating-point tensor, without overflow, accumulated in float64.
# keepdims keeps the axes with size 1. That of nothing is -inf.
def logsumexp(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

# Sums of all elements up to each one along an axis. reverse: from the end; exclusive: without the element itself.
# Floats accumulate in float64; signed integers and bool give int64, unsigned ones uint64, and wrap. out: the same
# shape.
def cumulative_sum(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor: ...

# Products of all elements up to each one along an axis. reverse: from the end; exclusive: without the element itself.
# Floats accumulate in float64; signed integers and bool give int64, unsigned ones uint64, and wrap. out: the same
# shape.
def cumulative_prod(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor: ...

# Positions that sort x along an axis: int64, of x's shape. Stable: equal elements stay in their order; NaN comes behind
# all numbers (descending: before them). Not differentiable.
def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor: ...

# Where each of `values` would have to be inserted into the ascending 1-d `sorted` to keep it so: int64, of the shape of
# values. side="left": before equal elements, "right": behind them. NaN counts as larger than all numbers. dtypes
# promote. Not differentiable.
def searchsorted(sorted: Tensor, values: Tensor, side: Literal["left", "right"] = "left") -> Tensor: ...

# Numbers distributed uniformly on [low, high): 24 random bits each (53 for float64). state: int64 [2], {seed, step};
# op_id tells the random operators of one step apart; out: `shape`, floating dtype. Not differentiable.
def uniform(
    shape: int | Sequence[int], low: float = 0.0, high: float = 1.0, dtype: DType | str = "float32"
) -> Tensor: ...

# Numbers distributed normally, by Box and Muller's method. state: int64 [2], {seed, step}; op_id tells the random
# operators of one step apart; out: `shape`, floating dtype. Not differentiable.
def normal(
    shape: int | Sequence[int], mean: float = 0.0, std: float = 1.0, dtype: DType | str = "float32"
) -> Tensor: ...

# x / (1 - p) with probability 1 - p and 0 else, element by element (Srivastava et al. 2014). x: any shape, floating;
# out: the same. The same state and op_id give the same mask, from which backward makes it again.
def dropout(x: Tensor, p: float = 0.5) -> Tensor: ...

# Matrix product, as in the array API standard. a: [..., M, K] or [K], b: [..., K, N] or [K]; the leading axes
# broadcast; result: [..., M, N] without the axis of an operand that was a vector. One dtype for both: floating (16-bit
# floats accumulate in float32) or integer (wraps around).
def matmul(a: Tensor, b: Tensor) -> Tensor: ...

# x @ weight.T + bias + residual. x: [..., K], weight: [N, K], bias: [N] or none, residual: [..., N] or none; result:
# [..., N]. Any floating dtype, the same for all; accumulates in float32 (float64 for float64). Bias and residual are
# added by the GEMM's epilogue.
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor: ...

# gelu(x @ w1.T + b1) @ w2.T + b2 + residual, and the pre-activation x @ w1.T + b1. x: [..., C], w1: [H, C], b1: [H] or
# none, w2: [N, H], b2: [N] or none, residual: [..., N] or none; results: [..., N] and [..., H]. Any floating dtype, the
# same for all. approximate: 'tanh' or 'none' (erf), as in gelu. Bias, gelu, its gradient and the residual are done in
# the GEMMs' epilogues; backward recomputes gelu.
def mlp(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    residual: Tensor | None = None,
    approximate: Literal["none", "tanh"] = "tanh",
) -> tuple[Tensor, Tensor]: ...

# (x - mean) * rstd * weight + bias over the last num_axes axes, rstd = 1 / sqrt(variance + eps) with the biased
# variance, as PyTorch. x: [..., C], weight and bias: [C] or none; results: y like x, mean and rstd [...], in float32
# (float64 for float64). Any floating dtype.
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05, num_axes: int = 1
) -> tuple[Tensor, Tensor, Tensor]: ...

# x * rstd * weight over the last num_axes axes, rstd = 1 / sqrt(mean of x^2 + eps) (Zhang and Sennrich, 2019). x: [...,
# C], weight: [C] or none; results: y like x, rstd [...], in float32 (float64 for float64). Any floating dtype.
def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-06, num_axes: int = 1
) -> tuple[Tensor, Tensor]: ...

# Rotary position embedding (Su et al., 2021) with rotated halves, as in Llama: with a = position * base^(-2 i / D),
# y[..., i] = x[..., i] cos a - x[..., i + D/2] sin a and y[..., i + D/2] = x[..., i + D/2] cos a + x[..., i] sin a. x:
# [..., T, D], D even and at most 512, any floating dtype; positions: int32 or int64, broadcast to [..., T], by default
# 0, 1, ... along T; result: like x, row-major. inverse turns the other way.
def rotary_embedding(
    x: Tensor, positions: Tensor | None = None, base: float = 10000.0, inverse: bool = False
) -> Tensor: ...

# Rows of weight: y[..., :] = weight[ids[...], :]. ids: int32 or int64 [...], from 0 to V - 1, or to num_ids - 1 where
# num_ids is not 0 and the rows behind are padding; weight: [V, C], any dtype; result: [..., C]. The gradient of weight
# is a sum in a fixed order, the same for any number of threads.
def embedding(ids: Tensor, weight: Tensor, num_ids: int = 0) -> Tensor: ...

# Of every line of x along an axis, the elements at that line's indices: out[..., j, ...] = x[..., indices[..., j, ...],
# ...]. x: any dtype; indices: integers of x's shape in all other axes, negative ones counted from the end, IndexError
# outside; out: the shape of indices. Gradients of an element that was taken several times add up in the order of j.
def take_along_axis(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor: ...

# cross_entropy(x @ weight.T, targets) without holding the logits. x: [..., C], weight: [V, C], any floating dtype;
# targets: int32 or int64 [...], from 0 to V - 1 or ignore_index; result: 0-d loss in float32 (float64 for float64), the
# sum over the targets that count, or their mean (NaN when none counts). num_classes, where not 0, leaves out the rows
# of weight from it on, which pad a vocabulary: they take no part in the loss, and have gradient 0. compute_x_grad and
# compute_weight_grad say which gradients backward will need: they are computed at once and are the other two results,
# of shape (0,) where not asked for.
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
    compute_x_grad: bool = False,
    compute_weight_grad: bool = False,
    num_classes: int = 0,
) -> tuple[Tensor, Tensor, Tensor]: ...

# exp(x - max(x)) / sum(exp(x - max(x))) along `axis`. x: any shape, any floating dtype (statistics in float32 for the
# 16-bit floats); result like x. Results below 2^-126 may be 0. Rows of -inf give NaN.
def softmax(x: Tensor, axis: int = -1) -> Tensor: ...

# Logarithm of softmax, x - max(x) - log(sum(exp(x - max(x)))) along `axis`, without overflow or cancellation. x: any
# shape, any floating dtype (statistics in float32 for the 16-bit floats); result like x. Rows of -inf give NaN.
def log_softmax(x: Tensor, axis: int = -1) -> Tensor: ...

# -log(softmax(logits)[target]) of every row. logits: [..., V], any floating dtype; targets: [...], int32 or int64, in
# [0, V) or ignore_index (IndexError otherwise, before anything is written). Results: loss, float32 (float64 for float64
# logits): 0-d for reduction 'mean' (over the rows that are not ignored; NaN when all are) and 'sum', [...] for 'none'
# (0 where ignored); label_smoothing e gives every class a share e / V of the target's weight; and, without a gradient,
# maximum and log_sum [...] of the rows: logsumexp is their sum.
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]: ...

# softmax(scale * query @ key^T) @ value over the last two axes, without ever holding the [T, S] matrix. query: [..., T,
# D], key and value: [..., S, D] with the same leading axes, any strides, D <= 256, any floating dtype. Key heads (the
# third axis from the end) may be fewer by a whole factor G: query head h reads key head h / G, without a copy. Results:
# output [..., T, D] and logsumexp [..., T] (natural logarithm of the sum of exp(scores); float32, float64 for float64).
# is_causal: query i sees keys 0..i, also when T != S (PyTorch's top-left alignment); values behind the mask must be
# finite. scale 0 stands for 1/sqrt(D). From rank 4 on, the output lies in memory as [..., T, H, D]: permuting and
# merging heads copies nothing. Queries that see only -inf give NaN; S = 0 gives 0. Method: FlashAttention-2 (Dao,
# 2023).
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float = 0.0
) -> tuple[Tensor, Tensor]: ...

# Attention of one new token over a cache: query [..., 1, D] against rows 0..position of key_cache and value_cache [...,
# Tmax, D] (any strides; heads may be fewer, as in scaled_dot_product_attention); result [..., 1, D]. position: 0-d
# int32 or int64 in [0, Tmax), IndexError otherwise. scale 0 stands for 1/sqrt(D). No gradient. Not differentiable.
def attention_decode(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, position: Tensor, scale: float = 0.0
) -> Tensor: ...

# scaled_dot_product_attention of the heads in one packed tensor: qkv [..., T, 3 C] is read as [..., T, 3, num_heads, D]
# (queries, keys, values; any strides). Results: output [..., T, C], heads merged, and logsumexp [..., num_heads, T].
# The gradient is that of qkv as a whole, so that nothing is split, permuted or concatenated. is_causal and scale as in
# scaled_dot_product_attention; D <= 256.
def qkv_attention(
    qkv: Tensor, num_heads: int, is_causal: bool = False, scale: float = 0.0
) -> tuple[Tensor, Tensor]: ...

class _Full(Protocol):
    def __call__(self, shape: int | Sequence[int], value: float, dtype: DType | str = "float32") -> Tensor: ...

class _FullInteger(Protocol):
    def __call__(self, shape: int | Sequence[int], value: int, dtype: DType | str = "int64") -> Tensor: ...

class _Arange(Protocol):
    def __call__(self, start: float, stop: float, step: float = 1.0, dtype: DType | str = "float32") -> Tensor: ...

class _Reshape(Protocol):
    def __call__(self, x: Tensor, shape: int | Sequence[int]) -> Tensor: ...

class _SliceBackward(Protocol):
    def __call__(
        self,
        grad: Tensor,
        shape: int | Sequence[int],
        start: int | Sequence[int],
        length: int | Sequence[int],
        step: int | Sequence[int],
    ) -> Tensor: ...

class _GeluBackward(Protocol):
    def __call__(self, grad: Tensor, x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor: ...

class _SiluBackward(Protocol):
    def __call__(self, grad: Tensor, x: Tensor) -> Tensor: ...

class _Clip(Protocol):
    def __call__(self, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor: ...

class _Astype(Protocol):
    def __call__(self, x: Tensor, dtype: DType | str) -> Tensor: ...

class _Concat(Protocol):
    def __call__(self, tensors: Sequence[Tensor], axis: int = 0) -> Tensor: ...

class _IndexWriteInPlace(Protocol):
    def __call__(self, cache: Tensor, new: Tensor, position: Tensor, axis: int = 0) -> None: ...

class _Sum(Protocol):
    def __call__(self, x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

class _SumTo(Protocol):
    def __call__(self, x: Tensor, shape: int | Sequence[int]) -> Tensor: ...

class _Prod(Protocol):
    def __call__(self, x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...

class _CumulativeSum(Protocol):
    def __call__(self, x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor: ...

class _CumulativeProd(Protocol):
    def __call__(self, x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor: ...

class _CumulativeProdBackward(Protocol):
    def __call__(
        self, grad: Tensor, x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False
    ) -> Tensor: ...

class _Argsort(Protocol):
    def __call__(self, x: Tensor, axis: int = -1, descending: bool = False) -> Tensor: ...

class _Searchsorted(Protocol):
    def __call__(self, sorted: Tensor, values: Tensor, side: Literal["left", "right"] = "left") -> Tensor: ...

class _DropoutBackward(Protocol):
    def __call__(self, grad: Tensor, p: float = 0.5) -> Tensor: ...

class _RngAdvanceInPlace(Protocol):
    def __call__(self, state: Tensor) -> None: ...

class _Matmul(Protocol):
    def __call__(self, a: Tensor, b: Tensor) -> Tensor: ...

class _LinearInputGrad(Protocol):
    def __call__(
        self,
        grad_output: Tensor,
        weight: Tensor,
        preactivation: Tensor | None = None,
        approximate: Literal["none", "tanh"] = "none",
    ) -> Tensor: ...

class _LinearWeightGrad(Protocol):
    def __call__(self, grad_output: Tensor, x: Tensor, bias: bool = True) -> tuple[Tensor, Tensor]: ...

class _LinearWeightGradInPlace(Protocol):
    def __call__(
        self,
        weight_grad: Tensor,
        grad_output: Tensor,
        x: Tensor,
        bias_grad: Tensor | None = None,
        accumulate_weight: bool = False,
        accumulate_bias: bool = False,
    ) -> None: ...

class _Mlp(Protocol):
    def __call__(
        self,
        x: Tensor,
        w1: Tensor,
        w2: Tensor,
        b1: Tensor | None = None,
        b2: Tensor | None = None,
        residual: Tensor | None = None,
        approximate: Literal["none", "tanh"] = "tanh",
    ) -> tuple[Tensor, Tensor]: ...

class _LayerNorm(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05, num_axes: int = 1
    ) -> tuple[Tensor, Tensor, Tensor]: ...

class _LayerNormBackward(Protocol):
    def __call__(
        self,
        grad_output: Tensor,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None = None,
        num_axes: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

class _LayerNormBackwardInPlace(Protocol):
    def __call__(
        self,
        grad_output: Tensor,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight_grad: Tensor | None = None,
        bias_grad: Tensor | None = None,
        weight: Tensor | None = None,
        x_grad: Tensor | None = None,
        num_axes: int = 1,
        accumulate_weight: bool = False,
        accumulate_bias: bool = False,
    ) -> Tensor: ...

class _RmsNorm(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor | None = None, eps: float = 1e-06, num_axes: int = 1
    ) -> tuple[Tensor, Tensor]: ...

class _RmsNormBackward(Protocol):
    def __call__(
        self, grad_output: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None = None, num_axes: int = 1
    ) -> tuple[Tensor, Tensor]: ...

class _RmsNormBackwardInPlace(Protocol):
    def __call__(
        self,
        grad_output: Tensor,
        x: Tensor,
        rstd: Tensor,
        weight_grad: Tensor | None = None,
        weight: Tensor | None = None,
        x_grad: Tensor | None = None,
        num_axes: int = 1,
        accumulate_weight: bool = False,
    ) -> Tensor: ...

class _RotaryEmbedding(Protocol):
    def __call__(
        self, x: Tensor, positions: Tensor | None = None, base: float = 10000.0, inverse: bool = False
    ) -> Tensor: ...

class _EmbeddingBackward(Protocol):
    def __call__(self, grad_output: Tensor, ids: Tensor, num_embeddings: int) -> Tensor: ...

class _EmbeddingBackwardInPlace(Protocol):
    def __call__(self, weight_grad: Tensor, grad_output: Tensor, ids: Tensor, accumulate: bool = False) -> None: ...

class _Gather(Protocol):
    def __call__(self, x: Tensor, indices: Sequence[Tensor], axis: int = 0) -> Tensor: ...

class _ScatterInPlace(Protocol):
    def __call__(self, x: Tensor, values: Tensor, indices: Sequence[Tensor], axis: int = 0) -> None: ...

class _IndexPositions(Protocol):
    def __call__(self, indices: Sequence[Tensor], sizes: int | Sequence[int], first_axis: int = 0) -> Tensor: ...

class _NonzeroIndices(Protocol):
    def __call__(self, mask: Tensor, count: int) -> Tensor: ...

class _TakeAlongAxis(Protocol):
    def __call__(self, x: Tensor, indices: Tensor, axis: int = -1) -> Tensor: ...

class _TakeAlongAxisBackward(Protocol):
    def __call__(self, grad: Tensor, indices: Tensor, size: int, axis: int = -1) -> Tensor: ...

class _LinearCrossEntropy(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        targets: Tensor,
        ignore_index: int = -100,
        reduction: Literal["mean", "sum"] = "mean",
        compute_x_grad: bool = False,
        compute_weight_grad: bool = False,
        num_classes: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

class _LinearCrossEntropyScale(Protocol):
    def __call__(self, gradient: Tensor, scale: Tensor, dtype: DType | str) -> Tensor: ...

class _LinearCrossEntropyScaleInPlace(Protocol):
    def __call__(self, target: Tensor, gradient: Tensor, scale: Tensor, accumulate: bool = False) -> None: ...

class _AdamwInPlace(Protocol):
    def __call__(
        self,
        step: Tensor,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        lrs: Sequence[Tensor],
        grad_scale: Tensor | None = None,
        skip: Tensor | None = None,
        masters: Sequence[Tensor | None] | None = None,
        beta1: float | Sequence[float] = ...,
        beta2: float | Sequence[float] = ...,
        eps: float | Sequence[float] = ...,
        weight_decay: float | Sequence[float] = ...,
    ) -> None: ...

class _SgdInPlace(Protocol):
    def __call__(
        self,
        lr: Tensor,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        grad_scale: Tensor | None = None,
        skip: Tensor | None = None,
        weight_decay: float = 0.0,
    ) -> None: ...

class _SgdMomentumInPlace(Protocol):
    def __call__(
        self,
        lr: Tensor,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        momentum_buffers: Sequence[Tensor],
        grad_scale: Tensor | None = None,
        skip: Tensor | None = None,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None: ...

class _IncrementStepInPlace(Protocol):
    def __call__(self, step: Tensor, skip: Tensor | None = None) -> None: ...

class _GradNorm(Protocol):
    def __call__(self, grads: Sequence[Tensor]) -> Tensor: ...

class _ClipScale(Protocol):
    def __call__(self, norm: Tensor, max_norm: float, count: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

class _SoftmaxBackward(Protocol):
    def __call__(self, grad_output: Tensor, y: Tensor, axis: int = -1) -> Tensor: ...

class _LogSoftmaxBackward(Protocol):
    def __call__(self, grad_output: Tensor, y: Tensor, axis: int = -1) -> Tensor: ...

class _CrossEntropy(Protocol):
    def __call__(
        self,
        logits: Tensor,
        targets: Tensor,
        ignore_index: int = -100,
        reduction: Literal["mean", "sum", "none"] = "mean",
        label_smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

class _CrossEntropyBackward(Protocol):
    def __call__(
        self,
        grad_output: Tensor,
        logits: Tensor,
        targets: Tensor,
        maximum: Tensor,
        log_sum: Tensor,
        ignore_index: int = -100,
        reduction: Literal["mean", "sum", "none"] = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor: ...

class _ScaledDotProductAttention(Protocol):
    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float = 0.0
    ) -> tuple[Tensor, Tensor]: ...

class _ScaledDotProductAttentionBackward(Protocol):
    def __call__(
        self,
        grad_output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        logsumexp: Tensor,
        grad_logsumexp: Tensor | None = None,
        is_causal: bool = False,
        scale: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

class _QkvAttention(Protocol):
    def __call__(
        self, qkv: Tensor, num_heads: int, is_causal: bool = False, scale: float = 0.0
    ) -> tuple[Tensor, Tensor]: ...

class _QkvAttentionBackward(Protocol):
    def __call__(
        self,
        grad_output: Tensor,
        qkv: Tensor,
        output: Tensor,
        logsumexp: Tensor,
        num_heads: int,
        grad_logsumexp: Tensor | None = None,
        is_causal: bool = False,
        scale: float = 0.0,
    ) -> Tensor: ...

@overload
def private(name: Literal["full"]) -> _Full: ...
@overload
def private(name: Literal["full_integer"]) -> _FullInteger: ...
@overload
def private(name: Literal["arange"]) -> _Arange: ...
@overload
def private(name: Literal["reshape"]) -> _Reshape: ...
@overload
def private(name: Literal["slice_backward"]) -> _SliceBackward: ...
@overload
def private(name: Literal["gelu_backward"]) -> _GeluBackward: ...
@overload
def private(name: Literal["silu_backward"]) -> _SiluBackward: ...
@overload
def private(name: Literal["clip"]) -> _Clip: ...
@overload
def private(name: Literal["astype"]) -> _Astype: ...
@overload
def private(name: Literal["concat"]) -> _Concat: ...
@overload
def private(name: Literal["index_write_"]) -> _IndexWriteInPlace: ...
@overload
def private(name: Literal["sum"]) -> _Sum: ...
@overload
def private(name: Literal["sum_to"]) -> _SumTo: ...
@overload
def private(name: Literal["prod"]) -> _Prod: ...
@overload
def private(name: Literal["cumulative_sum"]) -> _CumulativeSum: ...
@overload
def private(name: Literal["cumulative_prod"]) -> _CumulativeProd: ...
@overload
def private(name: Literal["cumulative_prod_backward"]) -> _CumulativeProdBackward: ...
@overload
def private(name: Literal["argsort"]) -> _Argsort: ...
@overload
def private(name: Literal["searchsorted"]) -> _Searchsorted: ...
@overload
def private(name: Literal["dropout_backward"]) -> _DropoutBackward: ...
@overload
def private(name: Literal["rng_advance_"]) -> _RngAdvanceInPlace: ...
@overload
def private(name: Literal["matmul"]) -> _Matmul: ...
@overload
def private(name: Literal["linear_input_grad"]) -> _LinearInputGrad: ...
@overload
def private(name: Literal["linear_weight_grad"]) -> _LinearWeightGrad: ...
@overload
def private(name: Literal["linear_weight_grad_"]) -> _LinearWeightGradInPlace: ...
@overload
def private(name: Literal["mlp"]) -> _Mlp: ...
@overload
def private(name: Literal["layer_norm"]) -> _LayerNorm: ...
@overload
def private(name: Literal["layer_norm_backward"]) -> _LayerNormBackward: ...
@overload
def private(name: Literal["layer_norm_backward_"]) -> _LayerNormBackwardInPlace: ...
@overload
def private(name: Literal["rms_norm"]) -> _RmsNorm: ...
@overload
def private(name: Literal["rms_norm_backward"]) -> _RmsNormBackward: ...
@overload
def private(name: Literal["rms_norm_backward_"]) -> _RmsNormBackwardInPlace: ...
@overload
def private(name: Literal["rotary_embedding"]) -> _RotaryEmbedding: ...
@overload
def private(name: Literal["embedding_backward"]) -> _EmbeddingBackward: ...
@overload
def private(name: Literal["embedding_backward_"]) -> _EmbeddingBackwardInPlace: ...
@overload
def private(name: Literal["gather"]) -> _Gather: ...
@overload
def private(name: Literal["scatter_"]) -> _ScatterInPlace: ...
@overload
def private(name: Literal["index_positions"]) -> _IndexPositions: ...
@overload
def private(name: Literal["nonzero_indices"]) -> _NonzeroIndices: ...
@overload
def private(name: Literal["take_along_axis"]) -> _TakeAlongAxis: ...
@overload
def private(name: Literal["take_along_axis_backward"]) -> _TakeAlongAxisBackward: ...
@overload
def private(name: Literal["linear_cross_entropy"]) -> _LinearCrossEntropy: ...
@overload
def private(name: Literal["linear_cross_entropy_scale"]) -> _LinearCrossEntropyScale: ...
@overload
def private(name: Literal["linear_cross_entropy_scale_"]) -> _LinearCrossEntropyScaleInPlace: ...
@overload
def private(name: Literal["adamw_"]) -> _AdamwInPlace: ...
@overload
def private(name: Literal["sgd_"]) -> _SgdInPlace: ...
@overload
def private(name: Literal["sgd_momentum_"]) -> _SgdMomentumInPlace: ...
@overload
def private(name: Literal["increment_step_"]) -> _IncrementStepInPlace: ...
@overload
def private(name: Literal["grad_norm"]) -> _GradNorm: ...
@overload
def private(name: Literal["clip_scale"]) -> _ClipScale: ...
@overload
def private(name: Literal["softmax_backward"]) -> _SoftmaxBackward: ...
@overload
def private(name: Literal["log_softmax_backward"]) -> _LogSoftmaxBackward: ...
@overload
def private(name: Literal["cross_entropy"]) -> _CrossEntropy: ...
@overload
def private(name: Literal["cross_entropy_backward"]) -> _CrossEntropyBackward: ...
@overload
def private(name: Literal["scaled_dot_product_attention"]) -> _ScaledDotProductAttention: ...
@overload
def private(name: Literal["scaled_dot_product_attention_backward"]) -> _ScaledDotProductAttentionBackward: ...
@overload
def private(name: Literal["qkv_attention"]) -> _QkvAttention: ...
@overload
def private(name: Literal["qkv_attention_backward"]) -> _QkvAttentionBackward: ...
