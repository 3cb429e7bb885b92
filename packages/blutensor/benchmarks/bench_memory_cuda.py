"""Memory-bound operators on one GPU beside PyTorch, and beside the copy bandwidth of the same run.

    python benchmarks/bench_memory_cuda.py [--only gelu ...] [--out FILE] [--commit NAME]

The figure of a work is the bytes that must move (operands and results, once) by the median time, in GB/s. Operands are
normal, 256 MiB each unless the operator has a size of its own, taken in turn from several sets, so that nothing is
found in the second-level cache. Works are named `kernel.<operator>.<fp32|bf16>.<fwd|bwd>.gbps`.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import blutensor as bt
from blutensor.nn import functional as F

Call = Callable[[], object]
Row = dict[str, Any]

BYTES = 1 << 28  # of an operand
SETS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Work:
    """One line: what moves, and both calls."""

    name: str  # kernel.<operator>.<dtype>.<fwd|bwd>
    bytes: int
    ours: Call
    peer: Call
    captured: bool = False  # both are replays of graphs


def operands(dtype: str, *shape: int, sets: int = SETS) -> tuple[Iterator[torch.Tensor], Iterator[bt.Tensor]]:
    """The same normal numbers for both, as endless rotations."""
    theirs = [torch.randn(shape, device="cuda", dtype=DTYPES[dtype]) for _ in range(sets)]
    torch.cuda.synchronize()
    return itertools.cycle(theirs), itertools.cycle([bt.from_dlpack(t) for t in theirs])


def backward_calls(
    function: Callable[[bt.Tensor], bt.Tensor],
    peer: Callable[[torch.Tensor], torch.Tensor],
    dtype: str,
    *shape: int,
) -> tuple[Call, Call]:
    """Gradients of a function of one tensor, through graphs that are kept."""
    xs, ours = operands(dtype, *shape)
    gs, our_gs = operands(dtype, *shape)
    leaves = [next(ours).detach().requires_grad_() for _ in range(SETS)]
    peers = [next(xs).detach().requires_grad_() for _ in range(SETS)]
    graphs = itertools.cycle([(function(x), x) for x in leaves])
    peer_graphs = itertools.cycle([(peer(x), x) for x in peers])

    def our_call() -> object:
        y, x = next(graphs)
        return bt.grad([y], [x], [next(our_gs)], retain_graph=True)

    def peer_call() -> object:
        y, x = next(peer_graphs)
        return torch.autograd.grad(y, x, next(gs), retain_graph=True)

    return our_call, peer_call


def captured_calls(ours: Call, peer: Call) -> tuple[Call, Call]:
    """Replays of both as CUDA graphs: of what the host takes longer to launch than the device to compute.

    What they read is that of the capture, and should be larger than the second-level cache.
    """
    captured = bt.capture(ours)
    for _ in range(2):
        captured()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            peer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        peer()
    return captured, graph.replay


def gelu(dtype: str) -> Iterator[Work]:
    """The tanh form."""
    n = BYTES // DTYPES[dtype].itemsize
    xs, ours = operands(dtype, n)
    f = torch.nn.functional
    yield Work(
        f"kernel.gelu.{dtype}.fwd",
        2 * BYTES,
        lambda: F.gelu(next(ours), "tanh"),
        lambda: f.gelu(next(xs), approximate="tanh"),
    )
    calls = backward_calls(lambda x: F.gelu(x, "tanh"), lambda x: f.gelu(x, approximate="tanh"), dtype, n)
    yield Work(f"kernel.gelu.{dtype}.bwd", 3 * BYTES, *calls)


def add(dtype: str) -> Iterator[Work]:
    """Two tensors, and a tensor with a bias."""
    n = BYTES // DTYPES[dtype].itemsize
    xs, ours = operands(dtype, n)
    ys, other = operands(dtype, n)
    yield Work(f"kernel.add.{dtype}.fwd", 3 * BYTES, lambda: next(ours) + next(other), lambda: next(xs) + next(ys))
    rows = n // 768
    xs, ours = operands(dtype, rows, 768)
    bs, biases = operands(dtype, 768)
    moved = 2 * rows * 768 * DTYPES[dtype].itemsize
    yield Work(f"kernel.add_bias.{dtype}.fwd", moved, lambda: next(ours) + next(biases), lambda: next(xs) + next(bs))


def copy(dtype: str) -> Iterator[Work]:
    """As it is, transposed, heads before tokens, and to the other dtype."""
    size = DTYPES[dtype].itemsize
    n = BYTES // size
    xs, ours = operands(dtype, n)
    yield Work(f"kernel.copy.{dtype}.fwd", 2 * BYTES, lambda: bt.copy(next(ours)), lambda: next(xs).clone())
    other = next(d for d in DTYPES if d != dtype)
    name = DTYPES[other]
    yield Work(
        f"kernel.astype.{dtype}.fwd",
        n * (size + name.itemsize),
        lambda: next(ours).astype("bfloat16" if other == "bf16" else "float32"),
        lambda: next(xs).to(name),
    )
    side = 1 << 13
    rows = n // side
    ms, matrices = operands(dtype, rows, side)
    yield Work(
        f"kernel.transpose.{dtype}.fwd",
        2 * BYTES,
        lambda: next(matrices).T.contiguous(),
        lambda: next(ms).t().contiguous(),
    )
    batch = n // (1024 * 12 * 64)
    hs, heads = operands(dtype, batch, 1024, 12, 64)
    yield Work(
        f"kernel.permute.{dtype}.fwd",
        2 * batch * 1024 * 12 * 64 * size,
        lambda: next(heads).permute_dims(0, 2, 1, 3).contiguous(),
        lambda: next(hs).permute(0, 2, 1, 3).contiguous(),
    )


def reduce(dtype: str) -> Iterator[Work]:
    """Everything, rows, and columns (bias gradients)."""
    size = DTYPES[dtype].itemsize
    xs, ours = operands(dtype, BYTES // size)
    yield Work(f"kernel.sum.{dtype}.fwd", BYTES, lambda: next(ours).sum(), lambda: next(xs).sum())
    rows = BYTES // size // 3072
    ms, matrices = operands(dtype, rows, 3072)
    moved = rows * 3072 * size
    yield Work(f"kernel.sum_rows.{dtype}.fwd", moved, lambda: next(matrices).sum(axis=1), lambda: next(ms).sum(1))
    yield Work(f"kernel.sum_columns.{dtype}.fwd", moved, lambda: next(matrices).sum(axis=0), lambda: next(ms).sum(0))


def dropout(dtype: str) -> Iterator[Work]:
    """P = 0.1."""
    n = BYTES // DTYPES[dtype].itemsize
    xs, ours = operands(dtype, n)
    f = torch.nn.functional
    yield Work(
        f"kernel.dropout.{dtype}.fwd", 2 * BYTES, lambda: F.dropout(next(ours), 0.1), lambda: f.dropout(next(xs), 0.1)
    )
    calls = backward_calls(lambda x: F.dropout(x, 0.1), lambda x: f.dropout(x, 0.1), dtype, n)
    yield Work(f"kernel.dropout.{dtype}.bwd", 2 * BYTES, *calls)


GROUPS: dict[str, Callable[[str], Iterator[Work]]] = {
    function.__name__: function for function in (gelu, add, copy, reduce, dropout)
}


def milliseconds(call: Call, stream: torch.cuda.Stream, rounds: int = 9, inner: int = 6) -> float:
    """Median over rounds of the device time of a call; calls are queued together, so that the host is ahead."""
    times = []
    for i in range(rounds + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(stream)
        for _ in range(inner):
            call()
        end.record(stream)
        end.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(end) / inner)
    return statistics.median(times)


def copy_bandwidth(stream: torch.cuda.Stream) -> float:
    """GB/s of PyTorch's copy of 4 GiB."""
    x = torch.randn(1 << 30, device="cuda")
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    return 2 * x.numel() * 4 / milliseconds(lambda: y.copy_(x), stream, inner=1) / 1e6


