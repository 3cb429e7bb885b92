"""Random numbers: Philox, a function of (seed, step, operator in the step, element), never of launch order."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence

from . import _native
from ._arguments import integer
from ._naming import named
from .devices import CPU, DeviceKey, as_device, default_device
from .dtypes import DType, float32, shown
from .errors import NumberRangeError
from .tensor import Tensor

_lib = _native.lib


class Generator:
    """The random generator of the thread that asks: the process's, or inside of `own_generator` the thread's own.

    Its state is an int64 tensor [2], {seed, step}, that captured programs read and advance on their device; checkpoints
    hold it. The number of the operator within the step is counted on the host and restarts at 0 with every step.
    """

    def __init__(self) -> None:
        self._state_on(CPU)

    def _state_on(self, device: DeviceKey) -> Tensor:
        out = _native.OwnedHandle()
        status = _lib.blutensor_generator_state_on(*device, out)
        if status:
            _native.raise_status(status)
        return Tensor._adopt(out)

    @property
    def state(self) -> Tensor:
        """int64 [2] on the cpu: seed and step. Write to it (`copy_`) to restore a checkpoint.

        Random operators on a GPU read a copy there; the copies are kept in step. Ask for the property again after
        whatever may have changed one.
        """
        return self._state_on(CPU)

    def seed(self, seed: int) -> None:
        """Starts over: this seed, step 0, operator 0."""
        view = self.state._view("manual_seed", write=True)
        view[0], view[1] = _signed(seed), 0
        _lib.blutensor_generator_begin_step()

    def advance(self) -> None:
        """Ends a step: the next random operators belong to the next one. Recorded by captures, like any operator."""
        _native.check(_lib.blutensor_generator_advance())

    @property
    def op_id(self) -> int:
        """Number of the next random operator in the step. What draws between two steps saves it and sets it back."""
        return int(_lib.blutensor_generator_op_id())

    @op_id.setter
    def op_id(self, value: int) -> None:
        _lib.blutensor_generator_set_op_id(integer("op_id", "op_id", value, least=0))


def _signed(seed: int) -> int:
    """A seed of up to 64 bits as a signed integer of the same bits."""
    seed = integer("manual_seed", "seed", seed)
    if not -(2**63) <= seed < 2**64:
        raise NumberRangeError(f"[manual_seed] expected a seed of at most 64 bits, got {shown(seed)}")
    return seed - 2**64 if seed >= 2**63 else seed


default_generator = Generator()

_own = threading.local()  # the handle that a thread draws from; absent: the process's


@contextlib.contextmanager
def own_generator() -> Iterator[None]:
    """A context in which this thread draws from a generator of its own, which begins at seed 0 and step 0.

    `default_generator` and `manual_seed` mean that one meanwhile, and what other threads draw does not change it. A
    captured function reads the generator that it was captured with, so call it inside.
    """
    outer = getattr(_own, "handle", None)
    room = (ctypes.c_void_p * 1)()
    try:
        _native.check(_lib.blutensor_generator_create(room))
        _own.handle = room[0]
        _lib.blutensor_generator_use(room[0])
        yield
    finally:
        _own.handle = outer
        _lib.blutensor_generator_use(outer)
        _lib.blutensor_generator_release(room[0])


@named("manual_seed")
def manual_seed(seed: int) -> Generator:
    """Seeds the default generator and returns it.

    Raises:
        NumberRangeError: More than 64 bits.
        DTypeError: No integer.
    """
    default_generator.seed(seed)
    return default_generator


def next_random(beside: object = None) -> tuple[Tensor, int]:
    """The state tensor, on the device of `beside` (else the default one), and the operator's number."""
    device = beside._fixed()[3] if isinstance(beside, Tensor) else as_device("random", None)
    return default_generator._state_on(device), int(_lib.blutensor_generator_next_op_id())


@named("uniform")
def uniform(
    shape: int | Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: DType | str = float32,
    device: str | None = None,
) -> Tensor:
    """Uniformly distributed numbers on [low, high).

    Args:
        shape: Of the result.
        low: Smallest value.
        high: Bound above all values.
        dtype: float32 or float64.
        device: Where; the default device unless given. The bits are the same everywhere.
    """
    return _draw("uniform", shape, low, high, dtype, device)


@named("normal")
def normal(
    shape: int | Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: DType | str = float32,
    device: str | None = None,
) -> Tensor:
    """Normally distributed numbers (Box-Muller on Philox).

    Args:
        shape: Of the result.
        mean: Mean.
        std: Standard deviation.
        dtype: float32 or float64.
        device: Where; the default device unless given.
    """
    return _draw("normal", shape, mean, std, dtype, device)


def _draw(name: str, shape: int | Sequence[int], a: float, b: float, dtype: DType | str, device: str | None) -> Tensor:
    from . import _operators

    if device is not None:
        with default_device(device):
            return _draw(name, shape, a, b, dtype, None)
    result: Tensor = getattr(_operators, name)(shape, a, b, dtype)
    return result
