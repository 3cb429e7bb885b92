"""Imported models beside transformers: logits, greedy text, the loss that fine-tuning begins with, and back again.

Logits and losses are held to the rule of ``comparison``: against transformers in float64, twice the error of
transformers in float32 plus one rounding.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import EPS, assert_as_good_as
from hf_models import CONFIG, write_model, write_tokenizer

import blutensor as bt
import blutrain
from blutrain.cli import run_command
from blutrain.config_io import load_config
from blutrain.data.loader import Loader
from blutrain.data.shards import ShardWriter
from blutrain.data.tokenizer import get_tokenizer
from blutrain.generation import Decoder, generate_tokens
from blutrain.huggingface import export_hf, import_hf
from blutrain.launch import train
from blutrain.model import GPT
from blutrain.sampling import SamplingOptions
from blutrain.weights import load_model

pytestmark = pytest.mark.torch

SMALL = {"n_layer": 2, "n_head": 3, "n_embd": 48, "n_positions": 40, "vocab_size": 211}
CONFIGS: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "one head, prime vocabulary": {**SMALL, "n_head": 1, "n_embd": 37, "vocab_size": 1009},
    "untied head": {**SMALL, "vocab_size": 257, "tie_word_embeddings": False},
    "vocabulary that needs no padding": {**SMALL, "vocab_size": 128, "n_layer": 5},
    "GPT-2's vocabulary": {**SMALL, "n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 50257},
    "one token, one position": {**SMALL, "n_positions": 1, "vocab_size": 1},
}


@dataclass
class Models:
    """One model three times, and its folder."""

    ours: GPT
    single: Any
    double: Any
    folder: Path
    """Of Hugging Face's files."""
    run: Path
    """Our run."""


