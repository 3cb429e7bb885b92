from __future__ import annotations

from collections.abc import Iterator

import pytest
from variants import VARIANTS, FakePool, Variant, check_invariants

from blualloc import Pool


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
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
