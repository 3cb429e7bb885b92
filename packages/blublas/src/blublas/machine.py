"""Threads and kernels: what the native library runs on."""

from __future__ import annotations

from dataclasses import dataclass

from blublas import _native
from blublas.errors import InvalidTypeError, InvalidValueError, check, integer

__all__ = ["Info", "cuda_configs", "info", "num_threads", "set_cuda_config", "set_kernel", "set_num_threads"]


@dataclass(frozen=True)
class Info:
    """What blublas found and uses."""

    #: (major, minor) of the native interface.
    abi: tuple[int, int]
    #: Instruction sets that machine, system and build have: avx2, avx512, avx512_bf16.
    cpu_features: tuple[str, ...]
    #: dtype -> name of the micro-kernel in use.
    kernels: dict[str, str]
    #: Threads of a parallel call, the caller included.
    num_threads: int
    #: Upper limit of :func:`set_num_threads`.
    max_threads: int


def info() -> Info:
    """Describe the native library on this machine."""
    library = _native.library
    version: int = library.blublas_abi_version()
    features: int = library.blublas_cpu_features()
    dtypes = {"float32": _native.FLOAT32, "bfloat16": _native.BFLOAT16, "float64": _native.FLOAT64}
    return Info(
        abi=(version >> 16, version & 0xFFFF),
        cpu_features=tuple(name for name, flag in _native.CPU_FEATURES.items() if features & flag),
        kernels={name: library.blublas_kernel_name(number).decode() for name, number in dtypes.items()},
        num_threads=num_threads(),
        max_threads=library.blublas_max_threads(),
    )


def num_threads() -> int:
    """Threads that a product may use, the caller included; at first the physical cores that the process may run on."""
    number: int = _native.library.blublas_num_threads()
    return number


def set_num_threads(number: int) -> None:
    """Set the number of threads of the process's pool; 0 restores the default. Results do not depend on it.

    Raises:
        InvalidValueError: a negative number, one above the limit that :func:`info` tells, or a call from a task.
        InvalidTypeError: no integer.
    """
    limit: int = _native.library.blublas_max_threads()
    count = integer("set_num_threads", "number", number)
    # Here, because ctypes would cut a larger number to 32 bits.
    if not 0 <= count <= limit:
        raise InvalidValueError(f"[set_num_threads] expected 1 to {limit} threads, or 0 for the default, got {count}")
    check(_native.library.blublas_set_num_threads(count))


def set_kernel(name: str) -> None:
    """Choose the set of kernels: ``reference``, ``avx2``, ``avx512``, or ``auto`` for the best that the machine has.

    For tests and measurements; results of different sets differ by rounding. Not while a product runs.

    Raises:
        InvalidValueError: another name.
        InvalidTypeError: no string.
        UnsupportedError: this machine or build has no such set.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"[set_kernel] expected a string, got {type(name).__name__}")
    check(_native.library.blublas_set_kernel(name.encode()))


def cuda_configs() -> tuple[str, ...]:
    """Names of the CUDA tile kernels of this build, ``general`` last; none in a build without CUDA."""
    names: list[str] = []
    while (name := _native.library.blublas_cuda_config_name(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def set_cuda_config(name: str) -> None:
    """Choose the CUDA kernel for the products of its precision.

    For tests and measurements. Products whose layout or device does not allow it are done as with ``auto``.

    Args:
        name: one of :func:`cuda_configs`, that and ``/`` and the number of parts into which K is cut, or ``auto``.

    Raises:
        InvalidValueError: another name.
        InvalidTypeError: no string.
        UnsupportedError: a build without CUDA.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"[set_cuda_config] expected a string, got {type(name).__name__}")
    check(_native.library.blublas_set_cuda_config(name.encode()))
