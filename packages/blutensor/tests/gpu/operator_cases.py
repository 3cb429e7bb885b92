"""Operands for every operator of the table: sizes around packs, warps, tiles and blocks, and how PyTorch calls it.

Floating operands are given in float64 and take the dtype of the test; integers and bools stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from dtype_names import DTYPES as EVERY
from dtype_names import FLOATS, INTEGERS

Array = npt.NDArray[Any]

EDGES = (0, 1, 3, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4099)


@dataclass(frozen=True)
class Case:
    """Inputs of one call. `strided`: also called with other layouts. `terms`: of the longest sum of a result."""

    inputs: tuple[Array | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    strided: bool = False
    terms: int = 1
    is_list: bool = False  # the inputs are one list


@dataclass(frozen=True)
class Plan:
    """Cases of an operator. `exact`: the bits of the CPU; `peer`: the same in PyTorch, (torch, *tensors, **attrs)."""

    cases: Callable[[np.random.Generator], Iterator[Case]]
    dtypes: tuple[str, ...] = FLOATS
    exact: tuple[str, ...] = ()
    peer: Callable[..., Any] | None = None


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Normal float64 numbers."""
    return rng.standard_normal(shape)


def unary(draw: Callable[[np.random.Generator, tuple[int, ...]], Array]) -> Callable[..., Iterator[Case]]:
    """One operand of every size."""

    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for n in EDGES:
            yield Case((draw(rng, (n,)),))
        yield Case((draw(rng, (5, 37, 24)),), strided=True)
        yield Case((draw(rng, ()),))

    return cases


