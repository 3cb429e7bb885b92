"""Operands on a CUDA device for the tests of its kernels: layouts, poison, the rule for errors. PyTorch holds them."""

from __future__ import annotations

from typing import Any

# Tensors of PyTorch, which is imported only where there is a device.
Tensor = Any

#: Half the distance from 1 to the next number, of what operands are rounded to. tf32 rounds both operands of a product,
#: and PyTorch does not use it for the smallest.
ROUNDOFF = {"float32": 2.0**-24, "tf32": 2.0**-10, "bfloat16": 2.0**-8, "float64": 2.0**-53}
#: Lines of matrices start at multiples of this many elements, so that the tile kernels take every size.
LINE = 8


def rows(torch: Any, num_rows: int, num_cols: int, dtype: str, line: int = LINE) -> Tensor:
    """Normal numbers, row-major."""
    width = -(-num_cols // line) * line
    values = torch.randn(num_rows, width, device="cuda", dtype=torch.float64)
    return values.to(getattr(torch, dtype))[:, :num_cols]


def matrix(torch: Any, num_rows: int, num_cols: int, dtype: str, layout: str) -> Tensor:
    """Normal numbers in ``rows`` or ``columns``."""
    return rows(torch, num_rows, num_cols, dtype) if layout == "rows" else rows(torch, num_cols, num_rows, dtype).t()


def poison(torch: Any, num_rows: int, num_cols: int, dtype: str, layout: str = "rows") -> Tensor:
    """NaN everywhere."""
    return matrix(torch, num_rows, num_cols, dtype, layout).fill_(float("nan"))


def chain(torch: Any, a: Tensor, b: Tensor) -> Tensor:
    """The product with one chain of additions per element, in the operands' dtype.

    cuBLAS cuts K into parts when there are few tiles and so has shorter chains than a kernel that was told not to; for
    float64 it has the same error as what stands for the truth.
    """
    out = torch.zeros(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
    for k in range(a.shape[1]):
        out.addcmul_(a[:, k, None], b[None, k, :])
    return out


def chains(torch: Any, a: Tensor, b: Tensor, length: int) -> Tensor:
    """The product with chains of at most ``length`` additions, and one of their sums."""
    out = torch.zeros(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
    for k in range(0, a.shape[1], length):
        out += chain(torch, a[:, k : k + length], b[k : k + length])
    return out


def assert_as_good_as(ours: Tensor, theirs: Tensor, truth: Tensor, roundoff: float, what: str = "") -> None:
    """Our largest error is at most twice PyTorch's at the same precision, plus one rounding of the largest result."""
    assert ours.shape == truth.shape, (what, ours.shape, truth.shape)
    if truth.numel() == 0:
        return
    error = (ours.double() - truth).abs().max().item()
    allowed = 2 * (theirs.double() - truth).abs().max().item() + roundoff * truth.abs().max().item()
    assert error <= allowed, f"{what}: error {error}, allowed {allowed}"
