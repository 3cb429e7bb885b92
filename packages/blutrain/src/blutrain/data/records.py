"""Documents inside files, from any of them on: lines of JSONL (also in gzip or Zstandard), items of JSON, Parquet."""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blutrain.data.sources import SourceFile
from blutrain.data.text import BYTE_ORDER_MARK, foreign_encoding, half_of_a_pair
from blutrain.errors import DataError

MAX_RECORD = 2**26
"""Most bytes of a line of JSONL and of a file of JSON: it is in memory as a whole."""
_BATCH_ROWS = 64


@dataclass(frozen=True)
class Record:
    """One document of a file of many."""

    text: str
    """What it says; empty where the record has no text."""
    place: str
    """Where it is, for messages."""
    index: int
    """Its line, item or row, from 0."""
    offset: int
    """Byte of the uncompressed file at which its line begins; 0 in JSON and Parquet."""
    done: int
    """Bytes of the file that were read to get it, or about as many."""


def read_records(file: SourceFile, field: str, index: int = 0, offset: int = 0) -> Iterator[Record]:
    """The documents of a file, one after the other.

    JSON is one object, or a list of objects or of texts.

    Args:
        file: JSONL, JSON or Parquet.
        field: name of the JSON field or of the Parquet column with the text.
        index: line, item or row to begin at.
        offset: where that line begins.

    Yields:
        The documents; a blank line is none.

    Raises:
        DataError: the file is damaged or in UTF-16 or UTF-32, the field is missing or no text, a line of JSONL or a
            file of JSON has more than ``MAX_RECORD`` bytes, or a library is missing.
        OSError: the file can not be read.
    """
    if file.kind == "parquet":
        yield from _read_parquet(file, field, index)
    elif file.kind == "json":
        yield from _read_json(file, field, index)
    else:
        yield from _read_json_lines(file, field, index, offset)


# ---- JSONL -------------------------------------------------------------------------------------------------------


def _read_json_lines(file: SourceFile, field: str, index: int, offset: int) -> Iterator[Record]:
    with open(file.path, "rb") as raw, _decompressed(file.path, raw) as stream:
        _skip(stream, raw, offset)
        while line := _read_line(stream, file.path, index):
            content = line if index else _without_mark(line, file.path)
            if content and not content.isspace():
                text = _text_of_line(content, field, f"{file.path} line {index + 1}")
                yield Record(text, f"{file.path} line {index + 1}", index, offset, min(raw.tell(), file.size))
            index += 1
            offset += len(line)


def _without_mark(begin: bytes, path: Path) -> bytes:
    """The first bytes of JSON without a byte order mark."""
    encoding = foreign_encoding(begin)
    if encoding is not None:
        message = f"[data] expected JSON in UTF-8, got {encoding} (by its byte order mark) in {path}"
        raise DataError(message + ": convert it")
    return begin.removeprefix(BYTE_ORDER_MARK)


@contextlib.contextmanager
def _decompressed(path: Path, raw: BinaryIO) -> Iterator[BinaryIO]:
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream  # type: ignore[misc]
    elif path.suffix == ".zst":
        try:
            import zstandard
        except ImportError as error:
            message = f"[data] expected the library zstandard to read {path}, got none: pip install 'blutrain[zstd]'"
            raise DataError(message) from error
        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)
        yield io.BufferedReader(_ZstdStream(reader, zstandard.ZstdError), 1 << 17)
    else:
        yield raw


class _ZstdStream(io.RawIOBase):
    """A reader of zstandard as a file of the standard library, whose errors are told as those of gzip."""

    def __init__(self, reader: Any, error: type[Exception]) -> None:
        self._reader, self._error = reader, error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except self._error as error:
            raise EOFError(str(error)) from error


def _skip(stream: BinaryIO, raw: BinaryIO, offset: int) -> None:
    if stream is raw:
        stream.seek(offset)
        return
    while offset > 0 and (block := stream.read(min(offset, 1 << 20))):
        offset -= len(block)


