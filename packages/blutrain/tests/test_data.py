"""Text to shards to batches: formats, positions, every kind of bad file."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blutrain.data import ByteTokenizer, Loader, ShardWriter, get_tokenizer, open_dataset, prepare, read_shard
from blutrain.data.preparation import find_documents
from blutrain.errors import DataAccessError, DataError, InvalidInputError, ShardError, TokenizerError


def write_shards(folder: Path, lengths: list[int], split: str = "train") -> list[Path]:
    """Shards whose tokens count up from 0 over all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, begin = [], 0
    for index, length in enumerate(lengths):
        with ShardWriter(folder, f"{split}{index}", length) as writer:
            writer.append(np.arange(begin, begin + length).astype(np.uint16))
        paths += [path for path, _ in writer.shards]
        begin += length
    return paths


# ---- tokenizer ---------------------------------------------------------------------------------------------------


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


# ---- prepare -----------------------------------------------------------------------------------------------------


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


def test_find_documents_orders_and_filters(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "c.txt", "skip/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    names = [document.path.name for document in find_documents([tmp_path], include=["*.py"], exclude=["skip"])]
    assert names == ["a.py", "b.py"]
    names = [document.path.name for document in find_documents([tmp_path / "c.txt", str(tmp_path / "**/*.py")])]
    assert names == ["c.txt", "a.py", "b.py", "d.py"]
    assert len(find_documents([tmp_path, tmp_path / "a.py"])) == 4  # each file once


def test_prepare_bad_input(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a\0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("text")
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
    (tmp_path / "text").write_text("other")
    with pytest.raises(DataError, match="--force"):
        prepare([tmp_path / "text"], tmp_path / "out")
    assert not list(tmp_path.glob(".*"))  # nothing half-made is left behind


def test_prepare_on_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("text")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataAccessError, match=r"to write .*out, got 'No space.*free space") as caught:
        prepare([tmp_path / "text"], tmp_path / "out")
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == 28
    assert sorted(os.listdir(tmp_path)) == ["text"]


def test_prepare_takes_one_path_and_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    one = prepare(tmp_path / "text", tmp_path / "one")
    assert prepare(str(tmp_path / "text"), tmp_path / "two").manifest == one.manifest
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="device or pipe"):
        prepare(tmp_path / "pipe", tmp_path / "three")


def test_prepare_removes_what_killed_processes_left(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / ".out.partial-1").mkdir()  # the process with this number lives, but holds no lock
    (tmp_path / ".out.partial-1" / "x").touch()
    (tmp_path / ".out.partial-2").mkdir()
    prepare(tmp_path / "text", tmp_path / "other")
    assert (tmp_path / ".out.partial-1").exists()
    descriptor = os.open(tmp_path / ".out.partial-2", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    prepare(tmp_path / "text", tmp_path / "out")
    assert [path.name for path in tmp_path.glob(".*")] == [".out.partial-2"]
    os.close(descriptor)
    (tmp_path / "out").rename(tmp_path / ".out.replaced-7")  # killed between the two renames
    prepare(tmp_path / "text", tmp_path / "out")
    assert not list(tmp_path.glob(".*"))


def test_bytes_of_a_command_line_are_kept_and_half_a_pair_is_an_error() -> None:
    assert ByteTokenizer().encode("\udcff\udcfeä").tolist() == [0xFF, 0xFE, 0xC3, 0xA4]
    with pytest.raises(TokenizerError, match=r"U\+D800 at position 1"):
        ByteTokenizer().encode("a\ud800")


# ---- opening -----------------------------------------------------------------------------------------------------


def test_open_foreign_folder(tmp_path: Path) -> None:
    write_shards(tmp_path, [5, 6], "fineweb_train_")
    write_shards(tmp_path, [4], "fineweb_val_")
    dataset = open_dataset(tmp_path)
    assert dataset.tokens == {"train": 11, "val": 4}
    assert dataset.tokenizer is None
    with pytest.raises(DataError, match=r"manifest.json"):
        dataset.verify()


def test_open_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="blutrain prepare"):
        open_dataset(tmp_path / "absent")
    with pytest.raises(DataError, match=r"data\.path"):
        open_dataset("")
    with pytest.raises(DataError, match="neither"):
        open_dataset(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="manifest"):
        open_dataset(tmp_path)
    (tmp_path / "text").write_text("some text " * 50)
    dataset = prepare([tmp_path / "text"], tmp_path / "out")
    shard = dataset.paths("train")[0]
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(ShardError, match="SHA-256"):
        open_dataset(tmp_path / "out").verify()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["shards"][0]["tokens"] += 1
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match="expected 477 tokens"):
        open_dataset(tmp_path / "out")
    shard.unlink()
    with pytest.raises(ShardError, match="no file"):
        open_dataset(tmp_path / "out")


