"""Helpers of this package's tests."""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch to compare with. Without it such tests skip, or fail when BLU_REQUIRE_TORCH is set."""
    try:
        import torch
    except ImportError:
        message = "PyTorch is not installed: comparisons with it are left out"
        if os.environ.get("BLU_REQUIRE_TORCH") == "1":
            pytest.fail(message)
        pytest.skip(message)
    torch.set_num_threads(2)
    return torch
