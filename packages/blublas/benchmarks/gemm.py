"""Measures blublas.gemm beside PyTorch's GEMM (MKL) on the same threads, in one process.

    python packages/blublas/benchmarks/gemm.py [--threads N] [--rounds N] [--work PATTERN] [--out FILE]

Work: cubes of 512, 1024 and 2048; the layers of GPT-2 124M at 1024 tokens, forward, input gradient and weight gradient;
and the fused epilogues beside PyTorch's separate operations. Both compute the same thing from the same memory, into
memory that is there already; the results are compared before anything is timed. Inputs are random, and sets of operands
rotate through more memory than the caches hold. Rounds alternate between the two; a figure is the median of its rounds.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import blublas

try:
    import torch
except ImportError:  # --help works without it; main() says what is missing
    torch = None  # type: ignore[assignment]

HERE = Path(__file__).resolve().parent
TOKENS = 1024
# name: (outputs, inputs), as in the table of the peers.
LAYERS = {
    "qkv": (2304, 768),
    "attention_out": (768, 768),
    "mlp_up": (3072, 768),
    "mlp_down": (768, 3072),
    "head": (50304, 768),
}
CUBES = (512, 1024, 2048)
ROTATED_BYTES = 256 << 20
SHORTEST_ROUND = 0.03  # seconds: several calls where one is shorter

Operands = dict[str, Any]
Run = Callable[[Operands], dict[str, Any]]


@dataclass(frozen=True)
class Work:
    """The same computation twice. Both return the arrays that they wrote, by name."""

    name: str
    num_flops: int
    #: name -> shape; what ours and the peer's read, and where each writes (``out...``), one set each.
    shapes: dict[str, tuple[int, ...]]
    ours: Run
    peer: Run


def plain(name: str, m: int, n: int, k: int, *, transpose_a: bool = False, transpose_b: bool = False) -> Work:
    """A [m, k] (or transposed) times b [k, n] (or transposed)."""

    def ours(x: Operands) -> dict[str, Any]:
        return {"out": blublas.gemm(x["a"], x["b"], x["out"], transpose_a=transpose_a, transpose_b=transpose_b)}

    def peer(x: Operands) -> dict[str, Any]:
        a, b = x["a"], x["b"]
        return {"out": torch.mm(a.t() if transpose_a else a, b.t() if transpose_b else b, out=x["out"])}

    shapes = {"a": (k, m) if transpose_a else (m, k), "b": (n, k) if transpose_b else (k, n), "out": (m, n)}
    return Work(name, 2 * m * n * k, shapes, ours, peer)


def forward(name: str, m: int, n: int, k: int, *, gelu: bool = False, residual: bool = False) -> Work:
    """Linear layer with bias, and GELU (keeping the pre-activation) or a residual behind it."""
    shapes: dict[str, tuple[int, ...]] = {"x": (m, k), "w": (n, k), "bias": (n,), "out": (m, n)}
    if gelu:
        shapes["out_preactivation"] = (m, n)
    if residual:
        shapes["residual"] = (m, n)

    def ours(x: Operands) -> dict[str, Any]:
        blublas.gemm(
            *(x["x"], x["w"], x["out"]),
            transpose_b=True,
            bias=x["bias"],
            activation="gelu_tanh" if gelu else None,
            preactivation=x.get("out_preactivation"),
            residual=x.get("residual"),
        )
        return x

    def peer(x: Operands) -> dict[str, Any]:
        linear = x["out_preactivation"] if gelu else x["out"]
        torch.addmm(x["bias"], x["x"], x["w"].t(), out=linear)
        if gelu:
            torch.ops.aten.gelu.out(linear, approximate="tanh", out=x["out"])
        if residual:
            torch.add(linear, x["residual"], out=x["out"])
        return x

    return Work(name, 2 * m * n * k, shapes, ours, peer)


def input_gradient_gelu(name: str, m: int, n: int, k: int) -> Work:
    """Input gradient [m, k] of a layer, times the GELU gradient of the layer before it."""

    def ours(x: Operands) -> dict[str, Any]:
        return {"out": blublas.gemm(x["dy"], x["w"], x["out"], gelu_gradient_of=x["before"])}

    def peer(x: Operands) -> dict[str, Any]:
        torch.mm(x["dy"], x["w"], out=x["out"])
        torch.ops.aten.gelu_backward.grad_input(x["out"], x["before"], approximate="tanh", grad_input=x["out"])
        return x

    shapes = {"dy": (m, n), "w": (n, k), "before": (m, k), "out": (m, k)}
    return Work(name, 2 * m * n * k, shapes, ours, peer)


def weight_bias_gradient(name: str, m: int, n: int, k: int) -> Work:
    """Weight gradient [n, k] and bias gradient [n] of a layer."""

    def ours(x: Operands) -> dict[str, Any]:
        blublas.gemm(x["dy"], x["x"], x["out"], transpose_a=True, row_sum_a=x["out_bias"])
        return x

    def peer(x: Operands) -> dict[str, Any]:
        torch.mm(x["dy"].t(), x["x"], out=x["out"])
        torch.sum(x["dy"], 0, out=x["out_bias"])
        return x

    shapes: dict[str, tuple[int, ...]] = {"dy": (m, n), "x": (m, k), "out": (n, k), "out_bias": (n,)}
    return Work(name, 2 * m * n * k, shapes, ours, peer)


def all_work(divisor: int = 1) -> Iterator[Work]:
    """Everything that is measured; sizes divided by ``divisor``, for tests."""
    for size in CUBES:
        yield plain(f"gemm.fp32.cube{size}.tflops", size // divisor, size // divisor, size // divisor)
    m = TOKENS // divisor
    sizes = {layer: (n // divisor, k // divisor) for layer, (n, k) in LAYERS.items()}
    for layer, (n, k) in sizes.items():
        yield plain(f"gemm.fp32.{layer}.fwd.tflops", m, n, k, transpose_b=True)
        yield plain(f"gemm.fp32.{layer}.dgrad.tflops", m, k, n)
        yield plain(f"gemm.fp32.{layer}.wgrad.tflops", n, k, m, transpose_a=True)
    for layer in ("qkv", "mlp_up"):
        yield forward(f"gemm.fp32.fused.{layer}.bias.tflops", m, *sizes[layer])
    yield forward("gemm.fp32.fused.mlp_up.bias_gelu.tflops", m, *sizes["mlp_up"], gelu=True)
    for layer in ("attention_out", "mlp_down"):
        yield forward(f"gemm.fp32.fused.{layer}.bias_residual.tflops", m, *sizes[layer], residual=True)
    yield input_gradient_gelu("gemm.fp32.fused.mlp_down.dgrad_gelu.tflops", m, *sizes["mlp_down"])
    for layer in ("qkv", "attention_out", "mlp_up", "mlp_down"):
        yield weight_bias_gradient(f"gemm.fp32.fused.{layer}.wgrad_bias.tflops", m, *sizes[layer])


def make_operands(work: Work, rng: np.random.Generator) -> tuple[Operands, Operands]:
    """Ours as NumPy arrays, the peer's as tensors; inputs share memory, outputs do not."""
    inputs = {n: rng.standard_normal(s, np.float32) for n, s in work.shapes.items() if not n.startswith("out")}
    outputs = [{n: np.zeros(s, np.float32) for n, s in work.shapes.items() if n.startswith("out")} for _ in range(2)]
    return {**inputs, **outputs[0]}, {n: torch.from_numpy(x) for n, x in {**inputs, **outputs[1]}.items()}


