"""The captured programs of a run: one optimizer step as a family over one arena, and the evaluation.

A step of one micro-batch is the program ``single``, whose gradients are its own; a longer one is ``first`` (writes
gradients), ``middle`` (adds) as often as needed, and ``last`` (adds, clips, updates). The first two calls of each are
real steps that record; from the third on they replay natively. Losses of micro-steps are sums over valid targets and
are divided by their number once, so the split of a global batch changes no more than the rounding of one sum.

Legend: B = micro-batch, T = context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import blutensor as bt
from blutrain.data.loader import Loader
from blutrain.errors import DataError, InvalidInputError, ShardError

METRICS = ("loss", "grad_norm")
"""Columns that ``TrainingStep.run`` returns: mean loss in nats, norm of the mean gradient before clipping."""

_RECORDING_STEPS = 2


class LossModel(Protocol):
    """What the trainer needs of a model; a ``GPT``, or any module with this ``loss_sum``."""

    training: bool

    def loss_sum(self, tokens: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        """Loss summed over valid targets: 0-d."""
        ...

    def parameters(self) -> Iterable[bt.Tensor]:
        """What is trained."""
        ...

    def train(self, mode: bool = True) -> object:
        """Switch to training mode, or out of it."""
        ...

    def eval(self) -> object:
        """Switch to evaluation mode."""
        ...


class TrainingStep:
    """Optimizer steps of a model, called one by one while recording, then natively in runs of any length.

    Args:
        model: what is trained.
        optimizer: one of blutensor's, over the model's parameters.
        accumulation: micro-steps of one optimizer step.
        clip_norm: largest norm of the mean gradient; 0 never clips.
        family: programs that share the arena with these; a new one by default.
    """

    def __init__(
        self,
        model: LossModel,
        optimizer: bt.optim.Optimizer,
        *,
        accumulation: int,
        clip_norm: float,
        family: bt.ProgramFamily | None = None,
    ) -> None:
        if accumulation < 1:
            raise InvalidInputError(f"[train] expected at least 1 micro-step, got {accumulation}")
        self._parameters = list(model.parameters())
        self._device = self._parameters[0].device
        self.family = bt.ProgramFamily(device=self._device) if family is None else family
        self.accumulation = accumulation
        self._model = model
        self._optimizer = optimizer
        self._clip_norm = clip_norm if clip_norm > 0 else float("inf")
        self._learning_rate, self._loss_sum, self._count, self._loss, self._grad_norm = (
            bt.zeros((), dtype=bt.float32, device=self._device) for _ in range(5)
        )
        self._schedule = self._capture()
        self._recorded = 0

    @property
    def is_recorded(self) -> bool:
        """Whether steps run natively from now on."""
        return self._recorded >= _RECORDING_STEPS

    def run(self, source: Loader, learning_rates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Do optimizer steps on the next batches of a loader.

        Args:
            source: where the micro-batches come from.
            learning_rates: float64 [steps].

        Returns:
            float64 [steps, 2]: the columns ``METRICS``. A step whose loss or norm is not finite changed no weight.

        Raises:
            DataError: the loader failed. Weights, moments, generator and loader are those after the last complete step;
                ``metrics`` are those of the steps that are done.
            KeyboardInterrupt: between steps, with ``steps_done`` and ``metrics``.
        """
        rows: list[NDArray[np.float64]] = [np.empty((0, len(METRICS)))]
        begin = source.state()
        done = 0
        try:
            while done < len(learning_rates) and not self.is_recorded:
                rows.append(self._recording_step(source, float(learning_rates[done])))
                done += 1
            remaining = learning_rates[done:]
            if len(remaining):
                rows.append(self._native_steps(source, remaining, rows))
        except DataError as error:
            metrics = np.concatenate([*rows, getattr(error, "metrics", rows[0])])
            self._undo_micro_steps(source, begin, len(metrics))
            error.metrics = metrics  # type: ignore[attr-defined]
            raise
        return np.concatenate(rows)

    def programs(self) -> dict[str, Any]:
        """The captured functions of the step by name, with how often each runs."""
        return {function.name: (function, count) for function, count in self._schedule}

    def _native_steps(
        self, source: Loader, learning_rates: NDArray[np.float64], before: list[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        try:
            result = self.family.run(
                len(learning_rates),
                schedule=self._schedule,
                source=source,
                feeds={self._learning_rate: learning_rates},
                metrics=[self._loss, self._grad_norm],
            )
        except KeyboardInterrupt as interrupt:
            done = getattr(interrupt, "metrics", np.empty((0, len(METRICS))))
            interrupt.metrics = np.concatenate([*before, done])  # type: ignore[attr-defined]
            raise
        except bt.SourceError as error:
            failure = ShardError(source.error())
            failure.metrics = error.metrics  # type: ignore[attr-defined]
            raise failure from error
        return np.asarray(result, np.float64)

    def _undo_micro_steps(self, source: Loader, begin: NDArray[np.int64], steps: int) -> None:
        """Make loader and generator those after ``steps`` steps; micro-steps after them changed no weight or moment."""
        done = steps * self.accumulation
        undone = source.batches_since(begin) - done
        source.go_to(begin, done)
        seed, step = bt.default_generator.state.numpy().tolist()
        bt.default_generator.state.copy_(bt.asarray(np.array([seed, step - undone], np.int64)))

    def _recording_step(self, source: Loader, learning_rate: float) -> NDArray[np.float64]:
        self._learning_rate.fill_(learning_rate)
        for function, count in self._schedule:
            for _ in range(count):
                function(*source_batch(source, self._device))
        self._recorded += 1
        return np.array([[self._loss.item(), self._grad_norm.item()]])

    def _capture(self) -> list[tuple[Any, int]]:
        capture = self.family.capture
        if self.accumulation == 1:
            return [(capture(self._single, name="single"), 1)]
        schedule = [(capture(self._first, name="first"), 1)]
        if self.accumulation > 2:
            schedule.append((capture(self._middle, name="middle"), self.accumulation - 2))
        return [*schedule, (capture(self._last, name="last"), 1)]

    def _single(self, tokens: bt.Tensor, targets: bt.Tensor) -> None:
        # No gradient outlives the program, so that they lie in the arena, where backward has freed activations.
        self._optimizer.zero_grad(set_to_none=True)
        loss, count = self._backward(tokens, targets)
        self._update(loss, count)
        self._optimizer.zero_grad(set_to_none=True)

    def _first(self, tokens: bt.Tensor, targets: bt.Tensor) -> None:
        self._optimizer.zero_grad()
        loss, count = self._backward(tokens, targets)
        self._loss_sum.copy_(loss)
        self._count.copy_(count)
        bt.default_generator.advance()

    def _middle(self, tokens: bt.Tensor, targets: bt.Tensor) -> None:
        loss, count = self._backward(tokens, targets)
        self._loss_sum.copy_(self._loss_sum + loss)
        self._count.copy_(self._count + count)
        bt.default_generator.advance()

    def _last(self, tokens: bt.Tensor, targets: bt.Tensor) -> None:
        loss, count = self._backward(tokens, targets)
        self._update(self._loss_sum + loss, self._count + count)

    def _backward(self, tokens: bt.Tensor, targets: bt.Tensor) -> tuple[bt.Tensor, bt.Tensor]:
        """Add to the gradients; returns the summed loss and the number of valid targets, both 0-d."""
        from blutrain.model import count_valid

        loss = self._model.loss_sum(tokens, targets)
        loss.backward()
        return loss.detach(), count_valid(targets)

    def _update(self, loss_sum: bt.Tensor, count: bt.Tensor) -> None:
        with bt.no_grad():
            norm = bt.optim.grad_norm(self._parameters)
            # A loss that is not finite must skip the step even where its gradient is: 0 * inf and 0 * nan are nan.
            guarded = norm + loss_sum * 0.0
            scale, skip = bt.optim.clip_scale(guarded, self._clip_norm, count)
            self._optimizer.step(lr=self._learning_rate, grad_scale=scale, skip=skip)
            self._loss.copy_(loss_sum / count)
            self._grad_norm.copy_(guarded / count)
        bt.default_generator.advance()


class Evaluation:
    """Mean loss of a model over a loader, as one captured program.

    Args:
        model: what is measured.
        family: programs that share the arena with this one; a new one by default.
    """

    def __init__(self, model: LossModel, family: bt.ProgramFamily | None = None) -> None:
        self._model = model
        self._device = next(iter(model.parameters())).device
        family = family or bt.ProgramFamily(device=self._device)
        self._program = family.capture(self._evaluate, name="evaluate")

    def run(
        self,
        source: Loader,
        max_batches: int = 0,
        progress: Callable[[int, int], None] | None = None,
        measured: Callable[[NDArray[np.int32]], None] | None = None,
    ) -> tuple[float, int]:
        """Measure the mean loss.

        Args:
            source: a loader of one pass.
            max_batches: largest number of batches, 0 for all.
            progress: called with batches done and in all.
            measured: called with the targets of each batch, int32 [B, T], -100 where there is none.

        Returns:
            Mean loss over valid targets in nats, and their number.
        """
        batches = min(source.num_batches, max_batches) if max_batches else source.num_batches
        total, count = 0.0, 0
        for batch in range(batches):
            tokens, targets = source.next_batch()
            on_device = (bt.asarray(array, device=self._device) for array in (tokens, targets))
            total += self._program(*on_device).item()
            count += int((targets >= 0).sum())
            if measured is not None:
                measured(targets)
            if progress is not None:
                progress(batch + 1, batches)
        return total / max(count, 1), count

    def _evaluate(self, tokens: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
        was_training = self._model.training
        self._model.eval()
        try:
            with bt.no_grad():
                return self._model.loss_sum(tokens, targets)
        finally:
            self._model.train(was_training)


def source_batch(source: Loader, device: str = "cpu") -> tuple[bt.Tensor, bt.Tensor]:
    """The next batch of a loader as tensors on a device: tokens and targets, int32 [B, T] each."""
    tokens, targets = source.next_batch()
    return bt.asarray(tokens, device=device), bt.asarray(targets, device=device)
