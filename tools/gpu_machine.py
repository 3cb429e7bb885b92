"""Runs the tests and benchmarks of the GPU on the machine that has one.

    nox -s gpu                                             on any machine: wheels into dist/cuda/
    python tools/gpu_machine.py --wheels dist/cuda         on the machine with the GPU: everything
    python tools/gpu_machine.py --wheels dist/cuda tests   a part: tests, sanitizer, bench, train,
                                                           train-2420m, fidelity

Loss curves beside PyTorch need text of some 9 million tokens and GPT-2's vocabulary (``--text``, ``--vocabulary``);
without them that part is left out.

Wheels are installed into a folder of their own (``--target``), so that nothing of the machine changes. What else is
needed must be there: numpy, click, rich, tomli_w, pytest, and PyTorch as the peer. Benchmarks write
``<package>/benchmarks/results/<machine>/<topic>.json``, from which the tables of the documentation are made; a part
that fails does not stop the others. Exit status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import repository

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("tests", "sanitizer", "bench", "train", "train-2420m", "fidelity")
# Package, script and topic of every benchmark that needs a GPU.
BENCHMARKS = (
    ("blublas", "gemm_cuda.py", "gemm"),
    ("blutensor", "bench_attention_cuda.py", "attention"),
    ("blutensor", "bench_memory_cuda.py", "memory"),
    ("blutensor", "bench_layers_cuda.py", "layers"),
    ("blutensor", "overhead_cuda.py", "overhead"),
    ("blualloc", "torch_training.py", "torch_training"),
    ("blutrain", "checkpoint_cuda.py", "checkpoint"),
)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--wheels", type=Path, required=True, help="folder of the wheels")
    parser.add_argument("--text", type=Path, help="folder of text for the loss curves")
    parser.add_argument("--vocabulary", type=Path, help="folder of encoder.json and vocab.bpe for them")
    parser.add_argument("--pytest", default="", help="more arguments for pytest, in one text")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        parser.error(f"expected parts out of {', '.join(PARTS)}, got {', '.join(unknown)}")
    parts = arguments.parts or PARTS
    if "fidelity" in arguments.parts and not (arguments.text and arguments.vocabulary):
        parser.error("expected --text and --vocabulary for the loss curves")
    with tempfile.TemporaryDirectory() as target:
        wheels = sorted(str(wheel) for wheel in arguments.wheels.glob("*.whl"))
        if not wheels:
            parser.error(f"expected wheels in {arguments.wheels}, got none; build them with nox -s gpu")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", target]
        subprocess.run([*pip, *wheels], check=True)
        run = Runner({**os.environ, "PYTHONPATH": os.pathsep.join([target, os.environ.get("PYTHONPATH", "")])})
        if "tests" in parts:
            for package in repository.packages():
                tests = ROOT / "packages" / package / "tests"
                run.part(f"tests of {package}", *pytest_command(tests), "-m", "gpu", *arguments.pytest.split())
            # Its last block runs where there is a GPU, and only there.
            run.part("tutorial", *pytest_command(ROOT / "docs" / "tests" / "test_tutorials.py"), "-k", "from_pytorch")
        if "sanitizer" in parts:
            run_sanitizers(run, arguments.pytest.split())
        if "bench" in parts:
            for package, script, topic in BENCHMARKS:
                out = results_of(package) / f"{topic}.json"
                run.part(f"{package} {topic}", *script_of(package, script), "--out", str(out))
        training, results = script_of("blutrain", "train_cuda.py"), ROOT / "benchmarks" / "results" / machine_name()
        if "train" in parts:
            run.part("training", *training, "--out", str(results / "train.json"))
        if "train-2420m" in parts:
            large = ["--work", "train.2420M.*", "--out", str(results / "train_2420m.json")]
            run.part("training of 2420M", *training, *large)
        if "fidelity" in parts and arguments.text and arguments.vocabulary:
            curves = results_of("blutrain") / "fidelity.json"
            source = ["--text", str(arguments.text), "--vocabulary", str(arguments.vocabulary)]
            files = ["--out", str(curves), "--plot", str(curves.with_suffix(".png"))]
            run.part("loss curves", *script_of("blutrain", "fidelity.py"), *source, *files)
        if set(parts) - {"tests", "sanitizer"}:
            run.part("tables", sys.executable, str(ROOT / "tools" / "docs_tables.py"))
        return run.summary()


def run_sanitizers(run: Runner, more: list[str]) -> None:
    """The tests that are small enough for them."""
    for tool in ("memcheck", "racecheck"):
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
        for package, what in (("blutensor", "operators"), ("blutrain", "steps of a model")):
            tests = pytest_command(ROOT / "packages" / package / "tests")
            run.part(f"compute-sanitizer {tool}, {what}", *command, *tests, "-m", "gpu", "-k", "sanitized", *more)


class Runner:
    """Runs parts one after another and remembers how they ended.

    Args:
        environment: of every part.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._results: list[tuple[str, int, float]] = []

    def part(self, name: str, *command: str) -> None:
        """Run one part; its output goes where ours goes."""
        print(f"--- {name}", flush=True)
        begin = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, env=self.environment).returncode
        # pytest's status 5: no test of the folder needs a GPU.
        self._results.append((name, 0 if status == 5 and "pytest" in command else status, time.monotonic() - begin))

    def summary(self) -> int:
        """Print a line per part; returns the exit status."""
        for name, status, seconds in self._results:
            print(f"{'passed' if status == 0 else f'FAILED ({status})':<12} {seconds:7.1f} s  {name}")
        return 1 if any(status for _, status, _ in self._results) else 0


def pytest_command(tests: Path) -> list[str]:
    """The command that runs tests of a folder or file with the settings of the repository."""
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-q"]
    return [sys.executable, "-m", "pytest", *settings, str(tests)]


def script_of(package: str, script: str) -> list[str]:
    """The command of a package's benchmark."""
    return [sys.executable, str(ROOT / "packages" / package / "benchmarks" / script)]


def results_of(package: str) -> Path:
    """Where a package keeps what was measured on this machine."""
    return ROOT / "packages" / package / "benchmarks" / "results" / machine_name()


@functools.cache
def machine_name() -> str:
    """Name of the first GPU as a folder: ``nvidia-h200``."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
    name = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return re.sub(r"[^a-z0-9]+", "-", name.strip().lower())


if __name__ == "__main__":
    sys.exit(main())
