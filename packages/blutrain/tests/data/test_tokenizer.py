"""Tokenizers: GPT-2's known answers, vocabularies made here, every kind of bad file, and no network."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vocabulary import write_vocabulary

from blutrain.data import ByteTokenizer, Loader, ShardWriter, get_tokenizer, open_dataset, prepare, read_shard
from blutrain.data import tokenizer_bpe as bpe
from blutrain.data.text import cut_text, find_cut
from blutrain.data.tokenizer_file import load_tokenizer_json, save_tokenizer_json
from blutrain.errors import DataError, InvalidInputError, ShardError, TokenizerError

TEXTS = [
    "",
    "hello world",
    "hello  world\n\n\thell",
    "Grüße, 世界 🌍!",
    "a<|endoftext|>b",
    "don't we'll 123 45",
    " \n " * 9,
]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """GPT-2's two files with 256 bytes, nine merges and the end-of-text token."""
    return write_vocabulary(tmp_path / "small")


# ---- bytes -----------------------------------------------------------------------------------------------------


@given(st.binary().filter(lambda raw: 0 not in raw))
def test_bytes_round_trip(raw: bytes) -> None:
    tokens = ByteTokenizer().encode(raw)
    assert tokens.dtype == np.uint16
    assert bytes(tokens.astype(np.uint8)) == raw
    assert ByteTokenizer().decode(tokens) == raw.decode(errors="replace")


def test_bytes_end_of_text_and_errors() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([0, 72, 105, 0]) == "<|endoftext|>Hi<|endoftext|>"
    with pytest.raises(TokenizerError, match="position 2"):
        tokenizer.encode(b"ab\0")
    with pytest.raises(TokenizerError, match="got 256"):
        tokenizer.decode([256])
    with pytest.raises(TokenizerError, match="did you mean 'bytes'"):
        get_tokenizer("byte")


def test_bytes_of_a_command_line_are_kept_and_half_a_pair_is_an_error() -> None:
    assert ByteTokenizer().encode("\udcff\udcfeä").tolist() == [0xFF, 0xFE, 0xC3, 0xA4]
    with pytest.raises(TokenizerError, match=r"U\+D800 at position 1"):
        ByteTokenizer().encode("a\ud800")


# ---- GPT-2 -------------------------------------------------------------------------------------------------------


def test_gpt2_known_answers(gpt2_files: Path) -> None:
    tokenizer = get_tokenizer(gpt2_files)
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert tokenizer.encode("<|endoftext|>", special=True).tolist() == [50256]
    assert tokenizer.encode("<|endoftext|>").tolist() == [27, 91, 437, 1659, 5239, 91, 29]
    assert tokenizer.identity.kind == "gpt2"
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (50257, 50256)
    assert tokenizer.decode([15496, 995, 50256]) == "Hello world<|endoftext|>"


def test_gpt2_is_the_same_from_files_of_either_name(gpt2_files: Path, tmp_path: Path) -> None:
    for name, released in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        (tmp_path / name).write_bytes((gpt2_files / released).read_bytes())
    first, second = get_tokenizer(gpt2_files / "encoder.json"), get_tokenizer(tmp_path / "merges.txt")
    assert first.identity == second.identity
    (tmp_path / "copy").mkdir()
    first.save(tmp_path / "copy")
    assert get_tokenizer(tmp_path / "copy").identity == first.identity


