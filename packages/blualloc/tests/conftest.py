from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from variants import VARIANTS, FakePool, Variant, check_invariants, parameters

import blualloc
from blualloc import Pool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is no device, with the reason that the library gives."""
    if reason := blualloc.cuda_reason():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {reason}"))


@pytest.fixture
def whole_device() -> None:
    """For tests that look at the memory of the whole GPU: no other test of this package uses it meanwhile."""


@pytest.fixture(autouse=True)
def device_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets tests on the GPU run side by side (pytest-xdist), those that ask for ``whole_device`` alone."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / "blualloc-tests-gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if "whole_device" in request.fixturenames else fcntl.LOCK_SH)
        yield


@pytest.fixture(params=parameters(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


@pytest.fixture
def pool(variant: Variant) -> Iterator[Pool]:
    """A pool of the variant; after the test its bookkeeping must be sound and everything must go back."""
    made = variant.make()
    yield made
    check_invariants(made)
    made.close(force=True)
    if isinstance(made, FakePool):
        device = made.device
        assert device.errors == []
        assert device.mapped == device.reservations == device.events == {}
