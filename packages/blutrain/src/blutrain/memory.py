"""Whether a run fits into memory, judged before anything is allocated."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from blutrain.config import Config
from blutrain.data.dataset import SPLITS, Dataset
from blutrain.data.shards import token_dtype
from blutrain.devices import RunDevice, resident_bytes
from blutrain.errors import NotEnoughMemoryError
from blutrain.flops import MemoryEstimate, estimate_memory

_GIB = 2**30
_CERTAIN = 0.9
"""Share of the estimate of the activations that a run takes for certain; the estimate is within a tenth."""
_FAULT_BYTES = 2**16
"""What the system maps around a place of a file that is read for the first time."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(
    config: Config, device: RunDevice, dataset: Dataset | None = None, libraries: int | None = None
) -> MemoryEstimate:
    """Compare the estimate of a run's peak with the memory limit and with the memory of the machine or the GPU.

    Args:
        config: a possible configuration.
        device: where it is to run.
        dataset: its data, of which the estimate has the part that stays in memory; without it, nothing of them.
        libraries: the process's ``resident_bytes`` before its tokenizer was loaded, which has a part of its own; by
            default what they are now.

    Returns:
        The estimate.

    Raises:
        NotEnoughMemoryError: it does not fit for certain; the message says what to lower.
    """
    libraries = resident_bytes() if libraries is None else libraries
    more = {} if libraries is None else {"libraries": libraries}
    estimate = estimate_memory(config, cuda=device.is_cuda, **more)
    tensors = estimate.states + int(_CERTAIN * estimate.activations)
    limit = int(config.train.memory_limit_gib * _GIB)
    if limit and tensors > limit:
        raise _too_large(config, estimate, limit, f"train.memory_limit_gib = {config.train.memory_limit_gib:g}")
    there = device.total_memory() if device.is_cuda else machine_memory()
    if there is not None and tensors + estimate.snapshot + estimate.process > there:
        whose = device.name if device.is_cuda else "this machine"
        raise _too_large(config, estimate, there, f"{whose}'s {there / _GIB:,.1f} GiB")
    if dataset is None or device.is_cuda:
        return estimate
    mapped = mapped_bytes(config, dataset)
    return replace(estimate, mapped=mapped if there is None else min(mapped, max(there - estimate.total, 0)))


def mapped_bytes(config: Config, dataset: Dataset) -> int:
    """How much of its shards a run has in memory at its end, on a machine with room for it.

    Args:
        config: of the run.
        dataset: its data.

    Returns:
        Bytes. Windows lie at random in the training shards; validation reads its own from the beginning.
    """
    train, token = config.train, token_dtype(config.model.vocab_size).itemsize
    window = token * config.model.context
    size = {split: token * dataset.tokens.get(split, 0) for split in SPLITS}
    touched = train.steps * (train.global_batch_tokens // config.model.context) * (window + _FAULT_BYTES)
    mapped = -size["train"] * math.expm1(-touched / max(size["train"], 1))
    if train.eval_every:
        windows = train.eval_batches * train.micro_batch
        mapped += min(size["val"], windows * window) if windows else size["val"]
    return int(mapped)


def machine_memory() -> int | None:
    """Bytes of memory that this process can have: the machine's, or its control group's; None when not known."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdigit() and int(text):
            found = min(found, int(text))
    return found


def what_to_lower(config: Config) -> str:
    """Advice for a run whose weights and moments fit, and its activations do not."""
    if config.train.micro_batch > 1:
        return f"lower train.micro_batch, now {config.train.micro_batch}"
    return f"lower model.context, now {config.model.context}, or the size of the model"


def smaller_model(config: Config) -> str:
    """Advice for a run whose weights and moments alone do not fit."""
    model = config.model
    rows = f"model.pad_vocab_to, now {model.pad_vocab_to}"
    if model.padded_vocab_size <= 2 * model.vocab_size:
        rows = f"model.vocab_size, now {model.vocab_size}"
    return f"lower model.layers, now {model.layers}, model.channels, now {model.channels}, or {rows}"


def _too_large(config: Config, estimate: MemoryEstimate, available: int, what: str) -> NotEnoughMemoryError:
    alone = estimate.states > available
    advice = smaller_model(config) if alone else what_to_lower(config)
    part = f"; {estimate.state_names} alone do not fit" if alone else ""
    return NotEnoughMemoryError(
        f"[memory] expected a run that fits {what}, got an estimated peak of {estimate}{part}: {advice}"
    )
