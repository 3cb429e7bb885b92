"""What becomes of a run whose folder fails it: nothing is lost that can be saved.

A folder that was moved is followed. One that was deleted is made anew, beside its old place where another run has taken
that: with the configuration, the tokenizer, all metrics, samples and log (this process still holds the files), and a
checkpoint of the state as it is. Earlier checkpoints and TensorBoard's files are gone. The run ends either way.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from blutrain.checkpoint import CheckpointError
from blutrain.config_io import config_to_toml, with_absolute_paths
from blutrain.console import Reporter
from blutrain.errors import BlutrainError, DataError
from blutrain.metrics import RunFolderAccessError, RunFolderError, RunFolderLostError
from blutrain.run_folder import RunFolder
from blutrain.run_tokenizer import keep_tokenizer
from blutrain.trainer import Trainer


def rescue(
    error: RunFolderError | CheckpointError, trainer: Trainer, folder: RunFolder, reporter: Reporter
) -> BlutrainError:
    """Save what can be saved.

    Args:
        error: what went wrong with the folder.
        trainer: between two steps.
        folder: of the run.
        reporter: told what was saved where the error itself cannot say it.

    Returns:
        The error that the run ends with.
    """
    lost = _loss(error, folder)
    if lost is None:
        if isinstance(error, RunFolderAccessError):  # metrics or samples; there may be room for a checkpoint
            reporter.warning(f"step {trainer.progress.step}: {_saved(trainer, folder)}")
        return error
    old = folder.path
    try:
        folder.follow(lost.now)
        trainer.recorder.put_back()
        if lost.now is None:
            _furnish(trainer, folder)
        kept = _saved(trainer, folder) + f"; continue with --resume in {folder.path}"
    except (RunFolderError, OSError) as cause:
        kept = f"its state could not be saved: {cause}"
    return RunFolderLostError(old, lost.now, f" at step {trainer.progress.step}: {kept}")


def _loss(error: BlutrainError, folder: RunFolder) -> RunFolderLostError | None:
    """How the folder was lost, which may be why a file or a checkpoint could not be written."""
    if isinstance(error, RunFolderLostError):
        return error
    try:
        folder.check()
    except RunFolderLostError as lost:
        return lost
    except RunFolderError:
        return None
    return None


def _furnish(trainer: Trainer, folder: RunFolder) -> None:
    """Configuration and tokenizer, as at the start of a run."""
    run = dataclasses.replace(trainer.config.run, folder=str(folder.path))
    folder.write_config(config_to_toml(with_absolute_paths(dataclasses.replace(trainer.config, run=run))))
    with contextlib.suppress(DataError, OSError):  # the checkpoint does not need it
        keep_tokenizer(trainer.config, trainer.dataset, folder.path)


def _saved(trainer: Trainer, folder: RunFolder) -> str:
    """Save a checkpoint; says where it is, or why there is none."""
    if not trainer.progress.step:
        return "no step was done"
    try:
        path: Path = trainer.save_to(folder)
    except (RunFolderError, CheckpointError) as cause:
        return f"its state could not be saved: {cause}"
    return f"its state was saved in {path}"
