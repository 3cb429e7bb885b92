"""Matrix and neural-network operators beside PyTorch, at the sizes of the models that blutrain trains.

    python benchmarks/bench_layers.py [--only layer_norm ...] [--threads 2] [--clock wall|cpu] [--out FILE]

One process, the same threads for both. Each line is the median of several calls; operands are drawn from a normal law
and, where an operator moves more than it computes, taken in turn from a set larger than the second-level cache.
`--clock cpu` counts the process's processor time instead, for machines that others use too (with `--threads 1`: waiting
threads spin).
The work of a name is `kernel.<operator>.fp32.<model>.<fwd|fwdbwd>.ms.cpu`.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from overhead import commit, machine

import blutensor as bt
from blutensor.nn import functional as F
from blutensor.optim.base import zero_grad

Array = npt.NDArray[Any]
Case = tuple[str, Callable[[], object], Callable[[], object], int]

# Channels, tokens of a step, vocabulary, layers.
MODELS = {"nano": (128, 2048, 256, 4), "30M": (384, 1024, 50304, 6)}
SETS = 12  # of operands that are taken in turn

rng = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> Array:
    """Normal float32 numbers."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def ours(values: list[Array], requires_grad: bool = True) -> list[bt.Tensor]:
    """Leaves over copies."""
    return [bt.copy(bt.asarray(v)).requires_grad_(requires_grad) for v in values]


def theirs(values: list[Array], requires_grad: bool = True) -> list[torch.Tensor]:
    """The same of PyTorch."""
    return [torch.tensor(v, requires_grad=requires_grad) for v in values]


def pair(
    name: str,
    function: Callable[..., bt.Tensor],
    peer: Callable[..., Any],
    draw: Callable[[], list[Array]],
    repeats: int,
) -> Iterator[Case]:
    """Forward alone, and forward with the gradients of everything."""
    sets = [draw() for _ in range(SETS if sum(v.size for v in draw()) < 1 << 23 else 2)]
    upstream = normal(*function(*ours(sets[0], False)).shape)
    for suffix, wants in (("fwd", False), ("fwdbwd", True)):
        a = itertools.cycle([ours(s, wants) for s in sets])
        b = itertools.cycle([theirs(s, wants) for s in sets])
        g, h = bt.asarray(upstream), torch.tensor(upstream)
        if wants:
            yield (
                f"{name}.{suffix}",
                lambda a=a, g=g: bt.grad([function(*(x := next(a)))], x, [g]),
                lambda b=b, h=h: torch.autograd.grad(peer(*(x := next(b))), x, h),
                repeats,
            )
        else:
            yield f"{name}.{suffix}", lambda a=a: function(*next(a)), lambda b=b: peer(*next(b)), repeats


def layer_norm(channels: int, tokens: int, **_: int) -> Iterator[Case]:
    """Over C of [N, C]."""
    shape = (channels,)
    yield from pair(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, shape, w, b),
        lambda x, w, b: torch.nn.functional.layer_norm(x, shape, w, b),
        lambda: [normal(tokens, channels), normal(channels), normal(channels)],
        31,
    )


def rms_norm(channels: int, tokens: int, **_: int) -> Iterator[Case]:
    """Over C of [N, C]."""
    shape = (channels,)
    yield from pair(
        "rms_norm",
        lambda x, w: F.rms_norm(x, shape, w, 1e-6),
        lambda x, w: torch.nn.functional.rms_norm(x, shape, w, 1e-6),
        lambda: [normal(tokens, channels), normal(channels)],
        31,
    )


