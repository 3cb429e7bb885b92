from __future__ import annotations

from collections.abc import Iterator

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
