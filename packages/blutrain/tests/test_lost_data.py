"""Runs whose data go away while they train, and other errors that find the state of a complete step."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blutrain.checkpoint import CheckpointStore
from blutrain.cli import run_command
from blutrain.cli.errors import message_of
from blutrain.config import Config
from blutrain.config_io import load_config
from blutrain.console import SilentReporter
from blutrain.data import prepare
from blutrain.errors import DataError, ShardError
from blutrain.launch import train
from blutrain.metrics import RunFolderLostError, read_metrics
from blutrain.programs import TrainingStep
from blutrain.trainer import Trainer

TEXT = "".join(f"{n}: the quick brown fox jumps over the lazy dog {n * n}.\n" for n in range(150))
STEPS = 60
SETTINGS = (
    "model.layers=1", "model.heads=2", "model.channels=16", "model.context=16", "model.dropout=0.1",
    "train.micro_batch=2", "train.global_batch_tokens=96", f"train.steps={STEPS}", "train.eval_every=20",
    "train.sample_every=0", "train.checkpoint_every=20", "schedule.learning_rate=0.01", "train.threads=1",
)  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text(TEXT)
    return prepare([tmp_path / "text"], tmp_path / "tokens").path


def configure(data: Path, folder: Path, *settings: str) -> Config:
    return load_config(settings=[*SETTINGS, f"data.path={data}", f"run.folder={folder}", *settings])


class Meddler(SilentReporter):
    """Does something once a step has been done."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self._step, self._action, self._done = step, action, False

    def progress(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        if not self._done and step >= self._step:
            self._done = True
            self._action()


def note_of(error: BaseException, folder: Path, step: int) -> None:
    """The error has one note, which names step and checkpoint, and the command's message and the log have it too."""
    path = folder / "checkpoints" / f"step-{step:08d}.safetensors"
    note = f"the state after step {step} was saved in {path}: repair the cause, then use --resume"
    assert error.__notes__ == [note]
    assert isinstance(error, Exception)
    assert f"; {note}" in message_of(error)
    assert path.is_file()
    last = read_metrics(folder / "log.jsonl")[-1]
    assert last["event"] == "failed"
    assert note in str(last)


def same_in_the_end(data: Path, folder: Path, *settings: str) -> None:
    """After resuming, losses and the last checkpoint are those of a run that nothing happened to."""
    whole = folder.parent / "whole"
    train(configure(data, whole, *settings))
    train(configure(data, folder, *settings), resume=True)
    mine, expected = (
        [(event["step"], event["loss"]) for event in read_metrics(path) if event["event"] == "train"]
        for path in (folder, whole)
    )
    assert mine == expected
    arrays, others = (
        CheckpointStore(path / "checkpoints").load(path / "checkpoints" / f"step-{STEPS:08d}.safetensors")[0]
        for path in (folder, whole)
    )
    assert arrays.keys() == others.keys()
    assert all((arrays[name] == others[name]).all() for name in arrays)


@pytest.mark.parametrize("background", ["on", "off"])
@pytest.mark.parametrize("deleted", [True, False])
def test_data_that_are_gone_when_they_are_to_be_validated_on(
    data: Path, tmp_path: Path, deleted: bool, background: str
) -> None:
    folder, aside = tmp_path / "run", tmp_path / "aside"
    settings = (f"train.background_checkpoints={background}",)

    def lose() -> None:
        if deleted:
            shutil.copytree(data, aside)
            shutil.rmtree(data)
        else:
            data.rename(aside)

    with pytest.raises(DataError, match="No such file") as caught:
        train(configure(data, folder, *settings), reporter=Meddler(25, lose))
    note_of(caught.value, folder, 40)
    aside.rename(data)
    same_in_the_end(data, folder, *settings)


@pytest.mark.parametrize("at", [1, 10])
@pytest.mark.parametrize("rows", [2, 6])
def test_a_shard_that_is_truncated_while_a_run_reads_it(data: Path, tmp_path: Path, at: int, rows: int) -> None:
    """In a step that is recorded, and in one that runs natively."""
    folder = tmp_path / "run"
    settings = (f"train.micro_batch={rows}", "train.eval_every=0")
    shard = next(data.glob("*train*.bin"))
    content = shard.read_bytes()
    with pytest.raises(ShardError, match="truncated while in use") as caught:
        train(configure(data, folder, *settings), reporter=Meddler(at, lambda: os.truncate(shard, 1000)))
    step = next(iter(event["step"] for event in reversed(read_metrics(folder)) if event["event"] == "train"))
    assert at <= step < STEPS
    note_of(caught.value, folder, step)
    shard.write_bytes(content)
    same_in_the_end(data, folder, *settings)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_batch_that_fails_within_a_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """Two of the three micro-steps are done: loader and generator go back to the last complete step."""
    folder = tmp_path / "run"
    shard = next(data.glob("*train*.bin"))
    content = shard.read_bytes()
    run = TrainingStep.run

    def truncating(step: TrainingStep, *arguments: Any) -> Any:
        if step._recorded == (1 if recorded else 2) and not step.__dict__.get("prepared"):
            step.__dict__["prepared"] = True
            if recorded:
                middle = step._schedule[1]

                def cut(*batch: Any) -> Any:
                    result = middle[0](*batch)
                    os.truncate(shard, 1000)
                    return result

                step._schedule[1] = (cut, middle[1])
            else:
                source, calls = arguments[0], []
                next_batch = source.next_function

                @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
                def counted(context: int, slots: int, count: int) -> int:
                    calls.append(1)
                    if len(calls) == 3 * 5 + 3:
                        os.truncate(shard, 1000)
                    return int(native(context, slots, count))

                native = type(counted)(next_batch)
                step.__dict__["keep"] = counted
                source.next_function = ctypes.cast(counted, ctypes.c_void_p).value
        return run(step, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingStep, "run", truncating)
        with pytest.raises(ShardError, match="truncated while in use") as caught:
            train(configure(data, folder))
    note_of(caught.value, folder, 1 if recorded else 2 + 5)
    shard.write_bytes(content)
    same_in_the_end(data, folder)


def test_any_error_of_an_event_and_none_of_half_a_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("it broke")

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "evaluate", fail)
        with pytest.raises(RuntimeError, match="it broke") as caught:
            train(configure(data, tmp_path / "event"))
    note_of(caught.value, tmp_path / "event", 20)
    with monkeypatch.context() as patched:
        patched.setattr(TrainingStep, "_native_steps", fail)
        with pytest.raises(RuntimeError, match="it broke") as caught:
            train(configure(data, tmp_path / "step"))
    assert not hasattr(caught.value, "__notes__")
    assert not (tmp_path / "step" / "checkpoints").exists()
    with pytest.raises(DataError) as at_once:  # nothing to save
        train(configure(data, tmp_path / "none", "train.eval_every=1"), reporter=Lost(data))
    assert not hasattr(at_once.value, "__notes__")


