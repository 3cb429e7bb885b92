"""Checks that code compiled for one instruction set cannot end up where another one is expected.

A file with -mavx512f may instantiate an inline function (std::vector::push_back, a helper of ours) that other files
instantiate too. The linker keeps one copy of each such weak symbol, and when it keeps this one, processors without
AVX-512 stop at an illegal instruction in code that never asked for it. So a kernel's object may define weak symbols
only when the instruction set is part of their name: a namespace avx2 or avx512, or a template argument.

    python tools/isa_leaks.py BUILD_TREE...

Reads compile_commands.json of the build trees. Prints one line per symbol and exits with 1 when there is one.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ISA_FLAG = re.compile(r"-mavx(2|512f)$")
ISA_NAME = re.compile(r"avx2|avx512|fma", re.IGNORECASE)
WEAK = re.compile(r"^[0-9a-f]* *[WuV] (?P<symbol>\S+)$")


def kernel_objects(tree: Path) -> Iterator[Path]:
    """The object files of a build tree that are compiled for more than the baseline."""
    for entry in json.loads((tree / "compile_commands.json").read_text(encoding="utf-8")):
        command = shlex.split(entry["command"])
        if any(ISA_FLAG.match(argument) for argument in command):
            yield Path(entry["directory"]) / command[command.index("-o") + 1]


def leaks(symbols: str) -> list[str]:
    """The weak definitions in the output of ``nm`` whose name says nothing of an instruction set."""
    found = (WEAK.match(line) for line in symbols.splitlines())
    return [match["symbol"] for match in found if match and not ISA_NAME.search(match["symbol"])]


def main(trees: list[str]) -> int:
    """Check the build trees that are named on the command line."""
    objects = [path for tree in trees for path in kernel_objects(Path(tree))]
    total = 0
    for path in objects:
        symbols = subprocess.run(["nm", "--defined-only", path], check=True, capture_output=True, text=True).stdout
        names = leaks(symbols)
        total += len(names)
        if names:
            readable = subprocess.run(["c++filt", *names], check=True, capture_output=True, text=True).stdout
            print("\n".join(f"{path.name}: weak symbol {line}" for line in readable.splitlines()))
    print(f"{len(objects)} kernel objects, {total} weak symbols without an instruction set in their name")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
