"""The ctypes declarations of libblutrain, as in ``blutrain/blutrain.h``; nothing else speaks to it directly."""

from __future__ import annotations

import ctypes

import libblutrain
from blutrain.errors import DataAccessError, ShardError

STATE_SIZE = 8
"""int64 values of a loader's state."""

_lib = libblutrain.load_library()


class LoaderOptions(ctypes.Structure):
    """``blutrain_loader_options``."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("shuffle", ctypes.c_uint32),
        ("one_pass", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("batch", ctypes.c_int64),
        ("context", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("world", ctypes.c_int64),
        ("vocabulary", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
    )


class LoaderInfo(ctypes.Structure):
    """``blutrain_loader_info``."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("num_tokens", ctypes.c_int64),
        ("num_windows", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("shard", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    )


def _declare(name: str, result: object, *arguments: object) -> ctypes._NamedFuncPointer:
    function = getattr(_lib, name)
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]


_int64_pointer = ctypes.POINTER(ctypes.c_int64)

last_error = _declare("blutrain_last_error", ctypes.c_char_p)
shard_num_tokens = _declare("blutrain_shard_num_tokens", ctypes.c_int32, ctypes.c_char_p, _int64_pointer)
shard_token_bytes = _declare("blutrain_shard_token_bytes", ctypes.c_int32, ctypes.c_char_p, _int64_pointer)
loader_create = _declare(
    "blutrain_loader_create",
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.c_int64,
    ctypes.POINTER(LoaderOptions),
    ctypes.POINTER(ctypes.c_void_p),
)
loader_destroy = _declare("blutrain_loader_destroy", None, ctypes.c_void_p)
loader_next = _declare(
    "blutrain_loader_next", ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32
)
loader_error = _declare("blutrain_loader_error", ctypes.c_char_p, ctypes.c_void_p)
loader_get_info = _declare("blutrain_loader_get_info", ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(LoaderInfo))
loader_get_state = _declare(
    "blutrain_loader_get_state", ctypes.c_int32, ctypes.c_void_p, _int64_pointer, ctypes.c_int64
)
loader_set_state = _declare(
    "blutrain_loader_set_state", ctypes.c_int32, ctypes.c_void_p, _int64_pointer, ctypes.c_int64
)


def loader_next_address() -> int:
    """Address of ``blutrain_loader_next``, for native callers."""
    address = ctypes.cast(loader_next, ctypes.c_void_p).value
    assert address is not None
    return address


_EXCEPTIONS: dict[int, type[Exception]] = {3: MemoryError, 5: RuntimeError, 6: DataAccessError}


def check(status: int) -> None:
    """Raise what a status stands for, with the library's message.

    Raises:
        ShardError: an impossible value, or a token beyond the vocabulary.
        MemoryError: out of memory.
        RuntimeError: a failure inside the library.
        DataAccessError: a file can not be read.
    """
    if status:
        raise _EXCEPTIONS.get(status, ShardError)(last_error().decode(errors="replace"))
