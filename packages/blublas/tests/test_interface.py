"""The C interface: struct layouts, pointer arrays, workspace, overlap, refusals that touch nothing."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formula import Array
from native import call, describe, last_error, matrix_of

import libblublas
from blublas import _native

INCLUDE = Path(libblublas.root()) / "include"


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def header() -> str:
    return (INCLUDE / "blublas" / "blublas.h").read_text(encoding="utf-8")


def test_layouts_equal_the_compiled_header(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: the header is not compiled")
    lines = ["#include <cstdio>", "#include <blublas/blublas.h>", "int main() {"]
    expected = []
    for name, struct in (("blublas_matrix", _native.Matrix), ("blublas_gemm_args", _native.GemmArgs)):
        lines.append(f'std::printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            lines.append(f'std::printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(getattr(struct, field).offset)
    source, program = tmp_path / "layout.cpp", tmp_path / "layout"
    source.write_text("\n".join([*lines, "}"]), encoding="utf-8")
    subprocess.run([compiler, f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in printed.split()] == expected


def test_fields_and_constants_equal_the_header() -> None:
    """The same without a compiler: names and order of fields, values of flags."""
    text = re.sub(r"/\*.*?\*/", "", header(), flags=re.DOTALL)
    for name, struct in (("blublas_matrix", _native.Matrix), ("blublas_gemm_args", _native.GemmArgs)):
        body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", text, re.DOTALL)
        assert body is not None
        declared = [re.findall(r"(\w+)\s*(?=[,;])", line) for line in body[1].splitlines()]
        assert [field for line in declared for field in line] == [field for field, _ in struct._fields_]
    flags = {name: 1 << int(bit) for name, bit in re.findall(r"BLUBLAS_(\w+) = 1 << (\d+)", text)}
    for name, value in flags.items():
        if name.startswith("EPILOGUE_"):
            assert getattr(_native, name) == value
        else:
            assert _native.CPU_FEATURES[name.removeprefix("CPU_").lower()] == value
    for name in ("FLOAT32", "BFLOAT16", "FLOAT64"):
        assert re.search(rf"BLUBLAS_{name} = {getattr(_native, name)}\b", text)


def test_every_function_is_declared_and_exported() -> None:
    for name in re.findall(r"BLUBLAS_API [\w\s*]+?\b(blublas_\w+)\(", header()):
        assert getattr(_native.library, name).argtypes is not None, name
    assert libblublas.abi_version() == libblublas.ABI


def test_pointer_arrays(kernel: str, rng: np.random.Generator) -> None:
    batch, m, n, k = 5, 17, 34, 21
    a, b = ([normal(rng, *shape) for _ in range(batch)] for shape in ((m, k), (k, n)))
    c = [np.full((m, n), np.nan, np.float32) for _ in range(batch)]

    def addresses(arrays: list[Array]) -> Any:
        return (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))

    args = describe(a[0], b[0], c[0])
    args.batch = batch
    args.a_array, args.b_array, args.c_array = addresses(a), addresses(b), addresses(c)
    assert call(args) == 0, last_error()
    for left, right, out in zip(a, b, c, strict=True):
        single = np.empty((m, n), np.float32)
        assert call(describe(left, right, single)) == 0
        assert np.array_equal(out, single)

    args.c_array = addresses([c[0], c[1], c[0], c[3], c[4]])
    assert call(args) == 1
    assert "matrices of out" in last_error()
    args.c_array = addresses([c[0], c[1], a[2], c[3], c[4]])
    assert call(args) == 1
    assert "overlaps a" in last_error()
    args.c_array = (ctypes.c_void_p * batch)()
    assert call(args) == 1
    assert "NULL" in last_error()


def test_workspace(rng: np.random.Generator) -> None:
    """One byte less than one thread needs is refused before anything is written."""
    for m, n, k in [(150, 130, 300), (64, 700, 2000), (5, 5, 5), (1, 1000, 1000)]:
        a, b, c = normal(rng, m, k), normal(rng, k, n), np.full((m, n), np.nan, np.float32)
        args = describe(a, b, c, num_threads=1)
        needed = ctypes.c_size_t()
        assert _native.library.blublas_gemm_workspace(args, needed) == 0
        if needed.value == 0:
            continue
        assert call(args, workspace_bytes=needed.value - 1) == 1
        assert re.search(r"\[gemm\] expected a workspace of at least \d+ bytes, got \d+", last_error())
        assert np.isnan(c).all()
        assert call(args, workspace_bytes=needed.value) == 0
        assert np.isfinite(c).all()
        args.workspace_bytes = needed.value + 64
        for pointer in (None, args.workspace + 8):
            args.workspace = pointer
            assert _native.library.blublas_gemm(args) == 1
            assert "aligned" in last_error()


def test_workspace_query_reads_no_pointer() -> None:
    args = describe(*(np.empty((300, 300), np.float32) for _ in range(3)))
    args.a.data = args.b.data = args.c.data = 16
    needed = ctypes.c_size_t()
    assert _native.library.blublas_gemm_workspace(args, needed) == 0
    assert needed.value > 0
    assert _native.library.blublas_gemm_workspace(args, None) == 1
    assert _native.library.blublas_gemm_workspace(None, needed) == 1


def refused(rng: np.random.Generator, status: int, text: str, **changes: Any) -> None:
    """Every refusal: its status, its text, and an output that nothing was written to."""
    a, b, c = normal(rng, 6, 5), normal(rng, 5, 7), np.full((6, 7), np.nan, np.float32)
    args = describe(a, b, c)
    for path, value in changes.items():
        target: Any = args
        *parents, name = path.split("__")
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    memory = np.full(1 << 16, 0, np.uint8)
    args.workspace, args.workspace_bytes = -(-memory.ctypes.data // 64) * 64, (1 << 16) - 64
    assert _native.library.blublas_gemm(args) == status, changes
    assert text in last_error(), (changes, last_error())
    assert last_error().startswith("[gemm] "), last_error()
    assert np.isnan(c).all()
    assert not memory.any()


def test_refusals(rng: np.random.Generator) -> None:
    refused(rng, 1, "struct_size", struct_size=8)
    refused(rng, 4, "device", device_type=7)
    refused(rng, 4, "device", device_index=1)
    refused(rng, 1, "batch -1", batch=-1)
    refused(rng, 1, "not negative", a__rows=-6, c__rows=-6)
    refused(rng, 1, "num_threads", num_threads=-2)
    refused(rng, 1, "b of shape [5, 7]", b__rows=4)
    refused(rng, 1, "out of shape [6, 7]", c__cols=8)
    refused(rng, 2, "float16", a__dtype=2)
    refused(rng, 2, "dtype 99", b__dtype=99)
    refused(rng, 2, "float64", c__dtype=3)
    refused(rng, 1, "pointer to a", a__data=None)
    refused(rng, 1, "pointer to out", c__data=None)
    refused(rng, 1, "flags", epilogue=1 << 12)
    refused(rng, 1, "four GELU", epilogue=_native.EPILOGUE_GELU_TANH | _native.EPILOGUE_GELU_ERF)
    both = _native.EPILOGUE_STORE_PREACTIVATION | _native.EPILOGUE_GELU_ERF_GRADIENT
    refused(rng, 1, "both flags", epilogue=both, aux__rows=6, aux__cols=7)
    refused(rng, 1, "COLUMN_SUM", epilogue=_native.EPILOGUE_COLUMN_SUM_ACCUMULATE)
    refused(rng, 1, "ROW_SUM_A", epilogue=_native.EPILOGUE_ROW_SUM_A_ACCUMULATE)
    refused(rng, 1, "pointer to bias", epilogue=_native.EPILOGUE_BIAS)
    refused(rng, 2, "bias", epilogue=_native.EPILOGUE_BIAS, bias_dtype=_native.FLOAT64)
    refused(rng, 1, "pointer to column_sum", epilogue=_native.EPILOGUE_COLUMN_SUM)
    refused(rng, 1, "aux of shape", epilogue=_native.EPILOGUE_STORE_PREACTIVATION)
    refused(rng, 1, "residual of shape", epilogue=_native.EPILOGUE_RESIDUAL)
    refused(rng, 1, "2^58", a__row_stride=1 << 60)
    for stride in (0, 6, 1):
        refused(rng, 1, "overlap each other", c__row_stride=stride)
    refused(rng, 1, "overlap", batch=2, c__batch_stride=0)
    assert _native.library.blublas_gemm(None) == 1


def test_a_longer_struct_is_read_as_far_as_it_is_known(rng: np.random.Generator) -> None:
    class Longer(ctypes.Structure):
        _fields_ = (("known", _native.GemmArgs), ("later", ctypes.c_int64 * 4))

    a, b, c = normal(rng, 3, 5), normal(rng, 5, 4), np.full((3, 4), np.nan, np.float32)
    longer = Longer(known=describe(a, b, c))
    longer.known.struct_size = ctypes.sizeof(Longer)
    assert call(longer.known) == 0
    assert np.isfinite(c).all()


OVERLAPS = {
    "same array": (lambda x: x[:20, :20], lambda x: x[:20, :20], True),
    "one row shared": (lambda x: x[:20, :20], lambda x: x[19:39, :20], True),
    "rows apart": (lambda x: x[:20, :20], lambda x: x[20:40, :20], False),
    "columns apart": (lambda x: x[:20, :20], lambda x: x[:20, 20:40], False),
    "one column shared": (lambda x: x[:20, :20], lambda x: x[:20, 19:39], True),
    "odd and even columns": (lambda x: x[:20, :40:2], lambda x: x[:20, 1:41:2], False),
    "odd and even rows": (lambda x: x[:40:2, :20], lambda x: x[1:41:2, :20], False),
    "backwards": (lambda x: x[19::-1, 19::-1], lambda x: x[:20, :20], True),
    "transposed": (lambda x: x[:20, :20].T, lambda x: x[:20, :20], True),
    "transposed apart": (lambda x: x[:20, :20].T, lambda x: x[:20, 20:40], False),
}


@pytest.mark.parametrize("role", ["a", "b"])
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlap(name: str, role: str, rng: np.random.Generator) -> None:
    of_out, of_operand, overlapping = OVERLAPS[name]
    memory = normal(rng, 50, 50)
    before = memory.copy()
    out, operand, other = of_out(memory), of_operand(memory), normal(rng, 20, 20)
    expected = np.empty((20, 20), np.float32)
    assert call(describe(*((operand, other) if role == "a" else (other, operand)), expected)) == 0
    args = describe(*((operand, other) if role == "a" else (other, operand)), out)
    if overlapping:
        assert call(args) == 1
        assert f"overlaps {role}" in last_error()
        assert np.array_equal(memory, before)
    else:
        assert call(args) == 0, last_error()
        assert np.allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_overlap_of_what_is_added_and_stored(rng: np.random.Generator) -> None:
    memory = normal(rng, 50, 50)
    a, b, out = normal(rng, 20, 20), normal(rng, 20, 20), memory[:20, :20]
    args = describe(a, b, out)
    for flag, field in (
        (_native.EPILOGUE_RESIDUAL, "residual"),
        (_native.EPILOGUE_GELU_TANH_GRADIENT, "aux"),
        (_native.EPILOGUE_STORE_PREACTIVATION, "aux"),
    ):
        args.epilogue = flag
        setattr(args, field, matrix_of(memory[1:21, :20]))
        assert call(args) == 1
        assert "overlaps" in last_error()
        setattr(args, field, matrix_of(memory[20:40, :20]))
        assert call(args) == 0, last_error()
    args.epilogue = _native.EPILOGUE_COLUMN_SUM
    args.column_sum = out.ctypes.data
    assert call(args) == 1
    assert "column_sum" in last_error()
    args.epilogue, args.bias = _native.EPILOGUE_BIAS, out.ctypes.data
    assert call(args) == 1
    assert "bias" in last_error()


def test_errors_belong_to_their_thread(rng: np.random.Generator) -> None:
    refused(rng, 1, "struct_size", struct_size=8)
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(last_error()))
    thread.start()
    thread.join()
    assert texts == [""]
    assert "struct_size" in last_error()
