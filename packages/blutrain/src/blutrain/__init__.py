"""Train GPT-class models from scratch: configuration, data, trainer, checkpoints and command line of BluTrain.

Every command of ``blutrain`` is also a function here: ``info``, ``prepare``, ``train_tokenizer``, ``train``,
``evaluate`` and ``evaluate_choices`` (``eval``), ``generate``, ``import_hf``, ``export_hf``, ``plot`` and ``compare``,
and ``bench``. They are imported when first used, so that looking at data needs no tensor library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from libblutrain import VERSION as __version__

if TYPE_CHECKING:
    from blutrain.benchmark import bench
    from blutrain.checkpoint import CheckpointStore
    from blutrain.comparison import compare
    from blutrain.config import Config
    from blutrain.config_io import load_config
    from blutrain.data import Loader, get_tokenizer, open_dataset, prepare, train_tokenizer
    from blutrain.errors import BlutrainError
    from blutrain.evaluation import evaluate
    from blutrain.generation import generate
    from blutrain.huggingface import export_hf, import_hf
    from blutrain.installation import info
    from blutrain.launch import train
    from blutrain.model import GPT
    from blutrain.multiple_choice import evaluate_choices
    from blutrain.plotting import plot
    from blutrain.presets import PRESETS
    from blutrain.sampling import SamplingOptions
    from blutrain.weights import load_model

_HOMES = {
    "BlutrainError": "blutrain.errors",
    "CheckpointStore": "blutrain.checkpoint",
    "Config": "blutrain.config",
    "GPT": "blutrain.model",
    "Loader": "blutrain.data",
    "PRESETS": "blutrain.presets",
    "SamplingOptions": "blutrain.sampling",
    "bench": "blutrain.benchmark",
    "compare": "blutrain.comparison",
    "evaluate": "blutrain.evaluation",
    "evaluate_choices": "blutrain.multiple_choice",
    "export_hf": "blutrain.huggingface",
    "generate": "blutrain.generation",
    "get_tokenizer": "blutrain.data",
    "import_hf": "blutrain.huggingface",
    "info": "blutrain.installation",
    "load_config": "blutrain.config_io",
    "load_model": "blutrain.weights",
    "open_dataset": "blutrain.data",
    "plot": "blutrain.plotting",
    "prepare": "blutrain.data",
    "train": "blutrain.launch",
    "train_tokenizer": "blutrain.data",
}

__all__ = [
    "GPT",
    "PRESETS",
    "BlutrainError",
    "CheckpointStore",
    "Config",
    "Loader",
    "SamplingOptions",
    "__version__",
    "bench",
    "compare",
    "evaluate",
    "evaluate_choices",
    "export_hf",
    "generate",
    "get_tokenizer",
    "import_hf",
    "info",
    "load_config",
    "load_model",
    "open_dataset",
    "plot",
    "prepare",
    "train",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'blutrain' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
