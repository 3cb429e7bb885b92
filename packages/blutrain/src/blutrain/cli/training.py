"""Commands that make runs and look at them."""

from __future__ import annotations

import sys
from pathlib import Path

import click


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
@click.option("--out", type=click.Path(path_type=Path), help="PNG file; by default loss.png in the first run's folder.")
def plot(runs: tuple[Path, ...], out: Path | None) -> None:
    """Draw the losses of runs as a PNG."""
    from blutrain.plotting import plot as draw

    click.echo(draw(runs, out))
