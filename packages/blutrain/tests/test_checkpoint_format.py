"""The file: what goes in comes out, the safetensors library reads it, and no wrong byte or header gets through."""

from __future__ import annotations

import json
import random
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from checkpoint_faults import UnsyncedFiles
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blutrain.checkpoint import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointTypeError,
    CheckpointValueError,
)
from blutrain.checkpoint import format as layout
from blutrain.checkpoint.stream import load_file, read_header, verify_file, write_file

FILES = UnsyncedFiles()
DTYPES = [
    np.dtype(code) for code in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", ">f4", ">i8")
]


def write(path: Path, tensors: dict[str, Any], meta: dict[str, Any] | None = None, **options: Any) -> layout.Header:
    return write_file(
        FILES, path, tensors, meta or {}, options.get("algorithm", "sha256"), options.get("num_threads", 2)
    )


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    tensors, header = load_file(FILES, path, 2)
    return tensors, header.meta


def same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays are equal, NaN by NaN and zero sign by zero sign."""
    native = right.dtype.newbyteorder("=")
    return left.dtype == native and left.shape == right.shape and left.tobytes() == right.astype(native).tobytes()


def arrays() -> st.SearchStrategy[np.ndarray]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    plain = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
    views = [lambda a: a, lambda a: a.T, lambda a: a[..., ::-1] if a.ndim else a, lambda a: a[::2] if a.ndim else a]
    return st.builds(lambda array, view: view(array), plain, st.sampled_from(views))


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda name: name != "__metadata__")
META_NAMES = NAMES.filter(lambda name: not name.startswith(("digest.", "blutrain.")))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    tensors=st.dictionaries(NAMES, arrays(), max_size=5),
    meta=st.dictionaries(META_NAMES, JSON, max_size=4),
    algorithm=st.sampled_from(sorted(layout.ALGORITHMS)),
)
def test_round_trip_here_and_through_the_safetensors_library(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray], meta: dict[str, Any], algorithm: str
) -> None:
    path = tmp_path_factory.mktemp("round") / "file.safetensors"
    written = write(path, tensors, meta, algorithm=algorithm)
    assert path.stat().st_size == written.file_size
    found, found_meta = load(path)
    assert found_meta == meta
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert same_bytes(found[name], array)
        assert found[name].flags.aligned
        assert found[name].flags.c_contiguous
    assert verify_file(FILES, path, 2) == written == read_header(FILES, path)
    peer = safetensors.numpy.load_file(path)
    assert peer.keys() == tensors.keys()
    assert all(same_bytes(peer[name], array) for name, array in tensors.items())
    with safetensors.safe_open(path, framework="numpy") as opened:
        strings = opened.metadata()
    assert {key: json.loads(strings[key]) for key in meta} == meta
    assert all(strings[f"digest.{name}"].startswith(f"{algorithm}:") for name in tensors)


def test_numbers_that_json_finds_hard_come_back(tmp_path: Path) -> None:
    meta = {"inf": [float("inf"), float("-inf")], "small": 5e-324, "third": 1 / 3, "large": 2**63, "tuple": (1, (2,))}
    write(tmp_path / "file", {}, {**meta, "nan": {"x": float("nan")}})
    _, found = load(tmp_path / "file")
    assert str(found.pop("nan")) == "{'x': nan}"
    assert found == {**meta, "tuple": [1, [2]]}  # JSON has no tuples


def test_loaded_arrays_are_views_of_the_file_that_never_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, {"a": np.arange(1000, dtype=np.float32), "b": np.arange(5)})
    tensors, _ = load(path)
    assert not any(array.flags.owndata for array in tensors.values())
    before = path.read_bytes()
    tensors["a"][:] = 7
    assert path.read_bytes() == before
    path.unlink()
    assert tensors["b"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_tensor_larger_than_a_chunk(tmp_path: Path, num_threads: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, size=9_000_001, dtype=np.uint8)
    write(tmp_path / "file", {"large": array, "strided": array[::3]}, num_threads=num_threads)
    verify_file(FILES, tmp_path / "file", num_threads)
    tensors, _ = load(tmp_path / "file")
    assert np.array_equal(tensors["large"], array)
    assert np.array_equal(tensors["strided"], array[::3])


def small_file(path: Path) -> bytes:
    """Writes a checkpoint of some 900 bytes and returns them."""
    write(path, {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "rng": np.arange(2)}, {"step": 7})
    return path.read_bytes()


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = small_file(path)
    chance = random.Random(0)
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointFormatError, match="file"):
            verify_file(FILES, path, 1)
        with pytest.raises(CheckpointFormatError):
            load(path)


def test_every_truncation_and_anything_appended_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = small_file(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointFormatError, match=r"truncated|not a checkpoint"):
            load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointFormatError, match="something was appended"):
        load(path)


def test_two_tensors_that_changed_places_are_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    header = write(path, {"a": np.zeros(4, np.float32), "b": np.ones(4, np.float32)})
    content = bytearray(path.read_bytes())
    a, b = (slice(entry.begin, entry.end) for entry in header.entries)
    content[a], content[b] = content[b], content[a]
    path.write_bytes(content)
    with pytest.raises(CheckpointDigestError, match="tensor 'a' is damaged"):
        load(path)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200), length=st.none() | st.integers(0, 2**64 - 1), brace=st.booleans())
def test_arbitrary_bytes_are_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, length: int | None, brace: bool
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    length = len(content) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + (b"{" if brace else b"") + content)
    with pytest.raises(CheckpointFormatError, match=r"not a checkpoint|truncated"):
        load(path)


def forge(path: Path, tree: dict[str, Any] | str, data: bytes = b"", drop: tuple[str, ...] = ()) -> None:
    """Writes a file with any header but a right header digest: what only somebody who means it can make."""
    blank = " " * len("sha256:" + "0" * 64)
    if isinstance(tree, dict):
        metadata = {"blutrain.header_digest": blank, "blutrain.format": "1"}
        metadata |= {f"digest.{name}": "sha256:" + "0" * 64 for name in tree if name != "__metadata__"}
        metadata |= tree.pop("__metadata__", {})
        for key in drop:
            del metadata[key]
        tree = json.dumps({"__metadata__": metadata, **tree}, separators=(",", ":"))
    text = tree.encode()
    head = len(text).to_bytes(8, "little") + text
    digest = layout.digest_text("sha256", memoryview(head)).encode()
    path.write_bytes(head.replace(blank.encode(), digest, 1) + data)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def test_the_forger_can_make_a_header_that_passes(tmp_path: Path) -> None:
    forge(tmp_path / "file", {"a": entry()}, bytes(8))
    assert read_header(FILES, tmp_path / "file").entries[0].shape == (2,)


CONTRADICTIONS: dict[str, tuple[Any, bytes, str]] = {
    "overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "overlaps"),
    "same place": ({"a": entry(), "b": entry()}, bytes(8), "overlaps"),
    "gap": ({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20), "gap"),
    "gap at the start": ({"a": entry(offsets=(4, 12))}, bytes(12), "gap"),
    "backwards": ({"a": entry(offsets=(8, 0))}, bytes(8), "expected 8 bytes"),
    "too short for the shape": ({"a": entry(shape=(3,))}, bytes(8), "expected 12 bytes"),
    "beyond the end": ({"a": entry(shape=(4,), offsets=(0, 16))}, bytes(8), "truncated"),
    "far beyond the end": ({"a": entry(shape=(2**60,), offsets=(0, 2**62))}, bytes(8), "truncated"),
    "shape overflows": ({"a": entry(shape=(2**40, 2**40), offsets=(0, 0))}, b"", "shape"),
    "shape of nothing overflows": ({"a": entry(shape=(0, 2**62, 2**62), offsets=(0, 0))}, b"", "shape"),
    "negative size": ({"a": entry(shape=(-2,))}, bytes(8), "shape"),
    "size of true": ({"a": entry(shape=(True,), offsets=(0, 4))}, bytes(4), "shape"),
    "size of 2.0": ({"a": entry(shape=(2.0,))}, bytes(8), "shape"),
    "33 dimensions": ({"a": entry(shape=(1,) * 33, offsets=(0, 4))}, bytes(4), "shape"),
    "negative offset": ({"a": entry(offsets=(-8, 0))}, bytes(8), "data_offsets"),
    "one offset": ({"a": entry(offsets=(0,))}, bytes(8), "data_offsets"),
    "offsets of text": ({"a": entry(offsets="08")}, bytes(8), "data_offsets"),
    "unknown dtype": ({"a": entry(dtype="F8_E4M3", offsets=(0, 2))}, bytes(2), "dtype F64"),
    "dtype of bf16": ({"a": entry(dtype="BF16", offsets=(0, 4))}, bytes(4), "dtype F64"),
    "dtype of a list": ({"a": entry(dtype=["F32"])}, bytes(8), "dtype F64"),
    "a field too many": ({"a": entry(strides=(1,))}, bytes(8), "dtype, shape and data_offsets"),
    "no fields": ({"a": {}}, bytes(8), "dtype, shape and data_offsets"),
    "null": ({"a": None}, bytes(8), "dtype, shape and data_offsets"),
    "metadata of numbers": ({"__metadata__": {"step": 7}}, b"", "hold strings"),
    "metadata that is no JSON": ({"__metadata__": {"step": "seven"}}, b"", "metadata in JSON"),
    "later version": ({"__metadata__": {"blutrain.format": "2"}}, b"", "expected checkpoint format 1, got 2"),
    "no digest": ({"__metadata__": {"digest.a": ""}, "a": entry()}, bytes(8), "digest of tensor 'a'"),
    "digest of md5": ({"__metadata__": {"digest.a": "md5:" + "0" * 64}, "a": entry()}, bytes(8), "digest of tensor"),
}


@pytest.mark.parametrize(("tree", "data", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_header_that_contradicts_itself_is_a_typed_error(
    tmp_path: Path, tree: Any, data: bytes, message: str
) -> None:
    forge(tmp_path / "file", dict(tree), data)
    with pytest.raises(CheckpointFormatError, match=message) as caught:
        load(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


START = '{"__metadata__":{"blutrain.header_digest":"' + " " * 71 + '"'


@pytest.mark.parametrize(
    "text",
    [
        START + "}",
        START + '},"a":1,"a":1}',
        START + ',"x":"1","x":"2"}}',
        START + '},"a":' + "[" * 100_000 + "}",
        START + '},"a":' + "9" * 5000 + "}",
        START + '}}{"b":1}',
        START + "}}\0",
    ],
    ids=["open", "name twice", "metadata twice", "deep", "huge number", "two trees", "zero byte"],
)
def test_a_header_that_is_not_proper_json_is_a_typed_error(tmp_path: Path, text: str) -> None:
    forge(tmp_path / "file", text)
    with pytest.raises(CheckpointFormatError, match="expected a header in JSON"):
        load(tmp_path / "file")


@pytest.mark.parametrize("length", [0, 1, 100_000_001, 2**63, 2**64 - 1])
def test_an_impossible_header_length_is_refused_before_anything_is_read(tmp_path: Path, length: int) -> None:
    (tmp_path / "file").write_bytes(length.to_bytes(8, "little") + b"{}" * 50)
    with pytest.raises(CheckpointFormatError, match="expected a header of 2 to 100000000 bytes"):
        load(tmp_path / "file")


def test_a_safetensors_file_of_another_program_is_told_apart(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(3, np.float32)}, tmp_path / "file", {"format": "np"})
    with pytest.raises(CheckpointFormatError, match=r"not a checkpoint that blutrain wrote.*header_digest"):
        load(tmp_path / "file")


def test_a_checkpoint_that_another_program_rewrote_is_refused(tmp_path: Path) -> None:
    small_file(tmp_path / "file")
    with safetensors.safe_open(tmp_path / "file", framework="numpy") as opened:
        metadata = opened.metadata()
    safetensors.numpy.save_file(safetensors.numpy.load_file(tmp_path / "file"), tmp_path / "copy", metadata)
    with pytest.raises(CheckpointFormatError):
        load(tmp_path / "copy")


def test_missing_files_and_folders_are_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no such file") as caught:
        load(tmp_path / "missing")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(CheckpointFormatError, match="folder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "meta", "kind", "message"),
    [
        ({"a": [1, 2]}, {}, CheckpointTypeError, "'a' to be a NumPy array, got list"),
        ({"a": np.array([object()])}, {}, CheckpointTypeError, "got object: convert it first"),
        ({"a": np.zeros(2, np.complex64)}, {}, CheckpointTypeError, "got complex64"),
        ({"a": np.zeros(2, "datetime64[s]")}, {}, CheckpointTypeError, r"got datetime64\[s\]"),
        ({"a": np.zeros(2, [("x", "f4")])}, {}, CheckpointTypeError, "dtype"),
        ({"": np.zeros(2)}, {}, CheckpointValueError, "expected a name for a tensor, got ''"),
        ({"__metadata__": np.zeros(2)}, {}, CheckpointValueError, "reserves"),
        ({"\ud800": np.zeros(2)}, {}, CheckpointValueError, "valid Unicode"),
        ({1: np.zeros(2)}, {}, CheckpointTypeError, "to be a string, got int"),
        ({}, {"x": object()}, CheckpointTypeError, "metadata 'x'"),
        ({}, {"x": {1: 2}}, CheckpointTypeError, "metadata 'x'"),
        ({}, {"x": [np.float32(1)]}, CheckpointTypeError, "metadata 'x'"),
        ({}, {"x": {"y": {1, 2}}}, CheckpointTypeError, "metadata 'x'"),
        ({}, {"digest.a": 1}, CheckpointValueError, "not to begin with"),
        ({}, {"blutrain.x": 1}, CheckpointValueError, "not to begin with"),
        ({}, {2: 1}, CheckpointTypeError, "to be a string, got int"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_before_a_file_is_made(
    tmp_path: Path, tensors: dict, meta: dict, kind: type[CheckpointError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        write(tmp_path / "file", tensors, meta)
    assert not (tmp_path / "file").exists()


def test_metadata_that_holds_itself_is_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CheckpointTypeError, match="metadata 'x'"):
        write(tmp_path / "file", {}, {"x": endless})


def test_too_much_metadata_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_HEADER_BYTES", 1000)
    with pytest.raises(CheckpointValueError, match="save less metadata"):
        write(tmp_path / "file", {}, {"x": "y" * 1000})


def test_an_unknown_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointValueError, match="expected a digest of sha256, blake2b-256, got 'md5'"):
        write(tmp_path / "file", {}, algorithm="md5")


def test_a_file_without_digests_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    """As models are exported: ordinary safetensors, also of a dtype that NumPy does not have."""
    made: list[weakref.ref[np.ndarray]] = []

    def make(value: int) -> np.ndarray:
        assert all(earlier() is None for earlier in made), "an earlier tensor is still held"
        array = np.full((3, 2), value, np.uint16)
        made.append(weakref.ref(array))
        return array

    tensors = {
        f"t{value}": layout.DeferredArray((3, 2), np.dtype(np.uint16), partial(make, value), "BF16")
        for value in range(5)
    }
    path = tmp_path / "model.safetensors"
    write_file(FILES, path, tensors, {"format": "pt"}, algorithm=None, num_threads=2)
    assert len(made) == 5
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert list(file.keys()) == list(tensors)
    head = path.read_bytes()
    tree = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])
    assert {tree[name]["dtype"] for name in tensors} == {"BF16"}
    assert head[-60:] == b"".join(value.to_bytes(2, "little") * 6 for value in range(5))
    with pytest.raises(CheckpointFormatError, match="not a checkpoint that blutrain wrote"):
        load(path)
