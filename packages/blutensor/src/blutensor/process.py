"""Process-wide settings for tests and measurements."""

from __future__ import annotations

from . import _native


def isa() -> str:
    """Instruction set of the active kernels: "reference", "avx2" or "avx512"."""
    name: bytes = _native.lib.blutensor_isa()
    return name.decode()


def set_isa(name: str) -> None:
    """Chooses the kernels: "reference", "avx2", "avx512" or "auto".

    Raises:
        ShapeError: Another name.
        UnsupportedError: This CPU or build does not have them.
    """
    _native.check(_native.lib.blutensor_set_isa(name.encode()))
