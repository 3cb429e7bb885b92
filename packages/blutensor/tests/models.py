"""Small models and training steps that several tests capture and replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import nn, optim


class MLP(nn.Module):
    """Two layers and dropout."""

    def __init__(self, features: int = 13, hidden: int = 31, classes: int = 7, p: float = 0.2) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.dropout = nn.Dropout(p)
        self.second = nn.Linear(hidden, classes)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        return self.second(self.dropout(F.gelu(self.first(x))))

    def loss(self, x: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        return F.cross_entropy(self(x), targets)


class RNN(nn.Module):
    """h <- tanh(x W + h U), a prediction from the last h: the same weights at every step."""

    def __init__(self, features: int = 5, hidden: int = 17, classes: int = 7) -> None:
        super().__init__()
        self.hidden = hidden
        self.x_to_h = nn.Linear(features, hidden)
        self.h_to_h = nn.Linear(hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        h = bt.zeros((x.shape[0], self.hidden))
        for t in range(x.shape[1]):
            h = bt.tanh(self.x_to_h(x[:, t]) + self.h_to_h(h))
        return self.head(h)

    def loss(self, x: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        return F.cross_entropy(self(x), targets)


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, channels: int, heads: int, p: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.dropout = nn.Dropout(p)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        batch, length, channels = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, -1).permute_dims(0, 2, 1, 3)
            for part in bt.split(self.qkv(self.norm1(x)), (channels, channels, channels), 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.permute_dims(0, 2, 1, 3).reshape(batch, length, channels)
        x = x + self.dropout(self.out(mixed))
        return F.mlp(self.norm2(x), self.up.weight, self.up.bias, self.down.weight, self.down.bias, x)


class Transformer(nn.Module):
    """A GPT of ugly sizes with a tied head."""

    def __init__(
        self,
        vocabulary: int = 53,
        channels: int = 24,
        heads: int = 3,
        layers: int = 2,
        length: int = 11,
        p: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, channels), nn.Embedding(length, channels)
        self.blocks = nn.Sequential(*[Block(channels, heads, p) for _ in range(layers)])
        self.norm = nn.LayerNorm(channels)
        self.channels = channels

    def loss(self, tokens: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]))
        return F.linear_cross_entropy(x.reshape(-1, self.channels), self.tokens.weight, targets.reshape(-1))


Batch = tuple[bt.Tensor, bt.Tensor]


def batches(kind: str, steps: int, seed: int = 0, size: int = 4) -> list[Batch]:
    """Inputs and targets of every step."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(steps):
        if kind == "transformer":
            text = rng.integers(0, 53, (size, 12)).astype(np.int32)
            made.append((bt.asarray(text[:, :-1].copy()), bt.asarray(text[:, 1:].copy())))
        else:
            shape = (size, 13) if kind == "mlp" else (size, 6, 5)
            x = rng.standard_normal(shape).astype(np.float32)
            made.append((bt.asarray(x), bt.asarray(rng.integers(0, 7, size))))
    return made


def build(kind: str) -> tuple[Any, optim.Optimizer]:
    """A model with the weights of seed 7, and its optimizer."""
    bt.manual_seed(7)
    model = {"mlp": MLP, "rnn": RNN, "transformer": Transformer}[kind]()
    optimizer = optim.AdamW(model.named_parameters(), lr=1e-2, weight_decay=0.01)
    bt.manual_seed(11)
    return model, optimizer


def train_step(model: Any, optimizer: optim.Optimizer) -> Callable[[bt.Tensor, bt.Tensor], bt.Tensor]:
    """A whole step with clipping; returns the loss."""
    parameters = list(model.parameters())

    def step(x: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        optimizer.zero_grad()
        loss = model.loss(x, targets)
        loss.backward()
        scale, skip = optim.clip_scale(optim.grad_norm(parameters), 1.0)
        optimizer.step(grad_scale=scale, skip=skip)
        bt.default_generator.advance()
        return loss

    return step


def weights(model: Any) -> dict[str, npt.NDArray[Any]]:
    """Copies of all parameters."""
    return {name: np.array(p.detach().cpu().numpy()) for name, p in model.named_parameters()}


def bits(value: bt.Tensor | npt.NDArray[Any]) -> bytes:
    """Bytes of the values, in row-major order."""
    array = value.detach().cpu().numpy() if isinstance(value, bt.Tensor) else value
    return np.ascontiguousarray(array).tobytes()


def same_bits(a: dict[str, npt.NDArray[Any]], b: dict[str, npt.NDArray[Any]]) -> None:
    """Fails unless both hold the same bits under the same names."""
    assert a.keys() == b.keys()
    different = [name for name in a if bits(a[name]) != bits(b[name])]
    assert not different
