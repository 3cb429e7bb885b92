"""Training: the loop from one event (log, validation, sample, checkpoint) to the next.

Steps run natively (see ``programs``); this module decides how many, and does what happens between them. Nothing that
happens between steps changes a bit of the training: validation and sampling draw no numbers from the training's
generator and have loaders and caches of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import blualloc
import blutensor as bt
from blutrain.checkpoint import CheckpointError, CheckpointStore
from blutrain.config import Config
from blutrain.config_io import config_to_dict, with_absolute_paths
from blutrain.console import Reporter, SilentReporter
from blutrain.data.dataset import Dataset
from blutrain.data.loader import Loader
from blutrain.data.tokenizer import Tokenizer
from blutrain.devices import RunDevice, place, resolve_device
from blutrain.errors import DataError, NonFiniteError, NonFiniteLogitsError, text_of
from blutrain.evaluation import evaluation_loader
from blutrain.flops import model_flop_utilisation
from blutrain.generation import Decoder, generate_text
from blutrain.installation import available_cpus
from blutrain.memory import smaller_model, what_to_lower
from blutrain.metrics import RunFolderError, RunFolderLostError
from blutrain.model import GPT
from blutrain.overview import Outcome, Tally, known_mfu
from blutrain.programs import Evaluation, TrainingStep
from blutrain.recorder import Recorder
from blutrain.resume import check_resume
from blutrain.run_folder import RunPaths
from blutrain.sampling import SamplingOptions
from blutrain.saver import Saver
from blutrain.schedule import learning_rates
from blutrain.stop_signal import StopSignal
from blutrain.validation import open_checked
from blutrain.weights import CHECKPOINTS, gather, restore, restore_weights

_CHUNK_SECONDS = 0.5
"""Native runs are cut to about this long, so that the progress bar moves and Ctrl-C is answered."""
_MAX_CHUNK = 1000


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    folder: Path
    """The run folder."""
    step: int
    """Optimizer steps done."""
    loss: float
    """Mean training loss of the last step in nats, NaN when no step was done."""
    val_loss: float | None
    """Last validation loss in nats."""
    skipped_steps: int
    """Steps of the whole run that changed no weight because loss or gradient was not finite."""
    checkpoint: Path | None
    """Newest checkpoint."""
    exit_code: int
    """0, or what a shell expects after the signal that ended the run early (130 for Ctrl-C)."""
    tokens_per_second: float | None = None
    """Speed of the captured steps of this process; None when there were none."""
    mfu: float | None = None
    """Model FLOP utilisation at that speed as a share of 1; None when the device's peak is not known."""
    peak_memory_mib: float = 0.0
    """Largest memory: reserved on the GPU by tensors, on the CPU the resident set of the process."""


