"""The overhead benchmark measures what it says and writes rows of the agreed form (not how long things take)."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import blutensor as bt

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "overhead.py"


@pytest.fixture
def overhead() -> Any:
    spec = importlib.util.spec_from_file_location("overhead", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["overhead"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["overhead"]


def test_rows(overhead: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = overhead.microseconds
    monkeypatch.setattr(overhead, "microseconds", lambda call, calls, rounds=1: measured(call, min(calls, 3), 1))
    out = tmp_path / "results" / "overhead.json"
    rows = overhead.main(["--out", str(out)])
    assert json.loads(out.read_text()) == rows
    assert {r["work"] for r in rows} == {
        "eager.add.us", "eager.add_scalar.us", "eager.backward.us", "captured.one_operator.us", "captured.step.us",
        "captured.step.interpreter.us", "captured.loop_host.us",
    }  # fmt: skip
    for r in rows:
        assert {"work", "ours", "better", "machine", "commit", "date", "command"} <= set(r)
        assert ("peer" in r) == ("ratio" in r)


def test_median(overhead: Any) -> None:
    calls = []
    assert overhead.microseconds(lambda: calls.append(1), 5, 3) >= 0
    assert len(calls) == 16  # one to warm up, three rounds of five


@pytest.mark.skipif(bt.cuda.is_available(), reason="there is a GPU here")
def test_the_benchmark_of_a_gpu_says_why_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import overhead_cuda
    finally:
        sys.path.remove(str(SCRIPT.parent))
    with pytest.raises(SystemExit) as stopped:
        overhead_cuda.main([])
    assert stopped.value.code == 2
    assert "no GPU: " in capsys.readouterr().err
