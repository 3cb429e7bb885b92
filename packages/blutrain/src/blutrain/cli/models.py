"""Commands that use a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from blutrain.cli.output import note, progress_bar


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Prepared folder; by default the run's own.")
@click.option("--split", default="val", help="train or val.")
@click.option("--max-batches", default=0, help="Largest number of micro-batches, 0 for all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(run: Path, data: Path | None, split: str, max_batches: int, as_json: bool) -> None:
    """Measure the loss of a run's newest checkpoint, or of a checkpoint file."""
    from blutrain.evaluation import evaluate as measure

    with progress_bar("evaluating") as progress:
        result = measure(run, data=data, split=split, max_batches=max_batches, progress=progress)
    if as_json:
        values = {"step": result.step, "split": split, "loss": result.loss, "tokens": result.tokens}
        click.echo(json.dumps({**values, "perplexity": result.perplexity, "bits_per_token": result.bits_per_token}))
    else:
        click.echo(
            f"step {result.step}: {split} loss {result.loss:.4f} nats a token ({result.bits_per_token:.4f} bits,"
            f" perplexity {result.perplexity:.2f}) over {result.tokens:,} tokens"
        )


@click.command()
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
    text = continue_text(run, prompt, max_new_tokens=max_new_tokens, options=chosen, report=note)
    click.echo(text)
