"""Loggers: scalars arrive in the trackers' own files, and one that fails never stops a run."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from blutrain.config import Config
from blutrain.config_io import config_from_dict, config_to_dict, config_to_toml, load_config
from blutrain.data import prepare
from blutrain.errors import ConfigError
from blutrain.launch import open_run, train
from blutrain.loggers import LIBRARIES, logger_problems, make_loggers
from blutrain.loggers.background import BackgroundLogger, Point
from blutrain.metrics import read_metrics
from blutrain.recorder import Recorder
from blutrain.run_folder import RunPaths
from blutrain.validation import find_problems

SETTINGS = (
    "model.layers=1", "model.heads=1", "model.channels=8", "model.context=16", "train.micro_batch=2",
    "train.global_batch_tokens=32", "train.eval_every=3", "train.sample_every=0", "train.threads=1", "train.steps=6",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text("a line of text, and another one\n" * 200)
    return prepare([folder / "text"], folder / "tokens").path


def configure(data: Path, folder: Path, *settings: str) -> Config:
    return load_config(settings=[*SETTINGS, f"data.path={data}", f"run.folder={folder}", *settings])


def losses(folder: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in read_metrics(folder) if event["event"] == "train"}


class Tracker:
    """Keeps what it is given; may be slow, or raise."""

    name = "fake"
    place = "somewhere"

    def __init__(self, *, fail_at: int | None = None, seconds: float = 0.0, fail: str = "") -> None:
        self.fail_at, self.seconds, self.fail = fail_at, seconds, fail
        self.got: list[tuple[int, dict[str, float]]] = []
        self.status = ""
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.fail == name:
            raise ConnectionError(f"{name} was refused")

    def begin(self) -> None:
        self._call("begin")

    def points(self, points: Sequence[Point]) -> None:
        self._call("points")
        time.sleep(self.seconds)
        for point in points:
            if point.step == self.fail_at:
                raise ConnectionError("the server\nis away")
            self.got.append((point.step, dict(point.values)))

    def end(self, status: str) -> None:
        self._call("end")
        self.status = status


# ---- configuration -----------------------------------------------------------------------------------------------


def test_loggers_are_a_list_in_every_form(tmp_path: Path) -> None:
    for setting in ("run.loggers=tensorboard,mlflow", 'run.loggers=["tensorboard", "mlflow"]'):
        assert load_config(settings=[setting]).run.loggers == ("tensorboard", "mlflow")
    assert load_config(settings=["run.loggers="]).run.loggers == ()
    assert load_config(settings=["run.loggers=[]"]).run.loggers == ()
    config = load_config(settings=["run.loggers=mlflow"])
    (tmp_path / "c.toml").write_text(config_to_toml(config))
    assert load_config(tmp_path / "c.toml") == config
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config
    for wrong in ("run.loggers=3", "run.loggers=[1]", 'run.loggers=["\udcff"]'):
        with pytest.raises(ConfigError, match=r"run\.loggers: expected a list of texts"):
            load_config(settings=[wrong])


def test_unknown_loggers_and_missing_libraries_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logger_problems(["tensorboard"]) == []
    assert "did you mean 'wandb'?" in logger_problems(["wand"])[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = find_problems(load_config(settings=["run.loggers=wandb"]))
    assert str(problem) == "run.loggers: expected wandb to be installed for 'wandb': pip install 'blutrain[wandb]'"
    (problem,) = find_problems(load_config(settings=["run.project="]))
    assert problem.key == "run.project"


def test_every_logger_can_be_made(tmp_path: Path) -> None:
    made = make_loggers([*LIBRARIES, "tensorboard"], RunPaths(tmp_path), config={})
    assert [logger.name for logger in made] == list(LIBRARIES)
    assert list(tmp_path.iterdir()) == []


# ---- behind the loop ---------------------------------------------------------------------------------------------


def test_all_points_arrive_in_order_and_then_the_status() -> None:
    tracker = Tracker(seconds=0.001)
    logger = BackgroundLogger(tracker)
    logger.begin(0)
    for step in range(1000):
        logger.scalars(step, {"x": step / 2})
    logger.end("finished")
    assert tracker.got == [(step, {"x": step / 2}) for step in range(1000)]
    assert tracker.status == "finished"
    assert logger.place == "somewhere"
    logger.end("finished")
    assert tracker.calls.count("end") == 1


def test_a_tracker_that_hangs_makes_nobody_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blutrain.loggers.background._WAITING_POINTS", 8)
    release = threading.Event()

    class Hanging(Tracker):
        def points(self, points: Sequence[Point]) -> None:
            release.wait(30)

    logger = BackgroundLogger(Hanging(), end_seconds=0.2)
    logger.begin(0)
    begin = time.monotonic()
    for step in range(100):
        logger.scalars(step, {"x": 0.0})
    assert time.monotonic() - begin < 5
    with pytest.raises(TimeoutError, match=r"points were not taken|did not finish"):
        logger.end("finished")
    release.set()


def test_lost_points_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blutrain.loggers.background._WAITING_POINTS", 8)
    logger = BackgroundLogger(Tracker(seconds=0.2))
    logger.begin(0)
    for step in range(100):
        logger.scalars(step, {"x": 0.0})
    with pytest.raises(TimeoutError, match=r"[0-9]+ points were lost"):
        logger.end("finished")


@pytest.mark.parametrize("fail", ["begin", "points", "end"])
def test_a_logger_that_fails_is_told_once_and_left_out(tmp_path: Path, fail: str) -> None:
    told: list[str] = []
    good, bad = Tracker(), Tracker(fail=fail)
    recorder = Recorder(tmp_path, loggers=[BackgroundLogger(bad), BackgroundLogger(good)], warn=told.append)
    for step in range(1, 51):
        recorder.validation(step=step, loss=1 / step, tokens=1)
        time.sleep(0.001)
    recorder.close("failed")
    (message,) = told
    assert message == (
        f"warning: the logger fake failed and is left out from here on: ConnectionError: {fail} was refused"
    )
    assert [step for step, _ in good.got] == list(range(1, 51))
    assert good.status == "failed"
    assert len(read_metrics(tmp_path)) == 50


def test_a_failing_tracker_does_not_stop_a_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_overview import Sections

    told = Sections()
    tracker = Tracker(fail_at=2)
    monkeypatch.setattr("blutrain.loggers.trackers.TRACKERS", {"mlflow": lambda *_: tracker})
    monkeypatch.setattr("blutrain.validation.logger_problems", lambda _: [])
    result = train(configure(data, tmp_path / "run", "run.loggers=mlflow,tensorboard"), reporter=told)
    assert result.step == 6
    (message,) = told.warnings
    assert "ConnectionError: the server is away" in message
    assert (tmp_path / "run" / "tensorboard").is_dir()


def test_a_full_disk_of_tensorboard_is_no_end_either(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_overview import Sections

    told = Sections()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    assert train(configure(data, tmp_path / "run"), reporter=told).step == 6
    (message,) = told.warnings
    assert message.startswith("warning: the logger tensorboard failed")


# ---- the trackers' own libraries ---------------------------------------------------------------------------------


def log_records(data: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format behind a header of 7 bytes: fragments that do not cross blocks of 32 KiB."""
    place, record = 7, b""
    while place + 7 <= len(data):
        left = -place % 32768 or 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last fragment
            yield record
            record = b""


