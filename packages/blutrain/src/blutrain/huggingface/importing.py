"""GPT-2 from Hugging Face's files to a run that can be measured, sampled, trained further and exported."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blutrain.arguments import checked
from blutrain.checkpoint import CheckpointStore
from blutrain.checkpoint.format import DeferredArray
from blutrain.config import Config, ModelConfig
from blutrain.config_io import config_to_dict, config_to_toml, load_config, with_absolute_paths
from blutrain.data.tokenizer import NAMES, Tokenizer, get_tokenizer, tokenizer_files
from blutrain.errors import ConfigError, Problem, TokenizerError
from blutrain.huggingface import names
from blutrain.huggingface.configuration import find_preset, fine_tuning, read_model_config
from blutrain.huggingface.errors import ModelFormatError, ModelTensorError
from blutrain.huggingface.files import DTYPES, ModelFiles, StoredTensor, find_files, read_json_object, read_tensors
from blutrain.huggingface.names import TensorName
from blutrain.presets import PRESETS
from blutrain.run_folder import RunFolder, RunPaths
from blutrain.trainer import Progress
from blutrain.validation import check_config

_GPT2_VOCAB = 50257
_BYTES_VOCAB = 256
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class ImportResult:
    """What was imported."""

    folder: Path
    """The run."""
    checkpoint: Path
    """Its checkpoint, of step 0."""
    config: Config
    """Its configuration."""
    preset: str | None
    """Name of the preset with the model's shape."""
    parameters: int
    """Number of weights, without padded rows."""
    tokenizer_files: tuple[str, ...]
    """Names of the files that came along."""


@checked("import-hf")
def import_hf(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    settings: Iterable[str] = (),
    overwrite: bool = False,
    report: Callable[[str], None] | None = None,
) -> ImportResult:
    """Make a run of a GPT-2 in Hugging Face's format.

    The run is at step 0: ``train(load_config(out / "config.toml", ...), resume=True)`` trains it further, with new
    moments. Its configuration is that of the preset with the same shape where there is one, with the schedule of a
    short fine-tuning.

    Args:
        sources: the model's folder (``config.json`` beside ``model.safetensors``, or beside its shards and
            ``model.safetensors.index.json``), or its files. Weights may be float32, float16 or bfloat16.
        out: run folder to make.
        settings: ``key=value`` texts that change the configuration; of the model only ``dropout`` and ``pad_vocab_to``.
        overwrite: whether a run that is in ``out`` may go.
        report: told what is notable.

    Returns:
        What was imported.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelFormatError: a file is damaged.
        UnsupportedModelError: another model than GPT-2, or one with options that are not computed here.
        ModelTensorError: tensors are missing, unexpected, or of another shape; all of them are told.
        ConfigError: wrong settings, or some that change the model's shape.
        RunFolderError: ``out`` holds a run already, is in use, or can not be written to.
    """
    tell = report or (lambda text: None)
    files = find_files(sources)
    tree = read_json_object(files.config)
    model = read_model_config(files.config, tree, pad_vocab_to=ModelConfig().pad_vocab_to)
    stored = _checked(files, read_tensors(files), model)
    preset = find_preset(model)
    config = fine_tuning(replace(PRESETS[preset] if preset else Config(), model=model))
    copied = _tokenizer_files(files.folder)
    tokenizer = _load_tokenizer(files.folder, model, tell) if copied else None
    name = _tokenizer_name(model, tokenizer, RunPaths(out).tokenizer if copied else None)
    config = replace(config, data=replace(config.data, path="", tokenizer=name))
    config = load_config(base=config, settings=settings)
    config = with_absolute_paths(replace(config, run=replace(config.run, folder=str(out))))
    _check_shape(config.model, model)
    check_config(config)
    model = config.model
    for notice in _notices(tree, config):
        tell(notice)
    fixes = "replace it with --overwrite, or choose another --out"
    with RunFolder.start(out, overwrite=overwrite, fixes=fixes) as run:
        store = CheckpointStore(run.checkpoints, report=tell)
        meta = {
            **Progress().to_meta(),
            "data": None,
            "tokenizer": None if tokenizer is None else tokenizer.identity.to_dict(),
            "config": config_to_dict(config),
            "imported": str(files.folder.absolute()),
        }
        path = store.save(0, _arrays(stored, model), meta)
        _copy(copied, run.tokenizer)
        run.write_config(config_to_toml(config))
        run.log_event("imported", source=meta["imported"])
    parameters = sum(int(np.prod(stored[name.theirs].shape)) for name in names.tensor_names(model))
    return ImportResult(Path(out), path, config, preset, parameters, tuple(path.name for path in copied))


def _check_shape(wanted: ModelConfig, found: ModelConfig) -> None:
    """Refuse settings that change what the file says."""
    free = ("dropout", "pad_vocab_to")
    problems = [
        Problem(f"model.{key}", f"expected {value!r}, as the model's file has it, got {getattr(wanted, key)!r}")
        for key, value in asdict(found).items()
        if key not in free and getattr(wanted, key) != value
    ]
    if problems:
        raise ConfigError(problems)


