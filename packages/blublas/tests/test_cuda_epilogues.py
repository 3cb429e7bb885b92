"""Epilogues on a CUDA device, by every family of kernels, against the formula in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from cuda_arrays import ROUNDOFF, Tensor, assert_as_good_as, chain, matrix, poison

import blublas

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Epilogue:
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    activation: str | None = None
    preactivation: bool = False
    gradient: str | None = None
    residual: bool = False
    accumulate: bool = False
    sums: str | None = None  # "store" or "add"


EPILOGUES = {
    "scaled": Epilogue(alpha=0.5, beta=2.0),
    "bias": Epilogue(bias=True),
    "bias, tanh GELU": Epilogue(bias=True, activation="gelu_tanh", preactivation=True),
    "bias, erf GELU, residual": Epilogue(bias=True, activation="gelu_erf", preactivation=True, residual=True),
    "tanh gradient": Epilogue(gradient="tanh", alpha=0.5),
    "erf gradient, sums": Epilogue(gradient="none", sums="store"),
    "residual, accumulate": Epilogue(residual=True, accumulate=True),
    "sums added": Epilogue(sums="add", accumulate=True, beta=-1.0),
    "everything": Epilogue(0.5, 2.0, True, "gelu_tanh", True, None, True, True, "store"),
}
# (configuration, dtype of the operands, of the result, math)
KERNELS = [
    *((name, "float32", "float32", "ieee") for name in ("f32_128x128", "f32_64x64/2", "general")),
    *((name, "float32", "float32", "tf32") for name in ("tf32_128x128x32_3", "tf32_64x64x32_3/3", "auto")),
    *(
        (name, "bfloat16", out, "ieee")
        for name in ("bf16_128x128x64_3", "bf16_64x64x64_3/3", "bf16_128x256x64_4", "general", "auto")
        for out in ("bfloat16", "float32")
    ),
    ("auto", "float64", "float64", "ieee"),
]


@dataclass
class Operands:
    a: Tensor
    b: Tensor
    c: Tensor
    bias: Tensor
    aux: Tensor
    residual: Tensor


def formula(
    torch: Any, x: Operands, e: Epilogue, dtype: Any, chained: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Result, pre-activation, sums of its columns and of a's rows, in one dtype."""
    gelu = torch.nn.functional.gelu
    a, b = x.a.to(dtype), x.b.to(dtype)
    v = e.alpha * (chain(torch, a, b) if chained else a @ b)
    if e.beta != 0:
        v = v + e.beta * x.c.to(dtype)
    if e.bias:
        v = v + x.bias.to(dtype)
    before = v
    if e.activation is not None:
        v = gelu(v, approximate="tanh" if e.activation == "gelu_tanh" else "none")
    if e.gradient is not None:
        at = x.aux.to(dtype)
        v = v * torch.ops.aten.gelu_backward(torch.ones_like(at), at, approximate=e.gradient)
    if e.residual:
        v = v + x.residual.to(dtype)
    if e.accumulate:
        v = v + x.c.to(dtype)
    return v, before, v.sum(0), x.a.to(dtype).sum(1)


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(("config", "dtype", "out_dtype", "math"), KERNELS)
def test_epilogues(cuda: Any, config: str, dtype: str, out_dtype: str, math: Any, name: str) -> None:
    torch = cuda
    torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
    blublas.set_cuda_config(config)
    e = EPILOGUES[name]
    sum_dtype = "float64" if dtype == "float64" else "float32"
    key = "tf32" if math == "tf32" else "bfloat16" if out_dtype == "bfloat16" else sum_dtype
    # float32 results of bfloat16 operands have the peer's error in float32: PyTorch computes those in bfloat16 alone.
    peer_dtype = getattr(torch, out_dtype)
    # Two roundings of the largest result; in float64, where the truth has PyTorch's own errors of GELU, four times it.
    roundoff = (8 if dtype == "float64" else 2) * ROUNDOFF[key]
    for (m, n, k), layout in [((130, 131, 70), "rows"), ((257, 96, 513), "rows"), ((66, 72, 40), "columns")]:
        x = Operands(
            a=matrix(torch, m, k, dtype, "rows"),
            b=matrix(torch, k, n, dtype, "columns"),
            c=matrix(torch, m, n, out_dtype, layout),
            bias=torch.randn(n, device="cuda", dtype=getattr(torch, sum_dtype)),
            aux=matrix(torch, m, n, out_dtype, layout),
            residual=matrix(torch, m, n, out_dtype, layout),
        )
        truth = formula(torch, x, e, torch.float64)
        theirs = formula(torch, x, e, peer_dtype, chained=math == "ieee" and out_dtype != "bfloat16")
        out = (
            matrix(torch, m, n, out_dtype, layout).copy_(x.c)
            if e.beta or e.accumulate
            else poison(torch, m, n, out_dtype, layout)
        )
        stored = poison(torch, m, n, out_dtype, layout)
        start = float("nan") if e.sums == "store" else 3.0
        column_sum = torch.full((n,), start, device="cuda", dtype=getattr(torch, sum_dtype))
        row_sum = torch.full((m,), start, device="cuda", dtype=getattr(torch, sum_dtype))
        blublas.gemm(
            x.a,
            x.b,
            out,
            alpha=e.alpha,
            beta=e.beta,
            bias=x.bias if e.bias else None,
            activation=e.activation,  # type: ignore[arg-type]
            preactivation=stored if e.preactivation else None,
            gelu_gradient_of=x.aux if e.gradient else None,
            approximate=e.gradient or "tanh",  # type: ignore[arg-type]
            residual=x.residual if e.residual else None,
            accumulate=e.accumulate,
            column_sum=column_sum if e.sums else None,
            column_sum_accumulate=e.sums == "add",
            row_sum_a=row_sum if e.sums else None,
            row_sum_a_accumulate=e.sums == "add",
            math=math,
        )
        assert_as_good_as(out, theirs[0], truth[0], roundoff, f"out {m} x {n} x {k}")
        if e.preactivation:
            assert_as_good_as(stored, theirs[1], truth[1], roundoff, f"preactivation {m} x {n} x {k}")
        if e.sums:
            added = 3.0 if e.sums == "add" else 0.0
            # Of up to 513 terms: rounded less often than that many times even by an unlucky order.
            assert_as_good_as(column_sum, theirs[2].double() + added, truth[2] + added, 8 * ROUNDOFF[key], "column_sum")
            assert_as_good_as(
                row_sum, theirs[3].double() + added, truth[3] + added, 8 * ROUNDOFF[sum_dtype], "row_sum_a"
            )
