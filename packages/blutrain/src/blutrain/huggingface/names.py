"""Names and layouts of GPT-2's tensors: ours, and those of Hugging Face.

Theirs hold the matrices of attention and MLP as ``Conv1D``, [in, out], where a linear layer has [out, in]. They come
with the prefix ``transformer.`` (a model with a head) or without it (the bare model), and older files hold the causal
masks as well.

Legend: V = rows of the embedding, T = context, C = channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from blutrain.config import ModelConfig

PREFIX = "transformer."
"""Of every name but the head's, where the model has a head."""
HEAD = "lm_head.weight"
"""The output projection; the embedding's values where it is tied."""
EMBEDDING = "wte.weight"
"""The token embedding, which has the same name on both sides."""

_MASKS = re.compile(r"h\.[0-9]+\.attn\.(bias|masked_bias)")
_LAYER = re.compile(r"h\.([0-9]{1,9})\..*")
_BLOCK = (
    # ours, theirs, whether the weight is transposed, sizes of the weight in C (None: a vector)
    ("ln1", "ln_1", False, None),
    ("qkv", "attn.c_attn", True, (3, 1)),
    ("proj", "attn.c_proj", True, (1, 1)),
    ("ln2", "ln_2", False, None),
    ("fc", "mlp.c_fc", True, (4, 1)),
    ("out", "mlp.c_proj", True, (1, 4)),
)


@dataclass(frozen=True)
class TensorName:
    """One parameter on both sides."""

    ours: str
    """Name in a ``GPT``."""
    theirs: str
    """Name without the prefix."""
    shape: tuple[int, ...]
    """Theirs, without padded rows."""
    transposed: bool = False
    """Whether theirs is ours transposed."""
    padded: bool = False
    """Whether ours has rows for padded ids."""


def tensor_names(config: ModelConfig) -> Iterator[TensorName]:
    """Every parameter of a model.

    Args:
        config: its shape.

    Yields:
        Names and shapes, in the order of the layers.
    """
    channels = config.channels
    yield TensorName(EMBEDDING, EMBEDDING, (config.vocab_size, channels), padded=True)
    yield TensorName("wpe.weight", "wpe.weight", (config.context, channels))
    for layer in range(config.layers):
        for ours, theirs, transposed, sizes in _BLOCK:
            out, into = (size * channels for size in sizes or (1, 1))
            weight = ((into, out) if transposed else (out, into)) if sizes else (channels,)
            yield TensorName(f"blocks.{layer}.{ours}.weight", f"h.{layer}.{theirs}.weight", weight, transposed)
            yield TensorName(f"blocks.{layer}.{ours}.bias", f"h.{layer}.{theirs}.bias", (out,))
    for kind in ("weight", "bias"):
        yield TensorName(f"lnf.{kind}", f"ln_f.{kind}", (channels,))
    if not config.tied_head:
        yield TensorName("head.weight", HEAD, (config.vocab_size, channels), padded=True)


def without_prefix(name: str) -> str:
    """A name as it is in the bare model."""
    return name.removeprefix(PREFIX)


def with_prefix(name: str) -> str:
    """A name as it is in the model with a head."""
    return name if name == HEAD else PREFIX + name


def is_mask(name: str) -> bool:
    """Whether a name (without prefix) is of a causal mask, which older files hold and nobody needs."""
    return _MASKS.fullmatch(name) is not None


def layer_of(name: str) -> int | None:
    """Layer of a name (without prefix); None of those that belong to no layer."""
    match = _LAYER.fullmatch(name)
    return None if match is None else int(match[1])