def describe_run(commit: str | None, script: str) -> Row:
    """Machine, driver, commit, date and command."""
    properties = bt.cuda.device_properties()
    query = ["nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    if commit is None:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {
        "machine": properties.name,
        "driver": driver,
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
        "command": f"python packages/blutensor/benchmarks/{script}",
    }


def main(groups: dict[str, Callable[[str], Iterator[Work]]], script: str, description: str | None) -> int:
    """Measure, print one table, write JSON when asked."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(groups), default=list(groups))
    parser.add_argument("--dtypes", nargs="+", choices=sorted(DTYPES), default=list(DTYPES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="what the results were measured at, where there is no git checkout")
    args = parser.parse_args()
    torch.manual_seed(0)
    peer_stream = torch.cuda.current_stream()
    our_stream = torch.cuda.ExternalStream(bt.cuda.compute_stream())
    copied = copy_bandwidth(peer_stream)
    run = describe_run(args.commit, script)
    rows: list[Row] = []
    print(f"copy {copied:.0f} GB/s\n{'work':38s} {'ours':>8s} {'of copy':>8s} {'torch':>8s} {'ratio':>6s}")
    for dtype, group in itertools.product(args.dtypes, args.only):
        for work in groups[group](dtype):
            ours, peer = (
                work.bytes / milliseconds(call, stream) / 1e6
                for call, stream in ((work.ours, our_stream), (work.peer, peer_stream))
            )
            name = f"{work.name}.gbps"
            print(f"{name:38s} {ours:8.0f} {ours / copied:8.2f} {peer:8.0f} {ours / peer:6.2f}", flush=True)
            rows.append(
                {
                    "work": name,
                    "ours": round(ours),
                    "peer": round(peer),
                    "peer_name": f"torch {torch.__version__}" + (" in a CUDA graph" if work.captured else ""),
                    "ratio": round(ours / peer, 3),
                    "better": "higher",
                    "share_of_copy": round(ours / copied, 3),
                    "copy_gbps": round(copied),
                    **run,
                }
            )
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(GROUPS, Path(__file__).name, __doc__))
