"""The bits of a result depend on the operands alone: not on threads, workspace, addresses, or who calls."""

from __future__ import annotations

import concurrent.futures
import ctypes
from typing import Any

import numpy as np
import pytest
from formula import Array
from native import call, describe, matrix_of

import blublas
from blublas import _native

SHAPES = [(1, 300, 257), (5, 1000, 64), (150, 130, 2500), (333, 257, 129), (1500, 40, 33), (40, 1500, 600)]


def operands(rng: np.random.Generator, m: int, n: int, k: int) -> dict[str, Array]:
    shapes = {"a": (m, k), "b": (k, n), "bias": (n,), "residual": (m, n), "gelu_gradient_of": (m, n)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def results(x: dict[str, Array], fused: bool, **options: Any) -> list[Array]:
    m, n = x["residual"].shape
    if not fused:
        return [blublas.gemm(x["a"], x["b"], **options)]
    column_sum, row_sum_a = np.empty(n, np.float32), np.empty(m, np.float32)
    out = blublas.gemm(**x, column_sum=column_sum, row_sum_a=row_sum_a, **options)
    return [out, column_sum, row_sum_a]


def same_bits(first: list[Array], second: list[Array]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_number_of_threads(kernel: str, shape: tuple[int, int, int], fused: bool, rng: np.random.Generator) -> None:
    x = operands(rng, *shape)
    blublas.set_num_threads(1)
    expected = results(x, fused)
    for threads in (2, 3, 4):
        blublas.set_num_threads(threads)
        for _ in range(3):
            assert same_bits(results(x, fused), expected)
    assert same_bits(results(x, fused, num_threads=1), expected)
    assert same_bits(results(x, fused, num_threads=2), expected)


def test_batch_on_any_number_of_threads(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((7, 33, 50), np.float32), rng.standard_normal((7, 50, 65), np.float32)
    blublas.set_num_threads(1)
    expected = blublas.gemm(a, b)
    for threads in (2, 3, 4):
        blublas.set_num_threads(threads)
        assert same_bits([blublas.gemm(a, b)], [expected])


@pytest.mark.parametrize("shape", SHAPES)
def test_any_workspace(kernel: str, shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    """From what one thread needs to more than all of four can use."""
    m, n, k = shape
    x = operands(rng, m, n, k)
    sums: list[Array] = []
    expected: list[Array] = []
    blublas.set_num_threads(4)
    sizes = []
    for threads in (1, 2, 3, 0):
        args = describe(x["a"], x["b"], np.empty((m, n), np.float32), num_threads=threads)
        needed = ctypes.c_size_t()
        assert _native.library.blublas_gemm_workspace(args, needed) == 0
        sizes.append(needed.value)
    for size in {*sizes, max(sizes) + 4096}:
        if size < sizes[0]:
            continue
        out, column_sum = np.full((m, n), np.nan, np.float32), np.full(n, np.nan, np.float32)
        args = describe(x["a"], x["b"], out)
        args.epilogue = _native.EPILOGUE_COLUMN_SUM | _native.EPILOGUE_RESIDUAL
        args.column_sum, args.residual = column_sum.ctypes.data, matrix_of(x["residual"])
        extra = ctypes.c_size_t()
        args.num_threads = 1
        assert _native.library.blublas_gemm_workspace(args, extra) == 0
        args.num_threads = 0
        assert call(args, workspace_bytes=max(size, extra.value)) == 0
        sums = [out, column_sum]
        expected = expected or sums
        assert same_bits(sums, expected)


def test_any_address(kernel: str, rng: np.random.Generator) -> None:
    """Operands at every alignment of a float within a line of cache."""
    m, n, k = 45, 70, 65
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)

    def moved(x: Array, offset: int) -> Array:
        memory = np.empty(x.size + 64, np.float32)
        start = (-memory.ctypes.data // 4) % 16 + offset
        view = memory[start : start + x.size].reshape(x.shape)
        view[...] = x
        return view

    expected = blublas.gemm(moved(a, 0), moved(b, 0), moved(np.empty((m, n), np.float32), 0))
    for offset in range(1, 16):
        out = blublas.gemm(moved(a, offset), moved(b, 3 * offset % 16), moved(expected, 5 * offset % 16))
        assert same_bits([np.ascontiguousarray(out)], [np.ascontiguousarray(expected)])


def test_callers_at_once(rng: np.random.Generator) -> None:
    """Several threads of Python share the pool; who does not get it computes alone, with the same bits."""
    x = operands(rng, 200, 150, 300)
    expected = results(x, True)
    with concurrent.futures.ThreadPoolExecutor(6) as executor:
        for outcome in executor.map(lambda _: [results(x, True) for _ in range(10)], range(6)):
            assert all(same_bits(result, expected) for result in outcome)


def test_repeated_calls(rng: np.random.Generator) -> None:
    x = operands(rng, 123, 321, 999)
    expected = results(x, True)
    assert all(same_bits(results(x, True), expected) for _ in range(20))
