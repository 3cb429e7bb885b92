"""Checkpoints: one verified, self-describing safetensors file per save, never at the cost of an earlier one.

    store = CheckpointStore(run / "checkpoints", keep=3)
    store.save(step, tensors, {"epoch": 0, "loss": 3.2, "cursor": [0, 4096]})
    path, tensors, meta = store.load_latest()

`format` is the layout of the file, `stream` writes and reads one, `store` keeps a folder of them, `files` is the seam
to the operating system.
"""

from __future__ import annotations

from blutrain.checkpoint.errors import (
    CheckpointDigestError,
    CheckpointDiskFullError,
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointReadOnlyError,
    CheckpointTypeError,
    CheckpointValueError,
    CheckpointWriteError,
)
from blutrain.checkpoint.store import CheckpointStore

__all__ = [
    "CheckpointDigestError",
    "CheckpointDiskFullError",
    "CheckpointError",
    "CheckpointFormatError",
    "CheckpointNotFoundError",
    "CheckpointReadError",
    "CheckpointReadOnlyError",
    "CheckpointStore",
    "CheckpointTypeError",
    "CheckpointValueError",
    "CheckpointWriteError",
]
