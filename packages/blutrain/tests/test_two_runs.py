"""Two runs in one process, one after the other and at the same time, have the bits of runs that are alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import blutensor as bt
from blutrain.checkpoint import CheckpointStore
from blutrain.config_io import load_config
from blutrain.data import prepare
from blutrain.launch import train
from blutrain.metrics import RunFolderError

TEXT = "".join(f"{n}: the quick brown fox jumps over the lazy dog {n * n}.\n" for n in range(150))
SETTINGS = (
    "model.layers=2", "model.heads=2", "model.channels=16", "model.context=16", "model.dropout=0.1",
    "train.micro_batch=4", "train.global_batch_tokens=128", "train.steps=40", "train.eval_every=10",
    "train.sample_every=20", "train.sample_tokens=8", "train.checkpoint_every=15", "train.threads=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text(TEXT)
    return prepare([folder / "text"], folder / "tokens", shard_tokens=3000).path


def weights(data: Path, folder: Path, seed: int) -> dict[str, bytes]:
    """Everything that a run of this seed ends with."""
    train(load_config(settings=[*SETTINGS, f"data.path={data}", f"run.folder={folder}", f"train.seed={seed}"]))
    found = CheckpointStore(folder / "checkpoints").load_latest()
    assert found is not None
    return {name: array.tobytes() for name, array in found[1].items()}


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    return [weights(data, tmp_path_factory.mktemp("alone") / "run", seed) for seed in (1, 2)]


def test_one_after_the_other(data: Path, tmp_path: Path, alone: list[dict[str, bytes]]) -> None:
    bt.manual_seed(7)
    before = bt.random.normal((3,)).tolist()
    bt.manual_seed(7)
    assert [weights(data, tmp_path / str(seed), seed) for seed in (2, 1)] == alone[::-1]
    assert bt.random.normal((3,)).tolist() == before  # a run draws nothing from the process's generator


def test_at_the_same_time(data: Path, tmp_path: Path, alone: list[dict[str, bytes]]) -> None:
    gate = threading.Barrier(2)

    def work(seed: int) -> dict[str, bytes]:
        gate.wait(60)
        return weights(data, tmp_path / str(seed), seed)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (1, 2), timeout=300)) == alone


def test_not_in_one_folder(data: Path, tmp_path: Path) -> None:
    gate = threading.Barrier(2)

    def work(seed: int) -> str:
        gate.wait(60)
        try:
            weights(data, tmp_path / "run", seed)
            return "done"
        except RunFolderError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        results = sorted(pool.map(work, (1, 2), timeout=300), key=len)
    assert results[0] == "done"
    assert "in use" in results[1] or "holds a run" in results[1]
    assert np.isfinite(bt.ones(2).sum().item())
