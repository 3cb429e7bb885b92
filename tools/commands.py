"""Command lines that the sessions of noxfile.py run one after another."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence

import repository


def train(more: Sequence[str]) -> list[list[str]]:
    """What ``nox -s train`` runs, each a command line of ``python -m blutrain``; ``more`` goes to the training."""
    corpus = sysconfig.get_paths()["stdlib"]
    data, run = repository.ROOT / "build" / "data" / "stdlib", repository.ROOT / "runs" / "stdlib-nano"
    sources = ["--include", "*.py", "--exclude", "site-packages", "--exclude", "dist-packages", "--exclude", "test"]
    again = [] if "--resume" in more else ["--overwrite"]
    settings = ["--set", f"data.path={data}", "--set", f"run.folder={run}"]
    return [
        ["prepare", corpus, *sources, "--tokenizer", "bytes", "--out", str(data), "--force"],
        ["train", "--preset", "gpt2-nano", *settings, *again, *more],
        ["generate", str(run), "--prompt", "def ", "--max-new-tokens", "300"],
        ["plot", str(run)],
    ]


def lint() -> dict[str, list[str]]:
    """Name -> command line of every check."""
    return {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
        "clang-format": ["clang-format", "--dry-run", "-Werror", *repository.native_sources()],
        "include directions": ["python", "tools/include_directions.py"],
        "file lengths": ["python", "tools/file_lengths.py"],
        "versions": ["python", "tools/versions.py"],
        "tables of the documentation": ["python", "tools/docs_tables.py", "--check"],
    }
