"""Exporting: what comes back is what was there, in any number of files, with the tokenizer and without padding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hf_models import CONFIG, prefixed, tensors_of, write_model, write_tokenizer
from safetensors import safe_open
from safetensors.numpy import load_file

import blutrain
from blutrain.checkpoint import CheckpointNotFoundError
from blutrain.cli import run_command
from blutrain.data.tokenizer import get_tokenizer
from blutrain.errors import InvalidInputError
from blutrain.huggingface import ModelAccessError, ModelFormatError, export_hf, import_hf
from blutrain.weights import load_weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    import_hf(write_model(folder / "hf"), folder / "run")
    return folder / "run"


def test_one_file_is_what_was_imported(run: Path, tmp_path: Path) -> None:
    result = export_hf(run, tmp_path / "out")
    assert result.files == ("config.json", "model.safetensors")
    expected = prefixed(tensors_of())
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()  # no padding, no tied head
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    with safe_open(tmp_path / "out" / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: config[key] for key in CONFIG} == CONFIG
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert config["tie_word_embeddings"] is True
    assert result.num_bytes == sum(values.nbytes for values in expected.values())


@pytest.mark.parametrize("limit", [1, 7000, "20KB", "1MiB"])
def test_shards_with_an_index(run: Path, tmp_path: Path, limit: int | str) -> None:
    export_hf(run, tmp_path / "out", max_shard_size=limit)
    expected = prefixed(tensors_of())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    if limit == "1MiB":
        assert [path.name for path in files] == ["model.safetensors"]
        assert not (tmp_path / "out" / "model.safetensors.index.json").exists()
        return
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in expected.values())
    assert index["weight_map"].keys() == expected.keys()
    assert [path.name for path in files] == [
        f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))
    ]
    most = {1: 1, 7000: 7000, "20KB": 20000}[limit]
    for path in files:
        tensors = load_file(path)
        assert len(tensors) == 1 or sum(values.nbytes for values in tensors.values()) <= most
        for name, values in tensors.items():
            assert index["weight_map"][name] == path.name
            np.testing.assert_array_equal(values, expected[name])
    import_hf(tmp_path / "out", tmp_path / "again")
    before, after = (load_weights(folder)[0] for folder in (run, tmp_path / "again"))
    assert all((after[name] == values).all() for name, values in before.items())


def test_untied_head_and_odd_padding(tmp_path: Path) -> None:
    config = {**CONFIG, "tie_word_embeddings": False}
    tensors = tensors_of(config)
    import_hf(write_model(tmp_path / "hf", tensors, config), tmp_path / "run", settings=["model.pad_vocab_to=100"])
    assert load_weights(tmp_path / "run")[0]["head.weight"].shape == (300, 24)
    export_hf(tmp_path / "run", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(found["lm_head.weight"], tensors["lm_head.weight"])
    np.testing.assert_array_equal(found["transformer.wte.weight"], tensors["wte.weight"])


def test_tokenizer_travels(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    ids = write_tokenizer(tmp_path / "hf")
    import_hf(write_model(tmp_path / "hf", config={**CONFIG, "vocab_size": ids}), tmp_path / "run")
    result = export_hf(tmp_path / "run", tmp_path / "out")
    assert {"vocab.json", "merges.txt"} <= set(result.files)
    assert get_tokenizer(tmp_path / "out").identity == get_tokenizer(tmp_path / "hf").identity
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eos_token_id"] == config["bos_token_id"] == ids - 1


def test_released_names_of_the_tokenizer_become_theirs(tmp_path: Path, gpt2_files: Path) -> None:
    settings = [f"data.tokenizer={gpt2_files}"]
    config = {**CONFIG, "vocab_size": 50257, "n_embd": 6}
    import_hf(write_model(tmp_path / "hf", config=config), tmp_path / "run", settings=settings)
    result = export_hf(tmp_path / "run", tmp_path / "out")
    assert {"vocab.json", "merges.txt"} <= set(result.files)
    assert get_tokenizer(tmp_path / "out").identity.kind == "gpt2"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 50256


def test_nothing_is_overwritten_or_left_behind(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    export_hf(run, tmp_path / "empty")
    with pytest.raises(ModelFormatError, match="which holds something"):
        export_hf(run, tmp_path / "empty")
    with pytest.raises(InvalidInputError, match="a size such as 5GB"):
        export_hf(run, tmp_path / "out", max_shard_size="5 bananas")
    with pytest.raises(InvalidInputError, match="got '0'"):
        export_hf(run, tmp_path / "out", max_shard_size=0)
    with pytest.raises(blutrain.BlutrainError, match="no such file"):
        export_hf(tmp_path / "absent", tmp_path / "out")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("blutrain.huggingface.exporting._write_file", full)
    with pytest.raises(ModelAccessError, match=r"No space left on device.*free space") as caught:
        export_hf(run, tmp_path / "out")
    assert caught.value.errno == 28
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


def test_what_was_exported_is_no_run_and_how_to_make_one_is_told(run: Path, tmp_path: Path) -> None:
    export_hf(run, tmp_path / "exported")
    with pytest.raises(
        CheckpointNotFoundError, match=r"Hugging Face's format .*blutrain import-hf .*exported --out RUN"
    ):
        blutrain.evaluate(tmp_path / "exported")


def test_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export-hf", str(run), "--out", str(tmp_path / "out"), "--max-shard-size", "10KB"]
    assert run_command(arguments) == 0
    assert "model.safetensors.index.json" in capsys.readouterr().out
    assert run_command(arguments) == 2
    assert "choose another --out" in capsys.readouterr().err
