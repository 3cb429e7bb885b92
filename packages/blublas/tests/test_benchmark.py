"""What the benchmark computes, on an eighth of its sizes; never how long it takes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

GEMM = Path(__file__).resolve().parents[1] / "benchmarks" / "gemm.py"


@pytest.fixture
def benchmark(torch: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("blublas_benchmark_gemm", GEMM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
def test_both_compute_the_same(benchmark: ModuleType) -> None:
    rng = np.random.default_rng(0)
    names = []
    for work in benchmark.all_work(divisor=8):
        ours, peer = benchmark.make_operands(work, rng)
        benchmark.compare(work, ours, peer)  # exits when they differ
        outputs = [name for name in work.shapes if name.startswith("out")]
        assert outputs
        for name in outputs:
            assert ours[name].any()
            assert not np.shares_memory(ours[name], peer[name].numpy())
        names.append(work.name)
    assert len(set(names)) == len(names) == 3 + 3 * 5 + 10


@pytest.mark.torch
def test_a_difference_is_noticed(benchmark: ModuleType) -> None:
    work = next(benchmark.all_work(divisor=16))
    ours, peer = benchmark.make_operands(work, np.random.default_rng(0))
    ours["a"] = ours["a"] + 1
    with pytest.raises(SystemExit, match="expected out of"):
        benchmark.compare(work, ours, peer)


def test_without_torch_there_is_help_and_one_message(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError\n", encoding="utf-8")
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, str(GEMM)]
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, env=environment, timeout=60)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "--threads" in helped.stdout
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (refused.returncode, refused.stderr) == (
        1,
        "expected PyTorch as the peer, got none; install torch==2.13.0\n",
    )