def rotary_embedding(channels: int, tokens: int, **_: int) -> Iterator[Case]:
    """Heads of 32 over [4, H, N / 4, 32]; PyTorch is given its cosines and sines."""
    steps, width = tokens // 4, 32
    angle = torch.arange(steps)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    cos, sin = (torch.cat([turn(angle)] * 2, -1) for turn in (torch.cos, torch.sin))

    def peer(x: Any) -> Any:
        return x * cos + torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1) * sin

    yield from pair(
        "rotary_embedding", F.rotary_embedding, peer, lambda: [normal(4, channels // width, steps, width)], 31
    )


def linear(channels: int, tokens: int, **_: int) -> Iterator[Case]:
    """C to 3C, C to C with a residual."""
    yield from pair(
        "linear_qkv",
        F.linear,
        torch.nn.functional.linear,
        lambda: [normal(tokens, channels), normal(3 * channels, channels), normal(3 * channels)],
        15,
    )
    yield from pair(
        "linear_residual",
        F.linear,
        lambda x, w, b, r: r + torch.nn.functional.linear(x, w, b),
        lambda: [normal(tokens, channels), normal(channels, channels), normal(channels), normal(tokens, channels)],
        15,
    )


def mlp(channels: int, tokens: int, **_: int) -> Iterator[Case]:
    """C to 4C to C."""
    f = torch.nn.functional

    def peer(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, r: Any) -> Any:
        return r + f.linear(f.gelu(f.linear(x, w1, b1), approximate="tanh"), w2, b2)

    def draw() -> list[Array]:
        hidden = 4 * channels
        return [
            normal(tokens, channels),
            normal(hidden, channels, scale=channels**-0.5),
            normal(hidden),
            normal(channels, hidden, scale=hidden**-0.5),
            normal(channels),
            normal(tokens, channels),
        ]

    yield from pair("mlp", F.mlp, peer, draw, 9)


def embedding(channels: int, tokens: int, vocabulary: int, **_: int) -> Iterator[Case]:
    """Gradients are added to the parameter's buffer, as in a step with a tied head."""
    ids, weight, upstream = rng.integers(0, vocabulary, tokens), normal(vocabulary, channels), normal(tokens, channels)
    (w,), (v,) = ours([weight]), theirs([weight])
    i, j, g, h = bt.asarray(ids), torch.tensor(ids), bt.asarray(upstream), torch.tensor(upstream)
    yield "embedding.fwd", lambda: F.embedding(i, w.detach()), lambda: torch.nn.functional.embedding(j, v.detach()), 31
    yield (
        "embedding.fwdbwd",
        lambda: F.embedding(i, w).backward(g),
        lambda: torch.nn.functional.embedding(j, v).backward(h),
        15,
    )


def linear_cross_entropy(channels: int, tokens: int, vocabulary: int, **_: int) -> Iterator[Case]:
    """The head: gradients into existing buffers on our side, dropped and made anew on PyTorch's, as its users do."""
    values, targets = (
        [normal(tokens, channels), normal(vocabulary, channels, scale=0.02)],
        rng.integers(0, vocabulary, tokens),
    )
    a, b, t, u = ours(values), theirs(values), bt.asarray(targets), torch.tensor(targets)
    f = torch.nn.functional
    repeats = 5 if vocabulary > 1000 else 15

    def our_step() -> None:
        zero_grad(a)
        F.linear_cross_entropy(a[0], a[1], t).backward()

    def their_step() -> None:
        for leaf in b:
            leaf.grad = None
        f.cross_entropy(f.linear(b[0], b[1]), u).backward()

    def their_loss() -> Any:
        with torch.no_grad():
            return f.cross_entropy(f.linear(b[0], b[1]), u)

    def our_loss() -> bt.Tensor:
        with bt.no_grad():
            return F.linear_cross_entropy(a[0], a[1], t)

    yield "linear_cross_entropy.fwd", our_loss, their_loss, repeats
    yield "linear_cross_entropy.fwdbwd", our_step, their_step, repeats


def optimizer(channels: int, vocabulary: int, layers: int, **_: int) -> Iterator[Case]:
    """All parameters of the model."""
    c = channels
    block = [(c,), (c,), (3 * c, c), (3 * c,), (c, c), (c,), (c,), (c,), (4 * c, c), (4 * c,), (c, 4 * c), (c,)]
    shapes = [(vocabulary, c), (256, c), *(block * layers), (c,), (c,)]
    values = [normal(*s, scale=0.02) for s in shapes]
    a, b = ours(values), theirs(values)
    for p, q in zip(a, b, strict=True):
        gradient = normal(*p.shape, scale=0.01)
        p.grad, q.grad = bt.asarray(gradient), torch.tensor(gradient)
    adamw, peer = (
        bt.optim.AdamW(a, lr=1e-4, weight_decay=0.1),
        torch.optim.AdamW(b, lr=1e-4, weight_decay=0.1, fused=True),
    )
    yield "adamw.fwd", adamw.step, peer.step, 9
    yield (
        "grad_norm_and_clip.fwd",
        lambda: bt.optim.clip_scale(bt.optim.grad_norm(a), 1.0),
        lambda: torch.nn.utils.clip_grad_norm_(b, 1e9),
        9,
    )


GROUPS: dict[str, Callable[..., Iterator[Case]]] = {
    f.__name__: f
    for f in (layer_norm, rms_norm, rotary_embedding, linear, mlp, embedding, linear_cross_entropy, optimizer)
}


def median_ms(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Median time of a call after two to warm up."""
    times = []
    for i in range(repeats + 2):
        begin = clock()
        call()
        times.append((clock() - begin) * 1e3 if i >= 2 else 0.0)
    return statistics.median(times[2:])


def main() -> int:
    """Measure, print one table, write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(GROUPS), default=list(GROUPS))
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    bt.set_num_threads(args.threads)
    torch.set_num_threads(args.threads)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    command = f"python packages/blutensor/benchmarks/bench_layers.py --threads {args.threads} --clock {args.clock}"
    rows = []
    print(f"{'work':56s} {'ours ms':>10s} {'torch ms':>10s} {'ratio':>6s}")
    for model in args.models:
        channels, tokens, vocabulary, layers = MODELS[model]
        for group in args.only:
            for name, call, peer, repeats in GROUPS[group](
                channels=channels, tokens=tokens, vocabulary=vocabulary, layers=layers
            ):
                operator, direction = name.split(".")
                work = f"kernel.{operator}.fp32.{model}.{direction}.ms.cpu"
                a, b = median_ms(call, repeats, clock), median_ms(peer, repeats, clock)
                print(f"{work:56s} {a:10.3f} {b:10.3f} {b / a:6.2f}", flush=True)
                common = {
                    "machine": f"{machine()}, {args.threads} threads",
                    "commit": commit(),
                    "command": command,
                }
                result = {"work": work, "ours": round(a, 4), "peer": round(b, 4), "ratio": round(b / a, 3)}
                peer_name, date = f"torch {torch.__version__}", datetime.date.today().isoformat()
                rows.append({**result, "peer_name": peer_name, "better": "lower", "date": date, **common})
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
