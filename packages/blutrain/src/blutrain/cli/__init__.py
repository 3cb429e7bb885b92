"""The command line. Every command calls the Python function of the same name; nothing is computed here.

Exit codes: 0 done, 2 the user's mistake (one line says what and how to repair it), 129 ended by SIGHUP, 130 by Ctrl-C,
143 by SIGTERM.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from typing import TextIO, cast

import click

from blutrain.cli.data import prepare, train_tokenizer
from blutrain.cli.errors import message_of
from blutrain.cli.machine import bench, info
from blutrain.cli.models import evaluate, export_hf, generate, import_hf
from blutrain.cli.output import note
from blutrain.cli.training import plot, train
from blutrain.console import LastingStream
from blutrain.stop_signal import FirstInterrupt

USER_ERROR = 2
"""Exit code of the user's mistakes."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="blutrain")
@click.option("--traceback", is_flag=True, help="Show where an error comes from.")
def cli(traceback: bool) -> None:
    """Train GPT-class models from scratch with kernels, tensors and autograd of our own."""


for _command in (
    info, prepare, train_tokenizer, train, evaluate, generate, import_hf, export_hf, plot, bench,
):  # fmt: skip
    cli.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``blutrain``; ends the process with the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of another encoding is no reason to stop
    if sys.stderr is not None:  # notes, bars, warnings, logs: none of them is worth the work that they are about
        sys.stderr = cast(TextIO, LastingStream(sys.stderr))
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL):
        signal.signal(signal.SIGINT, FirstInterrupt())
    code = run_command(given)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is over: only its exit code is left to tell
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run one command.

    Args:
        arguments: without the program's name.

    Returns:
        The exit code.
    """
    try:
        code = cli.main(arguments, prog_name="blutrain", standalone_mode=False)
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return USER_ERROR
    except (click.Abort, KeyboardInterrupt):
        note("interrupted")
        return INTERRUPTED
    except SystemExit as done:
        return int(done.code or 0)
    except Exception as error:
        if "--traceback" in arguments:
            raise
        note(message_of(error))
        return USER_ERROR
    return code if isinstance(code, int) else 0
