"""Fuzzes every reader of files, or those that are named: ``nox -s fuzz -- [TARGET...] [options below]``.

``shard`` is the native reader: libFuzzer where Clang is installed, mutations of the corpus where it is not, both under
AddressSanitizer and UndefinedBehaviorSanitizer. The others are written in Python (``packages/blutrain/tests/fuzz``).
They run twice: for some minutes guided by coverage, where atheris is installed, and then, with what that found, in an
interpreter under AddressSanitizer, which watches what NumPy, pyarrow, tokenizers and the mapped files do. (The
sanitizer takes the coverage for itself, so the two do not go together.) ``--runs`` counts the inputs under the
sanitizer.

Inputs that break a reader are kept in ``build/fuzz``. What was found so far is in ``docs/hardening.md``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import repository

FOLDER = repository.ROOT / "packages" / "blutrain" / "tests" / "fuzz"
OUT = repository.ROOT / "build" / "fuzz"
RUNS = 1_000_000
SHARD = "shard"
MEMORY = "/dev/shm"
GUIDED_SECONDS = 300
LARGEST_ALLOCATION_MIB = 128
"""Under the sanitizer: half of what an input may take; without it the readers' process is limited to twice that."""
ASAN = {
    # Python frees what it keeps to its end not at all. A kept input can be run again with more callers of an allocation
    # than two, which take most of the sanitizer's time, and what was freed need not be kept for long.
    "ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0:malloc_context_size=2:quarantine_size_mb=32"
    f":allocator_may_return_null=1:max_allocation_size_mb={LARGEST_ALLOCATION_MIB}",
    # Allocators of their own would hide where blocks end.
    "PYTHONMALLOC": "malloc",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command that has to succeed."""
    subprocess.run([str(part) for part in command], env={**os.environ, **(env or {})}, check=True)


def targets_in_python() -> list[str]:
    """Names of the targets that are written in Python."""
    command = [sys.executable, str(FOLDER / "fuzz.py"), "--list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def fuzz_shards(arguments: argparse.Namespace) -> None:
    """Build and run the native target."""
    runs, seconds = arguments.runs, arguments.seconds
    clang = shutil.which("clang++")
    tree = OUT / ("clang" if clang else "gcc")
    settings = ["-DBLU_SANITIZE=address,undefined", "-DBLU_BUILD_TESTS=ON"]
    settings += [f"-DCMAKE_CXX_COMPILER={clang}", "-DBLU_FUZZ=ON"] if clang else []
    program = "shard_fuzzer" if clang else "shard_fuzzer_replay"
    run("cmake", "-S", repository.ROOT / "packages" / "blutrain", "-B", tree, "-G", "Ninja", *settings)
    run("cmake", "--build", tree, "--target", program)
    corpus = FOLDER / "corpus" / SHARD
    if not clang:
        print("clang++ is not installed: mutations that no coverage guides")
        run(tree / program, corpus, str(runs))
        return
    found = OUT / SHARD
    found.mkdir(parents=True, exist_ok=True)
    options = [f"-runs={runs}", "-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=100", "-max_len=512"]
    options += [f"-max_total_time={seconds}"] if seconds else []
    run(
        tree / program,
        *options,
        "-verbosity=0",
        "-print_final_stats=1",
        f"-artifact_prefix={OUT}/{SHARD}-",
        found,
        corpus,
    )


def asan_environment() -> dict[str, str]:
    """In which Python runs under AddressSanitizer; empty without g++."""
    if shutil.which("g++") is None:
        print("g++ is not installed: without AddressSanitizer")
        return {}
    libraries = []
    # The sanitizer looks for what throws exceptions when it is loaded; Python itself brings no C++.
    for name in ("libasan.so", "libstdc++.so.6"):
        command = ["g++", f"-print-file-name={name}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        libraries.append(os.path.realpath(found))
    return {"LD_PRELOAD": ":".join(libraries), **ASAN}


def fuzz_python(target: str, arguments: argparse.Namespace) -> None:
    """Run a target of ours, guided and then under AddressSanitizer."""
    command = [sys.executable, str(FOLDER / "fuzz.py"), target, "--crashes", str(OUT)]
    command += ["--corpus", str(OUT / f"corpus-{target}")]
    guided = min(arguments.guided, arguments.seconds or arguments.guided)
    # In memory; made here, because atheris ends its process without cleaning up.
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as files:
        if guided and importlib.util.find_spec("atheris"):
            run(*command, "--engine", "atheris", "--seconds", str(guided), env={"TMPDIR": files})
        command += ["--runs", str(arguments.runs), "--processes", str(arguments.processes)]
        command += ["--seconds", str(arguments.seconds)] if arguments.seconds else []
        run(*command, "--engine", "mutation", env={**asan_environment(), "TMPDIR": files})


def main() -> None:
    """Fuzz one target after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--runs", type=int, default=RUNS, help="inputs of each target (%(default)s)")
    parser.add_argument("--seconds", type=int, help="of each target; by default as long as the runs take")
    parser.add_argument(
        "--guided", type=int, default=GUIDED_SECONDS, help="seconds of each target with atheris (%(default)s)"
    )
    parser.add_argument("--processes", type=int, default=1, help="of each target that is written in Python")
    arguments = parser.parse_args()
    known = [SHARD, *targets_in_python()]
    unknown = set(arguments.targets) - set(known)
    if unknown:
        parser.error(f"expected targets out of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    for target in arguments.targets or known:
        begin = time.monotonic()
        if target == SHARD:
            fuzz_shards(arguments)
        else:
            fuzz_python(target, arguments)
        print(f"fuzz {target}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
