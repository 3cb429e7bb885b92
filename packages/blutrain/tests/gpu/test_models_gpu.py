"""Imported models on a GPU: losses, answers and greedy text are the CPU's, padded ids take no part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import assert_as_good_as

import blutensor as bt
import blutrain
from blutrain.data.loader import Loader
from blutrain.data.shards import ShardWriter
from blutrain.data.tokenizer import ByteTokenizer
from blutrain.generation import Decoder, generate_tokens
from blutrain.model import GPT
from blutrain.multiple_choice import Question, score_endings
from blutrain.sampling import SamplingOptions
from blutrain.weights import load_model

pytest.importorskip("safetensors", reason="safetensors is not installed: nothing to import a model with")
from hf_models import CONFIG, write_model

from blutrain.huggingface import import_hf

VOCABULARY = 257  # padded to 320


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    config = {**CONFIG, "vocab_size": VOCABULARY, "n_positions": 64}
    import_hf(write_model(folder / "hf", config=config), folder / "run", settings=["data.tokenizer=bytes"])
    (folder / "data").mkdir()
    for split in ("train", "val"):
        with ShardWriter(folder / "data", split, 2000) as writer:
            writer.append(np.random.default_rng(1).integers(0, VOCABULARY, 2000).astype(np.uint16))
    return folder / "run"


def torch_losses(torch: Any, model: GPT, batches: list[tuple[np.ndarray, np.ndarray]], dtype: Any) -> np.ndarray:
    """Summed losses of batches by PyTorch on the GPU, from the weights without padding."""
    from blutrain.benchmark import peer_torch  # imports PyTorch

    config = model.config
    peer = peer_torch.GPT(config.layers, config.heads, config.channels, config.context, config.vocab_size)
    state = {name: torch.tensor(value.cpu().numpy()) for name, value in model.state_dict().items()}
    state["wte.weight"] = state["wte.weight"][: config.vocab_size]
    peer.load_state_dict(state)
    peer.to("cuda", dtype)
    found = []
    with torch.no_grad():
        for x, y in batches:
            tokens, targets = (torch.tensor(array, dtype=torch.long, device="cuda") for array in (x, y))
            logits = peer.logits(tokens).reshape(-1, config.vocab_size)
            found.append(torch.nn.functional.cross_entropy(logits, targets.reshape(-1), reduction="sum").item())
    return np.array(found)


def test_losses(torch: Any, run: Path) -> None:
    model = load_model(run, device="cuda")[0]
    loader = Loader(sorted((run.parent / "data").glob("*val*")), 4, 64, vocab_size=VOCABULARY, one_pass=True)
    batches = [loader.next_batch() for _ in range(loader.num_batches)]
    with bt.no_grad():
        found = [model.loss_sum(*(bt.asarray(array, device="cuda") for array in batch)).item() for batch in batches]
    single, double = (torch_losses(torch, model, batches, dtype) for dtype in (torch.float32, torch.float64))
    assert_as_good_as(np.array(found), single, double, "losses")
    whole = blutrain.evaluate(run, data=run.parent / "data", device="cuda")
    assert whole.loss == pytest.approx(double.sum() / 1999, rel=1e-6)
    assert whole.tokens == 1999


def test_greedy_tokens(run: Path) -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = load_model(run, device=device)[0]
        found.append(list(generate_tokens(Decoder(model), [1, 2, 3], 61, SamplingOptions(temperature=0), model)))
    assert found[0] == found[1]


def test_answers(run: Path, tmp_path: Path) -> None:
    questions = [Question(f"context {i}", ("one", "the other", "a third, which is longer"), i % 3) for i in range(9)]
    losses = [
        score_endings(load_model(run, device=device)[0], ByteTokenizer(), questions).losses
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    lines = [json.dumps({"ctx": q.context, "endings": q.endings, "label": q.label}) for q in questions]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    answers = [blutrain.evaluate_choices(run, tmp_path / "q.jsonl", device=device) for device in ("cpu", "cuda")]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_fine_tuning_begins_at_the_models_loss(torch: Any, run: Path, tmp_path: Path, precision: str) -> None:
    import_hf(run.parent / "hf", tmp_path / "run", settings=["data.tokenizer=bytes", f"train.precision={precision}"])
    settings = [
        f"data.path={run.parent / 'data'}", "train.steps=3", "train.global_batch_tokens=256", "train.eval_every=0",
        "train.sample_every=0", "train.device=cuda",
    ]  # fmt: skip
    config = blutrain.load_config(tmp_path / "run" / "config.toml", settings=settings)
    blutrain.train(config, resume=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first = next(event["loss"] for event in events if event["event"] == "train")
    paths = sorted((run.parent / "data").glob("*train*"))
    tokens, targets = Loader(paths, 4, 64, vocab_size=VOCABULARY, seed=config.train.seed).next_batch()
    expected = torch_losses(torch, load_model(run)[0], [(tokens, targets)], torch.float64)[0] / targets.size
    # As the losses of the first steps in test_training_gpu.
    assert first == pytest.approx(expected, rel={"fp32": 2e-5, "tf32": 3e-3, "bf16": 3e-2}[precision])
