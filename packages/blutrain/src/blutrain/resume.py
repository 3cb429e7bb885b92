"""What may change when a run is continued: nothing of its model and data, and the rest not unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blutrain.config import Config
from blutrain.config_io import config_to_dict
from blutrain.data.dataset import Dataset
from blutrain.data.tokenizer import TokenizerIdentity
from blutrain.errors import ConfigError, DataError, Problem

_FIXED_SECTIONS = ("model",)
_FIXED = {"data.shuffle": "data in another order", "train.seed": "another seed"}
"""What may not change once a step was done, and what it would be to continue with."""
_NOTICED_ALTHOUGH_MODEL = ("model.dropout",)
_FREE = (
    "data.path", "data.tokenizer", "train.device", "train.threads", "train.memory_limit_gib", "train.log_every",
    "train.eval_every", "train.eval_batches", "train.checkpoint_every", "train.keep_checkpoints",
    "train.background_checkpoints", "train.sample_every", "train.sample_tokens", "train.sample_prompt",
    "train.sample_temperature", "train.max_skipped_steps", "train.peak_tflops", "run.folder", "run.name",
    "run.loggers", "run.project",
)  # fmt: skip
"""What changes no loss."""


def check_resume(config: Config, dataset: Dataset, meta: Mapping[str, Any]) -> list[str]:
    """Compare a run with the checkpoint that it is to continue from.

    Args:
        config: of the run.
        dataset: its data.
        meta: the checkpoint's metadata.

    Returns:
        A line for every change that alters the training from here on, for people.

    Raises:
        ConfigError: the checkpoint is of another model, of another seed or order of the data, or of a later step than
            the last.
        DataError: the data are not those of the checkpoint.
    """
    step = int(meta["step"])
    stored = meta.get("config")
    fixed_keys = _FIXED if step else {}  # an imported model has seen no data of ours
    changes = _changes(stored if isinstance(stored, Mapping) else {}, config_to_dict(config))
    problems = []
    for key, (before, now) in changes.items():
        fixed = key.partition(".")[0] in _FIXED_SECTIONS and key not in _NOTICED_ALTHOUGH_MODEL
        if fixed or key in fixed_keys:
            what = "another model" if fixed else fixed_keys[key]
            message = f"expected {before!r}, as in the checkpoint of step {step}, got {now!r}: a run can not be resumed"
            problems.append(Problem(key, f"{message} with {what}; take the old value or another run.folder"))
    before, now = meta.get("tokenizer"), dataset.tokenizer
    if isinstance(before, Mapping) and now is not None and before != now.to_dict():
        message = f"expected the tokenizer of the checkpoint of step {step}, {TokenizerIdentity.from_dict(before)}, got"
        problems.append(Problem("data.tokenizer", f"{message} {now}; set data.path to its data, or another run.folder"))
    elif step and (before is None or now is None) and "data.tokenizer" in changes:
        old, new = changes["data.tokenizer"]
        message = f"expected {old!r}, as in the checkpoint of step {step}, got {new!r}: a run can not be resumed"
        problems.append(Problem("data.tokenizer", f"{message} with it; take the old value or another run.folder"))
    if config.train.steps < step:
        message = f"expected at least {step}, the step that the run has reached, got {config.train.steps}"
        problems.append(Problem("train.steps", message))
    if problems:
        raise ConfigError(problems)
    _check_data(dataset, meta.get("data"), step)
    return [
        f"notice: {key} was {before!r} until step {step} and is {now!r} from here on"
        for key, (before, now) in changes.items()
        if step and key not in _FREE
    ]


def _changes(stored: Mapping[str, Any], current: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """What differs, by dotted key: value before and now. Keys that the checkpoint lacks are younger than it."""
    return {
        f"{section}.{name}": (stored[section][name], value)
        for section, values in current.items()
        for name, value in values.items()
        if isinstance(stored.get(section), Mapping) and stored[section].get(name, value) != value
    }


def _check_data(dataset: Dataset, expected: Any, step: int) -> None:
    found = dataset.digest()
    if isinstance(expected, str) and found is not None and found != expected:
        message = f"[data] expected the training data of the checkpoint of step {step} (digest {expected[:12]}), got"
        raise DataError(f"{message} other data in {dataset.path} ({found[:12]}): set data.path, or another run.folder")
