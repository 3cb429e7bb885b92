"""A checkpoint as a model in Hugging Face's format: what ``transformers`` and everything built on it loads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from blutrain.config import Config, ModelConfig
from blutrain.data.tokenizer import TOKENIZER_FILES, Tokenizer
from blutrain.errors import BlutrainError, InvalidInputError, TokenizerError
from blutrain.huggingface import names
from blutrain.huggingface.configuration import CONFIG_JSON, model_config_json
from blutrain.huggingface.errors import ModelAccessError, ModelFormatError
from blutrain.huggingface.files import INDEX, SINGLE
from blutrain.run_tokenizer import tokenizer_of_run, tokenizer_place
from blutrain.weights import load_weights

MAX_SHARD = "5GB"
"""Largest file of tensors by default, as Hugging Face's tools write them."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
_AMOUNT = re.compile(r"([0-9]{1,15})\s*([A-Za-z]*)")
_RENAMED = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
"""Files that have the same content under another name there."""


@dataclass(frozen=True)
class ExportResult:
    """What was exported."""

    folder: Path
    """The model."""
    step: int
    """Step of the checkpoint."""
    files: tuple[str, ...]
    """Names of everything that was written."""
    num_bytes: int
    """Of all weights."""


def export_hf(run: str | Path, out: str | Path, *, max_shard_size: int | str = MAX_SHARD) -> ExportResult:
    """Write a run's newest checkpoint as a GPT-2 in Hugging Face's format, in float32.

    Rows of padded ids are left out; ``transformers`` computes the same logits as the run. The tokenizer's files go with
    it where the run has some. The folder appears complete or not at all.

    Args:
        run: run folder, or one checkpoint file.
        out: folder to make; it may exist when it is empty.
        max_shard_size: largest file of tensors, in bytes or as text such as ``5GB``; a larger tensor gets a file of its
            own.

    Returns:
        What was written.

    Raises:
        CheckpointError: there is no good checkpoint.
        InvalidInputError: an impossible size.
        ModelFormatError: ``out`` holds something.
        ModelAccessError: the disk is full or the place not writable; nothing is left behind.
    """
    limit = _bytes_of(max_shard_size)
    arrays, config, step = load_weights(run)
    target = Path(os.path.abspath(out))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        message = f"[export-hf] expected a new or empty folder, got {target}, which holds something"
        raise ModelFormatError(message + ": remove it or choose another --out")
    tensors = _tensors(arrays, config.model)
    with _building(target) as folder:
        _write_weights(folder, tensors, limit)
        end_of_text = _write_tokenizer(folder, run, config)
        _write_json(folder / CONFIG_JSON, model_config_json(config.model, end_of_text))
        files = tuple(sorted(path.name for path in folder.iterdir()))
    return ExportResult(target, step, files, sum(array.nbytes for array in tensors.values()))


def _bytes_of(size: int | str) -> int:
    """Bytes of ``5GB`` and the like."""
    match = _AMOUNT.fullmatch(str(size).strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or int(match[1]) < 1:
        raise InvalidInputError(f"[export-hf] expected a size such as 5GB or 200MB, got {str(size)[:40]!r}")
    return int(match[1]) * unit


def _tensors(arrays: Mapping[str, NDArray[Any]], model: ModelConfig) -> dict[str, NDArray[Any]]:
    """Their tensors by name, as views of ours."""
    tensors = {}
    for name in names.tensor_names(model):
        values = arrays[name.ours]
        if name.padded:
            values = values[: model.vocab_size]
        tensors[names.with_prefix(name.theirs)] = values.T if name.transposed else values
    return tensors


def _shards(tensors: Mapping[str, NDArray[Any]], limit: int) -> list[list[str]]:
    """Names by file, in order; a file is as full as it can be."""
    shards: list[list[str]] = []
    room = 0
    for name, values in tensors.items():
        if not shards or values.nbytes > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= values.nbytes
    return shards


def _write_weights(folder: Path, tensors: Mapping[str, NDArray[Any]], limit: int) -> None:
    shards = _shards(tensors, limit)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        dense = {name: np.ascontiguousarray(tensors[name], np.float32) for name in shard}
        save_file(dense, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        total = sum(values.nbytes for values in tensors.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_tokenizer(folder: Path, run: str | Path, config: Config) -> int | None:
    """The tokenizer's files, under Hugging Face's names; returns the token between documents where it is known."""
    place = Path(tokenizer_place(run, config))
    try:
        tokenizer = tokenizer_of_run(run, config)
    except TokenizerError:
        return None
    if place.exists():
        source = place if place.is_dir() else place.parent
        _copy_renamed([source / file for file in TOKENIZER_FILES], folder)
    if not _is_complete(folder):
        _save_renamed(tokenizer, folder)
    return tokenizer.end_of_text


def _is_complete(folder: Path) -> bool:
    return (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()


def _copy_renamed(files: Sequence[Path], folder: Path) -> None:
    for path in files:
        if path.is_file():
            shutil.copyfile(path, folder / _RENAMED.get(path.name, path.name))


def _save_renamed(tokenizer: Tokenizer, folder: Path) -> None:
    for path in tokenizer.save(folder):
        path.rename(folder / _RENAMED.get(path.name, path.name))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _building(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` that takes its place when all is written, and is gone otherwise."""
    building = target.parent / f".{target.name}.partial-{os.getpid()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        yield building
        building.rename(target)
    except Exception as cause:
        if isinstance(cause, BlutrainError) or not _is_writing(cause):
            raise
        reason = getattr(cause, "strerror", None) or cause
        message = f"[export-hf] expected to write {target}, got '{reason}'"
        error = ModelAccessError(message + ": free space, check permissions, or choose another --out")
        error.errno = getattr(cause, "errno", None)
        raise error from cause
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _is_writing(error: Exception) -> bool:
    """Whether an error is the operating system's; safetensors has an error of its own for those."""
    return isinstance(error, OSError | SafetensorError)
