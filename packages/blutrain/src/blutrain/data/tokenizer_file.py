"""Tokenizers that a Hugging Face ``tokenizer.json`` describes, through the library tokenizers.

Where the file describes byte-level BPE with GPT-2's expression, ``tokenizer_bpe`` does the work: the same tokens,
several times faster, and the same identity as from GPT-2's own files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blutrain.arguments import checked
from blutrain.data.shards import token_dtype
from blutrain.data.tokenizer import (
    END_OF_TEXT,
    Tokenizer,
    TokenizerIdentity,
    Tokens,
    as_text,
    check_vocab_size,
    checked_ids,
)
from blutrain.data.tokenizer_bpe import INSTALL, BpeTokenizer, parse_merges
from blutrain.errors import TokenizerError

TOKENIZER_JSON = "tokenizer.json"
"""The file."""
TOKENIZER_CONFIG = "tokenizer_config.json"
"""File beside it that names the end-of-text token, where Hugging Face wrote one."""
END_OF_TEXT_NAMES = (
    END_OF_TEXT,
    "<|end_of_text|>",
    "<|end▁of▁sentence|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<|im_end|>",
    "[SEP]",
)
"""End-of-text tokens of well-known tokenizers, in the order in which they are looked for."""


class FileTokenizer:
    """Whatever a ``tokenizer.json`` describes.

    Args:
        content: the parsed file.
        end_of_text: the token that separates documents.
        place: where it comes from, for messages.

    Raises:
        TokenizerError: the library does not understand it, or it has too many ids.
    """

    def __init__(self, content: Mapping[str, Any], end_of_text: str, place: str) -> None:
        content = {**content, "truncation": None, "padding": None}  # of no use for a stream of tokens
        self._plain, self._special = (_engine(json.dumps(content), place) for _ in range(2))
        self._plain.encode_special_tokens = True  # as text
        ids = self._plain.get_vocab(with_added_tokens=True)
        if end_of_text not in ids:
            raise TokenizerError(
                f"[tokenizer] expected the token {end_of_text} in {place}, got none; download it again"
            )
        self.vocab_size = max(ids.values()) + 1
        """Largest id plus one."""
        check_vocab_size(self.vocab_size, place)
        self.end_of_text: int = ids[end_of_text]
        """Id that separates documents."""
        self.unknown = _unknown_id(content, ids)
        """Id that it gives text that it does not know, None where it has none."""
        canonical = json.dumps([content, end_of_text], sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        self.identity = TokenizerIdentity("tokenizers", digest, self.vocab_size, self.end_of_text)
        """What makes it the same as another one."""
        self._content, self._end_of_text = content, end_of_text

    @checked("tokenizer")
    def encode(self, text: str | bytes, *, special: bool = False) -> Tokens:
        """Token ids of a text.

        Args:
            text: text, or its UTF-8.
            special: whether names of special tokens inside the text are those tokens.

        Returns:
            [tokens], of ``token_dtype(vocab_size)``.

        Raises:
            InvalidTypeError: an argument of another type.
            TokenizerError: it is no UTF-8, half of a surrogate pair, or has no tokens.
        """
        engine = self._special if special else self._plain
        whole = as_text(text, "tokenizers")
        with _library_errors("text that it has tokens for"):
            return np.array(engine.encode(whole, add_special_tokens=False).ids, token_dtype(self.vocab_size))

    @checked("tokenizer")
    def encode_batch(self, texts: Sequence[str | bytes]) -> list[Tokens]:
        """``encode`` of each text, on all cores."""
        checked = [as_text(text, "tokenizers") for text in texts]
        with _library_errors("text that it has tokens for"):
            found = self._plain.encode_batch_fast(checked, add_special_tokens=False)
        return [np.array(encoding.ids, token_dtype(self.vocab_size)) for encoding in found]

    @checked("tokenizer")
    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids.

        Args:
            tokens: ids below ``vocab_size``.

        Returns:
            The text; end-of-text shows as ``<|endoftext|>``.

        Raises:
            InvalidTypeError: no integers.
            TokenizerError: an id is not below ``vocab_size``, or it can not decode one.
        """
        documents: list[list[int]] = [[]]
        for token in checked_ids(tokens, self.vocab_size, "tokenizers"):
            if token == self.end_of_text:
                documents.append([])
            else:
                documents[-1].append(token)
        with _library_errors("ids that it can decode"):
            return END_OF_TEXT.join(self._plain.decode(ids, skip_special_tokens=False) for ids in documents)

    @checked("tokenizer")
    def save(self, folder: str | Path) -> list[Path]:
        """Write ``tokenizer.json`` and the name of its end-of-text token."""
        return save_tokenizer_json(Path(folder), self._content, self._end_of_text)


