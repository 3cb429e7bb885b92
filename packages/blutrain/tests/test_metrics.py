"""Lines of metrics: what is written comes back, torn lines are no harm, and cutting loses nothing before the cut."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_faults import MOMENTS, CrashingFiles, FailingFiles, HookedFiles, SimulatedCrash
from hypothesis import given, settings
from hypothesis import strategies as st

from blutrain.metrics import LineFile, RunFolderAccessError, encode_event, read_metrics, truncate_metrics

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
EVENTS = st.fixed_dictionaries({"step": st.integers(0, 50)}, optional={"loss": VALUES, "event": st.text(max_size=4)})
WORDS = ("NaN", "Infinity", "-Infinity")


def events_up_to(steps: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        events.append({"event": "train", "step": step, "loss": 1 / step})
        if step % 3 == 0:
            events.append({"event": "validation", "step": step, "loss": 2 / step})
    return events


def write(path: Path, events: list[dict[str, Any]]) -> None:
    file = LineFile(path)
    for event in events:
        file.append(event)
    file.sync()
    file.close()


@settings(max_examples=100, deadline=None)
@given(events=st.lists(EVENTS, max_size=8))
def test_events_come_back(tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]) -> None:
    events = [event for event in events if event.get("loss") not in WORDS and event.get("event") not in WORDS]
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    write(path, events)
    assert read_metrics(path) == events
    assert len(path.read_bytes().splitlines()) == len(events) if events else not path.exists()


def test_numbers_that_json_lacks_are_strings_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [{"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1 + 0.2}])
    strict = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert strict == {"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.1 + 0.2}
    (event,) = read_metrics(path)
    assert math.isnan(event["a"])
    assert (event["b"], event["c"], event["d"]) == (math.inf, -math.inf, 0.1 + 0.2)


def test_appending_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = LineFile(path)
    assert file.append_text("ab\n") == (0, 3)
    file.close()
    assert file.append_text("é\n") == (3, 6)
    assert LineFile(path).append_text("\ud800") == (6, 7)  # what is no text is replaced
    assert path.read_bytes() == "ab\né\n?".encode()


def test_no_file_is_no_events(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    assert read_metrics(tmp_path) == []
    assert truncate_metrics(tmp_path / "metrics.jsonl", 5) == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_stands_for_its_metrics(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", events_up_to(2))
    assert read_metrics(tmp_path) == events_up_to(2)


def test_torn_and_foreign_lines_are_passed_over_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = [encode_event(event).encode() for event in events_up_to(3)]
    noise = [b"", b"{", b"\xff\xfe", b"\0" * 50, b"[1]", b"7", b'{"step": 1', b"[" * 100_000]
    path.write_bytes(b"\n".join([noise[0], good[0], *noise, *good[1:], good[0][:-5]]))
    assert read_metrics(path) == events_up_to(3)
    assert truncate_metrics(path, 3) == events_up_to(3)
    assert path.read_bytes() == b"".join(line + b"\n" for line in good)


@pytest.mark.parametrize("length", range(1, 30))
def test_a_last_line_torn_anywhere_is_passed_over(tmp_path: Path, length: int) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, events_up_to(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-length])
    assert read_metrics(path) == events_up_to(1)
    truncate_metrics(path, 10)
    write(path, events_up_to(2)[1:])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("step", [-1, 0, 1, 3, 6, 7, 100])
def test_cutting_keeps_everything_up_to_the_step(tmp_path: Path, step: int) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [{"event": "note"}, *events_up_to(7)])
    before = path.stat()
    kept = truncate_metrics(path, step)
    assert kept == read_metrics(path) == [{"event": "note"}, *(e for e in events_up_to(7) if e["step"] <= step)]
    if step >= 7:  # nothing to do: the file is not even replaced
        assert path.stat().st_ino == before.st_ino


def test_a_fault_while_cutting_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    def prepare(name: str) -> Path:
        path = tmp_path / name
        write(path, events_up_to(9))
        return path

    files = HookedFiles()
    truncate_metrics(prepare("whole"), 4, files)
    assert files.log == ["create", "write", "fsync", "close", "rename", "fsync_dir"]
    for strike, operation in enumerate(files.log):
        for moment in MOMENTS:
            path = prepare(f"crash-{strike}-{moment}")
            with pytest.raises(SimulatedCrash):
                truncate_metrics(path, 4, CrashingFiles(strike, moment))
            assert read_metrics(path) in (events_up_to(9), events_up_to(4))
            assert truncate_metrics(path, 4) == read_metrics(path) == events_up_to(4)
        path = prepare(f"error-{strike}")
        with pytest.raises(RunFolderAccessError, match="Input/output error"):
            truncate_metrics(path, 4, FailingFiles(strike))
        renamed = operation == "fsync_dir"
        assert read_metrics(path) == (events_up_to(4) if renamed else events_up_to(9))


FULL_DISK = """
import resource, sys
from blutrain.metrics import LineFile, RunFolderAccessError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = LineFile(sys.argv[1])
try:
    for step in range(1000):
        file.append({"step": step})
except RunFolderAccessError as error:
    print(error.errno, error)
"""


def test_a_file_that_cannot_grow_is_a_typed_error_and_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", FULL_DISK, str(path)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert str(path) in child.stdout, child.stderr
    assert "expected to read and write it, got 'File too large'" in child.stdout
    events = read_metrics(path)
    assert events == [{"step": step} for step in range(len(events))]
    assert len(events) > 50
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_a_folder_in_place_of_the_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunFolderAccessError, match="Is a directory"):
        LineFile(tmp_path / "metrics.jsonl").append({"step": 1})
    with pytest.raises(RunFolderAccessError):
        read_metrics(tmp_path)
