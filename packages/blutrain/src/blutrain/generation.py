"""Text from a model, token by token with a key-value cache through one captured program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import blutensor as bt
from blutrain.arguments import checked
from blutrain.data.tokenizer import Tokenizer, unknown_id
from blutrain.errors import InvalidInputError
from blutrain.model import GPT, KVCache
from blutrain.sampling import Sampler, SamplingOptions


class Decoder:
    """Feeds one sequence to a model and keeps its keys and values.

    The program's inputs are a token and its position, so every token of every sequence is a replay of the same program.

    Args:
        model: the model; its weights are read anew at every token, so it may go on training in between.
        family: programs that share the arena with this one; a new one by default.
    """

    def __init__(self, model: GPT, family: bt.ProgramFamily | None = None) -> None:
        self._model = model
        weight = model.wte.weight
        self._device = weight.device
        self._cache = KVCache(model.config, dtype=weight.dtype, device=weight.device)
        family = family or bt.ProgramFamily(device=self._device)
        self._program = family.capture(self._decode, name="decode")

    def feed(self, token: int, position: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Put a token at a position; those before it must have been put already.

        Args:
            token: its id.
            position: from 0, below the context.

        Returns:
            Logits of the token after it: float32 [V], a copy.
        """
        token_slot = bt.asarray(np.array([token], np.int32), device=self._device)
        logits = self._program(token_slot, bt.asarray(np.array(position, np.int32), device=self._device))
        return np.array(logits.cpu().astype(bt.float32).numpy()[0])

    def _decode(self, token: bt.Tensor, position: bt.Tensor) -> bt.Tensor:
        was_training = self._model.training
        self._model.eval()
        try:
            with bt.no_grad():
                return self._model.decode(token, position, self._cache)
        finally:
            self._model.train(was_training)


def generate_tokens(
    decoder: Decoder,
    prompt: Sequence[int],
    max_new_tokens: int,
    options: SamplingOptions,
    model: GPT,
    vocab_size: int | None = None,
) -> Iterator[int]:
    """Continue a prompt.

    When the context is full, the later half of it is fed again at the front and generation goes on from there.

    Args:
        decoder: of the model.
        prompt: ids, at least one.
        max_new_tokens: how many to make.
        options: how tokens are chosen.
        model: for its context and vocabulary.
        vocab_size: choose below it, where a tokenizer has fewer ids than the model.

    Yields:
        New ids.

    Raises:
        InvalidInputError: the prompt is empty or has ids beyond the vocabulary, or the number is negative.
    """
    config = model.config
    if not prompt:
        raise InvalidInputError("[generate] expected a prompt of at least 1 token, got none")
    wrong = [token for token in prompt if not 0 <= token < config.vocab_size]
    if wrong:
        raise InvalidInputError(f"[generate] expected token ids below {config.vocab_size}, got {wrong[0]}")
    if max_new_tokens < 0:
        raise InvalidInputError(f"[generate] expected max_new_tokens of at least 0, got {max_new_tokens}")
    sampler = Sampler(options, min(config.vocab_size, vocab_size or config.vocab_size))
    pending = list(prompt[-config.context :])
    history = list(pending)
    position = 0
    for _ in range(max_new_tokens):
        if position + len(pending) > config.context:
            pending = history[-max(config.context // 2, 1) :]
            history = list(pending)
            position = 0
        for token in pending:
            logits = decoder.feed(token, position)
            position += 1
        token = sampler.choose(logits)
        pending = [token]
        history.append(token)
        yield token


@checked("generate")
def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    max_new_tokens: int = 200,
    options: SamplingOptions | None = None,
    decoder: Decoder | None = None,
) -> str:
    """Continue a text.

    Args:
        model: the model.
        tokenizer: the one that it was trained with.
        prompt: text to continue, as it is: no end-of-text token is put before it. An empty one starts a new document,
            from an end-of-text token.
        max_new_tokens: how many tokens to make; an end-of-text token ends the text earlier.
        options: how tokens are chosen.
        decoder: of the model, to use again what was captured.

    Returns:
        The prompt and what follows it.

    Raises:
        InvalidInputError: impossible options.
        InvalidTypeError: a value of another type.
        TokenizerError: the prompt can not be encoded.
    """
    ids = [int(token) for token in tokenizer.encode(prompt)]
    begin = ids or [tokenizer.end_of_text]
    new: list[int] = []
    options, decoder = options or SamplingOptions(), decoder or Decoder(model)
    for token in generate_tokens(decoder, begin, max_new_tokens, options, model, tokenizer.vocab_size):
        if token == tokenizer.end_of_text:
            break
        new.append(token)
    return tokenizer.decode([*ids, *new])


@checked("generate")
def generate(
    run: str | Path,
    prompt: str = "",
    *,
    max_new_tokens: int = 200,
    options: SamplingOptions | None = None,
    device: str = "auto",
    report: Callable[[str], None] | None = None,
) -> str:
    """Continue a text with the newest checkpoint of a run.

    Args:
        run: run folder, or one checkpoint file.
        prompt: text to continue, as it is: no end-of-text token is put before it. An empty one starts a new document,
            from an end-of-text token.
        max_new_tokens: how many tokens to make at most.
        options: how tokens are chosen.
        device: where to; see ``train.device``.
        report: told which checkpoint is used, and how many tokens of the prompt the tokenizer does not know.

    Returns:
        The prompt and what follows it.

    Raises:
        CheckpointError: there is none, or it is damaged.
        DeviceError: there is no such device.
        InvalidInputError: impossible options.
        InvalidTypeError: a value of another type.
        TokenizerError: the prompt can not be encoded.
    """
    from blutrain.run_tokenizer import tokenizer_of_run
    from blutrain.weights import load_model

    model, config, step = load_model(run, device=device)
    if report is not None:
        report(f"checkpoint of step {step}")
    tokenizer = tokenizer_of_run(run, config)
    unknown = unknown_id(tokenizer)
    if report is not None and unknown is not None:
        ids = tokenizer.encode(prompt)
        count = int(np.count_nonzero(ids == unknown))
        if count:
            report(f"notice: the run's tokenizer does not know {count} of {len(ids)} tokens of the prompt")
    return generate_text(model, tokenizer, prompt, max_new_tokens=max_new_tokens, options=options)
