"""GPT-2 as an ordinary ``nn.Module`` of blutensor: learned positions, pre-LayerNorm, tanh GELU, biases.

Legend of shapes: B = batch, T = tokens of a sequence, C = channels, H = heads, D = C / H, V = rows of the token
embedding.

Sources: Radford et al. 2019 (the model, scaled initialisation of residual projections), Press and Wolf 2017 (tied
head).
"""

from __future__ import annotations

import math
from typing import Any

import blutensor as bt
from blutensor import nn
from blutensor.nn import functional as F
from blutrain.arguments import checked
from blutrain.config import Config, ModelConfig
from blutrain.errors import ConfigError, InvalidInputError
from blutrain.validation import find_problems

INIT_STD = 0.02
"""Standard deviation of the initial weights; residual projections have it divided by sqrt(2 L)."""


class Block(nn.Module):
    """Attention and MLP, each after a LayerNorm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        channels = config.channels
        self.heads = config.heads
        self.dropout = config.dropout
        self.ln1 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.ln2 = nn.LayerNorm(channels)
        self.fc = nn.Linear(channels, 4 * channels)
        self.out = nn.Linear(4 * channels, channels)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        """The block applied to a residual stream.

        Args:
            x: [B, T, C].

        Returns:
            [B, T, C].
        """
        mixed = F.qkv_attention(self.qkv(self.ln1(x)), self.heads, is_causal=True)
        return self._mlp(self._attention_output(mixed, x))

    def decode(self, x: bt.Tensor, cache: KVCache, layer: int, position: bt.Tensor) -> bt.Tensor:
        """The block applied to one new token of every sequence.

        Args:
            x: [B, 1, C].
            cache: keys and values of the tokens before; the new ones are written into it.
            layer: which of the cache's layers this block is.
            position: int32, 0-d: place of the new token.

        Returns:
            [B, 1, C].
        """
        query, key, value = self._query_key_value(x)
        keys, values = cache.layers[layer]
        bt.index_write_(keys, key, position, axis=2)
        bt.index_write_(values, value, position, axis=2)
        mixed = F.attention_decode(query, keys, values, position)
        joined = bt.permute_dims(mixed, (0, 2, 1, 3)).reshape(x.shape)
        return self._mlp(self._attention_output(joined, x))

    def _query_key_value(self, x: bt.Tensor) -> tuple[bt.Tensor, bt.Tensor, bt.Tensor]:
        """[B, T, C] to three [B, H, T, D], as views of one product."""
        batch, length, channels = x.shape
        shape = (batch, length, self.heads, channels // self.heads)
        parts = bt.split(self.qkv(self.ln1(x)), 3, axis=2)
        query, key, value = (bt.permute_dims(part.reshape(shape), (0, 2, 1, 3)) for part in parts)
        return query, key, value

    def _attention_output(self, joined: bt.Tensor, residual: bt.Tensor) -> bt.Tensor:
        """The heads' results side by side, [B, T, C], projected and added to the residual stream."""
        if self._drops():
            branch = F.linear(joined, self.proj.weight, self.proj.bias)
            return residual + F.dropout(branch, self.dropout, training=True)
        return F.linear(joined, self.proj.weight, self.proj.bias, residual=residual)

    def _mlp(self, x: bt.Tensor) -> bt.Tensor:
        weights = (self.fc.weight, self.fc.bias, self.out.weight, self.out.bias)
        if self._drops():
            branch = F.mlp(self.ln2(x), *weights, approximate="tanh")
            return x + F.dropout(branch, self.dropout, training=True)
        return F.mlp(self.ln2(x), *weights, residual=x, approximate="tanh")

    def _drops(self) -> bool:
        return self.training and self.dropout > 0


class KVCache:
    """Keys and values of every layer for incremental decoding.

    Args:
        config: shape of the model.
        batch: B, sequences decoded at once.
        dtype: of keys and values, the model's.
        device: likewise.
    """

    def __init__(
        self, config: ModelConfig, batch: int = 1, *, dtype: bt.DType | None = None, device: str = "cpu"
    ) -> None:
        shape = (batch, config.heads, config.context, config.head_channels)
        kind = bt.float32 if dtype is None else dtype

        def empty() -> bt.Tensor:
            return bt.zeros(shape, dtype=kind, device=device)

        self.layers = [(empty(), empty()) for _ in range(config.layers)]
        """Keys and values [B, H, T, D] per layer."""