def header(*values: int) -> bytes:
    ints = np.zeros(256, "<i4")
    ints[: len(values)] = values
    return ints.tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated or no shard"),
        (b"x" * 1023, "truncated or no shard"),
        (b"plain text " * 200, "no token shard"),
        (header(20240520, 2, 1) + b"\1\0", "version 1"),
        (header(20240520, 1, 0), "at least 1 token"),
        (header(20240520, 1, -5), "at least 1 token"),
        (header(20240520, 1, 3) + b"\1\0" * 2, "truncated"),
        (header(20240520, 1, 3) + b"\1\0" * 4, "damaged"),
    ],
)
def test_bad_shards(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(content)
    for use in (read_shard, lambda path: Loader([path], 1, 1, vocab_size=256), lambda path: open_dataset(path.parent)):
        with pytest.raises(ShardError, match=message) as caught:
            use(path)
        assert str(path) in str(caught.value)


# ---- loader ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    context=st.integers(1, 12),
    batch=st.integers(1, 5),
    world=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_loader_windows(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    context: int,
    batch: int,
    world: int,
    shuffle: bool,
    seed: int,
) -> None:
    paths = write_shards(tmp_path_factory.mktemp("shards"), lengths)
    total = sum(lengths)
    if total <= context:
        with pytest.raises(ShardError, match="expected more than"):
            Loader(paths, batch, context, vocab_size=256)
        return
    loaders = [
        Loader(paths, batch, context, vocab_size=256, seed=seed, shuffle=shuffle, rank=rank, world=world)
        for rank in range(world)
    ]
    windows = (total - 1) // context
    rows = []
    for _ in range(2 * windows // (batch * world) + 2):
        for loader in loaders:
            tokens, targets = loader.next_batch()
            assert (targets == tokens + 1).all()
            assert (np.diff(tokens, axis=1) == 1).all()
            rows += list(tokens[:, 0])
    epochs = [rows[windows * i : windows * (i + 1)] for i in range(2)]
    for epoch in epochs:  # every window once
        assert (np.diff(sorted(epoch)) == context).all()
        assert len(epoch) == windows
    if not shuffle:
        assert epochs[0] == epochs[1] == list(range(0, windows * context, context))


def test_shuffle_differs_by_epoch_and_seed(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [1000])

    def order(seed: int) -> list[list[int]]:
        loader = Loader(paths, 333, 3, vocab_size=1000, seed=seed)
        return [list(loader.next_batch()[0][:, 0]) for _ in range(2)]

    assert order(1) == order(1)
    assert order(1)[0] != order(1)[1]
    assert order(1)[0] != order(2)[0]
    moved = np.corrcoef(np.arange(333), order(1)[0])[0, 1]
    assert abs(moved) < 0.25  # 4.5 standard deviations of the correlation of 333 shuffled values


def test_one_pass_covers_every_target_once(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [10, 13])
    loader = Loader(paths, 3, 4, vocab_size=256, one_pass=True)
    assert loader.num_batches == 2  # 22 targets: 5 windows of 4 and one of 2
    batches = [loader.next_batch() for _ in range(3)]
    targets = np.concatenate([targets.ravel() for _, targets in batches])
    assert list(targets[targets != -100]) == list(range(1, 23))
    assert (batches[2][1] == -100).all()
    assert (batches[2][0] == 0).all()


def test_state_resumes_exactly_with_another_batch(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [50, 51])
    loader = Loader(paths, 4, 3, vocab_size=256, seed=5)
    for _ in range(9):  # over the end of the epoch of 33 windows
        loader.next_batch()
    state = loader.state()
    assert loader.position().epoch == 1
    assert loader.position().window == 3
    expected = np.concatenate([loader.next_batch()[0] for _ in range(2)])
    other = Loader(paths, 2, 3, vocab_size=256, seed=5)
    other.set_state(state)
    assert (np.concatenate([other.next_batch()[0] for _ in range(4)]) == expected).all()
    for wrong in (
        Loader(paths, 4, 3, vocab_size=256, seed=6),
        Loader(paths, 4, 5, vocab_size=256, seed=5),
        Loader(paths[:1], 4, 3, vocab_size=256, seed=5),
        Loader(paths, 4, 3, vocab_size=256, seed=5, shuffle=False),
    ):
        with pytest.raises(ShardError, match="saved position"):
            wrong.set_state(state)
    state[2] = 33
    with pytest.raises(ShardError, match="window < 33"):
        loader.set_state(state)


def test_tokens_beyond_the_vocabulary(tmp_path: Path) -> None:
    loader = Loader(write_shards(tmp_path, [9]), 1, 4, vocab_size=8, shuffle=False)
    loader.next_batch()
    before = loader.state()
    with pytest.raises(ShardError, match="got 8 at position 8; it was prepared with another tokenizer"):
        loader.next_batch()
    assert (loader.state() == before).all()
    assert "another tokenizer" in loader.error()


def test_loader_as_a_native_source(tmp_path: Path) -> None:
    import ctypes

    paths = write_shards(tmp_path, [40])
    expected, loader = (Loader(paths, 2, 3, vocab_size=256, seed=1) for _ in range(2))
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32)
    tokens, targets = np.empty((2, 3), np.int32), np.empty((2, 3), np.int32)
    slots = (ctypes.c_void_p * 2)(tokens.ctypes.data, targets.ctypes.data)
    assert function(loader.next_function)(loader.context, slots, 2) == 0
    assert (tokens == expected.next_batch()[0]).all()
    assert function(loader.next_function)(loader.context, slots, 1) == 1
    assert "2 slots" in loader.error()


def test_no_shards() -> None:
    with pytest.raises(InvalidInputError, match="at least 1 shard"):
        Loader([], 1, 1, vocab_size=2)
