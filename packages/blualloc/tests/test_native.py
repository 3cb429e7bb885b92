"""The ctypes declarations against the header itself, as a C compiler sees it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import libblualloc
from blualloc import _native

HEADER = Path(libblualloc.root()) / "include" / "blualloc" / "blualloc.h"
STRUCTURES = {
    "pool_options": _native.PoolOptions,
    "stats": _native.Stats,
    "size_count": _native.SizeCount,
    "block_info": _native.BlockInfo,
    "step_report": _native.StepReport,
    "holder": _native.Holder,
    "oom_info": _native.OomInfo,
    "event": _native.Event,
    "use": _native.Use,
    "plan_event": _native.PlanEvent,
    "plan_request": _native.PlanRequest,
    "plan_result": _native.PlanResult,
    "device_ops": _native.DeviceOps,
}


def test_structures_have_the_layout_of_the_header(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(blualloc_{name}));')
        for field in structure._fields_:
            at = f"offsetof(blualloc_{name}, {field[0]})"
            size = f"sizeof(((blualloc_{name}*)0)->{field[0]})"
            lines.append(f'printf("{name}.{field[0]} %zu %zu\\n", {at}, {size});')
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <blualloc/blualloc.h>\n#include <stdio.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\nreturn 0;\n}\n",
        encoding="utf-8",
    )
    program = tmp_path / "layout"
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{HEADER.parent.parent}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split("\n")
    expected = []
    for name, structure in STRUCTURES.items():
        expected.append(f"{name} {ctypes.sizeof(structure)}")
        for field in structure._fields_:
            at = getattr(structure, field[0])
            expected.append(f"{name}.{field[0]} {at.offset} {at.size}")
    assert printed == [*expected, ""]


def test_every_exported_function_is_declared() -> None:
    declared = set(re.findall(r"BLUALLOC_API [^;(]*?(blualloc_\w+)\(", HEADER.read_text(encoding="utf-8")))
    known = {f"blualloc_{name}" for name in _native._PROTOTYPES}
    others = {"abi_version", "last_error", "cuda_reason", "host_device"}
    for_torch = {"malloc", "free", "record_stream", "empty_cache", "set_memory_fraction"}
    assert declared - known == {f"blualloc_{name}" for name in others | {f"torch_{name}" for name in for_torch}}
    assert known <= declared


def test_nothing_else_is_exported() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    path = Path(libblualloc.root()) / "lib" / f"libblualloc.so.{libblualloc.ABI[0]}"
    symbols = subprocess.run([nm, "-D", "--defined-only", str(path)], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in symbols.splitlines() if line.split()[-2] == "T"}
    assert names
    assert {name for name in names if not name.startswith("blualloc_")} == set()


def test_abi_version() -> None:
    assert libblualloc.abi_version() == libblualloc.ABI


def test_older_callers_get_the_fields_they_know() -> None:
    pool = ctypes.c_void_p()
    assert _native.library.blualloc_pool_create(None, pool) == 0
    stats = _native.Stats(struct_size=_native.Stats.peak_live_bytes.offset, peak_live_bytes=77)
    out = ctypes.c_void_p()
    assert _native.library.blualloc_allocate(pool, 5, None, None, out) == 0
    assert _native.library.blualloc_get_stats(pool, stats) == 0
    assert (stats.live_bytes, stats.peak_live_bytes) == (5, 77)
    assert stats.struct_size == _native.Stats.peak_live_bytes.offset
    assert _native.library.blualloc_get_stats(pool, _native.Stats()) == 1
    assert b"struct_size" in _native.library.blualloc_last_error()
    assert _native.library.blualloc_pool_destroy(pool, 1) == 0


# Where NULL has a meaning.
NULLABLE = {"device_count", "device_memory", "pool_create", "pool_destroy", "set_oom_hint", "default_pool"}


@pytest.mark.parametrize("name", sorted(_native._PROTOTYPES.keys() - NULLABLE))
def test_null_pointers_are_refused(name: str) -> None:
    numbers = (_native.Hook, ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64)
    arguments = [kind() if kind in numbers else None for kind in _native._PROTOTYPES[name]]
    assert getattr(_native.library, f"blualloc_{name}")(*arguments) == 1
    assert _native.library.blualloc_last_error().startswith(b"[")


def test_null_outputs_are_refused() -> None:
    assert _native.library.blualloc_pool_create(None, None) == 1
    assert _native.library.blualloc_default_pool(0, 0, None) == 1
    assert _native.library.blualloc_pool_destroy(None, 0) == 0
