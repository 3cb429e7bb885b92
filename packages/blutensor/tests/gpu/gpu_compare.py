"""Comparing results on the GPU with float64: at most twice PyTorch's error at the same precision, plus one rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import blutensor as bt

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

Array = npt.NDArray[np.float64]


def exact(tensor: bt.Tensor) -> Array:
    """The values as float64 NumPy."""
    return tensor.detach().cpu().astype("float64").numpy()


def rounded(values: Array, dtype: str) -> bt.Tensor:
    """float64 values as a tensor of `dtype` on the cpu."""
    return bt.asarray(values).astype(dtype)


def to_torch(torch: Any, tensor: bt.Tensor) -> Any:
    """A copy of the same values and dtype as PyTorch's tensor on the GPU."""
    name = tensor.dtype.name
    if name in EPSILON:
        return torch.from_numpy(exact(tensor)).to("cuda", getattr(torch, name))
    return torch.from_numpy(tensor.cpu().numpy()).to("cuda")


def from_torch(tensor: Any) -> Array:
    """PyTorch's values as float64 NumPy."""
    values: Array = tensor.detach().double().cpu().numpy()
    return values


def check(name: str, ours: bt.Tensor, reference: Array, peer: Array | None, dtype: str, terms: int = 1) -> None:
    """Fails where our largest error exceeds twice the peer's plus one rounding.

    Args:
        name: For the message.
        ours: The result, on any device.
        reference: In float64.
        peer: PyTorch's result at the same precision; without it the bound is that of a sum of `terms` terms in
            float32 (float64 for float64), which grows with the square root of their number, and a rounding.
        dtype: The result's precision.
        terms: Of the longest sum.
    """
    got = exact(ours)
    assert got.shape == reference.shape, (name, got.shape, reference.shape)
    if reference.size == 0:
        return
    finite = np.isfinite(reference)
    np.testing.assert_array_equal(np.isfinite(got), finite, err_msg=name)
    scale = float(np.max(np.abs(reference[finite]), initial=0.0))
    rounding = EPSILON[dtype] * scale
    if peer is None:
        allowed = (EPSILON["float64"] if dtype == "float64" else EPSILON["float32"]) * scale * max(4.0, terms**0.5)
    else:
        allowed = 2 * float(np.max(np.abs(peer - reference)[finite], initial=0.0))
    error = float(np.max(np.abs(got - reference)[finite], initial=0.0))
    assert error <= allowed + rounding, f"{name}: error {error:.3g}, allowed {allowed:.3g} + {rounding:.3g}"


def check_all(
    names: Sequence[str],
    ours: Sequence[bt.Tensor],
    reference: Sequence[Array],
    peer: Sequence[Array | None],
    dtypes: Sequence[str],
    terms: int = 1,
) -> None:
    """`check` for several results, all of which are looked at before it fails."""
    failures = []
    for name, got, want, theirs, dtype in zip(names, ours, reference, peer, dtypes, strict=True):
        try:
            check(name, got, want, theirs, dtype, terms)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def same_bits(first: bt.Tensor, second: bt.Tensor) -> bool:
    """Whether two results have the same bytes."""
    a, b = first.cpu(), second.cpu()
    wide = {1: "uint8", 2: "uint16", 4: "int32", 8: "int64"}[a.dtype.itemsize]
    if a.dtype.name == "bfloat16":
        return np.array_equal(a.astype("float32").numpy().view("int32"), b.astype("float32").numpy().view("int32"))
    return np.array_equal(a.numpy().view(wide), b.numpy().view(wide))


def nearest_tf32(x: Any) -> Any:
    """PyTorch's tensor rounded to 10 bits, in float64."""
    import torch

    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).double()
