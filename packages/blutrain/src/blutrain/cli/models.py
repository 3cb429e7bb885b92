"""Commands that use a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blutrain.cli.output import note, progress_bar

if TYPE_CHECKING:
    from blutrain.evaluation import EvaluationResult
    from blutrain.multiple_choice import ChoicesResult


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Prepared folder; by default the run's own.")
@click.option("--split", default="val", help="train or val.")
@click.option("--max-batches", default=0, help="Largest number of micro-batches, 0 for all.")
@click.option("--choices", type=click.Path(path_type=Path), help="Answer this JSONL file of HellaSwag's form instead.")
@click.option("--max-questions", default=0, help="Questions of it, 0 for all.")
@click.option("--device", default="auto", help="As train.device.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    run: Path,
    data: Path | None,
    split: str,
    max_batches: int,
    choices: Path | None,
    max_questions: int,
    device: str,
    as_json: bool,
) -> None:
    """Measure a run's newest checkpoint, or a checkpoint file: loss on tokens, or answers to multiple choice."""
    from blutrain.evaluation import evaluate as measure
    from blutrain.multiple_choice import evaluate_choices

    with progress_bar("evaluating") as progress:
        if choices is None:
            loss = measure(run, data=data, split=split, max_batches=max_batches, device=device, progress=progress)
            values, line = loss_report(loss, split)
        else:
            answers = evaluate_choices(run, choices, max_questions=max_questions, device=device, progress=progress)
            values, line = choices_report(answers)
    click.echo(json.dumps(values) if as_json else line)


def loss_report(result: EvaluationResult, split: str) -> tuple[dict[str, Any], str]:
    """A measured loss for JSON, and as a line for people."""
    values = {
        "step": result.step,
        "split": split,
        "loss": result.loss,
        "tokens": result.tokens,
        "perplexity": result.perplexity,
        "bits_per_token": result.bits_per_token,
        "bits_per_byte": result.bits_per_byte,
    }
    per_byte = "" if result.bits_per_byte is None else f", {result.bits_per_byte:.4f} bits a byte"
    line = (
        f"step {result.step}: {split} loss {result.loss:.4f} nats a token ({result.bits_per_token:.4f} bits{per_byte},"
        f" perplexity {result.perplexity:.2f}) over {result.tokens:,} tokens"
    )
    return values, line


def choices_report(result: ChoicesResult) -> tuple[dict[str, Any], str]:
    """Shares of right answers for JSON, and as a line for people."""
    values = {
        "step": result.step,
        "questions": result.questions,
        "acc": result.accuracy,
        "acc_norm": result.accuracy_norm,
        "acc_norm_bytes": result.accuracy_norm_bytes,
        "truncated": result.truncated,
    }
    line = (
        f"step {result.step}: acc {result.accuracy:.4f}, acc_norm {result.accuracy_norm:.4f} (per token),"
        f" {result.accuracy_norm_bytes:.4f} (per byte) over {result.questions:,} questions"
    )
    cut = f", {result.truncated:,} endings with a context that was cut" if result.truncated else ""
    return values, line + cut


@click.command("import-hf")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER_OR_FILES...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Run folder to make.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one key of the configuration.")
@click.option("--overwrite", is_flag=True, help="Replace a run that is in the folder.")
def import_hf(sources: tuple[Path, ...], out: Path, settings: tuple[str, ...], overwrite: bool) -> None:
    """Make a run of a GPT-2 in Hugging Face's format: config.json and safetensors files."""
    from blutrain.huggingface import import_hf as take

    result = take(sources, out, settings=settings, overwrite=overwrite, report=note)
    model = result.config.model
    shape = f"{model.layers} layers, {model.heads} heads, {model.channels} channels, vocabulary {model.vocab_size}"
    known = f" ({result.preset})" if result.preset else ""
    click.echo(f"model      {result.parameters:,} parameters{known}: {shape}")
    click.echo(f"tokenizer  {', '.join(result.tokenizer_files) or result.config.data.tokenizer}")
    click.echo(f"run        {out}; train it further with 'blutrain train {out} --resume --set data.path=...'")


@click.command("export-hf")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--dtype", default="float32", help="float32, bfloat16 or float16; rounded to nearest, ties to even.")
@click.option("--max-shard-size", default="5GB", help="Largest file of tensors.")
def export_hf(run: Path, out: Path, dtype: str, max_shard_size: str) -> None:
    """Write a run's newest checkpoint, or a checkpoint file, as a GPT-2 in Hugging Face's format."""
    from blutrain.huggingface import export_hf as write

    result = write(run, out, dtype=dtype, max_shard_size=max_shard_size)
    click.echo(f"step {result.step}: {result.num_bytes:,} bytes of weights; {', '.join(result.files)} in {out}")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--prompt", default="", help="Text to continue, as it is; empty starts a new document (from end-of-text)."
)
@click.option("--max-new-tokens", default=200, help="Tokens to make at most.")
@click.option("--temperature", default=0.8, help="0 is greedy.")
@click.option("--top-k", default=0, help="Choose among this many most likely tokens; 0 among all.")
@click.option("--top-p", default=1.0, help="Choose among the most likely tokens with this probability together.")
@click.option("--seed", default=0, help="Seed of the choices.")
@click.option("--device", default="auto", help="As train.device.")
def generate(run: Path, prompt: str, max_new_tokens: int, device: str, **options: Any) -> None:
    """Continue a text with a run's newest checkpoint, or with a checkpoint file."""
    from blutrain.generation import generate as continue_text
    from blutrain.sampling import SamplingOptions

    chosen = SamplingOptions(**options)
    text = continue_text(run, prompt, max_new_tokens=max_new_tokens, options=chosen, device=device, report=note)
    click.echo(text)