class Lost(SilentReporter):
    """Deletes the data before the first step."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def start(self, first_step: int, steps: int) -> None:
        os.truncate(next(self._data.glob("*train*.bin")), 1000)


def test_data_and_run_folder_that_go_together(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def lose() -> None:
        data.rename(tmp_path / "aside")

    def fail_later(trainer: Trainer) -> float:
        folder.rename(tmp_path / "moved")
        return evaluate(trainer)

    evaluate = Trainer.evaluate
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "evaluate", fail_later)
        with pytest.raises(RunFolderLostError, match="its state was saved in") as caught:
            train(configure(data, folder), reporter=Meddler(5, lose))
    assert caught.value.now == tmp_path / "moved"
    assert (tmp_path / "moved" / "checkpoints" / "step-00000020.safetensors").is_file()


def test_the_command_says_it_in_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    evaluate = Trainer.evaluate

    def lose(trainer: Trainer) -> float:
        data.rename(tmp_path / "aside")
        return evaluate(trainer)

    monkeypatch.setattr(Trainer, "evaluate", lose)
    settings = [item for text in (*SETTINGS, f"data.path={data}", f"run.folder={folder}") for item in ("--set", text)]
    assert run_command(["train", "-q", *settings]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: [shard] can not open")
    assert "; the state after step 20 was saved in " in told
