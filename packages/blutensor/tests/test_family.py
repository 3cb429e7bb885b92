"""Families of programs over one arena, and the native loop: accumulation, feeds, metrics, sources, interruption."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from models import batches, bits, build, same_bits, weights

import blutensor as bt
from blutensor import optim

NextFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32)


class Loader:
    """A source in Python: copies the next batch into the slots."""

    def __init__(self, data: list[Any], fail_at: int = -1, status: int = 6) -> None:
        self.taken = 0
        self._data = [[np.ascontiguousarray(t.cpu().numpy()) for t in batch] for batch in data]
        self._fail_at, self._status = fail_at, status
        self._callback = NextFunction(self._next)
        self.next_function = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.context = 0

    def error(self) -> str:
        return "the shard is truncated"

    def take(self) -> list[bt.Tensor]:
        """The next batch, for calls outside of the loop."""
        self.taken += 1
        return [bt.asarray(a.copy()) for a in self._data[self.taken - 1]]

    def _next(self, _context: int, slots: Any, num_slots: int) -> int:
        if self.taken == self._fail_at:
            return self._status
        for i, array in enumerate(self._data[self.taken]):
            assert num_slots == len(self._data[self.taken])
            ctypes.memmove(slots[i], array.ctypes.data, array.nbytes)
        self.taken += 1
        return 0


class Training:
    """Steps of `accumulation` micro-batches: the first overwrites gradients, the others add, the last updates."""

    def __init__(self, kind: str, accumulation: int) -> None:
        self.model, self.optimizer = build(kind)
        self.parameters = list(self.model.parameters())
        self.lr = bt.zeros((), dtype="float64")
        self.loss, self.norm = bt.zeros(()), bt.zeros(())
        self.family = bt.ProgramFamily("training")
        names = ["single"] if accumulation == 1 else ["first", *["middle"] * (accumulation - 2), "last"]
        self.functions = {name: self._micro_step(name) for name in names}
        self.captured = {name: self.family.capture(f, name=name) for name, f in self.functions.items()}
        self.schedule = [(self.captured[n], max(1, names.count(n))) for n in self.functions]
        self.names = names

    def _micro_step(self, name: str) -> Callable[[bt.Tensor, bt.Tensor], None]:
        def step(x: bt.Tensor, targets: bt.Tensor) -> None:
            if name in ("first", "single"):
                self.optimizer.zero_grad()
                self.loss.zero_()
            loss = self.model.loss(x, targets)
            loss.backward()
            self.loss.add_(loss.detach())
            if name in ("last", "single"):
                self.norm.copy_(optim.grad_norm(self.parameters))
                scale, skip = optim.clip_scale(self.norm, 1.0)
                self.optimizer.step(lr=self.lr, grad_scale=scale, skip=skip)
            bt.default_generator.advance()

        return step

    def call(self, loader: Loader, rate: float, eager: bool = False) -> list[float]:
        """One step, program by program; its metrics."""
        self.lr.fill_(rate)
        for name in self.names:
            (self.functions if eager else self.captured)[name](*loader.take())
        return [self.loss.item(), self.norm.item()]

    def run(self, loader: Loader, rates: list[float]) -> Any:
        """Steps in the native loop."""
        return self.family.run(
            len(rates), schedule=self.schedule, source=loader, feeds={self.lr: rates}, metrics=[self.loss, self.norm]
        )


RATES = [0.01 * (1 + i) for i in range(8)]


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_native_steps_have_the_bits_of_eager_steps(kind: str, accumulation: int) -> None:
    data = batches(kind, len(RATES) * accumulation)
    eager = Training(kind, accumulation)
    loader = Loader(data)
    expected = [eager.call(loader, rate, eager=True) for rate in RATES]
    expected_weights = weights(eager.model)

    captured = Training(kind, accumulation)
    loader = Loader(data)
    metrics = [captured.call(loader, rate) for rate in RATES[:2]]
    metrics += captured.run(loader, RATES[2:5]).tolist()
    metrics += captured.run(loader, RATES[5:]).tolist()
    assert metrics == expected
    same_bits(weights(captured.model), expected_weights)
    assert loader.taken == len(data)
    assert bits(bt.default_generator.state) == bits(bt.asarray([11, len(data)]))


def test_the_arena_is_shared() -> None:
    training = Training("transformer", 3)
    loader = Loader(batches("transformer", 12))
    for _ in range(2):
        training.call(loader, 0.01)
    arenas = [f.program.memory["arena_bytes"] for f in training.captured.values()]
    assert training.family.memory["arena_bytes"] == max(arenas)
    assert training.family.memory["peak_live_bytes"] <= max(arenas)


def test_evaluation_between_steps_does_not_disturb() -> None:
    """Eager and captured evaluation, dropout off, random numbers drawn in between."""

    def losses(evaluate: bool) -> Any:
        training = Training("transformer", 2)
        loader = Loader(batches("transformer", 20))
        held_out = batches("transformer", 1, seed=5)[0]

        def loss(x: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
            training.model.eval()
            with bt.no_grad():
                result: bt.Tensor = training.model.loss(x, targets)
            training.model.train()
            return result

        captured = training.family.capture(loss, name="evaluate")
        found = []
        for i in range(8):
            if i < 2:
                found.append(training.call(loader, 0.01))
            else:
                found += training.run(loader, [0.01]).tolist()
            if evaluate:
                value = captured(*held_out).item()
                assert value == loss(*held_out).item()
                op_id = bt.default_generator.op_id
                bt.uniform((3,))
                bt.default_generator.op_id = op_id
        return found

    assert losses(True) == losses(False)


def test_slots_keep_their_values_without_a_source() -> None:
    total = bt.zeros(())
    family = bt.ProgramFamily()
    add = family.capture(lambda x: total.add_(x.sum()))
    for _ in range(2):
        add(bt.ones(3))
    metrics = family.run(4, schedule=[(add, 2)], metrics=[total, total])
    assert metrics.tolist() == [[12, 12], [18, 18], [24, 24], [30, 30]]
    assert family.run(0, schedule=[(add, 1)], metrics=[total]).shape == (0, 1)
    assert family.run(3, schedule=[(add, 0)], metrics=[total]).tolist() == [[30]] * 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "bfloat16"])
def test_feeds_and_metrics_of_every_dtype(dtype: str) -> None:
    value, doubled = bt.zeros((), dtype=dtype), bt.zeros((), dtype=dtype)
    family = bt.ProgramFamily()
    f = family.capture(lambda: doubled.copy_(value * 2))
    for _ in range(2):
        f()
    metrics = family.run(4, schedule=[(f, 1)], feeds={value: np.array([1, 2, 3, 4])}, metrics=[doubled, value])
    assert metrics.tolist() == [[2, 1], [4, 2], [6, 3], [8, 4]]


def test_errors_of_the_source() -> None:
    data = batches("mlp", 10)
    training = Training("mlp", 1)
    loader = Loader(data, fail_at=5)
    for _ in range(2):
        training.call(loader, 0.01)
    with pytest.raises(
        bt.SourceError, match=r"source of batches failed with status 6: the shard is truncated"
    ) as error:
        training.run(loader, [0.01] * 8)
    assert loader.taken == 5
    assert error.value.steps_done == len(error.value.metrics) == 3
    loader._fail_at = -1
    assert training.run(loader, [0.01] * 5).shape == (5, 2)


def test_wrong_arguments() -> None:
    training = Training("mlp", 1)
    loader = Loader(batches("mlp", 4))
    with pytest.raises(bt.CaptureError, match="before the second call"):
        training.run(loader, [0.01])
    for _ in range(2):
        training.call(loader, 0.01)
    with pytest.raises(ValueError, match="3 values per feed"):
        training.family.run(3, schedule=training.schedule, source=loader, feeds={training.lr: [1.0]})
    with pytest.raises(ValueError, match="one element"):
        training.family.run(1, schedule=training.schedule, source=loader, metrics=[bt.zeros(2)])
    with pytest.raises(ValueError, match="steps of at least 0"):
        training.family.run(-1, schedule=training.schedule, source=loader)
    with pytest.raises(ValueError, match="not part of family 'other'"):
        bt.ProgramFamily("other").run(1, schedule=training.schedule, source=loader)


def long_running() -> tuple[bt.ProgramFamily, Any, bt.Tensor]:
    count = bt.zeros(())
    family = bt.ProgramFamily()
    f = family.capture(lambda x: (count.add_(1), x @ x)[1])
    for _ in range(2):
        f(bt.ones((64, 64)))
    count.zero_()
    return family, f, count


def test_a_signal_interrupts_between_steps() -> None:
    family, f, count = long_running()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as raised:
        family.run(10**8, schedule=[(f, 1)], metrics=[])
    assert time.monotonic() - start < 20
    assert isinstance(raised.value, bt.RunInterrupted)
    assert raised.value.steps_done == count.item() > 0
    assert raised.value.metrics.shape == (raised.value.steps_done, 0)
    assert family.run(3, schedule=[(f, 1)], metrics=[count])[-1, 0] == raised.value.steps_done + 3


def test_exceptions_of_signal_handlers_come_out() -> None:
    class Own(Exception):
        pass

    def handler(*_: object) -> None:
        raise Own

    family, f, _ = long_running()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Own):
            family.run(10**8, schedule=[(f, 1)])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert family.run(2, schedule=[(f, 1)]).shape == (2, 0)


def test_other_threads_run_meanwhile() -> None:
    family, f, _ = long_running()
    seen = []
    thread = threading.Thread(target=lambda: [seen.append(time.sleep(0.001)) for _ in range(20)])
    thread.start()
    family.run(2000, schedule=[(f, 1)])
    thread.join()
    assert len(seen) == 20


def test_programs_outlive_their_family_object() -> None:
    f = bt.ProgramFamily().capture(lambda x: bt.exp(x) * 2)
    for _ in range(4):
        assert f(bt.zeros(2)).tolist() == [2, 2]


def test_host_time_is_reported() -> None:
    family, f, _ = long_running()
    family.run(100, schedule=[(f, 1)])
    assert 0 <= family.last_host_seconds < 1
