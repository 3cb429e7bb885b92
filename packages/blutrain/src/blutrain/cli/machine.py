"""Commands about the machine: what is there, and how fast it is."""

from __future__ import annotations

import json
from pathlib import Path

import click

from blutrain.cli.output import note


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool) -> None:
    """Show devices, builds and versions, and what is missing with the way to get it."""
    from blutrain.installation import format_info
    from blutrain.installation import info as look

    found = look()
    click.echo(json.dumps(found.to_dict(), indent=1) if as_json else format_info(found))


@click.command()
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

    entries = measure(works, peer=peer, report=note, **numbers)
    click.echo(format_table(entries))
    if out is not None:
        save(entries, out)
