"""What a person is told of a run before it starts and when it ends, as rows of a name and a text."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

import blutensor as bt
from blutrain.config import Config
from blutrain.config_io import config_to_dict
from blutrain.console import Rows, format_duration
from blutrain.data.dataset import Dataset
from blutrain.devices import RunDevice
from blutrain.flops import MemoryEstimate, flops_per_token, model_flop_utilisation, num_parameters
from blutrain.installation import available_cpus, processor_name
from blutrain.memory import machine_memory
from blutrain.run_folder import RunPaths

_WIDTH = 96
"""Columns of a configuration's lines."""
_MEBIBYTE = 2**20


def configuration(config: Config) -> Rows:
    """The resolved configuration, a row per section, with values as in TOML."""
    return [
        (section, _filled([f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]))
        for section, values in config_to_dict(config).items()
    ]


def plan(config: Config, dataset: Dataset, device: RunDevice, estimate: MemoryEstimate) -> Rows:
    """What is about to run: model, data, batch, schedule, device, arithmetic, memory."""
    train, model, schedule = config.train, config.model, config.schedule
    tokens = {split: dataset.tokens.get(split, 0) for split in ("train", "val")}
    shards = sum(len(paths) for paths in dataset.shards.values())
    steps = f"{tokens['train'] / train.global_batch_tokens:,.1f} steps an epoch"
    peak = train.peak_tflops or device.peak_tflops()
    mfu = f"peak {peak:g} TFLOP/s" if peak else "MFU n/a (set train.peak_tflops)"
    return [
        ("run", os.path.abspath(config.run.folder)),
        (
            "model",
            f"{num_parameters(model):,} parameters: {model.layers} layers, {model.heads} heads, {model.channels} "
            f"channels, context {model.context}, vocabulary {model.vocab_size:,}",
        ),
        (
            "data",
            f"{dataset.path}: {tokens['train']:,} training and {tokens['val']:,} validation tokens in {shards} "
            f"shard(s), tokenizer {config.data.tokenizer}, {steps}",
        ),
        (
            "batch",
            f"{train.global_batch_tokens:,} tokens = {config.accumulation_steps()} x {train.micro_batch} sequences of "
            f"{model.context}; {train.steps:,} steps = {train.steps * train.global_batch_tokens:,} tokens",
        ),
        (
            "schedule",
            f"{schedule.kind}, learning rate {schedule.learning_rate:g} after {schedule.warmup_steps:,} warm-up steps",
        ),
        ("device", _device(config, device)),
        ("compute", f"{flops_per_token(model) / 1e6:,.1f} MFLOP a token in {train.precision}; {mfu}"),
        ("memory", f"estimated peak {estimate}"),
    ]


@dataclass
class Tally:
    """What this process has seen of a run, for the overview at its end."""

    first_step: int = 0
    """Steps that were done before."""
    first_loss: float = math.nan
    """Loss of the first step here."""
    best_val_loss: float = math.inf
    best_val_step: int = 0
    tokens: int = 0
    """Tokens of captured steps, which is what speed is told of: recording is no part of it."""
    seconds: float = 0.0
    """Time of those."""
    places: tuple[tuple[str, str], ...] = ()
    """Where loggers have put the run."""

    def add_steps(self, step: int, losses: list[float], tokens: int, seconds: float, *, captured: bool) -> None:
        """Take note of steps that are done, the last of which is ``step``."""
        if math.isnan(self.first_loss) and losses:
            self.first_step = step - len(losses)
            self.first_loss = losses[0]
        if captured:
            self.tokens += tokens
            self.seconds += seconds

    def add_validation(self, step: int, loss: float) -> None:
        """Take note of a validation."""
        if loss < self.best_val_loss:
            self.best_val_loss, self.best_val_step = loss, step

    @property
    def tokens_per_second(self) -> float | None:
        """Speed of captured steps; None when there were none."""
        return self.tokens / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Outcome:
    """How a run, or this process's part of it, ended."""

    status: str
    """``finished``, ``interrupted`` or ``failed``."""
    why: str = ""
    """The error of one that failed."""
    step: int = 0
    loss: float = math.nan
    val_loss: float | None = None
    skipped_steps: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0
    """Time of this process."""
    tokens_per_second: float | None = None
    mfu: float | None = None
    peak_memory_mib: float = 0.0
    arena_mib: float | None = None
    """Arena of the captured step; None where nothing was captured."""
    checkpoint: Path | None = None


