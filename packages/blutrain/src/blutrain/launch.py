"""From a configuration to a finished run: checks, run folder, trainer, and what a person is told."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import blutensor as bt
from blutrain.arguments import checked
from blutrain.checkpoint import CheckpointError
from blutrain.checkpoint.errors import listed
from blutrain.config import Config
from blutrain.config_io import config_to_dict, config_to_toml, load_config, with_absolute_paths
from blutrain.console import Reporter, SilentReporter
from blutrain.data.dataset import Dataset
from blutrain.data.tokenizer import Tokenizer
from blutrain.data.verification import verify_shards
from blutrain.devices import resident_bytes, resolve_device
from blutrain.errors import ConfigFileNotFoundError, InvalidInputError, TokenizerError, text_of
from blutrain.flops import MemoryEstimate
from blutrain.loggers import RunLogger, make_loggers
from blutrain.memory import check_memory
from blutrain.metrics import RunFolderError
from blutrain.overview import configuration, facts, outcome_rows, plan
from blutrain.recorder import Recorder
from blutrain.rescue import rescue
from blutrain.run_folder import NothingToResumeError, RunFolder, RunPaths
from blutrain.run_tokenizer import keep_tokenizer
from blutrain.trainer import Trainer, TrainResult
from blutrain.validation import open_checked


def resolve_config(
    source: str | Path | None = None, *, preset: str | None = None, settings: Iterable[str] = ()
) -> Config:
    """The configuration of a command line.

    The folder of a run that is named is the run folder, wherever it was when its configuration was written.

    Args:
        source: TOML file, or a run folder to take its ``config.toml``.
        preset: named configuration to start from.
        settings: ``key=value`` texts.

    Raises:
        ConfigError: unknown preset or keys, values of a wrong type.
        ConfigFileNotFoundError: there is no such file.
    """
    path = None if source is None else Path(source)
    folder: Path | None = None
    if path is not None and path.is_dir():
        folder, path = path, RunPaths(path).config
        if not path.is_file():
            message = f"[config] expected the folder of a run, which has a config.toml, got {folder} without one"
            raise ConfigFileNotFoundError(message + ": name a TOML file, or start with --preset and run.folder")
    elif path is not None and path.name == "config.toml" and RunPaths(path.parent).holds_run():
        folder = path.parent
    given = list(settings)
    config = load_config(path, preset=preset, settings=given)
    if folder is None or any(setting.partition("=")[0].strip() == "run.folder" for setting in given):
        return config
    return dataclasses.replace(config, run=dataclasses.replace(config.run, folder=os.path.abspath(folder)))


@contextlib.contextmanager
def open_run(
    config: Config, *, resume: bool = False, overwrite: bool = False, reporter: Reporter | None = None
) -> Iterator[Trainer]:
    """Check everything, take the run folder and set up the trainer at the step where it begins.

    Args:
        config: the run.
        resume: continue from the newest good checkpoint when there is one.
        overwrite: start anew in a folder that holds a run.
        reporter: what a person is told.

    Yields:
        The trainer, at its first step; the folder belongs to this process meanwhile.

    Raises:
        InvalidInputError: both ``resume`` and ``overwrite``.
        ConfigError: impossible values, all of them.
        DataError: unusable data.
        DeviceError: there is no such device.
        RunFolderError: the folder holds a run already, is in use, or can not be written to.
        NotEnoughMemoryError: the model does not fit; nothing was allocated.
        NothingToResumeError: the run had checkpoints, and none is left that is good.
        ConfigError: the run to continue is of another model or further than ``train.steps``.
        RunFolderLostError: the folder was deleted or moved meanwhile; what can be saved is, and the message says where.
    """
    if resume and overwrite:
        raise InvalidInputError("[train] expected --resume or --overwrite, got both")
    reporter = reporter or SilentReporter()
    libraries = resident_bytes()
    dataset = open_checked(config)
    device = resolve_device(config)
    estimate = check_memory(config, device, dataset, libraries)
    verify_shards(dataset, reporter.line)
    name = config.run.folder
    taken = RunFolder.resume(name) if resume else RunFolder.start(name, overwrite=overwrite)
    # Runs in other threads of the process draw from theirs.
    with taken as folder, bt.own_generator():
        reporter.section("configuration", configuration(config))
        reporter.section("run", plan(config, dataset, device, estimate))
        recorder = Recorder(folder, loggers=_loggers(config, folder), warn=reporter.warning)
        tokenizer = _tokenizer(config, dataset, folder, reporter)
        trainer = Trainer(config, recorder, reporter, dataset=dataset, tokenizer=tokenizer)
        if resume:
            step = trainer.resume()
            if step is None and folder.had_checkpoints():
                raise NothingToResumeError(folder.checkpoints, listed(trainer.store.remains()))
            trainer.progress.seconds = recorder.resume_at(step or 0)
            reporter.line("nothing to resume: starting at step 0" if step is None else f"resuming at step {step}")
        folder.write_config(config_to_toml(with_absolute_paths(config)))
        trainer.first_checkpoint = lambda: _has_checkpoint(folder, trainer)
        folder.log_event("resumed" if trainer.progress.step else "started", step=trainer.progress.step)
        ending = _Ending(folder, trainer, estimate, reporter)
        try:
            recorder.begin()
            yield trainer
        except (RunFolderError, CheckpointError) as error:
            told = rescue(error, trainer, folder, reporter)
            ending.failed(told)
            if told is error:
                raise
            raise told from error
        except BaseException as error:
            ending.failed(error)
            raise
        else:
            ending.done()
        finally:
            recorder.close()


class _Ending:
    """Tells how a run ended: a person, the loggers, and ``log.jsonl``."""

    def __init__(self, folder: RunFolder, trainer: Trainer, estimate: MemoryEstimate, reporter: Reporter) -> None:
        self._folder, self._trainer, self._estimate, self._reporter = folder, trainer, estimate, reporter
        self._begin = time.perf_counter()

    def done(self) -> None:
        """The last step was done, or a signal asked to stop."""
        finished = self._trainer.progress.step >= self._trainer.config.train.steps
        self._tell("finished" if finished else "interrupted")

    def failed(self, error: BaseException) -> None:
        """An error ends the run; nothing here may hide it."""
        interrupted = isinstance(error, KeyboardInterrupt)
        why = "" if interrupted else f"{type(error).__name__}: {text_of(error)}"
        with contextlib.suppress(Exception):  # a full disk, or a device that is lost
            self._tell("interrupted" if interrupted else "failed", why)

    def _tell(self, status: str, why: str = "") -> None:
        trainer = self._trainer
        trainer.tally.places = trainer.recorder.places()
        trainer.recorder.close(status)
        outcome = replace(trainer.outcome(status, why), seconds=time.perf_counter() - self._begin)
        self._reporter.section("overview", outcome_rows(trainer.config, outcome, trainer.tally, self._estimate))
        level = "error" if why else "info"
        self._folder.log_event(_EVENTS[status], level=level, step=outcome.step, **facts(outcome))


_EVENTS = {"finished": "ended", "interrupted": "ended", "failed": "failed"}
"""Name in ``log.jsonl`` of each way to end."""


def _loggers(config: Config, folder: RunFolder) -> list[RunLogger]:
    run = config.run
    shown = config_to_dict(with_absolute_paths(config))
    return make_loggers(run.loggers, folder, name=run.name, project=run.project, config=shown)


def _tokenizer(config: Config, dataset: Dataset, folder: RunFolder, reporter: Reporter) -> Tokenizer | None:
    """The run's tokenizer, copied into its folder; None, which is told, where foreign shards have to do without."""
    try:
        return keep_tokenizer(config, dataset, folder.path)
    except TokenizerError as error:
        reporter.warning(f"training without samples: {error}")
        return None


def _has_checkpoint(folder: RunFolder, trainer: Trainer) -> None:
    folder.log_event("checkpoint", step=trainer.progress.step)
    folder.settle()  # what this run replaces is no longer needed


@checked("train")
def train(
    config: Config, *, resume: bool = False, overwrite: bool = False, reporter: Reporter | None = None
) -> TrainResult:
    """Train a model.

    Args:
        config: the run; see ``load_config`` and ``PRESETS``.
        resume: continue from the newest good checkpoint when there is one.
        overwrite: start anew in a folder that holds a run.
        reporter: what a person is told; nothing by default.

    Returns:
        How the run ended.

    Raises:
        BlutrainError: see ``open_run`` and ``Trainer.run``; the newest good checkpoint is never lost.
    """
    with open_run(config, resume=resume, overwrite=overwrite, reporter=reporter) as trainer:
        return trainer.run()
