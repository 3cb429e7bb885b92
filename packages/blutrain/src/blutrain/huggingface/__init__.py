"""GPT-2 models from and to Hugging Face's format: ``config.json`` and safetensors files."""

from __future__ import annotations

from blutrain.huggingface.errors import (
    ModelAccessError,
    ModelFileError,
    ModelFormatError,
    ModelNotFoundError,
    ModelTensorError,
    UnsupportedModelError,
)
from blutrain.huggingface.exporting import ExportResult, export_hf
from blutrain.huggingface.importing import ImportResult, import_hf

__all__ = [
    "ExportResult",
    "ImportResult",
    "ModelAccessError",
    "ModelFileError",
    "ModelFormatError",
    "ModelNotFoundError",
    "ModelTensorError",
    "UnsupportedModelError",
    "export_hf",
    "import_hf",
]
