"""Importing: every form of the files gives the same weights; what is wrong is a typed error that tells all of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import CONFIG, SIZES, prefixed, tensors_of, write_model, write_tokenizer
from safetensors.numpy import save_file

import blutensor as bt
import blutrain
from blutrain.cli import run_command
from blutrain.config_io import load_config
from blutrain.data.tokenizer import get_tokenizer
from blutrain.errors import ConfigError, DataError
from blutrain.huggingface import (
    ModelFormatError,
    ModelNotFoundError,
    ModelTensorError,
    UnsupportedModelError,
    import_hf,
)
from blutrain.launch import open_run
from blutrain.run_folder import RunExistsError
from blutrain.weights import gather, load_checkpoint, load_model, load_weights


def test_weights_names_and_layout(tmp_path: Path) -> None:
    tensors = tensors_of()
    told: list[str] = []
    result = import_hf(write_model(tmp_path / "hf", tensors), tmp_path / "run", report=told.append)
    arrays, config, step = load_weights(tmp_path / "run")
    assert step == 0
    assert (config.model.layers, config.model.heads, config.model.channels) == (2, 3, 24)
    assert (config.model.context, config.model.vocab_size, config.model.padded_vocab_size) == (16, 211, 256)
    assert result.config == load_config(tmp_path / "run" / "config.toml") == config
    assert result.preset is None
    assert result.parameters == sum(values.size for values in tensors.values())
    np.testing.assert_array_equal(arrays["wte.weight"][:211], tensors["wte.weight"])
    assert not arrays["wte.weight"][211:].any()
    np.testing.assert_array_equal(arrays["blocks.1.qkv.weight"], tensors["h.1.attn.c_attn.weight"].T)
    np.testing.assert_array_equal(arrays["blocks.0.proj.weight"], tensors["h.0.attn.c_proj.weight"].T)
    np.testing.assert_array_equal(arrays["blocks.1.fc.weight"], tensors["h.1.mlp.c_fc.weight"].T)
    np.testing.assert_array_equal(arrays["blocks.0.out.weight"], tensors["h.0.mlp.c_proj.weight"].T)
    np.testing.assert_array_equal(arrays["blocks.0.ln2.bias"], tensors["h.0.ln_2.bias"])
    np.testing.assert_array_equal(arrays["lnf.weight"], tensors["ln_f.weight"])
    assert any("no tokenizer's files" in line for line in told)
    _, all_arrays, meta = load_checkpoint(tmp_path / "run")
    assert all(name.startswith("model.") for name in all_arrays)  # the optimizer is new
    assert meta["imported"] == str(tmp_path / "hf")


@pytest.mark.parametrize("form", ["prefixed", "masks", "head", "shards", "files", "index and files", "no default"])
def test_every_form_gives_the_same_weights(tmp_path: Path, form: str) -> None:
    tensors = tensors_of()
    import_hf(write_model(tmp_path / "plain", tensors), tmp_path / "expected")
    source: Any = tmp_path / "hf"
    if form == "prefixed":
        write_model(source, prefixed(tensors))
    elif form == "masks":
        mask = np.tril(np.ones((1, 1, 16, 16), np.uint8))
        extra = {"h.0.attn.bias": mask, "h.1.attn.bias": mask, "h.1.attn.masked_bias": np.array(-1e4, np.float32)}
        write_model(source, prefixed(tensors | extra))
    elif form == "head":
        write_model(source, prefixed(tensors | {"lm_head.weight": tensors["wte.weight"]}))
    elif form == "no default":  # what a configuration leaves out is GPT-2's
        write_model(source, tensors, {key: value for key, value in CONFIG.items() if key != "activation_function"})
    else:
        write_model(source, tensors, num_files=3)
        if form == "files":
            source = sorted(source.glob("*.safetensors"))
        elif form == "index and files":
            source = [source / "model.safetensors.index.json", source / "config.json"]
    import_hf(source, tmp_path / "run")
    expected, found = (load_weights(tmp_path / name)[0] for name in ("expected", "run"))
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_are_exact(tmp_path: Path, dtype: str) -> None:
    tensors = tensors_of()
    if dtype == "float16":
        narrow = {name: values.astype(np.float16) for name, values in tensors.items()}
        write_model(tmp_path / "hf", narrow)
        wide = {name: values.astype(np.float32) for name, values in narrow.items()}
    else:
        wide = {
            name: bt.asarray(values).astype(bt.bfloat16).astype(bt.float32).numpy() for name, values in tensors.items()
        }
        write_bfloat16(write_model(tmp_path / "hf") / "model.safetensors", wide)
    import_hf(tmp_path / "hf", tmp_path / "run")
    arrays = load_weights(tmp_path / "run")[0]
    assert arrays["blocks.0.fc.weight"].dtype == np.float32
    np.testing.assert_array_equal(arrays["blocks.0.fc.weight"], wide["h.0.mlp.c_fc.weight"].T)
    np.testing.assert_array_equal(arrays["wte.weight"][:211], wide["wte.weight"])


def write_bfloat16(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file in bfloat16, which NumPy lacks: the upper halves of float32 numbers."""
    header, parts, begin = {}, [], 0
    for name, values in tensors.items():
        parts.append((values.view(np.uint32) >> 16).astype("<u2").tobytes())
        offsets = [begin, begin + len(parts[-1])]
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": offsets}
        begin = offsets[1]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def test_untied_head(tmp_path: Path) -> None:
    config = {**CONFIG, "tie_word_embeddings": False}
    tensors = tensors_of(config)
    import_hf(write_model(tmp_path / "hf", prefixed(tensors), config), tmp_path / "run")
    arrays = load_weights(tmp_path / "run")[0]
    np.testing.assert_array_equal(arrays["head.weight"][:211], tensors["lm_head.weight"])
    assert not load_model(tmp_path / "run")[1].model.tied_head


