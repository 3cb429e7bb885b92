"""ctypes declarations of libblutensor, and statuses to exceptions. Nothing else."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import NoReturn

import blualloc.errors
import libblutensor

from .errors import (
    AutogradError,
    CaptureError,
    DeviceLostError,
    DTypeError,
    IndexOutOfRangeError,
    ShapeError,
    UnsupportedError,
)

MAX_RANK = 8

lib = libblutensor.load_library()


class TensorInfo(Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("rank", c_int32),
        ("requires_grad", c_int32),
        ("is_leaf", c_int32),
        ("contiguous", c_int32),
        ("shape", c_int64 * MAX_RANK),
        ("strides", c_int64 * MAX_RANK),
        ("offset", c_int64),
        ("storage_id", c_uint64),
        ("storage_bytes", c_uint64),
        ("version", c_uint64),
        ("grad_fn", c_char_p),
    )


class AttrList(Union):
    """What an attribute's list lies in."""

    _fields_ = (("ints", POINTER(c_int64)), ("floats", POINTER(c_double)))


class Attr(Structure):
    _anonymous_ = ("list",)
    _fields_ = (
        ("kind", c_int32),
        ("count", c_int32),
        ("i", c_int64),
        ("f", c_double),
        ("list", AttrList),
        ("s", c_char_p),
    )


class NativeView(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
        ("strides", c_int64 * MAX_RANK),
    )


class AutogradStats(Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("live_nodes", c_uint64),
        ("arena_bytes", c_uint64),
        ("arena_resets", c_uint64),
    )


class ProgramInfo(Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("num_calls", c_int64),
        ("num_buffers", c_int64),
        ("num_slots", c_int64),
        ("num_outputs", c_int64),
        ("arena_bytes", c_uint64),
        ("peak_live_bytes", c_uint64),
        ("external_bytes", c_uint64),
        ("output_bytes", c_uint64),
        ("workspace_peak_bytes", c_uint64),
        ("device_type", c_int32),
        ("device_index", c_int32),
    )


class FamilyInfo(Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("num_programs", c_uint32),
        ("arena_bytes", c_uint64),
        ("peak_live_bytes", c_uint64),
    )


ReleaseFn = CFUNCTYPE(None, c_void_p)
GradHookFn = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(c_void_p))
CustomGradientFn = CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), c_int32, POINTER(c_void_p), c_int32)
OnOpFn = CFUNCTYPE(c_int32, c_void_p, c_int64, c_char_p)
OpHookFn = CFUNCTYPE(None, c_void_p, c_char_p)
InterruptedFn = CFUNCTYPE(c_int32, c_void_p)
InferFn = CFUNCTYPE(c_int32, c_void_p, POINTER(NativeView), POINTER(Attr), POINTER(NativeView))
LaunchFn = CFUNCTYPE(c_int32, c_void_p, POINTER(NativeView), POINTER(Attr), POINTER(NativeView), c_void_p)
GradientFn = CFUNCTYPE(
    c_int32, c_void_p, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_void_p), POINTER(Attr), POINTER(c_void_p)
)


class OperatorDesc(Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("num_inputs", c_int32),
        ("num_outputs", c_int32),
        ("num_attrs", c_int32),
        ("name", c_char_p),
        ("doc", c_char_p),
        ("input_names", POINTER(c_char_p)),
        ("attr_names", POINTER(c_char_p)),
        ("attr_kinds", POINTER(c_int32)),
        ("written_inputs", c_uint64),
        ("saved_inputs", c_uint64),
        ("saved_outputs", c_uint64),
        ("lane", c_int32),
        ("effect", c_int32),
        ("infer", InferFn),
        ("launch_cpu", LaunchFn),
        ("launch_cuda", LaunchFn),
        ("gradient", GradientFn),
        ("context", c_void_p),
    )


class Hooks(Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("op_begin", OpHookFn),
        ("op_end", OpHookFn),
        ("context", c_void_p),
    )


class RunArgs(Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("num_phases", c_int32),
        ("programs", POINTER(c_void_p)),
        ("repeats", POINTER(c_int64)),
        ("steps", c_int64),
        ("source_next", c_void_p),
        ("source_context", c_void_p),
        ("num_feeds", c_int32),
        ("num_metrics", c_int32),
        ("feeds", POINTER(c_void_p)),
        ("feed_values", POINTER(c_double)),
        ("metrics", POINTER(c_void_p)),
        ("metric_values", POINTER(c_double)),
        ("interrupted", InterruptedFn),
        ("interrupted_context", c_void_p),
        ("steps_done", c_int64),
        ("host_seconds", c_double),
        ("slice_seconds", c_double),
        ("synchronous", c_int32),
        ("reserved", c_int32),
    )


_handles = POINTER(c_void_p)
_int64s = POINTER(c_int64)


