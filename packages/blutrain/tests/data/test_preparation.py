"""Text to shards: the same bytes whatever happens, every kind of bad source."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from blutrain.data import ByteTokenizer, prepare, read_shard
from blutrain.data.sources import find_sources
from blutrain.errors import DataAccessError, DataError, InvalidInputError, TokenizerError


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
    with pytest.raises(DataError, match="another process prepares"):
        prepare(tmp_path / "text", tmp_path / "out")
    os.close(descriptor)
    dataset = prepare(tmp_path / "text", tmp_path / "out")
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "out").rename(tmp_path / ".out.replaced")  # killed between the two renames
    assert prepare(tmp_path / "text", tmp_path / "out").manifest == dataset.manifest
    assert not list(tmp_path.glob(".*"))
