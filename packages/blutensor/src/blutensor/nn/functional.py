"""Neural-network functions. Names and semantics follow `torch.nn.functional`.

Shapes: B batch, T tokens, S keys, C channels, H heads, D channels per head, V classes, N = rows of any leading axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .. import _operators as ops
from .._arguments import flag, integer, number, probability
from .._naming import named
from ..autograd import is_grad_enabled
from ..errors import ShapeError
from ..interop import sizes_of
from ..tensor import Tensor
from .rotary import rotary_embedding as rotary_embedding

Reduction = Literal["mean", "sum", "none"]

# From 1 to the next number: rms_norm's default.
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@named("linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """X W^T + bias [+ residual], in one GEMM.

    Args:
        x: [..., K].
        weight: [N, K].
        bias: [N].
        residual: [..., N], added by the GEMM's epilogue.

    Returns:
        [..., N].
    """
    return ops.linear(x, weight, bias, residual)


@named("mlp")
def mlp(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    residual: Tensor | None = None,
    approximate: Literal["tanh", "none"] = "tanh",
) -> Tensor:
    """Linear(gelu(linear(x, w1, b1)), w2, b2) [+ residual] as one operator.

    GELU and its gradient run in the GEMMs' epilogues.

    Args:
        x: [..., C].
        w1: [F, C].
        b1: [F].
        w2: [N, F].
        b2: [N].
        residual: [..., N].
        approximate: As in `gelu`.

    Returns:
        [..., N].
    """
    return ops.mlp(x, w1, w2, b1, b2, residual, approximate)[0]


@named("gelu")
def gelu(x: Tensor, approximate: Literal["tanh", "none"] = "none") -> Tensor:
    """X times Phi(x), Phi the normal distribution function; "tanh" is Hendrycks and Gimpel's approximation."""
    return ops.gelu(x, approximate)


@named("layer_norm")
def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis.

    Args:
        x: [..., C].
        normalized_shape: C; several axes are normalized together.
        weight: [C].
        bias: [C].
        eps: Added to the (biased) variance.

    Raises:
        ShapeError: normalized_shape is not how x's shape ends.
    """
    return ops.layer_norm(x, weight, bias, eps, _normalized_axes("layer_norm", x, normalized_shape))[0]


def _normalized_axes(op: str, x: Tensor, normalized_shape: int | Sequence[int]) -> int:
    """How many trailing axes of x make up the shape."""
    shape = sizes_of(op, normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(f"[{op}] expected a shape that ends in {shape}, got {x.shape}")
    return len(shape)


@named("rms_norm")
def rms_norm(
    x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """X / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019).

    Args:
        x: [..., C].
        normalized_shape: C; several axes are normalized together.
        weight: [C].
        eps: Added to the mean square; by default the distance from 1 to the next number of x's dtype.

    Raises:
        ShapeError: normalized_shape is not how x's shape ends.
    """
    if eps is None:
        eps = _EPSILON.get(x.dtype.name, _EPSILON["float32"])
    return ops.rms_norm(x, weight, eps, _normalized_axes("rms_norm", x, normalized_shape))[0]


@named("embedding")
def embedding(ids: Tensor, weight: Tensor, num_ids: int = 0) -> Tensor:
    """Rows of `weight` [V, C] by integer `ids` [...]: [..., C].

    Args:
        ids: Integers [...].
        weight: [V, C].
        num_ids: Ids are below it where the rows behind are padding; 0 for V.

    Raises:
        IndexOutOfRangeError: An id outside [0, V), or outside [0, num_ids).
        ShapeError: num_ids above V, or below 0.
    """
    return ops.embedding(ids, weight, num_ids)


@named("softmax")
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return ops.softmax(x, axis)


@named("log_softmax")
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)) along an axis, without overflow."""
    return ops.log_softmax(x, axis)


