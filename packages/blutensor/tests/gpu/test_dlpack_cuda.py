"""DLPack with PyTorch on the GPU: no copies, in the order of the streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blutensor as bt

torch = pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool"])
def test_both_ways_share_memory(name: str) -> None:
    ours = bt.zeros((3, 4), dtype=name, device="cuda")
    theirs = torch.from_dlpack(ours)
    assert theirs.is_cuda
    assert theirs.dtype == getattr(torch, name)
    assert tuple(theirs.shape) == (3, 4)
    theirs.fill_(1)
    torch.cuda.synchronize()
    assert np.all(np.asarray(ours.cpu().tolist()) == 1)
    again = bt.from_dlpack(theirs)
    assert again.device == "cuda:0"
    assert again.dtype is ours.dtype
    assert torch.from_dlpack(again).data_ptr() == theirs.data_ptr()


def test_strides() -> None:
    theirs = torch.arange(24, device="cuda", dtype=torch.float32).reshape(4, 6)[::2, 1::2].T
    ours = bt.from_dlpack(theirs)
    assert ours.strides == theirs.stride()
    np.testing.assert_array_equal(ours.cpu().numpy(), theirs.cpu().numpy())


def slow(n: int = 4096) -> Any:
    """Work that keeps PyTorch's stream busy for some time, then ones."""
    a = torch.randn(n, n, device="cuda")
    for _ in range(20):
        a = (a @ a).clamp(-1, 1)
    return a * 0 + 1


@pytest.mark.parametrize("side", [False, True])
def test_reading_waits_for_their_stream(side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            theirs = slow()
            ours = bt.from_dlpack(theirs)
            assert (ours.cpu().numpy() == 1).all()


@pytest.mark.parametrize("side", [False, True])
def test_their_reading_waits_for_ours(side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    x = bt.ones((1 << 24,), device="cuda")
    with torch.cuda.stream(stream):
        for k in range(3):
            y = x
            for _ in range(50):
                y = y + 1
            assert (torch.from_dlpack(y) == 51).all(), k


def test_memory_is_not_used_again_under_them() -> None:
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    stream = torch.cuda.Stream()
    expected = 0.0
    with torch.cuda.stream(stream):
        for k in range(20):
            ours = bt.full((1 << 22,), k, dtype="float32", device="cuda")
            theirs = torch.from_dlpack(ours)
            del ours
            total += theirs.double().sum()
            expected += k * float(1 << 22)
            del theirs
    stream.synchronize()
    assert total.item() == expected


def test_streams_of_the_protocol() -> None:
    x = bt.ones((3,), device="cuda")
    assert x.__dlpack_device__() == (2, 0)
    for stream in (None, 1, 2, -1, bt.cuda.compute_stream()):
        assert "dltensor" in repr(x.__dlpack__(stream=stream))
    with pytest.raises(ValueError, match="ambiguous"):
        x.__dlpack__(stream=0)
    with pytest.raises(bt.AutogradError, match="detach"):
        bt.ones((3,), device="cuda").requires_grad_().__dlpack__()
