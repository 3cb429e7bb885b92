"""A training step as a family of Programs over one arena, and the native loop over whole steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from . import _native
from ._arguments import flag, integer, text
from ._calls import need_tensor
from .devices import as_device, device_name
from .dtypes import described
from .errors import DTypeError, ShapeError
from .program import CapturedFunction, Level
from .tensor import Tensor

_lib = _native.lib


@runtime_checkable
class Source(Protocol):
    """Fills the slots of a program, natively: a loader.

    Attributes:
        context: Address handed to `next_function`.
        next_function: Address of `int32_t next(void* context, void* const* slots, int32_t num_slots)`; 0 is success.
    """

    context: int
    next_function: int

    def error(self) -> str:
        """What went wrong when `next_function` gave another status."""
        ...


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C between two steps of `ProgramFamily.run`.

    Attributes:
        steps_done: Steps that are complete.
        metrics: Their metrics, float64 [steps_done, num_metrics].
    """

    def __init__(self, message: str, steps_done: int, metrics: npt.NDArray[np.float64]) -> None:
        super().__init__(message)
        self.steps_done = steps_done
        self.metrics = metrics


class SourceError(RuntimeError):
    """The source of `ProgramFamily.run` failed. The programs before the batch that it was asked for are complete.

    Attributes:
        steps_done: Steps that are complete.
        metrics: Their metrics, float64 [steps_done, num_metrics].
    """

    def __init__(self, message: str, steps_done: int, metrics: npt.NDArray[np.float64]) -> None:
        super().__init__(message)
        self.steps_done = steps_done
        self.metrics = metrics


# So often the native loop comes back for signals: a call of a few microseconds. A GPU stands still meanwhile.
_SLICE_SECONDS = 0.05
_SLICE_SECONDS_GPU = 0.25


class ProgramFamily:
    """Programs that share one arena (micro-steps, evaluation, decoding), and the native loop over them."""

    def __init__(self, name: str = "family", *, device: str | None = None) -> None:
        """A family without programs; `device` is that of its captured functions where they do not say another.

        Raises:
            DTypeError: No name of a device, or a name that is no string.
            UnsupportedError: A device that cannot be used here.
        """
        self._device = None if device is None else device_name(as_device("ProgramFamily", device))
        out = ctypes.c_void_p()
        _native.check(_lib.blutensor_family_create(text("ProgramFamily", "name", name).encode(), ctypes.byref(out)))
        self._handle = out.value
        self.name = name
        self.last_host_seconds = 0.0

    def __del__(self, _release: Any = _lib.blutensor_family_release) -> None:
        if getattr(self, "_handle", None):
            _release(self._handle)

    def capture(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        level: Level = "operator",
        max_programs: int = 8,
        device: str | None = None,
    ) -> CapturedFunction:
        """`capture`, with this family's arena."""
        where = self._device if device is None else device
        return CapturedFunction(function, name=name, family=self, level=level, max_programs=max_programs, device=where)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes: `arena_bytes`, and `peak_live_bytes` of its largest program."""
        info = _native.FamilyInfo(ctypes.sizeof(_native.FamilyInfo))
        _native.check(_lib.blutensor_family_get_info(self._handle, ctypes.byref(info)))
        return {"arena_bytes": info.arena_bytes, "peak_live_bytes": info.peak_live_bytes}

    def run(
        self,
        steps: int,
        *,
        schedule: Sequence[tuple[CapturedFunction, int]],
        source: Source | None = None,
        feeds: Mapping[Tensor, npt.NDArray[Any] | Sequence[float]] | None = None,
        metrics: Sequence[Tensor] = (),
        prefetch: bool = True,
    ) -> npt.NDArray[np.float64]:
        """Runs whole steps natively, without the interpreter lock.

        Args:
            steps: Number of steps.
            schedule: Captured functions of this family and how often each runs, in the order of one step. All must be
                replaying.
            source: Fills the slots before every program; without it they keep what they hold.
            feeds: 0-d tensors and their value for every step: schedules.
            metrics: 0-d tensors to read at the end of every step.
            prefetch: On a GPU, fill the next batch while a step runs; the batches are the same without.

        Returns:
            float64 [steps, len(metrics)].

        Raises:
            RunInterrupted: Ctrl-C; the step that ran was completed.
            CaptureError: A function that has not been recorded twice.
            SourceError: The source failed; the message is its own.
        """
        prefetch = flag("run", "prefetch", prefetch)
        steps = integer("run", "steps", steps, least=0)
        for f, _ in schedule:
            if not isinstance(f, CapturedFunction):
                raise DTypeError(f"[run] expected captured functions in schedule, got {described(f)}")
        if source is not None and not isinstance(source, Source):
            raise DTypeError(f"[run] expected a Source for source, got {described(source)}")
        for t in (*metrics, *(feeds or ())):
            need_tensor("run", "metrics and feeds", t)
        phases = [(f.program, repeats) for f, repeats in schedule if repeats > 0]
        values = {} if feeds is None else {t: np.asarray(v, np.float64).reshape(-1) for t, v in feeds.items()}
        for v in values.values():
            if len(v) != steps:
                raise ShapeError(f"[run] expected {steps} values per feed, one per step, got {len(v)}")
        feed_table = np.ascontiguousarray(np.stack(list(values.values()), axis=1)) if values else np.zeros((steps, 0))
        table = np.zeros((steps, len(metrics)))
        on_host = all(p.device == "cpu" for p, _ in phases)
        doubles = ctypes.POINTER(ctypes.c_double)
        slices: list[_native.RunArgs] = []

        def done() -> int:
            return sum(int(s.steps_done) for s in slices)

        def run_slice(first: int) -> int:
            slices.append(
                _native.RunArgs(
                    struct_size=ctypes.sizeof(_native.RunArgs),
                    num_phases=len(phases),
                    programs=_native.handle_array([p._handle for p, _ in phases]),
                    repeats=_native.int64_array([n for _, n in phases]),
                    steps=steps - first,
                    source_next=None if source is None else source.next_function,
                    source_context=None if source is None else source.context,
                    num_feeds=len(values),
                    num_metrics=len(metrics),
                    feeds=_native.handle_array([t._handle for t in values]),
                    feed_values=feed_table[first:].ctypes.data_as(doubles),
                    metrics=_native.handle_array([t._handle for t in metrics]),
                    metric_values=table[first:].ctypes.data_as(doubles),
                    slice_seconds=_SLICE_SECONDS if on_host else _SLICE_SECONDS_GPU,
                    synchronous=int(not prefetch),
                )
            )
            return int(_lib.blutensor_family_run(self._handle, ctypes.byref(slices[-1])))

        # Signal handlers run here, between the slices: inside of a callback of the native loop their exceptions could
        # not be caught in every place.
        try:
            status = run_slice(0)
            while status == 0 and done() < steps:
                status = run_slice(done())
        except KeyboardInterrupt:
            raise RunInterrupted(
                f"[run] interrupted after {done()} of {steps} steps", done(), table[: done()]
            ) from None
        finally:
            self.last_host_seconds = sum(float(s.host_seconds) for s in slices)
        if status:
            message = _native.last_error()
            if source is not None and message.startswith("[run] the source"):
                raise SourceError(f"{message}: {source.error()}", done(), table[: done()])
            _native.raise_status(status)
        return table
