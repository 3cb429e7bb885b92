"""Attention on a GPU beside PyTorch's scaled_dot_product_attention, in one process.

    python packages/blutensor/benchmarks/bench_attention_cuda.py [--work PATTERN] [--out FILE]

Causal self-attention on normal numbers; q, k and v are views of one packed [B, T, 3, H, D] buffer. Operand sets rotate,
ours and PyTorch's backends take turns, and the median of all turns counts; a turn is as many calls as take some
milliseconds, between two waits for the device. Backward is the backward pass alone. TFLOP/s count the useful half of
the scores: 2 T (T + 1) D per head forward, 2.5 times that backward. For tf32, which PyTorch's attention does not know,
the peer is what it runs on float32 tensors. The peer of a row is the fastest backend; all of them are in `peers`.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
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
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit("expected PyTorch to measure beside, found none; install it: pip install torch")

Row = dict[str, Any]
Call = Callable[[int], object]  # of the number of the operand set

SHAPES = [(16, 12, 1024, 64), (2, 12, 16384, 64), (4, 16, 4096, 128), (4, 8, 2048, 32), (4, 8, 2048, 96)]
PRECISIONS = ["bf16", "tf32", "fp32"]
SETS = 3
BACKENDS = {
    "bf16": {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION},
    "tf32": {"efficient": SDPBackend.EFFICIENT_ATTENTION},
    "fp32": {"efficient": SDPBackend.EFFICIENT_ATTENTION},
}


def measure(calls: dict[str, Call], seconds: float = 1.0) -> dict[str, float]:
    """Median seconds of a call of each, taking turns."""
    counts, times = {}, {name: [] for name in calls}

    def turn(call: Call, count: int) -> float:
        torch.cuda.synchronize()
        bt.cuda.synchronize()
        start = time.perf_counter()
        for index in range(count):
            call(index % SETS)
        torch.cuda.synchronize()
        bt.cuda.synchronize()
        return (time.perf_counter() - start) / count

    for name, call in calls.items():
        turn(call, SETS)
        counts[name] = max(SETS, min(200, int(5e-3 / turn(call, SETS)) + 1))
    end = time.perf_counter() + seconds
    while len(times[next(iter(calls))]) < 3 or time.perf_counter() < end:
        for name, call in calls.items():
            times[name].append(turn(call, counts[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def with_backend(backend: SDPBackend, call: Call) -> Call:
    def run(index: int) -> object:
        with sdpa_kernel(backend):
            return call(index)

    return run


def attention(b: int, h: int, t: int, d: int, precision: str) -> Iterator[tuple[str, float, dict[str, Call]]]:
    """(direction, FLOPs of a call, calls by name) of one shape; ours is "ours"."""
    rng = np.random.default_rng(t)
    dtype = "bfloat16" if precision == "bf16" else "float32"
    bt.set_float32_math("tf32" if precision == "tf32" else "ieee")
    own, theirs = [], []
    for _ in range(SETS):
        values = rng.standard_normal((3, b, t, h, d), dtype=np.float32)
        packed = bt.asarray(np.ascontiguousarray(values.transpose(1, 2, 0, 3, 4))).astype(dtype).to("cuda")
        parts = packed.permute_dims(2, 0, 3, 1, 4)
        own.append([parts[i] for i in range(3)])
        peer = torch.tensor(values, device="cuda", dtype=getattr(torch, dtype)).permute(1, 2, 0, 3, 4).contiguous()
        theirs.append([peer[:, :, i].transpose(1, 2) for i in range(3)])
    upstream = rng.standard_normal((b, t, h, d), dtype=np.float32)
    own_up = bt.asarray(upstream).astype(dtype).to("cuda").permute_dims(0, 2, 1, 3)
    their_up = torch.tensor(upstream, device="cuda", dtype=getattr(torch, dtype)).transpose(1, 2)
    flops = 2.0 * b * h * t * (t + 1) * d

    def forward(index: int) -> object:
        return F.scaled_dot_product_attention(*own[index], is_causal=True)

    def their_forward(index: int) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*theirs[index], is_causal=True)

    backends = BACKENDS[precision]
    yield "fwd", flops, {"ours": forward} | {n: with_backend(x, their_forward) for n, x in backends.items()}
    for tensors in (*own, *theirs):
        for x in tensors:
            x.requires_grad = True
    outputs = [forward(i) for i in range(SETS)]
    calls: dict[str, Call] = {"ours": lambda i: bt.grad([outputs[i]], own[i], [own_up], retain_graph=True)}
    for name, backend in backends.items():
        peers = [with_backend(backend, their_forward)(i) for i in range(SETS)]
        calls[name] = lambda i, peers=peers: torch.autograd.grad([peers[i]], theirs[i], [their_up], retain_graph=True)
    yield "bwd", 2.5 * flops, calls


def where() -> Row:
    """Machine, driver, commit, date and command."""
    folder = str(Path(__file__).resolve().parent)
    git = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    properties = bt.cuda.device_properties()
    return {
        "better": "higher",
        "machine": properties.name,
        "driver": properties.driver,
        "commit": git.stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
        "command": "python packages/blutensor/benchmarks/bench_attention_cuda.py",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="*", help="pattern of the names to measure")
    parser.add_argument("--out", type=Path, help="write the JSON list there")
    arguments = parser.parse_args()
    results = []
    print(f"{'work':<56}{'ours':>9}{'PyTorch':>9}{'ratio':>7}  backend")
    for shape in SHAPES:
        for precision in PRECISIONS:
            name = f"attention.{precision}." + "B{}H{}T{}D{}".format(*shape)
            if not fnmatch.fnmatch(name, arguments.work):
                continue
            for direction, flops, calls in attention(*shape, precision):
                rates = {key: flops / seconds / 1e12 for key, seconds in measure(calls).items()}
                own = rates.pop("ours")
                best = max(rates, key=lambda key: rates[key])
                results.append(
                    {
                        "work": f"{name}.{direction}.tflops",
                        "ours": float(f"{own:.4g}"),
                        "peer": float(f"{rates[best]:.4g}"),
                        "peer_name": f"torch {torch.__version__} {best}",
                        "ratio": round(own / rates[best], 3),
                        "peers": {key: float(f"{rate:.4g}") for key, rate in rates.items()},
                    }
                    | where()
                )
                print(
                    f"{results[-1]['work']:<56}{own:>9.4g}{rates[best]:>9.4g}{own / rates[best]:>7.2f}  {best}",
                    flush=True,
                )
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
