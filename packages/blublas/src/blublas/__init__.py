"""Matrix products with fused epilogues, on NumPy arrays and CPU or CUDA arrays that speak DLPack, without copies."""

from __future__ import annotations

from blublas._views import Array
from blublas.errors import (
    BlublasError,
    InvalidTypeError,
    InvalidValueError,
    NativeError,
    OutOfMemoryError,
    UnsupportedError,
)
from blublas.machine import Info, cuda_configs, info, num_threads, set_cuda_config, set_kernel, set_num_threads
from blublas.product import gemm
from libblublas import VERSION as __version__

__all__ = [
    "Array",
    "BlublasError",
    "Info",
    "InvalidTypeError",
    "InvalidValueError",
    "NativeError",
    "OutOfMemoryError",
    "UnsupportedError",
    "__version__",
    "cuda_configs",
    "gemm",
    "info",
    "num_threads",
    "set_cuda_config",
    "set_kernel",
    "set_num_threads",
]
