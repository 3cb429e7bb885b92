"""Training in bfloat16: float32 gradients and masters, converted modules, a small GPT beside its float32 twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from models import Transformer, batches, bits, same_bits, train_step

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import nn, optim
from blutensor._operators import private

Array = npt.NDArray[Any]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def narrow(values: Array, dtype: str = "bfloat16") -> bt.Tensor:
    return bt.asarray(np.array(values)).astype(dtype)


def leaf(values: Array, grad_dtype: str | None = "float32", dtype: str = "bfloat16") -> nn.Parameter:
    p = nn.Parameter(narrow(values, dtype))
    if grad_dtype:
        p.grad_dtype = grad_dtype
    return p


def exact_twin(p: bt.Tensor) -> nn.Parameter:
    return nn.Parameter(p.detach().astype("float64"))


# ---------------------------------------------------------------- gradients in float32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("passes", [1, 2])
def test_operators_write_float32_gradients_of_16_bit_leaves(passes: int, dtype: str) -> None:
    """The sums of exact products of 16-bit numbers, in float32: rounded nowhere else."""
    # Small integers over a power of two: products and sums of 200 of them are exact in float32, not in 16 bits.
    rng = np.random.default_rng(0)
    x, upstream = (rng.integers(-127, 128, s).astype(np.float32) / 64 for s in ((200, 24), (200, 9)))
    w, b = leaf(normal(1, 9, 24), dtype=dtype), leaf(normal(2, 9), dtype=dtype)
    for _ in range(passes):
        F.linear(narrow(x, dtype), w, b).backward(narrow(upstream, dtype))
    assert w.grad is not None
    assert b.grad is not None
    assert (w.grad.dtype, b.grad.dtype) == (bt.float32, bt.float32)
    np.testing.assert_array_equal(w.grad.numpy(), passes * (upstream.T @ x))
    np.testing.assert_array_equal(b.grad.numpy(), passes * upstream.sum(0))
    assert (w.grad.astype(dtype).astype("float32").numpy() != w.grad.numpy()).any()


@pytest.mark.parametrize("ids", ["int32", "int64"])
@pytest.mark.parametrize("passes", [1, 2])
def test_an_embeddings_gradient_is_summed_in_float32(passes: int, ids: str) -> None:
    rng = np.random.default_rng(3)
    upstream = rng.integers(-127, 128, (300, 7)).astype(np.float32) / 64
    rows = rng.integers(0, 3, 300)
    w = leaf(normal(4, 5, 7))
    for _ in range(passes):
        F.embedding(bt.asarray(rows.astype(ids)), w).backward(narrow(upstream))
    expected = np.zeros((5, 7), np.float32)
    np.add.at(expected, rows, upstream)
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), passes * expected)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_layer_norms_gradient_is_summed_in_float32(passes: int) -> None:
    x, upstream = leaf(normal(5, 60, 24), None), narrow(normal(6, 60, 24))
    w, b = leaf(1 + normal(7, 24)), leaf(normal(8, 24))
    exact = [exact_twin(t) for t in (x, w, b)]
    for _ in range(passes):
        F.layer_norm(x, 24, w, b).backward(upstream)
        F.layer_norm(exact[0], 24, *exact[1:]).backward(upstream.astype("float64"))
    for p, true in ((w, exact[1]), (b, exact[2])):
        assert p.grad is not None
        assert true.grad is not None
        assert p.grad.dtype is bt.float32
        # 60 terms of magnitude up to 20, each with a few float32 roundings; bfloat16 would be off by 2^-9.
        np.testing.assert_allclose(p.grad.numpy(), true.grad.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("upstream", [1.0, 0.5])
@pytest.mark.parametrize("passes", [1, 2])
def test_the_heads_gradient_is_summed_in_float32(passes: int, upstream: float) -> None:
    x, w = leaf(normal(9, 50, 24), None), leaf(normal(10, 31, 24))
    targets = bt.asarray(np.random.default_rng(11).integers(0, 31, 50).astype(np.int32))
    true_x, true_w = exact_twin(x), exact_twin(w)
    for _ in range(passes):
        (F.linear_cross_entropy(x, w, targets) * upstream).backward()
        (F.linear_cross_entropy(true_x, true_w, targets) * upstream).backward()
    assert x.grad is not None
    assert w.grad is not None
    assert true_w.grad is not None
    assert (x.grad.dtype, w.grad.dtype) == (bt.bfloat16, bt.float32)
    # Logits of magnitude 15 carry float32 errors of 1e-6, which softmax passes on relatively.
    np.testing.assert_allclose(w.grad.numpy(), true_w.grad.numpy(), rtol=2e-5, atol=2e-6)


def test_the_heads_gradient_of_a_16_bit_result_is_16_bit() -> None:
    """The weight is no leaf: its gradient goes on in its own dtype."""
    w = leaf(normal(10, 31, 24), None)
    targets = bt.asarray(np.arange(31, dtype=np.int32))
    x = narrow(normal(12, 31, 24))
    F.linear_cross_entropy(x, w * 1, targets).backward()
    direct = leaf(normal(10, 31, 24), None)
    F.linear_cross_entropy(x, direct, targets).backward()
    assert w.grad is not None
    assert w.grad.dtype is bt.bfloat16
    assert bits(w.grad) == bits(direct.grad)


def test_gradients_of_other_operators_are_added_in_float32() -> None:
    """A weight tied to the head and to operators that know no buffer: 1 + 2^-9 is no bfloat16."""
    w = leaf(np.ones(4, np.float32))
    small = bt.full((4,), 2.0**-9, dtype="bfloat16")
    (w * small).backward(bt.ones((4,), dtype="bfloat16"))
    (w * 1).backward(bt.ones((4,), dtype="bfloat16"))
    assert w.grad is not None
    assert w.grad.dtype is bt.float32
    assert w.grad.tolist() == [1 + 2.0**-9] * 4
    optim.base.zero_grad([w])
    (w * small).backward(bt.ones((4,), dtype="bfloat16"))
    assert w.grad.tolist() == [2.0**-9] * 4


def test_hooks_see_the_float32_gradient() -> None:
    w = leaf(np.ones(4, np.float32))
    seen = []

    def hook(grad: bt.Tensor) -> bt.Tensor:
        seen.append(grad.dtype)
        return grad * 2

    w.register_hook(hook)
    bt.backward([w * 1, w * 2.0**-9], [bt.ones((4,), dtype="bfloat16")] * 2)
    assert seen == [bt.float32]
    assert w.grad is not None
    assert w.grad.tolist() == [2 + 2.0**-8] * 4


def test_higher_derivatives_of_a_leaf_with_float32_gradients() -> None:
    w = leaf(np.full(3, 2, np.float32))
    (w * w * w).backward(bt.ones((3,), dtype="bfloat16"), create_graph=True)
    assert w.grad is not None
    assert w.grad.dtype is bt.float32
    (second,) = bt.grad([w.grad.sum()], [w])
    assert second is not None
    assert (second.dtype, second.tolist()) == (bt.bfloat16, [12.0] * 3)
    w.grad = None


def test_grad_dtype() -> None:
    p = leaf(np.ones(3, np.float32), None)
    assert p.grad_dtype is bt.bfloat16
    (p * 1).backward(bt.ones((3,), dtype="bfloat16"))
    p.grad_dtype = bt.float32
    assert p.grad is None
    assert p.grad_dtype is bt.float32
    p.grad = bt.ones((3,))
    with pytest.raises(TypeError, match="gradient of dtype float32, got bfloat16"):
        p.grad = bt.ones((3,), dtype="bfloat16")
    p.grad_dtype = "float32"
    assert p.grad is not None
    for wrong in ("float64", "float16", "int32"):
        with pytest.raises(TypeError, match=r"\[grad_dtype\] expected bfloat16 or float32"):
            p.grad_dtype = wrong
    with pytest.raises(TypeError, match=r"\[grad_dtype\] expected float32 for the gradient"):
        nn.Parameter(bt.ones((3,))).grad_dtype = "bfloat16"


def test_the_norm_of_float32_gradients() -> None:
    w = leaf(normal(13, 9, 24))
    F.linear(narrow(normal(14, 50, 24)), w).sum().backward()
    assert w.grad is not None
    exact = np.sqrt((w.grad.numpy().astype(np.float64) ** 2).sum())
    assert optim.grad_norm([w]).item() == np.float32(exact)


# ---------------------------------------------------------------- modules and optimizers


class Small(nn.Module):
    """A tied weight, a frozen bias, buffers of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad = False
        self.register_buffer("scale", bt.ones((4,)))
        self.register_buffer("ids", bt.asarray([1, 2]))


