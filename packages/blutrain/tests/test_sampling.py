"""Choosing tokens from logits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blutrain.errors import InvalidInputError
from blutrain.sampling import Sampler, SamplingOptions

LOGITS = np.log(np.array([0.5, 0.1, 0.3, 0.1], np.float32))


def draw(options: SamplingOptions, count: int, logits: np.ndarray = LOGITS, vocab_size: int = 4) -> np.ndarray:
    sampler = Sampler(options, vocab_size)
    return np.array([sampler.choose(logits) for _ in range(count)])


def test_greedy_takes_the_first_of_the_most_likely() -> None:
    assert (draw(SamplingOptions(temperature=0), 3) == 0).all()
    assert (draw(SamplingOptions(temperature=0), 3, np.array([1, 2, 2, 0], np.float32)) == 1).all()


def test_frequencies_follow_the_probabilities() -> None:
    count = 20000
    found = np.bincount(draw(SamplingOptions(), count), minlength=4) / count
    # five standard deviations of a binomial share
    assert found == pytest.approx([0.5, 0.1, 0.3, 0.1], abs=5 * np.sqrt(0.25 / count))
    sharp = np.bincount(draw(SamplingOptions(temperature=0.5), count), minlength=4) / count
    expected = np.array([0.25, 0.01, 0.09, 0.01]) / 0.36
    assert sharp == pytest.approx(expected, abs=5 * np.sqrt(0.25 / count))


def test_top_k_and_top_p_leave_the_rest_out() -> None:
    assert set(draw(SamplingOptions(top_k=2), 500)) == {0, 2}
    assert set(draw(SamplingOptions(top_k=3), 500)) == {0, 2, 1}  # the first of equals
    assert set(draw(SamplingOptions(top_p=0.5), 500)) == {0}
    assert set(draw(SamplingOptions(top_p=0.51), 500)) == {0, 2}
    assert set(draw(SamplingOptions(top_p=1e-9), 100)) == {0}
    assert set(draw(SamplingOptions(top_k=100), 500)) == {0, 1, 2, 3}


def test_padded_ids_are_never_chosen() -> None:
    logits = np.concatenate([LOGITS, np.full(4, 50, np.float32)])
    for options in (SamplingOptions(temperature=0), SamplingOptions()):
        assert draw(options, 200, logits).max() < 4


def test_the_seed_decides() -> None:
    assert (draw(SamplingOptions(seed=3), 50) == draw(SamplingOptions(seed=3), 50)).all()
    assert (draw(SamplingOptions(seed=3), 50) != draw(SamplingOptions(seed=4), 50)).any()


@given(
    st.lists(st.one_of(st.floats(-(2.0**99), 2.0**99, width=32), st.just(-np.inf)), min_size=1, max_size=9),
    st.sampled_from([0, 0.01, 1, 100]),
    st.integers(0, 9),
    st.sampled_from([0.1, 0.9, 1.0]),
)
def test_always_an_id(values: list[float], temperature: float, top_k: int, top_p: float) -> None:
    logits = np.array([*values, 0], np.float32)
    options = SamplingOptions(temperature, top_k, top_p)
    token = Sampler(options, len(logits)).choose(logits)
    assert 0 <= token < len(logits)
    assert logits[token] > -np.inf


def test_bad_options_and_logits() -> None:
    with pytest.raises(InvalidInputError) as caught:
        SamplingOptions(temperature=-1, top_k=-1, top_p=0, seed=-1)
    assert all(word in str(caught.value) for word in ("temperature", "top_k", "top_p", "seed"))
    for bad in (np.nan, np.inf):
        with pytest.raises(InvalidInputError, match="damaged"):
            draw(SamplingOptions(), 1, np.array([0, bad, 0, 0], np.float32))
    with pytest.raises(InvalidInputError):
        SamplingOptions(temperature=float("nan"))
