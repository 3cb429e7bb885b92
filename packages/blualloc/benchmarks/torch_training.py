"""Trains a small GPT in PyTorch on blualloc and on PyTorch's own allocator in its settings, and compares their memory.

    python benchmarks/torch_training.py [--out FILE] [--steps N]

Each allocator runs in a process of its own: the same weights, batches and calls. Step 0 is what a run starts with: a
validation at twice the batch, 48 generated tokens, and the first training step. Then memory is given back
(`blualloc.end_of_step(0)`; PyTorch returns nothing by itself, so its figure is what `torch.cuda.empty_cache()` gives at
the same place), and N - 1 more steps of training are measured, every eighth with a validation:

    returned_bytes          given back to the device after step 0
    reserved_over_peak      most memory taken from the device, over most bytes asked for at once, both after step 0
    step_ms                 median of the steps without validation
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LAYERS, HEADS, CHANNELS, VOCABULARY, CONTEXT, BATCH = 6, 8, 512, 50304, 512, 8
MODEL = "gpt2-44m.bf16.T512.B8"

# What PYTORCH_CUDA_ALLOC_CONF is for each of PyTorch's settings.
PEERS = {
    "torch default": "",
    "torch roundup_power2_divisions:4": "roundup_power2_divisions:4",
    "torch expandable_segments:True": "expandable_segments:True",
}

Row = dict[str, Any]


def train(allocator: str, steps: int) -> Row:
    """One run in this process, begun by a line on standard input; the figures of its memory."""
    import torch
    from torch import nn
    from torch.nn import functional

    sys.stdin.readline()
    if allocator == "blualloc":
        import blualloc.torch

        blualloc.torch.install()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(CHANNELS) for _ in range(2))
            self.qkv, self.out = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
            self.wide, self.narrow = nn.Linear(CHANNELS, 4 * CHANNELS), nn.Linear(4 * CHANNELS, CHANNELS)

        def forward(self, x: Any) -> Any:  # x: [B, T, C]
            parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).flatten(2))
            return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, CHANNELS), nn.Embedding(CONTEXT, CHANNELS)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(CHANNELS)
            self.head = nn.Linear(CHANNELS, VOCABULARY, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens: Any) -> Any:  # tokens: [B, T]
            x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    def batch_loss(batch: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(VOCABULARY, (batch, CONTEXT + 1), generator=generator).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def training_step(step: int) -> float:
        loss = batch_loss(BATCH, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss)

    @torch.no_grad()
    def validate() -> None:
        float(batch_loss(2 * BATCH, 10**6))

    @torch.no_grad()
    def generate(count: int) -> None:
        tokens = torch.ones(1, 16, dtype=torch.long, device="cuda")
        for _ in range(count):
            with torch.autocast("cuda", torch.bfloat16):
                following = model(tokens)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, following], 1)

    torch.manual_seed(1)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    validate()
    generate(48)
    losses = [training_step(0)]
    if allocator == "blualloc":
        returned = blualloc.end_of_step(0, "cuda:0").returned_bytes
        blualloc.reset_peak("cuda:0")
    else:
        before = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        returned = before - torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for step in range(1, steps):
        start = time.perf_counter()
        losses.append(training_step(step))
        times.append(time.perf_counter() - start)
        if step % 8 == 0:
            validate()
    if allocator == "blualloc":
        stats = blualloc.stats("cuda:0")
        reserved, peak = stats.peak_reserved_bytes, stats.peak_live_bytes
    else:
        numbers = torch.cuda.memory_stats()
        reserved, peak = numbers["reserved_bytes.all.peak"], numbers["requested_bytes.all.peak"]
    return {
        "returned_bytes": returned,
        "reserved_bytes": reserved,
        "peak_live_bytes": peak,
        "step_ms": 1000 * statistics.median(times),
        "losses": losses,
        "torch": torch.__version__,
        "machine": torch.cuda.get_device_name(),
    }


def start_process(allocator: str, steps: int, settings: str = "") -> subprocess.Popen[str]:
    """A process that runs `train` once it is told to."""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
    if settings:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = settings
    command = [sys.executable, __file__, "--worker", allocator, "--steps", str(steps)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> Row:
    """Let it run, and return what it found."""
    printed, errors = process.communicate("go\n")
    if process.returncode != 0:
        sys.exit(errors[-2000:])
    result: Row = json.loads(printed.splitlines()[-1])
    return result


def compare(steps: int, commit: str | None) -> list[Row]:
    """Rows in the form that the documentation's tables are made from."""
    # All import PyTorch at the same time; they run one after another.
    process = start_process("blualloc", steps)
    processes = {name: start_process("torch", steps, settings) for name, settings in PEERS.items()}
    ours = finish(process)
    where = describe_run(ours, commit)
    rows = []
    for name, other_process in processes.items():
        theirs = finish(other_process)
        if theirs["losses"] != ours["losses"]:
            print(f"note: the losses of {name} differ in bits", file=sys.stderr)
        for work, better, figure in (
            ("returned_bytes", "higher", lambda r: r["returned_bytes"]),
            ("reserved_bytes", "lower", lambda r: r["reserved_bytes"]),
            ("reserved_over_peak", "lower", lambda r: round(r["reserved_bytes"] / r["peak_live_bytes"], 4)),
            ("step_ms", "lower", lambda r: round(r["step_ms"], 2)),
        ):
            mine, other = figure(ours), figure(theirs)
            ratio = {"ratio": round(mine / other, 4)} if other else {}
            rows.append(
                {"work": f"torch.{MODEL}.{work}", "ours": mine, "peer": other, "peer_name": name}
                | ratio
                | {"better": better}
                | where
            )
    return rows


def describe_run(run: Row, commit: str | None) -> Row:
    """Machine, driver, commit, date and command."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = None
    if commit is None:
        command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {
        "machine": run["machine"],
        "driver": driver,
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
        "command": "python packages/blualloc/benchmarks/torch_training.py",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the JSON list there")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--commit", help="what the results were measured at, where there is no git checkout")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        print(json.dumps(train(arguments.worker, arguments.steps)))
        return
    rows = compare(arguments.steps, arguments.commit)
    for row in rows:
        print(f"{row['work']:<52}{row['ours']:>16,} {row['peer']:>16,} {row['peer_name']:<36}{row.get('ratio', '')}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