def test_a_module_is_converted_in_place() -> None:
    model = Small()
    before = dict(model.named_parameters())
    (model.first.weight * 1).sum().backward()
    values = model.first.weight.detach()
    assert model.to("bfloat16") is model
    assert dict(model.named_parameters()) == before
    assert all(p.dtype is bt.bfloat16 for p in model.parameters())
    assert model.second.weight is model.first.weight
    assert model.first.weight.grad is None
    assert model.first.weight.requires_grad
    assert not model.second.bias.requires_grad
    assert (model.scale.dtype, model.ids.dtype) == (bt.bfloat16, bt.int64)
    assert bits(model.first.weight) == bits(values.astype("bfloat16"))
    storage = model.first.weight.storage_id
    assert model.to("bfloat16").to().first.weight.storage_id == storage
    with pytest.raises(TypeError, match=r"\[Module.to\] expected a floating-point dtype, got int32"):
        model.to("int32")


def masters_of(model: nn.Module) -> dict[str, bt.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def test_adamw_updates_masters_and_rounds_them() -> None:
    """The masters have the bits of float32 training on the same gradients; the parameters are their roundings."""
    shapes = [(), (1,), (33,), (3, 5), (0, 4), (129, 257)]
    starts = [normal(i, *s) for i, s in enumerate(shapes)]
    twins = [nn.Parameter(bt.asarray(np.array(a))) for a in starts]
    model = [(f"p{i}", nn.Parameter(narrow(a))) for i, a in enumerate(starts)]
    masters = {f"p{i}": bt.asarray(np.array(a)) for i, a in enumerate(starts)}
    ours = optim.AdamW(model, lr=1e-2, weight_decay=0.1, masters=masters)
    theirs = optim.AdamW(twins, lr=1e-2, weight_decay=0.1)
    assert ours.state_dict()["master.p2"].storage_id == masters["p2"].storage_id
    for step in range(3):
        for i, ((_, p), twin) in enumerate(zip(model, twins, strict=True)):
            p.grad, twin.grad = (bt.asarray(normal(10 * step + i, *shapes[i])) for _ in range(2))
        for optimizer in (ours, theirs):
            optimizer.step(grad_scale=bt.full((), 0.5))
    for (name, p), twin in zip(model, twins, strict=True):
        master = ours.state_dict()[f"master.{name}"]
        assert bits(master) == bits(twin)
        assert bits(p) == bits(master.astype("bfloat16"))
    before = {n: bits(t) for n, t in ours.state_dict().items()} | {n: bits(p) for n, p in model}
    ours.step(skip=bt.ones(()))
    assert before == {n: bits(t) for n, t in ours.state_dict().items()} | {n: bits(p) for n, p in model}


def test_parameters_that_are_not_contiguous() -> None:
    whole, values = bt.zeros((6, 8), dtype="bfloat16"), normal(20, 3, 4)
    whole[::2, ::2].copy_(bt.asarray(values))
    p = nn.Parameter(whole[::2, ::2])
    optimizer = optim.AdamW([p], lr=1e-2)
    p.grad = bt.ones((3, 4))
    optimizer.step()
    master = optimizer.state_dict()["master.0.0"]
    assert bits(p) == bits(master.astype("bfloat16"))
    assert bits(whole[::2, ::2]) == bits(p)
    assert not whole[1::2].astype("float32").numpy().any()


def test_mixed_groups_and_state() -> None:
    model = nn.Linear(5, 3)
    model.bias.requires_grad = False
    exact = masters_of(model)["weight"]
    start = np.array(exact.numpy())
    model.weight = nn.Parameter(exact.astype("bfloat16"))
    scale = nn.Parameter(bt.ones((2,)))
    optimizer = optim.AdamW([("weight", model.weight), ("scale", scale)], masters={"weight": exact})
    assert sorted(optimizer.state_dict()) == [
        "exp_avg.scale", "exp_avg.weight", "exp_avg_sq.scale", "exp_avg_sq.weight", "master.weight", "step",
    ]  # fmt: skip
    assert all(t.dtype is bt.float32 for n, t in optimizer.state_dict().items() if n != "step")
    np.testing.assert_array_equal(optimizer.state_dict()["master.weight"].numpy(), start)
    saved = {n: np.array(t.numpy()) for n, t in optimizer.state_dict().items()}
    (F.linear(bt.ones((2, 5), dtype="bfloat16"), model.weight).sum() + (scale * scale).sum()).backward()
    optimizer.step()
    assert bits(optimizer.state_dict()["master.weight"]) != bits(start)
    optimizer.load_state_dict(saved)
    assert bits(model.weight) == bits(bt.asarray(start).astype("bfloat16"))
    with pytest.raises(ValueError, match=r"missing 'master\.weight'"):
        optimizer.load_state_dict({n: a for n, a in saved.items() if n != "master.weight"})


@pytest.mark.parametrize(
    ("masters", "error", "text"),
    [
        ({"p": bt.ones((2,))}, ValueError, r"master 'p' is \(2,\) on cpu, the parameter \(3,\) on cpu"),
        ({"q": bt.ones((3,))}, ValueError, "master 'q' belongs to no bfloat16 parameter"),
        ({"p": bt.ones((3,), dtype="float64")}, TypeError, "expected float32 masters, 'p' is float64"),
        ({"p": 1.0}, TypeError, "expected float32 masters, 'p' is float"),
    ],
)
def test_wrong_masters(masters: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        optim.AdamW([("p", leaf(np.ones(3, np.float32)))], masters=masters)


def test_what_else_optimizers_refuse() -> None:
    p = leaf(np.ones(3, np.float32))
    with pytest.raises(
        ValueError, match=r"expected masters\[0\] like its parameter bfloat16\(3,\) on cpu, but float32"
    ):
        private("adamw_")(bt.ones(()), [p.detach()], *[[bt.ones((3,))]] * 3, [bt.ones(())])
    with pytest.raises(ValueError, match=r"expected no master for parameter 0, which is float32"):
        private("adamw_")(bt.ones(()), *[[bt.ones((3,))]] * 4, [bt.ones(())], masters=[bt.ones((3,))])
    with pytest.raises(TypeError, match=r"\[SGD\] expected float32 or float64 tensors, '0.0' is bfloat16"):
        optim.SGD([p])
    with pytest.raises(TypeError, match=r"\[AdamW\] expected float32 or float64 or bfloat16 tensors"):
        optim.AdamW([nn.Parameter(bt.ones((3,), dtype="float16"))])


# ---------------------------------------------------------------- a small GPT

STEPS = 30


def gpt(precision: str) -> tuple[nn.Module, optim.Optimizer]:
    """The model of seed 7, without dropout."""
    bt.manual_seed(7)
    model = Transformer(p=0.0)
    masters = masters_of(model) if precision == "bfloat16" else None
    model.to(precision)
    return model, optim.AdamW(model.named_parameters(), lr=3e-3, weight_decay=0.01, masters=masters)


def run(
    precision: str, wrap: Callable[[Any], Any] = lambda step: step
) -> tuple[list[float], dict[str, npt.NDArray[Any]]]:
    model, optimizer = gpt(precision)
    step = wrap(train_step(model, optimizer))
    batch = batches("transformer", 1, size=8)[0]
    losses = [step(*batch).item() for _ in range(STEPS)]
    state = {n: np.array(t.numpy()) for n, t in (model.state_dict() | optimizer.state_dict()).items()}
    return losses, state


def test_a_gpt_trains_in_bfloat16_as_in_float32() -> None:
    narrow_losses, state = run("bfloat16")
    wide_losses, _ = run("float32")
    assert narrow_losses[-1] < 0.5 * narrow_losses[0]
    # Weights and activations are rounded to 8 bits: relative errors of 2^-9 each, which average out in the loss.
    np.testing.assert_allclose(narrow_losses, wide_losses, rtol=0.02)
    assert state["exp_avg.tokens.weight"].dtype == np.float32
    rounded = bt.asarray(state["master.tokens.weight"]).astype("bfloat16")
    assert bits(rounded) == bits(state["tokens.weight"])


def test_captured_bfloat16_steps_have_the_bits_of_eager_ones() -> None:
    losses, state = run("bfloat16")
    captured_losses, captured_state = run("bfloat16", bt.capture)
    assert losses == captured_losses
    same_bits(state, captured_state)
