"""Measures the interpreter's share: microseconds per eager call and per captured call, and of a whole captured step.

    python benchmarks/overhead.py [--out FILE]

Operands are so small that kernels take no time worth mentioning. A captured step is a Transformer step (forward,
backward, clipping, AdamW); its interpreter time is the time of the call less that of the native replay in it.
PyTorch is measured beside it where it is installed.
"""

from __future__ import annotations

import argparse
import datetime
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from models import Transformer, train_step

Row = dict[str, Any]


def microseconds(function: Callable[[], object], calls: int, rounds: int = 15) -> float:
    """Median over the rounds of the time per call."""
    function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


def torch_calls() -> dict[str, Callable[[], object]]:
    """The same eager calls in PyTorch, if it is there."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    x, y, w = torch.randn(8), torch.randn(8), torch.randn(8, requires_grad=True)
    return {
        "eager.add.us": lambda: x + y,
        "eager.add_scalar.us": lambda: x + 1.5,
        "eager.backward.us": lambda: (w * w).sum().backward(),
    }


def measure_eager() -> Iterator[Row]:
    """Eager calls on eight elements."""
    rng = np.random.default_rng(0)
    x, y, w = (bt.asarray(rng.standard_normal(8).astype(np.float32)) for _ in range(3))
    w.requires_grad = True
    calls: dict[str, Callable[[], object]] = {
        "eager.add.us": lambda: x + y,
        "eager.add_scalar.us": lambda: x + 1.5,
        "eager.backward.us": lambda: (w * w).sum().backward(),
    }
    peers = torch_calls()
    for work, call in calls.items():
        peer = microseconds(peers[work], 2000) if work in peers else None
        yield row(work, microseconds(call, 2000), peer)


def measure_captured() -> Iterator[Row]:
    """A captured function of one operator, and a captured training step."""
    x = bt.asarray(np.random.default_rng(0).standard_normal(8).astype(np.float32))
    one = bt.capture(lambda t: t + t, name="one")
    for _ in range(3):
        one(x)
    yield row("captured.one_operator.us", microseconds(lambda: one(x), 2000))

    model = Transformer()
    step = bt.capture(train_step(model, bt.optim.AdamW(model.named_parameters())), name="step")
    tokens = bt.asarray(np.random.default_rng(0).integers(0, 53, (1, 11)).astype(np.int32))
    for _ in range(3):
        step(tokens, tokens)
    whole, native = [], []
    for _ in range(400):  # in turns, so that both see the same machine
        whole.append(microseconds(lambda: step(tokens, tokens), 1, 1))
        native.append(microseconds(step.program.replay, 1, 1))
    yield row("captured.step.us", statistics.median(whole))
    yield row("captured.step.interpreter.us", statistics.median(whole) - statistics.median(native))


def measure_native_loop() -> Iterator[Row]:
    """Time of the native loop outside of programs, per step of `ProgramFamily.run`."""
    family = bt.ProgramFamily()
    total = bt.zeros(())
    one = family.capture(lambda t: total.add_(t.sum()))
    for _ in range(2):
        one(bt.ones(8))
    steps = 20_000
    family.run(steps, schedule=[(one, 1)], metrics=[total])
    yield row("captured.loop_host.us", family.last_host_seconds / steps * 1e6)


def commit() -> str:
    """The commit measured, or "unknown" outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def row(work: str, ours: float, peer: float | None = None) -> Row:
    """One result; the ratio is peer over ours, since less is better."""
    result: Row = {"work": work, "ours": round(ours, 3)}
    if peer is not None:
        import torch

        name = f"torch {torch.__version__}"
        result |= {"peer": round(peer, 3), "peer_name": name, "ratio": round(peer / ours, 3)}
    return result | {
        "better": "lower",
        "machine": machine(),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/overhead.py",
    }


def main(arguments: list[str] | None = None) -> list[Row]:
    """Command line; returns the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    options = parser.parse_args(arguments)
    bt.set_num_threads(1)
    rows = [*measure_eager(), *measure_captured(), *measure_native_loop()]
    for r in rows:
        print(f"{r['work']:32} {r['ours']:9.2f} {r.get('peer', '-'):>9} {r.get('ratio', '-'):>7}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
