"""A float32 computation to measure errors against: PyTorch's, or the same formula in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layer_checks import Array, require_torch

# Parametrizes a test over both: the one with PyTorch skips without it, the other always runs.
both_peers = pytest.mark.parametrize("peer", ["numpy", "torch"])


def by_numpy(formula: Callable[..., Any], *operands: Array, dtype: Any = np.float32) -> Any:
    """The formula on operands of one floating dtype."""
    return formula(*(np.asarray(v, dtype) for v in operands))


def torch_leaves(*operands: Array) -> list[Any]:
    """Float32 PyTorch tensors that require gradients."""
    torch = require_torch()
    return [torch.tensor(np.array(v), dtype=torch.float32, requires_grad=True) for v in operands]