def _declare(name: str, restype: type | None, *argtypes: object) -> None:
    function = getattr(lib, name)
    function.restype = restype
    function.argtypes = argtypes


_declare("blutensor_last_error", c_char_p)
_declare("blutensor_abi_version", c_uint32)
_declare("blutensor_promote", c_int32, c_int32, c_int32, POINTER(c_int32))
_declare("blutensor_set_error", None, c_char_p)
_declare("blutensor_empty", c_int32, _int64s, c_int32, c_int32, c_int32, c_int32, _handles)
_declare(
    "blutensor_from_memory",
    c_int32,
    *(c_void_p, _int64s, _int64s, c_int32, c_int32, c_int32, c_int32, ReleaseFn, c_void_p, _handles),
)
_declare("blutensor_tensor_retain", None, c_void_p)
_declare("blutensor_tensor_release", None, c_void_p)
_declare("blutensor_tensor_get_info", c_int32, c_void_p, POINTER(TensorInfo))
_declare("blutensor_tensor_is_shared", c_int32, c_void_p)
_declare("blutensor_tensor_data", c_int32, c_void_p, c_int32, c_char_p, _handles)
_declare("blutensor_tensor_address", c_void_p, c_void_p)
_declare("blutensor_to_dlpack", c_int32, c_void_p, _handles)
_declare("blutensor_from_dlpack", c_int32, c_void_p, _handles)
_declare("blutensor_dlpack_destructor", c_void_p, c_void_p, c_void_p)
_declare("blutensor_device_count", c_int32, c_int32)
_declare("blutensor_cuda_unavailable_reason", c_char_p)
_declare("blutensor_check_device", c_int32, c_int32, c_int32)
_declare("blutensor_device_properties", c_char_p, c_int32)
_declare("blutensor_synchronize", c_int32, c_int32, c_int32)
_declare("blutensor_compute_stream", c_int32, c_int32, c_int32, _handles)
_declare("blutensor_event_record", c_int32, c_int32, c_int32, _handles)
_declare("blutensor_event_wait", c_int32, c_void_p)
_declare("blutensor_event_release", None, c_void_p)
_declare("blutensor_set_default_device", c_int32, c_int32, c_int32)
_declare("blutensor_empty_pinned", c_int32, _int64s, c_int32, c_int32, _handles)
_declare("blutensor_copy_to_device", c_int32, c_void_p, c_int32, c_int32, _handles)
_declare("blutensor_copy_bytes", c_int32, c_void_p, c_void_p)
_declare("blutensor_tensor_read", c_int32, c_void_p, c_char_p, c_void_p, c_uint64)
_declare("blutensor_tensor_write", c_int32, c_void_p, c_char_p, c_void_p, c_uint64)
_declare("blutensor_stream_begin", c_int32, c_void_p, c_void_p)
_declare("blutensor_operator_table", c_char_p)
_declare(
    "blutensor_call",
    c_int32,
    *(c_uint32, _handles, c_int32, c_int64, POINTER(Attr), c_int32, _handles, c_int32, POINTER(c_int32)),
)
_declare(
    "blutensor_call_on",
    c_int32,
    *(c_int32, c_int32),
    *(c_uint32, _handles, c_int32, c_int64, POINTER(Attr), c_int32, _handles, c_int32, POINTER(c_int32)),
)
_declare("blutensor_register_operator", c_int32, POINTER(OperatorDesc), POINTER(c_uint32))
_declare("blutensor_set_requires_grad", c_int32, c_void_p, c_int32)
_declare("blutensor_get_grad", c_int32, c_void_p, _handles)
_declare("blutensor_set_grad", c_int32, c_void_p, c_void_p)
_declare("blutensor_set_grad_dtype", c_int32, c_void_p, c_int32)
_declare("blutensor_get_grad_dtype", c_int32, c_void_p, POINTER(c_int32))
_declare("blutensor_mark_grad_stale", c_int32, c_void_p)
_declare("blutensor_has_fresh_grad", c_int32, c_void_p, POINTER(c_int32))
_declare("blutensor_detach", c_int32, c_void_p, _handles)
_declare("blutensor_grad_enabled", c_int32)
_declare("blutensor_set_grad_enabled", None, c_int32)
_declare("blutensor_backward", c_int32, _handles, _handles, c_int32, c_int32, c_int32)
_declare(
    "blutensor_grad",
    c_int32,
    *(_handles, _handles, c_int32, _handles, c_int32, c_int32, c_int32, c_int32, _handles),
)
_declare("blutensor_add_hook", c_int32, c_void_p, GradHookFn, ReleaseFn, c_void_p, POINTER(c_uint64))
_declare("blutensor_remove_hook", c_int32, c_void_p, c_uint64)
_declare(
    "blutensor_record_custom",
    c_int32,
    *(c_char_p, _handles, c_int32, _handles, c_int32, CustomGradientFn, ReleaseFn, c_void_p),
)
_declare("blutensor_autograd_get_stats", c_int32, POINTER(AutogradStats))
_declare("blutensor_generator_state", c_int32, _handles)
_declare("blutensor_generator_state_on", c_int32, c_int32, c_int32, _handles)
_declare("blutensor_generator_advance", c_int32)
_declare("blutensor_generator_next_op_id", c_int64)
_declare("blutensor_generator_set_op_id", None, c_int64)
_declare("blutensor_generator_op_id", c_int64)
_declare("blutensor_generator_begin_step", None)
_declare("blutensor_generator_create", c_int32, _handles)
_declare("blutensor_generator_release", None, c_void_p)
_declare("blutensor_generator_use", None, c_void_p)
_declare("blutensor_capture_begin", c_int32, c_char_p, c_int32)
_declare("blutensor_capture_end", c_int32, _handles, c_int32, _handles, c_int32, _handles)
_declare("blutensor_capture_abort", None)
_declare("blutensor_capture_active", c_int32)
_declare("blutensor_program_compare", c_int32, c_void_p, c_void_p)
_declare("blutensor_program_finalize", c_int32, c_void_p, c_void_p)
_declare("blutensor_program_release", None, c_void_p)
_declare("blutensor_program_replay", c_int32, c_void_p, c_int32, OnOpFn, c_void_p)
_declare("blutensor_program_text", c_char_p, c_void_p)
_declare("blutensor_program_execution", c_char_p, c_void_p)
_declare("blutensor_program_get_info", c_int32, c_void_p, POINTER(ProgramInfo))
_declare("blutensor_family_create", c_int32, c_char_p, _handles)
_declare("blutensor_family_release", None, c_void_p)
_declare("blutensor_family_give_back_arena", c_int32, c_void_p)
_declare("blutensor_family_run", c_int32, c_void_p, POINTER(RunArgs))
_declare("blutensor_family_get_info", c_int32, c_void_p, POINTER(FamilyInfo))
_declare("blutensor_set_isa", c_int32, c_char_p)
_declare("blutensor_isa", c_char_p)
_declare("blutensor_set_float32_math", c_int32, c_char_p)
_declare("blutensor_float32_math", c_char_p)
_declare("blutensor_set_hooks", c_int32, POINTER(Hooks))

