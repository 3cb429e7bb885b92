"""GPT-2's ``config.json``: what of it becomes a model here, and the file that describes a model of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blutrain.config import Config, ModelConfig
from blutrain.errors import Problem
from blutrain.huggingface.errors import UnsupportedModelError
from blutrain.model import INIT_STD
from blutrain.presets import PRESETS

CONFIG_JSON = "config.json"
"""Name of the file."""
MODEL_TYPE = "gpt2"
"""What it must describe."""

_SIZES = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}
"""Sizes, with the values of a file that leaves them out."""
_ALIASES = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
}
_MAX_SIZE = 2**31 - 1
_TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")
_EPSILON = 1e-5
_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_function": _TANH_GELU,
    "layer_norm_epsilon": (_EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
"""Values that are computed here; a file that leaves them out means the first."""


def read_model_config(place: Path, tree: Mapping[str, Any], *, pad_vocab_to: int) -> ModelConfig:
    """The shape of the model that a ``config.json`` describes.

    Args:
        place: the file, for messages.
        tree: its content.
        pad_vocab_to: see ``ModelConfig``.

    Returns:
        The shape. Dropout is 0: the file's does not describe the weights.

    Raises:
        UnsupportedModelError: with every key that says something that is not computed here.
    """
    problems: list[Problem] = []
    model_type = tree.get("model_type")
    if model_type != MODEL_TYPE:
        problems.append(Problem("model_type", f"expected {MODEL_TYPE!r}, got {_short(model_type)}"))
        raise UnsupportedModelError(place, problems, "only GPT-2 can be imported")
    sizes = {key: _size(tree, key, default, problems) for key, default in _SIZES.items()}
    problems += _unsupported(tree, sizes)
    tied = tree.get("tie_word_embeddings", True)
    if type(tied) is not bool:
        problems.append(Problem("tie_word_embeddings", f"expected true or false, got {_short(tied)}"))
    if not problems and sizes["n_embd"] % sizes["n_head"]:
        problems.append(Problem("n_head", f"expected a divisor of n_embd = {sizes['n_embd']}, got {sizes['n_head']}"))
    if problems:
        raise UnsupportedModelError(place, problems, "a model with these values can not be imported")
    return ModelConfig(
        layers=sizes["n_layer"],
        heads=sizes["n_head"],
        channels=sizes["n_embd"],
        context=sizes["n_positions"],
        vocab_size=sizes["vocab_size"],
        pad_vocab_to=pad_vocab_to,
        tied_head=tied,
    )


def model_config_json(model: ModelConfig, end_of_text: int | None, dtype: str = "float32") -> dict[str, Any]:
    """The ``config.json`` of a model of ours.

    Args:
        model: its shape.
        end_of_text: id of the token between documents; None where it is not known.
        dtype: of the weights.

    Returns:
        What ``transformers`` reads.
    """
    return {
        "activation_function": _TANH_GELU[0],
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,  # attention drops nothing here, in training neither
        "bos_token_id": end_of_text,
        "dtype": dtype,
        "embd_pdrop": model.dropout,
        "eos_token_id": end_of_text,
        "initializer_range": INIT_STD,
        "layer_norm_epsilon": _EPSILON,
        "model_type": MODEL_TYPE,
        "n_ctx": model.context,
        "n_embd": model.channels,
        "n_head": model.heads,
        "n_inner": None,
        "n_layer": model.layers,
        "n_positions": model.context,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": model.dropout,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "tie_word_embeddings": model.tied_head,
        "use_cache": True,
        "vocab_size": model.vocab_size,
    }


def find_preset(model: ModelConfig) -> str | None:
    """Name of the preset that has this shape.

    Args:
        model: dropout and padding do not count.

    Returns:
        The name, or None.
    """

    def shape(config: ModelConfig) -> ModelConfig:
        return replace(config, dropout=0.0, pad_vocab_to=1)

    return next((name for name, config in PRESETS.items() if shape(config.model) == shape(model)), None)


def fine_tuning(config: Config) -> Config:
    """A configuration for training an imported model further: a short run with small steps.

    The batch is 32 sequences, the learning rate that of the usual fine-tuning of GPT-2 (5e-5, warmed up), a tenth and
    less of what pre-training takes.

    Args:
        config: with the model's shape.
    """
    schedule = replace(config.schedule, learning_rate=5e-5, warmup_steps=50)
    train = replace(
        config.train,
        steps=500,
        micro_batch=4,
        global_batch_tokens=32 * config.model.context,
        log_every=1,
        eval_every=100,
        checkpoint_every=100,
        sample_every=100,
    )
    return replace(config, schedule=schedule, train=train)


def _size(tree: Mapping[str, Any], key: str, default: int, problems: list[Problem]) -> int:
    """A positive integer, under its own name or an alias; 1 when it is none."""
    names = [key, *(alias for alias, meant in _ALIASES.items() if meant == key)]
    name = next((name for name in names if name in tree), key)
    value = tree.get(name, default)
    if type(value) is int and 1 <= value <= _MAX_SIZE:
        return value
    problems.append(Problem(name, f"expected a whole number from 1 to {_MAX_SIZE}, got {_short(value)}"))
    return 1


def _unsupported(tree: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Problem]:
    problems = []
    allowed: dict[str, tuple[Any, ...]] = {
        **_ONLY,
        "n_inner": (None, 4 * sizes["n_embd"]),
        "n_ctx": (sizes["n_positions"],),
    }
    for key, values in allowed.items():
        found = tree.get(key, values[0])
        if any(type(found) is type(value) and found == value for value in values):
            continue
        listed = " or ".join(str(value) for value in values)
        problems.append(Problem(key, f"expected {listed}, got {_short(found)}"))
    return problems


def _short(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, or nested too deeply
        text = f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= 80 else text[:77] + "..."
