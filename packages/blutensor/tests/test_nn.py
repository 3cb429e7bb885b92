"""Modules: registration, state, modes; layers and initialisers against PyTorch through state_dict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", bt.full((3,), 2.0))

    def forward(self, ids: bt.Tensor) -> bt.Tensor:
        return self.head(self.embedding(ids) * self.scale)


def test_registration_and_names() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.5)))
    assert [n for n, _ in model.named_parameters()] == ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]
    assert [n for n, _ in model.named_modules()] == ["", "0", "1", "2", "2.0", "2.1"]
    assert len(model) == 3
    assert isinstance(model[1], nn.GELU)
    assert "(0): Linear(3, 4, bias=True)" in repr(model)
    assert "Dropout(p=0.5)" in repr(model)
    assert sum(p.size for p in model.parameters()) == 12 + 4 + 8


def test_tied_parameters_and_buffers() -> None:
    model = Tied()
    assert [n for n, _ in model.named_parameters()] == ["embedding.weight"]
    assert set(model.state_dict()) == {"embedding.weight", "scale"}
    model(bt.asarray([0, 1])).sum().backward()
    assert model.embedding.weight.grad is not None
    model.scale = bt.full((3,), 3.0)
    assert model.state_dict()["scale"].tolist() == [3, 3, 3]
    with pytest.raises(TypeError, match="expected a tensor for buffer 'scale'"):
        model.scale = 3.0
    with pytest.raises(ValueError, match="taken"):
        model.register_buffer("head", bt.ones(1))


def test_attributes_change_their_kind() -> None:
    module = nn.Module()
    module.x = nn.Parameter(bt.ones(2))
    module.x = nn.Linear(2, 2)
    assert [n for n, _ in module.named_parameters()] == ["x.weight", "x.bias"]
    module.x = 3
    assert list(module.named_parameters()) == []
    assert module.x == 3
    del module.x
    with pytest.raises(AttributeError, match="no attribute 'x'"):
        _ = module.x

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 2)

    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
        Forgetful()
    with pytest.raises(TypeError, match=r"no forward\(\)"):
        nn.Module()(bt.ones(1))


def test_module_list() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers.append(nn.Linear(2, 3))
    assert [layer.out_features for layer in layers.children()] == [2, 3]
    assert layers[1].out_features == 3
    assert len(layers) == 2


def test_modes_and_freezing() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(0.5)))
    x = bt.ones((4, 3))
    assert model.eval() is model
    assert not any(m.training for m in model.modules())
    assert model(x).tolist() == model(x).tolist()
    model.train()
    assert model(x).tolist() != model(x).tolist()
    model.requires_grad_(False)
    assert not model(x).requires_grad
    seen: list[str] = []
    model.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Dropout", "Sequential", "Sequential"]


def test_state_round_trip() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    x = bt.ones((1, 3))
    assert a(x).tolist() != b(x).tolist()
    b.load_state_dict(a.state_dict())
    assert a(x).tolist() == b(x).tolist()
    assert a.state_dict()["weight"].storage_id == a.weight.storage_id


def test_wrong_state_is_reported_at_once_and_nothing_is_written() -> None:
    layer = nn.Linear(3, 2)
    before = layer.weight.tolist()
    state = {"weight": bt.zeros((2, 3)), "bias": bt.zeros(7), "other": bt.zeros(1)}
    with pytest.raises(ValueError, match=r"unexpected 'other'; 'bias' has shape \(7,\), expected \(2,\)"):
        layer.load_state_dict(state)
    assert layer.weight.tolist() == before
    with pytest.raises(ValueError, match="missing 'bias'"):
        layer.load_state_dict({"weight": bt.zeros((2, 3))})
    layer.load_state_dict({"weight": bt.zeros((2, 3))}, strict=False)
    assert layer.weight.tolist() == [[0] * 3] * 2


def test_state_of_arrays() -> None:
    layer = nn.Linear(3, 2)
    weight = np.arange(6.0).reshape(2, 3)
    weight.flags.writeable = False
    layer.load_state_dict({"weight": weight, "bias": np.ones(2, np.float32)})
    assert layer.weight.tolist() == weight.tolist()
    assert layer.weight.dtype is bt.float32
    with pytest.raises(TypeError, match=r"\[load_state_dict\] expected tensors or NumPy arrays.*'bias' is list"):
        layer.load_state_dict({"weight": np.zeros((2, 3)), "bias": [0.0, 0.0]})
    with pytest.raises(TypeError, match=r"\[load_state_dict\] expected a mapping .* got list"):
        layer.load_state_dict([1])
    assert layer.weight.tolist() == weight.tolist()


def test_wrong_types() -> None:
    for make, message in (
        (lambda: nn.Linear("a", 3), r"\[Linear\] expected an integer for in_features, got 'a'"),
        (lambda: nn.Linear(3, 2.0), r"\[Linear\] expected an integer for out_features, got 2.0"),
        (lambda: nn.Embedding(3, None), r"\[Embedding\] expected an integer for embedding_dim, got None"),
        (lambda: nn.LayerNorm("a"), r"\[LayerNorm\] expected an integer for normalized_shape, got 'a'"),
        (lambda: nn.LayerNorm(3, eps="a"), r"\[LayerNorm\] expected a number for eps, got 'a'"),
        (lambda: nn.Dropout("a"), r"\[Dropout\] expected a number for p, got 'a'"),
        (lambda: F.dropout(bt.ones(2), None), r"\[dropout\] expected a number for p, got None"),
        (lambda: bt.manual_seed("a"), r"\[manual_seed\] expected an integer for seed, got 'a'"),
        (lambda: bt.manual_seed(1.0), r"\[manual_seed\] expected an integer for seed, got 1.0"),
    ):
        with pytest.raises(bt.DTypeError, match=message):
            make()


def test_wrong_sizes() -> None:
    for make in (lambda: nn.Linear(0, 3), lambda: nn.Linear(3, -1), lambda: nn.Embedding(0, 3)):
        with pytest.raises(ValueError, match="at least 1"):
            make()
    for make in (lambda: nn.Dropout(1.5), lambda: F.dropout(bt.ones(2), -0.1)):
        with pytest.raises(ValueError, match="probability from 0 to 1"):
            make()
    with pytest.raises(ValueError, match="'none' or 'tanh'"):
        nn.GELU("other")
    with pytest.raises(ValueError, match=r"ends in \(4,\)"):
        nn.LayerNorm(4)(bt.ones((2, 3)))


def test_initialisers() -> None:
    t = bt.empty((200, 300))
    assert nn.init.zeros_(t) is t
    assert not t.numpy().any()
    assert nn.init.ones_(t).sum().item() == 60_000
    assert nn.init.constant_(t, 2.5).max().item() == 2.5
    nn.init.normal_(t, 3.0, 0.5)
    # 60000 draws: mean within 5 sigma / sqrt(n), deviation within 5 sigma / sqrt(2 n).
    assert t.numpy().mean() == pytest.approx(3.0, abs=5 * 0.5 / math.sqrt(60_000))
    assert t.numpy().std() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(120_000))
    for initialise, bound in (
        (lambda t: nn.init.uniform_(t, -2.0, 2.0), 2.0),
        (nn.init.xavier_uniform_, math.sqrt(6 / 500)),
        (nn.init.kaiming_uniform_, math.sqrt(6 / 300)),
    ):
        values = initialise(t).numpy()
        assert np.abs(values).max() <= bound
        assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    with pytest.raises(ValueError, match="fan in"):
        nn.init.kaiming_uniform_(bt.empty(3))
    bt.manual_seed(5)
    first = nn.Linear(7, 5).weight.tolist()
    bt.manual_seed(5)
    assert nn.Linear(7, 5).weight.tolist() == first
    p = nn.Parameter(bt.empty((3, 3)))
    assert nn.init.normal_(p) is p
    assert p.requires_grad


LAYERS = {
    "linear": (lambda n: n.Linear(7, 5), (4, 3, 7)),
    "linear without bias": (lambda n: n.Linear(7, 5, bias=False), (4, 7)),
    "layer_norm": (lambda n: n.LayerNorm(7), (4, 3, 7)),
    "layer_norm of two axes": (lambda n: n.LayerNorm((3, 7), eps=1e-3), (4, 3, 7)),
    "gelu": (lambda n: n.GELU(), (4, 7)),
    "gelu tanh": (lambda n: n.GELU(approximate="tanh"), (4, 7)),
    "mlp": (lambda n: n.Sequential(n.Linear(7, 9), n.GELU(), n.LayerNorm(9), n.Linear(9, 3)), (4, 7)),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", LAYERS)
def test_layers_against_torch(name: str, torch: Any) -> None:
    """Same parameter names and shapes, and after load_state_dict the same outputs and gradients."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    theirs, ours = make(torch.nn), make(nn)
    state = {n: bt.asarray(t.detach().numpy().copy()) for n, t in theirs.state_dict().items()}
    assert {n: t.shape for n, t in ours.state_dict().items()} == {n: t.shape for n, t in state.items()}
    ours.load_state_dict(state)
    exact = make(torch.nn).double()
    exact.load_state_dict({n: t.double() for n, t in theirs.state_dict().items()})

    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    found = []
    for module, tensor in (
        (ours, bt.asarray(x.copy()).requires_grad_()),
        (theirs, torch.tensor(x, requires_grad=True)),
        (exact, torch.tensor(x, dtype=torch.float64, requires_grad=True)),
    ):
        y = module(tensor)
        (y * y).sum().backward()
        found.append([np.asarray(t.detach().numpy()) for t in (y, tensor.grad, *(p.grad for p in module.parameters()))])
    for got, peer, reference in zip(*found, strict=True):
        size = max(1.0, float(np.abs(reference).max()))
        assert np.abs(got - reference).max() <= 2 * np.abs(peer - reference).max() + 2 * size * 2.0**-24


