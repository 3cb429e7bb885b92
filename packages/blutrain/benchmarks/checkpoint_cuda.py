"""Saves and loads the training state of GPT-2 124M that lies on a GPU, beside PyTorch's own format with a digest.

    python benchmarks/checkpoint_cuda.py [--out FILE] [--folder FOLDER] [--repeats 3]

As ``checkpoint.py``, with the state on the device:

    ours  save   to pinned memory, then `CheckpointStore.save` (fsync, read back and verified, renamed)
          load   `CheckpointStore.load`, every digest checked, then copied into the tensors of a model on the device
          stall  what the training loop waits for when the save goes on behind it: the copy to pinned memory
    peer  save   `torch.save` of the device's tensors, fsync, SHA-256 beside it, renamed
          load   SHA-256 compared, `torch.load(mmap=True, weights_only=True)`, copied likewise
          stall  a copy of every tensor to pinned memory, which is what its asynchronous savers wait for
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import checkpoint as host
import numpy as np
import torch

import blutensor as bt
from blutrain.benchmark import entry
from blutrain.checkpoint import CheckpointStore
from blutrain.saver import Saver


class Ours:
    """Checkpoints of blutrain from tensors on a GPU."""

    def __init__(self, folder: Path, arrays: host.Arrays) -> None:
        self.state = {name: bt.asarray(array, device="cuda") for name, array in arrays.items()}
        self.target = {name: bt.zeros_like(tensor) for name, tensor in self.state.items()}
        self.store = CheckpointStore(folder / "ours", keep=1)
        self.savers = {background: Saver(self.store, background=background) for background in (False, True)}
        for saver in self.savers.values():
            saver.prepare(self.state)

    def save(self, step: int) -> Path:
        return self.savers[False].save(step, self.state, {"loss": 3.25})

    def stall(self, step: int) -> float:
        stalled = host.milliseconds(lambda: self.savers[True].save(step, self.state, {"loss": 3.25}))
        self.savers[True].wait()
        return stalled

    def load(self, path: Path) -> None:
        arrays, _ = self.store.load(path)
        for name, tensor in self.target.items():
            tensor.copy_(bt.asarray(arrays[name]))
        bt.cuda.synchronize()

    def loaded(self, name: str) -> np.ndarray[Any, Any]:
        return self.target[name].cpu().numpy()


class Peer(host.Peer):
    """PyTorch's files from tensors on a GPU."""

    def __init__(self, folder: Path, arrays: host.Arrays) -> None:
        super().__init__(folder)
        self.state = {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
        self.target = {name: torch.zeros_like(tensor) for name, tensor in self.state.items()}
        self.pinned = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in self.state.items()}

    def save(self, step: int) -> Path:  # type: ignore[override]
        path, temporary = self.folder / "state.pt", self.folder / "state.tmp"
        with temporary.open("wb") as file:
            torch.save({"tensors": self.state, "step": step, "loss": 3.25}, file)
            file.flush()
            os.fsync(file.fileno())
        self._digest_path().write_text(self._digest(temporary))
        temporary.rename(path)
        return path

    def stall(self, step: int) -> float:  # type: ignore[override]
        def copy() -> None:
            for name, tensor in self.state.items():
                self.pinned[name].copy_(tensor, non_blocking=True)
            torch.cuda.synchronize()

        return host.milliseconds(copy)

    def load(self, path: Path) -> None:  # type: ignore[override]
        if self._digest(path) != self._digest_path().read_text():
            raise RuntimeError(f"[benchmark] {path} is damaged")
        tensors = torch.load(path, mmap=True, weights_only=True, map_location="cpu")["tensors"]
        for name, tensor in self.target.items():
            tensor.copy_(tensors[name])
        torch.cuda.synchronize()

    def loaded(self, name: str) -> np.ndarray[Any, Any]:
        return self.target[name].cpu().numpy()


def measure(contender: Ours | Peer, arrays: host.Arrays, step: int) -> dict[str, float]:
    """Saves and loads once and checks that what was loaded is what was saved."""
    saved: list[Path] = []
    save_ms = host.milliseconds(lambda: saved.append(contender.save(step)))
    saved[0].read_bytes()  # into the page cache, from which both are loaded
    load_ms = host.milliseconds(lambda: contender.load(saved[0]))
    different = [name for name in arrays if not np.array_equal(contender.loaded(name), arrays[name])]
    if different:
        raise RuntimeError(f"[benchmark] {type(contender).__name__} loaded other values of {different[:3]}")
    return {"save": save_ms, "load": load_ms, "stall": contender.stall(step)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/benchmark-checkpoint"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    arrays = host.training_state(host.LAYERS, host.CHANNELS, host.CONTEXT, host.VOCABULARY)
    shutil.rmtree(options.folder, ignore_errors=True)
    try:
        contenders: dict[str, Ours | Peer] = {
            "ours": Ours(options.folder, arrays),
            "peer": Peer(options.folder, arrays),
        }
        times: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for repeat in range(options.repeats + 1):  # the first is the warm-up
            for name, contender in contenders.items():
                times[name].append(measure(contender, arrays, repeat))
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    results = []
    for work in host.WORKS:
        ours, peer = (statistics.median(one[work] for one in times[name][1:]) for name in ("ours", "peer"))
        peer_name = f"torch {torch.__version__}, fsync, sha256"
        results.append(entry(f"checkpoint.124M.{work}.ms", ours, peer, peer_name, "lower", gpu=True))
        print(f"{results[-1]['work']:28} {ours:9.1f} {peer:9.1f} {ours / peer:6.3f}x")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
