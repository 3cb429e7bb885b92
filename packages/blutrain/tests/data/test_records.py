"""JSONL and Parquet: every compression, every kind of damage, from any record on."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blutrain.data import records
from blutrain.data.records import Record, read_records
from blutrain.data.sources import SourceFile, find_sources
from blutrain.errors import DataError

TEXTS = [f"document {number} äöü 世界 " + "x" * (number % 50) for number in range(300)]


def lines_of(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False).encode() + b"\n" for text in texts)


def write(folder: Path, name: str, texts: list[str] = TEXTS) -> SourceFile:
    path = folder / name
    if name.endswith(".parquet"):
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        table = pytest.importorskip("pyarrow").table({"id": list(range(len(texts))), "text": texts})
        parquet.write_table(table, path, row_group_size=70)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines_of(texts)))
    elif name.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
        raw = lines_of(texts)  # as two frames
        path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in (raw[:999], raw[999:])))
    else:
        path.write_bytes(lines_of(texts))
    (found,) = find_sources([path])
    return found


def read(file: SourceFile, field: str = "text", **start: int) -> list[Record]:
    return list(read_records(file, field, **start))


FORMATS = ["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.json.gz", "a.jsonl.zst", "a.parquet"]


@pytest.mark.parametrize("name", FORMATS)
def test_records_from_any_of_them_on(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, name)
    found = read(file)
    assert [record.text for record in found] == TEXTS
    assert [record.index for record in found] == list(range(300))
    assert all(0 < a.done <= b.done <= file.size for a, b in itertools.pairwise(found))
    for index in (0, 1, 69, 70, 71, 210, 299):
        assert read(file, index=index, offset=found[index].offset)[0] == found[index]
        assert len(read(file, index=index, offset=found[index].offset)) == 300 - index


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_empty_and_missing_text_are_records_without_text(tmp_path: Path, name: str) -> None:
    texts: Any = ["one", "", None, "two"]
    assert [(record.text, record.index) for record in read(write(tmp_path, name, texts))] == [
        ("one", 0), ("", 1), ("", 2), ("two", 3),
    ]  # fmt: skip


def test_blank_lines_and_no_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n  \r\n{"text": "b"}')
    (file,) = find_sources([tmp_path])
    assert [record.place.rpartition(" line ")[2] for record in read(file)] == ["1", "4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", r"object in JSON in .*a\.jsonl line 2, got b'not json"),
        (b'{"text": "cut', "repair or remove the line"),
        (b"[1]", "got list"),
        (b'{"text": 5}', "expected text as 'text' in .* got int"),
        (b'{"txt": "a"}', "did you mean 'txt'"),
        (b"{}", "got nothing"),
        (b"[" * 100_000, "RecursionError"),
        (b'{"text": "\xff"}', "UnicodeDecodeError"),
        (b"1" * 5000, "ValueError|got int"),
        (rb'{"text": "a\ud800"}', r"half of a surrogate pair, U\+D800 at position 1: repair or remove it"),
        (rb'{"text": "\udc80"}', r"half of a surrogate pair, U\+DC80"),  # not the byte 0x80
    ],
)
def test_bad_lines(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n' + content + b"\n")
    (file,) = find_sources([tmp_path])
    with pytest.raises(DataError, match=message):
        read(file)


def test_a_line_without_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD", 100)
    file = write(tmp_path, "a.jsonl", ["short", "long" * 100])
    with pytest.raises(DataError, match=r"at most 100 bytes, got more in .* line 2"):
        read(file)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign"])
def test_damaged_compression(tmp_path: Path, name: str, damage: str) -> None:
    file = write(tmp_path, name)
    raw = bytearray(file.path.read_bytes())
    if damage == "cut":
        raw = raw[: len(raw) // 2]
    elif damage == "flipped":
        raw[len(raw) // 2] ^= 255
    else:
        raw = bytearray(b"plain text, not compressed" * 20)
    file.path.write_bytes(raw)
    with pytest.raises(DataError, match="expected"):
        read(SourceFile(file.path, len(raw), "jsonl"))


def test_bad_parquet(tmp_path: Path) -> None:
    file = write(tmp_path, "a.parquet")
    with pytest.raises(DataError, match="did you mean 'text'"):
        read(file, "texts")
    with pytest.raises(DataError, match="expected text in column 'id'"):
        read(file, "id")
    raw = file.path.read_bytes()
    for content in (b"PAR1", raw[:500], raw[: len(raw) // 2] + b"PAR1", b"x" * 100):
        file.path.write_bytes(content)
        with pytest.raises(DataError, match="expected Parquet in"):
            read(file)


def test_parquet_with_other_numbers_of_rows_than_it_says(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    file = write(tmp_path, "a.parquet")
    raw = file.path.read_bytes()
    begin = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    start, footer = raw[:begin], raw[begin:]

    def rows(count: int) -> bytes:
        """A number of rows in the footer: the type of the field, then twice the number, 7 bits in a byte."""
        return bytes([0x16, 2 * count & 127 | 128, 2 * count >> 7])

    file.path.write_bytes(start + footer.replace(rows(300), rows(299)))
    assert parquet.read_metadata(file.path).num_rows == 299
    with pytest.raises(DataError, match=r"expected 299 rows in all .* got row groups of 300: it is damaged"):
        read(file)
    # In a group of 70 rows, its two columns say so before itself does: the third place is the group's.
    parts = footer.split(rows(70))
    places = [rows({3: 71, 6: 69}.get(place, 70)) for place in range(1, len(parts))]
    file.path.write_bytes(start + b"".join(map(b"".join, zip(parts, [*places, b""], strict=True))))
    metadata = parquet.read_metadata(file.path)
    assert [metadata.row_group(group).num_rows for group in range(5)] == [71, 69, 70, 70, 20]
    with pytest.raises(DataError, match=r"expected 71 rows in row group 1 .* got another number"):
        read(file)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_anywhere_is_told_as_such(tmp_path: Path, name: str, data: st.DataObject) -> None:
    raw = bytearray(write(tmp_path, name, TEXTS[:20]).path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    path = tmp_path / f"damaged-{name}"
    path.write_bytes(raw)
    file = SourceFile(path, len(raw), "parquet" if name.endswith("parquet") else "jsonl")
    message, found = "", []
    try:
        found = read(file)
    except DataError as error:
        message = str(error)
    assert str(path) in message if message else all(isinstance(record.text, str) for record in found)


@pytest.mark.parametrize(
    ("name", "library", "extra"), [("a.parquet", "pyarrow", "parquet"), ("a.jsonl.zst", "zstandard", "zstd")]
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str, extra: str
) -> None:
    file = write(tmp_path, name)
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(DataError, match=rf"pip install 'blutrain\[{extra}\]'"):
        read(file)
