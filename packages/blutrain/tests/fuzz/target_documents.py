"""Documents for ``prepare`` (JSONL, plain and compressed, JSON, text, Parquet), and questions of multiple choice.

The digests of gzip and Zstandard are right only where nothing was changed. So an input may be text that is still to be
compressed: what is behind the library is then reached with every mutation.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard
from pyarrow import parquet
from targets import MemoryFile, MemoryFolder, Target, only

from blutrain.data.chunks import Chunk, Position, Split, read_chunks
from blutrain.data.records import Record, read_records
from blutrain.data.sources import find_sources
from blutrain.data.tokenizer import ByteTokenizer
from blutrain.errors import DataError, TokenizerError
from blutrain.multiple_choice import read_questions

FIELD = "text"
_FOLDER = MemoryFolder()
_QUESTIONS = MemoryFile("questions")
_NAMES = ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.txt")
_COMPRESS = 4
"""Flag of an input that is to be compressed."""
_JSON = 8
"""Flag of an input that is a file of JSON."""
_BYTES = ByteTokenizer()
_ZSTD = zstandard.ZstdCompressor()


def _encode(text: str) -> None:
    """The tokenizer of bytes takes every text that a reader lets through, but for byte 0."""
    with only(TokenizerError):
        assert _BYTES.encode(text).astype(np.uint8).tobytes() == text.encode()
        return
    assert "\0" in text


def _texts(chunks: Iterable[Chunk]) -> list[str]:
    """Documents, as what encodes them gets them."""
    found: list[str] = []
    for chunk in chunks:
        for piece in chunk.pieces:
            assert isinstance(piece.text, str)
            if piece.begins:
                found.append("")
            found[-1] += piece.text
    return found


def _read_records(path: Path, pick: int) -> bool:
    """All documents, and from one of them on once more; what was read before damage counts too."""
    records: list[Record] = []
    with only(DataError) as outcome:
        (file,) = find_sources([path])
        records += read_records(file, FIELD)
    if not outcome.accepted:
        return False
    for before, after in itertools.pairwise(records):
        assert before.index < after.index
        assert before.offset <= after.offset
        assert before.done <= after.done
    for record in records:
        assert record.done <= file.size
        _encode(record.text)
    if records:
        number = pick % len(records)
        start = Position(0, records[number].offset, records[number].index, 0, number)
        chunks = list(read_chunks([file], Split(0.25, True), FIELD, as_bytes=False, start=start))
        assert _texts(chunks) == [record.text for record in records[number:] if record.text]
        left_out = sum(sum(chunk.left_out.counts.values()) for chunk in chunks)
        assert left_out == sum(not record.text for record in records[number:])
    return True


def _read_text(path: Path, data: bytes, pick: int) -> bool:
    """A text file whose last part is for validation: as bytes it is whole, as text too where it is UTF-8."""
    with only(DataError) as outcome:
        (file,) = find_sources([path])
        split = Split.of([file], pick / 256)
        text = data.removeprefix(codecs.BOM_UTF8)
        chunks = list(read_chunks([file], split, FIELD, as_bytes=True, start=Position()))
        assert b"".join(piece.text for chunk in chunks for piece in chunk.pieces) == text  # type: ignore[misc]
        decoded = read_chunks([file], split, FIELD, as_bytes=False, start=Position())
        assert "".join(_texts(decoded)).encode() == text
    return outcome.accepted


def run_documents(data: bytes) -> bool:
    """Input: a byte that says what kind of file it is, one that chooses a document, the file."""
    if len(data) < 3:
        return False
    name, pick, content = _NAMES[data[0] & 3], data[1], data[2:]
    if data[0] & _JSON:
        name = "a.json"
    elif name == "a.txt":
        return _read_text(_FOLDER.write(name, content), content, pick)
    elif data[0] & _COMPRESS:
        content = gzip.compress(content, 1, mtime=0) if name.endswith(".gz") else _ZSTD.compress(content)
    return _read_records(_FOLDER.write(name, content), pick)


def run_parquet(data: bytes) -> bool:
    """Input: a byte that chooses a document, the file."""
    if len(data) < 2:
        return False
    return _read_records(_FOLDER.write("a.parquet", data[1:]), data[0])


def run_choices(data: bytes) -> bool:
    """Reads questions; they are what the lines say, and can be asked."""
    with only(DataError) as outcome:
        questions = read_questions(_QUESTIONS.write(data))
        fields = [json.loads(line) for line in data.split(b"\n") if line.strip()]
        assert [question.context for question in questions] == [field["ctx"] for field in fields]
        assert [list(question.endings) for question in questions] == [field["endings"] for field in fields]
        for question in questions:
            assert 0 <= question.label < len(question.endings)
            for text in (question.context, *question.endings):
                _encode(text)
    return outcome.accepted


# ---- seeds -------------------------------------------------------------------------------------------------------

_TEXTS: list[Any] = ["one", "", "two \u00e9\u4e16\U0001f600", None, 'a\nb\t\\ "quoted"', "word " * 30]


def seeds_documents() -> list[bytes]:
    """Lines in each compression, already compressed and not, in one stream and in several; and text."""
    lines = b"".join(json.dumps({"id": 1, FIELD: text}, ensure_ascii=False).encode() + b"\n" for text in _TEXTS)
    escaped = b"\r\n".join(json.dumps({FIELD: text, "more": [{"a": text}]}).encode() for text in _TEXTS)
    half = len(lines) // 2
    gz = gzip.compress(lines[:half], mtime=0) + gzip.compress(lines[half:], mtime=0)
    return [
        *(bytes([kind, 1]) + content for kind in (0, 1 | _COMPRESS, 2 | _COMPRESS) for content in (lines, escaped)),
        b"\x01\x02" + gz,
        b"\x02\x02" + _ZSTD.compress(lines[:half]) + _ZSTD.compress(lines[half:]),
        bytes([_JSON, 1]) + codecs.BOM_UTF8 + json.dumps([{FIELD: text} for text in _TEXTS]).encode(),
        bytes([_JSON, 2]) + json.dumps(["one", "", {FIELD: "two", "id": 2}], indent=1).encode(),
        bytes([_JSON, 0]) + json.dumps({FIELD: _TEXTS[2]}, ensure_ascii=False).encode(),
        b"\x00\x01" + codecs.BOM_UTF8 + lines,
        b"\x03\x20" + codecs.BOM_UTF8 + b"Text of some words, no more.\n" * 3,
        b"\x03\x40" + "Text of some words: \u00e9\u4e16\U0001f600, no more.\n".encode() * 3,
    ]


def _parquet(column: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    table = pa.table({"id": list(range(len(column))), FIELD: column})
    parquet.write_table(table, file, **{"store_schema": False, "write_statistics": False, **options})
    return b"\x01" + file.getvalue()


def seeds_parquet() -> list[bytes]:
    """Every encoding and compression of text, one row group and several, columns beside it, and one that is no text."""
    texts = [*_TEXTS, *_TEXTS]
    plain = {"compression": "none", "use_dictionary": False}
    return [
        _parquet(texts),
        _parquet(texts, row_group_size=5, compression="zstd", write_statistics=True),
        _parquet(texts, **plain),
        _parquet(texts, **plain, data_page_version="2.0", data_page_size=64, write_page_index=True),
        _parquet(texts, compression="gzip", write_page_checksum=True, store_schema=True),
        _parquet(texts, compression="lz4", row_group_size=3),
        _parquet(texts, compression="brotli", data_page_version="2.0"),
        _parquet(texts, **plain, column_encoding={FIELD: "DELTA_BYTE_ARRAY"}),
        _parquet(texts, **plain, column_encoding={FIELD: "DELTA_LENGTH_BYTE_ARRAY"}),
        _parquet(pa.array(texts, pa.large_string()), store_schema=True),
        _parquet(pa.array(texts).dictionary_encode(), store_schema=True),
        _parquet(pa.array([[text] for text in texts], pa.list_(pa.string()))),
    ]


def seeds_choices() -> list[bytes]:
    """HellaSwag's fields, the label as a number and as text."""
    fields = {"ind": 4, "ctx": "A man sits", "endings": ["down.", "up \u00e9.", "\U0001f600", "x"], "label": 2}
    others = [{**fields, "label": "0"}, {**fields, "ctx": "", "endings": ["a", "b"], "label": 1}]
    lines = [json.dumps(fields).encode(), *(json.dumps(other, ensure_ascii=False).encode() for other in others)]
    return [b"\n".join(lines) + b"\n", b"\r\n\n".join(lines), lines[0]]