def test_gpt2_from_tiktoken_is_that_of_the_files(gpt2_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    files = bpe.load_bpe(gpt2_files / "encoder.json")

    class Encoding:
        eot_token = files.end_of_text

        @staticmethod
        def decode_single_token_bytes(token: int) -> bytes:
            return files._bytes[token]

    monkeypatch.setattr(tiktoken, "get_encoding", {"gpt2": Encoding()}.__getitem__)
    found = get_tokenizer("gpt2")
    assert found.identity == files.identity
    assert isinstance(found, bpe.BpeTokenizer)
    assert found.merges == files.merges


@pytest.mark.parametrize("blocked", [False, True], ids=["refused", "silent"])
def test_no_network_is_an_error_that_says_how_to_give_the_files(blocked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is not installed")

    def refuse(name: str) -> None:
        time.sleep(5 if blocked else 0)
        raise ConnectionError("no route")

    monkeypatch.setattr(tiktoken, "get_encoding", refuse)
    begin = time.monotonic()
    with pytest.raises(TokenizerError, match=r"encoder\.json and vocab\.bpe \(--tokenizer FOLDER") as caught:
        bpe.load_gpt2(seconds=0.2)
    assert ("no answer for 0.2 seconds" if blocked else "no route") in str(caught.value)
    assert time.monotonic() - begin < 4


def test_without_libraries_the_error_says_what_to_install(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(TokenizerError, match=r"pip install 'blutrain\[tokenizers\]'"):
        get_tokenizer("gpt2")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerError, match=r"pip install 'blutrain\[tokenizers\]'"):
        get_tokenizer(small)


# ---- a small vocabulary ------------------------------------------------------------------------------------------


def test_a_vocabulary_from_files(small: Path) -> None:
    tokenizer = get_tokenizer(small)
    assert tokenizer.encode("hello world").tolist() == [259, 264]
    assert tokenizer.encode(b"hello").tolist() == [259]
    assert tokenizer.encode("hello").dtype == np.uint16
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.identity.kind) == (266, 265, "bpe")
    assert tokenizer.encode("hello<|endoftext|>", special=True).tolist() == [259, 265]
    assert tokenizer.decode([259, 265, 264]) == "hello<|endoftext|> world"
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [part.tolist() for part in tokenizer.encode_batch(TEXTS)] == [tokenizer.encode(t).tolist() for t in TEXTS]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.sampled_from("helo wrd'\n\té世<|>")))
def test_both_engines_give_the_same_tokens(small: Path, text: str) -> None:
    pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    fast = bpe.load_bpe(small / "encoder.json")
    slow = bpe._tokenizers_engine(fast.vocab, fast.merges, "<|endoftext|>")
    for special in (False, True):
        assert fast.encode(text, special=special).tolist() == slow(text, special).tolist()


def test_gpt2_text_has_the_same_tokens_in_both_engines(gpt2_files: Path) -> None:
    pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    fast = bpe.load_bpe(gpt2_files / "encoder.json")
    slow = bpe._tokenizers_engine(fast.vocab, fast.merges, "<|endoftext|>")
    for text in (*TEXTS, Path(__file__).read_text(encoding="utf-8")):
        assert fast.encode(text).tolist() == slow(text, False).tolist()


def test_a_list_of_merges_out_of_order_is_still_followed(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder = write_vocabulary(tmp_path / "reversed", ["b c", "a b", "ab c"])  # abc is made of ab and c alone
    assert get_tokenizer(folder).encode("abc abab").tolist() == [ord("a") - 33, 256, 220, 257, 257]


def test_a_million_spaces_are_cut(small: Path) -> None:
    tokenizer = get_tokenizer(small)
    assert len(tokenizer.encode(" " * 1_000_003)) == 1_000_003


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h": -1}, "an id of at least 0"),
        ({"h": 1.5}, "an id of at least 0"),
        ({"h": "x"}, "an id of at least 0"),
        ({"h": True}, "an id of at least 0"),
        ({"h": 1}, "a different id"),
        ({"new": 2**24}, "at most 16777216 ids"),
        ({"Ŀ世": 300}, "bytes written as GPT-2 does"),
        ({"<|endoftext|>": None}, "an id of at least 0"),
    ],
)
def test_bad_vocabularies(small: Path, change: dict[str, Any], message: str) -> None:
    vocab = json.loads((small / "encoder.json").read_text())
    write_vocabulary(small, vocab=vocab | change)
    with pytest.raises(TokenizerError, match=message):
        get_tokenizer(small)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("encoder.json", "{", "with JSON"),
        ("encoder.json", "[1]", "object of tokens"),
        ("encoder.json", "[" * 100000, "with JSON"),
        ("encoder.json", '{"a": 1}', "token <"),
        ("encoder.json", '{"<|endoftext|>": 1}', "256 bytes"),
        ("vocab.bpe", "a b c\n", "two tokens as merge 1"),
        ("vocab.bpe", "h q\n", "none for 'hq'"),
        ("vocab.bpe", None, "got no .*vocab.bpe"),
    ],
)
def test_bad_files(small: Path, file: str, content: str | None, message: str) -> None:
    if content is None:
        (small / file).unlink()
    else:
        (small / file).write_text(content)
    with pytest.raises(TokenizerError, match=message):
        get_tokenizer(small)