OUT_OF_MEMORY = 3
_EXCEPTIONS: dict[int, type[Exception] | type[KeyboardInterrupt]] = {
    1: ShapeError,
    2: DTypeError,
    4: UnsupportedError,
    5: RuntimeError,
    6: OSError,
    7: KeyboardInterrupt,
    8: IndexOutOfRangeError,
    9: CaptureError,
    10: AutogradError,
    11: DeviceLostError,
}


class _Pending(threading.local):
    """The exception that a Python callback raised below a native call of this thread: its check raises it again."""

    error: BaseException | None = None


_pending = _Pending()


def last_error() -> str:
    """The message of this thread's last failure."""
    message: bytes = lib.blutensor_last_error()
    return message.decode(errors="replace")


def raise_status(status: int) -> NoReturn:
    """Raises what a status stands for."""
    error, _pending.error = _pending.error, None
    if error is not None:
        raise error
    message = last_error()
    if status == OUT_OF_MEMORY:
        if message.startswith("[allocate]"):
            blualloc.errors.check(status)
        raise MemoryError(message)
    if status == 5 and message.startswith("[backward]"):
        raise AutogradError(message)
    raise _EXCEPTIONS.get(status, RuntimeError)(message)


def check(status: int) -> None:
    """Raises unless the status is 0."""
    if status:
        raise_status(status)


def callback_failed(error: BaseException) -> int:
    """Keeps an exception of a Python callback for the native call's check; returns the status to give back."""
    _pending.error = error
    lib.blutensor_set_error(f"{type(error).__name__}: {error}".encode())
    return 5


class OwnedHandle(c_void_p * 1):  # type: ignore[misc]
    """Room for the tensor that a native call gives back. One that nobody adopted, as after a Ctrl-C, is released."""

    def __del__(self, _release: Callable[[int], None] = lib.blutensor_tensor_release) -> None:
        if self[0]:
            _release(self[0])


def release_handles(handles: ctypes.Array[c_void_p]) -> None:
    """Releases the tensors of an array that nobody adopted."""
    for i, handle in enumerate(handles):
        if handle:
            handles[i] = None
            lib.blutensor_tensor_release(handle)


def handle_array(handles: list[int | None]) -> ctypes.Array[c_void_p]:
    """Handles as a C array."""
    return (c_void_p * len(handles))(*handles)


def int64_array(values: tuple[int, ...] | list[int]) -> ctypes.Array[c_int64]:
    """Integers as a C array."""
    return (c_int64 * len(values))(*values)
