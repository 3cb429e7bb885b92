"""Trains GPT-2 124M from one initialisation on the same batches, ours and PyTorch's, and compares validation losses.

    python packages/blutrain/benchmarks/fidelity.py --text FOLDER --vocabulary FOLDER [--precision tf32 bf16]
        [--steps 500] [--learning-rate 1e-4 6e-4] [--out FILE.json] [--plot FILE.png]
    python packages/blutrain/benchmarks/fidelity.py --curves FILE.json --plot FILE.png     what --out wrote, drawn

Three runs per precision: ours, PyTorch with one attention backend, and PyTorch with another, which differs in the
order of its reductions and in nothing else. Training is chaotic: a rounding grows from step to step, the faster the
higher the learning rate is for the batch. Ours is as close to PyTorch as PyTorch is to itself when the largest gap of
validation loss between ours and the first is at most 1.5 times that between the two. Tokens are never repeated. The
rate by default is what GPT-2's 6e-4 for batches of half a million tokens becomes with the square root of the batch,
here 16,384 tokens; at 6e-4 itself two runs of PyTorch drift apart by hundredths. Works that ``--out`` holds and that
are not measured stay in it.

``--text`` is any folder of text (files ``*.py``, ``*.txt``, ``*.rst``, ``*.md``, ``*.h``) with some 9 million GPT-2
tokens, ``--vocabulary`` holds GPT-2's ``encoder.json`` and ``vocab.bpe``. Needs PyTorch and tiktoken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import blutensor as bt
from blutrain.benchmark import entry, save
from blutrain.benchmark.peer_torch import GPT as TorchGPT
from blutrain.benchmark.works import TrainWork
from blutrain.config import Config, ScheduleConfig
from blutrain.data.loader import Loader
from blutrain.data.shards import ShardWriter
from blutrain.evaluation import evaluation_loader
from blutrain.recorder import Recorder
from blutrain.schedule import learning_rates
from blutrain.trainer import Trainer

BATCH, CONTEXT = 16, 1024
CHECKPOINTS = 25
VAL_BATCHES = 8
LEARNING_RATE = 1e-4
SUFFIXES = (".py", ".txt", ".rst", ".md", ".h")
BACKENDS = {"tf32": (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH),
            "bf16": (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--precision", nargs="+", choices=list(BACKENDS), default=list(BACKENDS))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--learning-rate", type=float, nargs="+", default=[LEARNING_RATE])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--curves", type=Path, help="draw these instead of training")
    arguments = parser.parse_args()
    if arguments.curves:
        draw(json.loads(arguments.curves.read_text()), arguments.plot)
        return
    if not (arguments.text and arguments.vocabulary):
        parser.error("expected --text and --vocabulary, or --curves")
    entries = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        needed = arguments.steps * BATCH * CONTEXT + 1
        tokenize(arguments.text, arguments.vocabulary, Path(folder), needed, VAL_BATCHES * BATCH * CONTEXT + 1)
        for precision, learning_rate in itertools.product(arguments.precision, arguments.learning_rate):
            measured = compare(run_config(folder, precision, arguments.steps, learning_rate), Path(folder))
            entries = [kept for kept in entries if kept["work"] != measured["work"]] + [measured]
            if arguments.out:
                save(entries, arguments.out)
    if arguments.plot:
        draw(entries, arguments.plot)


def compare(config: Config, folder: Path) -> dict[str, Any]:
    """The entry of one precision and rate: gaps, and all losses."""
    precision, learning_rate = config.train.precision, config.schedule.learning_rate
    losses, initial = train_ours(config, folder / f"run-{precision}-{learning_rate:g}")
    runs = {"ours": losses}
    for backend in BACKENDS[precision]:
        name = f"torch {backend.name.lower()}"
        runs[name] = train_torch(config, initial, backend)
        print(precision, name, [round(loss, 4) for loss in runs[name]], flush=True)
    ours, first, second = (np.array(values) for values in runs.values())
    gap, peers = float(np.abs(ours - first).max()), float(np.abs(first - second).max())
    print(f"{precision}: largest gap {gap:.2e}, between the peers {peers:.2e}, ratio {gap / peers:.2f}", flush=True)
    rate = "" if learning_rate == LEARNING_RATE else f".lr{learning_rate:g}"
    work = f"fidelity.124M.{precision}{rate}.max_val_loss_gap"
    peer = f"torch {torch.__version__}, two attention backends"
    steps = config.train.steps
    return entry(work, gap, peers, peer, "lower", gpu=True) | {
        "steps": steps,
        "tokens": steps * BATCH * CONTEXT,
        "losses": runs,
    }


def tokenize(text: Path, vocabulary: Path, folder: Path, train: int, val: int) -> None:
    """Write so many tokens of the texts, in the order of a fixed shuffle of the files, as shards."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    ranks = data_gym_to_mergeable_bpe_ranks(str(vocabulary / "vocab.bpe"), str(vocabulary / "encoder.json"))
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )
    files = sorted(path for path in text.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    order = np.random.default_rng(0).permutation(len(files))
    have, parts = 0, []
    for begin in range(0, len(order), 256):
        texts = [files[i].read_text(encoding="utf-8", errors="ignore") for i in order[begin : begin + 256]]
        for tokens in encoding.encode_ordinary_batch(texts, num_threads=16):
            parts.append(np.array([50256, *tokens], np.uint16))
            have += len(parts[-1])
        if have >= train + val:
            break
    else:
        sys.exit(f"[fidelity] expected {train + val:,} tokens of text in {text}, got {have:,}: name a larger folder")
    stream = np.concatenate(parts)
    print(f"tokens: {train:,} to train on, {val:,} to validate, of {have:,}", flush=True)
    for split, part in (("val", stream[:val]), ("train", stream[val : val + train])):
        with ShardWriter(folder, split, len(part)) as writer:
            writer.append(part)


def run_config(folder: str, precision: str, steps: int, learning_rate: float) -> Config:
    """GPT-2 124M with a warm-up and a cosine, its tokens in order."""
    base = TrainWork("124M", CONTEXT, BATCH, precision, "cuda").config(folder, 0)
    schedule = ScheduleConfig(kind="cosine", learning_rate=learning_rate, warmup_steps=50)
    train = replace(base.train, steps=steps)
    data = replace(base.data, shuffle=False, tokenizer="gpt2")
    model = replace(base.model, vocab_size=base.model.padded_vocab_size)  # the peer's softmax has the padded ids too
    return replace(base, model=model, schedule=schedule, train=train, data=data)


def chunks(steps: int) -> Iterator[tuple[int, int]]:
    """First step and number of steps between validations."""
    edges = [round(i * steps / CHECKPOINTS) for i in range(CHECKPOINTS + 1)]
    yield from ((a, b - a) for a, b in itertools.pairwise(edges))


def train_ours(config: Config, folder: Path) -> tuple[list[float], dict[str, np.ndarray[Any, Any]]]:
    """Validation losses, and the float32 weights that the run began with."""
    folder.mkdir()
    trainer = Trainer(config, Recorder(folder))
    masters = trainer.optimizer.state_dict()
    initial = {
        name: np.array(masters.get(f"master.{name}", p.detach()).cpu().numpy())
        for name, p in trainer.model.named_parameters()
    }
    losses = []
    for first, count in chunks(config.train.steps):
        rates = learning_rates(config.schedule, config.train.steps, first, count)
        trainer.training_step.run(trainer.loader, rates)
        losses.append(trainer.evaluate())
    print(config.train.precision, "ours", [round(loss, 4) for loss in losses], flush=True)
    del trainer
    bt.cuda.synchronize()
    return losses, initial


def train_torch(config: Config, initial: dict[str, np.ndarray[Any, Any]], backend: SDPBackend) -> list[float]:
    """Validation losses of the same run in PyTorch."""
    precision, optimizer = config.train.precision, config.optimizer
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    shape = config.model
    model = TorchGPT(shape.layers, shape.heads, shape.channels, shape.context, shape.padded_vocab_size).cuda()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()})
    named = list(model.named_parameters())
    groups = [
        {"params": [p for _, p in named if p.dim() >= 2], "weight_decay": optimizer.weight_decay},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.eps, fused=True)
    rates = learning_rates(config.schedule, config.train.steps)
    folder = Path(config.data.path)
    loader = Loader(sorted(folder.glob("train_*.bin")), BATCH, CONTEXT, vocab_size=shape.vocab_size, shuffle=False)
    autocast = torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16")
    losses = []
    with sdpa_kernel(backend):
        for first, count in chunks(config.train.steps):
            for step in range(first, first + count):
                tokens, targets = (torch.from_numpy(array).cuda().long() for array in loader.next_batch())
                for group in adamw.param_groups:
                    group["lr"] = float(rates[step])
                with autocast:
                    loss = model(tokens, targets)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.clip_norm)
                adamw.step()
                adamw.zero_grad(set_to_none=True)
            losses.append(validate(model, config, autocast))
    return losses


