"""PyTorch's CUDA memory from blualloc: ``blualloc.torch.install()`` before the first CUDA tensor.

PyTorch then allocates from the default pools of the devices, which ``blualloc.stats("cuda:0")``, ``snapshot``,
``set_limit`` and ``end_of_step`` show and steer. Importing this module imports no PyTorch.

What goes on working: ``Tensor.record_stream``, ``torch.cuda.empty_cache`` and
``torch.cuda.set_per_process_memory_fraction``. What PyTorch supports for its own allocator only: its statistics
(``torch.cuda.memory_allocated``; use ``blualloc.stats``) and private pools: an allocation inside ``torch.cuda.graph``
is a ``RuntimeError``. So is out of memory, with the text of ``blualloc.OutOfMemoryError``.
"""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any

import libblualloc
from blualloc.pools import cuda_reason

__all__ = ["install", "is_installed"]

_installed: Any = None


def is_installed() -> bool:
    """Whether PyTorch allocates from blualloc in this process."""
    return _installed is not None


def install() -> None:
    """Make PyTorch allocate its CUDA memory from blualloc's default pools, until the process ends.

    Call it before PyTorch's first CUDA tensor: PyTorch does not change allocators after that. Calling it again does
    nothing.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        NotImplementedError: there is no CUDA device, or this PyTorch has no CUDA.
        RuntimeError: PyTorch has used another allocator already.
    """
    global _installed
    if _installed is not None:
        return
    torch = importlib.import_module("torch")
    if reason := cuda_reason():
        raise NotImplementedError(f"[install] expected a CUDA device, got none: {reason}")
    if torch.version.cuda is None:
        raise NotImplementedError(
            f"[install] expected a PyTorch with CUDA, got {torch.__version__}; install one from "
            "https://pytorch.org/get-started"
        )
    path = Path(libblualloc.root()) / "lib" / f"libblualloc.so.{libblualloc.ABI[0]}"
    memory = torch.cuda.memory
    allocator = memory.CUDAPluggableAllocator(str(path), "blualloc_torch_malloc", "blualloc_torch_free")
    library = libblualloc.load_library()
    native = allocator.allocator()
    native.set_record_stream_fn(_pointer(library.blualloc_torch_record_stream))
    native.set_reset_fn(_pointer(library.blualloc_torch_empty_cache))
    native.set_memory_fraction_fn(_pointer(library.blualloc_torch_set_memory_fraction))
    try:
        memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError(
            "[install] expected to be called before PyTorch's first CUDA tensor, got a PyTorch that has used its own "
            f"allocator already: {error}"
        ) from error
    _installed = allocator


def _pointer(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
