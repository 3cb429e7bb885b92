"""What the tests on a GPU share: one message where there is none, and a device that is in order after every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import blutensor as bt

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything in this folder, and skips it without a device."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not bt.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {bt.cuda.unavailable_reason()}"))


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    """Every test starts with the cpu as default device and IEEE products, and ends without an error on the device."""
    bt.set_default_device("cpu")
    bt.set_float32_math("ieee")
    yield
    bt.set_default_device("cpu")
    bt.set_float32_math("ieee")
    bt.cuda.synchronize()
