"""Multiple choice by likelihood, as HellaSwag asks it: which ending does the model find most likely after a text?

A question's endings are scored by the model's loss on their tokens (Zellers et al. 2019; Brown et al. 2020). The
context's and the ending's tokens are made apart, the ending's with a space in front.

Legend: R = endings at a time, W = longest of them with its context, N = tokens of endings, C = channels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import blutensor as bt
from blutensor.nn import functional as F
from blutrain.arguments import checked
from blutrain.data.text import half_of_a_pair
from blutrain.data.tokenizer import Tokenizer
from blutrain.errors import BlutrainError, DataAccessError, DataError, InvalidInputError
from blutrain.model import GPT
from blutrain.run_tokenizer import tokenizer_of_run
from blutrain.weights import load_model

BATCH = 32
"""Endings that are scored at a time by default."""


@dataclass(frozen=True)
class Question:
    """One text and its endings."""

    context: str
    """What stands before."""
    endings: tuple[str, ...]
    """At least two."""
    label: int
    """Which is right, from 0."""


@dataclass(frozen=True)
class EndingScores:
    """Losses of the endings of questions."""

    losses: NDArray[np.float64]
    """Sum over the tokens of each ending, in nats: [endings of all questions]."""
    tokens: NDArray[np.int64]
    """Tokens of each ending: likewise."""
    truncated: int
    """Endings whose context did not fit into the model's; its end was kept."""


@dataclass(frozen=True)
class ChoicesResult:
    """How many questions were answered rightly."""

    questions: int
    """All of them."""
    accuracy: float
    """Share whose right ending has the smallest loss (``acc``)."""
    accuracy_norm: float
    """Share whose right ending has the smallest loss per token (``acc_norm``, as llm.c and nanoGPT's evaluation have
    it)."""
    accuracy_norm_bytes: float
    """Share whose right ending has the smallest loss per byte of its text (as lm-evaluation-harness normalises)."""
    truncated: int
    """Endings whose context was cut at its beginning, because it was longer than the model's."""
    step: int
    """Step of the checkpoint."""


def read_questions(path: str | Path) -> list[Question]:
    """Questions from a JSONL file with HellaSwag's fields ``ctx``, ``endings`` and ``label`` on every line.

    Args:
        path: the file; other fields and empty lines do not matter.

    Returns:
        The questions.

    Raises:
        DataError: a line is no such object; the message names it.
        DataAccessError: the file can not be read.
    """
    try:
        with open(path, "rb") as file:
            return [_question(raw, f"{path}:{number}") for number, raw in enumerate(file, 1) if raw.strip()]
    except OSError as cause:
        if isinstance(cause, BlutrainError):
            raise
        message = f"[eval] expected a JSONL file of questions, got '{cause.strerror or cause}' for {path}"
        raise DataAccessError(message + ": check the path") from cause


