"""Optimizers against a float64 reference and PyTorch; groups, scales, skipped steps, state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from models import MLP, batches, bits

import blutensor as bt
from blutensor import nn, optim

Array = npt.NDArray[Any]
SHAPES = [(), (1,), (3, 5), (33,), (2, 7, 17), (0, 4)]
STEPS = 6


def starts(dtype: Any) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in SHAPES]


def gradients(dtype: Any) -> Iterator[list[Array]]:
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        yield [rng.standard_normal(s).astype(dtype) for s in SHAPES]


def leaves(dtype: Any) -> list[nn.Parameter]:
    return [nn.Parameter(bt.asarray(np.array(a))) for a in starts(dtype)]


def run(optimizer: optim.Optimizer, parameters: list[Any], dtype: Any, **step: Any) -> list[Array]:
    for grads in gradients(dtype):
        for p, g in zip(parameters, grads, strict=True):
            p.grad = bt.asarray(np.array(g))
        optimizer.step(**step)
    return [np.array(p.detach().numpy()) for p in parameters]


def adamw_reference(lr: float, b1: float, b2: float, eps: float, decay: float, scale: float = 1.0) -> list[Array]:
    """Loshchilov and Hutter, 2019, algorithm 2, in float64 on the float32 gradients."""
    parameters = [a.astype(np.float64) for a in starts(np.float32)]
    m, v = ([np.zeros(s) for s in SHAPES] for _ in range(2))
    for t, grads in enumerate(gradients(np.float32), 1):
        for i, g32 in enumerate(grads):
            g = g32.astype(np.float64) * scale
            parameters[i] = parameters[i] * (1 - lr * decay)
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            parameters[i] = parameters[i] - lr * (m[i] / (1 - b1**t)) / (np.sqrt(v[i] / (1 - b2**t)) + eps)
    return parameters


def sgd_reference(lr: float, momentum: float, decay: float, nesterov: bool) -> list[Array]:
    parameters = [a.astype(np.float64) for a in starts(np.float32)]
    buffers: list[Any] = [None] * len(SHAPES)
    for grads in gradients(np.float32):
        for i, g32 in enumerate(grads):
            g = g32.astype(np.float64) + decay * parameters[i]
            if momentum:
                buffers[i] = g if buffers[i] is None else momentum * buffers[i] + g
                g = g + momentum * buffers[i] if nesterov else buffers[i]
            parameters[i] = parameters[i] - lr * g
    return parameters


def error(got: list[Array], expected: list[Array]) -> float:
    """Largest error, relative to values of size 1."""
    pairs = [(g, e) for g, e in zip(got, expected, strict=True) if g.size]
    return max(float(np.max(np.abs(g - e))) for g, e in pairs)


ADAMW = [(1e-2, 0.9, 0.999, 1e-8, 0.0), (1e-1, 0.8, 0.95, 1e-6, 0.1), (1e-3, 0.0, 0.5, 1e-3, 0.5)]
SGD = [(0.1, 0.0, 0.0, False), (0.1, 0.0, 0.1, False), (0.05, 0.9, 0.0, False), (0.05, 0.9, 0.1, True)]


@pytest.mark.parametrize(("lr", "b1", "b2", "eps", "decay"), ADAMW)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adamw(lr: float, b1: float, b2: float, eps: float, decay: float, dtype: Any) -> None:
    expected = adamw_reference(lr, b1, b2, eps, decay)
    parameters = [nn.Parameter(bt.asarray(a.astype(dtype))) for a in starts(np.float32)]
    optimizer = optim.AdamW(parameters, lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
    for grads in gradients(np.float32):
        for p, g in zip(parameters, grads, strict=True):
            p.grad = bt.asarray(g.astype(dtype))
        optimizer.step()
    # Values up to about 4, one rounding of each parameter per step and operation: six steps of at most four.
    bound = 24 * 4 * (2.0**-24 if dtype is np.float32 else 2.0**-53)
    assert error([p.detach().numpy() for p in parameters], expected) <= bound


def test_adamw_takes_all_groups_in_one_call() -> None:
    parameters = leaves(np.float32)
    rest = {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.0}
    groups = [{"params": parameters[::2]}, {"params": parameters[1::2], **rest}]
    optimizer = optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    for p, g in zip(parameters, next(gradients(np.float32)), strict=True):
        p.grad = bt.asarray(g)
    step = bt.capture(lambda: optimizer.step(), name="step")
    for _ in range(3):
        step()
    assert str(step.program).count("adamw_(") == 1
    apart = leaves(np.float32)
    others = [
        optim.AdamW(apart[::2], lr=0.01, weight_decay=0.1),
        optim.AdamW(apart[1::2], **rest),
    ]
    for p, g in zip(apart, next(gradients(np.float32)), strict=True):
        p.grad = bt.asarray(g)
    for _ in range(3):
        for other in others:
            other.step()
    assert [bits(p) for p in parameters] == [bits(p) for p in apart]


@pytest.mark.parametrize(("lr", "momentum", "decay", "nesterov"), SGD)
def test_sgd(lr: float, momentum: float, decay: float, nesterov: bool) -> None:
    parameters = leaves(np.float32)
    optimizer = optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    got = run(optimizer, parameters, np.float32)
    assert error(got, sgd_reference(lr, momentum, decay, nesterov)) <= 24 * 4 * 2.0**-24


@pytest.mark.torch
@pytest.mark.parametrize("case", [*ADAMW, *SGD])
def test_against_torch(case: tuple[Any, ...], torch: Any) -> None:
    """Our error against float64 is at most twice PyTorch's, plus a rounding."""
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in starts(np.float32)]
    ours = leaves(np.float32)
    optimizer: optim.Optimizer
    if len(case) == 5:
        lr, b1, b2, eps, decay = case
        peer = torch.optim.AdamW(theirs, lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
        optimizer = optim.AdamW(ours, lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
        expected = adamw_reference(*case)
    else:
        lr, momentum, decay, nesterov = case
        peer = torch.optim.SGD(theirs, lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)
        optimizer = optim.SGD(ours, lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)
        expected = sgd_reference(*case)
    for grads in gradients(np.float32):
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.tensor(g)
        peer.step()
    got = run(optimizer, ours, np.float32)
    their_error = error([p.detach().numpy() for p in theirs], expected)
    assert error(got, expected) <= 2 * their_error + 4 * 2.0**-24


def test_grad_scale_and_learning_rate_on_the_device() -> None:
    expected = adamw_reference(0.03, 0.9, 0.999, 1e-8, 0.01, scale=0.125)
    for lr in (0.03, bt.asarray(np.array(0.03)), bt.full((), 0.03)):
        parameters = leaves(np.float32)
        optimizer = optim.AdamW(parameters, lr=99.0, weight_decay=0.01)
        got = run(optimizer, parameters, np.float32, lr=lr, grad_scale=bt.full((), 0.125))
        assert error(got, expected) <= 24 * 4 * 2.0**-24 + 6 * 0.03 * 2.0**-24
    assert optimizer.step_count.item() == STEPS


@pytest.mark.parametrize("make", [lambda p: optim.AdamW(p, weight_decay=0.1), lambda p: optim.SGD(p, momentum=0.9)])
def test_a_skipped_step_changes_nothing(make: Any) -> None:
    parameters = leaves(np.float32)
    optimizer = make(parameters)
    run(optimizer, parameters, np.float32)
    before = [bits(t) for t in (*parameters, *optimizer.state_dict().values())]
    for p in parameters:
        p.grad = bt.full(p.shape, float("nan"))
    optimizer.step(skip=bt.ones(()), grad_scale=bt.full((), float("inf")))
    assert [bits(t) for t in (*parameters, *optimizer.state_dict().values())] == before
    optimizer.step(skip=bt.zeros(()), grad_scale=bt.zeros(()))
    assert optimizer.step_count.item() == STEPS + 1


def test_groups() -> None:
    a, b, c = (nn.Parameter(bt.ones(3)) for _ in range(3))
    groups = [{"params": [("a", a)], "weight_decay": 0.5}, {"params": [("b", b)], "lr": 0.0}, {"params": [("c", c)]}]
    optimizer = optim.SGD(groups, lr=0.1)
    for p in (a, b):
        p.grad = bt.ones(3)
    optimizer.step()
    assert a.tolist() == pytest.approx([1 - 0.1 * 1.5] * 3)
    assert b.tolist() == [1, 1, 1]
    assert c.tolist() == [1, 1, 1]  # no gradient
    assert optimizer.lr == pytest.approx(0.1)
    optimizer.lr = 1.0
    optimizer.step()
    assert b.tolist() == [0, 0, 0]


def test_parameters_without_a_fresh_gradient_are_left_alone() -> None:
    a = nn.Parameter(bt.ones(3))
    optimizer = optim.AdamW([a], weight_decay=0.5)
    optimizer.step()
    a.grad = bt.ones(3)
    optimizer.zero_grad()
    optimizer.step()
    assert a.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_state_round_trip(kind: str) -> None:
    """A run that is saved and loaded half way gives the bits of one that is not."""

    def make() -> tuple[Any, Any]:
        bt.manual_seed(4)
        model = MLP(p=0.0)
        named = model.named_parameters()
        return model, optim.AdamW(named, lr=0.01) if kind == "AdamW" else optim.SGD(named, lr=0.01, momentum=0.9)

    def steps(model: Any, optimizer: Any, data: Any) -> None:
        for x, targets in data:
            optimizer.zero_grad()
            model.loss(x, targets).backward()
            optimizer.step()

    data = batches("mlp", 6)
    model, optimizer = make()
    steps(model, optimizer, data)
    half, half_optimizer = make()
    steps(half, half_optimizer, data[:3])
    saved = {n: np.array(t.numpy()) for n, t in half_optimizer.state_dict().items()}
    names = {f"{s}.{n}" for s in half_optimizer.groups[0].state for n, _ in half.named_parameters()}
    assert set(saved) == {"step"} | names
    resumed, resumed_optimizer = make()
    resumed.load_state_dict(half.state_dict())
    resumed_optimizer.load_state_dict({n: bt.asarray(a) for n, a in saved.items()})
    steps(resumed, resumed_optimizer, data[3:])
    for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
        assert bits(p) == bits(q)


def test_wrong_state_is_reported_at_once_and_nothing_is_written() -> None:
    optimizer = optim.AdamW([("w", nn.Parameter(bt.ones(3))), ("b", nn.Parameter(bt.ones(2)))])
    state = dict(optimizer.state_dict())
    del state["exp_avg.w"]
    state |= {"exp_avg.b": bt.ones(7), "other": bt.ones(1), "step": bt.full((), 5, dtype="int64")}
    with pytest.raises(
        ValueError, match=r"missing 'exp_avg.w'.*unexpected 'other'.*'exp_avg.b' has shape \(7,\), expected \(2,\)"
    ):
        optimizer.load_state_dict(state)
    assert optimizer.step_count.item() == 0


def test_wrong_constructions() -> None:
    p = nn.Parameter(bt.ones(3))
    for params, options, error_type, message in (
        ([], {}, ValueError, "at least one parameter"),
        ([p, p], {}, ValueError, "already there"),
        ([{"params": [p], "betta": 1}], {}, ValueError, "unknown options.*betta"),
        ([p], {"lr": -1.0}, ValueError, "learning rate"),
        ([p], {"betas": (0.9, 1.0)}, ValueError, "betas"),
        ([p], {"eps": -1.0}, ValueError, "eps"),
        ([p], {"weight_decay": -0.1}, ValueError, "weight_decay"),
        ([bt.arange(3)], {}, TypeError, "int64"),
        ([3.0], {}, TypeError, "float"),
        ([p], {"lr": float("nan")}, ValueError, r"\[AdamW\] expected a finite learning rate of at least 0, got nan"),
        ([p], {"lr": float("inf")}, ValueError, "finite learning rate"),
        ([p], {"lr": "a"}, TypeError, r"\[AdamW\] expected a number for learning rate, got 'a'"),
        ([{"params": [p], "lr": None}], {}, TypeError, "number for learning rate, got None"),
        ([p], {"eps": float("nan")}, ValueError, "finite eps"),
        ([p], {"weight_decay": "a"}, TypeError, "number for weight_decay, got 'a'"),
        ([p], {"betas": 0.9}, TypeError, "pair of numbers for betas, got 0.9"),
        ([p], {"betas": (0.9, "a")}, TypeError, "number for betas, got 'a'"),
        ([p], {"betas": (0.9, float("nan"))}, ValueError, "betas from 0 to below 1"),
    ):
        with pytest.raises(error_type, match=message):
            optim.AdamW(params, **options)
    for options, error_type, message in (
        ({"nesterov": True}, ValueError, "nesterov"),
        ({"lr": float("nan")}, ValueError, r"\[SGD\] expected a finite learning rate"),
        ({"momentum": "a"}, TypeError, r"\[SGD\] expected a number for momentum, got 'a'"),
        ({"momentum": -0.1}, ValueError, "momentum of at least 0"),
        ({"weight_decay": float("nan")}, ValueError, "finite weight_decay"),
    ):
        with pytest.raises(error_type, match=message):
            optim.SGD([p], **options)


def test_wrong_learning_rates_of_a_step() -> None:
    p = nn.Parameter(bt.ones(3))
    adam = optim.AdamW([p], lr=0.5)
    p.grad = bt.ones(3)
    for value, error_type in ((float("nan"), ValueError), ("a", TypeError), (-1.0, ValueError)):
        with pytest.raises(error_type, match="learning rate"):
            adam.step(lr=value)
        with pytest.raises(error_type, match="learning rate"):
            adam.lr = value
    assert (adam.lr, adam.step_count.item(), p.tolist()) == (0.5, 0, [1, 1, 1])


def test_state_of_arrays() -> None:
    p = nn.Parameter(bt.ones(3))
    adam = optim.AdamW([("p", p)])
    state = {name: t.numpy().copy() + 2 for name, t in adam.state_dict().items()}
    adam.load_state_dict(state)
    assert adam.step_count.item() == 2
    assert adam.state_dict()["exp_avg.p"].tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match=r"\[AdamW.load_state_dict\] expected tensors or NumPy arrays.*'step' is int"):
        adam.load_state_dict(state | {"step": 3})
    assert adam.step_count.item() == 2


def test_gradient_norm_and_clipping() -> None:
    parameters = leaves(np.float32)
    grads = next(gradients(np.float32))
    for p, g in zip(parameters, grads, strict=True):
        p.grad = bt.asarray(np.array(g))
    expected = float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads)))
    norm = optim.grad_norm(parameters)
    assert norm.dtype is bt.float32
    assert norm.item() == pytest.approx(expected, rel=2.0**-22)
    scale, skip = optim.clip_scale(norm, 1.0, bt.full((), 4.0))
    assert scale.item() == pytest.approx(min(1.0, 1.0 / (expected / 4)) / 4, rel=1e-6)
    assert skip.item() == 0
    assert optim.clip_scale(norm, float("inf"))[0].item() == 1
    for value in (float("nan"), float("inf")):
        scale, skip = optim.clip_scale(bt.full((), value), 1.0)
        assert (scale.item(), skip.item()) == (0, 1)
    assert optim.clip_grad_norm_(parameters, 0.5).item() == norm.item()
    assert optim.grad_norm(parameters).item() == pytest.approx(0.5, rel=1e-5)
    with pytest.raises(ValueError, match="call backward first"):
        optim.grad_norm([nn.Parameter(bt.ones(2))])
