"""Commands about data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from blutrain.cli.output import note, progress_bar


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--tokenizer", default="bytes", help="bytes, gpt2, or the path of a tokenizer's files.")
@click.option("--field", default="text", help="Field of JSON and column of Parquet with the text.")
@click.option("--val-fraction", default=0.05, help="Share of validation text.")
@click.option("--shard-tokens", default=100_000_000, help="Longest shard.")
@click.option("--include", multiple=True, default=("*",), help="Pattern for files inside folders; may be repeated.")
@click.option("--exclude", multiple=True, help="Pattern for files and folders inside folders to leave out.")
@click.option("--strict", is_flag=True, help="Anything left out that was not excluded is an error.")
@click.option("--max-unknown", default=0.1, help="Largest share of tokens that the tokenizer does not know.")
@click.option("--force", is_flag=True, help="Replace another data set in the folder.")
@click.option("--workers", default=0, help="Threads that encode; 0 for one on each CPU.")
def prepare(
    sources: tuple[str, ...], out: Path, include: tuple[str, ...], exclude: tuple[str, ...], **options: Any
) -> None:
    """Turn text into token shards: text files, JSONL, JSON and Parquet, named by files, folders and globs.

    What was left out (files inside folders that are no text, records without text) is told at the end.

    Killed or interrupted, the same command goes on from where it was.
    """
    from blutrain.data import prepare as make

    with progress_bar("preparing") as progress:
        dataset = make(sources, out, include=include, exclude=exclude, progress=progress, report=note, **options)
    documents = dataset.manifest["documents"] if dataset.manifest else {}
    for split, count in dataset.tokens.items():
        shards = len(dataset.shards[split])
        click.echo(f"{split:<6} {count:,} tokens of {documents.get(split, 0):,} documents in {shards} shard(s)")
    click.echo(f"{'data':<6} {out}")


@click.command("train-tokenizer")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the tokenizer's files.")
@click.option("--vocab-size", default=8192, help="Number of ids, end-of-text among them.")
@click.option("--field", default="text", help="Field of JSON and column of Parquet with the text.")
@click.option("--include", multiple=True, default=("*",), help="Pattern for files inside folders; may be repeated.")
@click.option("--exclude", multiple=True, help="Pattern for files and folders inside folders to leave out.")
def train_tokenizer(
    sources: tuple[str, ...], out: Path, include: tuple[str, ...], exclude: tuple[str, ...], **options: Any
) -> None:
    """Train a byte-level BPE on text; 'prepare --tokenizer' takes the folder that it writes."""
    from blutrain.data import train_tokenizer as make

    with progress_bar("reading") as progress:
        tokenizer = make(sources, out, include=include, exclude=exclude, progress=progress, report=note, **options)
    click.echo(f"{'vocabulary':<10} {tokenizer.vocab_size:,} ids, end-of-text is {tokenizer.end_of_text}")
    click.echo(f"{'tokenizer':<10} {out}")
