"""Measures our training step beside PyTorch's: each in processes of its own, in turns, as a ratio of medians."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from blutrain.arguments import checked
from blutrain.benchmark.works import MODELS, TrainWork, select
from blutrain.errors import BlutrainError, InvalidInputError
from blutrain.installation import available_cpus, processor_name

PEERS = ("torch",)
"""Known peers."""

Entry = dict[str, Any]


class BenchError(BlutrainError, RuntimeError):
    """A measuring process failed."""


@checked("bench")
def bench(
    works: Sequence[str] = (),
    *,
    peer: str | None = None,
    threads: int = 0,
    rounds: int = 3,
    steps: int = 12,
    warmup: int = 5,
    report: Callable[[str], None] | None = None,
) -> list[Entry]:
    """Measure training works.

    Args:
        works: shell patterns of names; by default what a laptop finishes in minutes.
        peer: ``torch``, or None to measure ours alone.
        threads: CPU threads of either, 0 for all.
        rounds: processes of each kind; they take turns, medians are compared.
        steps: timed steps of a process.
        warmup: untimed steps before.
        report: told what is being measured.

    Returns:
        One entry per quantity, as DESIGN 10 describes: ``tokens_per_s`` (higher is better) and ``peak_gib`` (lower is
        better; on a CPU the resident memory of the whole process, on a GPU what we reserve and PyTorch allocates) of
        every work, and ``host.*``: what a step costs us besides.

    Raises:
        InvalidInputError: unknown work or peer, or impossible numbers.
        BenchError: a measuring process failed.
    """
    if peer is not None and peer not in PEERS:
        raise InvalidInputError(f"[bench] expected one of {', '.join(PEERS)} as peer, got {peer!r}")
    if min(rounds, steps) < 1 or warmup < 3 or threads < 0:
        message = "[bench] expected rounds and steps of at least 1, a warm-up of at least 3 and threads of at least 0"
        raise InvalidInputError(f"{message}, got {rounds}, {steps}, {warmup} and {threads}")
    tell = report or (lambda _: None)
    threads = threads or available_cpus()
    entries: list[Entry] = []
    chosen = select(tuple(works))
    for work in chosen:
        ours, theirs = [], []
        for number in range(rounds):
            tell(f"{work.name}: round {number + 1} of {rounds}")
            ours.append(run_ours(work.name, threads, steps, warmup))
            if peer == "torch":
                theirs += [_run_torch(work, mode, threads, steps, warmup) for mode in work.peers]
        entries += compare(work, ours, theirs, threads)
    if all(work.device == "cuda" for work in chosen):
        return entries
    tell("host time of a captured step")
    host = [run_ours("host", threads, steps, warmup) for _ in range(rounds)]
    for name, key in (("host.captured_step.us", "host_us_per_step"), ("host.run_call.us", "call_us")):
        entries.append(_entry(name, statistics.median(result[key] for result in host), None, None, "lower", threads))
    return entries


def save(entries: Sequence[Entry], path: str | Path) -> None:
    """Write entries as the JSON list that tables are made from.

    Raises:
        OSError: the file can not be written.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(list(entries), indent=1) + "\n", encoding="utf-8")