@dataclass
class Progress:
    """What changes from step to step besides tensors; saved with checkpoints, but for what no two runs have equal."""

    step: int = 0
    loss: float = math.nan
    val_loss: float | None = None
    skipped_steps: int = 0
    skipped_in_row: int = 0
    tokens_seen: int = 0
    """Tokens trained on."""
    seconds: float = 0.0
    """Time of training, with what happens between steps, over all processes of the run; `Recorder` remembers it."""

    def to_meta(self) -> dict[str, Any]:
        """For a checkpoint's metadata: JSON has no NaN."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {
            "step": self.step,
            "loss": loss,
            "val_loss": self.val_loss,
            "skipped_steps": self.skipped_steps,
            "skipped_in_row": self.skipped_in_row,
            "tokens_seen": self.tokens_seen,
        }

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Progress:
        """The inverse of ``to_meta``."""
        loss = math.nan if meta["loss"] is None else float(meta["loss"])
        skipped = int(meta["skipped_steps"]), int(meta["skipped_in_row"])
        return cls(int(meta["step"]), loss, meta["val_loss"], *skipped, int(meta.get("tokens_seen", 0)))


class Trainer:
    """One run: model, optimizer, data and programs, set up from a configuration.

    Args:
        config: the run.
        recorder: where metrics, samples and events are kept.
        reporter: what a person is told.
        dataset: the opened data, already checked against the configuration; by default both happens here.
        tokenizer: of the samples; without one there are none.

    Raises:
        ConfigError: impossible values, all of them.
        DeviceError: there is no such device.
        DataError: unusable data.
    """

    def __init__(
        self,
        config: Config,
        recorder: Recorder,
        reporter: Reporter | None = None,
        *,
        dataset: Dataset | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.config = config
        self.reporter = reporter or SilentReporter()
        self.recorder = recorder
        self.dataset = open_checked(config) if dataset is None else dataset
        self.tokenizer = tokenizer
        self.device = resolve_device(config)
        bt.set_num_threads(config.train.threads or available_cpus())
        bt.set_float32_math(self.device.float32_math)
        blualloc.set_limit(int(config.train.memory_limit_gib * 2**30), self.device.name)
        or_raise = ", or raise train.memory_limit_gib" if config.train.memory_limit_gib else ""
        blualloc.set_oom_hint(smaller_model(config) + or_raise)
        bt.manual_seed(config.train.seed)
        self.model = GPT(config.model)
        self.model.train()
        bt.default_generator.advance()  # the draws of initialisation are a step of their own
        masters = place(self.model, self.device)  # drawn on the CPU: the same weights on every device
        optimizer = config.optimizer
        self.optimizer = bt.optim.AdamW(
            self.model.parameter_groups(optimizer.weight_decay),
            lr=config.schedule.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            masters=masters,
        )
        blualloc.set_oom_hint(what_to_lower(config) + or_raise)  # weights and moments are there
        self.loader = Loader(
            self.dataset.paths("train"),
            config.train.micro_batch,
            config.model.context,
            vocab_size=config.model.vocab_size,
            seed=config.train.seed,
            shuffle=config.data.shuffle,
        )
        self.training_step = TrainingStep(
            self.model,
            self.optimizer,
            accumulation=config.accumulation_steps(),
            clip_norm=optimizer.clip_norm,
        )
        self.store = CheckpointStore(
            Path(config.run.folder) / CHECKPOINTS,
            keep=config.train.keep_checkpoints or None,
            report=self.reporter.warning,
        )
        self.saver = Saver(self.store, background=writes_behind(config, self.device))
        if self.device.is_cuda and writes_behind(config, self.device):
            self.saver.prepare(gather(self.model, self.optimizer, self.loader))
        self.progress = Progress()
        self.tally = Tally()
        self.first_checkpoint: Callable[[], None] | None = None
        """Called once when a checkpoint of this process is complete."""
        self._evaluation: Evaluation | None = None
        self._decoder: Decoder | None = None
        self._seconds_per_step: float | None = None
        self._saved_step: int | None = None
        self._is_whole = True
        """Whether weights, moments, generator and loader are those after ``progress.step`` steps."""
        self._begin = time.perf_counter()

    # ---- the loop --------------------------------------------------------------------------------------------------

    def resume(self) -> int | None:
        """Continue from the newest good checkpoint, when there is one.

        Returns:
            The step that the run continues at, 0 for an imported model; None without a checkpoint.

        Raises:
            ConfigError: the checkpoint is of another model, or of a later step than ``train.steps``.
            DataError: it is of other data.
        """
        self.store.recover()
        found = self.store.load_latest()
        if found is None:
            return None
        path, arrays, meta = found
        for notice in check_resume(self.config, self.dataset, meta):
            self.reporter.warning(notice)
        if "imported" in meta:
            restore_weights(path, arrays, self.model, self.optimizer)
        else:
            restore(path, arrays, self.model, self.optimizer, self.loader)
        self.progress = Progress.from_meta(meta)
        if not self.progress.tokens_seen:  # the checkpoint is older than the count
            self.progress.tokens_seen = self.progress.step * self.config.train.global_batch_tokens
        self.saver.found(path)
        self.tally.first_step = self._saved_step = self.progress.step
        return self.progress.step

    def run(self) -> TrainResult:
        """Train to the last step, or until a signal asks to stop; the state is saved either way.

        Raises:
            NonFiniteError: ``train.max_skipped_steps`` steps in a row were skipped; the newest checkpoint is intact.
            ShardError: tokens beyond the vocabulary.
            CheckpointError: a checkpoint can not be written; those before are intact.
            RunFolderError: metrics or samples can not be written, or the run folder is gone; see `rescue`.

        Any other error that finds the state of a complete step, as of data that are gone when they are to be validated
        on, has a note that names the step and the checkpoint in which this saves it.
        """
        steps = self.config.train.steps
        self._begin = time.perf_counter() - self.progress.seconds
        with StopSignal(self.reporter.warning) as stop:
            self.reporter.start(self.progress.step, steps)
            try:
                while self.progress.step < steps and stop.requested is None:
                    self._advance(self._chunk())
                    self._events()
                if self.progress.step and not self._is_saved():
                    self.save()
            except (RunFolderError, CheckpointError, NonFiniteError):  # `rescue` saves; weights after these are no use
                raise
            except Exception as error:
                if self._is_whole:
                    self._save_before(error)
                raise
            finally:
                self.reporter.stop()
                self.saver.wait()
            self.recorder.check()
        speed = self.tally.tokens_per_second
        return TrainResult(
            Path(self.config.run.folder),
            self.progress.step,
            self.progress.loss,
            self.progress.val_loss,
            self.progress.skipped_steps,
            self.saver.newest,
            0 if stop.requested is None else stop.exit_code,
            speed,
            known_mfu(self.config, speed, self.device),
            self.device.peak_memory_mib(),
        )

    def _save_before(self, error: Exception) -> None:
        """Save the state, unless it is saved, before an error ends the run, and note so in the error.

        Raises:
            RunFolderLostError: the run folder is gone, too.
        """
        step = self.progress.step
        if not step:
            return
        try:
            try:
                self.saver.wait()
            except CheckpointError:  # there may be room now
                self._saved_step = None
            if not self._is_saved():
                self.save()
            self.saver.wait()
        except RunFolderLostError:
            raise
        except Exception as cause:  # nothing here may hide the error
            error.add_note(f"the state after step {step} could not be saved: {text_of(cause)}")
        else:
            kept = f"the state after step {step} was saved in {self.saver.newest}"
            error.add_note(f"{kept}: repair the cause, then use --resume")

    def _is_saved(self) -> bool:
        """Whether the state as it is has a checkpoint, which nobody has deleted, or will have when its save ends."""
        path = self.saver.newest
        return self._saved_step == self.progress.step and (path is None or self.saver.is_busy or path.is_file())

    def _chunk(self) -> int:
        """Steps until the next event, or fewer so that a person sees something move."""
        step, train = self.progress.step, self.config.train
        every = [train.eval_every, train.sample_every, train.checkpoint_every]
        until_event = min([n - step % n for n in every if n] + [train.steps - step])
        if self.progress.skipped_in_row:
            until_event = min(until_event, max(train.max_skipped_steps - self.progress.skipped_in_row, 1))
        if self._seconds_per_step is None:
            return min(until_event, 1)
        return max(min(until_event, int(_CHUNK_SECONDS / self._seconds_per_step), _MAX_CHUNK), 1)

    def _advance(self, steps: int) -> None:
        first = self.progress.step
        native = self.training_step.is_recorded
        rates = learning_rates(self.config.schedule, self.config.train.steps, first, steps)
        begin = time.perf_counter()
        self._is_whole = False
        try:
            metrics = self.training_step.run(self.loader, rates)
        except (KeyboardInterrupt, DataError) as error:
            metrics = getattr(error, "metrics", np.empty((0, 2)))
            self._is_whole = isinstance(error, DataError)
            self._record(metrics, rates, time.perf_counter() - begin, native)
            raise
        self._is_whole = True
        seconds = time.perf_counter() - begin
        if native:
            self._seconds_per_step = seconds / steps
        elif self.training_step.is_recorded:
            blualloc.end_of_step(0, self.device.name)  # gives back what recording took beside the arena
        self._record(metrics, rates, seconds, native)

    def _record(self, metrics: NDArray[np.float64], rates: NDArray[np.float64], seconds: float, captured: bool) -> None:
        """Take note of steps that are done."""
        if not len(metrics):
            return
        config, batch = self.config, self.config.train.global_batch_tokens
        tokens_per_second = batch * len(metrics) / max(seconds, 1e-9)
        now = time.perf_counter() - self._begin
        losses = [float(loss) for loss, _ in metrics]
        self.tally.add_steps(self.progress.step + len(losses), losses, batch * len(losses), seconds, captured=captured)
        mfu = model_flop_utilisation(config, tokens_per_second, self.device.peak_tflops())
        state = self.progress
        events: list[dict[str, Any]] = []
        for left, ((loss, grad_norm), rate) in zip(  # fewer steps than rates when interrupted
            reversed(range(len(metrics))), zip(metrics, rates, strict=False), strict=True
        ):
            state.step += 1
            state.tokens_seen += batch
            state.seconds = now - left * seconds / len(metrics)
            state.loss = float(loss)
            skipped = not (math.isfinite(loss) and math.isfinite(grad_norm))
            state.skipped_steps += skipped
            state.skipped_in_row = state.skipped_in_row + 1 if skipped else 0
            if state.step % config.train.log_every == 0 or state.step == config.train.steps or skipped:
                event: dict[str, Any] = {"step": state.step, "loss": float(loss), "lr": float(rate)}
                event |= {"grad_norm": float(grad_norm), "tokens_seen": state.tokens_seen, "skipped": skipped}
                events.append(event | {"seconds": round(state.seconds, 6)})
            if state.skipped_in_row >= config.train.max_skipped_steps:
                break
        same: dict[str, Any] = {"tokens_per_second": tokens_per_second, "mfu": mfu}
        same["memory_mib"] = self.device.peak_memory_mib()
        for event in events:  # a full disk finds the progress complete
            self.recorder.train(**event, **same)
        self.recorder.check()
        if state.skipped_in_row >= config.train.max_skipped_steps:
            self._stop_non_finite(float(loss), float(grad_norm))
        seconds_left = (config.train.steps - self.progress.step) * seconds / len(metrics)
        self.reporter.progress(self.progress.step, self.progress.loss, tokens_per_second, seconds_left)

    def _stop_non_finite(self, loss: float, grad_norm: float) -> None:
        state = self.progress
        self.saver.wait()
        newest = self.saver.newest
        kept = f"the checkpoint {newest} is intact" if newest else "no checkpoint was written yet"
        message = f"[train] expected a finite loss and gradient, got loss {loss} and gradient norm {grad_norm} at step"
        message += f" {state.step}, the {state.skipped_in_row}th in a row that was skipped; {kept}:"
        raise NonFiniteError(message + " lower schedule.learning_rate or check the data, then use --resume")

    def _events(self) -> None:
        step, train = self.progress.step, self.config.train
        last = step == train.steps

        def due(every: int) -> bool:
            return every > 0 and (step % every == 0 or last)

        if due(train.eval_every):
            self.evaluate()
        if due(train.sample_every):
            self.sample()
        if train.checkpoint_every and step % train.checkpoint_every == 0:
            self.save()

    # ---- events ----------------------------------------------------------------------------------------------------

    def evaluate(self) -> float:
        """Measure, record and report the validation loss."""
        if self._evaluation is None:
            self._evaluation = Evaluation(self.model, self.training_step.family)
        loader = evaluation_loader(self.config, self.dataset)
        loss, tokens = self._evaluation.run(loader, self.config.train.eval_batches)
        blualloc.empty_cache(self.device.name)
        self.progress.val_loss = loss
        self.tally.add_validation(self.progress.step, loss)
        self.recorder.validation(step=self.progress.step, loss=loss, tokens=tokens)
        self.reporter.line(f"step {self.progress.step}: validation loss {loss:.4f}")
        return loss

    def sample(self) -> str | None:
        """Generate, record and return a sample; None without a tokenizer, and from weights that are not finite."""
        train = self.config.train
        if self.tokenizer is None:
            return None
        if self._decoder is None:
            self._decoder = Decoder(self.model, self.training_step.family)
        options = SamplingOptions(temperature=train.sample_temperature, seed=train.seed + self.progress.step)
        try:
            text = generate_text(
                self.model,
                self.tokenizer,
                train.sample_prompt,
                max_new_tokens=train.sample_tokens,
                options=options,
                decoder=self._decoder,
            )
        except NonFiniteLogitsError:  # steps are judged by their losses, and end the run where they have to
            self.reporter.warning(f"step {self.progress.step}: no sample, the logits are not finite")
            return None
        self.recorder.sample(step=self.progress.step, text=text)
        return text

    def save(self) -> Path:
        """Write a checkpoint, or begin to; the file is complete when the run ends."""
        self.recorder.check()
        self.recorder.flush()
        position = self.loader.position()
        meta = {
            **self.progress.to_meta(),
            "epoch": position.epoch,
            "cursor": {"window": position.window, "shard": position.shard, "offset": position.offset},
            "config": config_to_dict(with_absolute_paths(self.config)),
            "data": self.dataset.digest(),
            "tokenizer": None if self.dataset.tokenizer is None else self.dataset.tokenizer.to_dict(),
        }
        state = gather(self.model, self.optimizer, self.loader)
        self._saved_step = self.progress.step
        path = self.saver.save(self.progress.step, state, meta)
        if self.first_checkpoint is not None and self.saver.newest == path:
            told, self.first_checkpoint = self.first_checkpoint, None
            told()
        return path

    def save_to(self, folder: RunPaths) -> Path:
        """Write a checkpoint at once, into a run folder that takes the place of the one before."""
        self.store = CheckpointStore(folder.checkpoints, keep=None, report=self.reporter.warning)
        self.saver = Saver(self.store)
        return self.save()

    def outcome(self, status: str, why: str = "") -> Outcome:
        """How this process's part of the run ended.

        Args:
            status: ``finished``, ``interrupted`` or ``failed``.
            why: the error of one that failed.
        """
        state, speed = self.progress, self.tally.tokens_per_second
        return Outcome(
            status=status,
            why=why,
            step=state.step,
            loss=state.loss,
            val_loss=state.val_loss,
            skipped_steps=state.skipped_steps,
            tokens_seen=state.tokens_seen,
            tokens_per_second=speed,
            mfu=known_mfu(self.config, speed, self.device),
            peak_memory_mib=self.device.peak_memory_mib(),
            arena_mib=self.training_step.family.memory["arena_bytes"] / 2**20 if speed is not None else None,
            checkpoint=self.saver.newest,
        )


def writes_behind(config: Config, device: RunDevice) -> bool:
    """Whether checkpoints are written behind the training loop."""
    asked = config.train.background_checkpoints
    return device.is_cuda if asked == "auto" else asked == "on"
