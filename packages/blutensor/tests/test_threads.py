"""Eight threads at once: what each computes is what it computes alone, and what they share stays whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from models import MLP, bits

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import optim

THREADS = 8


def at_once(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Results of ``work(0)`` to ``work(count - 1)``, each in a thread, begun together; the first error comes out."""
    gate = threading.Barrier(count)

    def begin(number: int) -> Any:
        gate.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(timeout=120) for future in [pool.submit(begin, i) for i in range(count)]]


def eager_steps(seed: int, steps: int = 5) -> list[Any]:
    """Losses and weights of a few eager steps; large enough for the pool, which one thread has at a time."""
    with bt.own_generator():
        bt.manual_seed(seed)
        model = MLP(features=64, hidden=128, p=0.1)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        x = bt.random.normal((256, 64))
        targets = bt.asarray(np.arange(256) % 7)
        losses = []
        for _ in range(steps):
            loss = model.loss(x, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bt.default_generator.advance()
            losses.append(loss.item())
        return [losses, *(bits(p) for p in model.parameters())]


def test_each_thread_trains_as_if_alone() -> None:
    assert at_once(eager_steps) == [eager_steps(seed) for seed in range(THREADS)]


def captured_steps(seed: int) -> list[Any]:
    with bt.own_generator():
        bt.manual_seed(seed)
        model = MLP(p=0.1)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        targets = bt.asarray(np.arange(32) % 7)

        def step(x: bt.Tensor) -> bt.Tensor:
            loss = model.loss(x, targets)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            bt.default_generator.advance()
            return loss

        family = bt.ProgramFamily(f"thread {seed}")
        captured = family.capture(step)
        x = bt.random.normal((32, 13))
        losses = [captured(x).item() for _ in range(6)]
        table = family.run(20, schedule=[(captured, 1)], metrics=[captured.program.outputs[0]])
        return [losses, table.tobytes(), *(bits(p) for p in model.parameters())]


def test_each_thread_captures_and_replays_as_if_alone() -> None:
    assert at_once(captured_steps) == [captured_steps(seed) for seed in range(THREADS)]


def test_shared_tensors_are_read_by_all() -> None:
    rng = np.random.default_rng(0)
    weight = bt.asarray(rng.standard_normal((64, 48), np.float32)).requires_grad_()
    x = bt.asarray(rng.standard_normal((32, 48), np.float32))

    def work(number: int) -> list[bytes]:
        found = []
        for k in range(20):
            loss = (F.gelu(F.linear(x[number:], weight)) * float(k + 1)).sum()
            found.append(bits(bt.grad(loss, weight)[0]))
        return found

    assert at_once(work) == [work(number) for number in range(THREADS)]
    assert weight.grad is None


def test_one_graph_is_gone_through_by_all() -> None:
    x = bt.asarray(np.random.default_rng(0).standard_normal((16, 24), np.float32)).requires_grad_()
    hidden = F.gelu(bt.layer_norm(x, 24) * 2.0)

    def work(number: int) -> list[bytes]:
        return [bits(bt.grad((hidden * float(number + k)).sum(), x, retain_graph=True)[0]) for k in range(20)]

    assert at_once(work) == [work(number) for number in range(THREADS)]


def test_a_graph_that_another_thread_freed_is_an_error() -> None:
    for _ in range(50):
        x = bt.ones((8, 24)).requires_grad_()
        hidden = F.gelu(bt.layer_norm(x, 24) * 2.0)

        def work(_: int, hidden: bt.Tensor = hidden, x: bt.Tensor = x) -> bool:
            try:
                return bt.grad(hidden.sum(), x)[0].shape == (8, 24)
            except bt.AutogradError as error:
                return "already used and freed" in str(error)

        assert all(at_once(work, 3))


def test_gradients_of_a_shared_leaf_add_up() -> None:
    # Small integers: sums are exact in any order.
    weight = bt.zeros((40, 30)).requires_grad_()
    bias = bt.zeros((40,)).requires_grad_()
    ones = bt.ones((8, 30))

    def work(number: int) -> None:
        for k in range(25):
            (weight * float(k)).sum().backward()
            F.linear(ones, weight, bias).sum().backward()

    at_once(work)
    assert weight.grad is not None
    assert bias.grad is not None
    np.testing.assert_array_equal(weight.grad.numpy(), THREADS * (sum(range(25)) + 25 * 8))
    np.testing.assert_array_equal(bias.grad.numpy(), THREADS * 25 * 8)


def test_one_leaf_twice_in_an_operator() -> None:
    same = bt.asarray(np.arange(1.0, 5.0, dtype=np.float32)).requires_grad_()
    x = bt.asarray(np.random.default_rng(0).standard_normal((3, 4), np.float32))
    first, second = same.detach().requires_grad_(), same.detach().requires_grad_()
    bt.layer_norm(x, 4, first, second).sum().backward()
    bt.layer_norm(x, 4, same, same).sum().backward()
    assert same.grad is not None
    assert first.grad is not None
    assert second.grad is not None
    np.testing.assert_array_equal(same.grad.numpy(), (first.grad + second.grad).numpy())


def test_leaves_hooks_and_gradients_come_and_go_meanwhile() -> None:
    for _ in range(20):
        leaf = bt.ones((50,))

        def work(number: int, leaf: bt.Tensor = leaf) -> None:
            leaf.requires_grad_()
            for _ in range(10):
                hook = leaf.register_hook(lambda grad: None)
                (leaf * 2.0).sum().backward()
                if number % 2:
                    leaf.grad = None
                gradient = leaf.grad  # read once: others drop it at any moment
                assert gradient is None or gradient.shape == (50,)
                hook.remove()

        at_once(work, 4)


def test_a_captured_function_is_for_one_thread_at_a_time() -> None:
    inside, leave = threading.Event(), threading.Event()

    def function(x: bt.Tensor) -> bt.Tensor:
        inside.set()
        leave.wait(30)
        return x * 2.0

    captured = bt.capture(function)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(captured, bt.ones(3))
        assert inside.wait(30)
        with pytest.raises(bt.CaptureError, match="one call at a time"):
            captured(bt.ones(3))
        leave.set()
        assert first.result(30).tolist() == [2, 2, 2]
    for value in range(4):
        assert captured(bt.full((3,), float(value))).tolist() == [2.0 * value] * 3


def test_one_family_is_run_by_all_in_turn() -> None:
    family = bt.ProgramFamily()
    counts = [bt.zeros(()) for _ in range(THREADS)]
    functions = [family.capture(lambda x, n=n: (counts[n].add_(1), (x @ x).sum())[1]) for n in range(THREADS)]
    for function in functions:
        for _ in range(2):
            function(bt.ones((8, 8)))
    for count in counts:
        count.zero_()
    results = at_once(lambda n: family.run(200, schedule=[(functions[n], 1)], metrics=[counts[n]])[-1, 0])
    assert results == [200] * THREADS