@pytest.fixture(scope="module")
def make(torch: Any, transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Models]:
    """Makes random models, every parameter with values that matter, from a configuration."""

    def make_models(values: dict[str, Any], *, dtype: str = "float32", std: float = 0.15, shard: str = "5GB") -> Models:
        top = tmp_path_factory.mktemp("models")
        torch.manual_seed(1)
        config = transformers.GPT2Config(**values, bos_token_id=0, eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                around = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
                parameter.copy_(around + std * torch.randn_like(parameter))
        model = model.to(getattr(torch, dtype))
        model.save_pretrained(top / "hf", max_shard_size=shard)
        import_hf(top / "hf", top / "run", settings=["data.tokenizer=bytes"])
        single = model.to(torch.float32)  # exact: what the files hold
        double = copy.deepcopy(single).to(torch.float64)
        return Models(load_model(top / "run")[0], single, double, top / "hf", top / "run")

    return make_models


def tokens_for(values: dict[str, Any], batch: int = 3, length: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.integers(0, values["vocab_size"], (batch, length or values["n_positions"])).astype(np.int32)


def logits_of(torch: Any, models: Models, tokens: np.ndarray) -> list[np.ndarray]:
    with bt.no_grad():
        ours = models.ours.logits(bt.asarray(tokens)).numpy()[..., : models.ours.config.vocab_size]
    with torch.no_grad():
        ids = torch.tensor(tokens, dtype=torch.long)
        return [ours, *(model(ids).logits.numpy() for model in (models.single, models.double))]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(torch: Any, make: Callable[..., Models], name: str) -> None:
    models = make(CONFIGS[name])
    assert_as_good_as(*logits_of(torch, models, tokens_for(CONFIGS[name])), name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_logits_of_narrow_weights(torch: Any, make: Callable[..., Models], dtype: str) -> None:
    models = make(SMALL, dtype=dtype, shard="20KB")
    assert (models.folder / "model.safetensors.index.json").exists()
    assert_as_good_as(*logits_of(torch, models, tokens_for(SMALL)), dtype)


@pytest.mark.slow
def test_logits_of_gpt2_124m(torch: Any, make: Callable[..., Models]) -> None:
    values = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}
    models = make(values, std=0.02)
    assert load_config(models.run / "config.toml").model == blutrain.PRESETS["gpt2-124m"].model
    assert_as_good_as(*logits_of(torch, models, tokens_for(values, batch=1, length=64)), "gpt2-124m")


@pytest.mark.parametrize("prompt", [1, 7, 39])
@pytest.mark.parametrize("name", ["small", "untied head"])
def test_greedy_tokens(torch: Any, make: Callable[..., Models], name: str, prompt: int) -> None:
    """From a prompt until the model's context is full, each with a cache of its own."""
    models = make(CONFIGS[name])
    tokens = tokens_for(CONFIGS[name], batch=1, length=prompt)[0]
    theirs = greedy(torch, models.single, tokens)
    count = len(theirs)
    assert count == SMALL["n_positions"] - prompt
    ours = our_greedy(models.ours, tokens, count)
    assert ours == theirs
    assert prompt > 30 or len(set(ours)) > 3


def our_greedy(model: GPT, tokens: np.ndarray, count: int) -> list[int]:
    return list(generate_tokens(Decoder(model), tokens.tolist(), count, SamplingOptions(temperature=0), model))


def greedy(torch: Any, model: Any, tokens: np.ndarray) -> list[int]:
    """Their tokens until the context is full; none ends a text."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor(tokens[None], dtype=torch.long)
    options = {"do_sample": False, "max_length": model.config.n_positions, "pad_token_id": 0}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=True, **options)
    return found[0, len(tokens) :].tolist()


@pytest.mark.slow
def test_greedy_tokens_over_a_long_context(torch: Any, make: Callable[..., Models]) -> None:
    values = {**SMALL, "n_positions": 1024}
    models = make(values)
    tokens = tokens_for(values, batch=1, length=900)[0]
    theirs = greedy(torch, models.single, tokens)
    assert our_greedy(models.ours, tokens, 124) == theirs


def test_greedy_text(torch: Any, transformers: Any, make: Callable[..., Models], tmp_path: Path) -> None:
    """The command line's text, with the tokenizer that came with the model: the prompt's ids alone are continued."""
    models = make({**SMALL, "vocab_size": 261})
    assert write_tokenizer(models.folder) == 261
    import_hf(models.folder, tmp_path / "run")
    tokenizer = get_tokenizer(models.folder)
    ids = np.asarray(tokenizer.encode("in the"), np.int32)
    theirs = greedy(torch, models.single, ids)
    if tokenizer.end_of_text in theirs:
        theirs = theirs[: theirs.index(tokenizer.end_of_text)]
    options = SamplingOptions(temperature=0)
    text = blutrain.generate(
        tmp_path / "run", "in the", max_new_tokens=SMALL["n_positions"] - len(ids), options=options
    )
    assert text == tokenizer.decode([*ids, *theirs])


def write_shards(folder: Path, vocab_size: int) -> None:
    rng = np.random.default_rng(3)
    folder.mkdir()
    for split, count in (("train", 3000), ("val", 700)):
        with ShardWriter(folder, split, count) as writer:
            writer.append(rng.integers(0, vocab_size, count).astype(np.uint16))


def their_loss(torch: Any, model: Any, batches: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Mean over all targets."""
    total, count = 0.0, 0
    for tokens, targets in batches:
        with torch.no_grad():
            logits = model(torch.tensor(tokens, dtype=torch.long)).logits
        flat = logits.reshape(-1, logits.shape[-1])
        loss = torch.nn.functional.cross_entropy(
            flat, torch.tensor(targets.reshape(-1), dtype=torch.long), reduction="sum"
        )
        total, count = total + loss.item(), count + int((targets >= 0).sum())
    return total / count


def test_fine_tuning_begins_at_the_loss_of_the_model(torch: Any, make: Callable[..., Models], tmp_path: Path) -> None:
    models = make(SMALL)
    write_shards(tmp_path / "data", 211)
    settings = [
        f"data.path={tmp_path / 'data'}", "train.steps=3", "train.global_batch_tokens=320", "train.micro_batch=4",
        "train.eval_every=0", "train.sample_every=0", "schedule.warmup_steps=0", "train.device=cpu",
    ]  # fmt: skip
    assert run_command(["train", str(models.run), "--resume", *(a for s in settings for a in ("--set", s))]) == 0
    lines = [json.loads(line) for line in (models.run / "metrics.jsonl").read_text().splitlines()]
    found = [line["loss"] for line in lines if line["event"] == "train"]
    assert len(found) == 3
    paths = sorted((tmp_path / "data").glob("*train*"))
    loader = Loader(paths, 4, 40, vocab_size=211, seed=load_config(models.run / "config.toml").train.seed)
    batches = [loader.next_batch() for _ in range(2)]
    single, double = (their_loss(torch, model, batches) for model in (models.single, models.double))
    assert abs(found[0] - double) <= 2 * abs(single - double) + EPS * double
    again = blutrain.train(load_config(models.run / "config.toml", settings=["train.steps=5"]), resume=True)
    assert again.step == 5  # a run like any other from here on


def test_validation_loss_and_what_was_trained_goes_back(
    torch: Any, transformers: Any, make: Callable[..., Models], tmp_path: Path
) -> None:
    models = make(CONFIGS["untied head"])
    write_shards(tmp_path / "data", 257)
    config = load_config(
        models.run / "config.toml",
        settings=[
            f"data.path={tmp_path / 'data'}", "train.steps=4", "train.global_batch_tokens=160", "train.eval_every=0",
            "train.sample_every=0", "train.device=cpu", "schedule.learning_rate=0.01", "schedule.warmup_steps=0",
        ],
    )  # fmt: skip
    train(config, resume=True)
    export_hf(models.run, tmp_path / "out", max_shard_size="30KB")
    single, double = (
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out", dtype=kind).eval()
        for kind in (torch.float32, torch.float64)
    )
    trained = Models(load_model(models.run)[0], single, double, tmp_path / "out", models.run)
    tokens = tokens_for(CONFIGS["untied head"])
    ours, *theirs = logits_of(torch, trained, tokens)
    assert_as_good_as(ours, *theirs, "exported")
    assert np.abs(ours - logits_of(torch, models, tokens)[0]).max() > 0.01  # it did train
    loader = Loader(sorted((tmp_path / "data").glob("*val*")), 4, 40, vocab_size=257, one_pass=True)
    batches = [loader.next_batch() for _ in range(loader.num_batches)]
    losses = [their_loss(torch, model, batches) for model in (single, double)]
    found = blutrain.evaluate(models.run, device="cpu").loss
    assert abs(found - losses[1]) <= 2 * abs(losses[0] - losses[1]) + EPS * losses[1]


@pytest.mark.parametrize("released", [False, True])
def test_the_tokenizer_that_was_exported(
    transformers: Any, tmp_path: Path, request: pytest.FixtureRequest, released: bool
) -> None:
    """Theirs reads its files, GPT-2's own among them, and makes the same tokens."""
    (tmp_path / "hf").mkdir()
    ids, settings = write_tokenizer(tmp_path / "hf"), []
    if released:
        (tmp_path / "hf" / "vocab.json").unlink()
        (tmp_path / "hf" / "merges.txt").unlink()
        ids, settings = 50257, [f"data.tokenizer={request.getfixturevalue('gpt2_files')}"]
    write_model(tmp_path / "hf", config={**CONFIG, "vocab_size": ids, "n_embd": 3, "n_head": 1})
    import_hf(tmp_path / "hf", tmp_path / "run", settings=settings)
    export_hf(tmp_path / "run", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = get_tokenizer(tmp_path / "out")
    for text in ("in the thin theatre", "naïve 中文 \N{SNAKE}  two  spaces\n\n", "it's 1234 don't", " "):
        assert theirs(text)["input_ids"] == ours.encode(text).tolist()
        assert theirs.decode(ours.encode(text).tolist(), clean_up_tokenization_spaces=False) == text
    assert theirs.eos_token_id == ours.end_of_text
