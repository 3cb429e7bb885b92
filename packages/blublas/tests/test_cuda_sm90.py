"""Products that the kernels for compute capability 9.0 take: layers' three products, their epilogues, ragged edges.

On other devices the same products go to the portable kernels, and must be as good.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cuda_arrays import ROUNDOFF, Tensor, assert_as_good_as, matrix, poison, rows

import blublas

pytestmark = pytest.mark.gpu

# Tiles are 128 rows by 128, 192 or 256 columns, 64 (float32: 32) of K: whole ones, one less, one more, one row, K
# shorter than a tile, enough for several rounds of every multiprocessor, and K long enough to be cut.
SIZES = [
    (128, 256, 64),
    (256, 512, 768),
    (127, 255, 63),
    (129, 257, 65),
    (1, 8, 8),
    (1000, 777, 200),
    (64, 33, 1000),
    (2048, 2304, 256),
    (4096, 768, 1032),
    (768, 1000, 8200),
]
MODES = [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float32")]


def product(torch: Any, a: Tensor, b: Tensor, out_dtype: str) -> Tensor:
    """PyTorch's, at our precision."""
    if out_dtype != str(a.dtype).removeprefix("torch."):
        return torch.mm(a, b, out_dtype=getattr(torch, out_dtype))
    torch.backends.cuda.matmul.allow_tf32 = True
    result = a @ b
    torch.backends.cuda.matmul.allow_tf32 = False
    return result


def roundoff_of(dtype: str, out_dtype: str) -> float:
    """One rounding of a result."""
    return ROUNDOFF["tf32" if dtype == "float32" else out_dtype]


@pytest.mark.parametrize(("left", "right"), list(itertools.product(("rows", "columns"), repeat=2)))
@pytest.mark.parametrize(("dtype", "out_dtype"), MODES)
def test_layouts_and_sizes(cuda: Any, dtype: str, out_dtype: str, left: str, right: str) -> None:
    for m, n, k in SIZES:
        a, b = matrix(cuda, m, k, dtype, left), matrix(cuda, k, n, dtype, right)
        whole = rows(cuda, m, n, out_dtype).fill_(float("nan"))
        memory = whole._base if whole._base is not None else whole
        memory.fill_(float("nan"))
        blublas.gemm(a, b, whole, math="tf32")
        truth = a.double() @ b.double()
        theirs = product(cuda, a, b, out_dtype)
        assert_as_good_as(whole, theirs, truth, roundoff_of(dtype, out_dtype), f"{m} x {n} x {k}")
        assert bool(memory[:, n:].isnan().all()), "wrote past the last column"
        again = poison(cuda, m, n, out_dtype)
        for _ in range(3):
            blublas.gemm(a, b, again, math="tf32")
            assert cuda.equal(again, whole), "other bits"


@pytest.mark.parametrize(("dtype", "out_dtype"), MODES)
@pytest.mark.parametrize(("m", "n", "k"), [(300, 520, 136), (129, 777, 72), (2048, 768, 3072)])
def test_forward_and_input_gradient(cuda: Any, dtype: str, out_dtype: str, m: int, n: int, k: int) -> None:
    gelu = cuda.nn.functional.gelu
    x, weight = matrix(cuda, m, k, dtype, "rows"), matrix(cuda, k, n, dtype, "columns")
    residual, bias = rows(cuda, m, n, out_dtype), cuda.randn(n, device="cuda")
    roundoff = 2 * roundoff_of(dtype, out_dtype)
    truth, theirs = x.double() @ weight.double() + bias.double(), product(cuda, x, weight, out_dtype).double() + bias

    for form in ("tanh", "none"):
        stored, out = poison(cuda, m, n, out_dtype), poison(cuda, m, n, out_dtype)
        activation: Any = "gelu_tanh" if form == "tanh" else "gelu_erf"
        blublas.gemm(
            x, weight, out, bias=bias, activation=activation, preactivation=stored, residual=residual, math="tf32"
        )
        assert_as_good_as(stored, theirs, truth, roundoff, "preactivation")
        after = [gelu(v, approximate=form) + residual.double() for v in (theirs, truth)]
        assert_as_good_as(out, after[0], after[1], roundoff, f"{form} GELU")

    gradient, layer = matrix(cuda, m, n, dtype, "rows"), matrix(cuda, n, k, dtype, "rows")
    at = rows(cuda, m, k, out_dtype)
    pure = gradient.double() @ layer.double(), product(cuda, gradient, layer, out_dtype).double()
    for form in ("tanh", "none"):
        slope = cuda.ops.aten.gelu_backward(cuda.ones_like(pure[0]), at.double(), approximate=form)
        out = poison(cuda, m, k, out_dtype)
        approximate: Any = form
        blublas.gemm(gradient, layer, out, gelu_gradient_of=at, approximate=approximate, math="tf32")
        assert_as_good_as(out, pure[1] * slope, pure[0] * slope, roundoff, f"{form} gradient")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(768, 768, 16384), (2304, 768, 4096), (768, 3072, 4096), (520, 1000, 1000)])
