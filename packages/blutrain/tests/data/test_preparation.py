"""Text to shards: the same bytes whatever happens, every kind of bad source."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import numpy as np
import pytest
from vocabulary import write_vocabulary

from blutrain.cli import run_command
from blutrain.data import ByteTokenizer, get_tokenizer, prepare, read_shard
from blutrain.data.sources import find_sources
from blutrain.errors import DataAccessError, DataError, InvalidInputError, TokenizerError
from blutrain.new_folder import PlaceInUseError


def test_prepare_is_lossless_and_deterministic(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "sub").mkdir(parents=True)
    texts = {f"sub/{i:03d}.txt": f"document {i}\n" * (i + 1) for i in range(60)}
    for name, text in texts.items():
        (corpus / name).write_text(text)
    (corpus / "binary.bin").write_bytes(b"a\0b")
    (corpus / "empty.txt").write_bytes(b"")
    (corpus / "__pycache__").mkdir()
    (corpus / "__pycache__" / "x.txt").write_text("cached")
    first = prepare([corpus], tmp_path / "a", shard_tokens=500)
    second = prepare([corpus], tmp_path / "b", shard_tokens=500)
    names = sorted(os.listdir(tmp_path / "a"))
    assert names == sorted(os.listdir(tmp_path / "b"))
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert len(first.paths("train")) > 1
    stream = {split: np.concatenate([read_shard(path) for path in first.paths(split)]) for split in ("train", "val")}
    documents = {split: bytes(tokens.astype(np.uint8)).split(b"\0")[1:] for split, tokens in stream.items()}
    assert len(documents["val"]) == 3  # every 20th of 60
    assert sorted(documents["train"] + documents["val"]) == sorted(text.encode() for text in texts.values())
    assert second.tokens == {split: len(tokens) for split, tokens in stream.items()}
    second.verify()
    assert second.manifest is not None
    assert second.manifest["documents"] == {"train": 57, "val": 3}


def test_prepare_splits_a_single_file_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("0123456789" * 10)
    dataset = prepare([tmp_path / "text"], tmp_path / "out", val_fraction=0.1)
    assert ByteTokenizer().decode(read_shard(dataset.paths("val")[0])) == "<|endoftext|>0123456789"
    assert dataset.num_tokens("train") == 91
    whole = prepare([tmp_path / "text"], tmp_path / "out", val_fraction=0, force=True)
    assert whole.num_tokens("train") == 101
    with pytest.raises(DataError, match="val-fraction"):
        whole.num_tokens("val")


def test_find_sources_orders_and_filters(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "c.txt", "skip/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    names = [file.path.name for file in find_sources([tmp_path], include=["*.py"], exclude=["skip"])]
    assert names == ["a.py", "b.py"]
    names = [file.path.name for file in find_sources([tmp_path / "c.txt", str(tmp_path / "**/*.py")])]
    assert names == ["c.txt", "a.py", "b.py", "d.py"]
    assert len(find_sources([tmp_path, tmp_path / "a.py"])) == 4  # each file once


def test_prepare_bad_input(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a\0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("some text " * 9)
    with pytest.raises(DataError, match="byte 0"):
        prepare([tmp_path / "binary"], tmp_path / "out")
    with pytest.raises(DataError, match="empty corpus"):
        prepare([tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(DataError, match="absent"):
        prepare([tmp_path / "absent"], tmp_path / "out")
    with pytest.raises(DataError, match="at least 1"):
        prepare([], tmp_path / "out")
    with pytest.raises(TokenizerError):
        prepare([tmp_path / "text"], tmp_path / "out", tokenizer="words")
    with pytest.raises(InvalidInputError, match="val_fraction"):
        prepare([tmp_path / "text"], tmp_path / "out", val_fraction=1.0)
    with pytest.raises(InvalidInputError, match="shard_tokens"):
        prepare([tmp_path / "text"], tmp_path / "out", shard_tokens=0)
    with pytest.raises(DataError, match="something else"):
        prepare([tmp_path / "text"], tmp_path)
    prepare([tmp_path / "text"], tmp_path / "out")
    prepare([tmp_path / "text"], tmp_path / "out")  # the same again is no mistake
    (tmp_path / "text").write_text("other text " * 9)
    with pytest.raises(DataError, match="--force"):
        prepare([tmp_path / "text"], tmp_path / "out")
    assert not list(tmp_path.glob(".*"))  # nothing half-made is left behind


def test_prepare_on_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("some text " * 9)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataAccessError, match=r"to write .*out, got 'No space.*free space") as caught:
        prepare([tmp_path / "text"], tmp_path / "out")
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == 28
    assert sorted(os.listdir(tmp_path)) == ["text"]


def test_prepare_takes_one_path_and_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 9)
    one = prepare(tmp_path / "text", tmp_path / "one")
    assert prepare(str(tmp_path / "text"), tmp_path / "two").manifest == one.manifest
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="device or pipe"):
        prepare(tmp_path / "pipe", tmp_path / "three")


def test_prepare_removes_what_killed_processes_left(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 9)
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / "x").touch()
    prepare(tmp_path / "text", tmp_path / "other")
    assert partial.exists()
    descriptor = os.open(partial, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(PlaceInUseError, match="another process writes: wait for it"):
        prepare(tmp_path / "text", tmp_path / "out")
    os.close(descriptor)
    dataset = prepare(tmp_path / "text", tmp_path / "out")
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "out").rename(tmp_path / ".out.replaced")  # killed between the two renames
    assert prepare(tmp_path / "text", tmp_path / "out").manifest == dataset.manifest
    assert not list(tmp_path.glob(".*"))


def write_lines(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return path


@pytest.mark.parametrize("kind", ["bytes", "bpe", "tokenizers"])
def test_every_document_of_every_format_once(tmp_path: Path, kind: str) -> None:
    texts = [f"hello number {number}, world" for number in range(50)]
    write_lines(tmp_path / "a.jsonl", texts, "body")
    (tmp_path / "b.txt").write_text("hello from a file")
    tokenizer = kind if kind == "bytes" else str(write_vocabulary(tmp_path / "vocabulary"))
    if kind == "tokenizers":
        tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
        engine = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({"[UNK]": 0, "</s>": 1, "hello": 2}, unk_token="[UNK]")
        )
        engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        engine.save(str(tmp_path / "words.json"))
        tokenizer = str(tmp_path / "words.json")
    dataset = prepare(
        [tmp_path / "a.jsonl", tmp_path / "b.txt"], tmp_path / "out", tokenizer=tokenizer, field="body", max_unknown=1
    )
    made_with = get_tokenizer(tokenizer)
    separator = [made_with.end_of_text]
    expected: dict[str, list[int]] = {"train": [], "val": []}
    for index, text in enumerate([*texts, "hello from a file"]):
        expected["val" if index % 20 == 19 else "train"] += separator + made_with.encode(text).tolist()
    for split, tokens in expected.items():
        assert np.concatenate([read_shard(path) for path in dataset.paths(split)]).tolist() == tokens
    assert dataset.manifest is not None
    assert dataset.manifest["documents"] == {"train": 49, "val": 2}
    assert sum(dataset.manifest["text_bytes"].values()) == sum(map(len, texts)) + 17
    assert dataset.tokenizer == made_with.identity
    if kind != "bytes":
        assert dataset.tokenizer_path is not None
        assert get_tokenizer(dataset.tokenizer_path).identity == made_with.identity


def test_a_single_text_is_split_between_characters(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("世界" * 50)
    for fraction in (0.1, 0.101, 0.102, 0.5):
        dataset = prepare(tmp_path / "text", tmp_path / "out", val_fraction=fraction, force=True)
        text = {split: ByteTokenizer().decode(read_shard(dataset.paths(split)[0])[1:]) for split in ("train", "val")}
        assert text["train"] + text["val"] == "世界" * 50
        assert text["val"]


def test_an_empty_split_is_an_error_with_its_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = write_lines(tmp_path / "a.jsonl", ["one", "two", "three"])
    with pytest.raises(DataError, match=r"got none of 3 document\(s\) .* at --val-fraction 0\.05: raise it"):
        prepare(lines, tmp_path / "out")
    (tmp_path / "text").write_text("short")
    assert run_command(["prepare", str(tmp_path / "text"), "--out", str(tmp_path / "out")]) == 2
    assert "or take --val-fraction 0 and train with train.eval_every=0" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"expected training text, got none in 1 file"):
        prepare(write_lines(tmp_path / "b.jsonl", ["", ""]), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "b.jsonl", "text"]
    assert prepare(lines, tmp_path / "out", val_fraction=0.34).tokens == {"train": 8, "val": 6}


def test_what_can_not_be_encoded_is_named(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocabulary")
    with pytest.raises(TokenizerError, match=r"got byte 0 at position 1; .*\(in .*a\.jsonl line 2\)"):
        prepare(write_lines(tmp_path / "a.jsonl", ["good", "a\0b"]), tmp_path / "out")
    for half in ("\ud800", "\udc80"):
        with pytest.raises(DataError, match=rf"in .*a\.jsonl line 1, got half of a surrogate pair, U\+{ord(half):X}"):
            prepare(write_lines(tmp_path / "a.jsonl", [half]), tmp_path / "out")
    (tmp_path / "text").write_bytes(b"good text " * 50000 + b"\xe9 and more " * 9)
    with pytest.raises(
        DataError,
        match=r"byte 0xe9 at position 500000 of .*text: convert it, or leave it out.*, or take --tokenizer bytes",
    ):
        prepare(tmp_path / "text", tmp_path / "out", tokenizer=vocabulary)
    assert prepare(tmp_path / "text", tmp_path / "out").num_tokens("train") > 400000


def test_progress_goes_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 100_000)
    seen: list[tuple[int, int]] = []
    prepare(tmp_path / "text", tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert len(seen) >= 4
    assert seen == sorted(seen)
    assert seen[-1] == (1_000_000, 1_000_000)
    with pytest.raises(InvalidInputError, match="workers"):
        prepare(tmp_path / "text", tmp_path / "out", workers=-1)


def test_what_is_written_inside_a_source_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("some text " * 9)
    (tmp_path / "other.jsonl").write_text('{"text": "a line"}\n')
    first = prepare(".", "out", val_fraction=0.5)
    for sources in (".", "*", "**/*", [tmp_path]):
        again = prepare(sources, "out", val_fraction=0.5)  # the same again is no mistake
        assert again.manifest == first.manifest
    assert first.manifest is not None
    assert first.manifest["documents"] == {"train": 1, "val": 1}


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("some text " * 9)
    with pytest.raises(DataError, match=r"got '': name the current folder as \."):
        prepare(["", "text"], "out")
    with pytest.raises(InvalidInputError, match=rf"got the current folder, {tmp_path}: name one inside it"):
        prepare("text", "")