def format_table(entries: Sequence[Entry]) -> str:
    """The entries as text, the ratio last."""
    rows = [("work", "ours", "peer", "ratio")]
    for entry in entries:
        peer, ratio = entry["peer"], entry["ratio"]
        rows.append(
            (
                entry["work"],
                f"{entry['ours']:,.4g}",
                "-" if peer is None else f"{peer:,.4g}",
                "-" if ratio is None else f"{ratio:.3f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    aligned = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join(aligned)


def entry(
    work: str, ours: float, peer: float | None, peer_name: str | None, better: str, *, gpu: bool = False
) -> Entry:
    """One result as DESIGN 10 describes it.

    Args:
        work: its name.
        ours: our figure.
        peer: the peer's in the same run.
        peer_name: who that is.
        better: ``higher`` or ``lower``.
        gpu: whether it was measured on the GPU.
    """
    return _entry(work, ours, peer, peer_name, better, available_cpus(), _gpu() if gpu else None)


def compare(work: TrainWork, ours: list[Entry], theirs: list[Entry], threads: int) -> list[Entry]:
    """Entries of a work out of what the measuring processes gave: medians, beside the fastest peer.

    Args:
        work: what was measured.
        ours: results of our process.
        theirs: results of the peer's, of all its modes.
        threads: CPU threads of either.
    """
    entries = []
    by_name: dict[str, list[Entry]] = {}
    for result in theirs:
        by_name.setdefault(result["name"], []).append(result)

    def median(results: list[Entry], quantity: str) -> float:
        return float(statistics.median(result[quantity] for result in results))

    fitting = [name for name, results in by_name.items() if all("tokens_per_s" in result for result in results)]
    name = max(fitting, key=lambda n: median(by_name[n], "tokens_per_s"), default=None)
    label = name
    if name is None and by_name:
        label = f"{' and '.join(by_name)}: out of memory"
    gpu = _gpu() if work.device == "cuda" else None
    for quantity, better in (("tokens_per_s", "higher"), ("peak_gib", "lower")):
        other = median(by_name[name], quantity) if name is not None else None
        entries.append(_entry(f"{work.name}.{quantity}", median(ours, quantity), other, label, better, threads, gpu))
    packed = statistics.median(result["arena_bytes"] / max(result["peak_live_bytes"], 1) for result in ours)
    entries.append(_entry(f"{work.name}.arena_over_live", packed, None, None, "lower", threads, gpu))
    if gpu is not None:
        host = median(ours, "host_us_per_step")
        entries.append(_entry(f"{work.name}.host_us", host, None, None, "lower", threads, gpu))
        reserved = median(ours, "reserved_over_live")
        entries.append(_entry(f"{work.name}.reserved_over_live", reserved, None, None, "lower", threads, gpu))
    return entries


def _gpu() -> tuple[str, str]:
    """Name of the first GPU and version of its driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown GPU", "unknown"
    name, _, driver = found.strip().partition(", ")
    return name, driver


def _entry(
    work: str,
    ours: float,
    peer: float | None,
    peer_name: str | None,
    better: str,
    threads: int,
    gpu: tuple[str, str] | None = None,
) -> Entry:
    return {
        "work": work,
        "ours": _significant(ours),
        "peer": None if peer is None else _significant(peer),
        "peer_name": peer_name,
        "ratio": None if peer is None else _significant(ours / peer),
        "better": better,
        "machine": f"{processor_name()}, {threads} threads" if gpu is None else gpu[0],
        "driver": None if gpu is None else gpu[1],
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "command": _command(),
    }


def _significant(value: float) -> float:
    return float(f"{value:.4g}")


def _command() -> str:
    """The command line of this process, as one would type it at the root of the repository."""
    program = Path(sys.argv[0])
    name = "blutrain" if program.stem in ("blutrain", "__main__") else f"python {os.path.relpath(program)}"
    # Where the figures go is the business of who measures, and absolute paths are those of one machine.
    arguments = ["FILE" if before == "--out" else text for before, text in itertools.pairwise(sys.argv)]
    return " ".join([name, *arguments])


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def run_ours(work: str, threads: int, steps: int, warmup: int) -> Entry:
    """Measure a work of ours, by its name, in a process of its own."""
    numbers = ["--threads", str(threads), "--steps", str(steps), "--warmup", str(warmup)]
    return _run([sys.executable, "-m", "blutrain.benchmark.worker", work, *numbers], threads)


def _run_torch(work: TrainWork, mode: str, threads: int, steps: int, warmup: int) -> Entry:
    return _run(peer_command(work, mode, threads, steps, warmup), threads)


def peer_command(
    work: TrainWork, mode: str, threads: int, steps: int, warmup: int, gate: Path | None = None
) -> list[str]:
    """Command line of the process that measures PyTorch.

    Args:
        work: what it trains.
        mode: ``eager``, or a mode of ``torch.compile``.
        threads: CPU threads.
        steps: timed steps.
        warmup: steps before them.
        gate: file that its timed steps wait for.
    """
    model = MODELS[work.model]
    arguments = {
        "layers": model.layers,
        "heads": model.heads,
        "channels": model.channels,
        "rows": model.padded_vocab_size,
        "vocabulary": model.vocab_size,
        "context": work.context,
        "batch": work.batch,
        "threads": threads,
        "warmup": warmup,
        "steps": steps,
        "device": work.device,
        "precision": work.precision,
        "mode": mode,
        "limit_gib": work.limit_gib,
        "gate": None if gate is None else str(gate),
    }
    script = Path(__file__).with_name("peer_torch.py")
    return [sys.executable, str(script), json.dumps(arguments)]


def _run(command: list[str], threads: int) -> Entry:
    """Run a measuring process; its last line of output is the result."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no message"])[-1]
        fix = "; install PyTorch: pip install torch" if "No module named 'torch'" in last else ""
        raise BenchError(f"[bench] {Path(command[1]).name} {command[2]}: exit code {process.returncode}: {last}{fix}")
    result: Entry = json.loads(process.stdout.strip().splitlines()[-1])
    return result
