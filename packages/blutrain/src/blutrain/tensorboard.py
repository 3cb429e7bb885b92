"""Scalars for TensorBoard: its event files, written by us.

A file is a row of records (TFRecord), each an ``Event`` protocol buffer (tensorflow/core/util/event.proto):

    8 bytes  length of the event       4 bytes  checksum of those 8
    ...      the event                 4 bytes  checksum of the event

The checksum is CRC-32C, rotated right by 15 bits, plus a constant. Of the protocol we need a few fields, so encoding
them here costs less than a dependency: the usual writers start a thread and a queue, and import PyTorch if it is there.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from blutrain.metrics import RunFolderAccessError

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_MASK_DELTA = 0xA282EAD8


class EventWriter:
    """Appends scalars to a new event file. Nothing is buffered in this process.

    Args:
        folder: made when it is missing; earlier files in it stay.
        first_step: TensorBoard drops what earlier files hold from this step on: what a crash undid.

    Raises:
        RunFolderAccessError: the file cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], first_step: int = 0) -> None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._path, descriptor = _create(Path(folder))
        except OSError as cause:
            raise RunFolderAccessError(folder, cause) from cause
        self._descriptor: int | None = descriptor
        self._append(_event(step=0, version="brain.Event:2") + _event(first_step, session_start=True))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one point per tag, such as ``train/loss``.

        Raises:
            RunFolderAccessError: the disk is full, or the file was deleted.
        """
        self._append(_event(step, values=values))

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, records: bytes) -> None:
        assert self._descriptor is not None
        data = memoryview(records)
        try:
            while data.nbytes:
                data = data[os.write(self._descriptor, data) :]
            if not os.fstat(self._descriptor).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the file was deleted")
        except OSError as cause:
            raise RunFolderAccessError(self._path, cause) from cause


def _create(folder: Path) -> tuple[Path, int]:
    """Makes an event file whose name comes after those of earlier ones: that is the order in which they are read."""
    moment = time.time_ns() // 1_000_000
    while True:
        path = folder / f"events.out.tfevents.{moment:013d}.{socket.gethostname()}.{os.getpid()}"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            moment += 1


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C of ``data`` (RFC 3720, appendix B.4)."""
    state = 0xFFFFFFFF
    for byte in data:
        state = _TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def masked_checksum(data: bytes) -> bytes:
    """Returns the checksum that stands in a record, little-endian."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
        table.append(state)
    return tuple(table)


_TABLE = _crc_table()


def _event(
    step: int, *, version: str = "", session_start: bool = False, values: Mapping[str, float] | None = None
) -> bytes:
    """Returns one record."""
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step)  # 1: wall_time, 2: step
    if version:
        event += b"\x1a" + _delimited(version.encode())  # 3: file_version
    if session_start:
        event += b"\x3a" + _delimited(b"\x08\x01")  # 7: session_log, its 1: status START
    if values:
        points = (
            b"\x0a"
            + _delimited(tag.encode())
            + b"\x15"
            + struct.pack("<f", _to_float32(value))  # 1: tag, 2: simple_value
            for tag, value in values.items()
        )
        event += b"\x2a" + _delimited(
            b"".join(b"\x0a" + _delimited(point) for point in points)
        )  # 5: summary, its 1: value
    length = struct.pack("<Q", len(event))
    return length + masked_checksum(length) + event + masked_checksum(event)


def _to_float32(value: float) -> float:
    """Returns what ``struct`` can pack as float32: too large a number becomes infinite, as a cast would make it."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def _delimited(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
