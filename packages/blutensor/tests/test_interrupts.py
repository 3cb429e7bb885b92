"""Ctrl-C, and exceptions out of callbacks, at any moment: they come out, and everything works as before."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from models import MLP

import blualloc
import blutensor as bt
import blutensor.nn.functional as F
from blutensor import _calls, _native, autograd, optim


def live_bytes() -> int:
    gc.collect()
    return blualloc.stats().live_bytes


@contextmanager
def interrupted_after(target: Any, name: str) -> Iterator[None]:
    """Ctrl-C comes while the native function runs: Python raises it right after the call."""
    real = getattr(target, name)

    def call(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt

    setattr(target, name, call)
    try:
        yield
    finally:
        setattr(target, name, real)


@pytest.mark.parametrize(
    ("target", "name", "action"),
    [
        (_calls, "_lib_call", lambda x: x + 1.0),
        (_calls, "_lib_call", lambda x: bt.split(x, (40, 60), 0)),
        (_native.lib, "blutensor_empty", lambda x: bt.empty((100, 100))),
        (_native.lib, "blutensor_detach", lambda x: x.detach()),
        (_native.lib, "blutensor_grad", lambda x: bt.grad((x * 2.0).sum(), x)),
        (_native.lib, "blutensor_get_grad", lambda x: x.grad),
    ],
)
def test_what_an_interrupted_call_made_is_released(target: Any, name: str, action: Callable[[Any], Any]) -> None:
    x = bt.ones((100, 100)).requires_grad_()
    x.grad = bt.ones((100, 100))
    before = live_bytes()
    with pytest.raises(KeyboardInterrupt), interrupted_after(target, name):
        action(x)
    assert live_bytes() == before
    action(x)


@pytest.mark.parametrize("name", ["blutensor_capture_begin", "blutensor_capture_end"])
def test_an_interrupted_capture_is_over(name: str) -> None:
    captured = bt.capture(lambda x: x * 2.0)
    with pytest.raises(KeyboardInterrupt), interrupted_after(_native.lib, name):
        captured(bt.ones(3))
    assert not bt.is_capturing()
    assert [captured(bt.full((3,), float(i))).tolist() for i in range(4)] == [[2.0 * i] * 3 for i in range(4)]


def test_a_long_operator_is_interrupted() -> None:
    a = bt.ones((1500, 1500))
    before = live_bytes()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()

    def work() -> None:
        begin = time.monotonic()
        while time.monotonic() - begin < 60:
            a @ a

    with pytest.raises(KeyboardInterrupt):
        work()
    timer.join()
    assert live_bytes() == before
    assert (a[:2] @ a)[0, 0].item() == 1500


class Alarm(Exception):
    """What the timer's handler raises, wherever the program is."""


def training_round(model: MLP, optimizer: optim.AdamW, x: bt.Tensor, targets: bt.Tensor) -> None:
    """Something of everything: eager steps, modes, captures, replays, operators and gradients in Python."""
    loss = model.loss(x, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with bt.no_grad():
        F.gelu(x)
    captured = bt.capture(lambda t: (t @ t.permute_dims(1, 0)).sum())
    for _ in range(3):
        captured(x)
    y = bt.recompute(lambda t: F.gelu(t * 2.0), x)
    assert y.shape == x.shape


def can_raise(frame: Any) -> bool:
    """Whether Python lets an exception out: destructors and what native code calls begin without a handler."""
    return frame.f_code.co_name not in ("__del__", "call", "_forget")


def test_signals_at_any_moment_leave_everything_as_it_was() -> None:
    """A handler that raises, a few hundred times, after random parts of a millisecond."""
    model = MLP(p=0.0)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    x, targets = bt.ones((64, 13)), bt.asarray(np.arange(64) % 7)
    for _ in range(3):
        training_round(model, optimizer, x, targets)
    optimizer.zero_grad(set_to_none=True)
    generator = random.Random(0)
    armed = False

    def handler(_: int, frame: Any) -> None:
        if armed and can_raise(frame):
            raise Alarm

    previous = signal.signal(signal.SIGALRM, handler)
    # What others hang into the collector begins without a handler too, and swallows what is raised there.
    callbacks, gc.callbacks[:] = list(gc.callbacks), []
    before, nodes, raised = live_bytes(), bt.graph_stats()["live_nodes"], 0
    try:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-4, 5e-3), 5e-3)
                while True:
                    training_round(model, optimizer, x, targets)
            except Alarm:
                armed = False
                raised += 1
            assert not bt.is_capturing()
            assert bt.is_grad_enabled()
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        gc.callbacks[:] = callbacks
    optimizer.zero_grad(set_to_none=True)
    assert raised >= 10
    assert live_bytes() == before
    assert bt.graph_stats()["live_nodes"] == nodes
    training_round(model, optimizer, x, targets)


def test_ctrl_c_inside_of_callbacks_comes_out() -> None:
    def infer(shapes: Any, dtypes: Any) -> Any:
        return [(shapes[0], dtypes[0])]

    def launch(inputs: Any, outputs: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    def gradient(grads: Any, inputs: Any, outputs: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    broken = bt.register_operator("test.interrupted_launch", inputs=["x"], infer=infer, launch=launch)
    copying = bt.register_operator(
        "test.interrupted_gradient", inputs=["x"], infer=infer, launch=lambda i, o: o[0].__setitem__(..., i[0]),
        gradient=gradient,
    )  # fmt: skip
    x = bt.ones(1000).requires_grad_()
    before = live_bytes()
    with pytest.raises(KeyboardInterrupt):
        broken(x)
    with pytest.raises(KeyboardInterrupt):
        copying(x).sum().backward()
    hook = x.register_hook(lambda grad: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        (x * 2.0).sum().backward()
    hook.remove()
    x.grad = None
    assert live_bytes() == before
    (x * 2.0).sum().backward()
    assert x.grad is not None
    assert x.grad[0].item() == 2


def test_errors_in_hooks_leave_the_pass_repeatable() -> None:
    class Own(Exception):
        pass

    def fail(_: object) -> None:
        raise Own("hook")

    x = bt.ones(1000).requires_grad_()
    y = x * 2.0
    for tensor in (x, y):
        hook = tensor.register_hook(fail)
        with pytest.raises(Own):
            y.sum().backward(retain_graph=True)
        hook.remove()
    assert x.grad is None
    y.sum().backward()
    assert x.grad is not None
    assert x.grad[0].item() == 2


def test_errors_in_allocation_hooks_are_reported_and_go_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)

    def fail(_: blualloc.Event) -> None:
        raise KeyError("hook")

    hook = blualloc.add_hook(fail)
    try:
        assert (bt.ones(100) + 1.0).sum().item() == 200
    finally:
        blualloc.remove_hook(hook)
    assert told
    assert all(isinstance(event.exc_value, KeyError) for event in told)
    count = len(told)
    assert (bt.ones(100) + 1.0).sum().item() == 200
    assert len(told) == count


def test_a_hook_may_not_wait_for_its_own_call() -> None:
    """What would wait for ever is an error."""
    x = bt.ones(10).requires_grad_()

    roots: list[bt.Tensor] = []

    def gradient(grads: Any) -> Any:
        roots[0].backward(retain_graph=True)  # through the node that is running
        return [None]

    with bt.no_grad():
        y = x * 2.0
    autograd.custom_gradient("own", [x], [y], gradient)
    roots.append(y.sum())
    with pytest.raises(RuntimeError, match="in use by the very call"):
        roots[0].backward(retain_graph=True)
    roots.clear()  # the node holds the function, and the function would hold the node
