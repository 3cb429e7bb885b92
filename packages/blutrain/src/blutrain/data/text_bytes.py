"""How many bytes of text tokens stand for, which makes losses of different tokenizers comparable."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blutrain.data.tokenizer import ByteTokenizer, Tokenizer
from blutrain.data.tokenizer_bpe import BpeTokenizer

_PIECE = 1 << 20  # tokens of a document that are decoded at a time


class TextBytes:
    """Adds up the bytes of text (UTF-8) of a stream of tokens. End-of-text tokens stand for no text.

    Bytes and byte-level BPE know the length of every token. Of other tokenizers the text itself is decoded, document by
    document; where one of them changes text before it cuts it (lower case, say), what is counted is its version.

    Args:
        tokenizer: of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lengths = token_lengths(tokenizer)
        self._total = 0
        self._known = True
        self._pending: list[NDArray[np.int32]] = []  # of a document that goes on

    def add(self, tokens: NDArray[np.int32]) -> None:
        """Take the next tokens of the stream.

        Args:
            tokens: int32, any shape, in order; negative ones do not count.
        """
        valid = tokens[tokens >= 0]
        if len(valid) and valid.max() >= self._tokenizer.vocab_size:
            self._known = False  # shards of another tokenizer
        if not self._known:
            return
        if self._lengths is not None:
            self._total += int(self._lengths[valid].sum())
            return
        *ended, last = np.split(valid, np.flatnonzero(valid == self._tokenizer.end_of_text))
        for part in ended:
            self._pending.append(part)
            self._decode()
        self._pending.append(last)
        if sum(map(len, self._pending)) > _PIECE:
            self._decode()

    def total(self) -> int | None:
        """Bytes so far; None where there were ids that the tokenizer does not have."""
        self._decode()
        return self._total if self._known else None

    def _decode(self) -> None:
        tokens = np.concatenate([np.empty(0, np.int32), *self._pending])
        self._pending = []
        text = self._tokenizer.decode(tokens[tokens != self._tokenizer.end_of_text].tolist())
        self._total += len(text.encode())


def token_lengths(tokenizer: Tokenizer) -> NDArray[np.int64] | None:
    """Bytes of every token.

    Args:
        tokenizer: any.

    Returns:
        int64 [vocab_size], 0 for end-of-text and ids without a token; None where a token has no length of its own.
    """
    lengths = np.zeros(tokenizer.vocab_size, np.int64)
    if isinstance(tokenizer, ByteTokenizer):
        lengths[:] = 1
    elif isinstance(tokenizer, BpeTokenizer):
        for token, id in tokenizer.vocab.items():  # a character is a byte there
            lengths[id] = len(token)
    else:
        return None
    lengths[tokenizer.end_of_text] = 0
    return lengths