def test_weight_and_bias_gradient(cuda: Any, dtype: str, m: int, n: int, k: int) -> None:
    """Both are added to what earlier micro-steps left."""
    gradient, x = matrix(cuda, m, k, dtype, "columns"), matrix(cuda, k, n, dtype, "rows")
    before, bias_before = rows(cuda, m, n, "float32"), cuda.randn(m, device="cuda")
    out, bias = rows(cuda, m, n, "float32").copy_(before), bias_before.clone()
    blublas.gemm(gradient, x, out, accumulate=True, row_sum_a=bias, row_sum_a_accumulate=True, math="tf32")
    truth = gradient.double() @ x.double() + before.double()
    theirs = product(cuda, gradient, x, "float32") + before
    assert_as_good_as(out, theirs, truth, roundoff_of(dtype, "float32"), "weight")
    assert_as_good_as(
        bias,
        gradient.float().sum(1) + bias_before,
        gradient.double().sum(1) + bias_before.double(),
        8 * ROUNDOFF["float32"],  # rounded less often than 8 times, by the depth of the sums
        "bias",
    )


def test_epilogues_that_read_what_they_write(cuda: Any) -> None:
    """The residual is C itself, and so is a GELU gradient's aux."""
    a, b = matrix(cuda, 300, 264, "bfloat16", "rows"), matrix(cuda, 264, 520, "bfloat16", "rows")
    truth, theirs = a.double() @ b.double(), (a @ b).double()
    start = rows(cuda, 300, 520, "bfloat16")
    out = rows(cuda, 300, 520, "bfloat16").copy_(start)
    blublas.gemm(a, b, out, residual=out)
    assert_as_good_as(out, theirs + start, truth + start, 2 * ROUNDOFF["bfloat16"])
    out.copy_(start)
    blublas.gemm(a, b, out, gelu_gradient_of=out)
    slope = cuda.ops.aten.gelu_backward(cuda.ones_like(truth), start.double(), approximate="tanh")
    assert_as_good_as(out, theirs * slope, truth * slope, 2 * ROUNDOFF["bfloat16"])
    out.copy_(start)
    blublas.gemm(a, b, out, alpha=0.5, beta=-2.0)
    assert_as_good_as(out, 0.5 * theirs - 2 * start, 0.5 * truth - 2 * start, 2 * ROUNDOFF["bfloat16"])


def test_not_a_number_stays_in_its_row(cuda: Any) -> None:
    a, b = matrix(cuda, 260, 256, "bfloat16", "rows"), matrix(cuda, 256, 300, "bfloat16", "columns")
    a[131, 77] = float("nan")
    out = poison(cuda, 260, 300, "bfloat16")
    blublas.gemm(a, b, out, activation="gelu_tanh")
    wrong = out.isnan()
    assert bool(wrong[131].all())
    wrong[131] = False
    assert not bool(wrong.any())