def score_endings(
    model: GPT,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    batch: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> EndingScores:
    """The model's loss on every ending.

    Args:
        model: in evaluation mode.
        tokenizer: the one that it was trained with.
        questions: what is asked.
        batch: R, endings scored at a time.
        progress: called with endings done and in all.

    Returns:
        The losses, in the order of questions and their endings.

    Raises:
        InvalidInputError: an ending alone is longer than the model's context, or its tokens are beyond the vocabulary.
        TokenizerError: a text can not be encoded.
    """
    rows = list(_rows(model, tokenizer, questions))
    losses, counts = np.empty(len(rows)), np.array([len(row.ending) for row in rows], np.int64)
    for begin in range(0, len(rows), batch):
        part = rows[begin : begin + batch]
        losses[begin : begin + len(part)] = _row_losses(model, part)
        if progress is not None:
            progress(begin + len(part), len(rows))
    return EndingScores(losses, counts, sum(row.truncated for row in rows))


@checked("eval")
def evaluate_choices(
    run: str | Path,
    path: str | Path,
    *,
    max_questions: int = 0,
    batch: int = BATCH,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> ChoicesResult:
    """Answer multiple-choice questions with a run's newest checkpoint.

    Args:
        run: run folder, or one checkpoint file.
        path: JSONL file; see ``read_questions``.
        max_questions: how many from the beginning, 0 for all.
        batch: endings scored at a time; does not change which are chosen beyond rounding.
        device: where to; see ``train.device``.
        progress: called with endings done and in all.

    Returns:
        The shares of right answers.

    Raises:
        CheckpointError: there is no good checkpoint.
        DataError: the file holds no questions, or something else.
        DeviceError: there is no such device.
        InvalidInputError: an impossible value, or an ending that does not fit.
        TokenizerError: the run's tokenizer is not there.
    """
    if max_questions < 0 or batch < 1:
        message = (
            f"[eval] expected max_questions of at least 0 and batch of at least 1, got {max_questions} and {batch}"
        )
        raise InvalidInputError(message)
    questions = read_questions(path)
    questions = questions[:max_questions] if max_questions else questions
    if not questions:
        raise DataError(f"[eval] expected questions in {path}, got none")
    model, config, step = load_model(run, device=device)
    tokenizer = tokenizer_of_run(run, config)
    scores = score_endings(model, tokenizer, questions, batch=batch, progress=progress)
    text_bytes = [len(_spaced(ending).encode()) for question in questions for ending in question.endings]
    accuracy, norm, norm_bytes = (
        _accuracy(questions, scores.losses / lengths) for lengths in (1, scores.tokens, np.array(text_bytes))
    )
    return ChoicesResult(len(questions), accuracy, norm, norm_bytes, scores.truncated, step)


@dataclass(frozen=True)
class _Row:
    context: NDArray[np.int32]
    ending: NDArray[np.int32]
    truncated: bool


def _question(raw: bytes, place: str) -> Question:
    try:
        fields = json.loads(raw)
        context, endings, label = fields["ctx"], fields["endings"], fields["label"]
        texts = isinstance(endings, list) and all(isinstance(text, str) for text in (context, *endings))
        label = int(label) if isinstance(label, str) else label  # Hugging Face's copy has it as text
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _not_a_question(place, f"{type(error).__name__}: {error}") from None
    if not texts or len(endings) < 2 or not all(endings):
        raise _not_a_question(place, "no text as ctx, or fewer than two texts as endings")
    if type(label) is not int or not 0 <= label < len(endings):
        raise _not_a_question(place, f"label {str(label)[:40]!r} for {len(endings)} endings")
    try:
        "".join((context, *endings)).encode()
    except UnicodeEncodeError as error:
        raise _not_a_question(place, half_of_a_pair(error)) from None
    return Question(context, tuple(endings), label)


def _not_a_question(place: str, found: str) -> DataError:
    message = f"[eval] {place}: expected an object with ctx, endings and label (0 for the first ending), got {found}"
    return DataError(message + ": take HellaSwag's own JSONL files, whose test split has no labels")


def _spaced(ending: str) -> str:
    return f" {ending}"


def _rows(model: GPT, tokenizer: Tokenizer, questions: Sequence[Question]) -> Iterator[_Row]:
    """Tokens of every ending and of what fits of its context, at least one."""
    room, vocabulary = model.config.context, model.config.vocab_size
    for question in questions:
        # Something has to stand before the first token that is scored.
        context = _encode(tokenizer, question.context) if question.context else np.array([tokenizer.end_of_text])
        for ending in question.endings:
            tokens = _encode(tokenizer, _spaced(ending))
            if len(tokens) > room:
                message = f"[eval] expected endings of at most {room} tokens (model.context), got {len(tokens)}"
                raise InvalidInputError(f"{message}: {ending[:60]!r}")
            if max(tokens.max(), context.max()) >= vocabulary:
                message = f"[eval] expected token ids below {vocabulary} (model.vocab_size), got"
                raise InvalidInputError(f"{message} {max(tokens.max(), context.max())}: check data.tokenizer")
            kept = context[-(room + 1 - len(tokens)) :]  # the last token is predicted and not read
            yield _Row(kept, tokens, len(kept) < len(context))


def _encode(tokenizer: Tokenizer, text: str) -> NDArray[np.int32]:
    return tokenizer.encode(text).astype(np.int32)


def _row_losses(model: GPT, rows: Sequence[_Row]) -> NDArray[np.float64]:
    """Summed loss of each row's ending: [R]."""
    width = max(len(row.context) + len(row.ending) for row in rows) - 1
    tokens = np.zeros((len(rows), width), np.int32)  # what stands after an ending does not change it
    positions, owners = [], []
    for index, row in enumerate(rows):
        whole = np.concatenate([row.context, row.ending])[:-1]
        tokens[index, : len(whole)] = whole
        positions.append(index * width + np.arange(len(row.context) - 1, len(whole)))
        owners.append(np.full(len(row.ending), index))
    losses = _token_losses(model, tokens, np.concatenate(positions), np.concatenate([row.ending for row in rows]))
    sums = np.zeros(len(rows))
    np.add.at(sums, np.concatenate(owners), losses)
    return sums


def _token_losses(
    model: GPT, tokens: NDArray[np.int32], positions: NDArray[Any], targets: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Losses of some targets: tokens [R, W], positions [N] in it as if it were flat, targets [N]; float64 [N]."""
    device = model.wte.weight.device
    with bt.no_grad():
        hidden = model.hidden(bt.asarray(tokens, device=device))
        flat = hidden.reshape((tokens.size, model.config.channels))
        chosen = F.embedding(bt.asarray(positions.astype(np.int32), device=device), flat)
        logits = F.linear(chosen, model.head_weight)[:, : model.config.vocab_size]
        losses = F.cross_entropy(logits, bt.asarray(targets, device=device), reduction="none")
    return np.array(losses.cpu().astype(bt.float64).numpy())


def _accuracy(questions: Sequence[Question], scores: NDArray[np.float64]) -> float:
    """Share of questions whose right ending has the smallest score; the first of equal ones counts."""
    right, begin = 0, 0
    for question in questions:
        end = begin + len(question.endings)
        right += int(scores[begin:end].argmin()) == question.label
        begin = end
    return right / len(questions)