def test_a_preset_is_recognised(tmp_path: Path) -> None:
    config = {**CONFIG, "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 128, "vocab_size": 256}
    result = import_hf(write_model(tmp_path / "hf", config=config), tmp_path / "run")
    assert result.preset == "gpt2-nano"
    assert result.config.data.tokenizer == "bytes"
    assert result.config.optimizer == blutrain.PRESETS["gpt2-nano"].optimizer
    assert result.config.schedule.learning_rate < blutrain.PRESETS["gpt2-nano"].schedule.learning_rate


def test_an_imported_run_has_no_data_to_be_measured_on(tmp_path: Path) -> None:
    import_hf(write_model(tmp_path / "hf"), tmp_path / "run")
    with pytest.raises(DataError, match="a run without: name a prepared folder with --data"):
        blutrain.evaluate(tmp_path / "run")


def test_tokenizer_files_travel(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    ids = write_tokenizer(tmp_path / "hf")
    write_model(tmp_path / "hf", config={**CONFIG, "vocab_size": ids})
    result = import_hf(tmp_path / "hf", tmp_path / "run")
    assert result.tokenizer_files == ("vocab.json", "merges.txt")
    tokenizer = get_tokenizer(load_config(tmp_path / "run" / "config.toml").data.tokenizer)
    assert tokenizer.identity == get_tokenizer(tmp_path / "hf").identity
    text = blutrain.generate(tmp_path / "run", "in the", max_new_tokens=3)
    assert text.startswith("in the")
    write_model(tmp_path / "hf", config={**CONFIG, "vocab_size": ids - 1})
    with pytest.raises(ModelFormatError, match=f"at most {ids - 1} ids .* got {ids}"):
        import_hf(tmp_path / "hf", tmp_path / "other")


def test_files_of_another_tokenizer_do_not_travel(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    ids = write_tokenizer(tmp_path / "hf")
    for name in ("encoder.json", "vocab.bpe"):  # what is read, beside other files
        shutil.copy(tmp_path / "hf" / {"encoder.json": "vocab.json"}.get(name, "merges.txt"), tmp_path / "hf" / name)
    (tmp_path / "hf" / "tokenizer.json").write_text("{}")
    write_model(tmp_path / "hf", config={**CONFIG, "vocab_size": ids})
    assert import_hf(tmp_path / "hf", tmp_path / "run").tokenizer_files == ("encoder.json", "vocab.bpe")


def test_a_damaged_tokenizer_is_told_and_weights_are_imported(tmp_path: Path) -> None:
    write_model(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text("{")
    told: list[str] = []
    import_hf(tmp_path / "hf", tmp_path / "run", report=told.append)
    assert any("tokenizer can not be used yet" in line for line in told)
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").is_file()


def test_settings(tmp_path: Path) -> None:
    source = write_model(tmp_path / "hf")
    settings = ["model.dropout=0.1", "model.pad_vocab_to=1", "train.steps=7"]
    result = import_hf(source, tmp_path / "run", settings=settings)
    assert (result.config.model.dropout, result.config.model.padded_vocab_size, result.config.train.steps) == (
        0.1,
        211,
        7,
    )
    with pytest.raises(ConfigError, match=r"model\.layers: expected 2, as the model's file has it, got 3"):
        import_hf(source, tmp_path / "other", settings=["model.layers=3"])
    with pytest.raises(ConfigError, match=r"model\.pad_vocab_to"):
        import_hf(source, tmp_path / "other", settings=["model.pad_vocab_to=0"])
    assert not (tmp_path / "other").exists()


def test_a_run_in_the_folder_is_not_lost(tmp_path: Path) -> None:
    source = write_model(tmp_path / "hf")
    import_hf(source, tmp_path / "run")
    with pytest.raises(RunExistsError, match=r"holds a run: replace it with --overwrite, or choose another --out$"):
        import_hf(source, tmp_path / "run")
    other = tensors_of(seed=1)
    import_hf(write_model(tmp_path / "hf", other), tmp_path / "run", overwrite=True)
    np.testing.assert_array_equal(load_weights(tmp_path / "run")[0]["wte.weight"][:211], other["wte.weight"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "relu"),
        ("activation_function", "gelu"),
        ("activation_function", None),
        ("layer_norm_epsilon", 1e-6),
        ("n_inner", 100),
        ("n_ctx", 8),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("reorder_and_upcast_attn", True),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 4}),
        ("n_layer", 0),
        ("n_layer", 2.0),
        ("n_layer", True),
        ("n_embd", "24"),
        ("n_positions", 2**31),
        ("vocab_size", -1),
        ("n_head", 5),
        ("tie_word_embeddings", "yes"),
        ("model_type", "gpt_neo"),
        ("model_type", None),
    ],
)
def test_unsupported_values_are_named(tmp_path: Path, key: str, value: Any) -> None:
    write_model(tmp_path / "hf", config={**CONFIG, "n_inner": 96, "n_ctx": 16})
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**CONFIG, key: value}))
    with pytest.raises(UnsupportedModelError) as caught:
        import_hf(tmp_path / "hf", tmp_path / "run")
    assert [problem.key for problem in caught.value.problems] == [key]
    assert repr(value) in str(caught.value) or str(value) in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_unsupported_values_are_told_together(tmp_path: Path) -> None:
    config = {**CONFIG, "n_inner": 5, "n_layer": -1, "activation_function": "relu"}
    write_model(tmp_path / "hf")
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError) as caught:
        import_hf(tmp_path / "hf", tmp_path / "run")
    assert {problem.key for problem in caught.value.problems} == {"n_inner", "n_layer", "activation_function"}
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, blutrain.BlutrainError)


