"""What all tests share: PyTorch where it is installed, kernels, and clean process-wide settings."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import blublas


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch; without it the test is skipped, or fails where BLU_REQUIRE_TORCH=1 asks for it."""
    if os.environ.get("BLU_REQUIRE_TORCH") == "1":
        import torch as module

        return module
    return pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")


@pytest.fixture(scope="session")
def peer_torch() -> Any:
    """PyTorch as the peer whose error is the yardstick, or None: NumPy takes its place then."""
    if importlib.util.find_spec("torch") is None and os.environ.get("BLU_REQUIRE_TORCH") != "1":
        return None
    import torch as module

    return module


@pytest.fixture
def cuda(torch: Any) -> Iterator[Any]:
    """PyTorch beside a CUDA device; it multiplies float32 in float32 but where a test says otherwise."""
    if not blublas.cuda_configs() or not torch.cuda.is_available():
        pytest.skip("no CUDA device, or a build without CUDA")
    torch.manual_seed(1234)
    torch.backends.cuda.matmul.allow_tf32 = False
    yield torch
    blublas.set_cuda_config("auto")


@pytest.fixture(params=["reference", "avx2", "avx512"])
def kernel(request: pytest.FixtureRequest) -> str:
    """Every kernel set that the machine can run."""
    try:
        blublas.set_kernel(request.param)
    except blublas.UnsupportedError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Tests leave neither threads nor kernels behind."""
    yield
    blublas.set_num_threads(0)
    blublas.set_kernel("auto")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)
