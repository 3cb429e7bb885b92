"""Layout of a checkpoint file: what its header says, how it is written and what a reader insists on.

A checkpoint is a valid safetensors file (https://huggingface.co/docs/safetensors):

    8 bytes      little-endian length N of the header
    N bytes      JSON: {"__metadata__": {string: string}, name: {"dtype", "shape", "data_offsets"}, ...}, then spaces
    the rest     the tensors' bytes, little-endian, row-major, without gaps

What makes it a checkpoint is in ``__metadata__``:

    blutrain.header_digest   digest over the first 8 + N bytes, taken with this value replaced by as many spaces
    blutrain.format          version of this layout
    digest.<tensor>          digest over that tensor's bytes, one per tensor
    anything else            what the caller saved with the tensors; each value is JSON

A digest is written as ``<algorithm>:<hexadecimal>``. The header's digest covers the tensors' digests, so it covers the
file. The header's is the first value, at a fixed place, so that it can be filled in and checked without parsing.

Files without digests, which are only written, are ordinary safetensors files with the caller's texts in
``__metadata__``: models for others.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from blutrain.checkpoint.errors import (
    CheckpointDigestError,
    CheckpointFormatError,
    CheckpointTypeError,
    CheckpointValueError,
)

FORMAT_VERSION = "1"
MAX_HEADER_BYTES = 100_000_000
"""The safetensors library refuses longer headers, so we neither write nor read them."""

_MAX_DIMENSIONS = 32
_MAX_TENSOR_BYTES = 2**62
_DATA_ALIGNMENT = 64

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in (
        ("F64", "<f8"), ("I64", "<i8"), ("U64", "<u8"), ("F32", "<f4"), ("I32", "<i4"), ("U32", "<u4"),
        ("F16", "<f2"), ("I16", "<i2"), ("U16", "<u2"), ("I8", "|i1"), ("U8", "|u1"), ("BOOL", "|b1"),
    )
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_HEADER_DIGEST_KEY = "blutrain.header_digest"
_FORMAT_KEY = "blutrain.format"
_RESERVED = "blutrain."
_TENSOR_DIGEST = "digest."
_METADATA = "__metadata__"
_PREFIX = f'{{"{_METADATA}":{{"{_HEADER_DIGEST_KEY}":"'.encode()
_DIGEST_START = 8 + len(_PREFIX)


@dataclass(frozen=True)
class DeferredArray:
    """An array that is made when it is written, and not kept."""

    shape: tuple[int, ...]
    """Sizes."""
    dtype: np.dtype[Any]
    """Element type."""
    make: Callable[[], np.ndarray[Any, Any]]
    """Gives the array, of that shape and dtype."""
    stored: str = ""
    """Name of its dtype in the file, where NumPy has none: ``BF16``, whose bits are uint16."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize


Array = np.ndarray[Any, Any]
AnyArray = Array | DeferredArray


class Hash(Protocol):
    """What we need of a hash object of `hashlib`."""

    def update(self, data: memoryview, /) -> None:
        """Takes more bytes."""

    def hexdigest(self) -> str:
        """Returns the digest of the bytes so far."""


ALGORITHMS: dict[str, Callable[[], Hash]] = {
    "sha256": hashlib.sha256,
    "blake2b-256": lambda: hashlib.blake2b(digest_size=32),
}
DEFAULT_ALGORITHM = "sha256"
_HEX_DIGITS = 64
_MAX_DIGEST = 100
_DIGEST = re.compile(r"([a-z0-9-]{1,32}):([0-9a-f]{64})")


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies in the file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    """First byte, counted from the start of the file."""
    end: int
    """One past the last byte."""
    stored: str
    """Name of the dtype in the file."""


@dataclass(frozen=True)
class Header:
    """What the head of a checkpoint file says."""

    entries: tuple[TensorEntry, ...]
    """In the order of their bytes."""
    meta: dict[str, Any]
    """What the caller saved with the tensors."""
    digests: dict[str, str]
    """Digest of each tensor by its name; empty strings while planning."""
    algorithm: str | None
    """Of the digests; None in a file without any."""
    data_start: int
    """Length of the header with its own length in front: where the first tensor begins."""

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return self.entries[-1].end if self.entries else self.data_start


