"""A run killed by SIGKILL at any moment, again and again, ends with the same bits as one that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_faults import MOMENTS

from blutrain.checkpoint import CheckpointStore
from blutrain.data import prepare
from blutrain.metrics import read_metrics

TEXT = "".join(f"{n}: the quick brown fox jumps over the lazy dog {n * n}.\n" for n in range(40))
STEPS = 36
SETTINGS = (
    "model.layers=2", "model.heads=2", "model.channels=16", "model.context=16", "model.dropout=0.1",
    "train.micro_batch=4", "train.global_batch_tokens=128", f"train.steps={STEPS}",
    "train.log_every=1", "train.checkpoint_every=3", "train.keep_checkpoints=2", "train.eval_every=7",
    "train.eval_batches=2", "train.sample_every=11", "train.sample_tokens=4", "schedule.learning_rate=0.01",
)  # fmt: skip
"""Two micro-batches a step, three epochs, and a save, a validation or a sample after most steps."""

MIN_KILLS = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text(TEXT)
    return prepare([folder / "text"], folder / "tokens", shard_tokens=1000).path


def environment() -> dict[str, str]:
    """This process's import path for children."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


class KillServer:
    """A running ``kill_server.py``; ``told`` is what the last life printed, on one line."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("kill_server.py")
        self.told = ""
        # It forks, so it should have no threads; NumPy's would be one.
        variables = {**environment(), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )

    def live(
        self, data: Path, folder: Path, kill: dict[str, Any], changes: tuple[str, ...] = ()
    ) -> tuple[int | None, int | None]:
        """Trains a life of the run in ``folder``; returns the signal that ended it or its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        settings = [*SETTINGS, f"data.path={data}", f"run.folder={folder}", *changes]
        print(json.dumps({"settings": settings, "kill": kill}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        self.told = " ".join(answer["told"].split())
        return answer["signal"], answer["code"]

    def train(self, data: Path, folder: Path, *changes: str, **kill: Any) -> bool:
        """Trains a life that is killed or finishes; returns whether it was killed."""
        end = self.live(data, folder, kill, changes)
        assert end in ((signal.SIGKILL, None), (None, 0)), self.told
        return end[0] is not None

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def server() -> Iterator[KillServer]:
    server = KillServer()
    yield server
    server.close()


class Outcome:
    """What a finished run leaves, without what depends on the clock."""

    def __init__(self, folder: Path) -> None:
        self.events = [
            {key: event.get(key) for key in ("event", "step", "loss", "lr", "grad_norm", "begin", "end")}
            for event in read_metrics(folder)
        ]
        self.samples = (folder / "samples.txt").read_text()
        loaded = CheckpointStore(folder / "checkpoints").load_latest()
        assert loaded is not None
        self.path, self.tensors, self.meta = loaded
        self.checkpoints = sorted(path.name for path in (folder / "checkpoints").iterdir())
        del self.meta["config"]["run"]
        for key in ("threads", "background_checkpoints"):  # what lives of a run may differ in
            del self.meta["config"]["train"][key]

    def lines(self, step: int) -> int:
        """How many lines are written until ``step`` is recorded: one per event, and one for a sample's text."""
        events = [event for event in self.events if event["step"] <= step]
        return len(events) + sum(event["event"] == "sample" for event in events)

    def check_same_as(self, other: Outcome) -> None:
        assert self.events == other.events
        assert self.samples == other.samples
        assert self.checkpoints == other.checkpoints
        assert self.meta == other.meta
        assert self.tensors.keys() == other.tensors.keys()
        for name, array in other.tensors.items():
            np.testing.assert_array_equal(self.tensors[name], array, strict=True)


@pytest.fixture(scope="module")
def undisturbed(data: Path, server: KillServer, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert not server.train(data, folder, kind="never")
    return Outcome(folder)


def test_the_undisturbed_run_is_worth_disturbing(undisturbed: Outcome) -> None:
    trained = [event for event in undisturbed.events if event["event"] == "train"]
    assert [event["step"] for event in trained] == list(range(1, STEPS + 1))
    assert len({event["loss"] for event in trained}) == STEPS
    assert undisturbed.meta["epoch"] >= 2
    assert undisturbed.checkpoints == [
        *("latest", f"step-{STEPS - 3:08d}.safetensors", f"step-{STEPS:08d}.safetensors"),
    ]
    kinds = Counter(event["event"] for event in undisturbed.events)
    assert kinds["validation"] > 3
    assert kinds["sample"] > 3


def random_kill(chance: random.Random, life_seconds: float) -> dict[str, Any]:
    """Draws a moment to die at: half by the clock, half aimed at the writing of checkpoints, metrics and samples."""
    aimed = {"strike": chance.randrange(60), "moment": chance.choice(MOMENTS)}
    return chance.choice(
        [
            {"kind": "time", "seconds": chance.uniform(0, life_seconds)},
            {"kind": "time", "seconds": chance.uniform(0, life_seconds)},
            {"kind": "save", **aimed},
            {"kind": "line", **aimed, "strike": aimed["strike"] % 12},
        ]
    )


@pytest.mark.slow
def test_runs_killed_again_and_again_end_with_the_same_bits(
    data: Path, server: KillServer, undisturbed: Outcome, tmp_path: Path
) -> None:
    begin = time.perf_counter()
    assert not server.train(data, tmp_path / "whole", kind="never")
    life_seconds = time.perf_counter() - begin
    chance = random.Random(20)
    kills: Counter[str] = Counter()
    most_kills = finished = 0
    while kills.total() < MIN_KILLS:
        folder = tmp_path / f"run-{finished}"
        kills_of_run = 0
        while True:
            # The later lives get longer, so that a run ends whatever the machine's speed.
            kill = random_kill(chance, life_seconds * (1 + kills_of_run / 20))
            changes = (
                f"train.threads={chance.choice([1, 2])}",
                f"train.background_checkpoints={chance.choice(['on', 'off'])}",
            )
            if not server.train(data, folder, *changes, **kill):
                break
            kills[kill["kind"]] += 1
            kills_of_run += 1
            check_newest_good(folder)
        Outcome(folder).check_same_as(undisturbed)
        most_kills = max(most_kills, kills_of_run)
        finished += 1
    assert finished >= 3
    assert most_kills >= 2
    assert min(kills["time"], kills["save"], kills["line"]) >= 20


def check_newest_good(folder: Path) -> None:
    """Asserts that a killed run has lost none of its checkpoints: each whole file is a good one."""
    store = CheckpointStore(folder / "checkpoints", report=pytest.fail)
    assert store.latest() == (store.list() or [None])[-1]


@pytest.mark.parametrize("step", [1, 3, 11, 12, 13, 14, 15, STEPS])
def test_killed_twice_at_the_same_step(
    data: Path, server: KillServer, undisturbed: Outcome, tmp_path: Path, step: int
) -> None:
    """Both lives die when they have recorded the step and what follows it, before it is saved."""
    folder = tmp_path / "run"
    for _ in range(2):
        saved = CheckpointStore(folder / "checkpoints").latest()
        lines = undisturbed.lines(step) - undisturbed.lines(step_of(saved))
        assert server.train(data, folder, kind="line", strike=lines - 1, moment="after")
        assert read_metrics(folder)[-1]["step"] == step
    assert not server.train(data, folder, kind="never")
    Outcome(folder).check_same_as(undisturbed)


def step_of(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.stem.removeprefix("step-"))


def test_a_disk_without_room_for_a_checkpoint_ends_the_run_and_loses_nothing(
    data: Path, server: KillServer, undisturbed: Outcome, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert server.train(data, folder, kind="line", strike=undisturbed.lines(10), moment="after")
    for _ in range(2):
        assert server.live(data, folder, {"kind": "disk", "bytes": 30_000}) == (None, 2)
        assert "error: [checkpoint]" in server.told
        assert "earlier checkpoints are untouched" in server.told
        assert CheckpointStore(folder / "checkpoints").latest() == folder / "checkpoints" / "step-00000009.safetensors"
    assert not server.train(data, folder, kind="never")
    Outcome(folder).check_same_as(undisturbed)


def test_a_damaged_newest_checkpoint_costs_its_steps_and_no_bit(
    data: Path, server: KillServer, undisturbed: Outcome, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert server.train(data, folder, kind="line", strike=undisturbed.lines(20), moment="after")
    newest = folder / "checkpoints" / "step-00000018.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    assert not server.train(data, folder, kind="never")
    assert "step-00000018.safetensors: tensor" in server.told
    assert "resuming at step 15" in server.told
    newest.with_name(newest.name + ".damaged").unlink()
    Outcome(folder).check_same_as(undisturbed)


def test_the_command_line_killed_at_random_moments(data: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "blutrain", "train", "--resume"]
    for setting in (*SETTINGS, f"data.path={data}", f"run.folder={folder}"):
        command += ["--set", setting]
    chance = random.Random(3)
    for _ in range(3):
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as child:
            before = len(read_metrics(folder))
            deadline = time.monotonic() + 60
            # Importing takes longer than training: wait until a step is recorded, then for a random while.
            while child.poll() is None and len(read_metrics(folder)) == before and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.1))
            child.send_signal(signal.SIGKILL)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    Outcome(folder).check_same_as(undisturbed)
