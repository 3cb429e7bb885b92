"""A step of 4096 micro-batches, and steps of many, take no more memory than the first ones."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import pytest

import blualloc
import blutensor as bt
from blutrain.config_io import load_config
from blutrain.data import prepare
from blutrain.launch import open_run
from blutrain.schedule import learning_rates

ACCUMULATION = 4096
RESIDENT_BYTES = 2 << 20
"""Room for the fragments of the heap; 512 bytes lost for each micro-batch are as much."""


def measured() -> tuple[int, int, int]:
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return blualloc.stats().live_bytes, bt.graph_stats()["live_nodes"], resident


@pytest.mark.slow
def test_accumulation_is_flat(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a line of text, and another one\n" * 3000)
    data = prepare([tmp_path / "text"], tmp_path / "tokens").path
    settings = (
        "model.layers=1", "model.heads=1", "model.channels=16", "model.context=8", "train.micro_batch=1",
        f"train.global_batch_tokens={8 * ACCUMULATION}", "train.steps=10", "train.eval_every=0", "train.sample_every=0",
        "train.checkpoint_every=0", f"data.path={data}", f"run.folder={tmp_path / 'run'}",
    )  # fmt: skip
    config = load_config(settings=settings)
    with open_run(config) as trainer:
        rates = learning_rates(config.schedule, config.train.steps, 0, config.train.steps)
        for _ in range(3):  # recording, and one step of the recorded programs
            trainer.training_step.run(trainer.loader, rates[:1])
        live, nodes, resident = measured()
        metrics = trainer.training_step.run(trainer.loader, rates[:3])
        after = measured()
    assert np.isfinite(metrics).all()
    assert after[:2] == (live, nodes)
    assert after[2] - resident <= RESIDENT_BYTES
