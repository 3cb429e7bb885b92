"""Shards are compared with the digests of their manifest before a run trains on them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from blutrain.config_io import load_config
from blutrain.data import Dataset, open_dataset, prepare, verification
from blutrain.data.verification import RECORD, verify_shards
from blutrain.errors import ShardError
from blutrain.launch import train

TEXT = "".join(f"{n}: a line of text\n" for n in range(400))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    (tmp_path / "text").write_text(TEXT)
    return prepare(tmp_path / "text", tmp_path / "data", shard_tokens=2000)


def flip(path: Path, *, keep_times: bool = False) -> None:
    """Another byte in the middle of a file."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with open(path, "r+b") as file:
        file.write(content)
    if keep_times:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_fresh_run_does_not_train_on_a_damaged_shard(dataset: Dataset, tmp_path: Path) -> None:
    settings = [
        f"data.path={dataset.path}", f"run.folder={tmp_path / 'run'}", "model.layers=1", "model.channels=8",
        "model.heads=1", "model.context=8", "train.micro_batch=2", "train.global_batch_tokens=16", "train.steps=1",
        "train.eval_every=0", "train.sample_every=0",
    ]  # fmt: skip
    damaged = dataset.paths("train")[1]
    flip(damaged, keep_times=True)  # as a disk does
    with pytest.raises(ShardError, match=f"{damaged}: expected SHA-256 .*, got .*damaged: prepare it again"):
        train(load_config(settings=settings))
    assert not (tmp_path / "run").exists()
    flip(damaged)
    assert train(load_config(settings=settings)).step == 1
    assert not (dataset.path / RECORD).exists()  # so little is read every time


def test_much_is_read_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_ALWAYS_READ", 1000)
    told: list[str] = []
    verify_shards(dataset, told.append)
    shards = [*dataset.paths("train"), *dataset.paths("val")]
    assert len(shards) > 3
    assert told == [told[0]]
    assert told[0].startswith(f"comparing {len(shards)} shard(s) (0.0 GB) of {dataset.path}")
    verify_shards(open_dataset(dataset.path), told.append)
    assert len(told) == 1
    # What was written since is read again, and nothing else.
    flip(shards[1])
    flip(shards[1])
    verify_shards(dataset, told.append)
    assert told[1].startswith("comparing 1 shard(s)")
    flip(shards[2])
    with pytest.raises(ShardError, match=str(shards[2])):
        verify_shards(dataset, told.append)
    # A record that says something else is no record.
    flip(shards[2])
    for content in (
        "[]",
        "{",
        json.dumps({shards[0].name: 3}),
        json.dumps({path.name: ["x", 1, 2, 3] for path in shards}),
    ):
        (dataset.path / RECORD).write_text(content)
        verify_shards(dataset, told.append)
        assert told[-1].startswith(f"comparing {len(shards)} shard(s)")


def test_where_nothing_can_be_remembered(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_ALWAYS_READ", 1000)
    monkeypatch.setattr(os, "access", lambda *_: False)
    told: list[str] = []
    verify_shards(dataset, told.append)
    assert "are not compared with the digests of the manifest: the folder can not be written to" in told[0]
    assert not (dataset.path / RECORD).exists()


def test_foreign_shards_have_no_digests(dataset: Dataset) -> None:
    (dataset.path / "manifest.json").unlink()
    verify_shards(open_dataset(dataset.path), pytest.fail)
