"""Attention and its gradients written out in NumPy, in the dtype of the operands, for the tests of all its operators.

Legend: B batch, H heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

import numpy as np
from layer_checks import Array, normal


def attention(q: Array, k: Array, v: Array, causal: bool, scale: float | None = None) -> tuple[Array, Array, Array]:
    """Output, logsumexp and probabilities, in the dtype of q."""
    factor = q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (q @ np.swapaxes(k, -1, -2)) * factor
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, q.dtype.type(-np.inf))
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    p = weights / total
    return p @ v, (top + np.log(total))[..., 0], p


def attention_gradients(
    q: Array,
    k: Array,
    v: Array,
    upstream: Array,
    causal: bool,
    scale: float | None = None,
    of_logsumexp: Array | None = None,
) -> list[Array]:
    """dq, dk, dv in the dtype of q."""
    factor = q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    output, _, p = attention(q, k, v, causal, scale)
    delta = (upstream * output).sum(-1, keepdims=True)
    if of_logsumexp is not None:
        delta = delta - of_logsumexp[..., None].astype(q.dtype)
    ds = p * (upstream @ np.swapaxes(v, -1, -2) - delta) * factor
    return [ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ upstream]


def packed(rng: np.random.Generator, b: int, h: int, t: int, d: int) -> list[Array]:
    """q, k and v as views of one [B, T, 3, H, D] buffer, as a transformer's qkv layer leaves them."""
    qkv = normal(rng, b, t, 3, h, d)
    return [qkv[:, :, i].swapaxes(1, 2) for i in range(3)]