def anything(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal numbers times two."""
    return 2 * rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Away from zero, positive."""
    return np.abs(rng.standard_normal(shape)) + 0.5


def unit(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Between -0.9 and 0.9."""
    return rng.uniform(-0.9, 0.9, shape)


def away(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Away from zero, both signs."""
    x = rng.standard_normal(shape)
    return np.where(x < 0, -1.0, 1.0) * (np.abs(x) + 0.5)


def binary(draw: Callable[[np.random.Generator, tuple[int, ...]], Array]) -> Callable[..., Iterator[Case]]:
    """Two operands of every size, and every kind of broadcasting."""

    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for n in EDGES:
            yield Case((draw(rng, (n,)), draw(rng, (n,))))
        for a, b in (
            ((33, 40), (40,)),
            ((33, 40), (33, 1)),
            ((7, 40), ()),
            ((2, 1, 24), (5, 1)),
            ((8, 257), (257,)),
            ((4, 1, 6), (1, 5, 1)),
        ):
            yield Case((draw(rng, a), draw(rng, b)), terms=264)
        yield Case((draw(rng, (3, 21, 16)), draw(rng, (3, 21, 16))), strided=True)

    return cases


def where(rng: np.random.Generator) -> Iterator[Case]:
    for n in EDGES:
        yield Case((rng.integers(0, 2, n).astype(bool), normal(rng, n), normal(rng, n)))
    yield Case(
        (rng.integers(0, 2, (5, 1, 16)).astype(bool), normal(rng, 3, 16), normal(rng, 1)), strided=True, terms=240
    )


def reductions(rng: np.random.Generator) -> Iterator[Case]:
    for n in (1, 31, 33, 255, 1025, 100003):
        yield Case((normal(rng, n),), {"axis": None}, terms=n)
    for shape, axes in (
        ((33, 1025), (0, 1, None)),
        ((300, 768), (0, 1)),
        ((7, 31, 33), ((0, 2), (0, 1), 1, (1, 2))),
        ((2048, 48), (0, 1)),
    ):
        for axis in axes:
            case = {"axis": axis, "keepdims": axis == 0}
            yield Case((normal(rng, *shape),), case, strided=True, terms=int(np.prod(shape)))


def positions(rng: np.random.Generator) -> Iterator[Case]:
    for case in reductions(rng):
        if not isinstance(case.attrs["axis"], tuple):
            yield Case((np.round(case.inputs[0]),), case.attrs, strided=True)  # type: ignore[call-overload]


def products(rng: np.random.Generator) -> Iterator[Case]:
    """Factors near 1, whose products neither overflow nor vanish."""
    for case in reductions(rng):
        yield Case((np.exp(0.01 * case.inputs[0]),), case.attrs, strided=True, terms=case.terms)  # type: ignore[operator]


def scans(draw: Callable[[Array], Array]) -> Callable[..., Iterator[Case]]:
    """Lines around warps, blocks and stretches, along every axis, in both directions."""

    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for n in (0, 1, 31, 33, 255, 257, 1025, 5000):
            yield Case((draw(normal(rng, n)),), {"axis": 0}, terms=max(n, 1))
        for axis in (0, 1, -1):
            for reverse, exclusive in ((False, True), (True, False)):
                attrs = {"axis": axis, "reverse": reverse, "exclusive": exclusive}
                yield Case((draw(normal(rng, 5, 300, 7)),), attrs, strided=not reverse, terms=300)

    return cases


def sorts(rng: np.random.Generator) -> Iterator[Case]:
    for n in (0, 1, 2, 3, 31, 257, 1000):
        yield Case((np.round(3 * normal(rng, n)),), {"axis": 0})
    for axis in (0, 1, 2):
        yield Case((np.round(3 * normal(rng, 4, 37, 9)),), {"axis": axis, "descending": axis == 1}, strided=True)


def searches(rng: np.random.Generator) -> Iterator[Case]:
    for n in (0, 1, 2, 33, 1000):
        for side in ("left", "right"):
            line, values = np.sort(np.round(9 * np.abs(normal(rng, n)))), np.round(9 * np.abs(normal(rng, 7, 33)))
            yield Case((line, values), {"side": side})


def clips(rng: np.random.Generator) -> Iterator[Case]:
    for n in EDGES:
        yield Case((anything(rng, (n,)), np.array(-1.0), np.array(1.0)))
    yield Case((anything(rng, (5, 37, 24)), anything(rng, (37, 1)), None), strided=True, terms=120)
    yield Case((anything(rng, (5, 24)), None, anything(rng, (24,))), terms=5)


def concat(rng: np.random.Generator) -> Iterator[Case]:
    for axis in (0, 1, -1):
        shapes = [[4, 6, 8] for _ in range(3)]
        for shape, n in zip(shapes, (3, 0, 5), strict=True):
            shape[axis] = n
        yield Case(tuple(normal(rng, *s) for s in shapes), {"axis": axis}, strided=True, is_list=True)


def matmul(rng: np.random.Generator) -> Iterator[Case]:
    for m, n, k in ((1, 1, 1), (33, 31, 17), (128, 128, 64), (129, 127, 65), (64, 256, 257), (5, 3, 0)):
        yield Case((normal(rng, m, k), normal(rng, k, n)), strided=True, terms=max(m, n, k))
    yield Case((normal(rng, 3, 17, 40), normal(rng, 3, 40, 24)), strided=True, terms=40)
    yield Case((normal(rng, 2, 3, 17, 40), normal(rng, 40, 24)), terms=102)


def linear(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width, out in ((1, 8, 8), (33, 65, 31), (128, 64, 192), (257, 96, 130)):
        x, w, b = normal(rng, rows, width), normal(rng, out, width), normal(rng, out)
        yield Case((x, w), strided=True, terms=max(rows, width, out))
        yield Case((x, w, b), terms=max(rows, width, out))
        yield Case((x, w, b, normal(rng, rows, out)), terms=max(rows, width, out))
    yield Case((normal(rng, 2, 33, 64), normal(rng, 48, 64), normal(rng, 48)), terms=66)


def torch_linear(torch: Any, x: Any, w: Any, b: Any = None, residual: Any = None) -> Any:
    y = torch.nn.functional.linear(x, w, b)
    return y if residual is None else y + residual


def mlp(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width in ((1, 8), (33, 48), (130, 64)):
        w1, w2 = normal(rng, 4 * width, width) * width**-0.5, normal(rng, width, 4 * width) * width**-0.5
        x, b1, b2 = normal(rng, rows, width), normal(rng, 4 * width), normal(rng, width)
        for form in ("tanh", "none"):
            yield Case((x, w1, b1, w2, b2, normal(rng, rows, width)), {"approximate": form}, terms=max(rows, 4 * width))
        yield Case((x, w1, None, w2, None, None), terms=max(rows, 4 * width))


def torch_mlp(torch: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any, approximate: str = "tanh") -> Any:
    f = torch.nn.functional
    y = f.linear(f.gelu(f.linear(x, w1, b1), approximate=approximate), w2, b2)
    return y if residual is None else y + residual


def layer_norm(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width in ((4, 1), (1, 3), (3, 31), (33, 256), (130, 768), (17, 1025), (5, 4096)):
        x, w, b = normal(rng, rows, width), normal(rng, width), normal(rng, width)
        yield Case((x, w, b), terms=max(rows, width))
        yield Case((x, None, None), strided=True, terms=max(rows, width))
    yield Case((normal(rng, 2, 7, 48), normal(rng, 48), None), terms=48)


def torch_layer_norm(torch: Any, x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width in ((1, 3), (3, 31), (33, 256), (130, 768), (17, 1025), (5, 4096), (2, 9000)):
        x, w = normal(rng, rows, width), normal(rng, width)
        yield Case((x, w), terms=max(rows, width))
        yield Case((x, None), strided=True, terms=max(rows, width))
    yield Case((normal(rng, 2, 7, 48), normal(rng, 48)), terms=48)


def torch_rms_norm(torch: Any, x: Any, w: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)


def rotary_embedding(rng: np.random.Generator) -> Iterator[Case]:
    for shape in ((1, 1, 2), (3, 33, 14), (2, 4, 65, 64), (1, 2, 257, 128), (2, 0, 8)):
        yield Case((normal(rng, *shape), None), strided=True)
        yield Case((normal(rng, *shape), rng.integers(0, 5000, shape[-2])), {"base": 500000.0})
    yield Case((normal(rng, 2, 3, 5, 16), rng.integers(0, 99, (2, 1, 5)).astype(np.int32)), strided=True)
    yield Case((normal(rng, 2, 5, 3, 16), np.arange(5)[:, None]))


def torch_rotary_embedding(torch: Any, x: Any, positions: Any, base: float = 10000.0) -> Any:
    half, kind = x.shape[-1] // 2, torch.float64 if x.dtype == torch.float64 else torch.float32
    if positions is None:
        positions = torch.arange(x.shape[-2], device=x.device)
    angle = positions[..., None].to(kind) * base ** (-torch.arange(half, device=x.device, dtype=kind) / max(half, 1))
    a, b = x[..., :half].to(kind), x[..., half:].to(kind)
    turned = torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    return turned.to(x.dtype)


def take_along_axis(rng: np.random.Generator) -> Iterator[Case]:
    for shape, axis, length in (
        ((5,), 0, 9),
        ((33, 257), 1, 1),
        ((33, 257), 0, 70),
        ((3, 7, 40), -1, 64),
        ((4, 6), 1, 0),
    ):
        wide = list(shape)
        wide[axis] = length
        index = rng.integers(-shape[axis], shape[axis], wide)
        yield Case((normal(rng, *shape), index), {"axis": axis}, strided=True, terms=max(length, 1))


def softmax(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width in ((1, 1), (3, 31), (33, 257), (130, 1024), (4, 50257)):
        yield Case((3 * normal(rng, rows, width),), {"axis": -1}, strided=width < 1000, terms=width)
    yield Case((normal(rng, 7, 33, 5),), {"axis": 1}, strided=True, terms=33)


def cross_entropy(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width in ((1, 1), (33, 31), (130, 257), (17, 50257)):
        targets = rng.integers(0, width, rows)
        if rows > 2:
            targets[1] = -100
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.1):
                yield Case(
                    (2 * normal(rng, rows, width), targets),
                    {"reduction": reduction, "label_smoothing": smoothing},
                    terms=max(rows, width),
                )


def linear_cross_entropy(rng: np.random.Generator) -> Iterator[Case]:
    for rows, channels, width in ((1, 8, 16), (33, 48, 130), (300, 64, 1025)):
        targets = rng.integers(0, width, rows)
        if rows > 2:
            targets[1] = -100
        x, w = normal(rng, rows, channels), normal(rng, width, channels) * 0.2
        for reduction in ("mean", "sum"):
            for smoothing in (0.0, 0.1):
                yield Case(
                    (x, w, targets), {"reduction": reduction, "label_smoothing": smoothing}, terms=max(rows, width)
                )


def torch_linear_cross_entropy(torch: Any, x: Any, w: Any, targets: Any, **how: Any) -> Any:
    f = torch.nn.functional
    return f.cross_entropy(f.linear(x, w).float() if x.dtype != torch.float64 else f.linear(x, w), targets, **how)


def embedding(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width, ids in ((1, 1, 1), (11, 127, 14), (257, 64, 2048), (50257, 48, 300), (7, 768, 4096), (3, 4, 0)):
        yield Case((rng.integers(0, rows, ids), normal(rng, rows, width)), terms=ids)
    yield Case((rng.integers(0, 9, (3, 5)).astype(np.int32), normal(rng, 9, 33)), terms=15)


def attention(rng: np.random.Generator) -> Iterator[Case]:
    for batch, heads, queries, keys, depth in (
        (1, 1, 1, 1, 32),
        (2, 2, 33, 33, 64),
        (1, 3, 130, 130, 64),
        (1, 2, 257, 257, 128),
        (1, 2, 65, 129, 40),
        (2, 1, 1, 70, 96),
    ):
        q = normal(rng, batch, heads, queries, depth)
        k, v = normal(rng, batch, heads, keys, depth), normal(rng, batch, heads, keys, depth)
        for causal in (False, True) if queries == keys else (False,):
            yield Case((q, k, v), {"is_causal": causal}, strided=depth == 64, terms=keys)

    for group, steps, depth in ((2, 33, 64), (4, 130, 64), (3, 17, 20)):
        q, (k, v) = normal(rng, 2, 2 * group, steps, depth), normal(rng, 2, 2, 2, steps, depth)
        yield Case((q, k, v), {"is_causal": True}, strided=depth == 64, terms=steps * group)


def torch_attention(torch: Any, q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    f = torch.nn.functional.scaled_dot_product_attention
    return f(q, k, v, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1])


def qkv_attention(rng: np.random.Generator) -> Iterator[Case]:
    for batch, steps, heads, depth in ((1, 1, 1, 32), (2, 33, 2, 64), (1, 130, 3, 64), (1, 257, 2, 128)):
        for causal in (True, False):
            qkv = normal(rng, batch, steps, 3 * heads * depth)
            yield Case((qkv,), {"num_heads": heads, "is_causal": causal}, terms=steps)


def torch_qkv_attention(torch: Any, qkv: Any, num_heads: int, is_causal: bool) -> Any:
    batch, steps, width = qkv.shape
    q, k, v = qkv.view(batch, steps, 3, num_heads, width // 3 // num_heads).permute(2, 0, 3, 1, 4)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return y.transpose(1, 2).reshape(batch, steps, width // 3)


def attention_decode(rng: np.random.Generator) -> Iterator[Case]:
    for heads, room, depth, position in ((1, 1, 32, 0), (3, 130, 64, 77), (2, 300, 128, 299)):
        q, cache = normal(rng, 2, heads, 1, depth), (2, heads, room, depth)
        yield Case((q, normal(rng, *cache), normal(rng, *cache), np.array(position)), terms=room)
    q, cache = normal(rng, 2, 6, 1, 64), (2, 2, 33, 64)
    yield Case((q, normal(rng, *cache), normal(rng, *cache), np.array(20)), terms=33)


def named(name: str) -> Callable[..., Any]:
    """PyTorch's function of this name, with its names for the attributes."""
    names = {"axis": "dim", "keepdims": "keepdim"}

    def call(torch: Any, *tensors: Any, **attrs: Any) -> Any:
        function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
        if attrs.get("axis", 0) is None:
            return function(*tensors)
        return function(*tensors, **{names.get(k, k): v for k, v in attrs.items()})

    return call


NUMERIC = FLOATS + INTEGERS
# Transcendental functions of float64 are the CUDA library's; the 16-bit forms of GELU are approximations below their
# rounding.
NARROW = ("float32", "bfloat16", "float16")

PLANS: dict[str, Plan] = {
    **{n: Plan(unary(anything), NUMERIC, NUMERIC) for n in ("negative", "abs", "sign", "square")},
    **{n: Plan(unary(anything), EVERY, EVERY) for n in ("isnan", "isfinite", "logical_not", "contiguous", "copy")},
    **{n: Plan(unary(anything), FLOATS, NARROW) for n in ("exp", "tanh", "erf")},
    **{n: Plan(unary(positive), FLOATS, NARROW) for n in ("log",)},
    **{n: Plan(unary(positive), FLOATS, FLOATS) for n in ("sqrt", "rsqrt")},
    "reciprocal": Plan(unary(away), FLOATS, FLOATS),
    "relu": Plan(unary(anything), NUMERIC, NUMERIC),
    **{n: Plan(unary(anything), FLOATS, NARROW) for n in ("sigmoid", "silu")},
    **{n: Plan(unary(unit), FLOATS) for n in ("asin", "acos", "atanh", "log1p", "tan")},
    **{n: Plan(unary(anything), FLOATS) for n in ("sin", "cos", "atan", "sinh", "cosh", "asinh", "expm1")},
    **{n: Plan(unary(positive), FLOATS) for n in ("log2", "log10")},
    "acosh": Plan(unary(lambda rng, shape: 1 + positive(rng, shape)), FLOATS),
    **{n: Plan(unary(anything), NUMERIC, NUMERIC) for n in ("floor", "ceil", "trunc", "round")},
    "bitwise_invert": Plan(unary(anything), (*INTEGERS, "bool"), (*INTEGERS, "bool")),
    "isinf": Plan(unary(anything), EVERY, EVERY),
    "signbit": Plan(unary(anything), FLOATS, FLOATS),
    "gelu": Plan(
        lambda rng: (
            Case(c.inputs, {"approximate": form}, c.strided) for form in ("none", "tanh") for c in unary(anything)(rng)
        ),
        FLOATS,
        ("float32",),
        named("gelu"),
    ),
    **{n: Plan(binary(anything), NUMERIC, NUMERIC) for n in ("add", "subtract", "multiply", "maximum", "minimum")},
    "divide": Plan(binary(away), FLOATS, FLOATS),
    "pow": Plan(binary(positive), FLOATS),
    **{n: Plan(binary(away), NUMERIC, NUMERIC) for n in ("floor_divide", "remainder")},
    **{n: Plan(binary(away), FLOATS) for n in ("atan2", "hypot", "logaddexp")},
    **{n: Plan(binary(away), FLOATS, FLOATS) for n in ("copysign", "nextafter")},
    **{
        n: Plan(binary(anything), (*INTEGERS, "bool"), (*INTEGERS, "bool"))
        for n in ("bitwise_and", "bitwise_or", "bitwise_xor")
    },
    **{n: Plan(binary(anything), INTEGERS, INTEGERS) for n in ("bitwise_left_shift", "bitwise_right_shift")},
    "clip": Plan(clips, NUMERIC, NUMERIC),
    **{
        n: Plan(binary(anything), EVERY, EVERY)
        for n in (
            *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
            *("logical_and", "logical_or", "logical_xor"),
        )
    },
    "where": Plan(where, EVERY, EVERY),
    "astype": Plan(
        lambda rng: (
            Case((100 * c.inputs[0],), {"dtype": to}, c.strided)  # type: ignore[operator]
            for to in ("float32", "bfloat16", "float64", "int32", "uint8", "bool")
            for c in list(unary(anything)(rng))[-6:]
        ),
        EVERY,
        EVERY,
    ),
    "concat": Plan(concat, EVERY, EVERY),
    "sum": Plan(reductions, FLOATS, (), named("sum")),
    "mean": Plan(reductions, FLOATS, (), named("mean")),
    **{n: Plan(reductions, NUMERIC, INTEGERS) for n in ("max", "min")},
    **{n: Plan(positions, NUMERIC, NUMERIC) for n in ("argmax", "argmin")},
    **{n: Plan(reductions, EVERY, EVERY) for n in ("any", "all", "count_nonzero")},
    "prod": Plan(products, FLOATS),
    **{n: Plan(reductions, FLOATS) for n in ("var", "std", "logsumexp")},
    "cumulative_sum": Plan(scans(lambda x: x), NUMERIC, INTEGERS),
    "cumulative_prod": Plan(scans(lambda x: np.exp(0.01 * x)), NUMERIC, INTEGERS),
    "argsort": Plan(sorts, EVERY, EVERY),
    "searchsorted": Plan(searches, NUMERIC, NUMERIC),
    "matmul": Plan(matmul, FLOATS, (), named("matmul")),
    "linear": Plan(linear, FLOATS, (), torch_linear),
    "mlp": Plan(mlp, FLOATS, (), torch_mlp),
    "layer_norm": Plan(layer_norm, FLOATS, (), torch_layer_norm),
    "rms_norm": Plan(rms_norm, FLOATS, (), torch_rms_norm),
    "rotary_embedding": Plan(rotary_embedding, FLOATS, (), torch_rotary_embedding),
    "take_along_axis": Plan(
        take_along_axis,
        FLOATS,
        FLOATS,
        lambda torch, x, index, axis: torch.take_along_dim(x, index % x.shape[axis], axis),
    ),
    "softmax": Plan(softmax, FLOATS, (), named("softmax")),
    "log_softmax": Plan(softmax, FLOATS, (), named("log_softmax")),
    "cross_entropy": Plan(cross_entropy, FLOATS, (), named("cross_entropy")),
    "linear_cross_entropy": Plan(linear_cross_entropy, FLOATS, (), torch_linear_cross_entropy),
    "embedding": Plan(
        embedding, FLOATS, (), lambda torch, ids, weight: torch.nn.functional.embedding(ids.long(), weight)
    ),
    "scaled_dot_product_attention": Plan(attention, FLOATS, (), torch_attention),
    "qkv_attention": Plan(qkv_attention, FLOATS, (), torch_qkv_attention),
    "attention_decode": Plan(attention_decode, FLOATS),
}

# Operators without a public function of tensors alone, and the tests that call them: gradients of the operators above,
# writes in place, creation, random numbers and optimizers.
ELSEWHERE = {
    **dict.fromkeys(("full", "full_integer", "arange"), "test_creation"),
    **dict.fromkeys(("uniform", "normal", "dropout", "dropout_backward", "rng_advance_"), "test_random_bits"),
    **dict.fromkeys(("copy_", "add_", "sub_", "mul_", "div_", "fill_", "index_write_"), "test_writes"),
    **dict.fromkeys(("gather", "scatter_", "index_positions", "nonzero_indices"), "test_indexing_cuda"),
    "take_along_axis_backward": "take_along_axis",
    **dict.fromkeys(("rms_norm_backward", "rms_norm_backward_"), "rms_norm"),
    **dict.fromkeys(("sgd_", "sgd_momentum_", "adamw_", "increment_step_"), "test_optimizers"),
    **dict.fromkeys(("grad_norm", "clip_scale"), "test_optimizers"),
    "slice_backward": "test_slice_gradient",
    "sum_to": "add",
    "gelu_backward": "gelu",
    "silu_backward": "silu",
    "cumulative_prod_backward": "cumulative_prod",
    **dict.fromkeys(("linear_input_grad", "linear_weight_grad", "linear_weight_grad_"), "linear"),
    **dict.fromkeys(("layer_norm_backward", "layer_norm_backward_"), "layer_norm"),
    **dict.fromkeys(("embedding_backward", "embedding_backward_"), "embedding"),
    **dict.fromkeys(("linear_cross_entropy_scale", "linear_cross_entropy_scale_"), "linear_cross_entropy"),
    "softmax_backward": "softmax",
    "log_softmax_backward": "log_softmax",
    "cross_entropy_backward": "cross_entropy",
    "scaled_dot_product_attention_backward": "scaled_dot_product_attention",
    "qkv_attention_backward": "qkv_attention",
}
