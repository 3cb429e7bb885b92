"""Capture: a function of tensors becomes a Program."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import _native
from ._arguments import integer, text
from .devices import CPU, DeviceKey, as_device, device_name
from .dtypes import described
from .errors import CaptureError, DTypeError, ShapeError
from .tensor import Tensor

if TYPE_CHECKING:
    from .family import ProgramFamily

_lib = _native.lib
_replay = _lib.blutensor_program_replay
_no_callback = _native.OnOpFn()

Level = Literal["operator", "primitive"]


def is_capturing() -> bool:
    """Whether this thread is recording a captured function."""
    return bool(_lib.blutensor_capture_active())


class Program:
    """What a capture recorded: operator calls over numbered buffers with known lifetimes; `str()` is its text."""

    def __init__(self, slots: list[Tensor], structure: Any) -> None:
        self._handle: int | None = None
        self._room = (ctypes.c_void_p * 1)()  # the native side puts the handle where it will be released from
        self.slots = slots
        self.outputs: list[Tensor] = []
        self._structure = structure

    def __del__(self, _release: Any = _lib.blutensor_program_release) -> None:
        room = getattr(self, "_room", None)
        if room is not None and room[0]:
            _release(room[0])

    def __str__(self) -> str:
        text: bytes = _lib.blutensor_program_text(self._handle)
        return text.decode()

    def _info(self) -> _native.ProgramInfo:
        info = _native.ProgramInfo(ctypes.sizeof(_native.ProgramInfo))
        _native.check(_lib.blutensor_program_get_info(self._handle, ctypes.byref(info)))
        return info

    @property
    def device(self) -> str:
        """Where its operators run."""
        info = self._info()
        return device_name((info.device_type, info.device_index))

    @property
    def execution(self) -> str:
        """What a replay does: "native loop", "one graph of 412 nodes", or "launches one by one: " and why."""
        text: bytes = _lib.blutensor_program_execution(self._handle)
        return text.decode(errors="replace")

    @property
    def num_calls(self) -> int:
        """Number of operator calls."""
        return int(self._info().num_calls)

    @property
    def memory(self) -> dict[str, int]:
        """Sizes in bytes.

        `arena_bytes` as planned, `peak_live_bytes` (no plan can be smaller), `external_bytes` of tensors that existed
        before, `output_bytes`, `workspace_peak_bytes` of the largest scratch.
        """
        info = self._info()
        names = ("arena_bytes", "peak_live_bytes", "external_bytes", "output_bytes", "workspace_peak_bytes")
        return {name: getattr(info, name) for name in names}

    def replay(
        self, level: Literal["native", "operator"] = "native", on_op: Callable[[int, str], None] | None = None
    ) -> None:
        """Runs the program on what is in its slots; results are in `outputs`.

        Args:
            level: "native" is a loop over the planned arena without the interpreter, on a GPU one launch of a graph
                (see `execution`); "operator" allocates every buffer at its first use and frees it after its last (for
                profilers and debugging): the same bits.
            on_op: Called before every operator with its index and name; "operator" only.
        """
        if level == "native":
            _native.check(_replay(self._handle, 0, _no_callback, None))
            return

        def call(_context: int, index: int, name: bytes) -> int:
            try:
                if on_op is not None:
                    on_op(index, name.decode())
                return 0
            except BaseException as error:
                return _native.callback_failed(error)

        _native.check(_replay(self._handle, 1, _native.OnOpFn(call), None))


# ---------------------------------------------------------------- nested results


def _flatten(value: Any, tensors: list[Tensor]) -> Any:
    """The structure of a nested result; its tensors are appended to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return len(tensors) - 1
    kind: Any = type(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[_Leaf(_flatten(v, tensors)) for v in value])
    if isinstance(value, (tuple, list)):
        return kind([_Leaf(_flatten(v, tensors)) for v in value])
    if isinstance(value, dict):
        return {k: _Leaf(_flatten(v, tensors)) for k, v in value.items()}
    if value is None:
        return None
    raise CaptureError(
        "[capture] a captured function may return tensors, None, and tuples, lists and dicts of them; "
        f"got {type(value).__name__}"
    )


