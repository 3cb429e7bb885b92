"""Attention, softmax and cross entropy on the CPU beside PyTorch, in one process.

    python packages/blutensor/benchmarks/bench_attention.py [--threads 2] [--work PATTERN] [--out FILE]

Inputs are normal numbers; q, k and v are views of one packed [B, T, 3, H, D] buffer, causal. Operand sets rotate, our
and PyTorch's calls take turns, and the median of all calls counts. Backward is the backward pass alone. TFLOP/s count
the useful half of the scores: 2 T (T + 1) D per head forward, 2.5 times that backward. GB/s count every operand and
result once: softmax 8 bytes an element forward and 12 backward, cross entropy 4 and 8.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import blutensor as bt
from blutensor.nn import functional as F

try:
    import torch
except ImportError:
    sys.exit("expected PyTorch to measure beside, found none; install it: pip install torch")

Row = dict[str, Any]
Call = Callable[[int], object]  # of the number of the operand set

ATTENTION = [(16, 4, 128, 32), (4, 6, 256, 64), (1, 12, 1024, 64), (2, 8, 512, 128)]
ROWS = [(2048, 256), (1024, 50304)]
SETS = 3


def measure(ours: Call, peer: Call, seconds: float = 1.5) -> tuple[float, float]:
    """Median seconds of a call, ours and the peer's, taking turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(SETS):
        ours(index)
        peer(index)
    end = time.perf_counter() + seconds
    turn = 0
    while turn < 5 or time.perf_counter() < end:
        for which, call in enumerate((ours, peer)):
            start = time.perf_counter()
            call(turn % SETS)
            times[which].append(time.perf_counter() - start)
        turn += 1
    return statistics.median(times[0]), statistics.median(times[1])


def attention(b: int, h: int, t: int, d: int) -> Iterator[tuple[str, str, float, Call, Call]]:
    """(direction, unit, amount of work per call, our call, the peer's) of one shape."""
    rng = np.random.default_rng(t)
    buffers = [rng.standard_normal((b, t, 3, h, d)).astype(np.float32) for _ in range(SETS)]
    upstream = rng.standard_normal((b, t, h, d)).astype(np.float32)
    own = [[bt.asarray(x[:, :, i].swapaxes(1, 2)) for i in range(3)] for x in buffers]
    theirs = [[torch.from_numpy(x[:, :, i].swapaxes(1, 2)) for i in range(3)] for x in buffers]
    own_up, their_up = bt.asarray(upstream.swapaxes(1, 2)), torch.from_numpy(upstream.swapaxes(1, 2))
    flops = 2.0 * b * h * t * (t + 1) * d

    def forward(index: int) -> object:
        return F.scaled_dot_product_attention(*own[index], is_causal=True)

    def their_forward(index: int) -> object:
        return torch.nn.functional.scaled_dot_product_attention(*theirs[index], is_causal=True)

    yield "fwd", "tflops", flops / 1e12, forward, their_forward
    for tensors in (*own, *theirs):
        for x in tensors:
            x.requires_grad = True
    outputs, their_outputs = [forward(i) for i in range(SETS)], [their_forward(i) for i in range(SETS)]
    yield (
        "bwd",
        "tflops",
        2.5 * flops / 1e12,
        lambda i: bt.grad([outputs[i]], own[i], [own_up], retain_graph=True),
        lambda i: torch.autograd.grad([their_outputs[i]], theirs[i], [their_up], retain_graph=True),
    )


