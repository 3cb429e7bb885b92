"""The multi-tensor optimizer operators against formulas in float64 and PyTorch's optimizers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from layer_checks import (
    Array,
    assert_as_good_as,
    available_isas,
    normal,
    require_torch,
    same_bits_for_any_threads,
    using_isa,
)

import blutensor as bt
from blutensor._operators import private

adamw_lists, sgd_, sgd_momentum_, increment_step_, grad_norm, clip_scale = map(
    private, ("adamw_", "sgd_", "sgd_momentum_", "increment_step_", "grad_norm", "clip_scale")
)

# Around vectors and chunks of 32768 elements, empty, 0-d.
SHAPES = [(), (1,), (7,), (16,), (3, 11), (0,), (129, 257), (32768,), (32769,)]
OPTIONS = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


def scalar(value: float, dtype: str = "float32") -> bt.Tensor:
    return bt.full((), value, dtype=dtype)


def adamw_(lr: bt.Tensor, step: bt.Tensor, params: list[bt.Tensor], *state: list[bt.Tensor], **options: Any) -> None:
    """All parameters at one learning rate."""
    adamw_lists(step, params, *state, [lr] * len(params), **options)


def tensors(values: list[Array]) -> list[bt.Tensor]:
    return [bt.asarray(np.array(v)) for v in values]


def torch_steps(make: Any, params: list[Array], grads: list[list[Array]], dtype: Any) -> list[Array]:
    """Parameters after one step of a torch optimizer per list of gradients."""
    torch = require_torch()
    leaves = [torch.tensor(p, dtype=dtype, requires_grad=True) for p in params]
    optimizer = make(leaves)
    for step in grads:
        for leaf, g in zip(leaves, step, strict=True):
            leaf.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    return [leaf.detach().numpy() for leaf in leaves]


@pytest.mark.parametrize("isa", available_isas())
def test_adamw_is_pytorchs(isa: str) -> None:
    torch = require_torch()
    rng = np.random.default_rng(1)
    params = [normal(rng, *s) for s in SHAPES]
    grads = [[normal(rng, *s, scale=0.1) for s in SHAPES] for _ in range(5)]
    ours, m, v, step = (
        tensors(params),
        tensors([0 * p for p in params]),
        tensors([0 * p for p in params]),
        scalar(0, "int64"),
    )
    lr = 1e-2
    with using_isa(isa):
        for gradient in grads:
            increment_step_(step)
            adamw_(scalar(lr, "float64"), step, ours, tensors(gradient), m, v, **OPTIONS)
    assert step.item() == 5

    def make(leaves: list[Any]) -> Any:
        return torch.optim.AdamW(leaves, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)

    for got, peer, exact in zip(
        ours,
        torch_steps(make, params, grads, torch.float32),
        torch_steps(make, params, grads, torch.float64),
        strict=True,
    ):
        assert_as_good_as(got.numpy(), peer, exact)


def test_all_instruction_sets_give_the_same_bits() -> None:
    rng = np.random.default_rng(2)
    params, grads, m, v = ([normal(rng, *s) ** (2 if square else 1) for s in SHAPES] for square in (0, 0, 0, 1))
    results = []
    for isa in available_isas():
        state = [tensors(x) for x in (params, grads, m, v)]
        buffers = tensors(m)
        with using_isa(isa):
            adamw_(scalar(0.1), scalar(3, "int64"), *state, grad_scale=scalar(0.7), **OPTIONS)
            sgd_momentum_(scalar(0.1), state[0], state[1], buffers, momentum=0.9, nesterov=True, weight_decay=0.01)
        results.append([t.numpy().tobytes() for t in (*state[0], *state[2], *state[3], *buffers)])
    assert all(r == results[0] for r in results)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_is_pytorchs(momentum: float, nesterov: bool, isa: str) -> None:
    torch = require_torch()
    rng = np.random.default_rng(3)
    params = [normal(rng, *s) for s in SHAPES]
    grads = [[normal(rng, *s) for s in SHAPES] for _ in range(4)]
    ours, buffers = tensors(params), tensors([0 * p for p in params])
    with using_isa(isa):
        for gradient in grads:
            if momentum:
                sgd_momentum_(
                    scalar(0.1),
                    ours,
                    tensors(gradient),
                    buffers,
                    momentum=momentum,
                    nesterov=nesterov,
                    weight_decay=0.05,
                )
            else:
                sgd_(scalar(0.1), ours, tensors(gradient), weight_decay=0.05)

    def make(leaves: list[Any]) -> Any:
        return torch.optim.SGD(
            leaves, lr=float(np.float32(0.1)), momentum=momentum, nesterov=nesterov, weight_decay=0.05
        )

    for got, peer, exact in zip(
        ours,
        torch_steps(make, params, grads, torch.float32),
        torch_steps(make, params, grads, torch.float64),
        strict=True,
    ):
        assert_as_good_as(got.numpy(), peer, exact)


def test_groups_in_one_call_are_calls_of_their_own() -> None:
    rng = np.random.default_rng(11)
    values = [[normal(rng, *s) ** (2 if square else 1) for s in SHAPES] for square in (0, 0, 0, 1)]
    together, apart = ([tensors(x) for x in values] for _ in range(2))
    step, n = scalar(3, "int64"), len(SHAPES)
    lrs = [scalar(0.1, "float64"), scalar(0.2, "float64")]
    settings = {"beta1": [0.9, 0.8], "beta2": [0.95, 0.99], "eps": [1e-8, 1e-3], "weight_decay": [0.1, 0.0]}
    adamw_lists(
        step,
        *together,
        [lrs[i % 2] for i in range(n)],
        **{name: [pair[i % 2] for i in range(n)] for name, pair in settings.items()},
    )
    for group in (0, 1):
        lists = [tensors_of[group::2] for tensors_of in apart]
        adamw_(lrs[group], step, *lists, **{name: pair[group] for name, pair in settings.items()})
    for a, b in zip(together, apart, strict=True):
        assert all(x.numpy().tobytes() == y.numpy().tobytes() for x, y in zip(a, b, strict=True))


def test_float64_and_float32_in_one_call() -> None:
    rng = np.random.default_rng(4)
    params = [rng.standard_normal((3, 4)), normal(rng, 5)]
    state = [tensors([p + 0 for p in params]) for _ in range(3)]
    state[2] = tensors([p * p for p in params])
    adamw_(scalar(0.1, "float64"), scalar(2, "int64"), tensors(params), *state, **OPTIONS)
    got = tensors(params)
    adamw_(
        scalar(0.1, "float64"),
        scalar(2, "int64"),
        got,
        tensors(params),
        tensors(params),
        tensors([p * p for p in params]),
        **OPTIONS,
    )
    for p, t in zip(params, got, strict=True):
        exact = p.astype(np.float64)
        v = 0.95 * exact**2 + 0.05 * exact**2
        expected = exact * (1 - 0.1 * 0.1) - 0.1 / (1 - 0.9**2) * exact / (np.sqrt(v) / math.sqrt(1 - 0.95**2) + 1e-8)
        tolerance = 1e-14 if p.dtype == np.float64 else 1e-6
        np.testing.assert_allclose(t.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_gradient_scale_multiplies() -> None:
    rng = np.random.default_rng(5)
    p, g = normal(rng, 100), normal(rng, 100)
    results = []
    for gradient, scale in ((g * np.float32(0.5), None), (g, scalar(0.5))):
        state = tensors([p]), tensors([gradient]), tensors([0 * p]), tensors([0 * p])
        adamw_(scalar(0.1), scalar(1, "int64"), *state, grad_scale=scale, **OPTIONS)
        results.append([t.numpy() for t in (state[0][0], state[2][0], state[3][0])])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_skipped_step_writes_nothing() -> None:
    rng = np.random.default_rng(6)
    p, g = normal(rng, 100), np.full(100, np.nan, np.float32)
    state, buffers, step = (
        (tensors([p]), tensors([g]), tensors([0 * p]), tensors([0 * p])),
        tensors([0 * p]),
        scalar(4, "int64"),
    )
    skip = scalar(1)
    increment_step_(step, skip)
    adamw_(scalar(0.1), step, *state, grad_scale=scalar(0), skip=skip, **OPTIONS)
    sgd_(scalar(0.1), state[0], state[1], skip=skip)
    sgd_momentum_(scalar(0.1), state[0], state[1], buffers, skip=skip)
    assert step.item() == 4
    np.testing.assert_array_equal(state[0][0].numpy(), p)
    assert not any(t.numpy().any() for t in (state[2][0], state[3][0], buffers[0]))


def test_tensors_of_any_layout() -> None:
    rng = np.random.default_rng(7)
    p, g, m, v = normal(rng, 6, 8), normal(rng, 6, 8), normal(rng, 6, 8), normal(rng, 6, 8) ** 2
    plain = tuple(tensors([x]) for x in (p, g, m, v))
    adamw_(scalar(0.1), scalar(2, "int64"), *plain, **OPTIONS)
    wide = np.zeros((12, 8), np.float32)
    strange = [
        bt.asarray(wide)[::2],
        bt.asarray(np.ascontiguousarray(g.T)).permute_dims(1, 0),
        bt.asarray(np.ascontiguousarray(m[::-1]))[::-1],
    ]
    strange[0].copy_(bt.asarray(p))
    variances = tensors([v])
    adamw_(scalar(0.1), scalar(2, "int64"), [strange[0]], [strange[1]], [strange[2]], variances, **OPTIONS)
    for a, b in zip((plain[0], plain[2], plain[3]), ([strange[0]], [strange[2]], variances), strict=True):
        np.testing.assert_array_equal(a[0].numpy(), b[0].contiguous().numpy())
    assert not wide[1::2].any()
    np.testing.assert_array_equal(grad_norm([strange[1]]).numpy(), grad_norm(tensors([g])).numpy())


@pytest.mark.parametrize("isa", available_isas())
def test_grad_norm(isa: str) -> None:
    rng = np.random.default_rng(8)
    grads = [normal(rng, *s) for s in SHAPES]
    exact = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads))
    with using_isa(isa):
        assert abs(grad_norm(tensors(grads)).item() - exact) <= exact * 2.0**-23
        # Squares beyond float32's range, and below it.
        np.testing.assert_allclose(
            grad_norm(tensors([np.full(5, 1e30, np.float32)])).item(), 1e30 * math.sqrt(5), rtol=1e-6
        )
        np.testing.assert_allclose(
            grad_norm(tensors([np.full(5, 1e-30, np.float32)])).item(), 1e-30 * math.sqrt(5), rtol=1e-6
        )
        for bad in (np.nan, np.inf):
            poisoned = [np.ones(33, np.float32), np.ones(33, np.float32)]
            poisoned[1][32] = bad
            assert not math.isfinite(grad_norm(tensors(poisoned)).item())
    halves = [bt.asarray(normal(rng, 50)).astype(d) for d in ("bfloat16", "float16", "float64")]
    expected = math.sqrt(sum(float((h.astype("float64").numpy() ** 2).sum()) for h in halves))
    np.testing.assert_allclose(grad_norm(halves).item(), expected, rtol=1e-6)


@pytest.mark.parametrize("count", [scalar(8), scalar(8, "int64"), scalar(8, "int32"), None])
def test_clip_scale(count: bt.Tensor | None) -> None:
    n = 1 if count is None else 8
    for norm, expected in ((0.5 * n, 1.0), (4.0 * n, 0.25), (0.0, 1.0)):
        scale, skip = clip_scale(scalar(norm), 1.0, count)
        np.testing.assert_allclose(scale.item() * n, expected, rtol=1e-6)
        assert skip.item() == 0
    for bad in (math.inf, math.nan):
        scale, skip = clip_scale(scalar(bad), 1.0, count)
        assert (scale.item(), skip.item()) == (0, 1)
    assert clip_scale(scalar(7.0 * n), math.inf, count)[0].item() == 1 / n
    assert clip_scale(scalar(0.0), 1.0, scalar(0))[1].item() == 1


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(9)
    params, grads = [normal(rng, 300, 301), normal(rng, 77)], [normal(rng, 300, 301), normal(rng, 77)]

    def compute() -> list[Array]:
        state = tensors(params), tensors(grads), tensors([0 * p for p in params]), tensors([0 * p for p in params])
        adamw_(scalar(0.1), scalar(1, "int64"), *state, **OPTIONS)
        return [*(t.numpy() for t in state[0]), grad_norm(state[1]).numpy()]

    same_bits_for_any_threads(compute)


def test_errors_name_what_is_wrong() -> None:
    p = [bt.ones((3,))]
    with pytest.raises(ValueError, match=r"\[adamw_\] expected grads\[0\] like its parameter float32\(3,\)"):
        adamw_(scalar(0.1), scalar(1, "int64"), p, [bt.ones((4,))], p, p)
    with pytest.raises(ValueError, match=r"\[adamw_\] expected 'lr' to be a 0-d tensor"):
        adamw_(bt.ones((2,)), scalar(1, "int64"), p, p, p, p)
    with pytest.raises(ValueError, match="expected one weight_decay, or one for each of 1 parameters, got 2"):
        adamw_(scalar(0.1), scalar(1, "int64"), p, p, p, p, weight_decay=(0.1, 0.2))
    with pytest.raises(ValueError, match="betas from 0 to below 1, got beta2 = 1"):
        adamw_(scalar(0.1), scalar(1, "int64"), p, p, p, p, beta2=1.0)
    with pytest.raises(ValueError, match="eps of at least 0, got -1"):
        adamw_(scalar(0.1), scalar(1, "int64"), p, p, p, p, eps=[-1.0])
    with pytest.raises(TypeError, match="expected a number for eps"):
        adamw_(scalar(0.1), scalar(1, "int64"), p, p, p, p, eps="small")
    with pytest.raises(TypeError, match="float32 or float64 parameters"):
        sgd_(scalar(0.1), [bt.ones((3,), dtype="int32")], [bt.ones((3,), dtype="int32")])
    with pytest.raises(ValueError, match="max_norm"):
        clip_scale(scalar(1.0), 0.0)
    with pytest.raises(ValueError, match="0-d int64"):
        increment_step_(scalar(1.0))
