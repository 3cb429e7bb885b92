"""Where a run computes and in which numbers: ``train.device`` and ``train.precision`` made concrete.

Peaks are dense rates of the vendor's data sheets; what a device is not in the table for is reported as n/a.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

import blualloc
import blutensor as bt
from blutrain.config import Config
from blutrain.errors import DeviceError
from blutrain.validation import device_problem

_PEAK_TFLOPS: dict[str, dict[str, float]] = {
    "H200": {"bf16": 989.0, "tf32": 494.0, "fp32": 67.0},
    "H100 PCIe": {"bf16": 756.0, "tf32": 378.0, "fp32": 51.0},
    "H100": {"bf16": 989.0, "tf32": 494.0, "fp32": 67.0},
    "A100": {"bf16": 312.0, "tf32": 156.0, "fp32": 19.5},
    "L40S": {"bf16": 362.0, "tf32": 183.0, "fp32": 91.6},
    "RTX 4090": {"bf16": 165.2, "tf32": 82.6, "fp32": 82.6},
    "RTX 3090": {"bf16": 71.0, "tf32": 35.6, "fp32": 35.6},
}
"""Dense TFLOP/s by a part of the device's name; the first that occurs in it counts."""


def peak_resident_kib() -> int:
    """Largest resident set of this program in KiB; ``getrusage`` would count that of the process that began it too."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # a system that does not tell


_LEAST_BYTES = 32 * 2**20
"""Interpreter, NumPy and our libraries take more."""


def resident_bytes() -> int | None:
    """Resident set of this process without the memory of tensors: interpreter and libraries.

    Returns:
        Bytes; None when not known, as where tensors' memory that nobody has touched makes up for most of the rest.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        found = pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
    left = found - blualloc.stats().reserved_bytes
    return left if left >= _LEAST_BYTES else None


@dataclass(frozen=True)
class RunDevice:
    """The device and the number mode of a run."""

    name: str
    """``cpu`` or ``cuda:<index>``."""
    precision: str
    """One of ``validation.PRECISIONS``."""

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.name != "cpu"

    @property
    def dtype(self) -> bt.DType:
        """Of parameters and activations."""
        return bt.bfloat16 if self.precision == "bf16" else bt.float32

    @property
    def float32_math(self) -> str:
        """How float32 matrix products run: ``ieee`` or ``tf32``."""
        return "tf32" if self.precision == "tf32" else "ieee"

    def describe(self) -> str:
        """For people: ``NVIDIA H200 (cuda:0)``, or the number of threads."""
        if self.is_cuda:
            return f"{bt.cuda.device_properties(self.name).name} ({self.name})"
        return f"cpu with {bt.num_threads()} threads"

    def total_memory(self) -> int:
        """Bytes of memory of the GPU, whoever uses them."""
        return bt.cuda.device_properties(self.name).total_bytes

    def peak_memory_mib(self) -> float:
        """Largest memory so far in MiB: reserved on the GPU by tensors, on the CPU the resident set of the process."""
        if self.is_cuda:
            return float(blualloc.stats(device=self.name).peak_reserved_bytes) / 2**20
        return peak_resident_kib() / 1024

    def peak_tflops(self) -> float | None:
        """Peak TFLOP/s in this number mode, None where it is not known."""
        return known_peak(bt.cuda.device_properties(self.name).name, self.precision) if self.is_cuda else None


def place(model: bt.nn.Module, device: RunDevice) -> dict[str, bt.Tensor] | None:
    """Move a freshly initialised model to the device of a run, in its dtype.

    Args:
        model: with float32 parameters on the CPU; the parameters stay the same objects.
        device: where to.

    Returns:
        The initial float32 values by name of parameter, on the device, for the optimizer's master weights; None where
        the parameters themselves are float32.
    """
    model.to(device=device.name)
    if device.dtype is bt.float32:
        return None
    masters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    model.to(dtype=device.dtype)
    return masters


def known_peak(device_name: str, precision: str) -> float | None:
    """Dense peak TFLOP/s of a GPU in a number mode; None for a GPU that is not in the table.

    Args:
        device_name: as the driver gives it, e.g. ``NVIDIA H200``.
        precision: one of ``validation.PRECISIONS``.
    """
    for part, peaks in _PEAK_TFLOPS.items():
        if part in device_name:
            return peaks[precision]
    return None


def resolve_device(config: Config) -> RunDevice:
    """The device that a configuration means.

    Args:
        config: for ``train.device`` and ``train.precision``; ``auto`` takes the first GPU where there is one.

    Raises:
        DeviceError: no device has such a name, there is none of it here, or it does not have the number mode; the
            message says which.
    """
    asked, precision = config.train.device, config.train.precision
    unknown = device_problem(asked)
    if unknown:
        raise DeviceError(f"[device] {unknown}: no such device is known")
    name = asked
    if asked == "auto":
        name = "cuda:0" if bt.cuda.is_available() else "cpu"
    elif asked == "cuda":
        name = "cuda:0"
    if name != "cpu":
        reason = bt.cuda.unavailable_reason()
        if reason:
            raise DeviceError(f"[device] expected train.device = {asked!r} to be usable: {reason}")
        count, index = bt.cuda.device_count(), int(name.partition(":")[2])
        if index >= count:
            raise DeviceError(f"[device] expected train.device below cuda:{count}, got {asked!r}: {count} GPU(s) found")
    elif precision == "tf32":
        reason = bt.cuda.unavailable_reason() if asked == "auto" else ""
        why = f" ({reason})" if reason else ""
        raise DeviceError(
            "[device] expected a GPU for train.precision = 'tf32', got cpu"
            f"{why}: take train.precision=fp32, which is what a CPU computes"
        )
    return RunDevice(name, precision)
