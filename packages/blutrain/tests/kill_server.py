"""Trains in children that it kills: a process of its own, so that a kill costs a fork and no imports.

Reads an order per line (JSON) and answers it with a line:

    {"settings": ["train.steps=30", ...], "kill": {"kind": "time", "seconds": 0.05}}
    {"signal": 9, "code": null, "told": "..."}

Every order runs ``blutrain train --resume`` and dies, if the run does not end before,

    time   by SIGKILL from outside after so many seconds
    save   before, within or after an operation of a save (``strike``, ``moment``), counted over all saves of the life
    line   before, within or after the writing of a line of metrics or a sample (``strike``, ``moment``)
    disk   by itself with an exit code, when a file grows beyond ``bytes``
    never  not at all
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from typing import Any, NoReturn

from checkpoint_faults import KilledFiles

import blutrain.checkpoint.store
import blutrain.console
import blutrain.launch
from blutrain.cli import run_command
from blutrain.metrics import LineFile


def arrange_death(kill: dict[str, Any]) -> None:
    """Makes this process kill itself at the ordered moment."""
    if kill["kind"] == "save":
        files = KilledFiles(kill["strike"], kill["moment"])
        blutrain.checkpoint.store.OsFiles = lambda: files  # type: ignore[assignment,misc]
    elif kill["kind"] == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (kill["bytes"], kill["bytes"]))
    elif kill["kind"] == "line":
        count = 0
        append_text = LineFile.append_text

        def append_or_die(self: LineFile, text: str) -> tuple[int, int]:
            nonlocal count
            count += self._path.name != "log.jsonl"
            if count != kill["strike"] + 1:
                return append_text(self, text)
            if kill["moment"] == "within":
                append_text(self, text[: len(text) // 2])
            elif kill["moment"] == "after":
                append_text(self, text)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("unreachable")

        LineFile.append_text = append_or_die  # type: ignore[method-assign]


def live(order: dict[str, Any]) -> int:
    """Trains as ordered; returns the exit code."""
    arrange_death(order["kill"])
    return run_command(["train", "--resume", *(f"--set={setting}" for setting in order["settings"])])


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Trains in a child and kills it; returns how it ended and what it printed."""
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            os.dup2(told.fileno(), 1)
            os.dup2(told.fileno(), 2)
            end_with(order)
        if order["kill"]["kind"] == "time":
            kill_after(child, order["kill"]["seconds"])
        status = os.waitpid(child, 0)[1]
        told.seek(0)
        text = told.read().decode(errors="replace")
    killed = os.WIFSIGNALED(status)
    return {
        "signal": os.WTERMSIG(status) if killed else None,
        "code": None if killed else os.WEXITSTATUS(status),
        "told": text,
    }


def end_with(order: dict[str, Any]) -> NoReturn:
    """Trains as ordered and ends this process with the exit code; 99 for what the command line does not know."""
    code = 99
    try:
        code = live(order)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def kill_after(child: int, seconds: float) -> None:
    """Kills a child unless it ends before."""
    ended = os.pidfd_open(child)
    if not select.select([ended], [], [], seconds)[0]:
        signal.pidfd_send_signal(ended, signal.SIGKILL)
    os.close(ended)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
