"""Families and the native loop on the GPU: sources, feeds, metrics, failures, host time; the bits of eager steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import batches, bits, same_bits, weights
from test_family import RATES, Loader, Training

import blutensor as bt


@pytest.fixture(autouse=True)
def on_the_gpu(clean_device: None) -> Iterator[None]:
    with bt.default_device("cuda"):
        yield


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_native_steps_have_the_bits_of_eager_steps(kind: str, accumulation: int, prefetch: bool) -> None:
    data = batches(kind, len(RATES) * accumulation)
    eager = Training(kind, accumulation)
    loader = Loader(data)
    expected = [eager.call(loader, rate, eager=True) for rate in RATES]
    expected_weights = weights(eager.model)

    captured = Training(kind, accumulation)
    loader = Loader(data)
    metrics = [captured.call(loader, rate) for rate in RATES[:2]]
    for rates in (RATES[2:5], RATES[5:]):
        metrics += captured.family.run(
            len(rates),
            schedule=captured.schedule,
            source=loader,
            feeds={captured.lr: rates},
            metrics=[captured.loss, captured.norm],
            prefetch=prefetch,
        ).tolist()
    assert metrics == expected
    same_bits(weights(captured.model), expected_weights)
    assert loader.taken == len(data)
    assert bt.default_generator.state.tolist() == [11, len(data)]
    for function, _ in captured.schedule:
        assert function.program.execution.startswith("one graph"), function.program.execution


def test_evaluation_and_sampling_between_steps_do_not_disturb() -> None:
    def losses(disturb: bool) -> Any:
        training = Training("transformer", 2)
        loader = Loader(batches("transformer", 16))
        held_out = batches("transformer", 1, seed=5)[0]

        def loss(x: bt.Tensor, targets: bt.Tensor) -> bt.Tensor:
            training.model.eval()
            with bt.no_grad():
                result = training.model.loss(x, targets)
            training.model.train()
            return result

        evaluate = training.family.capture(loss, name="evaluate")
        rows = [training.call(loader, 0.01) for _ in range(2)]
        seen = set()
        for _ in range(6):
            if disturb:
                op_id = bt.default_generator.op_id
                bt.random.normal((1000,))
                bt.default_generator.op_id = op_id
                first, second = loss(*held_out).item(), evaluate(*held_out).item()
                assert first == second
                seen.add(first)
            rows += training.run(loader, [0.01]).tolist()
        assert not disturb or len(seen) == 6
        return rows

    assert losses(True) == losses(False)


def test_a_source_that_fails_keeps_the_steps_before() -> None:
    training = Training("mlp", 1)
    loader = Loader(batches("mlp", 10), fail_at=6)
    for _ in range(2):
        training.call(loader, 0.01)
    with pytest.raises(RuntimeError, match=r"source of batches failed with status 6: the shard is truncated"):
        training.run(loader, [0.01] * 8)
    assert loader.taken == 6
    eager = Training("mlp", 1)
    again = Loader(batches("mlp", 10))
    for _ in range(6):
        eager.call(again, 0.01, eager=True)
    same_bits(weights(training.model), weights(eager.model))


def test_feeds_and_metrics_of_many_dtypes() -> None:
    family = bt.ProgramFamily()
    dtypes = ["float32", "float64", "int32", "int64"]
    feeds = [bt.zeros((), dtype=d) for d in dtypes]
    sums = [bt.zeros((), dtype=d) for d in dtypes]

    def step() -> None:
        for value, total in zip(feeds, sums, strict=True):
            total.add_(value)

    function = family.capture(step)
    for _ in range(2):
        function()
    for total in sums:
        total.zero_()
    table = family.run(500, schedule=[(function, 1)], feeds={f: np.arange(500) for f in feeds}, metrics=sums)
    np.testing.assert_array_equal(table, np.cumsum(np.arange(500))[:, None].repeat(4, 1))


def test_feeds_and_metrics_elsewhere_are_refused() -> None:
    family = bt.ProgramFamily()
    x = bt.ones(())
    function = family.capture(lambda: x.add_(1))
    for _ in range(2):
        function()
    with pytest.raises(TypeError, match=r"\[run\] expected feeds and metrics on cuda:0"):
        family.run(1, schedule=[(function, 1)], metrics=[bt.zeros((), device="cpu")])


def test_interruption_between_steps() -> None:
    family = bt.ProgramFamily()
    x, counter = bt.ones((1 << 22,)), bt.zeros((), dtype="int64")

    def step() -> None:
        for _ in range(20):
            x.copy_(bt.tanh(x))
        counter.add_(1)

    function = family.capture(step)
    for _ in range(2):
        function()
    timer = threading.Timer(0.8, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(bt.RunInterrupted) as caught:
        family.run(1_000_000, schedule=[(function, 1)], metrics=[counter])
    timer.join()
    assert time.monotonic() - start < 5
    assert caught.value.steps_done == counter.item() - 2 == len(caught.value.metrics)
    assert caught.value.metrics[-1, 0] == counter.item()


def test_ids_out_of_range_in_the_loop_are_reported() -> None:
    family = bt.ProgramFamily()
    table, ids, total = bt.ones((4, 3)), bt.asarray([0, 1]), bt.zeros(())
    function = family.capture(lambda: total.copy_(bt.embedding(ids, table).sum()))
    for _ in range(2):
        function()
    ids.copy_(np.array([0, 9]))
    with pytest.raises(IndexError, match=r"expected ids from 0 to 3, got 9"):
        family.run(3, schedule=[(function, 1)], metrics=[total])
    ids.copy_(np.array([0, 3]))
    assert family.run(2, schedule=[(function, 1)], metrics=[total]).tolist() == [[6.0], [6.0]]


def test_the_host_is_free_while_the_device_works() -> None:
    """What the host does per step is bounded; see benchmarks for how long it takes."""
    training = Training("transformer", 1)
    loader = Loader(batches("transformer", 52))
    for _ in range(2):
        training.call(loader, 0.01)
    training.run(loader, [0.01] * 50)
    assert 0 < training.family.last_host_seconds < 50 * 0.05


def test_decoding_with_the_position_on_the_device() -> None:
    """A cache of fixed size: one program for every position, in the family of the training step."""
    family = bt.ProgramFamily()
    length, channels = 8, 4
    cache, position = bt.zeros((1, length, channels)), bt.zeros((), dtype="int64")

    def decode(x: bt.Tensor) -> bt.Tensor:
        bt.index_write_(cache, x, position, 1)
        position.add_(1)
        return cache.sum(axis=(0, 2))

    step = family.capture(decode)
    rows = np.random.default_rng(0).standard_normal((length, 1, 1, channels)).astype(np.float32)
    for k in range(length):
        result = step(bt.asarray(rows[k])).cpu().numpy()
        expected = np.zeros(length, np.float32)
        expected[: k + 1] = rows[: k + 1].sum(axis=(1, 2, 3))
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    assert bits(cache) == rows.transpose(1, 2, 0, 3).reshape(1, length, channels).tobytes()


def test_the_benchmark_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it computes, on a small model, not how long it takes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import overhead_cuda

    measured = overhead_cuda.microseconds
    monkeypatch.setattr(overhead_cuda, "microseconds", lambda call, calls, wait, rounds=1: measured(call, 3, wait, 1))
    out = tmp_path / "overhead.json"
    rows = overhead_cuda.main(["--layers", "1", "--channels", "64", "--out", str(out)])
    assert {r["work"] for r in rows} >= {"cuda.captured.step.host.us", "cuda.captured.one_operator.us"}
    assert all(r["ours"] > 0 for r in rows)
