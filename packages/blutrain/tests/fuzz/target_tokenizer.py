"""Tokenizers from files: GPT-2's two files, and ``tokenizer.json`` with the configuration beside it."""

from __future__ import annotations

import json

from targets import MemoryFolder, Target, only

from blutrain.data.shards import token_dtype
from blutrain.data.tokenizer import END_OF_TEXT, MAX_VOCAB, get_tokenizer
from blutrain.data.tokenizer_bpe import byte_characters
from blutrain.errors import TokenizerError

_FOLDER = MemoryFolder()
_GPT2 = ("encoder.json", "vocab.bpe")
_FILE = ("tokenizer.json", "tokenizer_config.json")
_TEXT = "low lower, lowest  \u00e9\n" + END_OF_TEXT


def _run(data: bytes, names: tuple[str, str]) -> bool:
    """Input: length of the first file in 2 bytes, the first file, the second one (none where it is empty)."""
    size = int.from_bytes(data[:2], "little")
    first = _FOLDER.write(names[0], data[2 : 2 + size])
    if rest := data[2 + size :]:
        _FOLDER.write(names[1], rest)
    else:
        _FOLDER.remove(names[1])
    with only(TokenizerError) as outcome:
        tokenizer = get_tokenizer(first)
        assert 0 <= tokenizer.end_of_text < tokenizer.vocab_size <= MAX_VOCAB
        ids = tokenizer.encode(_TEXT)
        assert ids.dtype == token_dtype(tokenizer.vocab_size)
        assert not len(ids) or int(ids.max()) < tokenizer.vocab_size
        tokenizer.decode(ids)
    return outcome.accepted


def run_gpt2(data: bytes) -> bool:
    """Reads ``encoder.json`` and ``vocab.bpe``, encodes and decodes."""
    return _run(data, _GPT2)


def run_file(data: bytes) -> bool:
    """Reads ``tokenizer.json``, encodes and decodes."""
    return _run(data, _FILE)


def _vocabulary() -> tuple[dict[str, int], list[str]]:
    tokens = [*byte_characters().values(), "lo", "low", "er"]
    return {token: number for number, token in enumerate([*tokens, END_OF_TEXT])}, ["l o", "lo w", "e r"]


def pair(first: object, second: str) -> bytes:
    """An input of two files, the first of them JSON."""
    text = json.dumps(first).encode()
    return len(text).to_bytes(2, "little") + text + second.encode()


def seeds_gpt2() -> list[bytes]:
    """A vocabulary of the 256 bytes and three merges, in order and not."""
    vocab, merges = _vocabulary()
    return [
        pair(vocab, "#version: 0.2\n" + "\n".join(merges)),
        pair(vocab, "\n".join(reversed(merges))),
        pair({"a": 1}, "a b"),
    ]


def seeds_file() -> list[bytes]:
    """The same as tokenizer.json, and kinds of models that only the library knows."""
    vocab, merges = _vocabulary()
    added = [{"id": vocab[END_OF_TEXT], "content": END_OF_TEXT, "special": True, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False}]  # fmt: skip
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None}  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bpe = {"type": "BPE", "vocab": vocab, "merges": merges, "dropout": None, "unk_token": None}
    words = {"type": "WordLevel", "vocab": {"low": 0, "[UNK]": 1, END_OF_TEXT: 2}, "unk_token": "[UNK]"}
    piece = {"type": "WordPiece", "vocab": {"low": 0, "[UNK]": 1, END_OF_TEXT: 2}, "unk_token": "[UNK]",
             "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}  # fmt: skip
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["l", -1.5], [END_OF_TEXT, -9.0]]}
    small = [{**added[0], "id": 2}]
    space = {"type": "Whitespace"}
    return [
        pair({**base, "pre_tokenizer": level, "decoder": level, "model": bpe}, ""),
        pair({**base, "pre_tokenizer": level, "model": {**bpe, "merges": [m.split() for m in merges]}}, ""),
        *(
            pair({**base, "added_tokens": small, "pre_tokenizer": space, "model": model}, '{"eos_token": "low"}')
            for model in (words, piece, unigram)
        ),
        pair({**base, "added_tokens": [], "normalizer": {"type": "NFC"}, "model": unigram}, ""),
    ]


_WORDS = (
    b'"<|endoftext|>"', b'"content"', b'"id"', b'"vocab"', b'"merges"', b'"model"', b'"added_tokens"', b'"type"',
    b'"BPE"', b'"WordLevel"', b'"Unigram"', b'"WordPiece"', b'"ByteLevel"', b'"Sequence"', b'"pretokenizers"',
    b'"Split"', b'"pattern"', b'{"Regex":"(a+)+$"}', b'{"Regex":"["}', b'"Metaspace"', b'"eos_token"', b"null",
    b"true", b"{}", b"[]", b"[[]]", b"-1", b"1e999", b"NaN", b"65536", b"4294967296", b"18446744073709551616",
    b"[" * 2000, b'"\\ud800"', b'"\\u0000"', b'""', b'"lo"', b'"dropout"', b"0.5", b"2.0", b'"byte_fallback"',
    b'"unk_token"', b"l o", b"\n", b"\xff", b'"normalizer"', b'"Replace"',
)  # fmt: skip
TARGETS = (
    Target("gpt2", run_gpt2, seeds_gpt2, _WORDS),
    Target("tokenizer", run_file, seeds_file, _WORDS),
)
