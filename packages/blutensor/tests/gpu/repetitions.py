"""Repeats a captured pass of a Transformer at other addresses and with other timing every time, and prints the digests.

    python repetitions.py REPETITIONS PRECISION

Started by test_repetitions_cuda.py as a process of its own: the pool of the device is set up to place blocks at varied
addresses, which has to be done before its first use. Every repetition runs operator by operator, so that each buffer is
at another address, with pauses of random length on the host between launches; every tenth is the graph.
"""

from __future__ import annotations

import collections
import hashlib
import random
import sys
import time
from pathlib import Path

import blualloc

blualloc.configure("cuda:0", shuffle_seed=20)

import blutensor as bt  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))

from models import batches, bits, build  # noqa: E402


def main(repetitions: int, precision: str) -> None:
    """Prints how often each digest of loss and gradients was seen."""
    bt.set_default_device("cuda")
    bt.set_float32_math("tf32" if precision == "tf32" else "ieee")
    model, _ = build("transformer")
    if precision == "bf16":
        model.to("bfloat16")
    parameters = list(model.parameters())
    tokens, targets = batches("transformer", 1, size=8)[0]

    def gradients(x: bt.Tensor, y: bt.Tensor) -> list[bt.Tensor]:
        loss = model.loss(x, y)
        return [loss.detach(), *[g for g in bt.grad(loss, parameters) if g is not None]]

    captured = bt.capture(gradients)
    for _ in range(3):
        bt.default_generator.op_id = 0
        captured(tokens, targets)
    pause = random.Random(3)

    def wait(_index: int, _name: str) -> None:
        if pause.random() < 0.1:
            time.sleep(pause.random() * 1e-4)

    seen: collections.Counter[str] = collections.Counter()
    for k in range(repetitions):
        for output in captured.program.outputs:
            output.fill_(float("nan"))
        if k % 10 == 0:
            captured.program.replay()
        else:
            captured.program.replay("operator", on_op=wait)
        seen[hashlib.sha256(b"".join(bits(o) for o in captured.program.outputs)).hexdigest()] += 1
    print(captured.program.execution)
    for digest, count in seen.items():
        print(f"digest {digest} {count}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
