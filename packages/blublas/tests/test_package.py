"""The package as a whole: the README's example, memory, the benchmark's arithmetic."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blublas

PACKAGE = Path(__file__).resolve().parents[1]


def test_readme_example(tmp_path: Path) -> None:
    """It runs as it is printed; its last comment is what it prints."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    assert len(example[1].strip().splitlines()) <= 10
    printed = subprocess.run([sys.executable, "-c", example[1]], cwd=tmp_path, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.split() == re.findall(r"# prints (.*)", example[1])[0].split()


def test_public_names() -> None:
    assert sorted(blublas.__all__) == blublas.__all__
    assert all(hasattr(blublas, name) for name in blublas.__all__)
    assert (Path(blublas.__file__).parent / "py.typed").is_file()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("layout", ["single stride", "pointers"])
def test_no_leak(layout: str) -> None:
    """Thousands of calls, those that fail included, in the memory of the first thousand."""
    a = np.ones((2, 3, 16, 16), np.float32)
    operand = a if layout == "single stride" else a.transpose(1, 0, 2, 3)
    b, out = np.ones((16, 16), np.float32), np.empty((2, 3, 16, 16), np.float32)
    target = out if layout == "single stride" else out.transpose(1, 0, 2, 3)

    def work(times: int) -> None:
        for _ in range(times):
            blublas.gemm(operand, b, target)
            with pytest.raises(blublas.InvalidValueError):
                blublas.gemm(operand, b, operand)

    work(1000)
    gc.collect()
    before = resident_bytes()
    objects = len(gc.get_objects())
    work(2000)
    gc.collect()
    # 2000 leaks of one 6 KiB array would be 12 MiB; the interpreter's own heap moves by a few pages.
    assert resident_bytes() - before < 3 << 20
    assert len(gc.get_objects()) - objects < 100


@pytest.mark.torch
def test_capsules_are_given_back(torch: Any) -> None:
    import weakref

    tensor = torch.ones(64, 64)
    storage = weakref.ref(tensor.untyped_storage())
    count = sys.getrefcount(tensor)
    for _ in range(50):
        blublas.gemm(tensor, tensor)
        with pytest.raises(blublas.InvalidValueError):
            blublas.gemm(tensor, tensor, tensor)
    assert sys.getrefcount(tensor) == count
    before = resident_bytes()
    for _ in range(300):
        blublas.gemm(torch.ones(512, 64), tensor, torch.empty(512, 64))
    # Each round would leave 256 KiB if a capsule kept its tensor: 75 MiB.
    assert resident_bytes() - before < 16 << 20
    del tensor, storage


def test_workspace_grows_once() -> None:
    """A smaller product after a larger one takes the buffer that is there."""
    from blublas import _call

    large, small = (np.ones((n, n), np.float32) for n in (600, 300))
    blublas.gemm(large, large)
    buffer = _call._workspace.buffer
    blublas.gemm(small, small)
    assert _call._workspace.buffer is buffer
