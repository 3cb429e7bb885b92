"""Text to shards to batches: formats, positions, every kind of bad file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blutrain.data import Loader, ShardWriter, open_dataset, prepare, read_shard
from blutrain.errors import DataError, InvalidInputError, ShardError


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


# ---- opening -----------------------------------------------------------------------------------------------------


def test_open_foreign_folder(tmp_path: Path) -> None:
    write_shards(tmp_path, [5, 6], "fineweb_train_")
    write_shards(tmp_path, [4], "fineweb_val_")
    dataset = open_dataset(tmp_path)
    assert dataset.tokens == {"train": 11, "val": 4}
    assert dataset.tokenizer is None
    with pytest.raises(DataError, match=r"manifest.json"):
        dataset.verify()


def test_fineweb_names_in_any_folder(tmp_path: Path) -> None:
    for name, length in (("train_000002", 5), ("train_000001", 7), ("val_000000", 3)):
        (tmp_path / f"fineweb_{name}.bin").write_bytes(
            header(20240520, 1, length) + np.full(length, length, "<u2").tobytes()
        )
    dataset = open_dataset(tmp_path)
    assert [path.name for path in dataset.paths("train")] == ["fineweb_train_000001.bin", "fineweb_train_000002.bin"]
    assert dataset.tokens == {"train": 12, "val": 3}
    assert read_shard(dataset.paths("val")[0]).tolist() == [3, 3, 3]


def test_a_shard_larger_than_2_gib(tmp_path: Path) -> None:
    length = 2**30 + 2**27 + 5
    path = tmp_path / "fineweb_train_000001.bin"
    with open(path, "wb") as file:
        file.write(header(20240520, 1, length))
        file.truncate(1024 + 2 * length)  # sparse: takes a few blocks of the disk
        file.seek(-20, os.SEEK_END)
        file.write(np.arange(50000, 50010, dtype="<u2").tobytes())
    assert path.stat().st_size > 2**31
    dataset = open_dataset(tmp_path)
    assert dataset.num_tokens("train") == length
    assert read_shard(path)[-10:].tolist() == list(range(50000, 50010))
    loader = Loader(dataset.paths("train"), 1, 4, vocab_size=50257, shuffle=False)
    state = loader.state()
    state[2] = loader.num_windows - 1
    loader.set_state(state)
    assert loader.position().offset * 2 > 2**31
    tokens, targets = loader.next_batch()
    assert (tokens.tolist(), targets.tolist()) == ([[50005, 50006, 50007, 50008]], [[50006, 50007, 50008, 50009]])
    assert loader.position().epoch == 1


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
    with pytest.raises(ShardError, match="for another seed: it has 5, this loader 6"):
        Loader(paths, 4, 3, vocab_size=256, seed=6).set_state(state)
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


def test_a_shard_that_is_truncated_while_in_use(tmp_path: Path) -> None:
    """Reading what is mapped beyond the end of a file would kill the process."""
    (path,) = write_shards(tmp_path, [100_000])
    loader = Loader([path], 4, 64, vocab_size=65536)
    loader.next_batch()
    with path.open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(ShardError, match="truncated while in use"):
        loader.next_batch()
    replaced = Loader(write_shards(tmp_path / "other", [100_000]), 4, 64, vocab_size=65536)
    next((tmp_path / "other").glob("*.bin")).unlink()
    for _ in range(10):  # the mapping keeps a file that is deleted
        replaced.next_batch()
