"""Checkpoint files.

Their header is covered by a digest, which no mutation gets right. So an input may ask for digests that fit: what is
behind them is then reached as by somebody who writes such files on purpose.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
from targets import MemoryFile, Target, only

from blutrain.checkpoint import CheckpointError
from blutrain.checkpoint import format as layout
from blutrain.checkpoint.files import OsFiles
from blutrain.checkpoint.stream import load_file, read_header, write_file

_FILES = OsFiles()
_FILE = MemoryFile("checkpoint")
_HONEST_HEADER, _HONEST_TENSORS, _HONEST_LENGTH = 1, 2, 4
HONEST = _HONEST_HEADER | _HONEST_TENSORS | _HONEST_LENGTH
"""Flags of an input whose digests and length fit."""
_DIGEST = b"sha256:" + b"0" * 64


def _with_tensor_digests(text: bytes, body: bytes) -> bytes:
    """The header with the digests of the bytes that its offsets name; unchanged where it makes no sense."""
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError, KeyError, OverflowError):
        tree = json.loads(text)
        for name, entry in tree.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                digest = hashlib.sha256(body[begin:end]).hexdigest()
                tree["__metadata__"][f"digest.{name}"] = f"sha256:{digest}"
        return json.dumps(tree, separators=(",", ":")).encode()
    return text


def _file_of(data: bytes) -> bytes:
    """Input: flags, length of the header in 2 bytes, header, bytes of the tensors; without flags the file itself."""
    flags, size, rest = data[0], int.from_bytes(data[1:3], "little"), data[3:]
    if not flags & 7:
        return rest
    text, body = rest[:size], rest[size:]
    if flags & _HONEST_TENSORS:
        text = _with_tensor_digests(text, body)
    length = len(text) if flags & _HONEST_LENGTH else size
    head = bytearray(length.to_bytes(8, "little") + text)
    at = layout._DIGEST_START
    if flags & _HONEST_HEADER and len(head) >= at + len(_DIGEST):
        head[at : at + len(_DIGEST)] = b" " * len(_DIGEST)
        head[at : at + len(_DIGEST)] = b"sha256:" + hashlib.sha256(head).hexdigest().encode()
    return bytes(head) + body


def run(data: bytes) -> bool:
    """Reads the header, then loads the tensors: what comes out has the bytes of the file."""
    if len(data) < 3:
        return False
    file = _file_of(data)
    path = _FILE.write(file)
    with only(CheckpointError) as outcome:
        read_header(_FILES, path)
        tensors, header = load_file(_FILES, path, 1)
        assert set(tensors) == {entry.name for entry in header.entries}
        for entry in header.entries:
            assert tensors[entry.name].tobytes() == file[entry.begin : entry.end]
    return outcome.accepted


def _seed(flags: int, tensors: dict[str, np.ndarray], meta: dict[str, object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed"
        write_file(_FILES, path, tensors, meta, "sha256", 1)
        file = path.read_bytes()
    length = int.from_bytes(file[:8], "little")
    text = file[8 : 8 + length].rstrip()
    body = file[8 + length :]
    return bytes([flags]) + len(text).to_bytes(2, "little") + (file if not flags else text + body)


def seeds() -> list[bytes]:
    """Checkpoints of all dtypes and ranks, whole, and with digests to be made."""
    dtypes = ("f8", "f4", "f2", "i8", "u4", "i2", "u1", "?")
    tensors = {f"t{code}": np.arange(6).reshape(2, 3).astype(code) for code in dtypes}
    tensors |= {"scalar": np.full((), 3.0, np.float32), "empty": np.zeros((0, 7), np.float32)}
    meta: dict[str, object] = {"step": 3, "config": {"model": {"layers": 2}}, "loss": 1.5, "text": "\u00e9"}
    small = {"w": np.arange(4, dtype=np.float32)}
    return [
        _seed(flags, *content)
        for flags in (0, 1 | 4, 1 | 2 | 4)
        for content in ((tensors, meta), (small, {}), ({}, {"a": 1}))
    ]


_WORDS = (
    b'"F32"', b'"I64"', b'"BOOL"', b'"dtype"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b"null", b"true",
    b"{}", b"[]", b"[0,0]", b"[0,16]", b"[0,9223372036854775807]", b"[4611686018427387904]",
    b"[0,4611686018427387904]", b"-1", b"1e999", b"NaN", b"[" * 2000, b'{"a":' * 2000, b'"\\ud800"', b'"digest.w"',
    b"sha256:", b"blake2b-256:", b'"w":', b",",
)  # fmt: skip
TARGETS = (Target("checkpoint", run, seeds, _WORDS),)