def test_wrong_tensors_are_told_together(tmp_path: Path) -> None:
    tensors = tensors_of()
    del tensors["h.1.ln_2.bias"], tensors["ln_f.weight"]
    tensors["h.0.attn.c_attn.weight"] = np.ascontiguousarray(tensors["h.0.attn.c_attn.weight"].T)
    tensors["h.0.mlp.c_fc.bias"] = tensors["h.0.mlp.c_fc.bias"].astype(np.float64)
    tensors["score.weight"] = np.zeros((2, 24), np.float32)
    with pytest.raises(ModelTensorError) as caught:
        import_hf(write_model(tmp_path / "hf", tensors), tmp_path / "run")
    assert [str(problem) for problem in caught.value.problems] == [
        "ln_f.weight: expected a tensor of shape [24], got none",
        "score.weight: unexpected, of shape [2, 24]",
        "h.0.attn.c_attn.weight: expected shape [24, 72], got [72, 24]",
        "h.0.mlp.c_fc.bias: expected dtype F32, F16, BF16, got F64",
        "h.1.ln_2.bias: expected a tensor of shape [24], got none",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layer": 3}, "h.2.ln_1.weight: expected a tensor of shape"),
        ({"n_layer": 2_000_000_000}, "expected the tensors of 2000000000 layers .* got those of 2"),
        ({"n_layer": 1}, "h.1.ln_1.weight: unexpected"),
        ({"n_embd": 48}, r"wte.weight: expected shape \[211, 48\], got \[211, 24\]"),
        ({"n_positions": 17}, r"wpe.weight: expected shape \[17, 24\]"),
        ({"vocab_size": 212}, r"wte.weight: expected shape \[212, 24\]"),
        ({"tie_word_embeddings": False}, "lm_head.weight: expected a tensor"),
    ],
)
def test_a_configuration_of_another_model(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_model(tmp_path / "hf")
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ModelTensorError, match=message):
        import_hf(tmp_path / "hf", tmp_path / "run")


