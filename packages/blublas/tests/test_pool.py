"""The thread pool, through its C interface, with tasks in Python."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import blublas
from blublas import _native

library = _native.library


def parallel(num_tasks: int, body: Callable[[int, int], None], limit: int | None = None) -> None:
    task = _native.TASK(lambda arg, index, thread: body(index, thread))
    if limit is None:
        library.blublas_parallel(num_tasks, task, None)
    else:
        library.blublas_parallel_limited(num_tasks, task, None, limit)


def test_every_task_runs_once() -> None:
    for threads in (1, 2, 4):
        blublas.set_num_threads(threads)
        for num_tasks in (0, 1, 2, 3, 100, 5000):
            counts = np.zeros(num_tasks, np.int64)
            seen: set[int] = set()

            def body(index: int, thread: int, counts: np.ndarray = counts, seen: set[int] = seen) -> None:
                counts[index] += 1
                seen.add(thread)

            parallel(num_tasks, body)
            assert (counts == 1).all()
            assert all(0 <= thread < threads for thread in seen)


def test_two_tasks_at_once_have_different_thread_indices() -> None:
    blublas.set_num_threads(3)
    running: set[int] = set()
    lock = threading.Lock()
    clashes: list[int] = []

    def body(index: int, thread: int) -> None:
        with lock:
            if thread in running:
                clashes.append(index)
            running.add(thread)
        time.sleep(0.0005)
        with lock:
            running.discard(thread)

    parallel(200, body)
    assert clashes == []


def test_threads_take_part() -> None:
    """Two tasks that wait for each other would never end on one thread."""
    blublas.set_num_threads(2)
    barrier = threading.Barrier(2, timeout=30)
    places: list[int] = []
    parallel(2, lambda index, thread: places.append(barrier.wait()))
    assert sorted(places) == [0, 1]


def test_limit() -> None:
    blublas.set_num_threads(4)
    for limit in (1, 2, 3):
        seen: set[int] = set()

        def body(index: int, thread: int, seen: set[int] = seen) -> None:
            seen.add(thread)
            time.sleep(0.0002)

        parallel(60, body, limit)
        assert max(seen) < limit


def test_nested_calls_run_inline() -> None:
    blublas.set_num_threads(2)
    inner: list[tuple[int, int, int]] = []
    flags: list[int] = []
    assert library.blublas_in_parallel() == 0

    def body(index: int, thread: int) -> None:
        flags.append(library.blublas_in_parallel())
        parallel(3, lambda i, t: inner.append((index, i, int(t == thread))))
        flags.append(library.blublas_in_parallel())

    parallel(8, body)
    assert sorted(inner) == [(i, j, 1) for i in range(8) for j in range(3)]
    assert set(flags) == {1}
    assert library.blublas_in_parallel() == 0


def test_products_in_tasks() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((90, 70), np.float32), rng.standard_normal((70, 110), np.float32)
    expected = blublas.gemm(a, b)
    results: list[np.ndarray] = [np.empty(0)] * 20

    def body(index: int, thread: int) -> None:
        results[index] = blublas.gemm(a, b)

    parallel(20, body)
    assert all(np.array_equal(result, expected) for result in results)


def test_no_other_number_of_threads_in_a_task() -> None:
    messages: list[str] = []

    def body(index: int, thread: int) -> None:
        try:
            blublas.set_num_threads(1)
        except blublas.InvalidValueError as error:
            messages.append(str(error))

    parallel(2, body)
    assert len(messages) == 2
    assert all("[set_num_threads] expected" in message for message in messages)


def test_an_exception_in_a_python_task_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported where ctypes reports it, and the pool goes on."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_type))
    done: list[int] = []

    def body(index: int, thread: int) -> None:
        if index == 3:
            raise KeyError("on purpose")
        done.append(index)

    parallel(8, body)
    assert sorted(done) == [0, 1, 2, 4, 5, 6, 7]
    assert reported == [KeyError]
    parallel(4, lambda index, thread: done.append(index))
    assert len(done) == 11


def test_changing_the_number_of_threads_while_others_work() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 64), np.float32), rng.standard_normal((64, 64), np.float32)
    expected = blublas.gemm(a, b)

    def work(_: int) -> bool:
        return all(np.array_equal(blublas.gemm(a, b), expected) for _ in range(100))

    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        outcomes = executor.map(work, range(3))
        for index in range(30):
            blublas.set_num_threads(1 + index % 4)
        assert all(outcomes)


def test_number_of_threads() -> None:
    default = blublas.num_threads()
    assert 1 <= default <= len(os.sched_getaffinity(0))
    blublas.set_num_threads(7)
    assert blublas.num_threads() == 7 == blublas.info().num_threads
    blublas.set_num_threads(0)
    assert blublas.num_threads() == default
    for bad in (-1, blublas.info().max_threads + 1, 2**40):
        with pytest.raises(blublas.InvalidValueError, match=r"\[set_num_threads\] expected"):
            blublas.set_num_threads(bad)
    with pytest.raises(blublas.InvalidTypeError, match=r"\[set_num_threads\] expected number as an integer"):
        blublas.set_num_threads(1.5)  # type: ignore[arg-type]
    assert library.blublas_set_num_threads(-1) == 1
    assert library.blublas_set_num_threads(10**6) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork() -> None:
    """A child starts a pool of its own, with the parent's number of threads and bits."""
    blublas.set_num_threads(2)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((300, 200), np.float32), rng.standard_normal((200, 300), np.float32)
    expected = blublas.gemm(a, b)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        same = all(np.array_equal(blublas.gemm(a, b), expected) for _ in range(5))
        os._exit(0 if same and blublas.num_threads() == 2 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert np.array_equal(blublas.gemm(a, b), expected)
