"""Why there is no CUDA device: told apart with drivers that only pretend, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import blualloc

#: A libcuda.so.1 with a version and an answer to cuInit; every other function fails.
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : ANSWER; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = 0; return 0; }
static int cuFails(void) { return 999; }
int cuGetProcAddress_v2(const char* name, void** out, int version, unsigned long long flags, int* found) {
  *out = !strcmp(name, "cuInit")               ? (void*)cuInit
         : !strcmp(name, "cuDriverGetVersion") ? (void*)cuDriverGetVersion
         : !strcmp(name, "cuDeviceGetCount")   ? (void*)cuDeviceGetCount
         : !strcmp(name, "cuGetProcAddress")   ? (void*)cuGetProcAddress_v2
                                               : (void*)cuFails;
  if (found) *found = 0;
  return version < 0 || flags > 1;
}
"""

PROGRAM = """
import blualloc
assert blualloc.device_count() == blualloc.device_count("pinned") == 0
print(blualloc.cuda_reason())
for name in ("cuda:0", "pinned"):
    try:
        blualloc.default_pool(name)
    except NotImplementedError as error:
        assert blualloc.cuda_reason() in str(error)
        assert f"got {name}" in str(error), error
pool = blualloc.default_pool()
pool.free(pool.allocate(100))
"""


@pytest.fixture(autouse=True)
def _needs_a_build_with_cuda() -> None:
    if "build of blualloc has no CUDA" in blualloc.cuda_reason():
        pytest.skip("this build has no CUDA")


def reason(folder: Path, **definitions: int) -> str:
    """What blualloc says beside such a driver."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "driver.c").write_text(DRIVER, encoding="utf-8")
    flags = ["-shared", "-fPIC", *(f"-D{name}={value}" for name, value in definitions.items())]
    subprocess.run([compiler, *flags, str(folder / "driver.c"), "-o", str(folder / "libcuda.so.1")], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    text = reason(tmp_path, VERSION=12040, ANSWER=0)
    assert "too old: it supports CUDA 12.4, CUDA 13 needs NVIDIA driver 580 or newer: update it" in text


def test_a_driver_without_devices(tmp_path: Path) -> None:
    text = reason(tmp_path, VERSION=13000, ANSWER=100)
    assert "shows no device; see what nvidia-smi lists, and CUDA_VISIBLE_DEVICES (now '0')" in text


def test_a_driver_that_does_not_start(tmp_path: Path) -> None:
    text = reason(tmp_path, VERSION=13000, ANSWER=803)
    assert "refuses to start: cudaErrorSystemDriverMismatch" in text


def test_no_driver(tmp_path: Path) -> None:
    # An empty file in the driver's place: it cannot be loaded, as if it were not there.
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "libcuda.so.1").touch()
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no NVIDIA driver was found (libcuda.so.1)" in done.stdout
