"""Measures the host's share on a GPU: microseconds per eager call, per captured call, and per step of the native loop.

    python packages/blutensor/benchmarks/overhead_cuda.py [--out FILE]

Eager and captured calls are on eight elements, so that the host is what takes the time; the device is waited for once
at the end of a round. The step is that of a Transformer (12 layers, forward, backward, clipping, AdamW; --layers and
--channels) in the native loop, with batches from a native source, a learning rate fed and a loss read at every step.
`host` is the time in which the loop neither waits for the device nor for the source. PyTorch is measured beside it
where it is installed: eager, and a CUDA graph of one operator (ours copies its argument into a slot besides).
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from overhead import commit

import blutensor as bt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from models import Transformer

Row = dict[str, Any]
VOCABULARY = 50304
measured_commit: str | None = None


def microseconds(function: Callable[[], object], calls: int, wait: Callable[[], object], rounds: int = 15) -> float:
    """Median over the rounds of the time per call."""
    function()
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls * 1e6)
        wait()
    return statistics.median(times)


def torch_calls() -> tuple[dict[str, Callable[[], object]], Callable[[], object]]:
    """The same calls in PyTorch, if it is there with CUDA, and how to wait for them."""
    try:
        import torch
    except ImportError:
        return {}, bt.cuda.synchronize
    if not torch.cuda.is_available():
        return {}, bt.cuda.synchronize
    x, y = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
    w = torch.randn(8, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + x
    calls: dict[str, Callable[[], object]] = {
        "eager.add.us": lambda: x + y,
        "eager.add_scalar.us": lambda: x + 1.5,
        "eager.backward.us": lambda: (w * w).sum().backward(),
        "captured.one_operator.us": graph.replay,
    }
    return calls, torch.cuda.synchronize


def measure_calls() -> Iterator[Row]:
    """Calls on eight elements."""
    rng = np.random.default_rng(0)
    x, y, w = (bt.asarray(rng.standard_normal(8).astype(np.float32)) for _ in range(3))
    w.requires_grad = True
    one = bt.capture(lambda t: t + t, name="one")
    for _ in range(3):
        one(x)
    calls: dict[str, Callable[[], object]] = {
        "eager.add.us": lambda: x + y,
        "eager.add_scalar.us": lambda: x + 1.5,
        "eager.backward.us": lambda: (w * w).sum().backward(),
        "captured.one_operator.us": lambda: one(x),
    }
    peers, wait = torch_calls()
    for work, call in calls.items():
        peer = microseconds(peers[work], 500, wait) if work in peers else None
        yield row(work, microseconds(call, 500, bt.cuda.synchronize), peer)


class Tokens:
    """A source that copies the same batch every time."""

    _function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32)
    context = 0

    def __init__(self, batch: int, length: int) -> None:
        text = np.random.default_rng(0).integers(0, VOCABULARY, (batch, length + 1)).astype(np.int32)
        self.arrays = [np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])]
        self._callback = self._function(self._next)
        self.next_function = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def error(self) -> str:
        """It never fails."""
        return ""

    def _next(self, _context: int, slots: Any, _num_slots: int) -> int:
        for slot, array in zip(slots, self.arrays, strict=False):
            ctypes.memmove(slot, array.ctypes.data, array.nbytes)
        return 0


def measure_step(layers: int, channels: int, steps: int = 100) -> Iterator[Row]:
    """A training step in the native loop."""
    model = Transformer(VOCABULARY, channels, channels // 64, layers, 256, p=0.0)
    parameters = list(model.parameters())
    optimizer = bt.optim.AdamW(model.named_parameters())
    rate, shown = bt.zeros(()), bt.zeros(())

    def step(tokens: bt.Tensor, targets: bt.Tensor) -> None:
        optimizer.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()
        scale, skip = bt.optim.clip_scale(bt.optim.grad_norm(parameters), 1.0)
        optimizer.step(lr=rate, grad_scale=scale, skip=skip)
        shown.copy_(loss.detach())
        bt.default_generator.advance()

    family = bt.ProgramFamily()
    captured = family.capture(step)
    source = Tokens(2, 256)
    rate.fill_(1e-4)
    for _ in range(2):
        captured(*[bt.asarray(a) for a in source.arrays])
    host, whole = [], []
    for _ in range(5):
        start = time.perf_counter()
        family.run(steps, schedule=[(captured, 1)], source=source, feeds={rate: np.full(steps, 1e-4)}, metrics=[shown])
        whole.append((time.perf_counter() - start) / steps * 1e6)
        host.append(family.last_host_seconds / steps * 1e6)
    print(f"{layers} layers of {channels}: {captured.program.execution}, {captured.program.num_calls} calls")
    yield row("captured.step.us", statistics.median(whole))
    yield row("captured.step.host.us", statistics.median(host))


def row(work: str, ours: float, peer: float | None = None) -> Row:
    """One result; the ratio is peer over ours, since less is better."""
    result: Row = {"work": f"cuda.{work}", "ours": round(ours, 3)}
    if peer is not None:
        import torch

        result |= {"peer": round(peer, 3), "peer_name": f"torch {torch.__version__}", "ratio": round(peer / ours, 3)}
    properties = bt.cuda.device_properties()
    return result | {
        "better": "lower",
        "machine": properties.name,
        "driver": properties.driver,
        "commit": measured_commit or commit(),
        "date": datetime.date.today().isoformat(),
        "command": "python packages/blutensor/benchmarks/overhead_cuda.py",
    }


def main(arguments: list[str] | None = None) -> list[Row]:
    """Command line; returns the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--channels", type=int, default=768)
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    options = parser.parse_args(arguments)
    global measured_commit
    measured_commit = options.commit
    if not bt.cuda.is_available():
        parser.exit(2, f"no GPU: {bt.cuda.unavailable_reason()}\n")
    bt.set_float32_math("tf32")
    with bt.default_device("cuda"):
        rows = [*measure_calls(), *measure_step(options.layers, options.channels)]
    for r in rows:
        print(f"{r['work']:32} {r['ours']:9.2f} {r.get('peer', '-'):>9} {r.get('ratio', '-'):>7}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
