"""What the benchmark computes, never how long it took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blutrain import benchmark
from blutrain.benchmark import BenchError, bench, format_table, save
from blutrain.benchmark.works import MODELS, TRAIN_WORKS, TrainWork, select
from blutrain.config import ModelConfig
from blutrain.errors import InvalidInputError
from blutrain.validation import check_config


def test_works_are_valid_runs_with_the_names_of_the_design() -> None:
    assert [work.name for work in TRAIN_WORKS[:2]] == ["train.nano.fp32.T128.B16.cpu", "train.30M.fp32.T256.B4.cpu"]
    for work in TRAIN_WORKS:
        config = work.config("data", 2)
        check_config(config)
        assert config.accumulation_steps() == 1


def test_selection() -> None:
    assert [work.model for work in select(())] == ["nano", "30M"]
    assert [work.model for work in select(("train.124M.*.cpu", "*.nano.*tokens_per_s"))] == ["124M", "nano"]
    with pytest.raises(InvalidInputError, match=r"known: train\.nano"):
        select(("gemm.*",))


def test_bad_numbers() -> None:
    with pytest.raises(InvalidInputError, match="'jax'"):
        bench(peer="jax")
    with pytest.raises(InvalidInputError, match="rounds"):
        bench(rounds=0)


def test_entries_are_ratios_of_medians(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    speeds = iter([100.0, 300.0, 200.0])

    def ours(work: str, *_: int) -> dict[str, Any]:
        if work == "host":
            return {"host_us_per_step": 12.345, "call_us": 50}
        return {"tokens_per_s": next(speeds), "peak_gib": 0.5, "arena_bytes": 103, "peak_live_bytes": 100}

    monkeypatch.setattr(benchmark, "run_ours", ours)
    monkeypatch.setattr(
        benchmark, "_run_torch", lambda *_: {"tokens_per_s": 50.0, "peak_gib": 1.0, "name": "torch-eager x"}
    )
    entries = bench(["train.nano.*"], peer="torch", rounds=3, threads=2)
    by_work = {entry["work"]: entry for entry in entries}
    assert list(by_work) == [
        "train.nano.fp32.T128.B16.cpu.tokens_per_s",
        "train.nano.fp32.T128.B16.cpu.peak_gib",
        "train.nano.fp32.T128.B16.cpu.arena_over_live",
        "host.captured_step.us",
        "host.run_call.us",
    ]
    speed = by_work["train.nano.fp32.T128.B16.cpu.tokens_per_s"]
    assert (speed["ours"], speed["peer"], speed["ratio"], speed["better"]) == (200, 50, 4, "higher")
    assert by_work["train.nano.fp32.T128.B16.cpu.peak_gib"]["ratio"] == 0.5
    assert {
        "work",
        "ours",
        "peer",
        "peer_name",
        "ratio",
        "better",
        "machine",
        "driver",
        "commit",
        "date",
        "command",
    } == (set(speed))
    save(entries, tmp_path / "new" / "train.json")
    assert json.loads((tmp_path / "new" / "train.json").read_text()) == entries
    assert "4.000" in format_table(entries).splitlines()[1]


def test_a_peer_that_ran_out_of_memory_is_named() -> None:
    from blutrain.benchmark import compare

    ours = {"tokens_per_s": 100.0, "peak_gib": 1.0, "arena_bytes": 1, "peak_live_bytes": 1}
    theirs = [{"name": f"torch-{mode} 1.0", "error": "out of memory"} for mode in ("eager", "compile")]
    speed = compare(TrainWork("nano", 8, 2), [ours], theirs, threads=1)[0]
    assert (speed["peer"], speed["ratio"]) == (None, None)
    assert speed["peer_name"] == "torch-eager 1.0 and torch-compile 1.0: out of memory"


TINY = ModelConfig(layers=1, heads=1, channels=8, vocab_size=60)


def test_the_worker_trains_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from blutrain.benchmark import worker

    monkeypatch.setitem(MODELS, "tiny", TINY)
    found = worker.measure(TrainWork("tiny", 8, 2), threads=1, steps=2, warmup=3)
    assert found["loss"] == pytest.approx(np.log(64), abs=0.3)  # as good as no training on random tokens
    assert found["arena_bytes"] >= found["peak_live_bytes"] > 0
    assert found["tokens_per_s"] > 0
    assert found["peak_gib"] > 0
    host = worker.measure_host_time(1, steps=20)
    assert set(host) == {"host_us_per_step", "call_us"}
    assert host["host_us_per_step"] >= 0


@pytest.mark.torch
def test_the_peer_trains_the_same_work(torch: Any) -> None:
    from blutrain.benchmark import peer_torch

    work = {"layers": 1, "heads": 1, "channels": 8, "rows": 64, "vocabulary": 60, "context": 8, "batch": 2}
    found = peer_torch.measure({**work, "threads": torch.get_num_threads(), "warmup": 1, "steps": 2})
    assert found["loss"] == pytest.approx(np.log(64), abs=0.3)
    assert found["name"].startswith("torch-eager")


def test_a_failing_process_is_reported_in_one_line() -> None:
    import sys

    with pytest.raises(BenchError, match=r"exit code 3: last words"):
        benchmark._run([sys.executable, "-c", "import sys; print('last words', file=sys.stderr); sys.exit(3)"], 1)
