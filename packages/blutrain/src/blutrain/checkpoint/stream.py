"""Writes, verifies and loads one checkpoint file; `blutrain.checkpoint.store` decides which."""

from __future__ import annotations

import collections
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from blutrain.checkpoint import format as layout
from blutrain.checkpoint.errors import CheckpointError, read_error
from blutrain.checkpoint.files import Files, write_all

Array = layout.Array
T = TypeVar("T")

_CHUNK_BYTES = 4 << 20
_WRITE_AHEAD_BYTES = 256 << 20


def default_num_threads() -> int:
    """Threads that hash beside the one that writes or reads: the processors of this process, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


def write_file(
    files: Files,
    path: Path,
    tensors: Mapping[str, layout.AnyArray],
    meta: Mapping[str, Any],
    algorithm: str | None,
    num_threads: int,
) -> layout.Header:
    """Writes a file to ``path`` and syncs it, in one pass: each tensor is hashed while it is written.

    Without digests no more than one tensor is held at a time. The head comes last, so that a file whose writing
    stopped is not even a safetensors file.

    Args:
        files: operations on the disk.
        path: the file, which is replaced.
        tensors: arrays of any layout and byte order by name, or what makes them; they must not change meanwhile.
        meta: JSON values by name; texts where there are no digests.
        algorithm: a key of `layout.ALGORITHMS`, or None for a file without digests.
        num_threads: threads that hash.

    Returns:
        The header with every digest.
    """
    header = layout.plan(path, tensors, meta, algorithm)
    with _closing(files, files.create(path)) as descriptor, ThreadPoolExecutor(num_threads) as pool:

        def write_tensor(entry: layout.TensorEntry) -> Future[str]:
            given = tensors[entry.name]
            data = _bytes_of(given.make() if isinstance(given, layout.DeferredArray) else given, entry.dtype)
            digest = pool.submit(layout.digest_text, algorithm, data) if algorithm else _no_digest()
            write_all(files, descriptor, data, entry.begin)
            return digest

        # The window bounds how many copies exist at a time, of arrays that are not contiguous or only made here.
        window = 2 * num_threads if algorithm else 1
        for entry, digest in _windowed(write_tensor, header.entries, window, _WRITE_AHEAD_BYTES):
            header.digests[entry.name] = digest
        write_all(files, descriptor, memoryview(layout.encode(header)), 0)
        files.fsync(descriptor)
    return header


def _no_digest() -> Future[str]:
    done: Future[str] = Future()
    done.set_result("")
    return done


def verify_file(files: Files, path: Path, num_threads: int) -> layout.Header:
    """Reads ``path`` from beginning to end and checks every digest; returns its header.

    Raises:
        CheckpointFormatError: the file is not a checkpoint, or damaged.
        CheckpointError: the file cannot be read.
    """
    with _read_errors(path), _closing(files, files.open(path)) as descriptor, ThreadPoolExecutor(num_threads) as pool:
        header = _read_header(files, path, descriptor)

        def check_tensor(entry: layout.TensorEntry) -> Future[str]:
            algorithm = header.digests[entry.name].partition(":")[0]
            return pool.submit(_digest_of_range, files, descriptor, algorithm, entry.begin, entry.end)

        for entry, digest in _windowed(check_tensor, header.entries, 2 * num_threads):
            layout.compare_digest(path, header, entry.name, digest)
    return header


def read_header(files: Files, path: Path) -> layout.Header:
    """Reads and checks the head of ``path`` alone, which is quick; the tensors' bytes stay unread."""
    with _read_errors(path), _closing(files, files.open(path)) as descriptor:
        return _read_header(files, path, descriptor)


def load_file(files: Files, path: Path, num_threads: int) -> tuple[dict[str, Array], layout.Header]:
    """Maps ``path`` into memory, checks every digest and returns its tensors without copying them.

    The arrays are private views: writing to one never reaches the file, and they outlive its removal.

    Raises:
        CheckpointFormatError: the file is not a checkpoint, or damaged.
        CheckpointError: the file cannot be read.
    """
    with _read_errors(path), _closing(files, files.open(path)) as descriptor, ThreadPoolExecutor(num_threads) as pool:
        header = _read_header(files, path, descriptor)
        mapping = mmap.mmap(descriptor, header.file_size, access=mmap.ACCESS_COPY)
        mapping.madvise(mmap.MADV_WILLNEED)
        whole = memoryview(mapping)

        def check_tensor(entry: layout.TensorEntry) -> Future[None]:
            return pool.submit(layout.check_digest, path, header, entry.name, whole[entry.begin : entry.end])

        for _ in _windowed(check_tensor, header.entries, 2 * num_threads):
            pass
    return {entry.name: _array_at(whole, entry) for entry in header.entries}, header


def _read_header(files: Files, path: Path, descriptor: int) -> layout.Header:
    file_size = os.fstat(descriptor).st_size
    length = layout.header_length(path, _read_range(files, descriptor, 0, min(8, file_size)), file_size)
    return layout.decode(path, _read_range(files, descriptor, 0, length), file_size)


def _read_range(files: Files, descriptor: int, begin: int, end: int) -> bytes:
    return b"".join(bytes(piece) for piece in _pieces(files, descriptor, begin, end))


def _digest_of_range(files: Files, descriptor: int, algorithm: str, begin: int, end: int) -> str:
    state = layout.ALGORITHMS[algorithm]()
    for piece in _pieces(files, descriptor, begin, end):
        state.update(piece)
    return f"{algorithm}:{state.hexdigest()}"


def _pieces(files: Files, descriptor: int, begin: int, end: int) -> Iterator[memoryview]:
    """Yields a file's bytes ``begin`` to ``end`` in pieces, each valid until the next; fewer if the file ends early."""
    if begin >= end:
        return
    # Pages of its own: the allocator of the C library would keep them for every thread that ever hashed.
    buffer = memoryview(mmap.mmap(-1, min(_CHUNK_BYTES, end - begin), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    while begin < end:
        count = files.read(descriptor, buffer[: end - begin], begin)
        if count == 0:
            return
        yield buffer[:count]
        begin += count


def _bytes_of(array: Array, dtype: np.dtype[Any]) -> memoryview:
    """Returns the bytes of an array, row-major and little-endian, without a copy where it is so already."""
    dense = np.asarray(array, dtype=dtype, order="C")
    return dense.reshape(-1).view(np.uint8).data


def _array_at(whole: memoryview, entry: layout.TensorEntry) -> Array:
    if entry.begin == entry.end:
        return np.empty(entry.shape, entry.dtype)
    return np.frombuffer(whole[entry.begin : entry.end], entry.dtype).reshape(entry.shape)


def _windowed(
    start: Callable[[layout.TensorEntry], Future[T]],
    entries: tuple[layout.TensorEntry, ...],
    window: int,
    max_bytes: float = math.inf,
) -> Iterator[tuple[layout.TensorEntry, T]]:
    """Starts a piece of work per entry, ahead of the results, which come in order.

    At most ``window`` entries and, but for a single larger one, at most ``max_bytes`` are under way.
    """
    pending: collections.deque[tuple[layout.TensorEntry, Future[T]]] = collections.deque()
    try:
        for entry in entries:
            size = entry.end - entry.begin
            while pending and size + sum(other.end - other.begin for other, _ in pending) > max_bytes:
                first, future = pending.popleft()
                yield first, future.result()
            pending.append((entry, start(entry)))
            if len(pending) >= window:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()
    finally:
        for _, future in pending:
            future.cancel()


@contextmanager
def _closing(files: Files, descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        files.close(descriptor)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except OSError as cause:
        raise read_error(path, cause) from cause