@pytest.mark.torch
def test_embedding_and_losses_against_torch(torch: Any) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((11, 6)).astype(np.float32)
    ids = rng.integers(0, 11, (3, 5))
    targets = rng.integers(0, 11, 15)
    targets[4] = -100
    results = []
    for library, functional in ((bt, F), (torch, torch.nn.functional)):
        w = bt.asarray(weight.copy()).requires_grad_() if library is bt else torch.tensor(weight, requires_grad=True)
        i, t = (bt.asarray(a.copy()) if library is bt else torch.tensor(a) for a in (ids, targets))
        x = functional.embedding(i, w)
        logits = functional.linear(x.reshape(15, 6), w)
        losses = [functional.cross_entropy(logits, t, reduction=r) for r in ("mean", "sum", "none")]
        (losses[0] + losses[1] + losses[2].sum()).backward()
        results.append([x, logits, functional.softmax(logits, -1), functional.log_softmax(logits, -1), *losses, w.grad])
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_linear_cross_entropy_is_cross_entropy_of_linear() -> None:
    rng = np.random.default_rng(0)
    x, w = (bt.asarray(rng.standard_normal(s)).requires_grad_() for s in ((9, 4), (13, 4)))
    targets = bt.asarray(np.array([0, 12, -100, 3, 3, 5, -100, 1, 2]))
    for reduction in ("mean", "sum"):
        one = F.linear_cross_entropy(x, w, targets, reduction=reduction)
        two = F.cross_entropy(F.linear(x, w), targets, reduction=reduction)
        assert one.item() == pytest.approx(two.item(), rel=1e-12)
        for a, b in zip(bt.grad(one * 3, [x, w]), bt.grad(two * 3, [x, w]), strict=True):
            assert a is not None
            assert b is not None
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)
    with bt.no_grad():
        assert F.linear_cross_entropy(x, w, targets).item() == pytest.approx(
            F.cross_entropy(F.linear(x, w), targets).item()
        )


