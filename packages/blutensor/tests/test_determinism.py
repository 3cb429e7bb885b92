"""The same bits over ten training steps: in two processes, with 1, 2 and 3 threads, with shuffled addresses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STEPS = 10

# Runs in a process of its own: the options of the default pool can be set only before its first use.
WORKER = """
import hashlib, json, sys
threads, shuffle, captured, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "captured", sys.argv[4]
import blualloc
if shuffle:
    blualloc.configure(shuffle_seed=shuffle)
import blutensor as bt
from models import batches, bits, build, train_step, weights
bt.set_num_threads(threads)
assert bt.num_threads() == threads
model, optimizer = build(kind)
step = train_step(model, optimizer)
if captured:
    step = bt.capture(step)
losses = [bits(step(*batch)).hex() for batch in batches(kind, int(sys.argv[5]), size=9)]
state = hashlib.sha256(b"".join(bits(w) for w in weights(model).values()))
print(json.dumps({"losses": losses, "weights": state.hexdigest()}))
"""


def run(threads: int, shuffle: int, mode: str, kind: str) -> Any:
    """Losses and a digest of the weights of one process."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(threads), str(shuffle), mode, kind, str(STEPS)],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {kind: run(1, 0, "eager", kind) for kind in ("mlp", "rnn", "transformer")}


@pytest.mark.parametrize("kind", ["mlp", "rnn", "transformer"])
@pytest.mark.parametrize(
    ("threads", "shuffle", "mode"),
    [(1, 0, "eager"), (2, 0, "eager"), (3, 0, "captured"), (1, 17, "captured"), (2, 23, "captured"), (3, 5, "eager")],
)
def test_same_bits(threads: int, shuffle: int, mode: str, kind: str, expected: dict[str, Any]) -> None:
    assert run(threads, shuffle, mode, kind) == expected[kind]


def test_the_runs_train(expected: dict[str, Any]) -> None:
    """Ten different losses: the comparison is not of a run that stands still."""
    for result in expected.values():
        assert len(set(result["losses"])) == STEPS
