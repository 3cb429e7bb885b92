"""More than 2^31 elements, in memory that is reserved and hardly touched."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest
from formula import Array

import blublas


def reserve(num_elements: int) -> Array:
    """Zeros that cost memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, 4 * num_elements, flags=flags)
    except OSError as error:
        pytest.skip(f"no {4 * num_elements >> 30} GiB of address space: {error}")
    return np.frombuffer(memory, np.float32)


@pytest.mark.skipif(sys.maxsize < 2**32, reason="32-bit addresses")
@pytest.mark.parametrize("role", ["a", "b", "out", "residual"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_strides_beyond_31_bits(kernel: str, role: str, by_columns: bool, rng: np.random.Generator) -> None:
    """The last row (or column) of one operand is more than 2^31 elements behind the first."""
    shapes = {"a": (15, 9), "b": (9, 33), "out": (15, 33), "residual": (15, 33)}
    operands = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    expected = blublas.gemm(**{**operands, "out": operands["out"].copy()})
    rows, cols = shapes[role]
    count = cols if by_columns else rows
    far = 2**31 // (count - 1) + 64
    memory = reserve(far * count)
    strides = (4, 4 * far) if by_columns else (4 * far, 4)
    spread = np.lib.stride_tricks.as_strided(memory, (rows, cols), strides)
    spread[...] = operands[role]
    result = blublas.gemm(**{**operands, role: spread})
    assert np.abs(result - expected).max() <= 1e-6 * np.abs(expected).max()  # another layout may add in another order


@pytest.mark.slow
def test_an_operand_of_more_than_31_bits(rng: np.random.Generator) -> None:
    rows, cols = 65537, 32769
    a = reserve(rows * cols).reshape(rows, cols)
    a[-1, -1], a[rows // 2, cols // 2] = 3, 5
    b = rng.standard_normal((cols, 1), np.float32)
    expected = np.zeros((rows, 1), np.float32)
    expected[-1], expected[rows // 2] = 3 * b[-1], 5 * b[cols // 2]
    assert np.array_equal(blublas.gemm(a, b, np.full((rows, 1), np.nan, np.float32)), expected)
