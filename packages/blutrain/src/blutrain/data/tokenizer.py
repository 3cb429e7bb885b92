"""Text to token ids and back.

A tokenizer is anything with the members of ``Tokenizer``. There are three kinds: bytes (here), byte-level BPE as GPT-2
has it (``tokenizer_bpe``), and whatever a ``tokenizer.json`` describes (``tokenizer_file``).
"""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blutrain.arguments import checked
from blutrain.data.text import half_of_a_pair
from blutrain.errors import InvalidTypeError, TokenizerError

END_OF_TEXT = "<|endoftext|>"
"""How the end-of-text token is shown."""
MAX_VOCAB = 2**24
"""Most ids of a tokenizer, far above any that there is. Shards hold uint16 up to 65,536 ids, above that uint32."""
Tokens = NDArray[np.unsignedinteger[Any]]
"""Token ids [tokens]: uint16, or uint32 where the vocabulary has more than 65,536 ids; see ``shards.token_dtype``."""
TOKENIZER_FILES = (
    "encoder.json", "vocab.bpe", "tokenizer.json", "tokenizer_config.json",
    "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
"""Names of the files of tokenizers: those that ``Tokenizer.save`` writes, and more that lie beside models."""
NAMES = ("bytes", "gpt2")
"""Tokenizers that need no path."""


@dataclass(frozen=True)
class TokenizerIdentity:
    """What tells whether two tokenizers make the same tokens."""

    kind: str
    """``bytes``, ``gpt2``, ``bpe`` (GPT-2's algorithm with another vocabulary) or ``tokenizers``."""
    digest: str
    """SHA-256 over everything that decides about the tokens, not over the files that they were read from."""
    vocab_size: int
    """Largest id plus one."""
    end_of_text: int
    """Id that separates documents."""

    def __str__(self) -> str:
        if self.kind in NAMES:
            return repr(self.kind)
        return f"{self.kind!r} with {self.vocab_size} ids (digest {self.digest[:12]})"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> TokenizerIdentity:
        """The inverse of ``to_dict``.

        Raises:
            KeyError: a value is missing.
            TypeError: ``values`` is no mapping.
            ValueError: a number is none.
        """
        kind, digest = str(values["kind"]), str(values["digest"])
        return cls(kind, digest, int(values["vocab_size"]), int(values["end_of_text"]))


class Tokenizer(Protocol):
    """What the rest of the package needs of a tokenizer."""

    @property
    def identity(self) -> TokenizerIdentity:
        """What makes it the same as another one."""
        ...

    @property
    def vocab_size(self) -> int:
        """Largest id plus one."""
        ...

    @property
    def end_of_text(self) -> int:
        """Id that separates documents."""
        ...

    def encode(self, text: str | bytes, *, special: bool = False) -> Tokens:
        """Token ids of a text, without an end-of-text token around it: [tokens].

        With ``special``, ``<|endoftext|>`` and its like inside the text are those tokens, else they are plain text.
        """
        ...

    def encode_batch(self, texts: Sequence[str | bytes]) -> list[Tokens]:
        """``encode`` of each text."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids; end-of-text shows as ``<|endoftext|>``."""
        ...

    def save(self, folder: str | Path) -> list[Path]:
        """Write files from which ``get_tokenizer(folder)`` makes the same tokenizer; none where a name is enough."""
        ...


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id that a tokenizer gives text that it does not know; None where it has none, as bytes and their BPE."""
    return getattr(tokenizer, "unknown", None)


class ByteTokenizer:
    """Every byte is its own token: 256 ids, no vocabulary file, no encoding assumed.

    Byte 0 is the end-of-text token: text never contains it, so documents stay apart without a 257th id, which would not
    fit a vocabulary of 256.
    """

    vocab_size = 256
    end_of_text = 0
    identity = TokenizerIdentity("bytes", "bytes", 256, 0)

    @checked("tokenizer bytes")
    def encode(self, text: str | bytes, *, special: bool = False) -> NDArray[np.uint16]:
        """Token ids of a text.

        Args:
            text: text (taken as UTF-8; bytes of a command line that are no UTF-8 are taken as they are) or raw bytes.
            special: whether ``<|endoftext|>`` is the end-of-text token.

        Returns:
            uint16 [bytes].

        Raises:
            InvalidTypeError: an argument of another type.
            TokenizerError: the text contains byte 0, or half of a surrogate pair.
        """
        return self._encode(text, special)

    def _encode(self, text: str | bytes, special: bool = False) -> NDArray[np.uint16]:
        try:
            raw = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        except UnicodeEncodeError as error:
            raise _half_a_pair("bytes", error) from None
        position = raw.find(0)
        if position >= 0:
            message = f"[tokenizer bytes] expected text, got byte 0 at position {position}; byte 0 separates documents:"
            raise TokenizerError(message + " leave binary files out")
        if special:
            raw = raw.replace(END_OF_TEXT.encode(), b"\0")
        return np.frombuffer(raw, np.uint8).astype(np.uint16)

    @checked("tokenizer bytes")
    def encode_batch(self, texts: Sequence[str | bytes]) -> list[NDArray[np.uint16]]:
        """``encode`` of each text."""
        return [self._encode(text) for text in texts]

    @checked("tokenizer bytes")
    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids.

        Args:
            tokens: ids below 256.

        Returns:
            The text; bytes that are no UTF-8 become U+FFFD.

        Raises:
            InvalidTypeError: no integers.
            TokenizerError: an id is not below 256.
        """
        documents = bytes(checked_ids(tokens, self.vocab_size, "bytes")).split(b"\0")
        return END_OF_TEXT.join(document.decode(errors="replace") for document in documents)

    @checked("tokenizer bytes")
    def save(self, folder: str | Path) -> list[Path]:
        """Nothing to write: the name says it all."""
        return []


def as_text(text: str | bytes, tokenizer: str) -> str:
    """Text as ``str``, for tokenizers that know no bytes.

    Args:
        text: text, or its UTF-8.
        tokenizer: for messages.

    Returns:
        The text.

    Raises:
        TokenizerError: it is no UTF-8, or half of a surrogate pair.
    """
    try:
        if isinstance(text, str):
            text.encode()
            return text
        return text.decode()
    except UnicodeEncodeError as error:
        raise _half_a_pair(tokenizer, error) from None
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        message = f"[tokenizer {tokenizer}] expected text in UTF-8, got {found}"
        raise TokenizerError(message + ": convert it, leave it out, or take the tokenizer 'bytes'") from None


def checked_ids(tokens: Iterable[int], vocab_size: int, tokenizer: str) -> list[int]:
    """Ids as a list.

    Args:
        tokens: ids.
        vocab_size: they must be below it.
        tokenizer: for messages.

    Raises:
        InvalidTypeError: one is no integer.
        TokenizerError: one is not below it.
    """
    try:
        ids = [operator.index(token) for token in tokens]
    except TypeError as error:
        raise InvalidTypeError(f"[tokenizer {tokenizer}] expected ids that are integers, got: {error}") from None
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong:
        raise TokenizerError(f"[tokenizer {tokenizer}] expected ids below {vocab_size}, got {wrong[0]}")
    return ids


def check_vocab_size(vocab_size: int, place: str) -> None:
    """Refuse a vocabulary that no model could have.

    Raises:
        TokenizerError: it has more ids than ``MAX_VOCAB``.
    """
    if vocab_size > MAX_VOCAB:
        message = f"[tokenizer] expected at most {MAX_VOCAB} ids, got {vocab_size} in {place}"
        raise TokenizerError(message + ": take a smaller vocabulary, or train one with 'blutrain train-tokenizer'")


def is_path(name: str) -> bool:
    """Whether a tokenizer is named by a path and not by one of ``NAMES``."""
    return name not in NAMES and (os.sep in name or "." in name or Path(name).exists())


@checked("tokenizer")
def get_tokenizer(name: str | Path) -> Tokenizer:
    """A tokenizer by its name or its files.

    Args:
        name: ``bytes``; ``gpt2`` (through tiktoken, which downloads the vocabulary once); or a path: a
            ``tokenizer.json``, an ``encoder.json`` or ``vocab.json`` beside its merges, or a folder with such files.

    Returns:
        The tokenizer.

    Raises:
        TokenizerError: there is none of that name, its files are unusable, or a library or the network is missing.
    """
    text = str(name)
    if text == "bytes":
        return ByteTokenizer()
    if text == "gpt2":
        from blutrain.data.tokenizer_bpe import load_gpt2

        return load_gpt2()
    if is_path(text):
        return _from_files(Path(text))
    close = difflib.get_close_matches(text, NAMES, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise TokenizerError(f"[tokenizer] expected {', '.join(NAMES)} or a path, got {text!r}{hint}")


def tokenizer_files(path: Path) -> list[Path]:
    """The files that ``get_tokenizer(path)`` reads, and no other that lies beside them.

    Args:
        path: a tokenizer's folder, or its file.

    Returns:
        The file that comes first, and those that belong to it and are there.

    Raises:
        TokenizerError: there is none.
    """
    from blutrain.data.tokenizer_bpe import MERGES_OF
    from blutrain.data.tokenizer_file import TOKENIZER_CONFIG

    first = _first_file(path)
    second = first.with_name(MERGES_OF.get(first.name, TOKENIZER_CONFIG))
    return [first, second] if second.is_file() else [first]


def _from_files(path: Path) -> Tokenizer:
    from blutrain.data.tokenizer_bpe import MERGES_OF, load_bpe
    from blutrain.data.tokenizer_file import load_tokenizer_json

    path = _first_file(path)
    return load_bpe(path) if path.name in MERGES_OF else load_tokenizer_json(path)


def _first_file(path: Path) -> Path:
    from blutrain.data.tokenizer_bpe import MERGES_OF
    from blutrain.data.tokenizer_file import TOKENIZER_JSON

    if path.is_dir():
        found = [path / name for name in ("encoder.json", TOKENIZER_JSON, *MERGES_OF) if (path / name).is_file()]
        if not found:
            message = f"[tokenizer] expected {TOKENIZER_JSON}, or encoder.json with vocab.bpe, in {path}, got neither"
            raise TokenizerError(message)
        path = found[0]
    if not path.is_file():
        message = f"[tokenizer] expected {', '.join(NAMES)} or the path of a tokenizer, got no file at {path}"
        raise TokenizerError(message)
    partners = {merges: vocab for vocab, merges in MERGES_OF.items()}
    if path.name in partners:
        path = path.with_name(partners[path.name])
    return path


def _half_a_pair(tokenizer: str, error: UnicodeEncodeError) -> TokenizerError:
    message = f"[tokenizer {tokenizer}] expected text that UTF-8 can encode, got {half_of_a_pair(error)}"
    return TokenizerError(message + ": leave it out")
