"""Measures our training step in a process of its own: the very step that ``blutrain train`` runs.

    python -m blutrain.benchmark.worker train.nano.fp32.T128.B16.cpu --threads 2 --steps 12 --warmup 5

The loader reads shards of random tokens, gradients are clipped, AdamW updates; validation, samples and checkpoints are
off. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import blualloc
from blutrain.benchmark.works import TRAIN_WORKS, TrainWork
from blutrain.config import Config, ModelConfig
from blutrain.data.shards import ShardWriter, token_dtype
from blutrain.devices import RunDevice


def main() -> None:
    """Command line of the worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=[*(work.name for work in TRAIN_WORKS), "host"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.work == "host":
        result = measure_host_time(arguments.threads)
    else:
        work = next(work for work in TRAIN_WORKS if work.name == arguments.work)
        result = measure(work, arguments.threads, arguments.steps, arguments.warmup)
    print(json.dumps(result))


def measure(work: TrainWork, threads: int, steps: int, warmup: int) -> dict[str, Any]:
    """Median speed of steps, peak memory, and how well the arena is packed.

    On a CPU single steps are timed, and memory is the resident set of this process. On a GPU twelve steps at a
    time are timed in the native loop (training runs half a second of them), and memory is what our pool reserved
    at most during the timed steps.

    Args:
        work: what to train.
        threads: CPU threads.
        steps: timed steps.
        warmup: steps before them; the first two record.
    """
    at_once = min(12, steps) if work.device == "cuda" else 1
    with tempfile.TemporaryDirectory() as folder:
        config = work.config(folder, threads)
        step, loader, device = _training_step(config, Path(folder))
        step.run(loader, np.full(2, 1e-4))
        blualloc.end_of_step(0, device.name)
        step.run(loader, np.full(max(warmup - 2, 1), 1e-4))
        blualloc.reset_peak(device.name)
        seconds, host = [], []
        for _ in range(max(steps // at_once, 1)):
            begin = time.perf_counter()
            metrics = step.run(loader, np.full(at_once, 1e-4))
            seconds.append((time.perf_counter() - begin) / at_once)
            host.append(step.family.last_host_seconds / at_once)
        pool = blualloc.stats(device.name)
        memory = [function.program.memory for function, _ in step.programs().values()]
    return {
        "host_us_per_step": statistics.median(host) * 1e6,
        "tokens_per_s": config.train.global_batch_tokens / statistics.median(seconds),
        "peak_gib": device.peak_memory_mib() / 1024,
        "loss": float(metrics[-1, 0]),
        "arena_bytes": max(entry["arena_bytes"] for entry in memory),
        "peak_live_bytes": max(entry["peak_live_bytes"] for entry in memory),
        "reserved_over_live": pool.peak_reserved_bytes / max(pool.peak_live_bytes, 1),
    }


def measure_host_time(threads: int, steps: int = 2000) -> dict[str, Any]:
    """What a captured step costs beside its operators, on a model so tiny that it is not lost in their time.

    ``host_us_per_step`` is the loop's own time in a native run: feeding, metrics, asking for signals. ``call_us`` is
    what the interpreter adds to a run of one step, which ``train`` only does where a step takes half a second or more.

    Args:
        threads: CPU threads.
        steps: of either kind.
    """
    model = ModelConfig(layers=1, heads=1, channels=8, context=8, vocab_size=64)
    work = TrainWork("nano", 8, 1)
    with tempfile.TemporaryDirectory() as folder:
        base = work.config(folder, threads)
        config = Config(model=model, data=base.data, optimizer=base.optimizer, schedule=base.schedule, train=base.train)
        step, loader, _ = _training_step(config, Path(folder))
        rate = np.full(1, 1e-4)
        step.run(loader, np.full(100, 1e-4))
        single, native, host = [], [], []
        for _ in range(5):  # interleaved, so that a change of the machine's speed meets both
            begin = time.perf_counter()
            for _ in range(steps // 5):
                step.run(loader, rate)
            single.append((time.perf_counter() - begin) / (steps // 5))
            begin = time.perf_counter()
            step.run(loader, np.full(steps // 5, 1e-4))
            native.append((time.perf_counter() - begin) / (steps // 5))
            host.append(step.family.last_host_seconds / (steps // 5))
    one, many = statistics.median(single), statistics.median(native)
    return {"host_us_per_step": statistics.median(host) * 1e6, "call_us": (one - many) * 1e6}


def _training_step(config: Config, folder: Path) -> tuple[Any, Any, RunDevice]:
    """The step, loader and device of a trainer on random tokens."""
    from blutrain.recorder import Recorder
    from blutrain.trainer import Trainer

    tokens = 64 * config.train.global_batch_tokens + 1
    generator = np.random.default_rng(0)
    with ShardWriter(folder, "train", tokens, dtype=token_dtype(config.model.vocab_size)) as writer:
        writer.append(generator.integers(1, config.model.vocab_size, tokens))
    trainer = Trainer(config, Recorder(folder / "run"))  # between steps nothing is recorded
    return trainer.training_step, trainer.loader, trainer.device


if __name__ == "__main__":
    main()