def compare(work: Work, ours: Operands, peer: Operands) -> None:
    """Both must compute the same; a coarse test, the fine one is in tests/."""
    written, expected = work.ours(ours), work.peer(peer)
    for name in (name for name in work.shapes if name.startswith("out")):
        theirs = expected.get(name, peer[name]).numpy()
        difference = np.abs(written.get(name, ours[name]) - theirs).max()
        if not difference <= 1e-4 * np.abs(theirs).max():
            sys.exit(f"[gemm] expected {name} of {work.name} as PyTorch's, got a difference of {difference}")


def measure(work: Work, num_rounds: int, rng: np.random.Generator) -> tuple[float, float]:
    """Median seconds of a call, ours and the peer's."""
    num_bytes = 4 * sum(int(np.prod(shape)) for shape in work.shapes.values())
    sets = [make_operands(work, rng) for _ in range(min(64, max(2, -(-ROTATED_BYTES // num_bytes))))]
    for pair in sets:  # warm-up: pages, threads, and whatever MKL prepares at its first call
        compare(work, *pair)
    start = time.perf_counter()
    work.ours(sets[0][0])
    calls = max(1, int(SHORTEST_ROUND / (time.perf_counter() - start)))
    runs = (work.ours, work.peer)
    times: tuple[list[float], list[float]] = ([], [])
    position = 0
    for number in range(num_rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            chosen = [sets[(position + i) % len(sets)][side] for i in range(calls)]
            start = time.perf_counter()
            for operands in chosen:
                runs[side](operands)
            times[side].append((time.perf_counter() - start) / calls)
            position += calls
    return statistics.median(times[0]), statistics.median(times[1])


def describe_run(options: argparse.Namespace) -> dict[str, Any]:
    """Machine, commit, date and command (without the file that it writes)."""
    command = f"python packages/blublas/benchmarks/gemm.py --threads {options.threads} --rounds {options.rounds}"
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    git = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "machine": cpu,
        "driver": None,
        "commit": git.stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
        "command": command,
    }


def main() -> None:
    """Measure, print one table, keep the JSON."""
    parser = argparse.ArgumentParser(description="Measure blublas.gemm beside PyTorch.")
    parser.add_argument("--threads", type=int, default=blublas.num_threads(), help="threads of both")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each")
    parser.add_argument("--work", default="*", help="measure only names that match this pattern")
    parser.add_argument("--out", type=Path, help="file for the JSON list")
    options = parser.parse_args()
    if torch is None:
        sys.exit("expected PyTorch as the peer, got none; install torch==2.13.0")
    blublas.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    where = describe_run(options)
    peer_name = f"PyTorch {torch.__version__.split('+')[0]} {'MKL' if torch.backends.mkl.is_available() else 'BLAS'}"
    print(f"{blublas.info().kernels['float32']} beside {peer_name}, {options.threads} threads, {where['machine']}")
    print(f"{'work':<52} {'ours':>8} {'peer':>8}  ratio   (TFLOP/s)")
    rng = np.random.default_rng(0)
    rows = []
    with torch.inference_mode():
        for work in all_work():
            if not fnmatch.fnmatchcase(work.name, options.work):
                continue
            seconds = measure(work, options.rounds, rng)
            ours, peer = (work.num_flops / s / 1e12 for s in seconds)
            print(f"{work.name:<52} {ours:8.4f} {peer:8.4f}  {ours / peer:.3f}x", flush=True)
            row = {"work": work.name, "ours": round(ours, 4), "peer": round(peer, 4), "peer_name": peer_name}
            rows.append(
                {**row, "ratio": round(ours / peer, 4), "better": "higher", "threads": options.threads, **where}
            )
    if not rows:
        sys.exit(f"expected --work to match a name, got {options.work!r}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