def test_mlp_is_linear_gelu_linear() -> None:
    rng = np.random.default_rng(0)
    x, w1, b1, w2, b2, r = (
        bt.asarray(rng.standard_normal(s)).requires_grad_() for s in ((5, 4), (7, 4), (7,), (3, 7), (3,), (5, 3))
    )
    for approximate in ("tanh", "none"):
        fused = F.mlp(x, w1, b1, w2, b2, r, approximate)
        plain = F.linear(F.gelu(F.linear(x, w1, b1), approximate), w2, b2) + r
        np.testing.assert_allclose(fused.detach().numpy(), plain.detach().numpy(), rtol=1e-12)
        inputs = [x, w1, b1, w2, b2, r]
        for a, b in zip(bt.grad((fused * fused).sum(), inputs), bt.grad((plain * plain).sum(), inputs), strict=True):
            assert a is not None
            assert b is not None
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)


def test_dropout_scales_and_is_the_identity_outside_of_training() -> None:
    x = bt.ones(100_000)
    y = F.dropout(x, 0.25).numpy()
    assert set(np.unique(y).tolist()) == {0.0, float(np.float32(1 / 0.75))}
    # The number of zeros is binomial: five standard deviations.
    assert (y == 0).sum() == pytest.approx(25_000, abs=5 * math.sqrt(100_000 * 0.25 * 0.75))
    assert F.dropout(x, 0.25, training=False) is x
    assert F.dropout(x, 0.0) is x
    assert not F.dropout(x, 1.0).numpy().any()


def test_functions_of_the_package_are_those_of_functional() -> None:
    x, targets = bt.ones((2, 3)), bt.asarray(np.array([0, 2]))
    assert bt.cross_entropy(x, targets).item() == pytest.approx(math.log(3))
    assert bt.linear_cross_entropy(x, bt.ones((4, 3)), targets).item() == pytest.approx(math.log(4))
    assert bt.layer_norm(x, 3).shape == (2, 3)
    assert bt.mlp(x, bt.ones((5, 3)), None, bt.ones((3, 5)), None).shape == (2, 3)
    q = bt.ones((1, 2, 3, 4))
    assert bt.scaled_dot_product_attention(q, q, q).shape == q.shape
    assert bt.qkv_attention(bt.ones((1, 3, 24)), 2).shape == (1, 3, 8)
    for name in ("cross_entropy", "linear_cross_entropy", "layer_norm", "mlp", "scaled_dot_product_attention"):
        assert getattr(bt, name) is getattr(F, name)