def test_bad_names_and_text(small: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="did you mean 'gpt2'"):
        get_tokenizer("gpt-2")
    with pytest.raises(TokenizerError, match="no file at"):
        get_tokenizer(tmp_path / "absent.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TokenizerError, match="got neither"):
        get_tokenizer(tmp_path / "empty")
    tokenizer = get_tokenizer(small)
    with pytest.raises(TokenizerError, match="byte 0xff at position 1"):
        tokenizer.encode(b"a\xff")
    with pytest.raises(TokenizerError, match=r"U\+D800"):
        tokenizer.encode("\ud800")
    with pytest.raises(TokenizerError, match="below 266, got 266"):
        tokenizer.decode([266])


# ---- tokenizer.json ----------------------------------------------------------------------------------------------


def test_byte_level_tokenizer_json_is_the_same_tokenizer(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    files = bpe.load_bpe(small / "encoder.json")
    save_tokenizer_json(tmp_path, bpe.byte_level_bpe(files.vocab, files.merges, "<|endoftext|>"), "<|endoftext|>")
    found = get_tokenizer(tmp_path)
    assert isinstance(found, bpe.BpeTokenizer)
    assert found.identity == files.identity


def word_level(folder: Path, names: list[str], config: object = None) -> Path:
    """Words and signs of a few kinds, which no byte-level tokenizer knows."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    vocab = {word: index for index, word in enumerate(["[UNK]", "to", "be", "or", "not", *names])}
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    engine.add_special_tokens(["[UNK]", *names])
    engine.enable_truncation(2)
    engine.enable_padding(length=9)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(engine.to_str())
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_any_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = get_tokenizer(word_level(tmp_path / "a", ["</s>"]))
    assert tokenizer.encode("to be or not").tolist() == [1, 2, 3, 4]  # neither cut short nor filled up
    assert tokenizer.encode("to </s>", special=True).tolist() == [1, 5]
    assert tokenizer.encode("to </s>").tolist() == [1, 0, 0, 0]
    assert [part.tolist() for part in tokenizer.encode_batch(["to be", b"not"])] == [[1, 2], [4]]
    assert tokenizer.decode([1, 2, 5, 4]) == "to be<|endoftext|>not"
    assert (tokenizer.identity.kind, tokenizer.vocab_size, tokenizer.end_of_text) == ("tokenizers", 6, 5)
    (tmp_path / "copy").mkdir()
    tokenizer.save(tmp_path / "copy")
    assert get_tokenizer(tmp_path / "copy").identity == tokenizer.identity
    with pytest.raises(TokenizerError, match="below 6, got 6"):
        tokenizer.decode([6])


def test_the_end_of_text_token_is_named_beside_the_file(tmp_path: Path) -> None:
    first = get_tokenizer(word_level(tmp_path / "a", ["</s>", "[STOP]"], {"eos_token": "[STOP]"}))
    second = get_tokenizer(word_level(tmp_path / "b", ["</s>", "[STOP]"], {"eos_token": {"content": "[STOP]"}}))
    other = get_tokenizer(word_level(tmp_path / "c", ["</s>", "[STOP]"]))
    assert first.end_of_text == second.end_of_text == 6
    assert first.identity == second.identity
    assert other.end_of_text == 5
    assert other.identity != first.identity
    with pytest.raises(TokenizerError, match=r"name one of its tokens as eos_token in a tokenizer_config\.json"):
        get_tokenizer(word_level(tmp_path / "d", ["[STOP]"]))


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100000, '{"model": 1, "added_tokens": [{"content": "</s>"}]}'])
def test_bad_tokenizer_json(tmp_path: Path, content: str) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json.*download it again"):
        load_tokenizer_json(tmp_path / "tokenizer.json")


def test_text_without_tokens_is_an_error(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "to": 1}, unk_token="[UNK]"))
    (tmp_path / "tokenizer.json").write_text(engine.to_str())
    tokenizer = get_tokenizer(tmp_path)
    assert tokenizer.encode("to").tolist() == [1]
    with pytest.raises(TokenizerError, match="expected text that it has tokens for"):
        tokenizer.encode("from")
    with pytest.raises(TokenizerError, match="expected text that it has tokens for"):
        tokenizer.encode_batch(["to", "from"])


def test_too_many_ids(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    vocab = {"</s>": 0, "far": 2**24}
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="</s>"))
    (tmp_path / "tokenizer.json").write_text(engine.to_str())
    with pytest.raises(TokenizerError, match=r"at most 16777216 ids, got 16777217 in"):
        get_tokenizer(tmp_path)


def test_many_ids_are_uint32(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {word: index for index, word in enumerate(["</s>", *(f"w{index}" for index in range(65600))])}
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="</s>"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "tokenizer.json").write_text(engine.to_str())
    tokenizer = get_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 65601
    for tokens in (tokenizer.encode("w65599 w0"), tokenizer.encode_batch(["w65599 w0"])[0]):
        assert tokens.dtype == np.uint32
        assert tokens.tolist() == [65600, 1]
    # Text to shards to batches.
    (tmp_path / "text").write_text(" ".join(f"w{65599 - index % 300}" for index in range(2000)))
    dataset = prepare(tmp_path / "text", tmp_path / "data", tokenizer=tmp_path, val_fraction=0.1)
    assert dataset.manifest is not None
    assert dataset.manifest["dtype"] == "uint32"
    (shard,) = dataset.paths("train")
    assert np.fromfile(shard, "<i4", 3).tolist() == [20240801, 7, dataset.tokens["train"]]
    stored = read_shard(shard)
    assert stored.dtype == np.uint32
    assert stored[:4].tolist() == [tokenizer.end_of_text, 65600, 65599, 65598]
    loader = Loader([shard], 1, 3, vocab_size=65601, shuffle=False)
    batch, targets = loader.next_batch()
    assert batch.tolist() == [stored[:3].tolist()]
    assert targets.tolist() == [stored[1:4].tolist()]
    with pytest.raises(ShardError, match="expected tokens below the vocabulary of 65600, got 65600 at position 1"):
        Loader([shard], 1, 3, vocab_size=65600, shuffle=False).next_batch()
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    for dtype, error in (("uint16", "expected uint16 tokens as .* says, got uint32"), ("int8", "dtype 'int8'")):
        (tmp_path / "data" / "manifest.json").write_text(json.dumps({**manifest, "dtype": dtype}))
        with pytest.raises(DataError, match=error):
            open_dataset(tmp_path / "data")


def test_a_writer_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, "train", 9) as writer, pytest.raises(InvalidInputError, match="fit uint16, got 65536"):
        writer.append(np.array([1, 65536]))
    with ShardWriter(tmp_path, "val", 9, dtype=np.uint32) as writer:
        with pytest.raises(InvalidInputError, match="fit uint32, got -1"):
            writer.append(np.array([1, -1]))
        writer.append(np.array([1, 65536]))
    assert read_shard(tmp_path / "val_000000.bin").tolist() == [1, 65536]
    with pytest.raises(InvalidInputError, match="expected tokens as uint16 or uint32, got int64"):
        ShardWriter(tmp_path, "train", 9, dtype=np.int64)


# ---- cutting text ------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.sampled_from("helo wrd.\n\t\u3000é")), limit=st.integers(1, 12))
def test_cuts_change_no_token_where_there_is_a_space(small: Path, text: str, limit: int) -> None:
    parts = list(cut_text(text, limit))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= limit
    natural = all(not a[-1].isspace() and b[0].isspace() for a, b in itertools.pairwise(parts))
    if natural:
        tokenizer = get_tokenizer(small)
        joined = [token for part in parts for token in tokenizer.encode(part).tolist()]
        assert joined == tokenizer.encode(text).tolist()


def test_where_cuts_fall() -> None:
    assert find_cut("abc", 3) == 3
    assert find_cut("one two three", 9) == 7
    assert find_cut("one two\nthree", 10) == 3  # between words rather than at a line's end
    assert find_cut("世界\n世界", 4) == 2
    assert find_cut("x" * 10, 4) == 4
    assert find_cut("word " + "x" * 9000, 8000) == 4
