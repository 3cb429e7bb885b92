"""Damaged files are typed errors: nothing crashes, hangs, or allocates what a header promises."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hf_models import CONFIG, tensors_of, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blutrain.errors import BlutrainError
from blutrain.huggingface import ModelAccessError, ModelFileError, ModelFormatError, import_hf
from blutrain.huggingface.files import read_json_object, read_safetensors


def file_with(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


ENTRY = b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[%s]}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"PK\x03\x04 a zip file of an older format",
        file_with(b"{}", length=2**63),
        file_with(b"{}", length=2**40),
        file_with(b"{}", length=99_999_999),
        file_with(b"[]"),
        file_with(b"{"),
        file_with(b"\xff" * 20),
        file_with(b'{"a":' + b"[" * 100_000),
        file_with(ENTRY % (b"1", b"0,4"), b"123"),
        file_with(ENTRY % (b"1", b"0,4"), b"12345"),
        file_with(ENTRY % (b"2", b"0,4"), b"1234"),
        file_with(ENTRY % (b"1", b"4,8"), b"12345678"),
        file_with(ENTRY % (b"1", b"4,0"), b"1234"),
        file_with(ENTRY % (b"-1", b"0,4"), b"1234"),
        file_with(ENTRY % (b"1000000000000,1000000000000,1000000000000", b"0,4"), b"1234"),
        file_with(ENTRY % (b"4611686018427387904,4", b"0,0")),
        file_with(b'{"a":{"dtype":"F77","shape":[1],"data_offsets":[0,4]}}', b"1234"),
        file_with(b'{"a":{"dtype":"F32","shape":[1]}}'),
        file_with(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}}'),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFormatError, match="safetensors file"):
        read_safetensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a_name_that_occurs_twice_reads_nothing_beyond_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    one, two = (b'"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}' % (n, 4 * n) for n in (1, 2))
    for entries in (one + b"," + two, two + b"," + one):
        path.write_bytes(file_with(b"{" + entries + b"}", b"1234"))
        try:
            tensors = read_safetensors(path)
        except ModelFormatError:
            continue
        assert tensors["a"].values().nbytes <= 4


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {**CONFIG, "n_layer": 1, "n_head": 1, "n_embd": 2, "n_positions": 2, "vocab_size": 3}
    return write_model(tmp_path_factory.mktemp("small") / "hf", tensors_of(config), config)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_of_a_model(small_model: Path, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["model.safetensors", "config.json"]))
    source, run = tmp_path / "hf", tmp_path / "run"
    shutil.copytree(small_model, source, dirs_exist_ok=True)
    raw = bytearray((source / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, min(len(raw), 900) - 1))] = data.draw(st.sampled_from(b'09{}[]":,-\x00\xffeE1'))
    end = data.draw(st.one_of(st.none(), st.integers(0, len(raw))))
    (source / name).write_bytes(raw[:end])
    with contextlib.suppress(BlutrainError):  # any other error fails the test
        import_hf(source, run, overwrite=True)
    shutil.rmtree(run, ignore_errors=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"3", b"nul", b'{"a":1}}', b"\xff\xfe{}", b"[" * 100_000, b'{"n_layer":' + b"9" * 5000 + b"}"],
)
def test_damaged_json(tmp_path: Path, content: bytes) -> None:
    source = write_model(tmp_path / "hf")
    (source / "config.json").write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"config\.json"):
        import_hf(source, tmp_path / "run")


def test_a_small_json_file_takes_little_memory(tmp_path: Path) -> None:
    """And not the most that one may have."""
    (tmp_path / "config.json").write_text('{"a": 1}')
    tracemalloc.start()
    assert read_json_object(tmp_path / "config.json") == {"a": 1}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_json_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with open(path, "wb") as file:
        file.truncate(2**34)  # takes no space on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFormatError, match="at most 100000000 bytes"):
        read_json_object(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB: read once, at most


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    source = write_model(tmp_path / "hf")
    with pytest.raises(ModelAccessError, match="Is a directory"):
        read_json_object(source)
    (source / "model.safetensors").unlink()
    os.mkfifo(source / "model.safetensors")  # would block whoever opens it
    with pytest.raises(ModelFileError):
        import_hf(source, tmp_path / "run")


def test_weights_are_mapped_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    size = 2**34
    header = json.dumps({"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(file_with(header))
    os.truncate(path, 8 + len(header) + size)
    values = read_safetensors(path)["a"].values()
    assert values.shape == (size // 4,)
    assert not values[-1000:].any()
    assert not values.flags.writeable
    assert np.shares_memory(values, values[:1])
