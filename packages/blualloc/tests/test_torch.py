"""PyTorch on blualloc: the same numbers as with its own allocator, and what goes on working."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import blualloc
import blualloc.torch

TRAIN = """
    import json, sys
    if sys.argv[1] == "blualloc":
        import blualloc.torch
        blualloc.torch.install()
        blualloc.torch.install()
    import torch
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)
    V, T, C = 512, 128, 256
    layer = lambda: torch.nn.TransformerEncoderLayer(C, 4, 4 * C, 0.0, batch_first=True, norm_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(V, C), layer(), layer(), torch.nn.Linear(C, V)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    copies = torch.cuda.Stream()
    losses = []
    for step in range(20):
        tokens = torch.randint(V, (16, T + 1), generator=torch.Generator().manual_seed(step)).pin_memory()
        with torch.cuda.stream(copies):
            on_device = tokens.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        on_device.record_stream(torch.cuda.current_stream())
        loss = torch.nn.functional.cross_entropy(model(on_device[:, :-1]).flatten(0, 1), on_device[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if sys.argv[1] == "blualloc" and step == 0:
            report = blualloc.end_of_step(0, "cuda:0")
    out = {"losses": losses}
    if sys.argv[1] == "blualloc":
        stats = blualloc.stats("cuda:0")
        del loss, on_device
        torch.cuda.empty_cache()
        after = blualloc.stats("cuda:0")
        out |= {"allocations": stats.num_allocations, "live": stats.live_bytes, "tuned": report.tuned,
                "reserved": [stats.reserved_bytes, after.reserved_bytes]}
        torch.cuda.set_per_process_memory_fraction(0.01)
        out["limit"] = blualloc.stats("cuda:0").limit_bytes
        try:
            torch.empty(1 << 33, device="cuda")
        except RuntimeError as error:
            out["error"] = str(error)
        out["after"] = float(torch.ones(1000, device="cuda").sum())
    print(json.dumps(out))
"""


def run_python(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_imports_no_pytorch() -> None:
    assert run_python("import sys, blualloc.torch; print('torch' in sys.modules)") == "False\n"


def test_without_a_device_or_pytorch_it_says_so() -> None:
    if not blualloc.cuda_reason():
        pytest.skip("there is a CUDA device")
    assert not blualloc.torch.is_installed()
    missing = importlib.util.find_spec("torch") is None
    with pytest.raises(ModuleNotFoundError if missing else NotImplementedError):
        blualloc.torch.install()
    assert not blualloc.torch.is_installed()


@pytest.mark.gpu
@pytest.mark.torch
def test_training_gives_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    ours: dict[str, Any] = json.loads(run_python(TRAIN, "blualloc"))
    theirs: dict[str, Any] = json.loads(run_python(TRAIN, "default"))
    assert ours["losses"] == theirs["losses"], "an allocator must not change a bit"
    assert ours["losses"][-1] < ours["losses"][0]
    assert ours["allocations"] > 2000
    assert ours["tuned"]
    assert ours["reserved"][1] <= ours["reserved"][0]
    total = blualloc.device_memory("cuda:0")[1]
    assert ours["limit"] == int(total * 0.01)
    assert "out of memory in pool cuda:0" in ours["error"]
    assert "torch" in ours["error"]
    assert ours["after"] == 1000


@pytest.mark.gpu
@pytest.mark.torch
def test_too_late_is_an_error() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")
    printed = run_python(
        """
        import torch
        torch.ones(1, device="cuda")
        import blualloc.torch
        try:
            blualloc.torch.install()
        except RuntimeError as error:
            print(error)
        print(blualloc.torch.is_installed())
        """
    )
    assert printed.startswith("[install] expected to be called before PyTorch's first CUDA tensor")
    assert printed.endswith("False\n")


@pytest.mark.gpu
@pytest.mark.torch
def test_graphs_are_refused_and_the_process_goes_on() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")
    printed = run_python(
        """
        import torch
        import blualloc.torch
        blualloc.torch.install()
        x = torch.ones(1000, device="cuda")
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x + 1
        except RuntimeError as error:
            print(error)
        print((x + 1).sum().item())
        """
    )
    assert "expected an allocation outside of a CUDA graph, got 4000 bytes" in printed
    assert printed.endswith("2000.0\n")
