"""Why no GPU can be used: told apart with drivers that only pretend, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import blutensor as bt

#: A libcuda.so.1 with a version and an answer to cuInit; every other function fails.
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : ANSWER; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
static int fails(void) { return 999; }
int cuGetProcAddress_v2(const char* name, void** out, int version, unsigned long long flags, int* found) {
  *out = !strcmp(name, "cuInit")               ? (void*)cuInit
         : !strcmp(name, "cuDriverGetVersion") ? (void*)cuDriverGetVersion
         : !strcmp(name, "cuGetProcAddress")   ? (void*)cuGetProcAddress_v2
                                               : (void*)fails;
  if (found) *found = 0;
  return version < 0 || flags > 1;
}
"""

PROGRAM = """
import blutensor as bt
reason = bt.cuda.unavailable_reason()
assert not bt.cuda.is_available()
for use in (lambda: bt.zeros(2, device="cuda"), lambda: bt.ones(2).cuda(), lambda: bt.set_default_device("cuda:0")):
    try:
        use()
        raise AssertionError("there is no GPU")
    except bt.UnsupportedError as error:
        assert str(error) == f"[device] cuda:0 cannot be used: {reason}", error
assert (bt.ones(2) + 1).tolist() == [2, 2]
print(reason)
"""


@pytest.fixture(autouse=True)
def _needs_a_build_with_cuda() -> None:
    if "this build of blutensor has no CUDA" in bt.cuda.unavailable_reason():
        pytest.skip("this build has no CUDA")


@pytest.mark.parametrize(
    ("version", "answer", "expected"),
    [
        (12040, 0, "the NVIDIA driver supports CUDA 12.4, and CUDA 13.0 is needed; update it to version 580 or newer"),
        (13000, 100, "the driver lists no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES"),
        (13000, 803, "CUDA does not start: cudaErrorSystemDriverMismatch"),
    ],
)
def test_reasons(tmp_path: Path, version: int, answer: int, expected: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER, encoding="utf-8")
    flags = ["-shared", "-fPIC", f"-DVERSION={version}", f"-DANSWER={answer}"]
    subprocess.run([compiler, *flags, str(tmp_path / "driver.c"), "-o", str(tmp_path / "libcuda.so.1")], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
