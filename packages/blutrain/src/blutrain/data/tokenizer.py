"""Text to token ids and back.

A tokenizer is anything with the members of ``Tokenizer``; this version brings ``bytes``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blutrain.errors import TokenizerError

END_OF_TEXT = "<|endoftext|>"
"""How the end-of-text token is shown."""


class Tokenizer(Protocol):
    """What the rest of the package needs of a tokenizer."""

    name: str
    vocab_size: int
    end_of_text: int

    def encode(self, text: str | bytes) -> NDArray[np.uint16]:
        """Token ids of a text, without an end-of-text token: uint16 [tokens]."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids; end-of-text shows as ``<|endoftext|>``."""
        ...


class ByteTokenizer:
    """Every byte is its own token: 256 ids, no vocabulary file, no encoding assumed.

    Byte 0 is the end-of-text token: text never contains it, so documents stay apart without a 257th id, which would not
    fit a vocabulary of 256.
    """

    name = "bytes"
    vocab_size = 256
    end_of_text = 0

    def encode(self, text: str | bytes) -> NDArray[np.uint16]:
        """Token ids of a text.

        Args:
            text: text (taken as UTF-8; bytes of a command line that are no UTF-8 are taken as they are) or raw bytes.

        Returns:
            uint16 [bytes].

        Raises:
            TokenizerError: the text contains byte 0, or half of a surrogate pair.
        """
        try:
            raw = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        except UnicodeEncodeError as error:
            code = f"U+{ord(error.object[error.start]):04X} at position {error.start}"
            message = f"[tokenizer bytes] expected text that UTF-8 can encode, got half of a surrogate pair, {code}"
            raise TokenizerError(message + ": leave it out") from None
        position = raw.find(0)
        if position >= 0:
            message = f"[tokenizer bytes] expected text, got byte 0 at position {position}; byte 0 separates documents:"
            raise TokenizerError(message + " leave binary files out")
        return np.frombuffer(raw, np.uint8).astype(np.uint16)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids.

        Args:
            tokens: ids below 256.

        Returns:
            The text; bytes that are no UTF-8 become U+FFFD.

        Raises:
            TokenizerError: an id is not below 256.
        """
        ids = list(tokens)
        wrong = [token for token in ids if not 0 <= token < self.vocab_size]
        if wrong:
            raise TokenizerError(f"[tokenizer bytes] expected ids below 256, got {wrong[0]}")
        documents = bytes(ids).split(b"\0")
        return END_OF_TEXT.join(document.decode(errors="replace") for document in documents)


_TOKENIZERS: dict[str, type[ByteTokenizer]] = {"bytes": ByteTokenizer}


def get_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by its name.

    Args:
        name: ``bytes``.

    Returns:
        The tokenizer.

    Raises:
        TokenizerError: there is none of that name in this version.
    """
    if name not in _TOKENIZERS:
        close = difflib.get_close_matches(name, _TOKENIZERS, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        message = f"[tokenizer] expected one of {', '.join(_TOKENIZERS)}, got {name!r}{hint}"
        raise TokenizerError(message)
    return _TOKENIZERS[name]()
