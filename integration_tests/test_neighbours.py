"""Beside NumPy, SciPy and PyTorch in one process, whatever is imported first: each computes what it computes alone."""

from __future__ import annotations

import importlib.util
import itertools
import os

import pytest
import repository
from conftest import run_python

NEIGHBOURS = [name for name in ("numpy", "scipy", "torch") if importlib.util.find_spec(name)]

# Each computes with its threads, then all at once in threads of Python, then again.
COMPUTE = """
import threading
import numpy, scipy.linalg
import blualloc, blublas, blutensor
import blutrain.model, blutrain.config
try:
    import torch
except ImportError:
    torch = None

n = 300
a = numpy.random.default_rng(0).standard_normal((n, n), numpy.float32)
spd = a @ a.T + n * numpy.eye(n, dtype=numpy.float32)

def with_numpy():
    return numpy.abs(numpy.linalg.inv(spd) @ spd - numpy.eye(n)).max() < 1e-2
def with_scipy():
    factor = scipy.linalg.cholesky(spd, lower=True)
    return numpy.abs(factor @ factor.T - spd).max() < 1e-1
def with_blublas():
    return numpy.allclose(blublas.gemm(a, a), a.astype(float) @ a.astype(float), atol=1e-2)
def with_blutensor():
    w = blutensor.asarray(a).requires_grad_()
    (w @ w).sum().backward()
    return bool(numpy.isfinite(w.grad.numpy()).all())
def with_blualloc():
    pool = blualloc.default_pool()
    pool.free(pool.allocate(1 << 20))
    return True
def with_blutrain():
    model = blutrain.model.GPT(blutrain.config.ModelConfig(layers=1, heads=2, channels=16, context=8))
    loss = model.loss_sum(*(blutensor.zeros((2, 8), dtype="int32") for _ in range(2)))
    return 0 < loss.item() < 1000
def with_torch():
    x = torch.from_numpy(a.copy()).requires_grad_()
    (x @ x).sum().backward()
    return bool(torch.isfinite(x.grad).all())

work = [with_numpy, with_scipy, with_blublas, with_blutensor, with_blualloc, with_blutrain]
work += [with_torch] if torch else []
for f in work:
    assert f(), f
results = {}
threads = [threading.Thread(target=lambda f=f: results.__setitem__(f, all(f() for _ in range(5)))) for f in work]
[t.start() for t in threads]
[t.join() for t in threads]
assert all(results[f] for f in work), results
for f in reversed(work):
    assert f(), f
print("all computed")
"""


def orders() -> list[tuple[str, ...]]:
    """Ours before, between and after each neighbour: all pairs in both orders, and whole rows."""
    pairs = [pair for other in NEIGHBOURS for pair in itertools.permutations(("blutensor", other))]
    everything = ["blublas", "blutensor", "blutrain"]
    rows = [(*NEIGHBOURS, *everything), (*everything, *NEIGHBOURS), (*reversed(NEIGHBOURS), *reversed(everything))]
    return [*pairs, *rows]


@pytest.mark.parametrize("order", orders(), ids="-".join)
def test_any_order_of_imports(order: tuple[str, ...]) -> None:
    if "scipy" not in NEIGHBOURS:
        pytest.skip("SciPy is not installed")
    result = run_python("\n".join(f"import {name}" for name in order) + COMPUTE)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "all computed\n"
    assert result.stderr == ""


def test_torch_is_among_the_neighbours_where_it_is_required() -> None:
    assert "torch" in NEIGHBOURS or os.environ.get("BLU_REQUIRE_TORCH") != "1"


@pytest.mark.parametrize("package", repository.packages())
def test_no_second_runtime_of_threads(package: str) -> None:
    """Our pool is our own: importing us adds no OpenMP to the process that may hold PyTorch's and SciPy's."""
    mapped = "{line.split()[-1] for line in open('/proc/self/maps')}"
    code = f"import numpy\nbefore = {mapped}\nimport {package}, lib{package}\nlib{package}.load_library()\n"
    result = run_python(code + f"print(*({mapped} - before), sep='\\n')")
    assert result.returncode == 0, result.stderr
    added = result.stdout.split()
    assert any(f"lib{package}.so" in path for path in added)
    assert [path for path in added if any(name in path for name in ("libgomp", "libiomp", "libomp", "libtbb"))] == []
