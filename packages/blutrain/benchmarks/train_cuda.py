"""Training speed and memory on a GPU beside PyTorch; what is timed never overlaps.

    python packages/blutrain/benchmarks/train_cuda.py [--out FILE] [--work PATTERN]... [--rounds 1]

``blutrain bench`` measures one process after another, and most of its time goes into ``torch.compile``. Here all peers
compile at once and then wait; ours and each of them are timed one by one. Work under a memory limit is too large for
that and has the GPU to itself, its own peers beside it. Results are written after every work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blutrain.benchmark import compare, format_table, peer_command, run_ours, save
from blutrain.benchmark.works import TRAIN_WORKS, TrainWork, select

WARMUP, STEPS, THREADS = 5, 36, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", action="append", metavar="PATTERN", help="by default all that need no memory limit")
    parser.add_argument("--rounds", type=int, default=1, help="processes of ours; medians count")
    options = parser.parse_args()
    chosen = [w for w in TRAIN_WORKS if w.device == "cuda" and not w.limit_gib]
    works = select(tuple(options.work)) if options.work else chosen
    together = [work for work in works if not work.limit_gib]
    entries: list[dict[str, Any]] = []
    for group in [together, *([work] for work in works if work.limit_gib)]:
        for measured in measure(group, options.rounds):
            print(format_table(measured), flush=True)
            entries += measured
            if options.out is not None:
                save(entries, options.out)


def measure(works: list[TrainWork], rounds: int) -> Iterator[list[dict[str, Any]]]:
    """Entries of one work after the other; their peers are all compiled before the first is timed."""
    with tempfile.TemporaryDirectory() as folder:
        peers = {}
        for work in works:
            for mode in work.peers:
                gate = Path(folder) / f"{work.name}.{mode}"
                command = peer_command(work, mode, THREADS, STEPS, WARMUP, gate)
                log = open(f"{gate}.log", "w")  # noqa: SIM115 - it lives as long as the process
                peers[gate] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        for work in works:
            wait_until_ready([gate for gate in peers if gate.name.startswith(f"{work.name}.")], peers)
        for work in works:
            ours = [run_ours(work.name, THREADS, STEPS, WARMUP) for _ in range(rounds)]
            theirs = [finish(gate, peers[gate]) for gate in peers if gate.name.startswith(f"{work.name}.")]
            yield compare(work, ours, theirs, THREADS)


def wait_until_ready(gates: list[Path], peers: dict[Path, Any]) -> None:
    """Wait until the peers have compiled, or have ended for lack of memory."""
    for gate in gates:
        while not Path(f"{gate}.ready").exists() and peers[gate].poll() is None:
            time.sleep(0.1)


def finish(gate: Path, process: Any) -> dict[str, Any]:
    """Let a peer measure; what it found."""
    gate.touch()
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{gate.name} failed: {Path(f'{gate}.log').read_text()[-2000:]}")
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
