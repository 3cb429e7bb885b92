"""Generation: greedy against the full forward pass, beyond the context, seeds, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blutensor as bt
import blutrain
from blutrain.config import ModelConfig
from blutrain.data import ByteTokenizer
from blutrain.errors import InvalidInputError, InvalidTypeError, TokenizerError
from blutrain.generation import Decoder, generate, generate_text, generate_tokens
from blutrain.model import GPT
from blutrain.sampling import SamplingOptions

CONFIG = ModelConfig(layers=2, heads=2, channels=32, context=24, vocab_size=211, pad_vocab_to=16, tied_head=False)


@pytest.fixture(scope="module")
def model() -> GPT:
    bt.manual_seed(11)
    model = GPT(CONFIG)
    for name, parameter in model.named_parameters():
        if name == "head.weight":  # large enough that tokens differ in likelihood
            parameter.detach().numpy()[:] *= 20
    return model


def by_full_forward(model: GPT, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        with bt.no_grad():
            logits = model(bt.asarray(np.array([tokens], np.int32))).numpy()[0, -1, : CONFIG.vocab_size]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def test_greedy_is_the_argmax_of_the_full_forward_pass(model: GPT) -> None:
    decoder = Decoder(model)
    for prompt in ([5], [1, 2, 3, 4, 5, 6, 7]):
        count = CONFIG.context - len(prompt)
        found = list(generate_tokens(decoder, prompt, count, SamplingOptions(temperature=0), model))
        assert found == by_full_forward(model, prompt, count)


def test_beyond_the_context_the_later_half_goes_on(model: GPT) -> None:
    prompt = list(range(1, 41))  # longer than the context: its end counts
    found = list(generate_tokens(Decoder(model), prompt, 30, SamplingOptions(temperature=0), model))
    assert len(found) == 30
    assert found[:1] == by_full_forward(model, prompt[-24:], 1)
    assert found[1:13] == by_full_forward(model, [*prompt[-11:], found[0]], 12)


def test_seeds_and_new_weights(model: GPT) -> None:
    decoder = Decoder(model)

    def draw(seed: int) -> list[int]:
        return list(generate_tokens(decoder, [7], 20, SamplingOptions(seed=seed), model))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert max(draw(3)) < CONFIG.vocab_size
    weight = model.lnf.bias.detach().numpy()
    before, kept = draw(1), weight.copy()
    weight[:] = np.linspace(-9, 9, len(weight))
    assert draw(1) != before
    weight[:] = kept
    assert draw(1) == before


def test_text_and_bad_input() -> None:
    bt.manual_seed(1)
    model = GPT(ModelConfig(layers=1, heads=1, channels=8, context=16, vocab_size=256))
    tokenizer = ByteTokenizer()
    text = generate_text(model, tokenizer, "abc", max_new_tokens=10, options=SamplingOptions(seed=2))
    assert text.startswith("abc")
    assert generate_text(model, tokenizer, "abc", max_new_tokens=0) == "abc"
    with pytest.raises(TokenizerError, match="byte 0"):
        generate_text(model, tokenizer, "a\0b")
    with pytest.raises(InvalidInputError, match="-1"):
        generate_text(model, tokenizer, max_new_tokens=-1)
    decoder = Decoder(model)
    with pytest.raises(InvalidInputError, match="below 256, got 256"):
        list(generate_tokens(decoder, [256], 1, SamplingOptions(), model))
    with pytest.raises(InvalidInputError, match="at least 1 token"):
        list(generate_tokens(decoder, [], 1, SamplingOptions(), model))
    model.lnf.weight.detach().numpy()[:] = np.nan
    with pytest.raises(InvalidInputError, match="damaged"):
        generate_text(model, tokenizer, "a")


def test_only_an_empty_prompt_begins_with_end_of_text(model: GPT) -> None:
    tokenizer, greedy = ByteTokenizer(), SamplingOptions(temperature=0)
    for prompt, ids in (("", [tokenizer.end_of_text]), ("abc", [97, 98, 99])):
        new = by_full_forward(model, ids, 12)
        if tokenizer.end_of_text in new:
            new = new[: new.index(tokenizer.end_of_text)]
        assert new
        expected = prompt + tokenizer.decode(new)
        assert generate_text(model, tokenizer, prompt, max_new_tokens=12, options=greedy) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run": None}, "run of type str or Path, got NoneType"),
        ({"prompt": 5}, "prompt of type str, got int"),
        ({"prompt": b"x"}, "prompt of type str, got bytes"),
        ({"max_new_tokens": "3"}, "max_new_tokens of type int, got str"),
        ({"max_new_tokens": 2.5}, "max_new_tokens of type int, got float"),
        ({"max_new_tokens": True}, "max_new_tokens of type int, got bool"),
        ({"options": {"top_k": 1}}, "options of type SamplingOptions, got dict"),
    ],
)
def test_wrong_types_are_typed_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        generate(**{"run": "absent", **arguments})
    assert isinstance(caught.value, blutrain.BlutrainError)


@pytest.mark.parametrize("options", [{"temperature": "1"}, {"top_k": 1.5}, {"top_p": None}, {"seed": "0"}])
def test_wrong_types_of_options_are_typed_errors(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTypeError, match=f"expected {next(iter(options))} of type"):
        SamplingOptions(**options)
