"""What no tokens are made of is told, counted and, where that is asked for, an error; marks and encodings of files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from vocabulary import write_vocabulary

from blutrain.cli import run_command
from blutrain.data import ByteTokenizer, Dataset, get_tokenizer, open_dataset, prepare, read_shard
from blutrain.data.left_out import LeftOut
from blutrain.errors import DataAccessError, DataError, InvalidInputError, TokenizerError

MARK = b"\xef\xbb\xbf"


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def documents(dataset: Dataset) -> list[str]:
    """Of all splits, training text first."""
    tokens = [ByteTokenizer().decode(read_shard(path)) for split in dataset.shards for path in dataset.shards[split]]
    return [text for shard in tokens for text in shard.split("<|endoftext|>")[1:]]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of two texts, of which one is named twice, and eight files that are none."""
    folder = tmp_path / "mixed"
    (folder / "sub").mkdir(parents=True)
    (folder / "good.txt").write_text("good text " * 9)
    (folder / "sub" / "more.txt").write_text("more text " * 9)
    (folder / "again.txt").symlink_to("good.txt")
    for number in range(4):
        (folder / f"binary{number}.png").write_bytes(b"\x89PNG\0")
    (folder / "empty.txt").touch()
    (folder / "sixteen.txt").write_bytes("text".encode("utf-16"))
    (folder / "sub" / "broken.txt").symlink_to("absent")
    (folder / "linked").symlink_to(folder / "sub")
    (folder / ".hidden").write_bytes(b"\0")
    write_lines(folder / "lines.jsonl", [{"text": text} for text in ("one", None, "two", "", "three")])
    return folder


COUNTS = {"binary": 4, "empty": 1, "encoding": 1, "special": 2, "no_text": 2}


