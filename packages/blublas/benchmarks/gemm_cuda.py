"""Measures blublas.gemm on a CUDA device beside PyTorch's (cuBLAS), in one process.

    python packages/blublas/benchmarks/gemm_cuda.py [--rounds N] [--work PATTERN] [--out FILE]

Work: the layers of GPT-2 124M at 16384 tokens, forward, input gradient and weight gradient, and cubes, in fp32 (IEEE),
tf32 and bf16; and products with their epilogue beside PyTorch's separate operations. Both read the same random memory;
results are compared before anything is timed. Calls go through three sets of operands, more than the cache holds, in
one CUDA graph each; rounds of the two alternate, a figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blublas
from blublas.autotune import LAYERS, PRODUCTS, graph_seconds, operands

try:
    import torch
except ImportError:  # --help works without it; main() says what is missing
    torch = None  # type: ignore[assignment]

HERE = Path(__file__).resolve().parent
TOKENS = 16384
CUBES = (4096, 8192)
NUM_SETS = 3

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """The same computation twice, from a set of operands into its outputs, whose names start with "out"."""

    name: str
    precision: str
    num_flops: int
    make: Callable[[], Tensors]
    ours: Callable[[Tensors], object]
    peer: Callable[[Tensors], object]


def dtype_of(precision: str) -> Any:
    return torch.bfloat16 if precision == "bf16" else torch.float32


def multiply(precision: str, a: Any, b: Any, out: Any, **epilogue: Any) -> None:
    blublas.gemm(a, b, out, math="tf32" if precision == "tf32" else "ieee", **epilogue)


def plain(name: str, precision: str, m: int, n: int, k: int, make: Callable[[], tuple[Any, Any]]) -> Work:
    def tensors() -> Tensors:
        a, b = make()
        return {"a": a, "b": b, "out": torch.empty(m, n, device="cuda", dtype=a.dtype)}

    return Work(
        f"gemm.{precision}.{name}.tflops",
        precision,
        2 * m * n * k,
        tensors,
        lambda x: multiply(precision, x["a"], x["b"], x["out"]),
        lambda x: torch.mm(x["a"], x["b"], out=x["out"]),
    )


def bias_gelu(precision: str, tokens: int, divisor: int) -> Work:
    """The first layer of the MLP, with the pre-activation kept."""
    outputs, inputs = (size // divisor for size in LAYERS["mlp_up"])

    def tensors() -> Tensors:
        a, b = operands(torch, "fwd", tokens, outputs, inputs, dtype_of(precision))
        out, before = (torch.empty(tokens, outputs, device="cuda", dtype=a.dtype) for _ in range(2))
        bias = torch.randn(outputs, device="cuda").to(a.dtype)
        return {"a": a, "b": b, "bias": bias, "out": out, "out_preactivation": before}

    def ours(x: Tensors) -> None:
        fused = {"bias": x["bias"], "activation": "gelu_tanh", "preactivation": x["out_preactivation"]}
        multiply(precision, x["a"], x["b"], x["out"], **fused)

    def peer(x: Tensors) -> None:
        torch.addmm(x["bias"], x["a"], x["b"], out=x["out_preactivation"])
        torch.ops.aten.gelu.out(x["out_preactivation"], approximate="tanh", out=x["out"])

    name = f"gemm.{precision}.fused.mlp_up.bias_gelu.tflops"
    return Work(name, precision, 2 * tokens * outputs * inputs, tensors, ours, peer)


def weight_and_bias_gradient(precision: str, tokens: int, divisor: int) -> Work:
    outputs, inputs = (size // divisor for size in LAYERS["mlp_up"])

    def tensors() -> Tensors:
        a, b = operands(torch, "wgrad", tokens, outputs, inputs, dtype_of(precision))
        out = torch.empty(outputs, inputs, device="cuda", dtype=a.dtype)
        return {"a": a, "b": b, "out": out, "out_bias": torch.empty(outputs, device="cuda")}

    def peer(x: Tensors) -> None:
        torch.mm(x["a"], x["b"], out=x["out"])
        torch.sum(x["a"], 1, dtype=torch.float32, out=x["out_bias"])

    name = f"gemm.{precision}.fused.mlp_up.wgrad_bias.tflops"
    return Work(
        name,
        precision,
        2 * tokens * outputs * inputs,
        tensors,
        lambda x: multiply(precision, x["a"], x["b"], x["out"], row_sum_a=x["out_bias"]),
        peer,
    )


def all_work(divisor: int = 1) -> Iterator[Work]:
    """Everything that is measured; sizes divided by ``divisor``, for tests."""
    tokens = TOKENS // divisor
    for precision in ("fp32", "tf32", "bf16"):
        for layer, sizes in LAYERS.items():
            outputs, inputs = (size // divisor for size in sizes)
            for product in PRODUCTS:
                m, n, k = {
                    "fwd": (tokens, outputs, inputs),
                    "dgrad": (tokens, inputs, outputs),
                    "wgrad": (outputs, inputs, tokens),
                }[product]

                def make(p: str = product, o: int = outputs, i: int = inputs, how: str = precision) -> tuple[Any, Any]:
                    return operands(torch, p, tokens, o, i, dtype_of(how))

                yield plain(f"{layer}.{product}", precision, m, n, k, make)
        for cube in CUBES:
            size = cube // divisor

            def make_cube(s: int = size, how: str = precision) -> tuple[Any, Any]:
                return operands(torch, "fwd", s, s, s, dtype_of(how))

            yield plain(f"cube{cube}", precision, size, size, size, make_cube)
        yield bias_gelu(precision, tokens, divisor)
        yield weight_and_bias_gradient(precision, tokens, divisor)


def compare(work: Work, x: Tensors) -> None:
    """Both must compute the same; a coarse test, the fine one is in tests/."""
    outputs = {name: value for name, value in x.items() if name.startswith("out")}
    for run in (work.peer, work.ours):
        for value in outputs.values():
            value.fill_(float("nan"))
        run(x)
        if run is work.peer:
            expected = {name: value.clone() for name, value in outputs.items()}
    tolerance = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 2e-2}[work.precision]
    for name, value in outputs.items():
        difference = (value.float() - expected[name].float()).abs().max().item()
        if not difference <= tolerance * expected[name].float().abs().max().item():
            sys.exit(f"[gemm_cuda] expected {name} of {work.name} as PyTorch's, got a difference of {difference}")


def measure(work: Work, num_rounds: int) -> tuple[float, float]:
    """Median seconds of a call, ours and the peer's."""
    torch.backends.cuda.matmul.allow_tf32 = work.precision == "tf32"
    sets = [work.make() for _ in range(NUM_SETS)]
    compare(work, sets[0])
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(num_rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            run = (work.ours, work.peer)[side]
            times[side].append(graph_seconds(torch, [lambda x=x, run=run: run(x) for x in sets], 3))  # type: ignore[misc]
    return statistics.median(times[0]), statistics.median(times[1])


def describe_run(options: argparse.Namespace) -> dict[str, Any]:
    """Machine, driver, commit, date and command (without the file that it writes)."""

    def printed(*command: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""

    return {
        "machine": torch.cuda.get_device_name(),
        "driver": printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or None,
        "commit": printed("git", "-C", str(HERE), "rev-parse", "--short", "HEAD") or "unknown",
        "date": datetime.date.today().isoformat(),
        "command": f"python packages/blublas/benchmarks/gemm_cuda.py --rounds {options.rounds}",
    }


def main() -> None:
    """Measure, print one table, keep the JSON."""
    parser = argparse.ArgumentParser(description="Measure blublas.gemm on CUDA beside PyTorch.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each")
    parser.add_argument("--work", default="*", help="measure only names that match this pattern")
    parser.add_argument("--out", type=Path, help="file for the JSON list")
    options = parser.parse_args()
    if torch is None:
        sys.exit("expected PyTorch as the peer, got none; install torch")
    if not torch.cuda.is_available() or not blublas.cuda_configs():
        sys.exit("expected a CUDA device and a build with CUDA, got neither or one of them")
    where = describe_run(options)
    peer_name = f"PyTorch {torch.__version__.split('+')[0]} cuBLAS"
    print(f"blublas beside {peer_name}, {where['machine']}")
    print(f"{'work':<48} {'ours':>8} {'peer':>8}  ratio   (TFLOP/s)")
    rows = []
    for work in all_work():
        if not fnmatch.fnmatchcase(work.name, options.work):
            continue
        ours, peer = (work.num_flops / seconds / 1e12 for seconds in measure(work, options.rounds))
        print(f"{work.name:<48} {ours:8.1f} {peer:8.1f}  {ours / peer:.3f}x", flush=True)
        row = {"work": work.name, "ours": round(ours, 1), "peer": round(peer, 1), "peer_name": peer_name}
        rows.append({**row, "ratio": round(ours / peer, 4), "better": "higher", **where})
    if not rows:
        sys.exit(f"expected --work to match a name, got {options.work!r}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
