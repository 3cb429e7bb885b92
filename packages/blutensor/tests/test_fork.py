"""A process that forks while its threads use tensors: the child computes, or is told why not, and never hangs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

FORKS = 25
"""Enough to fork in the middle of every lock: without the handlers a child hangs within the first ten."""

WORKERS = """
    import os, signal, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import numpy as np
    import blualloc
    import blutensor as bt
    import blutensor.nn.functional as F
    stop = threading.Event()

    def train():
        w = bt.ones((64, 64)).requires_grad_()
        x = bt.ones((64, 64))
        while not stop.is_set():
            F.gelu(F.linear(x, w)).sum().backward()

    def replay():
        family = bt.ProgramFamily("parent")
        f = family.capture(lambda x: (x @ x).sum())
        for _ in range(3):
            f(bt.ones((64, 64)))
        shared["family"], shared["f"] = family, f
        while not stop.is_set():
            family.run(50, schedule=[(f, 1)])

    def draw():
        while not stop.is_set():
            bt.random.normal((10,))
            bt.default_generator.advance()

    def capture():
        while not stop.is_set():
            f = bt.capture(lambda x: x + 1.0)
            f(bt.ones(2)), f(bt.ones(2))

    shared = {}
    # Daemons, so that a failure ends the process.
    threads = [threading.Thread(target=t, daemon=True) for t in (train, train, replay, draw, capture)]
    [t.start() for t in threads]
    while "f" not in shared:
        time.sleep(0.01)

    def child():
        w = bt.ones((64, 64)).requires_grad_()
        F.gelu(F.linear(bt.ones((64, 64)), w)).sum().backward()
        assert w.grad is not None and w.grad.shape == (64, 64)
        f = bt.capture(lambda x: (x @ x).sum())
        assert [f(bt.ones((64, 64))).item() for _ in range(3)] == [64.0**3] * 3
        hook = blualloc.add_hook(lambda event: None)
        bt.ones(10)
        blualloc.remove_hook(hook)
        told = 0
        for action in (lambda: shared["family"].run(2, schedule=[(shared["f"], 1)]),
                       lambda: (bt.random.normal((10,)), bt.default_generator.advance())):
            try:
                action()
            except RuntimeError as error:
                assert "forked" in str(error), error
                told += 1
        shared.clear()
        return told
"""


def run(program: str, workers: str = WORKERS) -> str:
    """What a program prints that begins with `workers`."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(workers) + textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_children_of_a_busy_process() -> None:
    printed = run(
        f"""
        for number in range({FORKS}):
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                code = 1
                try:
                    child()
                    code = 0
                except BaseException:
                    import traceback; traceback.print_exc()
                finally:
                    os._exit(code)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == 0, (number, status)
        stop.set()
        [t.join() for t in threads]
        print("done")
        """
    )
    assert printed == "done\n"


def test_worker_processes_by_fork_and_children_of_children() -> None:
    printed = run(
        """
        import multiprocessing

        def work(n):
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                os._exit(0 if (bt.ones((n, 300)) @ bt.ones((300, 3))).sum().item() == n * 900 else 1)
            assert os.waitpid(pid, 0)[1] == 0
            return float((bt.ones((n, 300)) @ bt.ones((300, 3))).sum().item())

        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, [1, 100, 300]))
        stop.set()
        [t.join() for t in threads]
        """
    )
    assert printed == "[900.0, 90000.0, 270000.0]\n"


def test_generator_that_was_in_use() -> None:
    """A child whose parent was drawing captures and runs what draws nothing, and is told why it cannot draw."""
    program = """
        import ctypes, os, threading
        import blutensor as bt
        from blutensor import _native

        inside, forked = threading.Event(), threading.Event()

        def begin(context, name):
            if name == b"rng_advance_":
                inside.set()
                assert forked.wait(60)

        hooks = _native.Hooks(struct_size=ctypes.sizeof(_native.Hooks))
        hooks.op_begin = kept = type(hooks.op_begin)(begin)
        hooks.op_end = kept_end = type(hooks.op_end)(lambda context, name: None)
        _native.check(_native.lib.blutensor_set_hooks(ctypes.byref(hooks)))
        before = bt.capture(lambda x: x + 1.0)

        @bt.capture
        def draws(x):
            y = x + bt.random.normal((2,))
            bt.default_generator.advance()
            return y

        for f in (before, draws):
            forked.set()
            f(bt.ones(2)), f(bt.ones(2))
        inside.clear(), forked.clear()
        thread = threading.Thread(target=bt.default_generator.advance)
        thread.start()
        assert inside.wait(60)
        pid = os.fork()
        if pid == 0:
            f = bt.capture(lambda x: x * 3.0)
            print([before(bt.ones(2)).tolist() for _ in range(3)], [f(bt.ones(2)).tolist() for _ in range(3)])
            for action in (bt.default_generator.advance, lambda: draws(bt.ones(2))):
                try:
                    action()
                except RuntimeError as error:
                    print("generator was in use" if "using the random generator" in str(error) else error)
            sys.stdout.flush()
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        forked.set()
        thread.join()
        assert status == 0
    """
    printed = run(program, workers="import sys")
    told = "generator was in use\n"
    assert printed == f"{[[2.0, 2.0]] * 3} {[[3.0, 3.0]] * 3}\n" + told * 2