_WORDS = (
    b'"text"', b'"id"', b"null", b"true", b"{}", b"[]", b'""', b"-1", b"1e999", b"NaN", b"[" * 2000, b'{"a":' * 2000,
    b'"\\ud800"', b'"\\udc80"', b'"\\u0000"', b"\\ud83d\\ude00", b"9" * 5000, b"\xff", b"\0", b"\n", b"\r",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd",
    b"\x50\x2a\x4d\x18", b'{"text":"a"}\n', b"\xe4\xb8", b"a" * 3000,
)  # fmt: skip
_PARQUET_WORDS = (
    b"PAR1", b"PARE", b"text", b"id", b"schema", b"\x00", b"\x15\x02", b"\x15\x0c", b"\x15\x00", b"\x25\x00",
    b"\x18\x04text", b"\x19\x1c", b"\x16\xfe\xff\xff\xff\x0f", b"\x16\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x08", b"\x2c", b"\x4c", b"\x5c\x00\x00",
)  # fmt: skip
_CHOICES_WORDS = (
    *_WORDS, b'"ctx"', b'"endings"', b'"label"', b'"0"', b'"3"', b'" 1"', b'"1_0"', b'["a","b"]', b'{"a":1,"b":2}',
    b'"ab"', b"2.0", b"4",
)  # fmt: skip
TARGETS = (
    Target("documents", run_documents, seeds_documents, _WORDS),
    Target("parquet", run_parquet, seeds_parquet, _PARQUET_WORDS),
    Target("choices", run_choices, seeds_choices, _CHOICES_WORDS),
)
