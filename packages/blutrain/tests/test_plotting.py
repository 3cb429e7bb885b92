"""Plots: every run gives a PNG, whatever it holds, and the curves are those of its events."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from blutrain.comparison import Curve, RunCurves, compare
from blutrain.errors import InvalidInputError
from blutrain.metrics import LineFile, RunFolderAccessError, RunFolderError
from blutrain.plotting import draw, plot, running_mean


def make_run(folder: Path, losses: list[float], validations: dict[int, float] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").touch()
    file = LineFile(folder / "metrics.jsonl")
    for step, loss in enumerate(losses, 1):
        file.append({"event": "train", "step": step, "loss": loss})
    for step, loss in (validations or {}).items():
        file.append({"event": "validation", "step": step, "loss": loss})
    return folder


def png_size(data: bytes) -> tuple[int, int]:
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("steps", [0, 1, 2, 99, 100, 101, 2000])
@pytest.mark.parametrize("validations", [{}, {1: 3.0}, {1: 3.0, 50: 2.0}])
def test_a_run_of_any_length_gives_a_picture(tmp_path: Path, steps: int, validations: dict[int, float]) -> None:
    run = make_run(tmp_path / "run", [5 / math.sqrt(step) for step in range(1, steps + 1)], validations)
    out = plot(run)
    assert out == run / "loss.png"
    assert png_size(out.read_bytes()) == (960, 600)
    assert not list(run.glob("*.tmp"))


def test_a_run_without_points_says_so_and_others_do_not() -> None:
    nothing = Curve((), ())
    empty = draw([RunCurves("a", nothing, nothing)])
    one = draw([RunCurves("a", Curve((1,), (2.0,)), nothing)])
    assert png_size(empty) == png_size(one)
    assert empty != one
    assert png_size(draw([])) == png_size(one)


def test_the_curves_are_those_of_the_events(tmp_path: Path) -> None:
    run = make_run(tmp_path / "first", [3.0, math.nan, 2.0, math.inf], {2: 2.5, 4: math.nan})
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "step": 9}\n{"event": "sample", "step": 9, "begin": 0}\n{"loss": 1.0}\n{"ev')
    told: list[str] = []
    (curves,) = compare(run, told.append)
    assert (curves.train.steps, curves.train.losses) == ((1, 3), (3.0, 2.0))
    assert (curves.validation.steps, curves.validation.losses) == ((2,), (2.5,))
    assert told == [f"warning: {run}/metrics.jsonl: passed over 1 damaged line(s), the first is line 10"]


def test_several_runs_are_told_apart_by_their_names(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, [2.0, 1.0], {2: 1.5}) for name in ("a/run", "b/run", "c/other")]
    plot(runs, tmp_path / "all.png")
    assert png_size((tmp_path / "all.png").read_bytes()) == (1980, 600)  # steps, tokens and time
    names = [curves.name for curves in compare(runs)]
    assert names == [str(runs[0]), str(runs[1]), "other"]


def test_a_file_of_metrics_stands_for_its_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [2.0])
    assert plot(run / "metrics.jsonl") == run / "loss.png"


def test_the_running_mean_is_exact_at_its_ends() -> None:
    assert running_mean([], 5) == []
    assert running_mean([4.0], 5) == [4.0]
    assert running_mean([1.0, 2.0, 3.0], 1) == [1.0, 2.0, 3.0]
    assert running_mean([7.0] * 50, 10) == pytest.approx([7.0] * 50)
    assert running_mean([0.0, 1.0], 2) == pytest.approx([0.0, 2 / 3])  # (0.5 * 0 + 1) / (0.5 + 1)


def test_bad_input_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="expected at least one run"):
        plot([])
    with pytest.raises(RunFolderError, match="missing: expected a run folder"):
        plot([make_run(tmp_path / "run", [1.0]), tmp_path / "missing"])
    with pytest.raises(InvalidInputError, match="x to be of step, tokens, time, got 'epoch'"):
        plot(tmp_path / "run", x="epoch")
    with pytest.raises(RunFolderAccessError, match="No such file"):
        plot(tmp_path / "run", tmp_path / "no" / "such.png")


def test_names_that_look_like_mathematics_are_harmless(tmp_path: Path) -> None:
    run: Any = make_run(tmp_path / "$a_{", [1.0, 2.0])
    other = make_run(tmp_path / "_b$", [1.0, 2.0])
    assert png_size(plot([run]).read_bytes()) == png_size(plot([run, other], x="step").read_bytes())


def test_a_folder_without_metrics_and_a_name_of_no_png_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"without metrics\.jsonl"):
        plot(tmp_path)
    assert list(tmp_path.iterdir()) == []
    run = make_run(tmp_path / "run", [1.0, 2.0])
    with pytest.raises(RunFolderError, match=r"ends in \.png or \.svg, got '\.xyz'"):
        plot(run, tmp_path / "x.xyz")
    assert plot(run, tmp_path / "x.PNG").exists()
