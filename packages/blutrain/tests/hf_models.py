"""GPT-2 models as Hugging Face keeps them, made without their libraries, and a tokenizer beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from blutrain.data.tokenizer_bpe import byte_characters

SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 24, "n_positions": 16, "vocab_size": 211}
CONFIG: dict[str, Any] = {"model_type": "gpt2", "activation_function": "gelu_new", **SIZES}


def tensors_of(config: dict[str, Any] = CONFIG, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors under the names of the bare model."""
    rng = np.random.default_rng(seed)
    channels, layers = config["n_embd"], config["n_layer"]
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], channels),
        "wpe.weight": (config["n_positions"], channels),
        "ln_f.weight": (channels,),
        "ln_f.bias": (channels,),
    }
    for layer in range(layers):
        for name, into, out in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes[f"h.{layer}.{name}.weight"] = (into * channels, out * channels)
            shapes[f"h.{layer}.{name}.bias"] = (out * channels,)
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{name}.{kind}": (channels,) for kind in ("weight", "bias")}
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (config["vocab_size"], channels)
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def prefixed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Under the names of the model with a head."""
    return {name if name == "lm_head.weight" else f"transformer.{name}": values for name, values in tensors.items()}


def write_model(
    folder: Path, tensors: dict[str, np.ndarray] | None = None, config: dict[str, Any] = CONFIG, num_files: int = 1
) -> Path:
    """A model's folder; of several files with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = tensors_of(config) if tensors is None else tensors
    if num_files == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for number in range(num_files):
        part = {name: values for i, (name, values) in enumerate(tensors.items()) if i % num_files == number}
        file = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def write_tokenizer(folder: Path) -> int:
    """``vocab.json`` and ``merges.txt`` of a small byte-level BPE; returns the number of ids, end-of-text the last."""
    vocab = {character: byte for byte, character in byte_characters().items()}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    vocab["<|endoftext|>"] = len(vocab)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return len(vocab)
