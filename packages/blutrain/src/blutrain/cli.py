"""The command line. Every command calls the Python function of the same name; nothing is computed here.

Exit codes: 0 done, 2 the user's mistake (one line says what and how to repair it), 129 ended by SIGHUP, 130 by Ctrl-C,
143 by SIGTERM.
"""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import click
from rich.console import Console
from rich.progress import Progress

from blutrain.errors import BlutrainError, ConfigError
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


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool) -> None:
    """Show devices, builds and versions, and what is missing with the way to get it."""
    from blutrain.installation import format_info
    from blutrain.installation import info as look

    found = look()
    click.echo(json.dumps(found.to_dict(), indent=1) if as_json else format_info(found))


@cli.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--tokenizer", default="bytes", help="Name of the tokenizer.")
@click.option("--val-fraction", default=0.05, help="Share of validation text.")
@click.option("--shard-tokens", default=100_000_000, help="Longest shard.")
@click.option("--include", multiple=True, default=("*",), help="Pattern for files inside folders; may be repeated.")
@click.option("--exclude", multiple=True, help="Pattern for files and folders inside folders to leave out.")
@click.option("--force", is_flag=True, help="Replace another data set in the folder.")
def prepare(
    sources: tuple[str, ...], out: Path, include: tuple[str, ...], exclude: tuple[str, ...], **options: Any
) -> None:
    """Turn text files, folders and globs into token shards."""
    from blutrain.data import prepare as make

    with _progress("preparing") as progress:
        dataset = make(sources, out, include=include, exclude=exclude, progress=progress, **options)
    documents = dataset.manifest["documents"] if dataset.manifest else {}
    for split, count in dataset.tokens.items():
        shards = len(dataset.shards[split])
        click.echo(f"{split:<6} {count:,} tokens of {documents.get(split, 0):,} documents in {shards} shard(s)")
    click.echo(f"{'data':<6} {out}")


@cli.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--preset", help="Named configuration to start from.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one key, as in train.steps=100.")
@click.option("--device", help="Short for --set train.device=...")
@click.option("--resume", is_flag=True, help="Continue from the newest good checkpoint when there is one.")
@click.option("--overwrite", is_flag=True, help="Start anew in a folder that holds a run.")
def train(
    config: Path | None,
    preset: str | None,
    settings: tuple[str, ...],
    device: str | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Train a model. CONFIG is a TOML file, or the folder of a run to take its configuration from."""
    from blutrain.console import ConsoleReporter
    from blutrain.launch import resolve_config
    from blutrain.launch import train as run

    if device is not None:
        settings = (*settings, f"train.device={device}")
    resolved = resolve_config(config, preset=preset, settings=settings)
    with ConsoleReporter() as reporter:
        result = run(resolved, resume=resume, overwrite=overwrite, reporter=reporter)
    if result.exit_code:
        sys.exit(result.exit_code)


@cli.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Prepared folder; by default the run's own.")
@click.option("--split", default="val", help="train or val.")
@click.option("--max-batches", default=0, help="Largest number of micro-batches, 0 for all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(run: Path, data: Path | None, split: str, max_batches: int, as_json: bool) -> None:
    """Measure the loss of a run's newest checkpoint, or of a checkpoint file."""
    from blutrain.evaluation import evaluate as measure

    with _progress("evaluating") as progress:
        result = measure(run, data=data, split=split, max_batches=max_batches, progress=progress)
    if as_json:
        values = {"step": result.step, "split": split, "loss": result.loss, "tokens": result.tokens}
        click.echo(json.dumps({**values, "perplexity": result.perplexity, "bits_per_token": result.bits_per_token}))
    else:
        click.echo(
            f"step {result.step}: {split} loss {result.loss:.4f} nats a token ({result.bits_per_token:.4f} bits,"
            f" perplexity {result.perplexity:.2f}) over {result.tokens:,} tokens"
        )


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="", help="Text to continue; empty starts a new document.")
@click.option("--max-new-tokens", default=200, help="Tokens to make at most.")
@click.option("--temperature", default=0.8, help="0 is greedy.")
@click.option("--top-k", default=0, help="Choose among this many most likely tokens; 0 among all.")
@click.option("--top-p", default=1.0, help="Choose among the most likely tokens with this probability together.")
@click.option("--seed", default=0, help="Seed of the choices.")
def generate(run: Path, prompt: str, max_new_tokens: int, **options: Any) -> None:
    """Continue a text with a run's newest checkpoint, or with a checkpoint file."""
    from blutrain.generation import generate as continue_text
    from blutrain.sampling import SamplingOptions

    chosen = SamplingOptions(**options)
    text = continue_text(run, prompt, max_new_tokens=max_new_tokens, options=chosen, report=_note)
    click.echo(text)


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="PNG file; by default loss.png in the first run's folder.")
def plot(runs: tuple[Path, ...], out: Path | None) -> None:
    """Draw the losses of runs as a PNG."""
    from blutrain.plotting import plot as draw

    click.echo(draw(runs, out))


