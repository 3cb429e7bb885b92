"""Fuzzes the readers that are written in Python.

    python fuzz.py TARGET [--runs N] [--seconds S] [--engine atheris|mutation] [--processes N] [--corpus FOLDER]

A finding is an exception that is none of ours, an input that takes longer than 10 seconds, or memory that grows by
more than 256 MiB: the process stops, says so and keeps the input. Where native code ends the process or never returns,
the input is in the file TARGET-running-PROCESS, which is there as long as mutations run. atheris, where it is
installed, is guided by coverage and collects what reaches new code in the corpus; the engine of our own mutates the
seeds and that corpus, and needs nothing. `nox -s fuzz` runs all targets with both.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutation import mutations
from targets import MODULES, target_of

MEMORY_BYTES = 256 << 20
"""So much more than the seeds an input may take."""
SECONDS = 10
"""So long one input may take the processor."""
MAX_BYTES = 1 << 14
INPUTS_BETWEEN_LOOKS = 64
"""So many inputs run between two looks at the clock."""
SECONDS_BETWEEN_LINES = 60
HANG_SECONDS = 120
"""So long the inputs between two looks may take the processor, in native code that does not let Python stop it."""


class TooSlowError(BaseException):
    """An input took longer than `SECONDS`."""


class TooLargeError(BaseException):
    """An input took more than `MEMORY_BYTES`."""


def peak_bytes() -> int:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def forget_peak() -> None:
    """Let the peak begin anew at what is held now, so that what many inputs leave behind is not taken for one's."""
    with contextlib.suppress(OSError):  # a system that does not let it be reset
        Path("/proc/self/clear_refs").write_text("5")


def limit_memory() -> None:
    """Refuse allocations far beyond what a reader may need.

    AddressSanitizer's shadow memory leaves no room for this limit; there, ``tools/fuzz.py`` gives it one of its own.
    """
    if "libasan" in Path("/proc/self/maps").read_text():
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY_BYTES, resource.RLIM_INFINITY))