def test_a_far_layer_costs_nothing(tmp_path: Path) -> None:
    extra = {"h.999999999.ln_1.weight": np.zeros(24, np.float32)}
    write_model(tmp_path / "hf", tensors_of() | extra)
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**CONFIG, "n_layer": 10**9}))
    with pytest.raises(ModelTensorError, match="1000000000 layers"):
        import_hf(tmp_path / "hf", tmp_path / "run")


def test_contradictory_names_and_heads(tmp_path: Path) -> None:
    tensors = tensors_of()
    both = tensors | {"transformer.ln_f.bias": tensors["ln_f.bias"]}
    with pytest.raises(ModelTensorError, match=r"with or without 'transformer\.', got both"):
        import_hf(write_model(tmp_path / "both", both), tmp_path / "run")
    other = tensors | {"lm_head.weight": tensors["wte.weight"] + 1}
    with pytest.raises(ModelTensorError, match=r"lm_head\.weight: .* set tie_word_embeddings to false"):
        import_hf(write_model(tmp_path / "head", other), tmp_path / "run")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="got nothing at"):
        import_hf(tmp_path / "absent", tmp_path / "run")
    with pytest.raises(ModelNotFoundError, match="got none"):
        import_hf([], tmp_path / "run")
    folder = write_model(tmp_path / "hf", num_files=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"names, got no model-00002-of-00003\.safetensors"):
        import_hf(folder, tmp_path / "run")
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"name \.safetensors files one by one"):
        import_hf(folder, tmp_path / "run")
    (folder / "config.json").unlink()
    for source in (folder, folder / "model-00001-of-00003.safetensors"):
        with pytest.raises(ModelNotFoundError, match=r"config\.json"):
            import_hf(source, tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="got only"):
        import_hf(write_model(tmp_path / "x") / "config.json", tmp_path / "run")


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "weight_map"),
        ({}, "weight_map"),
        ([1], "weight_map"),
        ({"wte.weight": "../hf/model.safetensors"}, "expected the name of a .safetensors file for 'wte.weight'"),
        ({"wte.weight": "/etc/passwd"}, "expected the name"),
        ({"wte.weight": 3}, "expected the name"),
        ({"ln_f.bias": "b.safetensors"}, "expected 'ln_f.bias' in 'b.safetensors', got it not there"),
    ],
)
def test_wrong_indices(tmp_path: Path, weight_map: Any, message: str) -> None:
    folder = write_model(tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"other": np.zeros(1, np.float32)}, folder / "b.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFormatError, match=message):
        import_hf(folder, tmp_path / "run")


