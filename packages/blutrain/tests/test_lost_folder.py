"""Runs whose folder is deleted, moved, replaced or fills up while they train."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blutrain.config import Config
from blutrain.config_io import load_config
from blutrain.console import SilentReporter
from blutrain.data import prepare
from blutrain.launch import resolve_config, train
from blutrain.metrics import LineFile, RunFolderAccessError, RunFolderLostError, read_metrics
from blutrain.run_folder import RunFolder
from blutrain.weights import load_model

TEXT = "".join(f"{n}: the quick brown fox jumps over the lazy dog {n * n}.\n" for n in range(150))
SETTINGS = (
    "model.layers=1", "model.heads=2", "model.channels=16", "model.context=16", "train.micro_batch=4",
    "train.global_batch_tokens=64", "train.steps=400", "train.eval_every=0", "train.sample_every=20",
    "train.sample_tokens=4", "train.checkpoint_every=0", "schedule.learning_rate=0.01", "train.threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text(TEXT)
    return prepare([folder / "text"], folder / "tokens").path


def configure(data: Path, folder: Path, *settings: str) -> Config:
    return load_config(settings=[*SETTINGS, f"data.path={data}", f"run.folder={folder}", *settings])


class Meddler(SilentReporter):
    """Does something to the run folder once a step has been done."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self._step, self._action = step, action
        self.done_at: int | None = None
        self.warnings: list[str] = []

    def progress(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        if self.done_at is None and step >= self._step:
            self.done_at = step
            self._action()

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def trained_steps(folder: Path) -> list[int]:
    return [event["step"] for event in read_metrics(folder) if event["event"] == "train"]


def lose(data: Path, folder: Path, action: Callable[[], object], *settings: str) -> tuple[RunFolderLostError, int]:
    """Trains until the folder is lost; returns the error and the last step that was done."""
    meddler = Meddler(25, action)
    with pytest.raises(RunFolderLostError) as caught:
        train(configure(data, folder, *settings), reporter=meddler)
    assert meddler.done_at is not None
    assert caught.value.path == folder
    step = int(str(caught.value).partition(" at step ")[2].partition(":")[0])
    assert meddler.done_at <= step < 400
    return caught.value, step


def goes_on(folder: Path, steps: int) -> None:
    """A resumed run does the steps that are left, and has recorded every step once."""
    result = train(resolve_config(folder, settings=[f"train.steps={steps}"]), resume=True)
    assert result.exit_code == 0
    assert trained_steps(folder) == list(range(1, steps + 1))


def test_a_deleted_folder_is_made_anew_with_all_that_the_run_had(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    error, step = lose(data, folder, lambda: shutil.rmtree(folder))
    assert error.now is None
    checkpoint = folder / "checkpoints" / f"step-{step:08d}.safetensors"
    assert f"got it deleted or replaced at step {step}: its state was saved in {checkpoint}" in str(error)
    load_model(checkpoint)
    assert trained_steps(folder) == list(range(1, step + 1))
    assert (folder / "samples.txt").read_text().startswith("=== step 20 ===")
    assert [event["event"] for event in read_metrics(folder / "log.jsonl")] == ["started", "checkpoint", "failed"]
    goes_on(folder, step + 5)


def test_a_moved_folder_is_followed(data: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "moved"
    error, step = lose(data, folder, lambda: folder.rename(other))
    assert error.now == other
    assert f"got it moved to {other} at step {step}" in str(error)
    assert not folder.exists()
    goes_on(other, step + 5)


def test_another_run_in_the_old_place_is_left_alone(data: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "run.saved-1"

    def replace() -> None:
        shutil.rmtree(folder)
        RunFolder.start(folder).close()

    error, step = lose(data, folder, replace)
    assert str(other) in str(error)
    assert sorted(path.name for path in folder.iterdir()) == ["run.lock"]
    assert resolve_config(other).run.folder == str(other)
    goes_on(other, step + 5)


@pytest.mark.parametrize("background", ["on", "off"])
def test_a_folder_that_is_gone_when_a_checkpoint_is_due(data: Path, tmp_path: Path, background: str) -> None:
    folder = tmp_path / "run"
    settings = ("train.checkpoint_every=1", f"train.background_checkpoints={background}")

    def remove() -> None:
        while folder.exists():  # a checkpoint may be written meanwhile
            shutil.rmtree(folder, ignore_errors=True)

    _, step = lose(data, folder, remove, *settings)
    load_model(folder / "checkpoints" / f"step-{step:08d}.safetensors")


def test_deleted_files_are_put_back(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def delete() -> None:
        (folder / "metrics.jsonl").unlink()
        (folder / "samples.txt").unlink()
        shutil.rmtree(folder / "tensorboard")

    meddler = Meddler(25, delete)
    train(configure(data, folder, "train.steps=60"), reporter=meddler)
    assert trained_steps(folder) == list(range(1, 61))
    assert (folder / "samples.txt").read_text().count("=== step") == 3
    told = "\n".join(meddler.warnings)
    for name in ("metrics.jsonl", "samples.txt"):
        assert f"{folder / name} was deleted while the run wrote to it, and was put back" in told
    assert "the logger tensorboard failed and is left out from here on" in told


def test_a_deleted_last_checkpoint_is_written_again_at_the_end(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    checkpoints = folder / "checkpoints"
    meddler = Meddler(60, lambda: shutil.rmtree(checkpoints, ignore_errors=True))
    result = train(configure(data, folder, "train.steps=60", "train.checkpoint_every=20"), reporter=meddler)
    assert result.checkpoint == checkpoints / "step-00000060.safetensors"
    load_model(result.checkpoint)


def test_metrics_that_do_not_fit_end_the_run_with_a_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    append = LineFile.append

    def full(file: LineFile, event: dict[str, object]) -> None:
        if event.get("event") == "train" and event.get("step") == 30:
            raise RunFolderAccessError(folder / "metrics.jsonl", OSError(28, "No space left on device"))
        append(file, event)

    meddler = Meddler(400, lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(LineFile, "append", full)
        with pytest.raises(RunFolderAccessError, match="No space left on device"):
            train(configure(data, folder), reporter=meddler)
    [told] = [text for text in meddler.warnings if "its state was saved in" in text]
    [checkpoint] = (folder / "checkpoints").glob("*.safetensors")
    assert str(checkpoint) in told
    assert int(checkpoint.stem.removeprefix("step-")) >= 30


KILLER = """
import shutil, sys
from blutrain.console import ConsoleReporter
from blutrain.cli import main
original = ConsoleReporter.progress
def progress(self, step, *rest):
    original(self, step, *rest)
    if step >= 25:
        shutil.rmtree(sys.argv[1], ignore_errors=True)
        ConsoleReporter.progress = original
ConsoleReporter.progress = progress
main(sys.argv[2:])
"""


def test_the_command_says_so_and_fails(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [item for text in (*SETTINGS, f"data.path={data}", f"run.folder={folder}") for item in ("--set", text)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", KILLER, str(folder), "train", "--quiet", *settings]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert child.returncode == 2, child.stderr
    assert child.stderr.splitlines()[-1].startswith(f"error: [run folder] {folder}: expected it to stay while a run")