def read_wandb(file: Path) -> tuple[dict[int, float], Any]:
    """Training loss by step, and the record of the run."""
    from wandb.proto import wandb_internal_pb2

    history: dict[int, float] = {}
    started: Any = None
    for content in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "run":
            started = record.run
        if record.WhichOneof("record_type") == "history":
            row = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
            if "train/loss" in row:
                history[row["step"]] = row["train/loss"]
    return history, started


@pytest.mark.filterwarnings("ignore")  # of others' libraries
def test_weights_and_biases_offline(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: its logger is not tried")
    from test_overview import Sections

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    folder = tmp_path / "run"
    told = Sections()
    train(configure(data, folder, "run.loggers=wandb", "run.project=mine", "run.name=first"), reporter=told)
    assert told.warnings == []
    name = json.loads((folder / "trackers.json").read_text())["wandb"]
    (file,) = (folder / "wandb").glob(f"offline-run-*/run-{name}.wandb")
    deadline = time.monotonic() + 20  # the library's service writes the file, in its own time
    history, started = read_wandb(file)
    while history != losses(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
        history, started = read_wandb(file)
    assert history == losses(folder)
    assert (started.project, started.display_name) == ("mine", "first")
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["train"]["steps"] == 6
    train(configure(data, folder, "run.loggers=wandb", "train.steps=8"), resume=True)
    assert json.loads((folder / "trackers.json").read_text())["wandb"] == name


@pytest.mark.filterwarnings("ignore")  # of others' libraries
def test_mlflow_in_files(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: its logger is not tried")
    from mlflow.tracking import MlflowClient
    from test_overview import Sections

    store = f"file://{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "run"
    config = configure(data, folder, "run.loggers=mlflow", "run.project=mine")
    told = Sections()
    train(config, reporter=told)
    assert told.warnings == []
    name = json.loads((folder / "trackers.json").read_text())["mlflow"]
    client = MlflowClient(store)

    def history() -> dict[int, float]:
        return {metric.step: metric.value for metric in client.get_metric_history(name, "train/loss")}

    run = client.get_run(name)
    assert history() == losses(folder)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["train.steps"] == "6"
    assert "validation/loss" in run.data.metrics
    longer = configure(data, folder, "run.loggers=mlflow", "train.steps=9")
    with contextlib.suppress(ZeroDivisionError), open_run(longer, resume=True) as trainer:
        trainer.run()
        raise ZeroDivisionError
    assert history() == losses(folder)
    assert len(history()) == 9
    assert client.get_run(name).info.status == "FAILED"
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.glob("*.*"):
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    train(configure(data, copy, "run.loggers=mlflow"), overwrite=True)
    assert json.loads((copy / "trackers.json").read_text())["mlflow"] != name
