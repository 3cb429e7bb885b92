"""A checkpoint as a model in Hugging Face's format: what ``transformers`` and everything built on it loads."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import blutensor as bt
from blutrain.arguments import checked
from blutrain.checkpoint.files import OsFiles
from blutrain.checkpoint.format import DeferredArray
from blutrain.checkpoint.stream import write_file
from blutrain.config import Config, ModelConfig
from blutrain.data.tokenizer import TOKENIZER_FILES, Tokenizer, tokenizer_files
from blutrain.errors import BlutrainError, InvalidInputError, TokenizerError
from blutrain.huggingface import names
from blutrain.huggingface.configuration import CONFIG_JSON, model_config_json
from blutrain.huggingface.errors import ModelAccessError, ModelFormatError
from blutrain.huggingface.files import INDEX, SINGLE
from blutrain.new_folder import new_folder, new_place
from blutrain.run_tokenizer import tokenizer_of_run, tokenizer_place
from blutrain.weights import load_weights

MAX_SHARD = "5GB"
"""Largest file of tensors by default, as Hugging Face's tools write them."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<f2"),
}
"""What weights may be written as, and NumPy's dtype of the same memory."""
_STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Their names in a safetensors file."""
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


@checked("export-hf")
def export_hf(
    run: str | Path, out: str | Path, *, dtype: str = "float32", max_shard_size: int | str = MAX_SHARD
) -> ExportResult:
    """Write a run's newest checkpoint as a GPT-2 in Hugging Face's format.

    Rows of padded ids are left out; ``transformers`` computes the same logits as the run. The tokenizer's files go with
    it where the run has some. The folder appears complete or not at all.

    Args:
        run: run folder, or one checkpoint file.
        out: folder to make; it may exist when it is empty.
        dtype: of the weights: ``float32``, as they were trained, or ``bfloat16`` or ``float16``, to which they are
            rounded to nearest, ties to even.
        max_shard_size: largest file of tensors, in bytes or as text such as ``5GB``; a larger tensor gets a file of its
            own.

    Returns:
        What was written.

    Raises:
        CheckpointError: there is no good checkpoint.
        InvalidInputError: an impossible size or dtype, or a weight too large for it; or ``out`` is the current folder
            or a mounted disk, or another process writes it.
        ModelFormatError: ``out`` holds something.
        ModelAccessError: the disk is full or the place not writable; nothing is left behind.
    """
    limit = _bytes_of(max_shard_size)
    if dtype not in _DTYPES:
        raise InvalidInputError(f"[export-hf] expected one of {', '.join(_DTYPES)} as dtype, got {dtype!r}")
    arrays, config, step = load_weights(run)
    target = new_place("export-hf", out)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        message = f"[export-hf] expected a new or empty folder, got {target}, which holds something"
        raise ModelFormatError(message + ": remove it or choose another --out")
    tensors = _tensors(arrays, config.model)
    with _building(target) as folder:
        _write_weights(folder, tensors, limit, dtype)
        end_of_text = _write_tokenizer(folder, run, config)
        _write_json(folder / CONFIG_JSON, model_config_json(config.model, end_of_text, dtype))
        files = tuple(sorted(path.name for path in folder.iterdir()))
    return ExportResult(target, step, files, _DTYPES[dtype].itemsize * sum(array.size for array in tensors.values()))


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


def _shards(tensors: Mapping[str, NDArray[Any]], limit: int, itemsize: int) -> list[list[str]]:
    """Names by file, in order; a file is as full as it can be."""
    shards: list[list[str]] = []
    room = 0
    for name, values in tensors.items():
        if not shards or values.size * itemsize > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= values.size * itemsize
    return shards


def _write_weights(folder: Path, tensors: Mapping[str, NDArray[Any]], limit: int, dtype: str) -> None:
    itemsize = _DTYPES[dtype].itemsize
    shards = _shards(tensors, limit, itemsize)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(folder / file, {name: tensors[name] for name in shard}, dtype)
        weight_map |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        total = itemsize * sum(values.size for values in tensors.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_file(path: Path, tensors: Mapping[str, NDArray[Any]], dtype: str) -> None:
    """A safetensors file, each of whose tensors is rounded when it is its turn."""
    rounded = {
        name: DeferredArray(values.shape, _DTYPES[dtype], partial(_rounded, name, values, dtype), _STORED[dtype])
        for name, values in tensors.items()
    }
    write_file(OsFiles(), path, rounded, {"format": "pt"}, algorithm=None, num_threads=1)


def _rounded(name: str, values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """A tensor's numbers in a dtype, dense; bfloat16 as its bits."""
    dense = np.ascontiguousarray(values, np.float32)
    if dtype == "float32":
        return dense
    narrow = bt.asarray(dense).astype(dtype)
    beyond = ~bt.isfinite(narrow).numpy() & np.isfinite(dense)
    if beyond.any():
        message = f"[export-hf] expected weights that {dtype} holds, got {dense[beyond][0]:g} in {name!r}"
        raise InvalidInputError(message + ": take another --dtype")
    return np.ascontiguousarray(narrow.numpy())


def _write_tokenizer(folder: Path, run: str | Path, config: Config) -> int | None:
    """The tokenizer's files, under Hugging Face's names; returns the token between documents where it is known."""
    place = Path(tokenizer_place(run, config))
    try:
        tokenizer = tokenizer_of_run(run, config)
    except TokenizerError:
        return None
    if place.exists():
        _copy_renamed([path for path in tokenizer_files(place) if path.name in TOKENIZER_FILES], folder)
    if not _is_complete(folder):
        _save_renamed(tokenizer, folder)
    return tokenizer.end_of_text


def _is_complete(folder: Path) -> bool:
    return (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()


def _copy_renamed(files: Sequence[Path], folder: Path) -> None:
    for path in files:
        shutil.copyfile(path, folder / _RENAMED.get(path.name, path.name))


def _save_renamed(tokenizer: Tokenizer, folder: Path) -> None:
    for path in tokenizer.save(folder):
        path.rename(folder / _RENAMED.get(path.name, path.name))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _building(target: Path) -> Iterator[Path]:
    """See ``new_folder``."""
    try:
        with new_folder("export-hf", target) as folder:
            yield folder
    except OSError as cause:
        if isinstance(cause, BlutrainError):
            raise
        message = f"[export-hf] expected to write {target}, got '{cause.strerror or cause}'"
        error = ModelAccessError(message + ": free space, check permissions, or choose another --out")
        error.errno = cause.errno
        raise error from cause
