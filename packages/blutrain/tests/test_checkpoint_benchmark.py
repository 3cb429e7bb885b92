"""The benchmark of checkpoints saves and loads what it says, whatever the time it takes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "checkpoint.py"
    spec = importlib.util.spec_from_file_location("checkpoint_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shapes_are_those_of_gpt2(benchmark: ModuleType) -> None:
    shapes = benchmark.parameter_shapes(12, 768, 1024, 50257)
    assert sum(np.prod(shape) for shape in shapes.values()) == 124_439_808


@pytest.mark.parametrize("name", ["Ours", pytest.param("Peer", marks=pytest.mark.torch)])
def test_what_is_loaded_is_what_was_saved(benchmark: ModuleType, tmp_path: Path, name: str, request: Any) -> None:
    if name == "Peer":
        request.getfixturevalue("torch")
    state = benchmark.training_state(1, 8, 4, 16)
    target = {key: np.empty_like(array) for key, array in state.items()}
    times = benchmark.measure(getattr(benchmark, name)(tmp_path), state, target, 3)
    assert times.keys() == {"save", "load", "stall"}
    assert all(np.array_equal(target[key], array) for key, array in state.items())


def test_a_wrong_value_is_no_result(benchmark: ModuleType, tmp_path: Path) -> None:
    class Forgetful(benchmark.Ours):
        def load(self, path: Path, target: dict[str, np.ndarray]) -> None:
            super().load(path, target)
            target["rng"][0] = 0

    state = benchmark.training_state(1, 8, 4, 16)
    target = {key: np.empty_like(array) for key, array in state.items()}
    with pytest.raises(RuntimeError, match="loaded other values of \\['rng'\\]"):
        benchmark.measure(Forgetful(tmp_path), state, target, 3)


def test_rows_have_the_fields_of_results(benchmark: ModuleType) -> None:
    rows = benchmark.rows({"save": 30.0, "load": 10.0}, {"save": 20.0, "load": 40.0}, "torch", "command")
    assert [(row["work"], row["ours"], row["peer"], row["ratio"], row["better"]) for row in rows] == [
        ("checkpoint.124M.save.ms", 30.0, 20.0, 1.5, "lower"),
        ("checkpoint.124M.load.ms", 10.0, 40.0, 0.25, "lower"),
    ]
    alone = benchmark.rows({"save": 30.0}, None, "", "command")
    assert alone[0].keys() >= {"work", "ours", "better", "machine", "commit", "date", "command"}
    assert "ratio" not in alone[0]