def test_what_a_folder_holds_beside_text_is_told_and_counted(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = mixed.parent / "out"
    told: list[str] = []
    dataset = prepare(mixed, out, val_fraction=0.4, report=told.append)
    assert sorted(documents(dataset)) == ["good text " * 9, "more text " * 9, "one", "three", "two"]
    assert dataset.manifest is not None
    assert dataset.manifest["left_out"] == COUNTS
    assert len(told) == 5
    (binary,) = (line for line in told if "byte 0" in line)
    names = ", ".join(str(mixed / f"binary{number}.png") for number in range(3))
    assert binary == f"left out: 4 file(s) that are no text (a byte 0): {names}, ..."
    (records,) = (line for line in told if "record(s)" in line)
    assert records.endswith(f"{mixed}/lines.jsonl line 2, {mixed}/lines.jsonl line 4")
    assert run_command(["prepare", str(mixed), "--out", str(out), "--val-fraction", "0.4"]) == 0
    assert capsys.readouterr().err.splitlines() == told
    with pytest.raises(DataError, match=r"nothing to be left out with --strict, got 2 name\(s\) that are no file"):
        prepare(mixed, mixed.parent / "other", strict=True)
    patterns = ["*.png", "empty.txt", "sixteen.txt", "linked", "broken.txt"]
    with pytest.raises(DataError, match=r"--strict, got 2 record\(s\) without text .*lines\.jsonl line 2"):
        prepare(mixed, mixed.parent / "other", exclude=patterns, strict=True)
    assert sorted(os.listdir(mixed.parent)) == ["mixed", "out"]
    kept = prepare(mixed, mixed.parent / "other", exclude=[*patterns, "*.jsonl"], strict=True)
    assert kept.manifest is not None
    assert "left_out" not in kept.manifest


def test_a_corpus_of_nothing_says_what_was_left_out(mixed: Path) -> None:
    with pytest.raises(DataError, match=r"empty corpus: .*left out: 4 file\(s\) that are no text"):
        prepare(mixed, mixed.parent / "out", include=["*.png"])
    lines = write_lines(mixed.parent / "none.jsonl", [{"text": None}, {"text": ""}])
    with pytest.raises(DataError, match=r"got none in 1 file.*left out: 2 record\(s\) without text"):
        prepare(lines, mixed.parent / "out")


def test_a_folder_that_can_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def closed(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataAccessError, match=r"'Permission denied' for .*closed"):
        prepare(tmp_path, tmp_path / "out")


def test_left_out_survives_a_journal() -> None:
    first, second = LeftOut(), LeftOut()
    for number in range(5):
        first.add("no_text", f"line {number}")
    second.add("no_text", "line 9")
    second.add("empty", "a\nb")
    restored = LeftOut.from_json(json.loads(json.dumps(first.to_json())))
    restored.merge(second)
    assert restored.counts == {"no_text": 6, "empty": 1}
    assert list(restored.lines()) == ["6 record(s) without text (null or empty): line 0, line 1, line 2, ...",
                                      "1 empty file(s): 'a\\nb'"]  # fmt: skip
    assert not LeftOut.from_json({})


@pytest.mark.parametrize("change", [{"left_out": {"binary": -1}}, {"left_out": {"binary": 1.5}},
                                    {"left_out": {"binary": True}}, {"left_out": [["binary", 1]]},
                                    {"unknown_tokens": {"train": "3"}}, {"unknown_tokens": None}])  # fmt: skip
def test_counts_of_a_manifest_are_numbers(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "text").write_text("some text " * 9)
    dataset = prepare(tmp_path / "text", tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    path.write_text(json.dumps({**(dataset.manifest or {}), **change}))
    with pytest.raises(DataError, match=f"got TypeError: {next(iter(change))}"):
        open_dataset(path.parent)


# ---- marks and encodings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, tokenizer: str) -> None:
    texts = [f"hello world {number}" for number in range(9)]
    name = "bytes" if tokenizer == "bytes" else str(write_vocabulary(tmp_path / "vocabulary"))
    for folder, mark in (("marked", MARK), ("plain", b"")):
        (tmp_path / folder).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / folder / f"{number}.txt").write_bytes(mark + text.encode())
        (tmp_path / folder / "a.jsonl").write_bytes(mark + b'{"text": "hello"}\n{"text": "or"}\n')
        (tmp_path / folder / "b.json").write_bytes(mark + b'[{"text": "hell"}]')
        (tmp_path / folder / "one.only").write_bytes(mark + b"hello world " * 20)
    for names in (["."], ["one.only"]):  # split by documents, and a file at its end
        found = {}
        for folder in ("marked", "plain"):
            out = tmp_path / f"out-{folder}"
            sources = [tmp_path / folder / source for source in names]
            dataset = prepare(sources, out, tokenizer=name, val_fraction=0.2, force=True)
            found[folder] = {path.name: path.read_bytes() for path in sorted(out.glob("*.bin"))}
            assert dataset.manifest is not None
            found[folder]["documents"] = json.dumps(dataset.manifest["documents"]).encode()
        assert found["marked"] == found["plain"]


ENCODINGS = {"utf-16-le": "UTF-16 (little-endian)", "utf-16-be": "UTF-16 (big-endian)",
             "utf-32-le": "UTF-32 (little-endian)", "utf-32-be": "UTF-32 (big-endian)"}  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_another_encoding_is_named(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes('\ufeff{"text": "世界"}\n'.encode(encoding))
    with pytest.raises(DataError, match="in UTF-8, got ") as caught:
        prepare(path, tmp_path / "out")
    assert f"got {ENCODINGS[encoding]} (by its byte order mark) in {path}" in str(caught.value)


def test_another_encoding_without_a_byte_0_is_none_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeff世界".encode("utf-16-le"))
    with pytest.raises(DataError, match="UTF-16"):
        prepare(tmp_path / "a.txt", tmp_path / "out")


# ---- JSON --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([{"text": "one"}, {"text": "two", "id": 3}, {"text": None}, "three", ""], ["one", "two", "three"]),
        ({"text": "all of it", "id": 1}, ["all of it"]),
        ("only a text", ["only a text"]),
        ([{"text": "x" * 600_000}, "y"], ["x" * 600_000, "y"]),  # longer than a piece
    ],
)
def test_json_is_read_as_records(tmp_path: Path, content: Any, expected: list[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(content, indent=1))
    dataset = prepare(tmp_path / "a.json", tmp_path / "out", val_fraction=0)
    assert documents(dataset) == expected
    assert dataset.manifest is not None
    empty = len(content) - len(expected) if isinstance(content, list) else 0
    assert dataset.manifest.get("left_out", {}) == ({"no_text": empty} if empty else {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"name": "package"}', r"expected 'text' in .*a\.json, got name; .* or leave the file out with --exclude 'a"),
        (b'[{"text": "a"}, 3]', r"expected an object in JSON in .*a\.json item 2, got int"),
        (b'[{"text": 5}]', r"expected text as 'text' in .*item 1, got int"),
        (b'{"text": "a"}\n{"text": "b"}\n', r"Extra data.*name it \.jsonl if every line is an object"),
        (b"[" * 100_000, "RecursionError"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b'["\xff"]', "UnicodeDecodeError"),
    ],
)
def test_bad_json(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, tmp_path / "out")