def test_files_of_two_models(tmp_path: Path) -> None:
    first, second = (write_model(tmp_path / name) / "model.safetensors" for name in ("a", "b"))
    with pytest.raises(ModelFormatError, match="in one file, got it in"):
        import_hf([first, second], tmp_path / "run")
    with pytest.raises(ModelFormatError, match="got also"):
        import_hf([first, first.with_name("config.json"), second.with_name("config.json")], tmp_path / "run")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_model(tmp_path / "hf")
    assert run_command(["import-hf", str(source), "--out", str(tmp_path / "run"), "--set", "data.tokenizer=bytes"]) == 0
    out = capsys.readouterr().out
    assert "2 layers, 3 heads, 24 channels, vocabulary 211" in out
    assert "--resume" in out
    assert load_config(tmp_path / "run" / "config.toml").data.tokenizer == "bytes"
    (source / "config.json").write_text(json.dumps({**CONFIG, "n_inner": 7, **SIZES}))
    assert run_command(["import-hf", str(source), "--out", str(tmp_path / "other")]) == 2
    assert "n_inner: expected None or 96, got 7" in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_begins_with_these_weights_and_nothing_else(tmp_path: Path, precision: str) -> None:
    """Also in bfloat16, whose masters are the weights before they were rounded."""
    tensors = tensors_of({**CONFIG, "vocab_size": 256})
    source = write_model(tmp_path / "hf", tensors, {**CONFIG, "vocab_size": 256})
    import_hf(source, tmp_path / "run", settings=[f"train.precision={precision}", "train.device=cpu"])
    (tmp_path / "text").write_text("some text to train on\n" * 200)
    blutrain.prepare(tmp_path / "text", tmp_path / "data")
    config = load_config(tmp_path / "run" / "config.toml", settings=[f"data.path={tmp_path / 'data'}"])
    with open_run(config, resume=True) as trainer:
        assert trainer.progress.step == 0
        state = gather(trainer.model, trainer.optimizer, trainer.loader)
        assert trainer.model.wte.weight.dtype is (bt.bfloat16 if precision == "bf16" else bt.float32)
        rounded = trainer.model.blocks[1].fc.weight.detach().astype(bt.float32).numpy()
    np.testing.assert_array_equal(state["model.wte.weight"].numpy(), tensors["wte.weight"])
    np.testing.assert_array_equal(state["model.blocks.1.fc.weight"].numpy(), tensors["h.1.mlp.c_fc.weight"].T)
    np.testing.assert_allclose(rounded, tensors["h.1.mlp.c_fc.weight"].T, rtol=2**-8)
    moments = [value.numpy() for name, value in state.items() if name.startswith("optimizer.exp_avg")]
    assert moments
    assert not any(value.any() for value in moments)


def test_data_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    ids = write_tokenizer(tmp_path / "hf")
    import_hf(write_model(tmp_path / "hf", config={**CONFIG, "vocab_size": ids}), tmp_path / "run")
    (tmp_path / "text").write_text("some text to train on\n" * 200)
    blutrain.prepare(tmp_path / "text", tmp_path / "data", tokenizer="bytes")
    config = load_config(tmp_path / "run" / "config.toml", settings=[f"data.path={tmp_path / 'data'}"])
    with pytest.raises(ConfigError, match=r"data\.tokenizer"):
        blutrain.train(config, resume=True)
    settings = [f"data.path={tmp_path / 'data'}", "data.tokenizer=bytes"]  # as asked for, and wrong for this model
    with pytest.raises(ConfigError, match="expected the tokenizer of the checkpoint of step 0"):
        blutrain.train(load_config(tmp_path / "run" / "config.toml", settings=settings), resume=True)
