"""Times the CUDA tile kernels on the shapes of GPT-2 and writes the table that the heuristics look into first.

    python -m blublas.autotune [--tokens N ...] [--precision P ...] [--out packages/blublas/native/cuda/tuned.h]

The table is compiled in: rebuild afterwards. Needs PyTorch for memory and events, and the device that the table is for;
entries of other devices in the file stay.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blublas

__all__ = ["LAYERS", "Choice", "graph_seconds", "main", "operands", "render"]

#: name: (outputs, inputs) of the layers of GPT-2 124M.
LAYERS = {
    "qkv": (2304, 768),
    "attention_out": (768, 768),
    "mlp_up": (3072, 768),
    "mlp_down": (768, 3072),
    "head": (50304, 768),
}
PRODUCTS = ("fwd", "dgrad", "wgrad")
PREFIXES = {"fp32": "f32_", "tf32": "tf32_", "bf16": "bf16_"}
_ENTRY = re.compile(r'\{(\d+), (true|false), (true|false), (\d+), (\d+), (\d+), "(\w+)", (\d+)\}')


@dataclass(frozen=True)
class Choice:
    """A line of the table."""

    arch: int
    k_major_a: bool
    k_major_b: bool
    m: int
    n: int
    k: int
    config: str
    parts: int

    def line(self) -> str:
        """The entry as C++."""
        a, b = (str(value).lower() for value in (self.k_major_a, self.k_major_b))
        return f'    {{{self.arch}, {a}, {b}, {self.m}, {self.n}, {self.k}, "{self.config}", {self.parts}}},'

    @property
    def key(self) -> tuple[Any, ...]:
        """What an entry answers for."""
        precision = self.config.split("_")[0]
        return self.arch, precision, self.k_major_a, self.k_major_b, self.m, self.n, self.k


def operands(torch: Any, product: str, tokens: int, outputs: int, inputs: int, dtype: Any) -> tuple[Any, Any]:
    """Random a and b of a layer's product, in the layouts that training has them in."""

    def normal(rows: int, cols: int) -> Any:
        return torch.randn(rows, cols, device="cuda", dtype=torch.float32).to(dtype)

    if product == "fwd":
        return normal(tokens, inputs), normal(outputs, inputs).t()
    if product == "dgrad":
        return normal(tokens, outputs), normal(outputs, inputs)
    return normal(tokens, outputs).t(), normal(tokens, inputs)


def graph_seconds(torch: Any, calls: list[Callable[[], object]], num_rounds: int = 5) -> float:
    """Median seconds of one call, all of them in one CUDA graph so that the host's time does not count."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(num_rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return float(statistics.median(times))


def _candidates(precision: str, product: str, outputs: int) -> Iterator[tuple[str, int]]:
    # The weight gradient has a long K and few tiles; cutting K is of no use elsewhere at these sizes.
    parts = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16) if product == "wgrad" and outputs < 10000 else (1,)
    for config in blublas.cuda_configs():
        if config.startswith(PREFIXES[precision]):
            yield from ((config, number) for number in parts)


def tune(torch: Any, precision: str, tokens: int) -> Iterator[tuple[str, Choice, float]]:
    """The fastest choice of every product, with what it reaches in TFLOP/s."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    major, minor = torch.cuda.get_device_capability()
    seen = set()
    for layer, (outputs, inputs) in LAYERS.items():
        for product in PRODUCTS:
            a, b = operands(torch, product, tokens, outputs, inputs, dtype)
            (m, k), n = a.shape, b.shape[1]
            layout = (a.stride(1) == 1, b.stride(0) == 1)
            if (m, n, k, layout) in seen:
                continue
            seen.add((m, n, k, layout))
            out = torch.empty(m, n, device="cuda", dtype=dtype)
            best: tuple[float, str, int] | None = None
            for config, parts in _candidates(precision, product, outputs):
                blublas.set_cuda_config(f"{config}/{parts}")
                math: Any = "tf32" if precision == "tf32" else "ieee"
                seconds = graph_seconds(torch, [lambda x=a, y=b, z=out, how=math: blublas.gemm(x, y, z, math=how)] * 3)  # type: ignore[misc]
                if best is None or seconds < best[0]:
                    best = (seconds, config, parts)
            blublas.set_cuda_config("auto")
            if best is not None:
                choice = Choice(10 * major + minor, *layout, m, n, k, best[1], best[2])
                yield f"{precision} {layer} {product}", choice, 2 * m * n * k / best[0] / 1e12


def render(text: str, choices: list[Choice]) -> str:
    """The table's file with these choices in it; what they do not answer for stays."""
    merged = {}
    for entry in _ENTRY.finditer(text):
        arch, a, b, m, n, k, config, parts = entry.groups()
        old = Choice(int(arch), a == "true", b == "true", int(m), int(n), int(k), config, int(parts))
        merged[old.key] = old
    merged.update({choice.key: choice for choice in choices})
    lines = [merged[key].line() for key in sorted(merged)]
    head, _, rest = text.partition("kTunedChoices[] = {\n")
    tail = rest[rest.index("};") :]
    empty = '    {0, false, false, 0, 0, 0, "", 1},  // for the table not to be empty'
    return head + "kTunedChoices[] = {\n" + "\n".join(lines or [empty]) + "\n" + tail


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write the table."""
    parser = argparse.ArgumentParser(prog="python -m blublas.autotune", description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384], help="rows of the activations")
    parser.add_argument("--precision", nargs="+", default=list(PREFIXES), choices=list(PREFIXES))
    parser.add_argument("--out", type=Path, help="the table, native/cuda/tuned.h; without it nothing is written")
    options = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        sys.exit("expected PyTorch for device memory and events, got none; install torch")
    if not blublas.cuda_configs() or not torch.cuda.is_available():
        sys.exit("expected a CUDA device and a build with CUDA, got neither or one of them")
    choices = []
    for precision in options.precision:
        for tokens in options.tokens:
            for name, choice, rate in tune(torch, precision, tokens):
                print(f"{name:<28} {choice.config:<20} {choice.parts:>2} parts {rate:8.1f} TFLOP/s", flush=True)
                choices.append(choice)
    if options.out is not None:
        options.out.write_text(render(options.out.read_text(encoding="utf-8"), choices), encoding="utf-8")


if __name__ == "__main__":
    main()
