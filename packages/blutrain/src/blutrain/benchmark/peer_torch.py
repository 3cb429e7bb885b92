"""The peer: the same GPT-2 step in PyTorch, measured as ``worker`` measures ours. Needs PyTorch alone.

A step is forward, mean cross entropy, backward, clipping of the gradient norm to 1.0 and fused AdamW, on random tokens:
learned positions, pre-LayerNorm, tanh GELU, biases, tied head, no dropout; eager, or through ``torch.compile``.

    python peer_torch.py '{"layers": 4, "heads": 4, "channels": 128, "rows": 256, "vocabulary": 256,
                           "context": 128, "batch": 16, "threads": 2, "warmup": 5, "steps": 12}'

On a GPU also ``"device": "cuda"``, ``"precision"`` (fp32, tf32, or bf16 by autocast), ``"mode"`` (``eager`` or a mode
of ``torch.compile``) and ``"limit_gib"``. Prints one JSON object; it has no
``tokens_per_s`` when memory does not suffice.

With ``"gate"``, a path, the timed steps begin when a file with that name is there; when the warm-up is over, one with
``.ready`` appended is made. So several peers can compile at a time and be measured one by one.

Legend: B = batch, T = context, C = channels, H = heads, V = rows of the embedding.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention and MLP on a residual stream [B, T, C]."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.fc, self.out = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Any) -> Any:
        """[B, T, C] to [B, T, C]."""
        batch, length, channels = x.shape
        shape = (batch, length, self.heads, channels // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(channels, dim=2))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, channels))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):  # type: ignore[misc, unused-ignore]
    """GPT-2 with blutrain's names of parameters."""

    def __init__(self, layers: int, heads: int, channels: int, context: int, rows: int, tied: bool = True) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(rows, channels), nn.Embedding(context, channels)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.lnf = nn.LayerNorm(channels)
        self.head = None if tied else nn.Linear(channels, rows, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scaled = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers) if scaled else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def logits(self, tokens: Any) -> Any:
        """[B, T] to [B, T, V]."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.lnf(x), self.wte.weight if self.head is None else self.head.weight)

    def forward(self, tokens: Any, targets: Any) -> Any:
        """Mean cross entropy."""
        logits = self.logits(tokens)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def wait_at(gate: str | None) -> None:
    """Tell that the warm-up is over, and wait until the file is there."""
    if gate is not None:
        Path(f"{gate}.ready").touch()
        while not Path(gate).exists():
            time.sleep(0.05)


def measure(work: dict[str, Any]) -> dict[str, Any]:
    """Median speed of the timed steps, and peak memory: resident, or allocated by PyTorch on a GPU."""
    device, mode = work.get("device", "cpu"), work.get("mode", "eager")
    precision = work.get("precision", "fp32")
    on_gpu = device == "cuda"
    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if on_gpu and work.get("limit_gib"):
        share = work["limit_gib"] * 2**30 / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(share)
    name = f"torch-{'compile' if mode == 'default' else mode} {torch.__version__}"
    batch, context = work["batch"], work["context"]
    try:
        model = GPT(work["layers"], work["heads"], work["channels"], context, work["rows"]).to(device)
        forward = model if mode == "eager" else torch.compile(model, mode=mode)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
        data = torch.randint(0, work["vocabulary"], (8, batch, context + 1), device=device)
        seconds: list[float] = []
        events = []
        for step in range(work["warmup"] + work["steps"]):
            if on_gpu:
                if step == work["warmup"]:
                    torch.cuda.synchronize()
                    wait_at(work.get("gate"))
                    torch.cuda.reset_peak_memory_stats()
                events.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])  # type: ignore[no-untyped-call, unused-ignore]
                events[-1][0].record()
            begin = time.perf_counter()
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                loss = forward(data[step % 8][:, :-1], data[step % 8][:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds.append(time.perf_counter() - begin)
            if on_gpu:
                events[-1][1].record()
        if on_gpu:
            torch.cuda.synchronize()
            seconds = [first.elapsed_time(last) / 1e3 for first, last in events]
    except torch.OutOfMemoryError:
        return {"name": name, "error": "out of memory"}
    median = statistics.median(seconds[work["warmup"] :])
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "tokens_per_s": batch * context / median,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else resident,
        "loss": loss.item(),
        "name": name,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
