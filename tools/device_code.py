"""Checks the CUDA code of built wheels.

    python tools/device_code.py WHEEL...

- no floating-point atomics (RED, ATOM, ATOMS on F16, BF16, F32 or F64): sums would depend on the order of threads,
- no kernel library of a vendor among what the libraries load or embed (cuBLAS, cuDNN, CUTLASS and the like),
- kernels whose registers spill to local memory are listed, with their bytes.

Needs readelf, and cuobjdump with nvdisasm: of a CUDA toolkit on PATH, or of the wheels nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm in this environment. Exit status 1 when one of the first two is violated.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

FLOAT_ATOMIC = re.compile(r"\b(RED|REDG|ATOM|ATOMG|ATOMS|UTMAREDG|UBLKRED)\b\S*\.(F16|BF16|F32|F64)")
FUNCTION = re.compile(r"^\s*(?:Function|Fatbin elf code.*?Function) ?: ?(?P<name>\S+)", re.MULTILINE)
RESOURCES = re.compile(r"Function (?P<name>\S+):\s+REG:(?P<registers>\d+) STACK:(?P<stack>\d+).*?LOCAL:(?P<local>\d+)")
VENDOR = re.compile(r"cublas|cudnn|cutlass|cusparse|cusolver|nvrtc|cub::", re.IGNORECASE)


def main(wheels: list[str]) -> int:
    """Check wheels; prints what was found."""
    if not wheels:
        print("expected at least one wheel; build them with nox -s gpu", file=sys.stderr)
        return 2
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), *installed_tools()])
    if shutil.which("cuobjdump") is None:
        print("expected cuobjdump on PATH; pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm", file=sys.stderr)
        return 2
    problems, kernels = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels:
            for library in extract_libraries(Path(wheel), Path(folder)):
                found, count = check_library(library)
                problems += found
                kernels += count
    print(f"device code: {kernels} kernels, {problems} problems")
    return 1 if problems else 0


def installed_tools() -> list[str]:
    """Folders of CUDA's programs that wheels installed here."""
    return [str(folder) for folder in Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin")]


def extract_libraries(wheel: Path, folder: Path) -> Iterator[Path]:
    """The shared libraries of a wheel, unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.search(r"\.so(\.\d+)*$", name):
                yield Path(archive.extract(name, folder))


def check_library(library: Path) -> tuple[int, int]:
    """Print the problems of a library; returns their number and that of its kernels."""
    problems = 0
    needed = run("readelf", "-d", "-W", str(library))
    for line in needed.splitlines():
        if "NEEDED" in line and VENDOR.search(line):
            print(f"{library.name}: loads {line.split('[')[-1].rstrip(']')}")
            problems += 1
    symbols = sorted(set(re.findall(VENDOR, run("strings", "-n", "5", str(library)))))
    if symbols:
        print(f"{library.name}: names of a vendor's library occur in it: {', '.join(symbols)}")
        problems += 1
    sass = run("cuobjdump", "-sass", str(library))
    function, seen = "?", set()
    for line in sass.splitlines():
        match = FUNCTION.match(line)
        if match:
            function = match["name"]
        elif FLOAT_ATOMIC.search(line) and function not in seen:
            seen.add(function)
            print(f"{library.name}: floating-point atomic in {readable(function)}: {line.strip()}")
            problems += 1
    usage = run("cuobjdump", "-res-usage", str(library))
    kernels = 0
    for match in RESOURCES.finditer(usage):
        kernels += 1
        if int(match["stack"]) or int(match["local"]):
            registers, stack = match["registers"], max(int(match["stack"]), int(match["local"]))
            print(f"{library.name}: {stack} bytes of stack, {registers} registers: {readable(match['name'])}")
    return problems, kernels


def run(*command: str) -> str:
    """Output of a program that has to succeed; cuobjdump on a library without device code gives nothing."""
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode and "does not contain device code" not in result.stderr + result.stdout:
        raise SystemExit(f"{command[0]} failed: {result.stderr.strip()}")
    return result.stdout


def readable(name: str) -> str:
    """A C++ name as one reads it, shortened."""
    return run("c++filt", name).strip()[:160]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
