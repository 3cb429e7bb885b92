"""What is installed, what it was built for, and what is missing with the way to get it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("blualloc", "blublas", "blutensor", "blutrain")
"""Packages of the stack, in the order of their dependence."""

_OPTIONAL = (
    ("tiktoken", "GPT-2's tokenizer", "tokenizers"),
    ("tokenizers", "tokenizer.json", "tokenizers"),
    ("pyarrow", "Parquet", "parquet"),
    ("zstandard", "JSONL in .zst", "zstd"),
)
"""Libraries that are imported when they are needed: name, what for, extra that brings them."""


@dataclass(frozen=True)
class PackageInfo:
    """One package of the stack."""

    name: str
    version: str | None
    """None when it is not installed."""
    abi: str | None
    """Version of the native interface, None when the library does not load."""
    library: str | None
    """Folder of the native library."""
    problem: str | None
    """What is wrong and how to repair it, None when nothing is."""


@dataclass(frozen=True)
class Info:
    """Everything that ``blutrain info`` shows."""

    packages: list[PackageInfo]
    python: str
    system: str
    processor: str
    cpus: int
    """CPUs that this process may use."""
    instruction_sets: list[str]
    """Of those that kernels exist for."""
    memory_gib: float | None
    """Memory of the machine in GiB."""
    devices: list[str]
    missing: list[str]
    """What is missing, each with the way to get it."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def info() -> Info:
    """Look at the installation and the machine. Nothing is changed; a broken package is reported, not raised."""
    packages = [_package(name) for name in PACKAGES]
    missing = [package.problem for package in packages if package.problem]
    gpus, reason = _gpus()
    if reason:
        missing.append(f"CUDA devices: {reason}")
    missing += [
        f"{library}, for {purpose}: pip install 'blutrain[{extra}]'"
        for library, purpose, extra in _OPTIONAL
        if importlib.util.find_spec(library) is None
    ]
    return Info(
        packages=packages,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} ({' '.join(platform.libc_ver()).strip()})",
        processor=processor_name(),
        cpus=available_cpus(),
        instruction_sets=_instruction_sets(),
        memory_gib=_memory_gib(),
        devices=["cpu", *gpus],
        missing=missing,
    )


def _gpus() -> tuple[list[str], str]:
    """GPUs as ``cuda:0 NVIDIA H200, 139.8 GiB``, and why there are none."""
    try:
        import blutensor as bt
    except (ImportError, OSError):
        return [], "blutensor does not load"
    reason = bt.cuda.unavailable_reason()
    if reason:
        return [], reason
    found = []
    for index in range(bt.cuda.device_count()):
        gpu = bt.cuda.device_properties(f"cuda:{index}")
        found.append(f"cuda:{index} {gpu.name}, {gpu.total_bytes / 2**30:.1f} GiB, driver for CUDA {gpu.driver}")
    return found, ""


def available_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """Name of the processor, as the system gives it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def format_info(found: Info) -> str:
    """The same for people: one line per fact."""
    lines = []
    for package in found.packages:
        state = f"{package.version}  ABI {package.abi}  {package.library}" if not package.problem else package.problem
        lines.append(f"{package.name:<10} {state}")
    memory = "unknown" if found.memory_gib is None else f"{found.memory_gib:.1f} GiB"
    lines += [
        f"{'python':<10} {found.python} on {found.system}",
        f"{'processor':<10} {found.processor}, {found.cpus} CPUs, {' '.join(found.instruction_sets) or 'baseline'}",
        f"{'memory':<10} {memory}",
        f"{'devices':<10} {', '.join(found.devices)}",
    ]
    lines += [f"{'missing':<10} {item}" for item in found.missing]
    return "\n".join(lines)


def _package(name: str) -> PackageInfo:
    try:
        version: str | None = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = None
    try:
        library = importlib.import_module(f"lib{name}")
        library.load_library()
        major, minor = library.abi_version()
        importlib.import_module(name)
    except (ImportError, OSError) as error:
        # Libraries that do not fit together say themselves what to upgrade.
        repair = "" if "pip install" in str(error) else f"; pip install --force-reinstall {name}"
        return PackageInfo(name, version, None, None, f"{name}: {error}{repair}")
    return PackageInfo(name, version or "development tree", f"{major}.{minor}", library.root(), None)


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    values = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in values if name.strip() == key), None)


def _instruction_sets() -> list[str]:
    flags = set((_cpuinfo("flags") or "").split())
    known = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
    return [name for name, needed in known.items() if needed <= flags]


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError):
        return None
