"""Commands that make runs and look at them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from blutrain.cli.output import note, print_table
from blutrain.errors import InvalidInputError


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--preset", help="Named configuration to start from.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one key, as in train.steps=100.")
@click.option("--device", help="Short for --set train.device=...")
@click.option("--resume", is_flag=True, help="Continue from the newest good checkpoint when there is one.")
@click.option("--overwrite", is_flag=True, help="Start anew in a folder that holds a run.")
@click.option("--quiet", "-q", is_flag=True, help="Write warnings and errors only.")
def train(
    config: Path | None,
    preset: str | None,
    settings: tuple[str, ...],
    device: str | None,
    resume: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Train a model. CONFIG is a TOML file, or the folder of a run to take its configuration from."""
    from blutrain.console import ConsoleReporter
    from blutrain.launch import resolve_config
    from blutrain.launch import train as run

    if device is not None:
        settings = (*settings, f"train.device={device}")
    resolved = resolve_config(config, preset=preset, settings=settings)
    with ConsoleReporter(quiet=quiet) as reporter:
        result = run(resolved, resume=resume, overwrite=overwrite, reporter=reporter)
    if result.exit_code:
        sys.exit(result.exit_code)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="PNG or SVG; by default loss.png in the first run.")
@click.option(
    "--x",
    "axes",
    multiple=True,
    type=click.Choice(["step", "tokens", "time"]),
    help="Draw over this; may be repeated. By default steps for one run, and all three for several.",
)
@click.option("--json", "as_json", is_flag=True, help="Print summaries and points as JSON; a picture only with --out.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the points as CSV; a picture only with --out.")
def plot(runs: tuple[Path, ...], out: Path | None, axes: tuple[str, ...], as_json: bool, as_csv: bool) -> None:
    """Draw the losses of runs, and compare several: over steps, tokens and time."""
    from blutrain.comparison import compare, table_rows, to_csv, to_json
    from blutrain.plotting import plot as draw

    if as_json and as_csv:
        raise InvalidInputError("[plot] expected --json or --csv, got both")
    tables = as_json or as_csv
    if out is not None or not tables:
        click.echo(draw(runs, out, x=axes, report=note), err=tables)
    if tables or len(runs) > 1:
        compared = compare(runs, note if out is None and tables else None)
        if as_json:
            click.echo(to_json(compared))
        elif as_csv:
            click.echo(to_csv(compared), nl=False)
        else:
            print_table(table_rows(compared))
