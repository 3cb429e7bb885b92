"""What gemm refuses: one typed error each, which names what was expected and what was given, and nothing written."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

import blublas
from blublas import gemm

ZERO = np.zeros((4, 5), np.float32)
B = np.zeros((5, 6), np.float32)


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


VALUE, TYPE = blublas.InvalidValueError, blublas.InvalidTypeError
REFUSED: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (VALUE, "a with two or more axes", (f32(5), B), {}),
    (VALUE, "b with two or more axes", (ZERO, f32(5)), {}),
    (VALUE, "one K", (ZERO, f32(4, 6)), {}),
    (VALUE, "one K", (ZERO, B), {"transpose_a": True}),
    (VALUE, "leading axes", (f32(2, 4, 5), f32(3, 5, 6)), {}),
    (VALUE, "out of shape", (ZERO, B, f32(6, 4)), {}),
    (VALUE, "out of shape", (ZERO, B, f32(1, 4, 6)), {}),
    (VALUE, "writeable", (ZERO, B, read_only(f32(4, 6))), {}),
    (VALUE, "out with beta", (ZERO, B), {"beta": 1.0}),
    (VALUE, "out with beta", (ZERO, B), {"accumulate": True}),
    (VALUE, "bias", (ZERO, B), {"bias": f32(4)}),
    (VALUE, "contiguous last axis", (ZERO, B), {"bias": f32(12)[::2]}),
    (VALUE, "bias that broadcasts", (ZERO, B), {"bias": f32(2, 6)}),
    (VALUE, "activation of 'gelu_tanh'", (ZERO, B), {"activation": "relu"}),
    (VALUE, "approximate of", (ZERO, B), {"gelu_gradient_of": f32(4, 6), "approximate": "erf"}),
    (VALUE, "got both", (ZERO, B), {"gelu_gradient_of": f32(4, 6), "preactivation": f32(4, 6)}),
    (VALUE, "at most one", (ZERO, B), {"gelu_gradient_of": f32(4, 6), "activation": "gelu_erf"}),
    (VALUE, "preactivation of shape", (ZERO, B), {"preactivation": f32(6)}),
    (VALUE, "writeable", (ZERO, B), {"preactivation": read_only(f32(4, 6))}),
    (VALUE, "gelu_gradient_of that broadcasts", (ZERO, B), {"gelu_gradient_of": f32(5, 6)}),
    (VALUE, "residual that broadcasts", (ZERO, B), {"residual": f32(3, 4, 6)}),
    (VALUE, "column_sum of shape", (ZERO, B), {"column_sum": f32(4)}),
    (VALUE, "row_sum_a of shape", (ZERO, B), {"row_sum_a": f32(6)}),
    (VALUE, "column_sum with column_sum_accumulate", (ZERO, B), {"column_sum_accumulate": True}),
    (VALUE, "row_sum_a with row_sum_a_accumulate", (ZERO, B), {"row_sum_a_accumulate": True}),
    (VALUE, "num_threads of 0 or more", (ZERO, B), {"num_threads": -1}),
    (TYPE, "num_threads as an integer", (ZERO, B), {"num_threads": 1.5}),
    (VALUE, "num_threads of at most", (ZERO, B), {"num_threads": 10**30}),
    (TYPE, "alpha as a number, got '2'", (ZERO, B), {"alpha": "2"}),
    (TYPE, "alpha as a number, got None", (ZERO, B), {"alpha": None}),
    (TYPE, "beta as a number, got '0'", (ZERO, B), {"beta": "0"}),
    (TYPE, "beta as a number, got", (ZERO, B, f32(4, 6)), {"beta": 1j}),
    (TYPE, "a, b, out as float32", (ZERO, B, np.zeros((4, 6))), {}),
    (VALUE, "out whose elements do not overlap", (ZERO, B, np.lib.stride_tricks.as_strided(B, (4, 6), (4, 4))), {}),
    (TYPE, "float32 or out's float32", (ZERO, B), {"residual": np.zeros((4, 6))}),
    (TYPE, "column_sum as float32", (ZERO, B), {"column_sum": np.zeros(6)}),
    (TYPE, "got float16", (ZERO.astype(np.float16), B), {}),
    (TYPE, "got int64", (ZERO, B.astype(np.int64)), {}),
    (TYPE, "got uint16", (ZERO.astype(np.uint16), B), {}),
    (TYPE, "got >f4|got float32", (ZERO.astype(">f4"), B), {}),
    (TYPE, "float64", (ZERO.astype(np.float64), B), {}),
    (TYPE, "float64", (ZERO, B, np.zeros((4, 6))), {}),
    (TYPE, "bias as", (ZERO, B), {"bias": np.zeros(6)}),
    (VALUE, "alpha that float64 holds", (ZERO, B), {"alpha": 10**400}),
    (VALUE, "activation of 'gelu_tanh'", (ZERO, B), {"activation": ["gelu_tanh"]}),
    (VALUE, "approximate of 'tanh'", (ZERO, B), {"approximate": "erf"}),
    (TYPE, "num_threads as an integer, got bool", (ZERO, B), {"num_threads": True}),
    (TYPE, "stream as a CUDA stream or its handle, got str", (ZERO, B), {"stream": "0"}),
    (TYPE, "stream as a CUDA stream or its handle, got int", (ZERO, B), {"stream": 2**64}),
    (TYPE, "array with __dlpack__, got list", ([[1.0]], B), {}),
    (TYPE, "array with __dlpack__, got NoneType", (None, B), {}),
]


@pytest.mark.parametrize("index", range(len(REFUSED)), ids=lambda i: f"{i} {REFUSED[i][1]}")
def test_refused(index: int) -> None:
    kind, text, arrays, options = REFUSED[index]
    with pytest.raises(kind, match=text) as caught:
        gemm(*arrays, **options)
    assert isinstance(caught.value, blublas.BlublasError)
    assert isinstance(caught.value, ValueError | TypeError)
    assert str(caught.value).startswith("[gemm] expected ")
    assert ", got " in str(caught.value) or "; got " in str(caught.value)


FLAGS = [
    (name, p.name)
    for name in blublas.__all__
    if inspect.isfunction(getattr(blublas, name))
    for p in inspect.signature(getattr(blublas, name)).parameters.values()
    if "bool" in str(p.annotation)
]


@pytest.mark.parametrize(("function", "flag"), FLAGS)
def test_flags_are_true_or_false(function: str, flag: str) -> None:
    assert function == "gemm", "give this test the arguments that the function needs"
    arrays = {"out": f32(5, 5), "column_sum": f32(5), "row_sum_a": f32(5)}
    for value in ("N", 1, 0, None, 1.0, np.array([True]), "False"):
        with pytest.raises(TYPE, match=rf"\[gemm\] expected {flag} of True or False, got "):
            gemm(f32(5, 5), f32(5, 5), **arrays, **{flag: value})  # type: ignore[arg-type]
    for value in (True, False, np.True_, np.False_):
        gemm(f32(5, 5), f32(5, 5), **arrays, **{flag: value})  # type: ignore[arg-type]


def test_all_flags_are_found() -> None:
    names = ["transpose_a", "transpose_b", "accumulate", "column_sum_accumulate", "row_sum_a_accumulate"]
    assert [("gemm", name) for name in names] == FLAGS


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (f32(2**40, 0), f32(0, 2**40)),  # more than an address reaches: NumPy's ValueError
        (f32(2**40, 0), f32(0, 2**6)),  # its MemoryError
        (np.lib.stride_tricks.as_strided(ZERO, (2**40, 3, 1), (0, 0, 0)), f32(1, 2**5)),
    ],
)
def test_results_that_no_memory_holds(a: np.ndarray, b: np.ndarray) -> None:
    shape = (*a.shape[:-1], b.shape[-1])
    text = rf"\[gemm\] expected memory for the result, got none of {4 * math.prod(shape)} bytes: float32 of shape "
    with pytest.raises(blublas.OutOfMemoryError, match=text) as caught:
        gemm(a, b)
    assert isinstance(caught.value, MemoryError)
    assert str(shape) in str(caught.value)
    assert np.array_equal(gemm(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)), np.full((2, 2), 3))


def test_unaligned() -> None:
    memory = np.zeros(4 * 20 + 1, np.uint8)
    with pytest.raises(VALUE, match="aligned elements"):
        gemm(memory[1:].view(np.float32).reshape(4, 5), B)
    fields = np.zeros((4, 5), np.dtype([("x", np.float32), ("pad", np.uint8)]))
    with pytest.raises(VALUE, match="aligned elements"):
        gemm(fields["x"], B)


def test_overlap() -> None:
    memory = f32(12, 12)
    for out, text in ((memory[:4, :6], "overlaps a"), (memory[3:7, :6], "overlaps a")):
        with pytest.raises(VALUE, match=f"out.*{text}"):
            gemm(memory[:4, :5], B, out)
    with pytest.raises(VALUE, match="overlap each other"):
        gemm(ZERO, B, np.lib.stride_tricks.as_strided(memory, (4, 6), (4, 4)))
    with pytest.raises(VALUE, match="overlap"):
        gemm(ZERO, B, memory[:4, :6], residual=memory[1:5, :6])


def test_overlap_across_a_batch() -> None:
    """Layouts that take pointers or several native calls are held to the same rule."""
    memory = np.zeros((3, 2, 8, 8), np.float32)
    seen = memory.transpose(1, 0, 2, 3)
    with pytest.raises(VALUE, match="out in memory of its own, got one that overlaps a"):
        gemm(seen, f32(8, 8), seen)
    shifted = np.zeros((4, 2, 8, 8), np.float32)
    with pytest.raises(VALUE, match="overlaps a"):
        gemm(shifted[1:].transpose(1, 0, 2, 3), f32(8, 8), shifted[:3].transpose(1, 0, 2, 3))
    writable = np.lib.stride_tricks.as_strided(memory, (2, 3, 8, 8), (0, 256, 32, 4))
    with pytest.raises(VALUE, match="overlap each other"):
        gemm(f32(2, 3, 8, 8), f32(8, 8), writable)
    out = memory.transpose(1, 0, 2, 3)
    gemm(np.ones((2, 3, 8, 8), np.float32), np.ones((8, 8), np.float32), out, residual=out)
    assert np.array_equal(memory, np.full_like(memory, 8))


def test_kernels() -> None:
    with pytest.raises(VALUE, match=r"\[set_kernel\] expected"):
        blublas.set_kernel("fastest")
    with pytest.raises(TYPE, match=r"\[set_kernel\] expected a string"):
        blublas.set_kernel(3)  # type: ignore[arg-type]
    blublas.set_kernel("reference")
    assert all("reference" in name for name in blublas.info().kernels.values())
    blublas.set_kernel("auto")
    features = blublas.info().cpu_features
    best = "avx512" if "avx512" in features else "avx2" if "avx2" in features else "reference"
    assert all(best in name for name in blublas.info().kernels.values())
    assert set(blublas.info().kernels) == {"float32", "bfloat16", "float64"}


class OnAnotherDevice:
    def __init__(self, device_type: int) -> None:
        self.device_type = device_type

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, 0

    def __dlpack__(self) -> object:
        raise AssertionError("must not be asked")


class NoCapsule:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> object:
        return 42


def test_foreign_arrays() -> None:
    with pytest.raises(blublas.UnsupportedError, match=r"CUDA device, got DLPack device \(10, 0\)"):
        gemm(OnAnotherDevice(10), B)
    with pytest.raises(VALUE, match="one device, got a on the CPU and b on cuda:0"):
        gemm(B.T, OnAnotherDevice(2))
    with pytest.raises(TYPE, match="export its memory"):
        gemm(NoCapsule(), B)


@pytest.mark.torch
def test_torch_tensors(torch: Any) -> None:
    with pytest.raises(TYPE, match="export its memory"):
        gemm(torch.zeros(4, 5, requires_grad=True), B)
    with pytest.raises(TYPE, match="DLPack type"):
        gemm(torch.zeros(4, 5, dtype=torch.float16), B)
    with pytest.raises(TYPE, match="bfloat16"):
        gemm(torch.zeros(4, 5, dtype=torch.bfloat16), B)
    with pytest.raises(VALUE, match="one K"):
        gemm(torch.zeros(4, 4), B)


def test_an_array_whose_device_dlpack_does_not_know() -> None:
    class Nowhere:
        def __dlpack__(self, *, stream: int | None = None) -> object:
            raise AssertionError("must not be asked")

        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta for Dlpack")

    a = np.ones((2, 2), np.float32)
    for operands in ((a, Nowhere()), (Nowhere(), a)):
        with pytest.raises(blublas.UnsupportedError, match="got a Nowhere whose device DLPack does not know: Unknown"):
            blublas.gemm(*operands)
