"""Commands about data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from blutrain.cli.output import progress_bar


@click.command()
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

    with progress_bar("preparing") as progress:
        dataset = make(sources, out, include=include, exclude=exclude, progress=progress, **options)
    documents = dataset.manifest["documents"] if dataset.manifest else {}
    for split, count in dataset.tokens.items():
        shards = len(dataset.shards[split])
        click.echo(f"{split:<6} {count:,} tokens of {documents.get(split, 0):,} documents in {shards} shard(s)")
    click.echo(f"{'data':<6} {out}")
