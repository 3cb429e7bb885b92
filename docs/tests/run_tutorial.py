"""Runs the code blocks of a page in order, in the current folder: ``python run_tutorial.py PAGE``.

Python blocks share one namespace, as in one session; bash blocks are scripts of their own, in which the program
``blutrain`` is this interpreter's. What a block prints is compared with a block ``output`` that follows it, in which
``...`` stands for anything. A comment ``<!-- needs: NAME -->`` above a block leaves it out, and says so, where the
module NAME can not be imported, or for ``gpu`` where there is no GPU.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(
    r"(?:^<!-- needs: (?P<needs>\w+) -->\n)?^```(?P<language>python|bash|output)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block to run."""

    language: str
    code: str
    line: int
    """Of the page, where the code begins."""
    needs: str | None
    output: str | None
    """What it has to print; None for anything."""


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page, each with the output that stands directly behind it."""
    found: list[Block] = []
    for match in _FENCE.finditer(text):
        if match["language"] == "output":
            last = found.pop()
            assert last.output is None, f"line {last.line} has two outputs"
            found.append(Block(last.language, last.code, last.line, last.needs, match["code"]))
        else:
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(match["language"], match["code"], line, match["needs"], None))
    return found


def is_there(name: str) -> bool:
    """Whether what a block needs is there."""
    if name == "gpu":
        import blualloc

        return blualloc.device_count() > 0
    return importlib.util.find_spec(name) is not None


def run(page: Path, programs: Path) -> int:
    """Run a page.

    Args:
        page: Markdown.
        programs: folder for the program ``blutrain``.

    Returns:
        The number of blocks that were run.

    Raises:
        AssertionError: a block printed something else.
    """
    (programs / "blutrain").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m blutrain "$@"\n')
    (programs / "blutrain").chmod(0o755)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks_of(page.read_text(encoding="utf-8")):
        place = f"{page.name}:{block.line}"
        if block.needs is not None and not is_there(block.needs):
            print(f"{place}: left out, because it needs {block.needs}")
            continue
        if block.language == "python":
            with printed() as output:
                # Padded, so that tracebacks name the lines of the page.
                exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
            got = output.getvalue()
        else:
            path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
            command = ["bash", "-euo", "pipefail", "-c", block.code]
            done = subprocess.run(command, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True)
            got = done.stdout
            assert done.returncode == 0, f"{place}: exit code {done.returncode}, after printing\n{got}"
        if block.output is not None:
            assert doctest.OutputChecker().check_output(block.output, got.rstrip() + "\n", doctest.ELLIPSIS), (
                f"{place}: expected\n{block.output}\nbut it printed\n{got}"
            )
        count += 1
    return count


@contextlib.contextmanager
def printed() -> Iterator[io.StringIO]:
    """What is printed meanwhile."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(f"{run(Path(sys.argv[1]), Path(folder))} blocks were run")
