"""What a person is told of a run: before it starts, at its end, and when it ends otherwise."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blutrain.cli import run_command
from blutrain.config import Config
from blutrain.config_io import config_to_dict, known_keys, load_config
from blutrain.console import ConsoleReporter
from blutrain.data import open_dataset, prepare
from blutrain.devices import RunDevice
from blutrain.flops import estimate_memory, num_parameters
from blutrain.launch import open_run, train
from blutrain.overview import configuration, plan
from blutrain.trainer import Trainer

SETTINGS = (
    "model.layers=1", "model.heads=1", "model.channels=8", "model.context=16", "train.micro_batch=2",
    "train.global_batch_tokens=64", "train.eval_every=4", "train.sample_every=0", "train.threads=1", "train.steps=8",
    "train.peak_tflops=0.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text("a line of text, and another one\n" * 200)
    return prepare([folder / "text"], folder / "tokens").path


class Sections:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, str]] = {}
        self.warnings: list[str] = []

    def line(self, text: str) -> None: ...

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def section(self, title: str, rows: Any) -> None:
        self.sections[title] = dict(rows)

    def start(self, *_: Any) -> None: ...

    def progress(self, *_: Any) -> None: ...

    def stop(self) -> None: ...


def configure(data: Path, folder: Path, *settings: str) -> Config:
    return load_config(settings=[*SETTINGS, f"data.path={data}", f"run.folder={folder}", *settings])


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_key_of_the_configuration_is_shown_with_its_value() -> None:
    config = load_config(settings=["train.sample_prompt=two words", "run.loggers=tensorboard,wandb"])
    shown = dict(configuration(config))
    for section, values in config_to_dict(config).items():
        text = " ".join(shown[section].split())
        assert all(f"{name} = {json.dumps(value)}" in text for name, value in values.items())
    assert sum(text.count(" = ") for text in shown.values()) == len(known_keys())
    assert max(len(line) for text in shown.values() for line in text.splitlines()) <= 100


def test_the_plan_has_the_facts(data: Path, tmp_path: Path) -> None:
    config = configure(data, tmp_path / "run")
    estimate = estimate_memory(config)
    rows = dict(plan(config, open_dataset(data), RunDevice("cpu", "fp32"), estimate))
    assert rows["run"] == str(tmp_path / "run")
    assert f"{num_parameters(config.model):,} parameters" in rows["model"]
    dataset = open_dataset(data)
    for split in ("train", "val"):
        assert f"{dataset.tokens[split]:,} {'training' if split == 'train' else 'validation'}" in rows["data"]
    assert "64 tokens = 2 x 2 sequences of 16; 8 steps = 512 tokens" in rows["batch"]
    assert "1 thread(s)" in rows["device"]
    assert rows["memory"] == f"estimated peak {estimate}"


def test_a_finished_run_has_its_overview(data: Path, tmp_path: Path) -> None:
    told = Sections()
    result = train(configure(data, tmp_path / "run"), reporter=told)
    assert list(told.sections) == ["configuration", "run", "overview"]
    rows = told.sections["overview"]
    assert rows["result"] == "finished at step 8 of 8"
    assert f"-> {result.loss:.4f}, validation {result.val_loss:.4f}" in rows["loss"]
    assert result.tokens_per_second is not None
    assert result.mfu is not None
    assert f"{result.tokens_per_second:,.0f} tokens/s, MFU {100 * result.mfu:.1f}%, 512 tokens in all" in rows["speed"]
    assert rows["checkpoint"] == str(result.checkpoint)
    assert rows["tensorboard"] == str(tmp_path / "run" / "tensorboard")
    ended = log(tmp_path / "run")[-1]
    assert (ended["event"], ended["step"], ended["loss"]) == ("ended", 8, result.loss)
    assert ended["tokens_per_second"] == result.tokens_per_second


def test_time_and_tokens_go_on_where_a_run_is_resumed(data: Path, tmp_path: Path) -> None:
    from blutrain.metrics import read_metrics

    train(configure(data, tmp_path / "run"))
    told = Sections()
    train(configure(data, tmp_path / "run", "train.steps=12"), resume=True, reporter=told)
    events = [event for event in read_metrics(tmp_path / "run") if event["event"] == "train"]
    assert [event["tokens_seen"] for event in events] == [64 * step for step in range(1, 13)]
    seconds = [event["seconds"] for event in events]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert "for 4 steps" in told.sections["overview"]["time"]


def test_a_failed_run_has_its_overview_and_its_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Sections()
    events = Trainer._events

    def fail(self: Trainer) -> None:
        if self.progress.step >= 5:
            raise OSError(28, "No space left on device")
        events(self)

    monkeypatch.setattr(Trainer, "_events", fail)
    with pytest.raises(OSError, match="No space left"):
        train(configure(data, tmp_path / "run", "train.checkpoint_every=4"), reporter=told)
    rows = told.sections["overview"]
    result = re.fullmatch(
        r"failed at step (\d) of 8: OSError: \[Errno 28\] No space left on device; (.*)", rows["result"]
    )
    assert result is not None
    assert result[2].startswith(f"the state after step {result[1]} was saved in ")
    assert rows["checkpoint"].endswith(f"step-0000000{result[1]}.safetensors")
    assert rows["next"].endswith("--resume")
    failed = log(tmp_path / "run")[-1]
    assert (failed["level"], failed["event"]) == ("error", "failed")
    assert "No space left" in failed["why"]


def test_a_run_that_is_left_early_is_interrupted(data: Path, tmp_path: Path) -> None:
    told = Sections()
    with contextlib.suppress(KeyboardInterrupt), open_run(configure(data, tmp_path / "run"), reporter=told) as trainer:
        trainer._advance(1)
        raise KeyboardInterrupt
    rows = told.sections["overview"]
    assert rows["result"] == "interrupted at step 1 of 8"
    assert rows["speed"] == "n/a: no captured step was done"
    assert rows["checkpoint"] == "none"
    assert log(tmp_path / "run")[-1]["event"] == "ended"


def test_an_overview_that_can_not_be_told_hides_no_error(data: Path, tmp_path: Path) -> None:
    class Broken(Sections):
        def section(self, title: str, rows: Any) -> None:
            if title == "overview":
                raise RuntimeError("in the reporter")

    with pytest.raises(ZeroDivisionError), open_run(configure(data, tmp_path / "run"), reporter=Broken()):
        np.divide(1, 0, dtype=object)


def test_piped_output_is_plain_text_and_quiet_is_quiet(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [part for text in SETTINGS for part in ("--set", text)]
    settings += ["--set", f"data.path={data}", "--set", f"run.folder={tmp_path / 'run'}"]
    assert run_command(["train", *settings]) == 0
    told = capsys.readouterr().err
    assert "\x1b" not in told
    for text in ("configuration\n", "overview\n", "global_batch_tokens = 64", "parameters", "estimated peak"):
        assert text in told
    assert run_command(["train", *settings, "--overwrite", "--quiet"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err + quiet.out == ""
    assert run_command(["train", *settings, "--quiet"]) == 2
    assert "--resume" in capsys.readouterr().err


def test_a_terminal_gets_colours_and_markup_in_values_is_text() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    ConsoleReporter(terminal).section("title", [("name", "[bold]x[/bold]\nsecond"), ("other", "y")])
    assert "\x1b[" in terminal.getvalue()
    assert "[bold]x[/bold]" in terminal.getvalue()
    plain = io.StringIO()
    reporter = ConsoleReporter(plain)
    reporter.section("title", [("name", "x\nsecond")])
    reporter.warning("warning: [x]")
    assert plain.getvalue() == "title\n  name        x\n              second\nwarning: [x]\n"
