"""Bytes of text that tokens stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import write_tokenizer

from blutrain.data.text_bytes import TextBytes, token_lengths
from blutrain.data.tokenizer import ByteTokenizer, Tokenizer, get_tokenizer

TEXTS = ["in the thin", "", "naïve 中文 \N{SNAKE}", "a\n" * 50]


def stream(tokenizer: Tokenizer) -> np.ndarray:
    parts = [[tokenizer.end_of_text, *tokenizer.encode(text)] for text in TEXTS]
    return np.concatenate(parts).astype(np.int32)


def word_tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer of another kind than byte-level BPE."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.Unigram([("<eos>", 0.0), ("▁", -1.0)] + [
        (c, -2.0) for c in sorted(set("".join(TEXTS)) - {" "})
    ], unk_id=None))  # fmt: skip
    words.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    words.decoder = tokenizers.decoders.Metaspace(prepend_scheme="never")
    words.save(str(folder / "tokenizer.json"))
    return get_tokenizer(folder)


@pytest.mark.parametrize("kind", ["bytes", "bpe", "words"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_bytes_of_a_stream(tmp_path: Path, kind: str, pieces: int) -> None:
    tokenizer: Any = ByteTokenizer()
    if kind == "bpe":
        write_tokenizer(tmp_path)
        tokenizer = get_tokenizer(tmp_path)
    elif kind == "words":
        tokenizer = word_tokenizer(tmp_path)
    assert (token_lengths(tokenizer) is None) == (kind == "words")
    counter = TextBytes(tokenizer)
    for part in np.array_split(stream(tokenizer), pieces):
        counter.add(np.append(part, np.int32(-100)))
    assert counter.total() == sum(len(text.encode()) for text in TEXTS)


def test_merged_tokens_have_the_length_of_their_parts(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = get_tokenizer(tmp_path)
    lengths = token_lengths(tokenizer)
    assert lengths is not None
    assert [int(lengths[token]) for token in tokenizer.encode("in the")] == [2, 4]
    assert lengths[tokenizer.end_of_text] == 0


def test_ids_that_the_tokenizer_does_not_have() -> None:
    counter = TextBytes(ByteTokenizer())
    counter.add(np.array([65, 256], np.int32))
    counter.add(np.array([65], np.int32))
    assert counter.total() is None