def test_json_is_not_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blutrain.data.records.MAX_RECORD", 100)
    (tmp_path / "a.json").write_text(json.dumps(["long" * 50]))
    with pytest.raises(DataError, match=r"at most 100 bytes, got more in .*a\.json: make JSONL of it"):
        prepare(tmp_path / "a.json", tmp_path / "out")


# ---- text that the tokenizer does not know -----------------------------------------------------------------------


def words(folder: Path, model: str) -> Path:
    """A tokenizer that knows three words."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    vocab = {"</s>": 0, "[UNK]": 1, "hello": 2, "world": 3, "or": 4}
    engine = tokenizers.Tokenizer({
        "words": lambda: tokenizers.models.WordLevel(vocab, unk_token="[UNK]"),
        "pieces": lambda: tokenizers.models.WordPiece(vocab, unk_token="[UNK]"),
        "unigram": lambda: tokenizers.models.Unigram([(token, -1.0) for token in vocab], unk_id=1),
        "bpe": lambda: tokenizers.models.BPE({**{token: 10 - number for number, token in enumerate("dehlorw")}, **{
            token: number for number, token in enumerate(("</s>", "[UNK]", "he", "lo"))}}, [("h", "e"), ("l", "o")],
            unk_token="[UNK]"),
    }[model]())  # fmt: skip
    engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    engine.save(str(folder / "words.json"))
    return folder / "words.json"


@pytest.mark.parametrize("model", ["words", "pieces", "unigram", "bpe"])
def test_text_that_the_tokenizer_does_not_know(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = words(tmp_path, model)
    path = tmp_path / "text"
    path.write_text("zzz " * 100)
    with pytest.raises(TokenizerError, match=r"that knows the text, got (\d+) of \1 tokens \(1e\+02%\)|\(100%\)"):
        prepare(path, tmp_path / "out", tokenizer=tokenizer)
    assert not (tmp_path / "out").exists()
    path.write_text("hello world " * 100 + "z\n")
    dataset = prepare(path, tmp_path / "out", tokenizer=tokenizer, val_fraction=0)
    assert dataset.manifest is not None
    tokens = dataset.num_tokens("train") - 1
    assert dataset.manifest["unknown_tokens"] == {"train": 1, "val": 0}
    command = ["prepare", str(path), "--out", str(tmp_path / "out"), "--tokenizer", str(tokenizer)]
    command += ["--val-fraction", "0"]
    assert run_command(command) == 0
    assert capsys.readouterr().err == f"unknown to the tokenizer: 1 of {tokens} tokens ({100 / tokens:.2g}%)\n"
    assert run_command([*command, "--max-unknown", "0"]) == 2
    assert "allow it with a --max-unknown above it" in capsys.readouterr().err
    path.write_text("zzz " * 100)
    everything = prepare(path, tmp_path / "all", tokenizer=tokenizer, max_unknown=1)
    assert everything.manifest is not None
    assert sum(everything.manifest["unknown_tokens"].values()) == sum(everything.tokens.values()) - 2
    with pytest.raises(InvalidInputError, match="max_unknown"):
        prepare(path, tmp_path / "all", max_unknown=1.5)


def test_known_text_has_no_count_of_unknown_tokens(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello world " * 100)
    for tokenizer in (words(tmp_path, "words"), write_vocabulary(tmp_path / "vocabulary"), "bytes"):
        dataset = prepare(tmp_path / "text", tmp_path / "out", tokenizer=tokenizer, force=True)
        assert "unknown_tokens" not in (dataset.manifest or {})


def test_unknown_text_is_told_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blutrain.data.preparation._FIRST_TOKENS", 100)
    monkeypatch.setattr("blutrain.data.chunks.CHUNK", 1000)
    texts = ["zzz " * 300, *["hello " * 300] * 50]  # 2% in all
    lines = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    with pytest.raises(TokenizerError, match="300 of 300 tokens"):
        prepare(lines, tmp_path / "out", tokenizer=words(tmp_path, "words"))


def test_a_tokenizer_that_drops_all_text_is_an_error(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    engine = tokenizers.Tokenizer(tokenizers.models.BPE({"</s>": 0, "a": 1}, []))  # drops what it does not know
    engine.save(str(tmp_path / "letters.json"))
    (tmp_path / "text").write_text("zzz " * 100)
    with pytest.raises(TokenizerError, match="got no token of it from 'tokenizers' with 2 ids"):
        prepare(tmp_path / "text", tmp_path / "out", tokenizer=tmp_path / "letters.json")
    assert get_tokenizer(tmp_path / "letters.json").encode("zzz").tolist() == []