def load_tokenizer_json(path: Path) -> Tokenizer:
    """A tokenizer from a ``tokenizer.json``.

    The end-of-text token is the ``eos_token`` of a ``tokenizer_config.json`` beside it, else the first of
    ``END_OF_TEXT_NAMES`` that is among its tokens.

    Args:
        path: the file, under any name.

    Returns:
        The tokenizer.

    Raises:
        TokenizerError: the file is damaged, has no end-of-text token or too many ids, or a library is missing.
    """
    content = _read_object(path)
    end_of_text = _end_of_text(path, content)
    bpe = _as_bpe(content, end_of_text, path)
    try:
        return FileTokenizer(content, end_of_text, str(path)) if bpe is None else bpe
    except RecursionError:  # JSON is written with more stack than it is read with
        raise TokenizerError(f"[tokenizer] expected a tokenizer.json in {path}, got one nested too deep") from None


def save_tokenizer_json(folder: Path, content: Any, end_of_text: str) -> list[Path]:
    """Write a ``tokenizer.json`` and beside it which token ends a text.

    Args:
        folder: where to.
        content: the parsed file, or an object of tokenizers.
        end_of_text: the token.

    Returns:
        The two files.
    """
    parsed = content if isinstance(content, Mapping) else json.loads(content.to_str())
    tokenizer, config = folder / TOKENIZER_JSON, folder / TOKENIZER_CONFIG
    tokenizer.write_text(json.dumps(parsed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    config.write_text(json.dumps({"eos_token": end_of_text}, indent=1) + "\n", encoding="utf-8")
    return [tokenizer, config]


def _engine(text: str, place: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizerError(f"[tokenizer] expected the library tokenizers for {place}, got none: {INSTALL}") from error
    with _library_errors(f"a {TOKENIZER_JSON} in {place}", "; download it again"):
        return tokenizers.Tokenizer.from_str(text)


@contextlib.contextmanager
def _library_errors(expected: str, fix: str = "") -> Iterator[None]:
    """The library's errors, which have no type of their own, and its panics, which are no ``Exception``."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise TokenizerError(f"[tokenizer] expected {expected}, got {reason}{fix}") from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError(f"a JSON {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        message = f"[tokenizer] expected an object in JSON in {path}, got {type(error).__name__}: {error}"
        raise TokenizerError(message[:300] + "; download it again") from error
    return content


def _end_of_text(path: Path, content: Mapping[str, Any]) -> str:
    known = _tokens(content)
    beside = path.with_name(TOKENIZER_CONFIG)
    if beside.is_file():
        named = _read_object(beside).get("eos_token")
        token = named.get("content") if isinstance(named, dict) else named
        if isinstance(token, str) and token in known:
            return token
    for name in END_OF_TEXT_NAMES:
        if name in known:
            return name
    message = f"[tokenizer] expected an end-of-text token in {path}, got none of {', '.join(END_OF_TEXT_NAMES)}"
    raise TokenizerError(f"{message}; name one of its tokens as eos_token in a {TOKENIZER_CONFIG} beside it")


def _tokens(content: Mapping[str, Any]) -> set[str]:
    added = content.get("added_tokens")
    found = [token.get("content") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    model = content.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        found += vocab
    elif isinstance(vocab, list):
        found += [entry[0] for entry in vocab if isinstance(entry, list) and entry]
    return {token for token in found if isinstance(token, str)}


def _unknown_id(content: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """Models of words and pieces name a token; Unigram has the number of one."""
    model = content.get("model")
    if not isinstance(model, dict):
        return None
    token = model.get("unk_token")
    if isinstance(token, str):
        return ids.get(token)
    number = model.get("unk_id")
    return number if type(number) is int else None


def _as_bpe(content: Mapping[str, Any], end_of_text: str, path: Path) -> BpeTokenizer | None:
    """The file as GPT-2's kind of tokenizer, None where it describes anything else."""
    model, before, added = (content.get(key) for key in ("model", "pre_tokenizer", "added_tokens"))
    if not (isinstance(model, dict) and isinstance(before, dict) and isinstance(added, list)):
        return None
    byte_level = before.get("type") == "ByteLevel" and not before.get("add_prefix_space", True)
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    simple = model.get("type") == "BPE" and not any(model.get(option) for option in options)
    if not (byte_level and before.get("use_regex", True) and simple and not content.get("normalizer")):
        return None
    vocab, merges = model.get("vocab"), model.get("merges")
    if not (isinstance(vocab, dict) and isinstance(merges, list)) or len(added) > 1:
        return None
    extra = {
        token["content"]: token["id"]
        for token in added
        if isinstance(token, dict) and isinstance(token.get("content"), str) and "id" in token
    }
    if extra.keys() - {end_of_text}:
        return None
    try:
        return BpeTokenizer(
            {**vocab, **extra}, parse_merges(merges, str(path)), end_of_text=end_of_text, place=str(path)
        )
    except TokenizerError:
        return None  # tokenizers knows better what is wrong with it, or takes it
