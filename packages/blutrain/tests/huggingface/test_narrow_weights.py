"""Weights of 16 bits, out and in: rounded as IEEE says, loaded by transformers, and never all in float32 at once."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import CONFIG, prefixed, tensors_of, write_model
from safetensors import safe_open

from blutrain.checkpoint import stream
from blutrain.cli import run_command
from blutrain.errors import InvalidInputError
from blutrain.huggingface import export_hf, import_hf
from blutrain.huggingface.files import read_safetensors
from blutrain.weights import load_weights


def bits_of_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest even, by float64: the two neighbours and the distance to each."""
    low = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint32)
    down, up = (((low + step) << 16).view(np.float32).astype(np.float64) for step in (0, 1))
    exact = values.astype(np.float64)
    nearer_up = np.abs(up - exact) < np.abs(exact - down)
    tie = np.abs(up - exact) == np.abs(exact - down)
    return (low + (nearer_up | (tie & (low % 2 == 1)))).astype(np.uint16)


def special(config: dict[str, Any] = CONFIG) -> dict[str, np.ndarray]:
    """Tensors with ties, denormals and signed zeros among random numbers."""
    tensors = tensors_of(config)
    tensors["wte.weight"].ravel()[:8] = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 2**-24, 3 * 2**-25, 65504]
    return tensors


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("narrow")
    import_hf(write_model(folder / "hf", special()), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("limit", ["5GB", "9KB"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_are_rounded_to_nearest_even(run: Path, tmp_path: Path, dtype: str, limit: str) -> None:
    result = export_hf(run, tmp_path / "out", dtype=dtype, max_shard_size=limit)
    expected = prefixed(special())
    found = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            assert file.metadata() == {"format": "pt"}
        found |= read_safetensors(path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].shape == values.shape
        if dtype == "bfloat16":
            bits = np.frombuffer(found[name].data, np.uint16).reshape(values.shape)
            np.testing.assert_array_equal(bits, bits_of_bfloat16(values))
        else:
            np.testing.assert_array_equal(
                np.frombuffer(found[name].data, dtype).reshape(values.shape), values.astype(dtype)
            )
    size = sum(values.size for values in expected.values())
    assert result.num_bytes == size * (4 if dtype == "float32" else 2)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype
    if limit == "9KB":
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == result.num_bytes


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_transformers_loads_them(torch: Any, transformers: Any, run: Path, tmp_path: Path, dtype: str) -> None:
    assert run_command(["export-hf", str(run), "--out", str(tmp_path / "out"), "--dtype", dtype]) == 0
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype is getattr(torch, dtype)
    theirs = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    for name, values in prefixed(special()).items():
        assert torch.equal(theirs[name], torch.tensor(values).to(getattr(torch, dtype)))  # PyTorch's rounding
    again = import_hf(tmp_path / "out", tmp_path / "again")
    arrays, _, _ = load_weights(again.folder)
    rounded = torch.tensor(special()["wte.weight"]).to(getattr(torch, dtype)).to(torch.float32).numpy()
    np.testing.assert_array_equal(arrays["wte.weight"][: len(rounded)], rounded)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors = tensors_of()
    tensors["h.1.mlp.c_fc.bias"][3] = -70000
    import_hf(write_model(tmp_path / "hf", tensors), tmp_path / "run")
    with pytest.raises(InvalidInputError, match=r"weights that float16 holds, got -70000 in 'transformer.h.1.mlp.c_fc"):
        export_hf(tmp_path / "run", tmp_path / "out", dtype="float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "run"]
    assert export_hf(tmp_path / "run", tmp_path / "out", dtype="bfloat16").step == 0
    with pytest.raises(InvalidInputError, match="expected one of float32, bfloat16, float16 as dtype, got 'int8'"):
        export_hf(tmp_path / "run", tmp_path / "other", dtype="int8")


def test_importing_and_exporting_hold_a_few_tensors_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**CONFIG, "n_layer": 10, "n_embd": 192}
    expected = tensors_of(config)
    total = sum(values.nbytes for values in expected.values())
    largest = max(values.nbytes for values in expected.values())
    assert total > 25 * largest
    import_hf(write_model(tmp_path / "wide", expected, config), tmp_path / "first")
    export_hf(tmp_path / "first", tmp_path / "narrow", dtype="bfloat16")
    del expected
    monkeypatch.setattr(stream, "_WRITE_AHEAD_BYTES", 2 * largest)

    def peak(action: Any) -> int:
        tracemalloc.start()
        try:
            action()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Those that are written, and what rounding or transposing the next one takes; checking reads pieces of 4 MiB.
    room = 6 * largest + stream.default_num_threads() * stream._CHUNK_BYTES
    assert room < total
    assert peak(lambda: import_hf(tmp_path / "narrow", tmp_path / "run")) < room
    assert peak(lambda: export_hf(tmp_path / "run", tmp_path / "out", dtype="float16")) < room
