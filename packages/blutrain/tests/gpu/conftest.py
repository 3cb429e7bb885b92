"""Everything in this folder needs a GPU and is skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest

import blutensor as bt

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything here, and skips it without a device."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not bt.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {bt.cuda.unavailable_reason()}"))
