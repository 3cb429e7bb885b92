"""The run folder: one process at a time, no step twice, nothing removed that is not a run's."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_faults import MOMENTS, CrashingFiles, SimulatedCrash

from blutrain.metrics import RunFolderAccessError, read_metrics
from blutrain.recorder import Recorder
from blutrain.run_folder import RunExistsError, RunFolder, RunFolderLockedError, RunPaths
from blutrain.tensorboard import EventWriter, crc32c, masked_checksum


def record(recorder: Recorder, first: int, last: int) -> None:
    """Records steps ``first`` to ``last`` as a trainer does: a validation and a sample every third."""
    for step in range(first, last + 1):
        recorder.train(step=step, loss=9 / step, lr=0.1, grad_norm=1.0, tokens_per_second=5.0, mfu=None, memory_mib=2.0)
        if step % 3 == 0:
            recorder.validation(step=step, loss=8 / step, tokens=64)
            recorder.sample(step=step, text=f"text of {step}\n=== step 1 ===")


def contents(folder: Path) -> tuple[list[dict[str, Any]], str]:
    samples = folder / "samples.txt"
    return read_metrics(folder), samples.read_text() if samples.exists() else ""


# ---- the recorder ---------------------------------------------------------------------------------------------------


def test_events_are_one_object_each(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.train(
        step=1, loss=2.5, lr=1e-3, grad_norm=math.inf, tokens_per_second=10.0, mfu=0.4, memory_mib=3.0, skipped=True
    )
    recorder.validation(step=1, loss=2.0, tokens=7)
    recorder.flush()
    assert read_metrics(tmp_path) == [
        {
            **{"event": "train", "step": 1, "loss": 2.5, "lr": 1e-3, "grad_norm": math.inf},
            **{"tokens_per_second": 10.0, "mfu": 0.4, "memory_mib": 3.0, "skipped": True},
        },
        {"event": "validation", "step": 1, "loss": 2.0, "tokens": 7},
    ]


@pytest.mark.parametrize("step", range(10))
def test_a_resumed_run_records_the_same_as_an_undisturbed_one(tmp_path: Path, step: int) -> None:
    undisturbed, resumed = tmp_path / "undisturbed", tmp_path / "resumed"
    undisturbed.mkdir()
    resumed.mkdir()
    record(Recorder(undisturbed), 1, 9)
    record(Recorder(resumed), 1, 7)
    with (resumed / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "st')  # torn by a power cut
    recorder = Recorder(resumed)
    recorder.resume_at(step)
    record(recorder, step + 1, 9)
    if step <= 7:
        assert contents(resumed) == contents(undisturbed)
    steps = [event["step"] for event in read_metrics(resumed) if event["event"] == "train"]
    assert len(steps) == len(set(steps))


def test_a_recorder_that_is_used_goes_back_too(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    record(recorder, 1, 7)
    recorder.resume_at(4)
    record(recorder, 5, 6)
    metrics, samples = contents(tmp_path)
    assert [event["step"] for event in metrics if event["event"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert samples.count("text of 6") == 1


def test_a_sample_without_its_event_is_removed(tmp_path: Path) -> None:
    """The process was killed between writing the text and recording it."""
    recorder = Recorder(tmp_path)
    record(recorder, 1, 4)
    before = contents(tmp_path)
    with (tmp_path / "samples.txt").open("a") as file:
        file.write("=== step 6 ===\nhalf a te")
    recorder.resume_at(4)
    assert contents(tmp_path) == before


def test_a_crash_while_going_back_is_repaired_by_going_back_again(tmp_path: Path) -> None:
    for strike in range(6):
        for moment in MOMENTS:
            folder = tmp_path / f"{strike}-{moment}"
            folder.mkdir()
            record(Recorder(folder), 1, 9)
            with pytest.raises(SimulatedCrash):
                Recorder(folder, files=CrashingFiles(strike, moment)).resume_at(4)
            recorder = Recorder(folder)
            recorder.resume_at(4)
            record(recorder, 5, 9)
            expected = tmp_path / f"expected-{strike}-{moment}"
            expected.mkdir()
            record(Recorder(expected), 1, 9)
            assert contents(folder) == contents(expected)


# ---- TensorBoard ----------------------------------------------------------------------------------------------------


def test_crc32c_is_the_one_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


def read_records(path: Path) -> list[bytes]:
    """Reads a TFRecord file and checks every checksum."""
    data, records = path.read_bytes(), []
    while data:
        length = data[:8]
        assert data[8:12] == masked_checksum(length)
        end = 12 + struct.unpack("<Q", length)[0]
        assert data[end : end + 4] == masked_checksum(data[12:end])
        records.append(data[12:end])
        data = data[end + 4 :]
    return records


def fields(message: bytes) -> list[tuple[int, Any]]:
    """Decodes a protocol buffer into numbers of fields and values."""

    def varint() -> int:
        nonlocal message
        value = shift = 0
        while True:
            byte, message = message[0], message[1:]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    found: list[tuple[int, Any]] = []
    while message:
        number, kind = divmod(varint(), 8)
        if kind == 0:
            found.append((number, varint()))
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        value, message = message[:size], message[size:]
        found.append((number, struct.unpack("<d" if kind == 1 else "<f", value)[0] if kind in (1, 5) else value))
    return found


def test_event_files_hold_the_scalars(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "tensorboard", first_step=300)
    writer.scalars(300, {"train/loss": 2.5, "train/lr": 1e300})
    writer.scalars(2**40, {"validation/loss": -1.25})
    writer.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    version, start, first, second = (dict(fields(record)) for record in read_records(path))
    assert version[3] == b"brain.Event:2"
    assert start[2] == 300
    assert fields(start[7]) == [(1, 1)]  # SessionLog.START: earlier files' events from this step on are dropped
    assert abs(first[1] - path.stat().st_mtime) < 60
    assert first[2] == 300
    assert [dict(fields(value)) for _, value in fields(first[5])] == [
        {1: b"train/loss", 2: 2.5},
        {1: b"train/lr", 2: math.inf},
    ]
    assert second[2] == 2**40
    assert [dict(fields(value)) for _, value in fields(second[5])] == [{1: b"validation/loss", 2: -1.25}]


def test_tensorboard_itself_reads_a_resumed_run_without_what_the_crash_undid(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    record(Recorder(tmp_path), 1, 7)
    for last in (8, 9):
        recorder = Recorder(tmp_path)
        recorder.resume_at(5)
        record(recorder, 6, last)
        recorder.close()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 3
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("train/loss")] == list(range(1, 10))
    assert [scalar.value for scalar in events.Scalars("validation/loss")] == pytest.approx([8 / 3, 8 / 6, 8 / 9])
    assert "train/mfu" not in events.Tags()["scalars"]


def test_a_recorder_that_was_closed_goes_on_and_takes_nothing_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    record(recorder, 1, 2)
    recorder.close()
    record(recorder, 3, 4)
    starts = [dict(fields(read_records(path)[1]))[2] for path in sorted((tmp_path / "tensorboard").iterdir())]
    assert starts == [0, 3]


def test_without_tensorboard_there_is_no_folder_of_it(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, loggers=[])
    record(recorder, 1, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "samples.txt"]


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_a_folder_is_made_and_remembers_configuration_and_log(tmp_path: Path) -> None:
    with RunFolder.start(tmp_path / "a" / "b") as folder:
        folder.write_config("steps = 1\n")
        folder.write_config("steps = 2\n")
        folder.log_event("started", preset="gpt2-nano")
        folder.log_event("damaged", level="warning", text="x")
    assert folder.config.read_text() == "steps = 2\n"
    lines = [json.loads(line) for line in folder.log.read_text().splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [("info", "started"), ("warning", "damaged")]
    assert lines[0]["preset"] == "gpt2-nano"
    assert lines[0]["time"].endswith("+00:00")


def make_run(path: Path) -> RunPaths:
    with RunFolder.start(path) as folder:
        folder.write_config("x = 1\n")
        folder.log_event("started")
        record(Recorder(folder), 1, 4)
        folder.checkpoints.mkdir()
        for name in ("step-00000004.safetensors", "step-00000002.safetensors.damaged", "latest", "x.safetensors"):
            (folder.checkpoints / name).write_text("x")
        (folder.path / "notes.txt").write_text("mine")
        (folder.tensorboard / "notes.txt").write_text("mine")
        folder.plot.write_text("png")
    return folder


def test_starting_in_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(RunExistsError, match="--resume, replace it with --overwrite"):
        RunFolder.start(tmp_path)
    assert contents(tmp_path) == before
    with RunFolder.resume(tmp_path) as folder:
        assert folder.holds_run()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("trace", ["metrics.jsonl", "checkpoints/step-00000004.safetensors"])
def test_metrics_or_a_checkpoint_alone_are_a_run(tmp_path: Path, trace: str) -> None:
    (tmp_path / trace).parent.mkdir(exist_ok=True)
    (tmp_path / trace).write_text("x")
    with pytest.raises(RunExistsError):
        RunFolder.start(tmp_path)


def test_a_run_that_never_made_a_step_is_no_run(tmp_path: Path) -> None:
    with RunFolder.start(tmp_path) as folder:
        folder.write_config("x = 1\n")
        folder.log_event("failed")
        folder.metrics.touch()
    with RunFolder.start(tmp_path) as folder:
        assert not folder.holds_run()


def test_overwriting_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    paths = make_run(tmp_path)
    with RunFolder.start(tmp_path, overwrite=True) as folder:
        assert not folder.holds_run()
        folder.checkpoints.mkdir(exist_ok=True)
        (folder.checkpoints / "step-00000001.safetensors").write_text("new")
        folder.settle()
        assert not list(tmp_path.rglob(".replaced"))
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [
        *("checkpoints/step-00000001.safetensors", "checkpoints/x.safetensors", "log.jsonl", "notes.txt", "run.lock"),
        "tensorboard/notes.txt",
    ]
    assert "started" in paths.log.read_text()


def run_contents(folder: Path) -> dict[str, bytes]:
    """Everything of a run but its log, which only grows, and its lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("log.jsonl", "run.lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_overwriting_without_a_checkpoint_gives_the_old_run_back(tmp_path: Path) -> None:
    make_run(tmp_path)
    before = run_contents(tmp_path)
    with RunFolder.start(tmp_path, overwrite=True) as folder:
        folder.write_config("x = 2\n")
        record(Recorder(folder), 1, 9)
    assert run_contents(tmp_path) == before


@pytest.mark.parametrize("operation", ["rename", "mkdir", "unlink", "touch", "rmdir"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_overwriting_interrupted_anywhere_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, has_checkpoint: bool
) -> None:
    """As a kill does, everything fails from the n-th operation on; the next process repairs it."""
    original = getattr(Path, operation)
    for allowed in range(12):
        folder = tmp_path / f"{allowed}"
        make_run(folder)
        before = run_contents(folder)
        left = allowed

        def limited(self: Path, *arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise OSError(5, "killed")
            left -= 1
            return original(self, *arguments, **options)

        written = False
        monkeypatch.setattr(Path, operation, limited)
        with contextlib.suppress(OSError), RunFolder.start(folder, overwrite=True) as new:
            new.write_config("x = 2\n")
            if has_checkpoint:
                (new.checkpoints / "step-00000009.safetensors").write_bytes(b"new")
                written = True
        monkeypatch.setattr(Path, operation, original)
        RunFolder.resume(folder).close()
        assert not list(folder.rglob(".replaced"))
        found = run_contents(folder)
        if written:
            assert found["config.toml"] == b"x = 2\n"
            assert found["checkpoints/step-00000009.safetensors"] == b"new"
            assert "checkpoints/step-00000004.safetensors" not in found
        else:
            assert found == before


HOLDER = """
import sys, time
from blutrain.run_folder import RunFolder
folder = RunFolder.resume(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""


def test_two_processes_do_not_train_in_one_folder_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        for attempt in (RunFolder.start, RunFolder.resume):
            with pytest.raises(RunFolderLockedError, match=f'"pid": {holder.pid}'):
                attempt(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    RunFolder.resume(tmp_path).close()


def test_the_lock_holds_within_a_process_too(tmp_path: Path) -> None:
    with RunFolder.start(tmp_path), pytest.raises(RunFolderLockedError):
        RunFolder.start(tmp_path)
    RunFolder.start(tmp_path).close()


def test_a_refused_start_leaves_no_lock(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(RunExistsError):
        RunFolder.start(tmp_path)
    RunFolder.resume(tmp_path).close()


def test_a_file_in_place_of_the_folder_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunFolderAccessError, match="choose another folder"):
            RunFolder.start(path)


READ_ONLY_CHILD = """
import os, sys
from blutrain.metrics import RunFolderAccessError
from blutrain.recorder import Recorder
from blutrain.run_folder import RunFolder
from blutrain.tensorboard import EventWriter
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
path = sys.argv[1]
for attempt in (
    lambda: RunFolder.start(path),
    lambda: RunFolder.resume(path + "/new"),
    lambda: Recorder(path).validation(step=1, loss=1.0, tokens=1),
    lambda: Recorder(path).sample(step=1, text="x"),
    lambda: EventWriter(path + "/tensorboard"),
):
    try:
        attempt()
    except RunFolderAccessError as error:
        print(error)
"""


def test_a_read_only_folder_is_a_typed_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    import tempfile

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with tempfile.TemporaryDirectory() as name:  # pytest's folders cannot even be entered by other users
        folder = Path(name) / "run"
        folder.mkdir()
        Path(name).chmod(0o755)
        folder.chmod(0o555)
        command = [sys.executable, "-c", READ_ONLY_CHILD, str(folder)]
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert child.stdout.count("Permission denied': free space, make it writable") == 5, child.stderr
