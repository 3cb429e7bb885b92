"""Measures the pool beside malloc, and the planner beside the least that any plan needs.

    python benchmarks/measure.py [--out FILE]

The pool's times come from pool.cpp, compiled here against the installed library: an allocation with its free, the best
of many rounds. The planner packs the buffers of GPT-2 training steps (tests/training_trace.py) and reports arena over
peak of live bytes, and its time for 5600 buffers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from training_trace import gpt2_step  # noqa: E402

import blualloc  # noqa: E402
import libblualloc  # noqa: E402

Row = dict[str, Any]


def measure_pool() -> Iterator[Row]:
    """Nanoseconds per allocation and free, ours and malloc's."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        sys.exit("expected a C++ compiler for pool.cpp, got none; install g++")
    root = Path(libblualloc.root())
    library = root / "lib" / f"libblualloc.so.{libblualloc.ABI[0]}"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pool"
        sources = [str(HERE / "pool.cpp"), str(library), f"-I{root / 'include'}", f"-Wl,-rpath,{library.parent}"]
        subprocess.run([compiler, "-std=c++20", "-O2", *sources, "-o", str(program)], check=True)
        printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    for line in printed.splitlines():
        pattern, ours, peer = line.split()
        yield row(f"pool.{pattern}.ns", float(ours), float(peer), "malloc")


def measure_eager_steps() -> Iterator[Row]:
    """Memory reserved by the pool over three eager steps of the trace, beside the peak of live bytes.

    The addresses are only taken, never touched, so that this needs no memory.
    """
    for name, trace in (("kept", gpt2_step()), ("recompute", gpt2_step(recompute=True))):
        moments: dict[int, list[int]] = {}
        for number, buffer in enumerate(trace.buffers):
            indices = [index for _, index in buffer.uses]
            moments.setdefault(2 * min(indices), []).append(number)
            moments.setdefault(2 * max(indices) + 1, []).append(number)
        with blualloc.Pool() as pool:
            for step in range(3):
                addresses: dict[int, int] = {}
                for moment in sorted(moments):
                    for number in moments[moment]:
                        if moment % 2 == 0:
                            addresses[number] = pool.allocate(trace.buffers[number].bytes)
                        else:
                            pool.free(addresses.pop(number))
                pool.end_of_step(step)
            stats = pool.stats()
        work = f"pool.gpt2-124m.{name}.reserved_bytes"
        yield row(work, stats.peak_reserved_bytes, stats.peak_live_bytes, "peak of live bytes")


def measure_planner() -> Iterator[Row]:
    """Bytes of the arena beside the peak of live bytes; seconds for many buffers."""
    steps = {
        "gpt2-124m.kept": gpt2_step(),
        "gpt2-124m.recompute": gpt2_step(recompute=True),
        "gpt2-124m.two_lanes": gpt2_step(all_reduce=True),
        "gpt2-nano.kept": gpt2_step(4, 128, 4, 128, 16, 256),
    }
    for name, trace in steps.items():
        plan = blualloc.plan(trace.buffers, trace.events)
        yield row(f"plan.{name}.arena_bytes", plan.arena_bytes, plan.peak_live_bytes, "peak of live bytes")
    trace = gpt2_step(layers=200, context=64, batch=1)
    start = time.perf_counter()
    blualloc.plan(trace.buffers, trace.events)
    yield row(f"plan.{len(trace.buffers)}_buffers.seconds", round(time.perf_counter() - start, 3))


def row(work: str, ours: float, peer: float | None = None, peer_name: str | None = None) -> Row:
    """One result in the form that the documentation's tables are made from; smaller is better."""
    result: Row = {"work": work, "ours": ours}
    if peer is not None:
        result |= {"peer": peer, "peer_name": peer_name, "ratio": round(ours / peer, 4)}
    return result | {"better": "lower"} | WHERE


def describe_run() -> Row:
    """Machine, commit, date and command."""
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
        "command": "python packages/blualloc/benchmarks/measure.py",
    }


WHERE = describe_run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the JSON list there")
    arguments = parser.parse_args()
    rows = [*measure_pool(), *measure_eager_steps(), *measure_planner()]
    for result in rows:
        peer = f"{result['peer']:>16,} {result['peer_name']:<20} {result['ratio']:.4f}" if "peer" in result else ""
        print(f"{result['work']:<40}{result['ours']:>16,} {peer}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
