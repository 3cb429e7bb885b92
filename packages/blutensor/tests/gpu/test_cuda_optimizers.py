"""The optimizers on the GPU: the bits of the CPU's, whatever the lists hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_compare import exact, rounded, same_bits

import blutensor as bt
from blutensor._operators import private

adamw, sgd, sgd_momentum = private("adamw_"), private("sgd_"), private("sgd_momentum_")
increment_step, grad_norm, clip_scale = private("increment_step_"), private("grad_norm"), private("clip_scale")

SIZES = [(1,), (7,), (0, 3), (129, 64), (16384,), (16385,), (50000,), (3, 5, 7)]


def lists(dtype: str, count: int, sizes: list[tuple[int, ...]] = SIZES) -> list[list[bt.Tensor]]:
    """`count` lists of tensors on the cpu; the last list is positive."""
    rng = np.random.default_rng(8)
    made = [[rounded(rng.standard_normal(s), dtype) for s in sizes] for _ in range(count)]
    made[-1] = [rounded(np.abs(exact(t)), dtype) for t in made[-1]]
    return made


def there(tensors: list[bt.Tensor]) -> list[bt.Tensor]:
    return [t.cuda() for t in tensors]


def scalars(device: str, skip: float = 0.0, step: int = 3) -> dict[str, bt.Tensor]:
    values = {
        "lr": bt.asarray(0.01, dtype="float32"),
        "step": bt.asarray(step, dtype="int64"),
        "grad_scale": bt.asarray(0.5, dtype="float32"),
        "skip": bt.asarray(skip, dtype="float32"),
    }
    return {name: value.to(device) for name, value in values.items()}


def run_adamw(device: str, data: list[list[bt.Tensor]], *, step: int = 3, skip: float = 0.0, **options: Any) -> None:
    at = scalars(device, skip, step)
    lrs = [at["lr"]] * len(data[0])
    adamw(at["step"], *data, lrs, grad_scale=at["grad_scale"], skip=at["skip"], **options)


def assert_same(ours: list[list[bt.Tensor]], host: list[list[bt.Tensor]]) -> None:
    for a, b in zip(ours, host, strict=True):
        assert all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adamw_has_the_bits_of_the_cpu(dtype: str) -> None:
    host = lists(dtype, 4)
    device = [there(x) for x in host]
    for step in (1, 2, 3):
        run_adamw("cpu", host, step=step, weight_decay=0.1)
        run_adamw("cuda", device, step=step, weight_decay=0.1)
        assert_same(device, host)


def test_adamw_with_masters() -> None:
    host = lists("float32", 4)
    masters = host[0]
    half = [rounded(exact(m), "bfloat16") for m in masters]
    device = [there(x) for x in ([*half], *host[1:])]
    device_masters = there(masters)
    run_adamw("cpu", [half, *host[1:]], masters=masters, weight_decay=0.1)
    run_adamw("cuda", device, masters=device_masters, weight_decay=0.1)
    assert_same([*device, device_masters], [half, *host[1:], masters])


@pytest.mark.parametrize("groups", [2, 11])  # one launch takes eight
def test_groups_in_one_call(groups: int) -> None:
    sizes = [(1 + i % 5, 33) for i in range(50)]
    host = lists("float32", 4, sizes)
    device = [there(x) for x in host]
    of = [i % groups for i in range(len(sizes))]
    settings: dict[str, Any] = {
        "beta1": [0.9 - 0.01 * g for g in of],
        "beta2": [0.99 - 0.01 * g for g in of],
        "eps": [1e-8 * (1 + g) for g in of],
        "weight_decay": [0.1 * g for g in of],
    }
    for where, data in (("cpu", host), ("cuda", device)):
        lrs = [bt.asarray(0.01 * (1 + g), dtype="float64").to(where) for g in range(groups)]
        adamw(bt.asarray(3, dtype="int64").to(where), *data, [lrs[g] for g in of], **settings)
    assert_same(device, host)


def test_more_tensors_than_one_launch_takes() -> None:
    sizes = [(1 + i % 5,) for i in range(2000)]
    host = lists("float32", 4, sizes)
    device = [there(x) for x in host]
    run_adamw("cpu", host)
    run_adamw("cuda", device)
    assert_same(device, host)
    assert exact(grad_norm(device[1])) == pytest.approx(float(exact(grad_norm(host[1]))), rel=1e-6)


def test_strided_and_misaligned_tensors() -> None:
    host = lists("float32", 4, [(60, 40), (999,)])
    device = []
    for group in host:
        wide, line = bt.zeros((40, 60), device="cuda").T, bt.zeros((1000,), device="cuda")[1:]
        wide.copy_(group[0].cuda())
        line.copy_(group[1].cuda())
        device.append([wide, line])
    run_adamw("cpu", host)
    run_adamw("cuda", device)
    assert_same([[t.contiguous() for t in group] for group in device], host)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov: bool, dtype: str) -> None:
    host = lists(dtype, 3)
    device = [there(x) for x in host]
    for where, data in (("cpu", host), ("cuda", device)):
        at = scalars(where)
        rest = {"grad_scale": at["grad_scale"], "skip": at["skip"], "weight_decay": 0.01}
        sgd_momentum(at["lr"], *data, momentum=0.9, nesterov=nesterov, **rest)
        sgd(at["lr"], data[0], data[1], **rest)
    assert_same(device, host)


def test_skip_leaves_everything() -> None:
    host = lists("float32", 4)
    device = [there(x) for x in host]
    run_adamw("cuda", device, skip=1.0, weight_decay=0.1)
    at = scalars("cuda", skip=1.0)
    step, skip = at["step"], at["skip"]
    sgd(at["lr"], device[0], device[1], skip=skip)
    sgd_momentum(at["lr"], *device[:3], skip=skip)
    increment_step(step, skip)
    assert_same(device, host)
    assert step.item() == 3
    increment_step(step)
    assert step.item() == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_grad_norm(dtype: str) -> None:
    grads = lists(dtype, 1)[0]
    want = np.sqrt(sum((exact(g) ** 2).sum() for g in grads))
    got = grad_norm(there(grads))
    assert got.item() == pytest.approx(want, rel=2.0**-23)
    for _ in range(100):
        assert same_bits(grad_norm(there(grads)), got)
    huge = bt.full((1000,), 1e30, device="cuda")
    assert grad_norm([huge]).item() == pytest.approx(1e30 * 1000**0.5, rel=1e-6)
    assert np.isinf(grad_norm([bt.full((3,), float("inf"), device="cuda")]).item())


@pytest.mark.parametrize(
    ("norm", "count"), [(10.0, 4.0), (0.5, 1.0), (float("inf"), 2.0), (float("nan"), 2.0), (3.0, 0.0)]
)
def test_clip_scale(norm: float, count: float) -> None:
    results = []
    for device in ("cpu", "cuda"):
        of = [bt.asarray(v, dtype="float32").to(device) for v in (norm, count)]
        results.append([t.item() for t in clip_scale(of[0], 1.0, of[1])])
    assert results[0] == results[1]
