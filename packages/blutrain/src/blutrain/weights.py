"""Everything that a checkpoint holds, as named arrays: taking it out of a run and putting it back in place.

Names: ``model.<parameter>`` (float32: the master weights where the model computes in bfloat16, whose weights are those
values rounded), ``optimizer.<moment>.<parameter>``, ``generator`` (seed and step of the random numbers), ``loader``
(exact position in the data). A checkpoint so does not depend on the device or the number mode of the run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

import blutensor as bt
from blutrain.arguments import checked
from blutrain.checkpoint import CheckpointFormatError, CheckpointNotFoundError, CheckpointStore
from blutrain.checkpoint.errors import listed
from blutrain.config import Config
from blutrain.config_io import config_from_dict
from blutrain.data.loader import Loader
from blutrain.devices import resolve_device
from blutrain.errors import ConfigError
from blutrain.model import GPT

Arrays = dict[str, NDArray[Any]]

_log = logging.getLogger("blutrain.checkpoint")
_MASTER = "master."

CHECKPOINTS = "checkpoints"
"""Folder of checkpoints inside a run folder."""


def gather(model: Any, optimizer: Any, loader: Loader) -> dict[str, Any]:
    """The state of a run.

    Args:
        model: parameters are taken by name.
        optimizer: its whole state.
        loader: its position.

    Returns:
        Tensors and arrays by name, where the run holds them. Those of weights and moments are the run's own: copy or
        write them before the next step.
    """
    moments, masters = _without_masters(optimizer)
    state: dict[str, Any] = {f"model.{name}": masters.get(name, value) for name, value in model.state_dict().items()}
    state |= {f"optimizer.{name}": value for name, value in moments.items()}
    state["generator"] = np.array(_array(bt.default_generator.state), np.int64)
    state["loader"] = loader.state()
    return state


def restore(path: Path, arrays: Mapping[str, NDArray[Any]], model: Any, optimizer: Any, loader: Loader) -> None:
    """Put a checkpoint's arrays in place; the inverse of ``gather``.

    Args:
        path: the checkpoint, for messages.
        arrays: what ``gather`` gave.
        model: parameters are overwritten, not replaced.
        optimizer: likewise.
        loader: goes to the position.

    Raises:
        CheckpointFormatError: names or shapes differ from the run's: the checkpoint is of another model.
        ShardError: the position belongs to other data.
    """
    restore_model(path, arrays, model)
    moments, masters = _without_masters(optimizer)
    found = _select(arrays, "optimizer.")
    _check(path, optimizer, found, moments)
    weights = _select(arrays, "model.")
    _load(optimizer, found | {_MASTER + name: weights[name] for name in masters})
    bt.default_generator.state.copy_(bt.asarray(np.array(_get(path, arrays, "generator"), np.int64)))
    loader.set_state(np.array(_get(path, arrays, "loader"), np.int64))


def restore_weights(path: Path, arrays: Mapping[str, NDArray[Any]], model: Any, optimizer: Any) -> None:
    """Put only a checkpoint's weights in place; moments, random state and position stay those of a new run.

    Args:
        path: the checkpoint, for messages.
        arrays: with names ``model.<parameter>``.
        model: parameters are overwritten, not replaced.
        optimizer: its master weights, where it has some, are overwritten too.

    Raises:
        CheckpointFormatError: names or shapes differ from the run's: the checkpoint is of another model.
    """
    restore_model(path, arrays, model)
    moments, masters = _without_masters(optimizer)
    if masters:
        weights = _select(arrays, "model.")
        optimizer.load_state_dict(moments | {_MASTER + name: bt.asarray(weights[name]) for name in masters})


def restore_model(path: Path, arrays: Mapping[str, NDArray[Any]], model: Any) -> None:
    """Overwrite a model's parameters with a checkpoint's.

    Args:
        path: the checkpoint, for messages.
        arrays: with names ``model.<parameter>``.
        model: the model.

    Raises:
        CheckpointFormatError: names or shapes differ.
    """
    found = _select(arrays, "model.")
    _check(path, model, found, model.state_dict())
    _load(model, found)


@checked("checkpoint")
def load_model(run: str | Path, *, device: str = "cpu") -> tuple[GPT, Config, int]:
    """A model with the weights of a checkpoint, in float32.

    Args:
        run: run folder (its newest good checkpoint is taken), or one checkpoint file.
        device: where to; see ``train.device``.

    Returns:
        The model in evaluation mode, the configuration it was trained with, and the checkpoint's step.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointFormatError: it is damaged or of no GPT.
        DeviceError: there is no such device.
    """
    path, arrays, meta = load_checkpoint(run)
    config = _config_of(run, path, meta)
    place = resolve_device(replace(config, train=replace(config.train, device=device, precision="fp32")))
    model = GPT(config.model)
    restore_model(path, arrays, model)
    model.to(device=place.name)
    model.eval()
    return model, config, int(meta["step"])


def load_weights(run: str | Path) -> tuple[Arrays, Config, int]:
    """The weights of a checkpoint, without a model.

    Args:
        run: run folder (its newest good checkpoint is taken), or one checkpoint file.

    Returns:
        Arrays by name of parameter, mapped from the file, the configuration, and the checkpoint's step.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointFormatError: it is damaged or of no GPT.
    """
    path, arrays, meta = load_checkpoint(run)
    return _select(arrays, "model."), _config_of(run, path, meta), int(meta["step"])


def load_checkpoint(run: str | Path) -> tuple[Path, Arrays, dict[str, Any]]:
    """The newest good checkpoint of a run folder, or a checkpoint file.

    Args:
        run: either.

    Returns:
        Its path, its arrays, its metadata.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointFormatError: the file is damaged, or all of the folder are.
    """
    path = Path(run)
    if path.is_dir():
        folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
        told: list[str] = []
        store = CheckpointStore(folder, report=told.append)
        found = store.load_latest()
        if found is None:
            _no_good_checkpoint(store, told)
        for line in told:
            _log.warning(line)
        return found
    arrays, meta = CheckpointStore(path.parent).load(path)
    return path, arrays, meta


def _no_good_checkpoint(store: CheckpointStore, told: Sequence[str]) -> NoReturn:
    from blutrain.huggingface.configuration import CONFIG_JSON  # which imports this module

    damaged = store.remains()
    if not damaged and (store.folder / CONFIG_JSON).is_file():
        message = f"expected a run with checkpoints, got a model in Hugging Face's format ({CONFIG_JSON})"
        make = f"blutrain import-hf {store.folder} --out RUN"
        raise CheckpointNotFoundError(store.folder, f"{message}: make a run of it with '{make}'")
    if not damaged:
        raise CheckpointNotFoundError(store.folder, "expected a run with checkpoints, got none: train one first")
    reason = f" ({told[0]})" if told else ""
    message = f"expected a good checkpoint, got damaged ones alone: {listed(damaged)}{reason}"
    raise CheckpointFormatError(store.folder, message + "; put a good copy back, or train anew with --overwrite")


def _config_of(run: str | Path, path: Path, meta: Mapping[str, Any]) -> Config:
    """The configuration that a checkpoint was trained with; ``run.folder`` is where it lies now."""
    try:
        config = config_from_dict(meta["config"])
    except (KeyError, ConfigError) as error:
        raise CheckpointFormatError(path, f"expected the configuration of a run, got {error}") from error
    if Path(run).is_dir():
        config = replace(config, run=replace(config.run, folder=os.path.abspath(run)))
    return config


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.cpu().numpy() if isinstance(value, bt.Tensor) else value)


def _without_masters(optimizer: Any) -> tuple[dict[str, bt.Tensor], dict[str, bt.Tensor]]:
    """An optimizer's state, and apart from it the float32 master weights by name of parameter."""
    state = optimizer.state_dict()
    masters = {name.removeprefix(_MASTER): value for name, value in state.items() if name.startswith(_MASTER)}
    return {name: value for name, value in state.items() if not name.startswith(_MASTER)}, masters


def _get(path: Path, arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise CheckpointFormatError(
            path, f"expected a tensor {name!r}, got none: it is no checkpoint of a training run"
        )
    return arrays[name]


def _select(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _check(path: Path, owner: Any, found: Arrays, expected: Mapping[str, Any]) -> None:
    """Check names and shapes against those of ``expected``."""
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        what = f"no {missing[0]!r}" if missing else f"an unknown {extra[0]!r}"
        message = f"expected the {len(expected)} tensors of this run's {type(owner).__name__}, got {what}"
        raise CheckpointFormatError(path, message + ": it is of another model; check model.* and the run folder")
    for name, array in found.items():
        shape = tuple(expected[name].shape)
        if tuple(array.shape) != shape:
            message = f"expected {name!r} of shape {list(shape)}, got {list(array.shape)}"
            raise CheckpointFormatError(path, message + ": it is of another model; check model.* and the run folder")


def _load(owner: Any, found: Arrays) -> None:
    owner.load_state_dict({name: bt.asarray(array) for name, array in found.items()})
