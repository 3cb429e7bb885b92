"""Indexing by arrays and masks on the GPU: the bits of the CPU, mistakes told where the device is waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operator_cases import EVERY, FLOATS
from test_array_indexing import numbered, shape_and_index

import blutensor as bt


def on(device: str, array: np.ndarray, dtype: str) -> bt.Tensor:
    return bt.asarray(array).astype(dtype).to(device)


def as_list(tensor: bt.Tensor) -> Any:
    return tensor.detach().cpu().astype("float64").tolist()


@pytest.mark.parametrize("dtype", EVERY)
def test_reading_and_writing(dtype: str) -> None:
    for shape, index in map(shape_and_index, range(60)):
        values = numbered(shape) % 100
        x, twin = on("cuda", values, dtype), on("cpu", values, dtype)
        assert as_list(x[index]) == as_list(twin[index]), index
        part = numbered(twin[index].shape) % 7
        x[index], twin[index] = on("cuda", part, dtype), on("cpu", part, dtype)
        assert as_list(x) == as_list(twin), index


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients(dtype: str) -> None:
    for shape, index in map(shape_and_index, range(100, 140)):
        results = []
        for device in ("cuda", "cpu"):
            x = on(device, numbered(shape) / 7, dtype).requires_grad_()
            y = x[index]
            y.backward(on(device, numbered(y.shape) % 5, dtype))
            assert x.grad is not None
            results.append(as_list(x.grad))
        assert results[0] == results[1], index  # small whole numbers: every sum is exact


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (1000, 33), (7, 2048)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_wide_rows(shape: tuple[int, int], dtype: str) -> None:
    """Runs of 16 bytes and others, aligned and not, many places and a place named thousands of times."""
    rng = np.random.default_rng(1)
    values, rows = rng.integers(-90, 90, shape).astype(float), rng.integers(-shape[0], shape[0], 5000)
    for start in (0, 1):
        x, twin = (on(d, values, dtype)[:, start:] for d in ("cuda", "cpu"))
        index = [bt.asarray(rows).to(d) for d in ("cuda", "cpu")]
        assert as_list(x[index[0]]) == as_list(twin[index[1]])
        source = rng.integers(-90, 90, (5000, shape[1] - start)).astype(float)
        for _ in range(2):  # the last of many values for a place stays, in every run
            x[index[0]], twin[index[1]] = on("cuda", source, dtype), on("cpu", source, dtype)
            assert as_list(x) == as_list(twin)


@pytest.mark.parametrize("size", [0, 1, 33, 1023, 4097, 3_000_001])
def test_masks(size: int) -> None:
    rng = np.random.default_rng(2)
    for density in (0.0, 0.01, 0.5, 1.0):
        mask, values = rng.random(size) < density, rng.standard_normal(size)
        x, m = bt.asarray(values).cuda(), bt.asarray(mask).cuda()
        assert np.array_equal(x[m].cpu().numpy(), values[mask])
        assert np.array_equal(bt.nonzero(m)[0].cpu().numpy(), mask.nonzero()[0])
        x[m] = 3.0
        assert np.array_equal(x.cpu().numpy(), np.where(mask, 3.0, values))


def test_a_wrong_index_is_told() -> None:
    x = bt.zeros((3, 4), device="cuda")
    for call in (lambda i: x[i], lambda i: x.__setitem__(i, 1.0), lambda i: bt.take(x, i, axis=0)):
        for wrong in (3, -4):
            call(bt.asarray([0, wrong]).cuda())
            message = rf"\[index\] expected an index from -3 to 2, got {wrong} on cuda:0"
            with pytest.raises(bt.IndexOutOfRangeError, match=message):
                bt.cuda.synchronize()
            x.fill_(0.0)
    bt.take_along_axis(x, bt.full((3, 1), 4, dtype="int64", device="cuda"))
    with pytest.raises(bt.IndexOutOfRangeError, match="from -4 to 3, got 4"):
        bt.cuda.synchronize()
    x[bt.asarray([1, 7]).cuda()] = 1.0
    with pytest.raises(bt.IndexOutOfRangeError):
        bt.cuda.synchronize()
    assert as_list(x) == [[0] * 4, [1] * 4, [0] * 4]  # a wrong place is not written


def test_captured() -> None:
    x = bt.asarray(numbered((40, 3)).astype(np.float32)).cuda().requires_grad_()

    def step(index: bt.Tensor) -> bt.Tensor:
        x.grad = None
        (x[index] ** 2).sum().backward()
        written = bt.copy(x.detach())
        written[index] = 1.0
        return written + x.grad  # type: ignore[operator]

    captured = bt.capture(step)
    for seed in range(5):
        index = bt.asarray(np.random.default_rng(seed).integers(-40, 40, 64)).cuda()
        assert as_list(captured(index)) == as_list(step(index))
    assert "graph" in captured.program.execution