def validate(model: Any, config: Config, autocast: Any) -> float:
    """Mean loss over the validation tokens."""
    from blutrain.data.dataset import open_dataset

    loader = evaluation_loader(config, open_dataset(config.data.path))
    total = count = 0.0
    with torch.no_grad(), autocast:
        for _ in range(loader.num_batches):
            tokens, targets = (torch.from_numpy(array).cuda().long() for array in loader.next_batch())
            valid = int((targets >= 0).sum())
            total += model(tokens, targets).item() * valid
            count += valid
    return total / count


def draw(entries: list[dict[str, Any]], path: Path) -> None:
    """Losses above, gaps to the first peer below; a column for each entry."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(entries), 6), layout="constrained")
    axes = figure.subplots(2, len(entries), squeeze=False)
    for column, measured in enumerate(entries):
        runs = measured["losses"]
        x = [first + count for first, count in chunks(measured["steps"])]
        reference = np.array(list(runs.values())[1])
        for name, losses in runs.items():
            axes[0, column].plot(x, losses, label=name)
            axes[1, column].semilogy(x, np.maximum(np.abs(np.array(losses) - reference), 1e-7), label=name)
        axes[0, column].set(title=measured["work"].removesuffix(".max_val_loss_gap"), ylabel="validation loss")
        axes[1, column].set(xlabel="step", ylabel="gap to the first peer")
        axes[0, column].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