class _Leaf:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _unflatten(structure: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(structure, int):
        return tensors[structure]
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {k: _unflatten(v.value, tensors) for k, v in structure.items()}
    if hasattr(structure, "_fields"):
        return type(structure)(*[_unflatten(v.value, tensors) for v in structure])
    return type(structure)([_unflatten(v.value, tensors) for v in structure])


# ---------------------------------------------------------------- captured functions


class _Recording:
    """One signature (shapes and dtypes of the arguments) of a captured function, on its way to a program."""

    def __init__(self, slots: list[Tensor]) -> None:
        self.slots = slots
        self.first: Program | None = None  # until it was compared with the second
        self.program: Program | None = None
        self.result: Any = None
        self.seen: list[Any] = []  # geometry of the arguments of the last call
        # Copied to by address where both are on the cpu; 0 elsewhere.
        self.targets = [
            (_lib.blutensor_tensor_address(s._handle) if s._fixed()[3] == CPU else 0, s.nbytes) for s in slots
        ]


def _described(argument: Tensor) -> str:
    """Dtype and shape, and the device where it is not the cpu."""
    where = "" if argument._fixed()[3] == CPU else f" on {argument.device}"
    return f"{argument.dtype.name}{list(argument.shape)}{where}"


class CapturedFunction:
    """A function of tensors that is recorded in its first two calls, which are real, and replayed from the third.

    Arguments are copied into fixed slots: on `device` when it is given, else on the argument's device, or on the
    default device for arguments on the cpu. Copies from pinned memory only start: write to it again after
    `cuda.synchronize`. A replay returns the same tensors every time and overwrites them. Shapes or
    dtypes that were not seen before are captured anew; at most `max_programs` are kept, the oldest goes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        family: ProgramFamily | None = None,
        level: Level = "operator",
        max_programs: int = 8,
        device: str | None = None,
    ) -> None:
        if not callable(function):
            raise DTypeError(
                f"[capture] expected a function of tensors, got {type(function).__name__} {described(function)}"
            )
        max_programs = integer("capture", "max_programs", max_programs, least=1)
        self._function = function
        self.name: str = (
            text("capture", "name", name) if name is not None else str(getattr(function, "__name__", "captured"))
        )
        self._family = family
        if not isinstance(level, str) or level not in ("operator", "primitive"):
            raise ShapeError(f"[capture] expected level 'operator' or 'primitive', got {described(level)}")
        self._level = level
        self._max_programs = max_programs
        self._device = None if device is None else as_device("capture", device)
        self._recordings: dict[tuple[Any, ...], _Recording] = {}
        self._last: _Recording | None = None
        self._busy = threading.Lock()

    @property
    def state(self) -> Literal["new", "recorded once", "replaying"]:
        """Where the signature that was called last stands."""
        if self._last is None:
            return "new"
        if self._last.program is not None:
            return "replaying"
        return "new" if self._last.first is None else "recorded once"

    @property
    def program(self) -> Program:
        """The program of the signature that was called last.

        Raises:
            CaptureError: It has not been recorded twice yet.
        """
        if self._last is None or self._last.program is None:
            raise CaptureError(f"[capture {self.name}] there is no program before the second call")
        return self._last.program

    def _recording(self, args: tuple[Tensor, ...]) -> _Recording:
        for i, a in enumerate(args):
            if not isinstance(a, Tensor):
                raise DTypeError(
                    f"[capture {self.name}] expected tensors, argument {i} is {type(a).__name__}; host values are "
                    "baked into a capture: pass them as 0-d tensors, or close over them if they never change"
                )
        devices = [self._slot_device(a) for a in args]
        key = tuple((a.shape, a.dtype.number, d) for a, d in zip(args, devices, strict=True))
        recording = self._recordings.get(key)
        if recording is None:
            if self._recordings:
                warnings.warn(
                    f"captured function '{self.name}' is captured anew for {', '.join(map(_described, args))} "
                    f"({len(self._recordings)} captured before, {self._max_programs} kept)",
                    stacklevel=4,
                )
            while len(self._recordings) >= self._max_programs:
                self._recordings.pop(next(iter(self._recordings)))
            from .interop import empty

            recording = self._recordings[key] = _Recording(
                [empty(a.shape, dtype=a.dtype, device=device_name(d)) for a, d in zip(args, devices, strict=True)]
            )
        recording.seen = [a._fixed() for a in args]
        return recording

    def _slot_device(self, argument: Tensor) -> DeviceKey:
        own = argument._fixed()[3]
        if self._device is not None:
            return self._device
        return as_device("capture", None) if own == CPU else own

    def __call__(self, *args: Tensor, **keywords: Any) -> Any:
        """Records in the first two calls of a signature, replays in the others; returns what the function returned.

        A replay returns the tensors of the call before, overwritten: copy what is kept.

        Raises:
            CaptureError: The two recordings differ, the function does what a capture cannot hold (it writes into an
                argument, for example), or another thread is in it.
            DTypeError: An argument is no tensor, or is given by keyword.
        """
        if keywords:
            raise DTypeError(
                f"[capture {self.name}] expected tensors by position, got keyword arguments {', '.join(keywords)}; "
                "pass tensors by position, and close over values that never change"
            )
        if _lib.blutensor_capture_active():
            raise CaptureError(f"[capture {self.name}] cannot be called inside a capture: captures do not nest")
        if self._busy.locked():
            raise CaptureError(
                f"[capture {self.name}] expected one call at a time, got one while another thread is in it: its slots "
                "and results are shared; capture the function once for each thread"
            )
        with self._busy:
            return self._call(args)

    def _call(self, args: tuple[Tensor, ...]) -> Any:
        last = self._last
        if last is not None and last.program is not None and len(args) == len(last.slots):
            for a, seen in zip(args, last.seen, strict=True):
                if type(a) is not Tensor or a._fixed() != seen:
                    break
            else:
                return self._replay(last, args)
        recording = self._last = self._recording(args)
        if recording.program is not None:
            return self._replay(recording, args)
        for slot, a in zip(recording.slots, args, strict=True):
            slot.copy_(a.detach())
        return self._record(recording)

    def _replay(self, recording: _Recording, args: tuple[Tensor, ...]) -> Any:
        for a, slot, (address, nbytes) in zip(args, recording.slots, recording.targets, strict=True):
            if not a.is_contiguous():
                slot.copy_(a.detach())
            elif address:
                ctypes.memmove(address, a._address("capture"), nbytes)
            else:
                _native.check(_lib.blutensor_copy_bytes(slot._handle, a._handle))
        assert recording.program is not None
        status = _replay(recording.program._handle, 0, _no_callback, None)
        if status:
            _native.raise_status(status)
        return recording.result

    def _refuse_written_arguments(self, slots: list[Tensor], versions: list[int]) -> None:
        for i, (slot, version) in enumerate(zip(slots, versions, strict=True)):
            if slot.version != version:
                raise CaptureError(
                    f"[capture {self.name}] expected arguments that are only read, got a write into argument {i}: the "
                    "function gets copies, so the caller's tensor would not change; return the result, or close over "
                    "the tensor that is to be written"
                )

    def _record(self, recording: _Recording) -> Any:
        level = 1 if self._level == "primitive" else 0
        tensors: list[Tensor] = []
        op_id = _lib.blutensor_generator_op_id()
        try:  # a Ctrl-C may come after any of these calls
            if self._family is not None:
                # Recording allocates operator by operator; the arena of the programs that are there already would lie
                # idle beside it.
                _native.check(_lib.blutensor_family_give_back_arena(self._family._handle))
            _native.check(_lib.blutensor_capture_begin(self.name.encode(), level))
            versions = [slot.version for slot in recording.slots]
            result = self._function(*recording.slots)
            self._refuse_written_arguments(recording.slots, versions)
            structure = _flatten(result, tensors)
            program = Program(recording.slots, structure)
            _native.check(
                _lib.blutensor_capture_end(
                    _native.handle_array([s._handle for s in recording.slots]),
                    len(recording.slots),
                    _native.handle_array([t._handle for t in tensors]),
                    len(tensors),
                    program._room,
                )
            )
        except BaseException:
            _lib.blutensor_capture_abort()
            _lib.blutensor_generator_set_op_id(op_id)  # the next call draws what this one would have drawn
            raise
        program._handle = program._room[0]
        outputs = program.outputs = [t.detach() for t in tensors]
        if recording.first is None:
            recording.first = program
            return result
        first, recording.first = recording.first, None
        _native.check(_lib.blutensor_program_compare(first._handle, program._handle))
        family = None if self._family is None else self._family._handle
        _native.check(_lib.blutensor_program_finalize(program._handle, family))
        recording.program = program
        recording.result = _unflatten(structure, outputs)
        return recording.result


def capture(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    level: Level = "operator",
    max_programs: int = 8,
    device: str | None = None,
) -> CapturedFunction:
    """Captures a function of tensors, with an arena of its own. See `CapturedFunction`.

    Args:
        function: Takes tensors, returns tensors or nested tuples, lists and dicts of them. Whatever else it reads
            (parameters, `training`) must be the same every time; values that change are 0-d tensors. It contains its
            own backward pass, if any.
        name: Shown in messages and in the program's text.
        level: "primitive" records composite operators in their decomposed form.
        max_programs: Signatures (shapes and dtypes) kept.
        device: Where the slots of the arguments are; see `CapturedFunction`.

    Raises:
        DTypeError: `function` is no function.
        ShapeError: Another level, or max_programs below 1.
    """
    return CapturedFunction(function, name=name, level=level, max_programs=max_programs, device=device)
