"""Runs side by side: curves over steps, tokens and time, summaries, JSON and CSV."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from test_plotting import make_run

from blutrain.cli import run_command
from blutrain.comparison import AXES, compare, table_rows, to_csv, to_json
from blutrain.metrics import LineFile
from blutrain.plotting import draw, plot


def timed_run(folder: Path, steps: int, batch: int, every: int = 1, seconds: float = 0.5) -> Path:
    """A run as it is recorded: every so many steps, with tokens and time, and a validation at its end."""
    folder.mkdir(parents=True)
    file = LineFile(folder / "metrics.jsonl")
    for step in range(every, steps + 1, every):
        event = {"event": "train", "step": step, "loss": 4 / step, "tokens_per_second": 100.0 * step}
        file.append(event | {"tokens_seen": batch * step, "seconds": seconds * step})
    file.append({"event": "validation", "step": steps, "loss": 1.0})
    file.append({"event": "validation", "step": steps - 1, "loss": 0.5})
    return folder


def test_runs_of_different_lengths_are_compared_over_steps_tokens_and_time(tmp_path: Path) -> None:
    runs = [timed_run(tmp_path / "a", 8, 64), timed_run(tmp_path / "b", 4, 256, every=2, seconds=2.0)]
    first, second = compare(runs)
    assert first.train.tokens == tuple(64 * step for step in range(1, 9))
    assert second.train.tokens == (512, 1024)
    assert second.train.seconds == (4, 8)
    assert second.validation.tokens == (1024, 768)  # between the steps that were recorded
    assert second.summary() == {
        **{"name": "b", "path": str(runs[1]), "steps": 4, "tokens": 1024, "seconds": 8, "loss": 1.0, "val_loss": 0.5},
        **{"best_val_loss": 0.5, "best_val_step": 3, "tokens_per_second": 300.0},
    }
    assert len({draw([first, second], [axis]) for axis in AXES}) == 3
    assert draw([first, second], AXES) != draw([second, first], AXES)


def test_an_older_run_has_tokens_by_its_configuration_and_no_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [3.0, 2.0])
    assert all(math.isnan(tokens) for tokens in compare(run)[0].train.tokens)
    (run / "config.toml").write_text("[train]\nglobal_batch_tokens = 4096\n")
    (curves,) = compare(run)
    assert curves.train.tokens == (4096, 8192)
    assert all(math.isnan(seconds) for seconds in curves.train.seconds)
    assert curves.summary()["seconds"] is None
    assert plot([run, timed_run(tmp_path / "new", 4, 64)], tmp_path / "both.png").exists()


def test_an_svg_has_no_date(tmp_path: Path) -> None:
    runs = [timed_run(tmp_path / name, 4, 64) for name in ("one", "two")]
    first = plot(runs, tmp_path / "x.svg", x=["tokens", "tokens"]).read_text()
    assert first.startswith("<?xml")
    assert "<svg" in first
    assert "dc:date" not in first


def test_tables_hold_every_point(tmp_path: Path) -> None:
    runs = compare([timed_run(tmp_path / "a", 3, 64), make_run(tmp_path / "b", [2.0])])
    rows = [line.split(",") for line in to_csv(runs).splitlines()]
    assert rows[0] == ["run", "kind", "step", "tokens", "seconds", "loss"]
    assert rows[1] == ["a", "train", "1", "64.0", "0.5", "4.0"]
    assert rows[-1] == ["b", "train", "1", "", "", "2.0"]
    assert len(rows) == 1 + 3 + 2 + 1
    told = json.loads(to_json(runs))
    assert told[0]["train"] == [[1, 64.0, 0.5, 4.0], [2, 128.0, 1.0, 2.0], [3, 192.0, 1.5, pytest.approx(4 / 3)]]
    assert told[1]["tokens"] is None
    assert told[1]["train"] == [[1, None, None, 2.0]]


def test_a_table_for_people_fits_a_terminal(tmp_path: Path) -> None:
    runs = compare([timed_run(tmp_path / "a", 8, 10**9, seconds=9000.0), make_run(tmp_path / "b", [])])
    first, second = table_rows(runs)
    assert first == {
        **{"run": "a", "steps": "8", "tokens": "8,000,000,000", "time": "20:00:00", "loss": "0.5000"},
        **{"validation": "0.5000", "best": "0.5000", "tokens/s": "450"},
    }
    assert set(second.values()) == {"b", "-"}
    assert sum(max(len(key), len(text)) + 2 for key, text in first.items()) <= 80


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(timed_run(tmp_path / "a-long-name-of-a-run", 8, 64)), str(timed_run(tmp_path / "b", 4, 256))]
    with (Path(runs[1]) / "metrics.jsonl").open("a") as file:
        file.write("[1]\n")
    out = tmp_path / "both.svg"
    assert run_command(["plot", *runs, "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{out}\n"
    damaged = "passed over 1 damaged line(s), the first is line 7"
    for text in ("best ", "validation", "0:04", "a-long-name-of-a-run", "1,024", damaged):
        assert text in told.err
    assert told.err.count("damaged") == 1
    assert "\x1b" not in told.err
    out.unlink()
    assert run_command(["plot", *runs, "--json"]) == 0
    assert [run["steps"] for run in json.loads(capsys.readouterr().out)] == [8, 4]
    assert run_command(["plot", *runs, "--csv"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("run,kind,step")
    assert told.err.count("damaged") == 1
    assert not list(tmp_path.rglob("*.svg")) + list(tmp_path.rglob("*.png"))
    assert run_command(["plot", *runs, "--csv", "--out", str(out), "--x", "time"]) == 0
    assert out.exists()
    assert run_command(["plot", *runs, "--csv", "--json"]) == 2
