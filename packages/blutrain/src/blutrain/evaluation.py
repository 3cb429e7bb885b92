"""Loss of a checkpoint on a data set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blutrain.arguments import checked
from blutrain.config import Config
from blutrain.data.dataset import SPLITS, Dataset, open_dataset
from blutrain.data.loader import Loader
from blutrain.data.text_bytes import TextBytes
from blutrain.errors import DataError, InvalidInputError, TokenizerError
from blutrain.programs import Evaluation
from blutrain.run_tokenizer import tokenizer_of_run
from blutrain.validation import check_config
from blutrain.weights import load_model


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation measured."""

    loss: float
    """Mean cross entropy per token in nats."""
    tokens: int
    """Targets measured."""
    step: int
    """Step of the checkpoint."""
    text_bytes: int | None = None
    """Bytes of text that the targets stand for; None where the tokenizer is not there."""

    @property
    def perplexity(self) -> float:
        """``exp(loss)``."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_token(self) -> float:
        """``loss / ln 2``."""
        return self.loss / math.log(2)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits over bytes of text, which does not depend on the tokenizer; None where there is no tokenizer or no text.

        End-of-text tokens cost bits and stand for no bytes.
        """
        return self.bits_per_token * self.tokens / self.text_bytes if self.text_bytes else None


def evaluation_loader(config: Config, dataset: Dataset, split: str = "val", batch: int | None = None) -> Loader:
    """A loader that goes through a split once, in order.

    Args:
        config: for context and vocabulary.
        dataset: the data.
        split: ``train`` or ``val``.
        batch: rows of a batch, ``train.micro_batch`` by default.
    """
    return Loader(
        dataset.paths(split),
        batch or config.train.micro_batch,
        config.model.context,
        vocab_size=config.model.vocab_size,
        one_pass=True,
    )


@checked("eval")
def evaluate(
    run: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "val",
    max_batches: int = 0,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Measure the loss of a run's newest checkpoint.

    Args:
        run: run folder, or one checkpoint file.
        data: prepared folder, the one that the run was trained on by default.
        split: ``train`` or ``val``.
        max_batches: largest number of micro-batches, 0 for the whole split.
        device: where to; see ``train.device``.
        progress: called with batches done and in all.

    Returns:
        Mean loss and what belongs to it.

    Raises:
        CheckpointError: there is no good checkpoint.
        DataError: the data are unusable or of another tokenizer.
        DeviceError: there is no such device.
        InvalidInputError: an impossible value.
    """
    if split not in SPLITS:
        raise InvalidInputError(f"[eval] expected one of {', '.join(SPLITS)} as split, got {split!r}")
    if max_batches < 0:
        raise InvalidInputError(f"[eval] expected max_batches of at least 0, got {max_batches}")
    model, config, step = load_model(run, device=device)
    if data is None and not config.data.path:  # of a model that was imported
        raise DataError("[eval] expected data to measure on, got a run without: name a prepared folder with --data")
    dataset = open_dataset(config.data.path if data is None else data)
    check_config(config, dataset)
    counter = _text_bytes(run, config)
    loss, tokens = Evaluation(model).run(
        evaluation_loader(config, dataset, split), max_batches, progress, counter.add if counter else None
    )
    return EvaluationResult(loss, tokens, step, counter.total() if counter else None)


def _text_bytes(run: str | Path, config: Config) -> TextBytes | None:
    try:
        return TextBytes(tokenizer_of_run(run, config))
    except TokenizerError:
        return None  # foreign shards are measured without their tokenizer