def _read_line(stream: BinaryIO, path: Path, index: int) -> bytes:
    try:
        line = stream.readline(MAX_RECORD + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        message = f"[data] expected compressed lines in {path}, got damage after line {index}: {error}"
        raise DataError(message + "; download it again") from error
    if len(line) > MAX_RECORD:
        message = f"[data] expected lines of at most {MAX_RECORD} bytes, got more in {path} line {index + 1}"
        raise DataError(message + ": divide the document")
    return line


def _text_of_line(line: bytes, field: str, place: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        message = f"[data] expected an object in JSON in {place}, got {line[:40]!r} ({_reason(error)})"
        raise DataError(message + "; repair or remove the line") from None
    return _text_of_object(record, field, place)


def _text_of_object(record: object, field: str, place: str) -> str:
    if not isinstance(record, dict):
        raise DataError(f"[data] expected an object in JSON in {place}, got {type(record).__name__}")
    if field not in record:
        raise DataError(_no_field(field, record.keys(), place))
    return _checked_text(record[field], field, place)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


# ---- JSON --------------------------------------------------------------------------------------------------------


def _read_json(file: SourceFile, field: str, index: int) -> Iterator[Record]:
    with open(file.path, "rb") as stream:
        raw = stream.read(MAX_RECORD + 1)
    if len(raw) > MAX_RECORD:
        message = f"[data] expected a file of JSON of at most {MAX_RECORD} bytes, got more in {file.path}"
        raise DataError(message + ": make JSONL of it, with jq -c '.[]' for example")
    raw = _without_mark(raw, file.path)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        message = f"[data] expected JSON in {file.path}, got {raw[:40]!r} ({_reason(error)}): repair it, name it .jsonl"
        raise DataError(message + " if every line is an object, or leave it out with --exclude") from None
    items = content if isinstance(content, list) else [content]
    for number in range(index, len(items)):
        place = f"{file.path} item {number + 1}" if isinstance(content, list) else str(file.path)
        try:
            read = _checked_text if isinstance(items[number], str | None) else _text_of_object
            text = read(items[number], field, place)
        except DataError as error:
            raise DataError(f"{error}, or leave the file out with --exclude '{file.path.name}'") from None
        yield Record(text, place, number, 0, file.size * (number + 1) // len(items))


# ---- Parquet -----------------------------------------------------------------------------------------------------


def _read_parquet(file: SourceFile, field: str, index: int) -> Iterator[Record]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        message = f"[data] expected the library pyarrow to read {file.path}, got none"
        raise DataError(message + ": pip install 'blutrain[parquet]'") from error
    try:
        # Buffered, a row group is read page by page and never lies in memory as a whole.
        with pyarrow.parquet.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as table:
            _check_column(table.schema_arrow, field, file.path)
            yield from _rows(table, file, field, index)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's; pyarrow tells of damage without a number
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"[data] expected Parquet in {file.path}, got {reason}; download it again") from error


def _check_column(schema: Any, field: str, path: Path) -> None:
    if field not in schema.names:
        raise DataError(_no_field(field, schema.names, str(path)))
    kind = schema.field(field).type
    kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
    if str(kind) not in ("string", "large_string", "string_view"):
        message = f"[data] expected text in column {field!r} of {path}, got {kind}"
        raise DataError(message + "; name another one with --field")


def _rows(table: Any, file: SourceFile, field: str, index: int) -> Iterator[Record]:
    """Row group by row group, of which only a few rows are Python's at a time."""
    # Nothing more is asked of the metadata: pyarrow ends the process where those of a column make no sense.
    counts = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    total = table.metadata.num_rows
    if sum(counts) != total or min(counts, default=0) < 0:
        raise _wrong_rows(file, f"{total} rows in all", f"row groups of {sum(counts)}")
    end = 0
    for number, count in enumerate(counts):
        row, end = end, end + count
        if end <= index:
            continue
        batches = table.iter_batches(_BATCH_ROWS, row_groups=[number], columns=[field], use_threads=False)
        for batch in batches:
            if row + batch.num_rows > end:
                break
            for text in batch.column(0).to_pylist():
                if row >= index:
                    place = f"{file.path} row {row + 1}"
                    yield Record(_checked_text(text, field, place), place, row, 0, file.size * (row + 1) // total)
                row += 1
        if row != end:  # a place in the file would not be what its number says
            raise _wrong_rows(file, f"{count} rows in row group {number + 1}", "another number")


def _wrong_rows(file: SourceFile, expected: str, found: str) -> DataError:
    return DataError(f"[data] expected {expected} of {file.path}, got {found}: it is damaged; download it again")


# ---- both --------------------------------------------------------------------------------------------------------


def _no_field(field: str, names: Collection[str], place: str) -> str:
    close = difflib.get_close_matches(field, names, n=1)
    known = ", ".join(sorted(map(str, names))[:20]) or "nothing"
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"[data] expected {field!r} in {place}, got {known}{hint}; name the field with --field"


def _checked_text(value: object, field: str, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        message = f"[data] expected text as {field!r} in {place}, got {type(value).__name__}"
        raise DataError(message + "; name another field with --field")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can say it, and a tokenizer of bytes would take some of them for bytes
        message = f"[data] expected text that UTF-8 can encode as {field!r} in {place}, got {half_of_a_pair(error)}"
        raise DataError(message + ": repair or remove it") from None
    return value
