"""What all tests share: PyTorch where it is installed, a seeded generator, and clean process-wide settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import blutensor as bt

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts its background jobs, and tests that interrupt a run would wait for its end.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch; without it the test is skipped, or fails where BLU_REQUIRE_TORCH=1 asks for it."""
    if os.environ.get("BLU_REQUIRE_TORCH") == "1":
        import torch as module

        return module
    return pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Every test starts with the same random numbers, one set of threads, and no capture or gradient mode left over."""
    bt.manual_seed(1234)
    threads = bt.num_threads()
    yield
    bt.set_num_threads(threads)
    assert not bt.is_capturing()
    assert bt.is_grad_enabled()
