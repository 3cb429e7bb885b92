"""What train.device and train.precision mean, where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import blutensor as bt
from blutrain.config_io import load_config
from blutrain.devices import known_peak, peak_resident_kib, resolve_device
from blutrain.errors import DeviceError
from blutrain.flops import estimate_memory
from blutrain.validation import find_problems


def test_peaks_are_found_by_name() -> None:
    assert known_peak("NVIDIA H200", "bf16") == 989.0
    assert known_peak("NVIDIA H200", "tf32") == 494.0
    assert known_peak("NVIDIA H100 PCIe", "bf16") == 756.0
    assert known_peak("NVIDIA H100 80GB HBM3", "fp32") == 67.0
    assert known_peak("NVIDIA T4", "fp32") is None


@pytest.mark.skipif(bt.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_says_why_not() -> None:
    device = resolve_device(load_config())
    assert (device.name, device.is_cuda, device.dtype, device.float32_math) == ("cpu", False, bt.float32, "ieee")
    assert resolve_device(load_config(settings=["train.precision=bf16"])).dtype is bt.bfloat16
    for name in ("cuda", "cuda:3"):
        with pytest.raises(DeviceError, match=f"train.device = '{name}' to be usable: .*(driver|CUDA)"):
            resolve_device(load_config(settings=[f"train.device={name}"]))
    with pytest.raises(DeviceError, match=r"expected a GPU for train\.precision = 'tf32'.*train\.precision=fp32"):
        resolve_device(load_config(settings=["train.precision=tf32"]))


def test_names_of_devices() -> None:
    for name in ("auto", "cpu", "cuda", "cuda:0", "cuda:12"):
        assert not find_problems(load_config(settings=[f"train.device={name}"]))
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1"):
        (problem,) = find_problems(load_config(settings=[f"train.device={name}"]))
        assert problem.key == "train.device"
        assert "expected one of auto, cpu, cuda, cuda:<index>, got" in problem.message


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", ""])
def test_a_device_of_no_known_name_is_told_apart_from_one_that_is_not_there(name: str) -> None:
    message = f"expected one of auto, cpu, cuda, cuda:<index>, got '{name}'.*: no such device is known"
    config = load_config()
    with pytest.raises(DeviceError, match=message):
        resolve_device(replace(config, train=replace(config.train, device=name)))


def test_bf16_halves_activations_and_keeps_masters() -> None:
    full = estimate_memory(load_config(preset="gpt2-124m"), cuda=True)
    half = estimate_memory(load_config(preset="gpt2-124m", settings=["train.precision=bf16"]), cuda=True)
    assert half.parameters * 2 == full.parameters
    assert half.optimizer * 2 == full.optimizer * 3
    assert half.gradients == full.gradients
    assert half.activations < 0.6 * full.activations


def test_the_peak_of_memory_is_the_program_s_own() -> None:
    before = peak_resident_kib()
    held = np.ones(40 << 20, np.uint8)
    assert peak_resident_kib() >= before
    code = "from blutrain.devices import peak_resident_kib; print(peak_resident_kib())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    # A program that this process begins while it holds 200 MiB has not used them.
    more = np.ones(200 << 20, np.uint8)
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    assert 10 << 10 < int(child.stdout) < 150 << 10
    assert peak_resident_kib() > (held.nbytes + more.nbytes) >> 10