@named("cross_entropy")
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(logits)[target].

    Args:
        logits: [..., V].
        targets: Integers [...]; rows whose target is ignore_index do not count.
        ignore_index: Target that is ignored.
        reduction: "mean" over the rows that count, "sum", or "none" (a loss per row).
        label_smoothing: e: the target weighs 1 - e, and e is shared out to all V classes (Szegedy et al., 2016).

    Raises:
        IndexOutOfRangeError: A target outside [0, V) that is not ignore_index.
        ShapeError: label_smoothing outside [0, 1].
    """
    return ops.cross_entropy(logits, targets, ignore_index, reduction, label_smoothing)[0]


@named("linear_cross_entropy")
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
    num_classes: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """cross_entropy(linear(x, weight), targets) in chunks: the logits never exist as a whole.

    Args:
        x: [N, C].
        weight: [V, C].
        targets: Integers [N].
        ignore_index: As in `cross_entropy`.
        reduction: "mean" or "sum".
        num_classes: Rows of weight from here on pad it: they take no part in the loss, and their gradient is 0. All
            rows count by default.
        label_smoothing: As in `cross_entropy`.

    Returns:
        The loss, 0-d.

    Raises:
        ShapeError: num_classes below 1 or above V.
    """
    if num_classes is not None:
        num_classes = integer("linear_cross_entropy", "num_classes", num_classes, least=1)
    wants_x, wants_weight = (is_grad_enabled() and t.requires_grad for t in (x, weight))
    padding = () if num_classes in (None, *weight.shape[:1]) else (num_classes,)
    loss = ops.linear_cross_entropy(x, weight, targets, ignore_index, reduction, wants_x, wants_weight, *padding)[0]
    if label_smoothing == 0.0:
        return loss
    return loss + probability("linear_cross_entropy", label_smoothing) * _smoothing(
        x, weight[:num_classes] if padding else weight, targets, ignore_index, reduction
    )


def _smoothing(x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """What label smoothing adds to the loss, for a smoothing of 1: the target's logit less the mean of all logits.

    Both are products with x: of the target's row of weight, and of the mean of its rows. So no logits are needed.
    """
    counts = ops.not_equal(targets, ignore_index)
    wide = "float64" if x.dtype.name == "float64" else "float32"
    rows = embedding(ops.where(counts, targets, 0), weight).astype(wide)
    below = ops.sum(x.astype(wide) * (rows - weight.astype(wide).mean(0)), -1)
    total = ops.sum(ops.where(counts, below, 0.0))
    return total / ops.sum(counts.astype(wide)) if reduction == "mean" else total


@named("dropout")
def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zeroes elements with probability p and scales the others by 1 / (1 - p); the identity outside training.

    Raises:
        ShapeError: p outside [0, 1].
    """
    p, training = probability("dropout", p), flag("dropout", "training", training)
    return x if not training or p == 0.0 else ops.dropout(x, p)


def _scale(op: str, scale: float | None) -> float:
    """The operators' attribute, in which 0 stands for 1 / sqrt(D)."""
    if scale is None:
        return 0.0
    factor = number(op, "scale", scale)
    if factor == 0.0:
        raise ShapeError(f"[{op}] expected a scale other than 0, or None for 1 / sqrt(D), got {scale}")
    return factor


@named("scaled_dot_product_attention")
def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(q k^T * scale) v in blocks; the T x S matrix never exists.

    Args:
        q: [B, H, T, D].
        k: [B, H, S, D]; its heads may be fewer by a whole factor G (grouped-query attention; Ainslie et al., 2023):
            query head h reads key head h / G, without a copy.
        v: Like k.
        is_causal: Query t sees keys 0 .. t.
        scale: 1 / sqrt(D) by default; not 0.

    Returns:
        [B, H, T, D], laid out as [B, T, H, D] in memory.
    """
    return ops.scaled_dot_product_attention(q, k, v, is_causal, _scale("scaled_dot_product_attention", scale))[0]


@named("qkv_attention")
def qkv_attention(qkv: Tensor, num_heads: int, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """Self-attention on the packed result of one qkv projection; the bits of splitting it, with a single gradient.

    Args:
        qkv: [B, T, 3C]: queries, keys, values, each [B, T, H, D] with C = H * D.
        num_heads: H.
        is_causal: Query t sees keys 0 .. t.
        scale: 1 / sqrt(D) by default; not 0.

    Returns:
        [B, T, C].
    """
    return ops.qkv_attention(qkv, num_heads, is_causal, _scale("qkv_attention", scale))[0]


@named("attention_decode")
def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
    """Attention of one query per sequence over rows 0 .. position of a cache.

    Args:
        q: [B, H, 1, D].
        k_cache: [B, H, Tmax, D]; its heads may be fewer, as in `scaled_dot_product_attention`.
        v_cache: Like k_cache.
        position: 0-d integer.

    Returns:
        [B, H, 1, D].
    """
    return ops.attention_decode(q, k_cache, v_cache, position)
