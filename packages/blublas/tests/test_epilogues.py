"""Every epilogue alone and in every combination, against float64 beside the peer's unfused operations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from formula import Array, Case, Result, SumErrors, assert_as_good_as, bfloat16_values, exact, peer, sum_chain
from layouts import LAYOUTS

import blublas

ACTIVATIONS = [None, "gelu_tanh", "gelu_erf", "gradient tanh", "gradient none"]


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> Array:
    return rng.standard_normal(shape).astype(dtype)


def run(case: Case, *, sums: bool = False, preactivation: bool = False, layout: str = "rows", **options: Any) -> Result:
    """Ours, with every written array poisoned first."""
    lay = LAYOUTS[layout]
    dtype = case.a.dtype
    shape = (case.a @ case.b).shape
    reads_out = case.beta != 0 or case.accumulate
    out = lay(case.c.copy() if reads_out and case.c is not None else np.full(shape, np.nan, dtype))
    stored = lay(np.full(shape, np.nan, dtype)) if preactivation else None
    column_sum = np.full((*shape[:-2], shape[-1]), np.nan, dtype) if sums else None
    row_sum_a = np.full(shape[:-1], np.nan, dtype) if sums else None
    blublas.gemm(
        case.a,
        case.b,
        out,
        alpha=case.alpha,
        beta=case.beta,
        bias=case.bias,
        activation=case.activation,  # type: ignore[arg-type]
        preactivation=stored,
        gelu_gradient_of=None if case.gradient_of is None else lay(case.gradient_of),
        approximate=case.approximate,  # type: ignore[arg-type]
        residual=None if case.residual is None else lay(case.residual),
        accumulate=case.accumulate,
        column_sum=column_sum,
        row_sum_a=row_sum_a,
        **options,
    )
    nothing = np.empty(0, dtype)
    return Result(out, *(nothing if x is None else x for x in (stored, column_sum, row_sum_a)))


def make(rng: np.random.Generator, m: int, n: int, k: int, choice: tuple[Any, ...], dtype: str = "float32") -> Case:
    bias, activation, residual, accumulate, beta = choice
    case = Case(normal(rng, m, k, dtype=dtype), normal(rng, k, n, dtype=dtype), normal(rng, m, n, dtype=dtype))
    case.alpha, case.beta, case.accumulate = 0.5, beta, accumulate
    case.bias = normal(rng, n, dtype=dtype) if bias else None
    case.residual = normal(rng, m, n, dtype=dtype) if residual else None
    if activation in ("gelu_tanh", "gelu_erf"):
        case.activation = activation
    elif activation is not None:
        case.gradient_of, case.approximate = normal(rng, m, n, dtype=dtype) * 2, activation.split()[1]
    return case


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_combination(
    kernel: str, dtype: str, activation: str | None, rng: np.random.Generator, peer_torch: Any
) -> None:
    switches = itertools.product((False, True), (False, True), (False, True), (0.0, -0.75), (False, True))
    column_sums, row_sums = SumErrors(), SumErrors()
    for index, (bias, residual, accumulate, beta, store) in enumerate(switches):
        # In turn: tiles with edges, several blocks of K, few rows, one task each.
        m, n, k = [(31, 45, 27), (17, 70, 1100), (3, 100, 65), (15, 33, 9)][index % 4]
        layout = list(LAYOUTS)[index % 5]
        case = make(rng, m, n, k, (bias, activation, residual, accumulate, beta), dtype)
        preactivation = store and case.gradient_of is None
        ours = run(case, sums=True, preactivation=preactivation, layout=layout)
        truth, theirs = exact(case), peer(case, peer_torch, dtype)
        what = f"bias {bias} residual {residual} accumulate {accumulate} beta {beta} {layout} {m}x{n}x{k}"
        if dtype == "float64":
            # No truth beyond float64 for erf and tanh: ours and NumPy's may each differ from it as the peer does, and
            # by the roundings of a sum of k terms.
            scale = np.abs(case.a).astype(np.float64) @ np.abs(case.b)
            bound = 2.0**-53 * (k + 16) * (scale.max() + 4)
            assert np.abs(ours.out - truth.out).max() <= bound, what
            assert np.abs(ours.column_sum - truth.column_sum).max() <= bound * m, what
            continue
        assert_as_good_as(ours.out, theirs.out, truth.out, dtype, what)
        column_sums.add(ours.column_sum, [theirs.column_sum], truth.column_sum)
        chain = [sum_chain(case.a, -1)] if kernel == "reference" else []
        row_sums.add(ours.row_sum_a, [theirs.row_sum_a, *chain], truth.row_sum_a)
        if preactivation:
            assert_as_good_as(ours.preactivation, theirs.preactivation, truth.preactivation, dtype, what)
    if dtype == "float32":
        column_sums.check(dtype)
        row_sums.check(dtype)


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_gelu_over_its_range(kernel: str, activation: str, peer_torch: Any) -> None:
    """The activation itself, with a product that changes nothing: x @ 1."""
    x = np.concatenate([np.linspace(-12, 12, 4001), np.logspace(-38, 1, 500), -np.logspace(-38, 1, 500)])
    x = x.astype(np.float32)[:, None]
    one = np.ones((1, 1), np.float32)
    case = Case(x, one, activation=activation)
    ours = blublas.gemm(x, one, activation=activation)  # type: ignore[call-overload]
    assert_as_good_as(ours, peer(case, peer_torch, "float32").out, exact(case).out, "float32")
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    ones = np.ones_like(x)
    case = Case(ones, one, gradient_of=x, approximate=approximate)
    ours = blublas.gemm(ones, one, gelu_gradient_of=x, approximate=approximate)  # type: ignore[call-overload]
    assert_as_good_as(ours, peer(case, peer_torch, "float32").out, exact(case).out, "float32")


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_gelu_of_special_values(kernel: str, activation: str) -> None:
    x = np.array([[np.inf], [-np.inf], [np.nan], [0.0], [-0.0], [3e38], [-3e38], [1e-45]], np.float32)
    out = blublas.gemm(x, np.ones((1, 1), np.float32), activation=activation)[:, 0]  # type: ignore[call-overload]
    assert out[0] == np.inf
    assert np.isnan(out[2])
    assert out[3] == out[4] == 0
    assert out[5] == np.float32(3e38)
    assert out[1] == 0 or np.isnan(out[1])  # -inf * 0: PyTorch gives NaN too
    assert out[6] == 0
    assert 0 <= out[7] <= 1e-44


def test_sums_accumulate(kernel: str, rng: np.random.Generator, peer_torch: Any) -> None:
    column_sums, row_sums = SumErrors(), SumErrors()
    for m, n, k in [(31, 45, 27), (3, 100, 65), (200, 33, 1100), (100, 100, 100), (0, 4, 5), (4, 0, 5), (4, 6, 0)]:
        case = Case(normal(rng, m, k), normal(rng, k, n))
        columns, rows = normal(rng, n), normal(rng, m)
        column_sum, row_sum_a = columns.copy(), rows.copy()
        blublas.gemm(
            case.a,
            case.b,
            column_sum=column_sum,
            column_sum_accumulate=True,
            row_sum_a=row_sum_a,
            row_sum_a_accumulate=True,
        )
        truth, theirs = exact(case), peer(case, peer_torch, "float32")
        column_sums.add(column_sum, [theirs.column_sum + columns], truth.column_sum + columns)
        chain = [sum_chain(case.a, -1) + rows] if kernel == "reference" else []
        row_sums.add(row_sum_a, [theirs.row_sum_a + rows, *chain], truth.row_sum_a + rows)
    column_sums.check("float32")
    row_sums.check("float32")


def test_out_may_be_what_is_read(kernel: str, rng: np.random.Generator) -> None:
    """Residual, or the pre-activation of a gradient, in the array of the result."""
    for m, n, k in [(31, 45, 27), (3, 100, 65), (20, 33, 3000)]:
        a, b, x = normal(rng, m, k), normal(rng, k, n), normal(rng, m, n)
        out = x.copy()
        blublas.gemm(a, b, out, residual=out)
        assert np.array_equal(out, blublas.gemm(a, b, residual=x))
        out = x.copy()
        blublas.gemm(a, b, out, gelu_gradient_of=out)
        assert np.array_equal(out, blublas.gemm(a, b, gelu_gradient_of=x))


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_batches(kernel: str, batch: tuple[int, ...], rng: np.random.Generator, peer_torch: Any) -> None:
    m, n, k = 13, 37, 29
    for bias_shape in [(n,), (*batch, n), (1,) * len(batch) + (n,)]:
        case = Case(normal(rng, *batch, m, k), normal(rng, k, n), normal(rng, *batch, m, n), accumulate=True)
        case.bias, case.activation = normal(rng, *bias_shape), "gelu_tanh"
        case.residual = normal(rng, m, n)
        ours = run(case, sums=True, preactivation=True)
        truth, theirs = exact(case), peer(case, peer_torch, "float32")
        for name in ("out", "preactivation", "column_sum", "row_sum_a"):
            assert_as_good_as(*(getattr(x, name) for x in (ours, theirs, truth)), "float32", name)


def test_broadcast_residual(rng: np.random.Generator, peer_torch: Any) -> None:
    a, b = normal(rng, 4, 9, 20), normal(rng, 20, 30)
    for shape in [(30,), (9, 1), (1, 30), (4, 1, 1), (4, 9, 30), (1, 1, 1), ()]:
        case = Case(a, b, residual=normal(rng, *shape))
        ours = blublas.gemm(a, b, residual=case.residual)
        assert_as_good_as(ours, peer(case, peer_torch, "float32").out, exact(case).out, "float32", str(shape))


def test_no_depth(kernel: str, rng: np.random.Generator, peer_torch: Any) -> None:
    """K = 0: the product is 0, and everything else still happens."""
    case = Case(normal(rng, 17, 0), normal(rng, 0, 40), normal(rng, 17, 40), beta=2.0, accumulate=True)
    case.bias, case.residual, case.activation = normal(rng, 40), normal(rng, 17, 40), "gelu_erf"
    ours, truth, theirs = run(case, sums=True), exact(case), peer(case, peer_torch, "float32")
    assert_as_good_as(ours.out, theirs.out, truth.out, "float32")
    assert np.array_equal(ours.row_sum_a, np.zeros(17))


@pytest.mark.torch
@pytest.mark.parametrize("extra_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bfloat16(
    kernel: str, out_dtype: str, extra_dtype: str, activation: str | None, rng: np.random.Generator, torch: Any
) -> None:
    """Every operand that may be of either type is; the peer, too, computes in float32 and rounds at the end."""
    if extra_dtype == "bfloat16" and out_dtype == "float32":
        extra_dtype = "float32"

    def tensor(x: Array | None, dtype: str) -> Any:
        return None if x is None else torch.from_numpy(np.array(x)).to(getattr(torch, dtype))

    for m, n, k in [(31, 45, 27), (3, 100, 65), (17, 70, 3100)]:
        case = make(rng, m, n, k, (True, activation, True, True, 0.5))
        for name in ("a", "b", "c", "bias", "residual", "gradient_of"):
            value = getattr(case, name)
            setattr(case, name, None if value is None else bfloat16_values(value))
        out = tensor(case.c, out_dtype)
        stores = case.gradient_of is None
        preactivation = torch.full((m, n), float("nan"), dtype=getattr(torch, extra_dtype)) if stores else None
        column_sum, row_sum_a = torch.full((n,), float("nan")), torch.full((m,), float("nan"))
        blublas.gemm(
            tensor(case.a, "bfloat16"),
            tensor(case.b, "bfloat16"),
            out,
            alpha=0.5,
            beta=0.5,
            bias=tensor(case.bias, extra_dtype),
            activation=case.activation,  # type: ignore[arg-type]
            preactivation=preactivation,
            gelu_gradient_of=tensor(case.gradient_of, extra_dtype),
            approximate=case.approximate,  # type: ignore[arg-type]
            residual=tensor(case.residual, extra_dtype),
            accumulate=True,
            column_sum=column_sum,
            row_sum_a=row_sum_a,
        )
        truth, theirs = exact(case), peer(case, torch, "float32")
        rounded = [
            torch.from_numpy(x).float().to(getattr(torch, d)).double().numpy()
            for x, d in ((theirs.out, out_dtype), (theirs.preactivation, extra_dtype))
        ]
        assert_as_good_as(out.double().numpy(), rounded[0], truth.out, out_dtype)
        if preactivation is not None:
            assert_as_good_as(preactivation.double().numpy(), rounded[1], truth.preactivation, extra_dtype)
        assert_as_good_as(column_sum.numpy(), theirs.column_sum, truth.column_sum, "float32")
        assert_as_good_as(row_sum_a.numpy(), theirs.row_sum_a, truth.row_sum_a, "float32")


def test_layers(rng: np.random.Generator, peer_torch: Any) -> None:
    """A linear layer with GELU, forward and backward, as the header describes it."""
    tokens, inputs, outputs = 150, 96, 211
    x, weight, bias = normal(rng, tokens, inputs), normal(rng, outputs, inputs), normal(rng, outputs)
    forward = Case(x, weight.T, bias=bias, activation="gelu_tanh")
    pre = np.full((tokens, outputs), np.nan, np.float32)
    y = blublas.gemm(x, weight, transpose_b=True, bias=bias, activation="gelu_tanh", preactivation=pre)
    truth, theirs = exact(forward), peer(forward, peer_torch, "float32")
    assert_as_good_as(y, theirs.out, truth.out, "float32")
    assert_as_good_as(pre, theirs.preactivation, truth.preactivation, "float32")

    gradient, before = normal(rng, tokens, outputs), normal(rng, tokens, inputs)
    inputs_gradient = Case(gradient, weight, gradient_of=before)
    ours = blublas.gemm(gradient, weight, gelu_gradient_of=before)
    assert_as_good_as(ours, peer(inputs_gradient, peer_torch, "float32").out, exact(inputs_gradient).out, "float32")

    weight_gradient = Case(gradient.T, x)
    bias_gradient = np.full(outputs, np.nan, np.float32)
    ours = blublas.gemm(gradient, x, transpose_a=True, row_sum_a=bias_gradient)
    truth, theirs = exact(weight_gradient), peer(weight_gradient, peer_torch, "float32")
    assert_as_good_as(ours, theirs.out, truth.out, "float32")
    assert_as_good_as(bias_gradient, theirs.row_sum_a, truth.row_sum_a, "float32")


@pytest.mark.parametrize("k", [5, 3000])
@pytest.mark.parametrize("which", ["accumulate", "residual"])
def test_c_that_cancels_is_still_read(kernel: str, rng: np.random.Generator, which: str, k: int) -> None:
    """Beta of -1 and adding C once more cancel in value, but a NaN in C has to come out."""
    a, b, out = normal(rng, 20, k), normal(rng, k, 33), normal(rng, 20, 33)
    out[3, 4] = np.nan
    expected = np.array(blublas.gemm(a, b))
    if which == "accumulate":
        blublas.gemm(a, b, out, beta=-1.0, accumulate=True)
    else:
        blublas.gemm(a, b, out, beta=-1.0, residual=out)
    assert np.isnan(out[3, 4])
    out[3, 4] = expected[3, 4]
    # C - C is 0 in every order of the three terms but for the rounding of sums of magnitude |AB| + |C|.
    bound = 4 * np.finfo(np.float32).eps * (np.abs(expected) + 8)
    assert (np.abs(out - expected) <= bound).all()
