"""Helpers of this package's tests."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts its background jobs, and tests that interrupt a run would wait for its end.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch to compare with. Without it such tests skip, or fail when BLU_REQUIRE_TORCH is set."""
    try:
        import torch
    except ImportError:
        message = "PyTorch is not installed: comparisons with it are left out"
        if os.environ.get("BLU_REQUIRE_TORCH") == "1":
            pytest.fail(message)
        pytest.skip(message)
    torch.set_num_threads(2)
    return torch


@pytest.fixture(scope="session")
def transformers(torch: Any) -> Any:
    """Hugging Face's transformers to compare with; without it as without PyTorch."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # every model is made here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers
    except ImportError:
        message = "transformers is not installed: comparisons with it are left out"
        if os.environ.get("BLU_REQUIRE_TORCH") == "1":
            pytest.fail(message)
        pytest.skip(message)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@pytest.fixture(scope="session")
def gpt2_files() -> Path:
    """Folder with GPT-2's ``encoder.json`` and ``vocab.bpe``; tests that need it skip without."""
    for folder in (parent / "shared" / "data" / "gpt2" for parent in Path(__file__).parents):
        if (folder / "encoder.json").is_file() and (folder / "vocab.bpe").is_file():
            return folder
    pytest.skip("GPT-2's encoder.json and vocab.bpe are not in shared/data/gpt2 of the repository or a folder above it")