def outcome_rows(config: Config, outcome: Outcome, tally: Tally, estimate: MemoryEstimate) -> Rows:
    """How the run ended: result, losses, speed, memory, where things lie, what to do next."""
    paths = RunPaths(os.path.abspath(config.run.folder))
    why = f": {outcome.why}" if outcome.why else ""
    arena = "" if outcome.arena_mib is None else f", arena of the step {outcome.arena_mib:,.1f} MiB"
    rows = [
        ("result", f"{outcome.status} at step {outcome.step:,} of {config.train.steps:,}{why}"),
        ("time", f"{format_duration(outcome.seconds)} for {outcome.step - tally.first_step:,} steps"),
        ("loss", _losses(outcome, tally)),
        ("speed", _speed(config, outcome)),
        (
            "memory",
            f"peak {outcome.peak_memory_mib:,.0f} MiB (estimated {estimate.total / _MEBIBYTE:,.0f} MiB){arena}",
        ),
        ("folder", str(paths.path)),
        ("checkpoint", "none" if outcome.checkpoint is None else os.path.abspath(outcome.checkpoint)),
    ]
    kept = [path.name for path in (paths.metrics, paths.samples, paths.log, paths.config) if path.exists()]
    rows.append(("files", ", ".join(kept) or "none"))
    rows += tally.places
    if outcome.status != "finished" and outcome.checkpoint is not None:
        rows.append(("next", f"blutrain train {config.run.folder} --resume"))
    elif outcome.status == "finished":
        rows.append(("next", f"blutrain plot {config.run.folder}; blutrain generate {config.run.folder} --prompt TEXT"))
    return rows


def known_mfu(config: Config, tokens_per_second: float | None, device: RunDevice) -> float | None:
    """MFU of a speed, None where speed or peak are not known."""
    if tokens_per_second is None:
        return None
    return model_flop_utilisation(config, tokens_per_second, device.peak_tflops())


def facts(outcome: Outcome) -> dict[str, object]:
    """The same as values for ``log.jsonl``."""
    values = dataclasses.asdict(outcome)
    values["checkpoint"] = None if outcome.checkpoint is None else str(outcome.checkpoint)
    del values["status"], values["step"]
    return values if outcome.why else {key: value for key, value in values.items() if key != "why"}


def _device(config: Config, device: RunDevice) -> str:
    if device.is_cuda:
        return f"{device.describe()}, {device.total_memory() / 2**30:,.1f} GiB"
    threads = config.train.threads or available_cpus()
    memory = machine_memory()
    room = "" if memory is None else f", {memory / 2**30:,.1f} GiB"
    return f"cpu: {processor_name()}, {bt.isa()}, {threads} thread(s){room}"


def _losses(outcome: Outcome, tally: Tally) -> str:
    training = f"training {tally.first_loss:.4f} -> {outcome.loss:.4f}"
    if outcome.val_loss is not None:
        training += f", validation {outcome.val_loss:.4f}"
        if tally.best_val_step and tally.best_val_loss < outcome.val_loss:
            training += f" (best {tally.best_val_loss:.4f} at step {tally.best_val_step:,})"
    return training + (f", {outcome.skipped_steps:,} steps skipped" if outcome.skipped_steps else "")


def _speed(config: Config, outcome: Outcome) -> str:
    if outcome.tokens_per_second is None:
        return "n/a: no captured step was done"
    mfu = "n/a (set train.peak_tflops)" if outcome.mfu is None else f"{100 * outcome.mfu:.1f}%"
    return f"{outcome.tokens_per_second:,.0f} tokens/s, MFU {mfu}, {outcome.tokens_seen:,} tokens in all"


def _filled(pairs: list[str]) -> str:
    """Pairs in lines, none of them broken in itself."""
    whole = "  ".join(pair.replace(" ", "\0") for pair in pairs)
    lines = textwrap.wrap(whole, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")
