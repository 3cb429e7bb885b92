"""Naming devices, the default device, and what a machine without a GPU says."""

from __future__ import annotations

import threading

import pytest

import blutensor as bt

without_gpu = pytest.mark.skipif(bt.cuda.is_available(), reason="there is a GPU here")


def test_names() -> None:
    assert bt.zeros(2, device="cpu").device == bt.zeros(2, device="cpu:0").device == "cpu"
    for name in ("gpu", "cpu:1", "cuda:", "cuda:-1", "cuda:x", "", 3):
        with pytest.raises(TypeError, match=r"\[zeros\] expected device 'cpu' or 'cuda:<index>', got"):
            bt.zeros(2, device=name)  # type: ignore[arg-type]


@without_gpu
@pytest.mark.parametrize(
    "use",
    [
        lambda: bt.zeros(2, device="cuda"),
        lambda: bt.empty(2, device="cuda:0"),
        lambda: bt.asarray([1.0], device="cuda"),
        lambda: bt.arange(3, device="cuda"),
        lambda: bt.zeros_like(bt.zeros(2), device="cuda"),
        lambda: bt.zeros(2).to("cuda"),
        lambda: bt.zeros(2).cuda(),
        lambda: bt.set_default_device("cuda"),
        lambda: bt.random.uniform(2, device="cuda"),
        lambda: bt.capture(lambda x: x, device="cuda"),
        lambda: bt.cuda.synchronize(),
        lambda: bt.cuda.device_properties(),
    ],
)
def test_without_a_gpu_the_message_says_why(use) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(bt.UnsupportedError, match=r"\[\w+\] cuda:0 cannot be used: .*(driver|GPU|build)"):
        use()
    assert bt.get_default_device() == "cpu"


@without_gpu
def test_without_a_gpu() -> None:
    assert not bt.cuda.is_available()
    assert bt.cuda.device_count() == 0
    reason = bt.cuda.unavailable_reason()
    assert "install" in reason or "check" in reason or "update" in reason
    with pytest.raises(bt.UnsupportedError, match=r"\[pinned memory\]|\[.*\]"):
        bt.cuda.empty_pinned(3)


def test_to_on_the_cpu() -> None:
    x = bt.asarray([1.0, 2.0]).requires_grad_()
    assert x.to("cpu") is x
    assert x.cpu() is x
    assert x.to(dtype=bt.float32) is x
    y = x.to(bt.float64)
    assert y.dtype is bt.float64
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]


def test_the_default_device_belongs_to_a_thread() -> None:
    seen = []
    with bt.default_device("cpu"):
        thread = threading.Thread(target=lambda: seen.append(bt.get_default_device()))
        thread.start()
        thread.join()
    assert seen == ["cpu"]
    assert bt.get_default_device() == "cpu"


def test_float32_math() -> None:
    assert bt.float32_math() == "ieee"
    try:
        bt.set_float32_math("tf32")
        assert bt.float32_math() == "tf32"
        with pytest.raises(ValueError, match=r"\[set_float32_math\] expected ieee or tf32, got 'fp8'"):
            bt.set_float32_math("fp8")
    finally:
        bt.set_float32_math("ieee")


def test_a_program_says_where_it_runs() -> None:
    step = bt.capture(lambda x: x + 1)
    for _ in range(3):
        step(bt.ones(2))
    assert str(step.program).startswith("program <lambda> on cpu {")


def test_a_capture_keeps_its_float32_math() -> None:
    step = bt.capture(lambda x: x + 1, name="step")
    try:
        step(bt.ones(2))
        bt.set_float32_math("tf32")
        with pytest.raises(bt.CaptureError, match=r"mode ieee in the first recording and tf32 in the second"):
            step(bt.ones(2))
    finally:
        bt.set_float32_math("ieee")
