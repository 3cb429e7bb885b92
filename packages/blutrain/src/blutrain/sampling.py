"""Choosing the next token from logits: greedy, temperature, top-k, top-p. On the host, in float64, seeded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blutrain.arguments import check_fields
from blutrain.errors import InvalidInputError, NonFiniteLogitsError


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most likely token (the first of several)."""
    top_k: int = 0
    """Only this many most likely tokens can be chosen; 0 leaves all."""
    top_p: float = 1.0
    """Only the smallest set of most likely tokens with at least this probability can be chosen (Holtzman et al.
    2020)."""
    seed: int = 0
    """Of the choices."""

    def __post_init__(self) -> None:
        check_fields("generate", self)
        problems = []
        if not 0 <= self.temperature < float("inf"):
            problems.append(f"expected a finite temperature of at least 0, got {self.temperature}")
        if self.top_k < 0:
            problems.append(f"expected top_k of at least 0, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            problems.append(f"expected 0 < top_p <= 1, got {self.top_p}")
        if self.seed < 0:
            problems.append(f"expected a seed of at least 0, got {self.seed}")
        if problems:
            raise InvalidInputError("[generate] " + "; ".join(problems))


class Sampler:
    """Draws tokens; the same seed and logits give the same tokens on every machine.

    Args:
        options: how tokens are chosen.
        vocab_size: real ids; logits beyond are of padding and never chosen.
    """

    def __init__(self, options: SamplingOptions, vocab_size: int) -> None:
        self._options = options
        self._vocab_size = vocab_size
        self._generator = np.random.Generator(np.random.Philox(options.seed))

    def choose(self, logits: NDArray[np.float32]) -> int:
        """The next token.

        Args:
            logits: float32 [V].

        Returns:
            An id below ``vocab_size``.

        Raises:
            NonFiniteLogitsError: a logit is NaN or plus infinity, or all are minus infinity.
        """
        scores = logits[: self._vocab_size].astype(np.float64)
        if not np.isfinite(scores.max()):  # minus infinity alone may be meant: it can not be chosen
            message = (
                "[generate] expected finite logits, got NaN or infinity: the weights of this checkpoint are damaged"
            )
            raise NonFiniteLogitsError(message + "; take an earlier one")
        if self._options.temperature == 0:
            return int(scores.argmax())
        probabilities, ids = self._candidates(scores / self._options.temperature)
        cumulative = np.cumsum(probabilities)
        drawn = self._generator.random() * cumulative[-1]
        return int(ids[min(int(np.searchsorted(cumulative, drawn, side="right")), len(ids) - 1)])

    def _candidates(self, scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Probabilities and ids that may be drawn, most likely first; ties in the order of ids."""
        ids = np.argsort(-scores, kind="stable")
        if self._options.top_k:
            ids = ids[: self._options.top_k]
        weights = np.exp(scores[ids] - scores[ids[0]])
        probabilities = weights / weights.sum()
        if self._options.top_p < 1:
            before = np.cumsum(probabilities) - probabilities
            keep = max(int((before < self._options.top_p).sum()), 1)
            ids, probabilities = ids[:keep], probabilities[:keep]
        return probabilities, ids