def digest_text(algorithm: str, data: memoryview) -> str:
    """Returns ``<algorithm>:<hexadecimal>`` of ``data`` (bytes)."""
    state = ALGORITHMS[algorithm]()
    state.update(data)
    return f"{algorithm}:{state.hexdigest()}"


def plan(
    path: Path, arrays: Mapping[str, AnyArray], meta: Mapping[str, Any], algorithm: str | None = DEFAULT_ALGORITHM
) -> Header:
    """Lays out a file: tensors by falling size of an element (so that all are aligned), otherwise in the given order.

    Args:
        path: named in errors.
        arrays: tensors by name, in any layout and byte order.
        meta: values that JSON can hold, by name; texts where there are no digests.
        algorithm: a key of `ALGORITHMS`, or None for a file without digests.

    Raises:
        CheckpointValueError: a name is empty or reserved, or the header becomes too long.
        CheckpointTypeError: a dtype or a value of ``meta`` has no place in the format.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise CheckpointValueError(path, f"expected a digest of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    dtypes = {name: _checked_dtype(path, name, array) for name, array in arrays.items()}
    order = sorted(arrays, key=lambda name: -dtypes[name].itemsize)
    _check_meta(path, meta)
    for name in arrays:
        _check_name(path, name, "a tensor")
    offset = 0
    entries = []
    for name in order:
        end = offset + arrays[name].size * dtypes[name].itemsize
        stored = getattr(arrays[name], "stored", "") or _DTYPE_NAMES[dtypes[name]]
        entries.append(TensorEntry(name, dtypes[name], arrays[name].shape, offset, end, stored))
        offset = end
    # The header's length depends on nothing but names, shapes, relative offsets and meta: digests have a fixed width.
    draft = Header(tuple(entries), dict(meta), dict.fromkeys(order, ""), algorithm, data_start=0)
    text_bytes = len(_header_json(draft))
    data_start = 8 + text_bytes
    data_start += -data_start % _DATA_ALIGNMENT
    if data_start - 8 > MAX_HEADER_BYTES:
        raise CheckpointValueError(
            path,
            f"expected names and metadata of at most {MAX_HEADER_BYTES} bytes, got {text_bytes}: save less metadata",
        )
    moved = tuple(replace(entry, begin=entry.begin + data_start, end=entry.end + data_start) for entry in entries)
    return Header(moved, draft.meta, draft.digests, algorithm, data_start)


def encode(header: Header) -> bytes:
    """Returns the head of the file, ``header.data_start`` bytes, with every digest filled in."""
    text = _header_json(header)
    length = header.data_start - 8
    head = bytearray(length.to_bytes(8, "little") + text.ljust(length))
    if header.algorithm is None:
        return bytes(head)
    value = digest_text(header.algorithm, memoryview(head)).encode()
    head[_DIGEST_START : _DIGEST_START + len(value)] = value
    return bytes(head)


def header_length(path: Path, first_bytes: bytes, file_size: int) -> int:
    """Returns how many bytes the head of the file has, from the first 8 bytes and the size of the file.

    Raises:
        CheckpointFormatError: there is no room for such a header.
    """
    if len(first_bytes) < 8:
        raise _foreign(path, f"expected at least 8 bytes, got {len(first_bytes)}")
    length = int.from_bytes(first_bytes, "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise _foreign(path, f"expected a header of 2 to {MAX_HEADER_BYTES} bytes, got {length}")
    if 8 + length > file_size:
        raise _truncated(path, f"expected a header of {length} bytes, got {file_size - 8} after its length")
    return 8 + length


def decode(path: Path, head: bytes, file_size: int) -> Header:
    """Parses and checks the head of a file: everything but the tensors' bytes.

    Args:
        path: named in errors.
        head: the first `header_length` bytes.
        file_size: bytes of the whole file.

    Raises:
        CheckpointFormatError: the file is foreign, truncated or contradicts itself.
        CheckpointDigestError: the header was changed after it was written.
    """
    algorithm = _check_header_digest(path, head)
    tree = _parse_json(path, head[8:])
    metadata = tree.pop(_METADATA)
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointFormatError(path, f"expected {_METADATA} to hold strings, got {_short(metadata)}")
    entries = _decode_entries(path, tree, len(head), file_size)
    del metadata[_HEADER_DIGEST_KEY]
    version = metadata.pop(_FORMAT_KEY, None)
    if version != FORMAT_VERSION:
        raise CheckpointFormatError(
            path,
            f"expected checkpoint format {FORMAT_VERSION}, got {version}: read it with the blutrain that wrote it",
        )
    digests = {}
    for entry in entries:
        value = metadata.pop(_TENSOR_DIGEST + entry.name, "")
        if not _known_digest(value):
            raise CheckpointFormatError(path, f"expected a digest of tensor {entry.name!r}, got {_short(value)}")
        digests[entry.name] = value
    return Header(entries, _decode_meta(path, metadata), digests, algorithm, len(head))


def check_digest(path: Path, header: Header, name: str, data: memoryview) -> None:
    """Raises `CheckpointDigestError` unless ``data`` are the bytes that were saved as tensor ``name``."""
    expected = header.digests[name]
    compare_digest(path, header, name, digest_text(expected.partition(":")[0], data))


def compare_digest(path: Path, header: Header, name: str, got: str) -> None:
    """Raises `CheckpointDigestError` unless ``got`` is the digest of tensor ``name``."""
    expected = header.digests[name]
    if got != expected:
        raise CheckpointDigestError(
            path,
            f"tensor {name!r} is damaged: expected {expected}, got {got}; use an earlier checkpoint or a copy",
        )


def _metadata_of(header: Header) -> dict[str, str]:
    if header.algorithm is None:
        return header.meta
    placeholder = " " * (len(header.algorithm) + 1 + _HEX_DIGITS)
    metadata = {_HEADER_DIGEST_KEY: placeholder, _FORMAT_KEY: FORMAT_VERSION}
    metadata |= {key: json.dumps(value, separators=(",", ":")) for key, value in header.meta.items()}
    return metadata | {_TENSOR_DIGEST + name: digest or placeholder for name, digest in header.digests.items()}


def _header_json(header: Header) -> bytes:
    tree: dict[str, Any] = {_METADATA: _metadata_of(header)}
    for entry in header.entries:
        tree[entry.name] = {
            "dtype": entry.stored,
            "shape": list(entry.shape),
            "data_offsets": [entry.begin - header.data_start, entry.end - header.data_start],
        }
    return json.dumps(tree, separators=(",", ":")).encode()


def _checked_dtype(path: Path, name: str, array: AnyArray) -> np.dtype[Any]:
    if not isinstance(array, (np.ndarray, DeferredArray)):
        raise CheckpointTypeError(path, f"expected tensor {name!r} to be a NumPy array, got {type(array).__name__}")
    dtype: np.dtype[Any] = array.dtype.newbyteorder("<")
    if dtype not in _DTYPE_NAMES:
        raise CheckpointTypeError(
            path, f"expected tensor {name!r} of dtype {', '.join(_DTYPES)}, got {array.dtype}: convert it first"
        )
    if array.ndim > _MAX_DIMENSIONS:
        raise CheckpointValueError(
            path, f"expected tensor {name!r} of at most {_MAX_DIMENSIONS} dimensions, got {array.ndim}"
        )
    return dtype


def _check_name(path: Path, name: object, what: str) -> None:
    if not isinstance(name, str):
        raise CheckpointTypeError(path, f"expected the name of {what} to be a string, got {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CheckpointValueError(path, f"expected the name of {what} to be valid Unicode, got {name!r}") from None
    if not name or name == _METADATA:
        raise CheckpointValueError(
            path, f"expected a name for {what}, got {name!r}, which the file format reserves: rename it"
        )


def _check_meta(path: Path, meta: Mapping[str, Any]) -> None:
    for key, value in meta.items():
        _check_name(path, key, "a metadata value")
        if key.startswith((_RESERVED, _TENSOR_DIGEST)):
            raise CheckpointValueError(
                path, f"expected metadata names not to begin with {_RESERVED!r} or {_TENSOR_DIGEST!r}, got {key!r}"
            )
        try:
            acceptable = _is_json(value)
        except RecursionError:
            acceptable = False
        if not acceptable:
            raise CheckpointTypeError(
                path,
                f"expected metadata {key!r} of dict, list, str, int, float, bool, None, got {_short(value)}: convert",
            )


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_json(item) for item in value)
    return value is None or isinstance(value, (str, int, float))


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    if text[:1] != b"{":
        raise _foreign(path, f"expected a header that begins with '{{', got {text[:16]!r}")
    try:
        tree = json.loads(text.decode(), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as cause:
        raise _foreign(path, f"expected a header in JSON, got '{cause}'") from None
    assert isinstance(tree, dict)  # the text begins with a brace
    return tree


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name that occurs twice")
    return tree


def _decode_entries(path: Path, tree: dict[str, Any], data_start: int, file_size: int) -> tuple[TensorEntry, ...]:
    entries = sorted(
        (_decode_entry(path, name, fields, data_start) for name, fields in tree.items()),
        key=lambda entry: (entry.begin, entry.end),
    )
    offset = data_start
    for entry in entries:
        if entry.begin != offset:
            what = "overlaps the one before it" if entry.begin < offset else "leaves a gap before it"
            raise CheckpointFormatError(
                path, f"tensor {entry.name!r} {what}: expected it at byte {offset}, got {entry.begin}"
            )
        offset = entry.end
    if offset > file_size:
        raise _truncated(path, f"expected {offset} bytes, got {file_size}")
    if offset < file_size:
        raise CheckpointFormatError(path, f"expected {offset} bytes, got {file_size}: something was appended to it")
    return tuple(entries)


def _decode_entry(path: Path, name: str, fields: object, data_start: int) -> TensorEntry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise _foreign(path, f"expected dtype, shape and data_offsets of tensor {name!r}, got {_short(fields)}")
    dtype = _DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        raise CheckpointFormatError(
            path, f"expected tensor {name!r} of dtype {', '.join(_DTYPES)}, got {_short(fields['dtype'])}"
        )
    shape, offsets = fields["shape"], fields["data_offsets"]
    # NumPy counts the bytes of an empty array as if no size were 0.
    if (
        not _are_sizes(shape)
        or len(shape) > _MAX_DIMENSIONS
        or math.prod(size or 1 for size in shape) * dtype.itemsize > _MAX_TENSOR_BYTES
    ):
        raise CheckpointFormatError(
            path, f"expected a shape of at most {_MAX_DIMENSIONS} sizes of tensor {name!r}, got {_short(shape)}"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointFormatError(path, f"expected two data_offsets of tensor {name!r}, got {_short(offsets)}")
    num_bytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != num_bytes:
        raise CheckpointFormatError(
            path, f"expected {num_bytes} bytes of tensor {name!r} for its shape and dtype, got {_short(offsets)}"
        )
    begin, end = data_start + offsets[0], data_start + offsets[1]
    return TensorEntry(name, dtype, tuple(shape), begin, end, fields["dtype"])


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= _MAX_TENSOR_BYTES for value in values)


def _known_digest(value: str) -> str | None:
    """Returns the algorithm of a digest that we can check, otherwise None."""
    match = _DIGEST.fullmatch(value)
    return match[1] if match and match[1] in ALGORITHMS else None


def _check_header_digest(path: Path, head: bytes) -> str:
    """Returns the algorithm of the header's digest, which is right."""
    if head[8:_DIGEST_START] != _PREFIX:
        _parse_json(path, head[8:])
        raise _foreign(path, f"expected {_HEADER_DIGEST_KEY} first in its metadata, got {head[8:64]!r}")
    value = head[_DIGEST_START:].partition(b'"')[0][:_MAX_DIGEST]
    algorithm = _known_digest(value.decode(errors="replace"))
    blank = bytearray(head)
    blank[_DIGEST_START : _DIGEST_START + len(value)] = b" " * len(value)
    if algorithm is None or digest_text(algorithm, memoryview(blank)).encode() != value:
        raise CheckpointDigestError(
            path,
            "the header is damaged or was rewritten by another program; use an earlier checkpoint or a copy",
        )
    return algorithm


def _decode_meta(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    try:
        return {key: json.loads(value) for key, value in metadata.items()}
    except (ValueError, RecursionError) as cause:
        raise CheckpointFormatError(path, f"expected metadata in JSON, got '{cause}'") from None


def _foreign(path: Path, detail: str) -> CheckpointFormatError:
    return CheckpointFormatError(path, f"not a checkpoint that blutrain wrote: {detail}")


def _truncated(path: Path, detail: str) -> CheckpointFormatError:
    return CheckpointFormatError(path, f"truncated: {detail}; use an earlier checkpoint or a copy of this one")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
