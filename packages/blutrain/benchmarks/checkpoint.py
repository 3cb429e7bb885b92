"""Saves and loads the training state of GPT-2 124M, beside PyTorch's own format with the same guarantee.

    python benchmarks/checkpoint.py [--out FILE] [--folder FOLDER] [--repeats 5]

Work, in turns and on the same disk:

    ours  save   `CheckpointStore.save`: digests while writing, fsync, read back from the disk and verified, renamed
          load   `CheckpointStore.load`, every digest checked, then copied into the arrays of a model
          stall  what the training loop waits for when the save goes on behind it: the copy of the state
    peer  save   `torch.save`, fsync, SHA-256 of the file beside it, renamed (nothing is read back from the disk)
          load   SHA-256 of the file compared, `torch.load(mmap=True, weights_only=True)`, copied likewise
          stall  `Tensor.clone` of every tensor, which is what its asynchronous savers wait for

The state: float32 masters and both moments of AdamW, 1.49 GB. Files are in the page cache when they are loaded, so that
software is compared and not the disk. Times are medians, in milliseconds; ratio = ours / peer, below 1 is faster.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from blutrain.checkpoint import CheckpointStore
from blutrain.saver import Saver

Arrays = dict[str, np.ndarray[Any, Any]]

WORKS = ("save", "load", "stall")
LAYERS, CHANNELS, CONTEXT, VOCABULARY = 12, 768, 1024, 50304


def parameter_shapes(layers: int, channels: int, context: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a GPT-2's parameters by name, the head tied to the embedding."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (vocabulary, channels), "wpe.weight": (context, channels)}
    matrices = {
        "qkv": (3 * channels, channels),
        "proj": (channels, channels),
        "fc": (4 * channels, channels),
        "out": (channels, 4 * channels),
    }
    for layer in range(layers):
        for name, shape in matrices.items():
            shapes |= {f"blocks.{layer}.{name}.weight": shape, f"blocks.{layer}.{name}.bias": shape[:1]}
        for name in ("ln1", "ln2"):
            shapes |= {f"blocks.{layer}.{name}.{part}": (channels,) for part in ("weight", "bias")}
    return shapes | {f"lnf.{part}": (channels,) for part in ("weight", "bias")}


def training_state(layers: int, channels: int, context: int, vocabulary: int) -> Arrays:
    """Random masters and moments of every parameter, and the state of the random number generator."""
    generator = np.random.default_rng(0)
    state: Arrays = {"rng": np.array([1337, 1000], np.int64)}
    for prefix in ("", "exp_avg.", "exp_avg_sq."):
        for name, shape in parameter_shapes(layers, channels, context, vocabulary).items():
            state[prefix + name] = generator.standard_normal(shape, np.float32)
    return state


class Ours:
    """Checkpoints of blutrain."""

    def __init__(self, folder: Path) -> None:
        self.store = CheckpointStore(folder / "ours", keep=1)

    def save(self, state: Arrays, step: int) -> Path:
        return self.store.save(step, state, {"loss": 3.25})

    def stall(self, state: Arrays, step: int) -> float:
        saver = Saver(self.store, background=True)
        stalled = milliseconds(lambda: saver.save(step, state, {"loss": 3.25}))
        saver.wait()
        return stalled

    def load(self, path: Path, target: Arrays) -> None:
        tensors, _ = self.store.load(path)
        for name, array in target.items():
            np.copyto(array, tensors[name])


class Peer:
    """PyTorch's files with a digest beside them."""

    def __init__(self, folder: Path) -> None:
        import torch

        self.torch = torch
        self.folder = folder / "peer"
        self.folder.mkdir(parents=True)

    def save(self, state: Arrays, step: int) -> Path:
        path = self.folder / "state.pt"
        temporary = self.folder / "state.tmp"
        tensors = {name: self.torch.from_numpy(array) for name, array in state.items()}
        with temporary.open("wb") as file:
            self.torch.save({"tensors": tensors, "step": step, "loss": 3.25}, file)
            file.flush()
            os.fsync(file.fileno())
        self._digest_path().write_text(self._digest(temporary))
        temporary.rename(path)
        return path

    def stall(self, state: Arrays, step: int) -> float:
        tensors = [self.torch.from_numpy(array) for array in state.values()]
        return milliseconds(lambda: [tensor.clone() for tensor in tensors])

    def load(self, path: Path, target: Arrays) -> None:
        if self._digest(path) != self._digest_path().read_text():
            raise RuntimeError(f"[benchmark] {path} is damaged")
        tensors = self.torch.load(path, mmap=True, weights_only=True)["tensors"]
        for name, array in target.items():
            np.copyto(array, tensors[name].numpy())

    def _digest_path(self) -> Path:
        return self.folder / "state.sha256"

    @staticmethod
    def _digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def milliseconds(work: Callable[[], object]) -> float:
    """Time that ``work`` takes."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def measure(contender: Ours | Peer, state: Arrays, target: Arrays, step: int) -> dict[str, float]:
    """Saves and loads once and checks that what was loaded is what was saved."""
    for array in target.values():
        array.fill(0)
    saved: list[Path] = []
    save_ms = milliseconds(lambda: saved.append(contender.save(state, step)))
    saved[0].read_bytes()  # into the page cache, from which both are loaded
    load_ms = milliseconds(lambda: contender.load(saved[0], target))
    different = [name for name, array in state.items() if not np.array_equal(array, target[name])]
    if different:
        raise RuntimeError(f"[benchmark] {type(contender).__name__} loaded other values of {different[:3]}")
    return {"save": save_ms, "load": load_ms, "stall": contender.stall(state, step)}


def processor() -> str:
    """Name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str:
    """Short hash of the checked-out commit."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def rows(ours: dict[str, float], peer: dict[str, float] | None, peer_name: str, command: str) -> list[dict[str, Any]]:
    """One row of results per kind of work."""
    result = []
    for work, value in ours.items():
        row: dict[str, Any] = {"work": f"checkpoint.124M.{work}.ms", "ours": round(value, 1)}
        if peer is not None:
            row |= {"peer": round(peer[work], 1), "peer_name": peer_name, "ratio": round(value / peer[work], 3)}
        row |= {"better": "lower", "machine": processor(), "driver": None, "commit": commit()}
        row |= {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "command": command}
        result.append(row)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(
        description="Time saving and loading of checkpoints beside torch.save and torch.load."
    )
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/benchmark-checkpoint"), help="on the disk to measure"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", choices=["torch", "none"], default="torch")
    parser.add_argument(
        "--layers", type=int, default=LAYERS, help="fewer for a quick look; results are named 124M only with 12"
    )
    options = parser.parse_args(arguments)
    state = training_state(options.layers, CHANNELS, CONTEXT, VOCABULARY)
    target = {name: np.empty_like(array) for name, array in state.items()}
    shutil.rmtree(options.folder, ignore_errors=True)
    try:
        contenders: dict[str, Ours | Peer] = {"ours": Ours(options.folder)}
        peer_name = ""
        if options.peer == "torch":
            peer = contenders["peer"] = Peer(options.folder)
            peer_name = f"torch {peer.torch.__version__}, fsync, sha256"
        times: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for repeat in range(options.repeats + 1):  # the first is the warm-up
            for name, contender in contenders.items():
                times[name].append(measure(contender, state, target, repeat))
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    medians = {
        name: {work: statistics.median(one[work] for one in all_times[1:]) for work in WORKS}
        for name, all_times in times.items()
    }
    command = "python packages/blutrain/benchmarks/checkpoint.py"
    results = rows(medians["ours"], medians.get("peer"), peer_name, command)
    for row in results:
        peer_ms, ratio = row.get("peer", "-"), row.get("ratio", "-")
        print(f"{row['work']:24}  ours {row['ours']:8.1f}  peer {peer_ms:>8}  ratio {ratio:>6}")
    if options.out and options.layers == LAYERS:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