def rows(name: str, n: int, classes: int) -> Iterator[tuple[str, str, float, Call, Call]]:
    """The same for softmax, log_softmax and cross_entropy over [n, classes]."""
    rng = np.random.default_rng(n)
    buffers = [rng.standard_normal((n, classes)).astype(np.float32) for _ in range(SETS)]
    targets = rng.integers(0, classes, n)
    own, theirs = [bt.asarray(x) for x in buffers], [torch.from_numpy(x) for x in buffers]
    own_targets, their_targets = bt.asarray(targets), torch.from_numpy(targets)
    size = n * classes / 1e9
    loss = name == "cross_entropy"

    def forward(index: int) -> object:
        return F.cross_entropy(own[index], own_targets) if loss else getattr(bt, name)(own[index], -1)

    def their_forward(index: int) -> object:
        if loss:
            return torch.nn.functional.cross_entropy(theirs[index], their_targets)
        return getattr(torch, name)(theirs[index], -1)

    yield "fwd", "gbps", (4 if loss else 8) * size, forward, their_forward
    for x in (*own, *theirs):
        x.requires_grad = True
    outputs, their_outputs = [forward(i) for i in range(SETS)], [their_forward(i) for i in range(SETS)]
    up = np.ones((), np.float32) if loss else buffers[0][::-1].copy()
    own_up, their_up = bt.asarray(up), torch.from_numpy(up)
    yield (
        "bwd",
        "gbps",
        (8 if loss else 12) * size,
        lambda i: bt.grad([outputs[i]], [own[i]], [own_up], retain_graph=True),
        lambda i: torch.autograd.grad([their_outputs[i]], [theirs[i]], [their_up], retain_graph=True),
    )


def decode(b: int, h: int, length: int, d: int) -> Iterator[tuple[str, str, float, Call, Call]]:
    """One token against a cache."""
    rng = np.random.default_rng(length)
    sets = [[rng.standard_normal((b, h, n, d)).astype(np.float32) for n in (1, length, length)] for _ in range(SETS)]
    own, theirs = [[[make(x) for x in s] for s in sets] for make in (bt.asarray, torch.from_numpy)]
    position = bt.asarray(np.int64(length - 1))
    yield (
        "fwd",
        "gbps",
        8.0 * b * h * length * d / 1e9,
        lambda i: bt.attention_decode(*own[i], position),
        lambda i: torch.nn.functional.scaled_dot_product_attention(*theirs[i]),
    )


def works() -> Iterator[tuple[str, Callable[[], Iterator[tuple[str, str, float, Call, Call]]]]]:
    """Names, without direction and unit, and what measures them."""
    for shape in ATTENTION:
        yield "attention.fp32.B{}H{}T{}D{}".format(*shape), lambda shape=shape: attention(*shape)
    yield "kernel.attention_decode.float32", lambda: decode(1, 12, 1024, 64)
    for name in ("softmax", "log_softmax", "cross_entropy"):
        for n, classes in ROWS:
            yield f"kernel.{name}.float32.V{classes}", lambda name=name, n=n, classes=classes: rows(name, n, classes)


def where(threads: int) -> Row:
    """Machine, commit, date and command."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    folder = str(Path(__file__).resolve().parent)
    git = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "better": "higher",
        "machine": f"{cpu}, {threads} threads, {bt.isa()}",
        "driver": None,
        "commit": git.stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
        "command": f"python packages/blutensor/benchmarks/bench_attention.py --threads {threads}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", default="*", help="pattern of the names to measure")
    parser.add_argument("--out", type=Path, help="write the JSON list there")
    arguments = parser.parse_args()
    bt.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    results = []
    print(f"{'work':<48}{'ours':>10}{'PyTorch':>10}{'ratio':>8}")
    for name, parts in works():
        if not fnmatch.fnmatch(name, arguments.work):
            continue
        for direction, unit, amount, ours, peer in parts():
            own, their = (amount / seconds for seconds in measure(ours, peer))
            result = {"work": f"{name}.{direction}.{unit}", "ours": float(f"{own:.4g}"), "peer": float(f"{their:.4g}")}
            result |= {"peer_name": f"torch {torch.__version__}", "ratio": round(own / their, 3)}
            results.append(result | where(arguments.threads))
            print(f"{result['work']:<48}{own:>10.4g}{their:>10.4g}{own / their:>8.2f}", flush=True)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
