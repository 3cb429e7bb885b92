"""Process-wide settings: instruction sets, float32 products on CUDA."""

from __future__ import annotations

from . import _native
from ._naming import named


def float32_math() -> str:
    """How float32 matrix products run on CUDA: "ieee" or "tf32"."""
    name: bytes = _native.lib.blutensor_float32_math()
    return name.decode()


@named("set_float32_math")
def set_float32_math(mode: str) -> None:
    """Chooses how float32 matrix products and attention run on CUDA from now on, process-wide.

    Args:
        mode: "ieee" (default): IEEE multiply-adds. "tf32": on the tensor cores, operands rounded to nearest tf32 (10
            bits of mantissa), sums in float32. The cpu always computes the former. A captured function keeps what it
            was recorded with.

    Raises:
        ShapeError: Another mode.
    """
    _native.check(_native.lib.blutensor_set_float32_math(mode.encode()))


def isa() -> str:
    """Instruction set of the active kernels: "reference", "avx2" or "avx512"."""
    name: bytes = _native.lib.blutensor_isa()
    return name.decode()


@named("set_isa")
def set_isa(name: str) -> None:
    """Chooses the kernels: "reference", "avx2", "avx512" or "auto".

    Raises:
        ShapeError: Another name.
        UnsupportedError: This CPU or build does not have them.
    """
    _native.check(_native.lib.blutensor_set_isa(name.encode()))