class Running:
    """A file that holds the input that runs, for whoever finds the process gone."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def begin(self, data: bytes) -> None:
        """An input begins to run."""
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))

    def end(self) -> None:
        """Nothing runs any more."""
        os.close(self._descriptor)
        self._path.unlink()


def watched(
    run: Callable[[bytes], bool], keep: Callable[[bytes], None], begin: Callable[[bytes], None] = lambda _: None
) -> Callable[[bytes], None]:
    """The target with limits of time and memory; an input that breaks one, or raises, is kept."""

    def too_slow(*_: object) -> None:
        raise TooSlowError(f"expected at most {SECONDS} seconds for an input")

    signal.signal(signal.SIGPROF, too_slow)
    most, left = 0, 0

    def one(data: bytes) -> None:
        nonlocal most, left
        if not left:
            forget_peak()
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)  # nobody handles it: it ends the process
            most, left = peak_bytes() + MEMORY_BYTES, INPUTS_BETWEEN_LOOKS
        left -= 1
        begin(data)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor: the machine may be busy
        try:
            run(data)
            if peak_bytes() > most:
                raise TooLargeError(f"expected at most {MEMORY_BYTES >> 20} MiB for an input")
        except BaseException:
            keep(data)
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return one


def keeper(name: str, folder: Path) -> Callable[[bytes], None]:
    """Writes an input that breaks a reader to a file and says where."""

    def keep(data: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"kept {path}: {data[:200]!r}", file=sys.stderr)

    return keep


def fuzz_by_mutation(target: Any, one: Callable[[bytes], None], arguments: argparse.Namespace) -> int:
    """Runs mutations of the seeds and of the corpus; returns how many. Says how far it is every minute."""
    begin = line = time.monotonic()
    seeds = target.seeds()
    if arguments.corpus is not None and arguments.corpus.is_dir():
        seeds += [path.read_bytes() for path in sorted(arguments.corpus.iterdir())]
    count = 0
    for data in mutations(seeds, target.words, arguments.seed):
        if count >= arguments.runs:
            break
        if count % INPUTS_BETWEEN_LOOKS == 0:
            now = time.monotonic()
            if now - begin >= arguments.seconds:
                break
            if now - line >= SECONDS_BETWEEN_LINES:
                line = now
                rate = count / (now - begin)
                print(f"{target.name} seed {arguments.seed}: {count} inputs, {rate:.0f}/s", file=sys.stderr, flush=True)
        one(data)
        count += 1
    return count


def fuzz_in_processes(arguments: argparse.Namespace) -> int:
    """Divides the runs among processes, each with a seed of its own that follows from ours; returns how many ran."""
    share, more = divmod(arguments.runs, arguments.processes)
    command = [sys.executable, __file__, arguments.target, "--engine", "mutation", "--crashes", arguments.crashes]
    command += ["--corpus", arguments.corpus] if arguments.corpus else []
    command += ["--seconds", str(arguments.seconds)]
    running = []
    for number in range(arguments.processes):
        own = ["--runs", str(share + (number < more)), "--seed", str(arguments.processes * arguments.seed + number)]
        running.append(subprocess.Popen([*map(str, command), *own], stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit("a process found something; the others ran to their end")
    return sum(json.loads(output)["runs"] for output in outputs)


def fuzz_by_atheris(target: Any, one: Callable[[bytes], None], arguments: argparse.Namespace) -> None:
    """Runs libFuzzer over the instrumented reader; it ends the process."""
    import atheris

    folder = arguments.corpus or Path(tempfile.mkdtemp(prefix=f"fuzz-{target.name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (folder / f"seed-{number}").write_bytes(data)
    arguments.crashes.mkdir(parents=True, exist_ok=True)
    words = folder.with_suffix(".dict")
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in target.words if len(word) <= 64]
    words.write_text("\n".join(lines))
    options = [
        f"-runs={arguments.runs}",
        f"-max_len={MAX_BYTES}",
        f"-dict={words}",
        f"-seed={arguments.seed}",
        "-verbosity=0",
        "-timeout=600",
        "-print_final_stats=1",
        f"-artifact_prefix={arguments.crashes}/{target.name}-",
    ]
    if arguments.seconds < float("inf"):
        options.append(f"-max_total_time={round(arguments.seconds)}")
    # Slow growth of the corpus is no finding of the reader; memory is judged per input by `watched`.
    atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=0", str(folder)], one)
    atheris.Fuzz()


def load_target(name: str, instrumented: bool) -> Any:
    """A target, with its reader instrumented for coverage where atheris is to guide."""
    if not instrumented:
        return target_of(name)
    import atheris

    with atheris.instrument_imports(include=["blutrain", "tomllib", "json"]):
        return target_of(name)


def report(target: str, runs: int, seconds: float) -> None:
    """Prints how much ran."""
    rate = round(runs / max(seconds, 1e-9))
    print(json.dumps({"target": target, "runs": runs, "seconds": round(seconds, 1), "inputs_per_second": rate}))


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    parser.add_argument("--runs", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("atheris", "mutation"))
    parser.add_argument("--processes", type=int, default=1, help="of the mutations; each has a seed of its own")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--crashes", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--input", type=Path, help="run this one input alone")
    return parser.parse_args()


def main() -> None:
    """Fuzz one target."""
    arguments = parsed_arguments()
    if arguments.list:
        print(*MODULES)
        return
    engine = arguments.engine or ("atheris" if importlib.util.find_spec("atheris") else "mutation")
    begin = time.monotonic()
    if engine == "mutation" and arguments.processes > 1:
        report(arguments.target, fuzz_in_processes(arguments), time.monotonic() - begin)
        return
    target = load_target(arguments.target, engine == "atheris" and arguments.input is None)
    if arguments.input is not None:
        target.run(arguments.input.read_bytes())
        return
    for data in target.seeds():
        target.run(data)
    limit_memory()
    keep = keeper(target.name, arguments.crashes)
    if engine == "atheris":  # which keeps what ends the process itself
        fuzz_by_atheris(target, watched(target.run, keep), arguments)
    # Modules stay: the collector need not look through them again and again.
    gc.collect()
    gc.freeze()
    begin = time.monotonic()
    running = Running(arguments.crashes / f"{target.name}-running-{os.getpid()}")
    try:
        count = fuzz_by_mutation(target, watched(target.run, keep, running.begin), arguments)
    finally:
        running.end()
    report(target.name, count, time.monotonic() - begin)


if __name__ == "__main__":
    main()