def _checked(files: ModelFiles, found: Mapping[str, StoredTensor], model: ModelConfig) -> dict[str, StoredTensor]:
    """The model's tensors by their names without prefix; raises with everything that is wrong with them."""
    tensors: dict[str, StoredTensor] = {}
    problems: list[Problem] = []
    for full_name, tensor in found.items():
        name = names.without_prefix(full_name)
        if names.is_mask(name):
            continue
        if name in tensors:
            problems.append(Problem(full_name, "expected the name with or without 'transformer.', got both"))
        tensors[name] = tensor
    layers = len({names.layer_of(name) for name in tensors} - {None})
    if model.layers > layers + 1:  # told once, and not by the names of thousands of layers
        problems.append(Problem("h", f"expected the tensors of {model.layers} layers (n_layer), got those of {layers}"))
        model = replace(model, layers=layers + 1)
    wanted = {name.theirs: name for name in names.tensor_names(model)}
    problems += [
        Problem(name, f"expected a tensor of shape {list(wanted[name].shape)}, got none")
        for name in wanted.keys() - tensors.keys()
    ]
    head = tensors.get(names.HEAD) if model.tied_head else None
    if head is not None and names.EMBEDDING in tensors:
        problems += _different_head(head, tensors[names.EMBEDDING])
    extra = tensors.keys() - wanted.keys() - ({names.HEAD} if model.tied_head else set())
    problems += [Problem(name, f"unexpected, of shape {list(tensors[name].shape)}") for name in extra]
    for name in wanted.keys() & tensors.keys():
        tensor, shape = tensors[name], wanted[name].shape
        if tensor.shape != shape:
            problems.append(Problem(name, f"expected shape {list(shape)}, got {list(tensor.shape)}"))
        if tensor.dtype not in DTYPES:
            problems.append(Problem(name, f"expected dtype {', '.join(DTYPES)}, got {tensor.dtype}"))
    if problems:
        raise ModelTensorError(files.folder, sorted(problems, key=_place), f"check them against {files.config}")
    return tensors


def _place(problem: Problem) -> tuple[int, str]:
    """Order of problems: what belongs to no layer, then layer by layer."""
    layer = names.layer_of(problem.key)
    return (-1 if layer is None else layer, problem.key)


def _different_head(head: StoredTensor, embedding: StoredTensor) -> list[Problem]:
    if head.dtype == embedding.dtype and head.shape == embedding.shape and head.data == embedding.data:
        return []
    message = f"expected the values of {names.EMBEDDING}, which it is tied to, got others"
    return [Problem(names.HEAD, f"{message}: set tie_word_embeddings to false to import both")]


def _arrays(stored: Mapping[str, StoredTensor], model: ModelConfig) -> dict[str, DeferredArray]:
    """Our arrays by the names of a checkpoint, each made in float32 when it is written."""
    arrays: dict[str, DeferredArray] = {}
    for name in names.tensor_names(model):
        rows, *rest = reversed(name.shape) if name.transposed else name.shape
        shape = (model.padded_vocab_size if name.padded else rows, *rest)
        make = partial(_array, stored[name.theirs], name, shape)
        arrays[f"model.{name.ours}"] = DeferredArray(shape, np.dtype(np.float32), make)
    return arrays


def _array(tensor: StoredTensor, name: TensorName, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """One of our arrays; a view of the file where nothing has to be computed."""
    values = tensor.values()
    if name.transposed:
        values = values.T
    if values.shape != shape:
        values = np.concatenate([values, np.zeros((shape[0] - values.shape[0], *shape[1:]), np.float32)])
    return values


def _tokenizer_files(folder: Path) -> list[Path]:
    """Files of the tokenizer that lies beside a model; none where there is no tokenizer."""
    try:
        return tokenizer_files(folder)
    except TokenizerError:
        return []


def _load_tokenizer(folder: Path, model: ModelConfig, tell: Callable[[str], None]) -> Tokenizer | None:
    try:
        tokenizer = get_tokenizer(folder)
    except TokenizerError as error:  # a library may be missing, and weights are of use without text
        tell(f"notice: the tokenizer can not be used yet: {error}")
        return None
    if tokenizer.vocab_size > model.vocab_size:
        message = f"[import-hf] expected a tokenizer of at most {model.vocab_size} ids (vocab_size) in {folder}, got"
        raise ModelFormatError(f"{message} {tokenizer.vocab_size}: the files are of two models")
    return tokenizer


def _tokenizer_name(model: ModelConfig, tokenizer: Tokenizer | None, copy: Path | None) -> str:
    """What ``data.tokenizer`` becomes: what lies beside the model, or what the vocabulary's size says."""
    if tokenizer is not None and tokenizer.identity.kind in NAMES:
        return tokenizer.identity.kind
    if copy is not None:
        return str(copy.absolute())
    return {_GPT2_VOCAB: "gpt2", _BYTES_VOCAB: "bytes"}.get(model.vocab_size, _UNKNOWN)


def _copy(files: Sequence[Path], target: Path) -> None:
    if files:
        target.mkdir(exist_ok=True)
    for path in files:
        shutil.copyfile(path, target / path.name)


def _notices(tree: Mapping[str, Any], config: Config) -> list[str]:
    """What a person should know: what was not taken over."""
    found = []
    dropout = {key: tree[key] for key in ("embd_pdrop", "resid_pdrop", "attn_pdrop") if tree.get(key)}
    if dropout and not config.model.dropout:
        listed = ", ".join(f"{key} {value!r}" for key, value in dropout.items())
        found.append(f"notice: dropout is off ({listed} in the file); --set model.dropout=... turns it on for training")
    if config.data.tokenizer == _UNKNOWN:
        found.append("notice: no tokenizer's files lie beside the model: set data.tokenizer before training")
    return found