class GPT(nn.Module):
    """A GPT-2 of any size.

    Parameters are named as GPT-2's are: ``wte.weight`` [V, C], ``wpe.weight`` [T, C], ``blocks.<i>.ln1.weight`` [C],
    ``blocks.<i>.qkv.weight`` [3C, C], ``proj`` [C, C], ``ln2``, ``fc`` [4C, C], ``out`` [C, 4C], ``lnf``, and with an
    untied head ``head.weight`` [V, C].

    Args:
        config: shape of the model. Initial values are drawn from blutensor's default generator.

    Raises:
        ConfigError: an impossible shape, with all that is wrong about it.
    """

    @checked("GPT")
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        problems = [p for p in find_problems(Config(model=config)) if p.key.partition(".")[0] == "model"]
        if problems:
            raise ConfigError(problems)
        self.config = config
        self.wte = nn.Embedding(config.padded_vocab_size, config.channels)
        self.wpe = nn.Embedding(config.context, config.channels)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.lnf = nn.LayerNorm(config.channels)
        if not config.tied_head:
            self.head = nn.Linear(config.channels, config.padded_vocab_size, bias=False)
        self._initialise()

    def _initialise(self) -> None:
        residual_std = INIT_STD / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scaled = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(parameter, 0.0, residual_std if scaled else INIT_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.ones_(parameter)

    @property
    def head_weight(self) -> bt.Tensor:
        """Weight of the output projection: [V, C]."""
        return self.wte.weight if self.config.tied_head else self.head.weight

    def hidden(self, tokens: bt.Tensor) -> bt.Tensor:
        """What the head sees.

        Args:
            tokens: int32 [B, T] with T at most the context.

        Returns:
            [B, T, C] after the last LayerNorm.

        Raises:
            InvalidInputError: no tensor [B, T], or longer than the context.
        """
        _check_tokens(tokens)
        length = tokens.shape[1]
        if length > self.config.context:
            message = f"[GPT] expected at most {self.config.context} tokens (model.context), got {length}"
            raise InvalidInputError(message)
        positions = self.wpe.weight if length == self.config.context else self.wpe.weight[:length]
        x = self._embedded(tokens) + positions
        if self.training and self.config.dropout > 0:
            x = F.dropout(x, self.config.dropout, training=True)
        hidden: bt.Tensor = self.lnf(self.blocks(x))
        return hidden

    def _embedded(self, tokens: bt.Tensor) -> bt.Tensor:
        """Rows of the token embedding: [B, T, C]. An id of the padding is as wrong as one beyond it."""
        return F.embedding(tokens, self.wte.weight, self.config.vocab_size)

    def logits(self, tokens: bt.Tensor) -> bt.Tensor:
        """Scores of the token after each one.

        Args:
            tokens: int32 [B, T].

        Returns:
            [B, T, V]; the last ``V - vocab_size`` are of padded ids.
        """
        return F.linear(self.hidden(tokens), self.head_weight)

    def loss_sum(self, tokens: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        """Cross entropy summed over valid targets, without ever holding full logits.

        Args:
            tokens: int32 [B, T].
            targets: int32 [B, T]; -100 is ignored.

        Returns:
            0-d float32, in nats.

        Raises:
            InvalidInputError: see ``hidden``; or the targets are no tensor.
            ShapeError: the targets have another shape than the tokens.
        """
        _check_tokens(tokens)
        if not isinstance(targets, bt.Tensor):
            raise InvalidInputError(f"[GPT] expected targets as a tensor of integers, got {type(targets).__name__}")
        if targets.shape != tokens.shape:
            message = f"[GPT] expected targets of the shape of the tokens, {tokens.shape}, got {targets.shape}"
            raise bt.ShapeError(f"{message}: a target is the token after the one in its place")
        rows = tokens.shape[0] * tokens.shape[1]
        hidden = self.hidden(tokens).reshape((rows, self.config.channels))
        return F.linear_cross_entropy(
            hidden,
            self.head_weight,
            targets.reshape((rows,)),
            reduction="sum",
            num_classes=self.config.vocab_size,  # padded ids take no part
        )

    def forward(self, tokens: bt.Tensor, targets: bt.Tensor | None = None) -> bt.Tensor:
        """Logits, or with targets the mean loss.

        Args:
            tokens: int32 [B, T].
            targets: int32 [B, T]; -100 is ignored.

        Returns:
            Logits [B, T, vocab_size], or the mean cross entropy over valid targets (0-d).

        Raises:
            InvalidInputError: see ``loss_sum``.
            ShapeError: likewise.
        """
        if targets is None:
            return self.logits(tokens)[..., : self.config.vocab_size]
        return self.loss_sum(tokens, targets) / count_valid(targets)

    def decode(self, token: bt.Tensor, position: bt.Tensor, cache: KVCache) -> bt.Tensor:
        """Logits after one more token of every sequence.

        Args:
            token: int32 [B].
            position: int32, 0-d: its place, below the context.
            cache: of the tokens before; extended in place.

        Returns:
            [B, V].
        """
        batch = token.shape[0]
        x = self._embedded(token.reshape((batch, 1))) + self.wpe(position.reshape((1,)))
        for layer, block in enumerate(self.blocks):
            x = block.decode(x, cache, layer, position)
        logits = F.linear(self.lnf(x), self.head_weight)
        return logits.reshape((batch, self.config.padded_vocab_size))

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Named parameters for the optimizer: matrices decay, biases and LayerNorm gains do not.

        Args:
            weight_decay: of the matrices.

        Returns:
            Two groups with ``params`` and ``weight_decay``.
        """
        named = list(self.named_parameters())
        matrices = [(name, parameter) for name, parameter in named if parameter.ndim >= 2]
        others = [(name, parameter) for name, parameter in named if parameter.ndim < 2]
        return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def _check_tokens(tokens: object) -> None:
    if not isinstance(tokens, bt.Tensor) or tokens.ndim != 2:
        found = tokens.shape if isinstance(tokens, bt.Tensor) else type(tokens).__name__
        raise InvalidInputError(f"[GPT] expected tokens as a tensor of integers [B, T], got {found}")


def count_valid(targets: bt.Tensor) -> bt.Tensor:
    """Number of targets that count.

    Args:
        targets: int32, any shape; -100 is ignored.

    Returns:
        0-d float32, exact up to 2**24.
    """
    return bt.sum((targets >= 0).astype(bt.float32))
