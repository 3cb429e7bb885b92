"""A small Llama: RMSNorm, rotary embedding, grouped-query attention and SwiGLU, composed of public parts."""

from __future__ import annotations

from typing import Any

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import nn


class LlamaBlock(nn.Module):
    """x + attention(norm(x)), then x + swiglu(norm(x)), without biases.

    Args:
        channels: C.
        heads: H query heads of D = C / H channels.
        key_heads: H_kv; H / H_kv query heads share a key head.
        hidden: Width of SwiGLU.
    """

    def __init__(self, channels: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.width = heads, key_heads, channels // heads
        self.norm1, self.norm2 = nn.RMSNorm(channels, eps=1e-5), nn.RMSNorm(channels, eps=1e-5)
        self.q = nn.Linear(channels, channels, bias=False)
        self.k = nn.Linear(channels, key_heads * self.width, bias=False)
        self.v = nn.Linear(channels, key_heads * self.width, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.gate = nn.Linear(channels, hidden, bias=False)
        self.up = nn.Linear(channels, hidden, bias=False)
        self.down = nn.Linear(hidden, channels, bias=False)

    def qkv(self, x: bt.Tensor, positions: bt.Tensor | None = None) -> tuple[bt.Tensor, bt.Tensor, bt.Tensor]:
        """Queries [B, H, T, D], keys and values [B, H_kv, T, D], of normalized x [B, T, C]."""

        def heads(t: bt.Tensor, count: int) -> bt.Tensor:
            return t.reshape(*t.shape[:2], count, self.width).permute_dims(0, 2, 1, 3)

        q, k = heads(self.q(x), self.heads), heads(self.k(x), self.key_heads)
        turned = (F.rotary_embedding(t, positions) for t in (q, k))
        return (*turned, heads(self.v(x), self.key_heads))  # type: ignore[return-value]

    def merged(self, x: bt.Tensor, mixed: bt.Tensor) -> bt.Tensor:
        """The rest of the block after attention [B, H, T, D]."""
        x = self.out(mixed.permute_dims(0, 2, 1, 3).reshape(x.shape), x)
        h = self.norm2(x)
        gate = self.gate(h)
        return self.down(gate / (1.0 + bt.exp(-gate)) * self.up(h), x)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        return self.merged(x, F.scaled_dot_product_attention(*self.qkv(self.norm1(x)), is_causal=True))

    def decode(self, x: bt.Tensor, caches: list[bt.Tensor], position: bt.Tensor) -> bt.Tensor:
        """One token [B, 1, C] after those in the caches of keys and values [B, H_kv, Tmax, D]."""
        q, k, v = self.qkv(self.norm1(x), position)
        for cache, new in zip(caches, (k, v), strict=True):
            bt.index_write_(cache, new, position, 2)
        return self.merged(x, F.attention_decode(q, caches[0], caches[1], position))


class Llama(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(
        self,
        vocabulary: int = 61,
        channels: int = 48,
        heads: int = 6,
        key_heads: int = 2,
        hidden: int = 88,
        layers: int = 2,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, channels)
        self.blocks = nn.Sequential(*[LlamaBlock(channels, heads, key_heads, hidden) for _ in range(layers)])
        self.norm = nn.RMSNorm(channels, eps=1e-5)
        self.head = nn.Linear(channels, vocabulary, bias=False)
        if dtype != "float32":
            self.to(dtype)

    def forward(self, tokens: bt.Tensor) -> bt.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens))))  # type: ignore[no-any-return]

    def loss(self, tokens: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        x = self.norm(self.blocks(self.tokens(tokens)))
        return F.linear_cross_entropy(x.reshape(-1, x.shape[-1]), self.head.weight, targets.reshape(-1))


def torch_logits(torch: Any, weights: dict[str, Any], tokens: Any, layers: int, heads: int, key_heads: int) -> Any:
    """The same model in PyTorch, of the same names and shapes of weights."""
    f = torch.nn.functional
    x = f.embedding(tokens, weights["tokens.weight"])
    batch, steps, channels = x.shape
    width = channels // heads
    kind = x.dtype
    angle = torch.arange(steps, dtype=kind)[:, None] * 10000.0 ** (-torch.arange(0, width, 2, dtype=kind) / width)
    cos, sin = (torch.cat([fn(angle)] * 2, -1) for fn in (torch.cos, torch.sin))

    def turned(t: Any) -> Any:
        return t * cos + torch.cat([-t[..., width // 2 :], t[..., : width // 2]], -1) * sin

    def norm(t: Any, name: str) -> Any:
        return f.rms_norm(t, t.shape[-1:], weights[f"{name}.weight"], 1e-5)

    for n in range(layers):
        w = {name: weights[f"blocks.{n}.{name}.weight"] for name in ("q", "k", "v", "out", "gate", "up", "down")}
        h = norm(x, f"blocks.{n}.norm1")
        q, k, v = (
            f.linear(h, w[name]).view(batch, steps, count, width).transpose(1, 2)
            for name, count in (("q", heads), ("k", key_heads), ("v", key_heads))
        )
        mixed = f.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + f.linear(mixed.transpose(1, 2).reshape(batch, steps, channels), w["out"])
        h = norm(x, f"blocks.{n}.norm2")
        x = x + f.linear(f.silu(f.linear(h, w["gate"])) * f.linear(h, w["up"]), w["down"])
    return f.linear(norm(x, "norm"), weights["head.weight"])
