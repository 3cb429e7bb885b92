"""Runs from end to end: losses, splits, resuming, events, failures."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

import blutensor as bt
from blutrain.checkpoint import CheckpointStore
from blutrain.config import Config
from blutrain.config_io import load_config
from blutrain.data import prepare
from blutrain.errors import ConfigError, DataError, NonFiniteError, ShardError
from blutrain.flops import estimate_memory
from blutrain.launch import train
from blutrain.metrics import read_metrics
from blutrain.model import GPT
from blutrain.saver import Saver

TEXT = "".join(f"{n}: the quick brown fox jumps over the lazy dog {n * n}.\n" for n in range(150))
SETTINGS = (
    "model.layers=2", "model.heads=2", "model.channels=16", "model.context=16", "train.micro_batch=4",
    "train.global_batch_tokens=128", "train.steps=12", "train.eval_every=0", "train.sample_every=0",
    "train.checkpoint_every=0", "schedule.learning_rate=0.01", "train.threads=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text(TEXT)
    return prepare([folder / "text"], folder / "tokens", shard_tokens=3000).path


def configure(data: Path, folder: Path, *settings: str) -> Config:
    return load_config(settings=[*SETTINGS, f"data.path={data}", f"run.folder={folder}", *settings])


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in read_metrics(folder) if event["event"] == "train"]


def run(data: Path, folder: Path, *settings: str, **options: Any) -> list[float]:
    train(configure(data, folder, *settings), **options)
    return losses(folder)


def test_a_run_learns_and_leaves_what_it_should(data: Path, tmp_path: Path) -> None:
    found = run(
        data, tmp_path / "run", "train.steps=60", "train.eval_every=20", "train.checkpoint_every=20",
        "train.sample_every=30", "train.sample_tokens=20", "train.keep_checkpoints=2",
    )  # fmt: skip
    assert len(found) == 60
    assert np.mean(found[-5:]) < np.mean(found[:5]) - 0.5
    names = sorted(os.listdir(tmp_path / "run"))
    assert {"config.toml", "metrics.jsonl", "samples.txt", "checkpoints"} <= set(names)
    checkpoints = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    assert checkpoints == ["step-00000040.safetensors", "step-00000060.safetensors"]
    events = read_metrics(tmp_path / "run")
    assert [event["step"] for event in events if event["event"] == "validation"] == [20, 40, 60]
    first = events[0]
    assert {"step", "loss", "lr", "grad_norm", "tokens_per_second", "mfu", "memory_mib"} <= set(first)
    assert first["mfu"] is None
    assert load_config(tmp_path / "run" / "config.toml").train.steps == 60


def test_nothing_between_steps_changes_a_bit(data: Path, tmp_path: Path) -> None:
    plain = run(data, tmp_path / "plain", "model.dropout=0.1")
    busy = run(
        data, tmp_path / "busy", "model.dropout=0.1", "train.eval_every=1", "train.checkpoint_every=1",
        "train.sample_every=1", "train.sample_tokens=3", "train.eval_batches=2",
    )  # fmt: skip
    assert plain == busy


def test_threads_and_processes_change_no_bit(data: Path, tmp_path: Path) -> None:
    expected = run(data, tmp_path / "a", "train.threads=1")
    assert run(data, tmp_path / "b", "train.threads=2") == expected
    settings = configure(data, tmp_path / "c")
    from blutrain.config_io import save_config

    save_config(settings, tmp_path / "c.toml")
    subprocess.run([sys.executable, "-m", "blutrain", "train", str(tmp_path / "c.toml")], check=True)
    assert losses(tmp_path / "c") == expected
    assert len(set(expected)) == len(expected)


def test_addresses_change_no_bit(data: Path, tmp_path: Path) -> None:
    expected = run(data, tmp_path / "a")
    sizes = np.random.default_rng(0).integers(1, 5000, 300)
    blocks = [bt.zeros((int(size),), dtype=bt.float32) for size in sizes]
    held = blocks[::3]  # holes of every size in between
    del blocks
    assert run(data, tmp_path / "b") == expected
    assert len(held) == 100


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 8])
def test_the_split_of_a_global_batch_does_not_matter(data: Path, tmp_path: Path, micro_batch: int) -> None:
    whole = run(data, tmp_path / "whole", "train.micro_batch=8", "train.steps=3")
    split = run(data, tmp_path / "split", f"train.micro_batch={micro_batch}", "train.steps=3")
    assert split[0] == pytest.approx(whole[0], rel=1e-6)  # from the same weights
    # Adam divides by the root of tiny second moments, so later losses may differ by a few roundings more.
    assert split == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_resuming_continues_bit_for_bit(data: Path, tmp_path: Path, accumulation: int) -> None:
    settings = (
        f"train.global_batch_tokens={accumulation * 64}", "train.steps=150", "model.dropout=0.1", "train.log_every=1",
        "schedule.kind=linear",
    )  # fmt: skip
    expected = run(data, tmp_path / "whole", *settings)
    folder = tmp_path / "parts"
    config = configure(data, folder, *settings)
    for end in (1, 2, 3, 70, 71, 150):  # the end of the epoch is near step 100 / accumulation
        stop_at(config, end)
    assert losses(folder) == expected


def test_checkpoints_written_behind_the_loop_are_the_same(data: Path, tmp_path: Path) -> None:
    files = []
    for background in ("off", "on"):
        folder = tmp_path / background
        config = configure(data, folder, f"train.background_checkpoints={background}", "train.checkpoint_every=1")
        result = train(config)
        assert result.checkpoint is not None
        assert result.checkpoint.name == "step-00000012.safetensors"
        files.append(CheckpointStore(folder / "checkpoints").load(result.checkpoint)[0])
    assert all((files[0][name] == files[1][name]).all() for name in files[0])


def test_a_save_that_fails_behind_the_loop_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    saver = Saver(store, background=True)
    arrays = {"x": np.zeros(3)}
    saver.save(1, arrays, {})
    arrays["x"][:] = 1  # belongs to the caller again
    saver.wait()
    assert saver.newest == store.path_of(1)
    assert (store.load(store.path_of(1))[0]["x"] == 0).all()

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "save", full)
    saver.save(2, arrays, {})
    with pytest.raises(OSError, match="No space"):
        saver.save(3, arrays, {})
    assert saver.newest == store.path_of(1)


def stop_at(config: Config, step: int) -> None:
    """Train until a step has been done and then as Ctrl-C ends it, in this process."""
    from blutrain.launch import open_run

    with open_run(config, resume=True) as trainer:
        steps = step - trainer.progress.step
        while steps:
            count = min(steps, 7)
            trainer._advance(count)
            steps -= count
        trainer.save()
        trainer.saver.wait()


def test_a_step_that_is_not_finite_is_skipped(data: Path, tmp_path: Path) -> None:
    from blutrain.launch import open_run

    config = configure(data, tmp_path / "run", "train.max_skipped_steps=3", "train.steps=30")
    with open_run(config) as trainer:
        trainer._advance(4)
        weight = trainer.model.lnf.weight
        kept = weight.detach().numpy().copy()
        weight.detach().numpy()[0] = np.nan
        before = {name: value.numpy().copy() for name, value in trainer.model.state_dict().items()}
        trainer._advance(2)
        assert (trainer.progress.skipped_steps, trainer.progress.skipped_in_row) == (2, 2)
        after = {name: value.numpy() for name, value in trainer.model.state_dict().items()}
        assert all((before[name].view(np.int32) == after[name].view(np.int32)).all() for name in before)
        weight.detach().numpy()[:] = kept
        trainer._advance(1)
        assert (trainer.progress.skipped_steps, trainer.progress.skipped_in_row) == (2, 0)
        saved = trainer.save()
        weight.detach().numpy()[0] = np.inf
        with pytest.raises(NonFiniteError, match=r"step 10, the 3th in a row.*is intact"):
            trainer.run()
        assert trainer.store.latest() == saved
        assert trainer.sample() is None  # no error of its own


def test_bad_configurations_and_data(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(configure(data, tmp_path / "run", "model.heads=3", "model.context=100000"))
    assert {problem.key for problem in caught.value.problems} >= {"model.heads", "model.context"}
    with pytest.raises(DataError, match="blutrain prepare"):
        train(configure(tmp_path / "absent", tmp_path / "run"))
    with pytest.raises(ConfigError) as caught:  # both at once
        train(configure(tmp_path / "absent", tmp_path / "run", "model.heads=3"))
    assert {problem.key for problem in caught.value.problems} == {"model.heads", "data.path"}
    assert not (tmp_path / "run").exists()


def test_resuming_with_other_data_or_another_model(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", "train.steps=3")
    (tmp_path / "text").write_text(TEXT * 2)
    other = prepare([tmp_path / "text"], tmp_path / "tokens").path
    with pytest.raises(DataError, match="other data in"):
        train(configure(other, tmp_path / "run"), resume=True)
    with pytest.raises(ConfigError, match="another model"):
        train(configure(data, tmp_path / "run", "model.channels=32"), resume=True)
    with pytest.raises(ConfigError, match="another model"):
        train(configure(data, tmp_path / "run", "model.layers=3"), resume=True)


def test_shards_with_foreign_tokens_stop_the_run(tmp_path: Path) -> None:
    from blutrain.data import ShardWriter

    with ShardWriter(tmp_path, "train", 10**6) as writer:
        writer.append(np.full(2000, 300, np.uint16))
    with pytest.raises(ShardError, match="another tokenizer"):
        train(configure(tmp_path, tmp_path / "run"))


def test_weights_can_be_loaded_alone(data: Path, tmp_path: Path) -> None:
    from blutrain.evaluation import evaluate
    from blutrain.weights import load_model

    config = configure(data, tmp_path / "run", "train.eval_every=12", "train.eval_batches=0")
    result = train(config)
    model, loaded, step = load_model(tmp_path / "run")
    assert (loaded, step) == (config, 12)
    assert not model.training
    measured = evaluate(tmp_path / "run")
    assert measured.loss == result.val_loss
    assert measured.tokens == sum(1 for _ in range(measured.tokens))
    by_other_batches = dataclasses.replace(config, train=dataclasses.replace(config.train, micro_batch=1))
    assert by_other_batches != config
    assert evaluate(result.checkpoint or "", max_batches=1).tokens == 64
    assert bt.num_threads() == 2


def test_out_of_memory_names_what_to_lower(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import blualloc

    # Which would refuse it before.
    monkeypatch.setattr("blutrain.launch.check_memory", lambda config, *_: estimate_memory(config))
    # Less than what the process already holds after other tests would refuse everything, so the limit is just above.
    limit = (blualloc.stats().reserved_bytes + 2**20) / 2**30
    try:
        advice = r"lower model\.layers, now 8, model\.channels, now 128, or model\.vocab_size"
        with pytest.raises(blualloc.OutOfMemoryError, match=advice):
            train(
                configure(
                    data, tmp_path / "run", f"train.memory_limit_gib={limit}", "train.micro_batch=64",
                    "train.global_batch_tokens=1024", "model.channels=128", "model.layers=8",
                )
            )  # fmt: skip
    finally:
        blualloc.set_limit(0)
    train(configure(data, tmp_path / "run"), resume=True)  # afterwards the process is usable


def test_checkpoints_are_safetensors_files_with_the_documented_names(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run")
    (path,) = (tmp_path / "run" / "checkpoints").glob("*.safetensors")
    model = GPT(configure(data, tmp_path / "run").model)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    with safetensors.safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {
            *(f"model.{name}" for name in shapes),
            *(f"optimizer.{moment}.{name}" for moment in ("exp_avg", "exp_avg_sq") for name in shapes),
            *("optimizer.step", "generator", "loader"),
        }
        for name, shape in shapes.items():
            values = file.get_tensor(f"model.{name}")
            assert values.dtype == np.float32
            assert values.shape == shape
        meta = {key: json.loads(value) for key, value in file.metadata().items() if key in ("step", "config", "loss")}
    assert meta["step"] == 12
    assert meta["config"]["model"]["layers"] == 2
    assert meta["loss"] == losses(tmp_path / "run")[-1]
