"""The GPT against PyTorch from the same weights: logits, every gradient, ten losses; decoding against the full pass.

Tolerances follow one rule: against a float64 reference our error may be twice that of the same computation by PyTorch
in float32, plus one rounding of float32 at the reference's magnitude.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import EPS, assert_as_good_as

import blutensor as bt
from blutrain.config import ModelConfig
from blutrain.errors import ConfigError, InvalidInputError
from blutrain.flops import num_parameters
from blutrain.model import GPT, KVCache

UGLY = ModelConfig(layers=2, heads=3, channels=96, context=37, vocab_size=211, pad_vocab_to=1)
BATCH = 5


def batch_of(config: ModelConfig, seed: int, batch: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, config.vocab_size, (batch, config.context + 1)).astype(np.int32)
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def make(config: ModelConfig = UGLY, seed: int = 3) -> GPT:
    bt.manual_seed(seed)
    return GPT(config)


def to_torch(torch: Any, model: GPT, dtype: Any) -> Any:
    from blutrain.benchmark import peer_torch  # imports PyTorch

    config = model.config
    shape = (config.layers, config.heads, config.channels, config.context, config.padded_vocab_size, config.tied_head)
    other = peer_torch.GPT(*shape).to(dtype)
    other.load_state_dict({name: torch.tensor(value.numpy()) for name, value in model.state_dict().items()})
    return other


@pytest.mark.parametrize("shape", [(3, 2), (6,), (6, 1), (2, 2), (1, 2, 3)])
def test_targets_have_the_shape_of_the_tokens(shape: tuple[int, ...]) -> None:
    model = GPT(ModelConfig(layers=1, heads=1, channels=8, context=16, vocab_size=61))
    tokens, targets = bt.zeros((2, 3), dtype=bt.int32), bt.zeros(shape, dtype=bt.int32)
    message = rf"\[GPT\] expected targets of the shape of the tokens, \(2, 3\), got {re.escape(str(shape))}"
    for call in (model, model.loss_sum):
        with pytest.raises(bt.ShapeError, match=message):
            call(tokens, targets)
        with pytest.raises(InvalidInputError, match="targets as a tensor of integers, got list"):
            call(tokens, [[1, 2, 3], [4, 5, 6]])
    assert model(tokens, bt.zeros((2, 3), dtype=bt.int32)).shape == ()


@pytest.mark.parametrize("bad", [61, 63, 64, -1])
def test_padded_ids_are_no_input(bad: int) -> None:
    """Nowhere: eagerly, decoding, and in a captured step, of whose two halves the loss has its own check."""
    config = ModelConfig(layers=1, heads=1, channels=8, context=16, vocab_size=61, pad_vocab_to=64)
    model = GPT(config)
    good, wrong = (bt.asarray(np.array([[60, token]], np.int32)) for token in (0, bad))
    for call in (model, model.logits, model.hidden):
        assert call(good).shape[:2] == (1, 2)
        with pytest.raises(IndexError, match=rf"\[embedding\] expected ids from 0 to 60, got {bad} at position 1"):
            call(wrong)
    with pytest.raises(IndexError, match=f"ids from 0 to 60, got {bad}"):
        model.decode(wrong[:, 1], bt.asarray(np.array(0, np.int32)), KVCache(config))
    step = bt.capture(lambda tokens, targets: model.loss_sum(tokens, targets))
    with bt.no_grad():
        for _ in range(3):  # recorded, and from the third call on replayed
            step(good, good)
        with pytest.raises(IndexError, match=f"ids from 0 to 60, got {bad}"):
            step(wrong, good)
        with pytest.raises(IndexError, match=f"targets from 0 to 60 .* got {bad}"):
            step(good, wrong)


def test_padded_ids_have_no_scores() -> None:
    """None that an argmax could find: the logits of padded ids are 0, above all others where these are negative."""
    config = ModelConfig(layers=1, heads=1, channels=8, context=16, vocab_size=61, pad_vocab_to=64)
    model = make(config)
    tokens = bt.asarray(np.arange(10, dtype=np.int32)[None])
    padded, scores = model.logits(tokens).detach().numpy(), model(tokens).detach().numpy()
    assert padded.shape == (1, 10, 64)
    np.testing.assert_array_equal(scores, padded[..., :61])


@pytest.mark.torch
@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_gradients_against_torch(torch: Any, tied: bool) -> None:
    config = ModelConfig(**{**UGLY.__dict__, "tied_head": tied})
    model = make(config)
    tokens, targets = batch_of(config, 0)
    logits = model(bt.asarray(tokens)).detach().numpy()
    loss = model(bt.asarray(tokens), bt.asarray(targets))
    loss.backward()
    results = []
    for dtype in (torch.float32, torch.float64):
        other = to_torch(torch, model, dtype)
        x, y = torch.tensor(tokens, dtype=torch.long), torch.tensor(targets, dtype=torch.long)
        other_logits = other.logits(x)
        other_loss = other(x, y)
        other_loss.backward()
        gradients = {name: parameter.grad.numpy() for name, parameter in other.named_parameters()}
        results.append((other_logits.detach().numpy(), other_loss.item(), gradients))
    single, double = results
    assert_as_good_as(logits, single[0], double[0], "logits")
    assert abs(loss.item() - double[1]) <= 2 * abs(single[1] - double[1]) + EPS * double[1]
    names = [name for name, _ in model.named_parameters()]
    assert set(names) == set(double[2])
    for name, parameter in model.named_parameters():
        assert_as_good_as(parameter.grad.numpy(), single[2][name], double[2][name], name)


@pytest.mark.torch
def test_ten_losses_against_torch(torch: Any) -> None:
    from blutrain.programs import TrainingStep

    model = make()
    single, double = (to_torch(torch, model, dtype) for dtype in (torch.float32, torch.float64))
    optimizer = bt.optim.AdamW(model.parameter_groups(0.1), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    step = TrainingStep(model, optimizer, accumulation=1, clip_norm=1.0)
    batches = [batch_of(UGLY, seed % 2) for seed in range(10)]
    ours = step.run(ListSource(batches), np.full(2, 1e-3))[:, 0]  # recorded
    for batch in batches[2:]:  # replayed
        ours = np.append(ours, step.run(ListSource([batch]), np.full(1, 1e-3))[:, 0])
    losses = [torch_losses(torch, other, batches) for other in (single, double)]
    error, other_error = np.abs(ours - losses[1]), np.abs(np.array(losses[0]) - losses[1])
    # Errors of steps build on one another, so the bound is that of the worst step.
    assert (error <= 2 * other_error.max() + EPS * losses[1][0]).all(), (error, other_error)
    assert ours[-1] < ours[0]


def torch_losses(torch: Any, model: Any, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for tokens, targets in batches:
        loss = model(torch.tensor(tokens, dtype=torch.long), torch.tensor(targets, dtype=torch.long))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses


class ListSource:
    """Gives batches from a list; a native source when there is one callback to keep."""

    def __init__(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
        import ctypes

        self._batches = list(batches)
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32)
        self._callback = kind(self._fill)
        self.context = 0
        self.next_function = ctypes.cast(self._callback, ctypes.c_void_p).value

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        return self._batches.pop(0)

    def state(self) -> np.ndarray:
        return np.zeros(8, np.int64)

    def _fill(self, context: int, slots: Any, num_slots: int) -> int:
        import ctypes

        for slot, array in zip(slots[:num_slots], self.next_batch(), strict=True):
            ctypes.memmove(slot, array.ctypes.data, array.nbytes)
        return 0

    def error(self) -> str:
        return ""


def test_parameters_are_named_and_counted_as_documented() -> None:
    model = make()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert shapes["wte.weight"] == (211, 96)
    assert shapes["blocks.1.qkv.weight"] == (288, 96)
    assert shapes["blocks.0.out.bias"] == (96,)
    assert "head.weight" not in shapes
    assert sum(parameter.size for parameter in model.parameters()) == num_parameters(UGLY)
    decayed, others = model.parameter_groups(0.1)
    assert all(parameter.ndim == 2 for _, parameter in decayed["params"])
    assert all(name.endswith("bias") or ".ln" in name or name.startswith("lnf") for name, _ in others["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(shapes)


def test_initialisation() -> None:
    model = make(ModelConfig(layers=8, heads=4, channels=64, context=64, vocab_size=500))
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    assert state["wte.weight"].shape == (512, 64)
    for name, value in state.items():
        if value.ndim == 2:
            std = 0.02 / 4 if name.endswith(("proj.weight", "out.weight")) else 0.02
            # five standard errors of a standard deviation of so many draws
            assert value.std() == pytest.approx(std, rel=5 / np.sqrt(2 * value.size)), name
        else:
            assert (value == (0 if name.endswith("bias") else 1)).all()
    again = make(model.config)
    assert all((value.numpy() == state[name]).all() for name, value in again.state_dict().items())
    other = make(model.config, seed=4)
    assert (other.wte.weight.detach().numpy() != state["wte.weight"]).any()


def test_decoding_with_a_cache_is_the_full_forward_pass() -> None:
    model = make()
    model.eval()
    tokens, _ = batch_of(UGLY, 1, batch=2)
    with bt.no_grad():
        full = model.logits(bt.asarray(tokens)).numpy()
        cache = KVCache(UGLY, batch=2)
        for position in range(UGLY.context):
            token = bt.asarray(np.ascontiguousarray(tokens[:, position]))
            step = model.decode(token, bt.asarray(np.array(position, np.int32)), cache).numpy()
            # both are float32 sums in different orders: a few roundings of logits of size one
            assert np.abs(step - full[:, position]).max() < 50 * EPS


def test_shorter_sequences_and_too_long_ones() -> None:
    model = make()
    tokens, _ = batch_of(UGLY, 2)
    with bt.no_grad():
        full = model(bt.asarray(tokens)).numpy()
        short = model(bt.asarray(np.ascontiguousarray(tokens[:, :5]))).numpy()
    assert np.abs(short - full[:, :5]).max() < 50 * EPS  # the past does not depend on the future
    with pytest.raises(InvalidInputError, match="at most 37"):
        model(bt.asarray(np.zeros((1, 38), np.int32)))
    with pytest.raises(ConfigError, match=r"expected a divisor of model\.channels = 96, got 5"):
        GPT(ModelConfig(channels=96, heads=5))


def test_ignored_targets_do_not_count() -> None:
    model = make()
    tokens, targets = batch_of(UGLY, 5)
    masked = targets.copy()
    masked[:, 10:] = -100
    with bt.no_grad():
        mean = model(bt.asarray(tokens), bt.asarray(masked)).item()
        short = np.ascontiguousarray(tokens[:, :10])
        alone = model(bt.asarray(short), bt.asarray(np.ascontiguousarray(targets[:, :10]))).item()
    assert mean == pytest.approx(alone, rel=1e-6)


def test_dropout_only_in_training() -> None:
    config = ModelConfig(**{**UGLY.__dict__, "dropout": 0.5})
    model = make(config)
    tokens, _ = batch_of(config, 1)
    x = bt.asarray(tokens)
    with bt.no_grad():
        model.eval()
        assert (model(x).numpy() == make(UGLY)(x).numpy()).all()  # evaluation drops nothing
        model.train()
        dropped = model(x).numpy()
        assert (dropped != make(UGLY)(x).numpy()).any()
    assert np.isfinite(dropped).all()


def test_without_torch_all_files_collect_and_comparisons_skip(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('hidden', name='torch')")
    paths = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    environment = {key: value for key, value in os.environ.items() if key != "BLU_REQUIRE_TORCH"}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:randomly", "--no-header"]
    for arguments in (["--collect-only", str(Path(__file__).parent)], [__file__, "-k", "ten_losses or cache"]):
        done = subprocess.run(
            [*command, *arguments], env={**environment, "PYTHONPATH": paths}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "PyTorch is not installed: comparisons with it are left out" in done.stdout
    assert "1 skipped" in done.stdout