@cli.command()
@click.option("--peer", type=click.Choice(["torch"]), help="Measure this library too.")
@click.option("--work", "works", multiple=True, metavar="PATTERN", help="Names to measure, as in 'train.nano.*'.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the results.")
@click.option("--threads", default=0, help="CPU threads; 0 for all.")
@click.option("--rounds", default=3, help="Processes of each kind, in turns.")
@click.option("--steps", default=12, help="Timed steps of a process.")
def bench(peer: str | None, works: tuple[str, ...], out: Path | None, **numbers: int) -> None:
    """Measure the training step that 'train' runs, beside a peer's."""
    from blutrain.benchmark import bench as measure
    from blutrain.benchmark import format_table, save

    entries = measure(works, peer=peer, report=_note, **numbers)
    click.echo(format_table(entries))
    if out is not None:
        save(entries, out)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``blutrain``; ends the process with the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of another encoding is no reason to stop
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
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
        error.show()
        return USER_ERROR
    except (click.Abort, KeyboardInterrupt):
        _note("interrupted")
        return INTERRUPTED
    except SystemExit as done:
        return int(done.code or 0)
    except Exception as error:
        if "--traceback" in arguments:
            raise
        _note(message_of(error))
        return USER_ERROR
    return code if isinstance(code, int) else 0


def is_user_error(error: Exception) -> bool:
    """Whether an error is one that the user can cause and repair, and no defect of ours."""
    if isinstance(error, (BlutrainError, OSError, MemoryError)):
        return True
    return isinstance(error, ImportError) and (error.name or "").removeprefix("lib").startswith("blu")


def message_of(error: Exception) -> str:
    """The error as one line; a configuration's problems stay one line each."""
    if isinstance(error, ConfigError):
        return "\n".join(f"error: {problem}" for problem in error.problems)
    if is_plain_os_error(error):
        place = "" if error.filename is None else f"{error.filename}: "
        return f"error: {place}{error.strerror or error}: check the path, its permissions and the free space"
    text = " ".join(str(error).split())
    if is_user_error(error):
        return f"error: {text}"
    name = type(error).__name__
    return f"error: unexpected {name}: {text} ('blutrain --traceback ...' shows where it comes from; please report it)"


def is_plain_os_error(error: Exception) -> TypeGuard[OSError]:
    """Whether an error is the operating system's, without a text of ours."""
    return (
        isinstance(error, OSError) and not isinstance(error, (BlutrainError, ImportError)) and error.errno is not None
    )


def _note(text: str) -> None:
    click.echo(text, err=True)


class _progress:
    """A bar on standard error for a function that calls back with what is done and what there is in all."""

    def __init__(self, title: str) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._title = title

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.start()
        task = self._bar.add_task(self._title, total=None)
        return lambda done, total: self._bar.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
