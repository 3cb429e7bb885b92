"""What a run folder is worth: named runs, overwriting, continuing with changes, nothing lost on any mistake."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blutrain.checkpoint import CheckpointFormatError, CheckpointNotFoundError
from blutrain.cli import run_command
from blutrain.config import Config
from blutrain.config_io import load_config
from blutrain.data import prepare
from blutrain.errors import ConfigError, DataError
from blutrain.evaluation import evaluate
from blutrain.generation import generate
from blutrain.launch import open_run, resolve_config, train
from blutrain.metrics import read_metrics
from blutrain.run_folder import NothingToResumeError

SETTINGS = (
    "model.layers=1", "model.heads=2", "model.channels=8", "model.context=16", "train.micro_batch=2",
    "train.global_batch_tokens=32", "train.eval_every=0", "train.sample_every=0", "train.threads=1", "train.steps=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text("a line of text, and another one\n" * 100)
    return prepare([folder / "text"], folder / "tokens").path


def configure(data: Path, folder: Path, *settings: str) -> Config:
    return load_config(settings=[*SETTINGS, f"data.path={data}", f"run.folder={folder}", *settings])


def contents(folder: Path) -> dict[str, bytes]:
    """Everything of a run but its log, which only grows, and its lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("log.jsonl", "run.lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Lines:
    """A reporter that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    warning = line

    def section(self, *_: Any) -> None: ...

    def start(self, *_: Any) -> None: ...

    def progress(self, *_: Any) -> None: ...

    def stop(self) -> None: ...


# ---- the folder that is named ----------------------------------------------------------------------------------------


def test_a_copied_run_is_a_run_of_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train(configure(Path(os.path.relpath(data)), Path("runs/first")))
    shutil.copytree("runs/first", "runs/second")
    before = contents(tmp_path / "runs/first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    second = tmp_path / "runs/second"
    for number, name in enumerate(("../runs/second", "../runs/second/config.toml")):
        assert run_command(["train", name, "--resume", "--set", f"train.steps={6 + number}"]) == 0
        assert read_metrics(second)[-1]["step"] == 6 + number
    assert run_command(["train", "../runs/second", "--overwrite", "--set", "train.steps=2"]) == 0
    assert [event["step"] for event in read_metrics(second)] == [1, 2]
    assert load_config(second / "config.toml").run.folder == str(second)
    assert run_command(["eval", "../runs/second"]) == 0
    assert "step 2" in capsys.readouterr().out
    assert run_command(["generate", "../runs/second", "--max-new-tokens", "2"]) == 0
    assert run_command(["plot", "../runs/second"]) == 0
    assert (second / "loss.png").exists()
    assert contents(tmp_path / "runs/first") == before
    assert os.listdir(tmp_path / "elsewhere") == []
    assert resolve_config("../runs/second", settings=["run.folder=x"]).run.folder == "x"


# ---- overwriting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [MemoryError("no memory"), KeyboardInterrupt(), OSError(28, "full")])
def test_overwriting_that_fails_gives_the_old_run_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    folder = tmp_path / "run"
    train(configure(data, folder))
    before = contents(folder)
    for place in ("trainer.Trainer.__init__", "trainer.Trainer._advance", "saver.Saver.save"):
        with monkeypatch.context() as patch:

            def fail(*_: object, **__: object) -> None:
                raise failure

            patch.setattr(f"blutrain.{place}", fail)
            with pytest.raises(type(failure)):
                train(configure(data, folder, "model.channels=16"), overwrite=True)
        assert contents(folder) == before
    for settings in (("model.context=100000",), ("model.heads=3",), ("data.path=absent",)):
        with pytest.raises((ConfigError, DataError)):
            train(configure(data, folder, *settings), overwrite=True)
        assert contents(folder) == before


def test_overwriting_removes_the_old_run_with_the_first_checkpoint(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(configure(data, folder, "train.checkpoint_every=1"))
    with open_run(configure(data, folder, "train.checkpoint_every=2"), overwrite=True) as trainer:
        assert [path.name for path in tmp_path.rglob(".replaced")] != []
        trainer._advance(1)
        trainer.save()
        assert [path.name for path in tmp_path.rglob(".replaced")] == []
    assert [path.name for path in (folder / "checkpoints").glob("*.safetensors")] == ["step-00000001.safetensors"]


# ---- continuing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.heads=4", "model.heads: expected 2, as in the checkpoint of step 4, got 4"),
        ("model.pad_vocab_to=128", "another model"),
        ("data.shuffle=false", "another order"),
        ("train.steps=3", "train.steps: expected at least 4"),
    ],
)
def test_what_a_run_can_not_be_continued_with(data: Path, tmp_path: Path, setting: str, message: str) -> None:
    folder = tmp_path / "run"
    train(configure(data, folder))
    before = contents(folder)
    with pytest.raises(ConfigError, match=message):
        train(configure(data, folder, "train.steps=8", setting), resume=True)
    assert contents(folder) == before


@pytest.mark.parametrize("with_manifest", [False, True])
def test_other_tokens_of_the_same_number_are_refused(data: Path, tmp_path: Path, with_manifest: bool) -> None:
    folder = tmp_path / "run"
    train(configure(data, folder))
    before = contents(folder)
    if with_manifest:  # another data set of the same size
        text = (data.parent / "text").read_text()
        (tmp_path / "text").write_text(text.replace("line", "LINE"))
        other = prepare([tmp_path / "text"], tmp_path / "tokens").path
    else:  # the shard alone was exchanged
        other = tmp_path / "tokens"
        shutil.copytree(data, other)
        shard = next(other.glob("*train*.bin"))
        tokens = np.fromfile(shard, np.uint16)
        tokens[-1] ^= 1
        tokens.tofile(shard)
    with pytest.raises(DataError, match=r"other data|SHA-256"):
        train(configure(other, folder, "train.steps=8"), resume=True)
    assert contents(folder) == before
    moved = tmp_path / "moved"
    shutil.copytree(data, moved)
    train(configure(moved, folder, "train.steps=5"), resume=True)  # the same data in another place


def test_other_changes_are_announced(data: Path, tmp_path: Path) -> None:
    folder, told = tmp_path / "run", Lines()
    train(configure(data, folder))
    changes = ("train.steps=6", "schedule.learning_rate=0.5", "optimizer.beta1=0.5", "optimizer.weight_decay=0.0")
    changes += ("model.dropout=0.5", "train.global_batch_tokens=64", "train.log_every=2")
    train(configure(data, folder, *changes), resume=True, reporter=told)
    notices = [line.split()[1] for line in told.lines if line.startswith("notice:")]
    assert notices == [
        *("model.dropout", "optimizer.beta1", "optimizer.weight_decay", "schedule.learning_rate", "train.steps"),
        "train.global_batch_tokens",
    ]
    assert any("schedule.learning_rate was 0.0006 until step 4 and is 0.5" in line for line in told.lines)


@pytest.mark.parametrize("loss", ["damaged", "removed", "folder"])
def test_a_run_that_lost_its_checkpoints_is_not_begun_again_unasked(data: Path, tmp_path: Path, loss: str) -> None:
    folder = tmp_path / "run"
    train(configure(data, folder, "train.checkpoint_every=2"))
    if loss == "folder":
        shutil.rmtree(folder / "checkpoints")
    for path in (folder / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"x") if loss == "damaged" else path.unlink()
    metrics = (folder / "metrics.jsonl").read_bytes()
    for _ in range(2):
        found = (
            r"damaged ones alone \(step-00000004\.safe.*, step-00000002\.safe" if loss == "damaged" else "none, alth"
        )
        with pytest.raises(NothingToResumeError, match=f"got {found}.*--overwrite"):
            train(configure(data, folder, "train.steps=8"), resume=True)
        assert (folder / "metrics.jsonl").read_bytes() == metrics
        assert load_config(folder / "config.toml").train.steps == 4
    train(configure(data, folder), overwrite=True)
    assert [event["step"] for event in read_metrics(folder)] == [1, 2, 3, 4]


def test_evaluating_damaged_checkpoints_names_them(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(configure(data, folder, "train.checkpoint_every=1"))
    paths = sorted((folder / "checkpoints").glob("*.safetensors"))
    for path in paths:
        path.write_bytes(b"x")
    names = r"step-00000004\.safetensors, step-00000003\.safetensors, step-00000002\.safetensors"
    with pytest.raises(CheckpointFormatError, match=rf"damaged ones alone: {names} \(.*put a good copy back, or train"):
        evaluate(folder)
    for path in paths[:-1]:
        path.unlink()
    paths[-1].rename(paths[-1].with_name(paths[-1].name + ".damaged"))  # as --resume does
    with pytest.raises(CheckpointFormatError, match=r"alone: step-00000004\.safetensors\.damaged; put"):
        generate(folder)
    (folder / "checkpoints" / (paths[-1].name + ".damaged")).unlink()
    with pytest.raises(CheckpointNotFoundError, match="train one first"):
        evaluate(folder)


def test_another_seed_is_refused_once_and_the_right_way_round(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    train(configure(data, folder, "train.seed=7"))
    command = ["train", str(folder), "--resume", "--quiet", "--set", "train.steps=6", "--set", "train.seed=8"]
    assert run_command(command) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "seed" in line]
    assert line.startswith(
        "error: train.seed: expected 7, as in the checkpoint of step 4, got 8: a run can not be resumed"
    )
    assert "with another seed; take the old value" in line
    assert run_command([*command[:-1], "train.seed=7"]) == 0


def test_a_run_killed_before_its_first_checkpoint_begins_again(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_run(configure(data, folder)) as trainer:
        trainer._advance(2)
    assert read_metrics(folder)[-1]["step"] == 2
    train(configure(data, folder), resume=True)
    assert [event["step"] for event in read_metrics(folder)] == [1, 2, 3, 4]
