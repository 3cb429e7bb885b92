"""The default pool, the functions of the module, the README."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

import blualloc

README = Path(__file__).parent.parent / "README.md"


def run_python(source: str) -> str:
    """Run a program in a process of its own, since the default pool is the process's."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_example_of_the_readme() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", source, re.MULTILINE)
    assert 8 <= len(source.strip().splitlines()) <= 12
    assert run_python(source).splitlines() == expected
    assert expected


def test_functions_act_on_the_default_pool() -> None:
    printed = run_python(
        """
        import blualloc
        pool = blualloc.default_pool()
        assert pool.handle == blualloc.default_pool("cpu:0").handle
        address = pool.allocate(1000, tag="weights")
        assert blualloc.stats() == pool.stats() and blualloc.stats().live_bytes == 1000
        assert [b.tag for b in blualloc.snapshot() if b.tag] == ["weights"]
        blualloc.set_limit(1 << 22)
        try:
            pool.allocate(1 << 23)
        except blualloc.OutOfMemoryError as error:
            assert error.limit == 1 << 22 and error.pool == "host"
            assert "raise the limit" in str(error)
        blualloc.set_oom_hint("Lower train.micro_batch.")
        try:
            pool.allocate(1 << 23)
        except MemoryError as error:
            assert str(error).endswith("Lower train.micro_batch.")
        blualloc.set_limit(0)
        pool.free(pool.allocate(1 << 24))
        blualloc.reset_peak()
        assert blualloc.stats().peak_live_bytes == 1000
        assert blualloc.end_of_step(0).returned_bytes > 1 << 23
        pool.free(address)
        assert blualloc.empty_cache() > 0
        with pool:
            pass
        try:
            pool.close()
        except ValueError as error:
            print(error)
        """
    )
    assert "expected a private pool, got the default pool of cpu:0" in printed


def test_configure_comes_first() -> None:
    printed = run_python(
        """
        import blualloc
        try:
            blualloc.configure(alignment=3)
        except ValueError as error:
            print(error)
        blualloc.configure(limit_bytes=1 << 20, alignment=256, shuffle_seed=5)
        pool = blualloc.default_pool()
        assert (pool.stats().limit_bytes, pool.stats().alignment) == (1 << 20, 256)
        addresses = [pool.allocate(256) for _ in range(10)]
        assert addresses != sorted(addresses), "shuffled"
        try:
            blualloc.configure()
        except ValueError as error:
            print(error)
        """
    )
    assert re.search("power of two", printed)
    assert re.search("before the first use", printed)


def test_places_are_the_same_in_every_process() -> None:
    program = """
        import blualloc
        pool = blualloc.default_pool()
        held = []
        for i in range(300):
            held.append(pool.allocate(1 + i * 7919 % 100_000))
            if i % 3:
                pool.free(held.pop(i % len(held)))
        print([(b.segment, b.segment_offset, b.requested) for b in blualloc.snapshot()])
    """
    assert run_python(program) == run_python(program) != "[]\n"


def test_forked_children_can_allocate() -> None:
    printed = run_python(
        """
        import os, threading
        import blualloc
        pool = blualloc.default_pool()
        stop = False
        def work():
            while not stop:
                pool.free(pool.allocate(1000, tag="parent"))
        threads = [threading.Thread(target=work) for _ in range(2)]
        [thread.start() for thread in threads]
        for _ in range(50):
            child = os.fork()
            if child == 0:
                pool.free(pool.allocate(5000, tag=f"child"))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop = True
        [thread.join() for thread in threads]
        print("done")
        """
    )
    assert printed == "done\n"


def test_forked_children_can_remove_hooks() -> None:
    """A delivery that a thread of the parent was in never ends in the child: removing a hook must not wait for it."""
    printed = run_python(
        """
        import os, signal, threading
        import blualloc
        pool = blualloc.default_pool()
        stop = False
        def work():
            while not stop:
                pool.free(pool.allocate(1000))
        hook = blualloc.add_hook(lambda event: None)
        threads = [threading.Thread(target=work) for _ in range(3)]
        [thread.start() for thread in threads]
        for _ in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                pool.free(pool.allocate(5000))
                blualloc.remove_hook(hook)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop = True
        [thread.join() for thread in threads]
        print("done")
        """
    )
    assert printed == "done\n"


def test_devices_that_are_not_there() -> None:
    with pytest.raises(NotImplementedError, match="got cuda:7"):
        blualloc.stats("cuda:7")
    with pytest.raises(NotImplementedError, match="got cpu:1"):
        blualloc.Pool("cpu:1")
    for name in ("gpu", "cuda:x", "", "cuda:-1"):
        with pytest.raises(ValueError, match="expected a device such as"):
            blualloc.default_pool(name)


def test_devices_are_counted_and_their_absence_explained() -> None:
    assert blualloc.device_count("cpu") == 1
    assert (blualloc.device_count() > 0) == (blualloc.cuda_reason() == "") == (blualloc.device_count("pinned") == 1)
    if blualloc.device_count() == 0:
        for name in ("cuda:0", "pinned"):
            with pytest.raises(NotImplementedError, match="; or use cpu:0") as caught:
                blualloc.Pool(name)
            assert blualloc.cuda_reason() in str(caught.value)
    with pytest.raises(ValueError, match="expected one of cpu, cuda, pinned"):
        blualloc.device_count("gpu")


def test_memory_of_the_host() -> None:
    free, total = blualloc.device_memory()
    assert 0 < total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with blualloc.Pool() as pool:
        pool.allocate(1 << 20)
        assert blualloc.device_memory()[0] <= free - (1 << 20)
        pool.close(force=True)
    with pytest.raises(NotImplementedError, match="got cpu:3"):
        blualloc.device_memory("cpu:3")


@pytest.mark.parametrize(
    "options",
    [
        {"alignment": 32},
        {"alignment": 96},
        {"alignment": 1 << 20},
        {"segment_bytes": 1 << 60},
        {"growth_bytes": 1 << 60},
        {"limit_bytes": -1},
    ],
)
def test_impossible_options(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        blualloc.Pool(**options)  # type: ignore[arg-type]


def test_address_space_may_be_limited() -> None:
    printed = run_python(
        """
        import resource
        import blualloc
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        pool = blualloc.Pool()
        address = pool.allocate(1 << 20)
        pool.free(address)
        try:
            pool.allocate(1 << 40)
        except blualloc.OutOfMemoryError:
            print("out of memory")
        pool.free(pool.allocate(1 << 20))
        """
    )
    assert printed == "out of memory\n"


def test_no_more_is_mapped_than_the_machine_has() -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with blualloc.Pool() as pool:
        for size in (36 << 40, physical + 1):
            with pytest.raises(blualloc.OutOfMemoryError, match="out of memory in pool") as caught:
                pool.allocate(size)
            assert caught.value.requested == size
            assert pool.stats().reserved_bytes == 0
        pool.free(pool.allocate(1 << 20))


def test_all_pools_together_map_no_more_than_the_machine_has() -> None:
    piece = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16
    with blualloc.Pool() as first, blualloc.Pool() as second:
        held = 0
        pools = itertools.cycle((first, second))
        with contextlib.suppress(blualloc.OutOfMemoryError):
            while held <= 16:
                next(pools).allocate(piece)  # nothing touches it: it costs addresses only
                held += 1
        assert 2 <= held <= 16
        first.close(force=True)  # gives back what it had mapped
        for _ in range(held // 2):
            second.allocate(piece)
        second.close(force=True)


def test_what_is_given_back_can_be_mapped_again() -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with blualloc.Pool() as pool:
        for _ in range(40):
            address = pool.allocate(physical // 32)
            pool.free(address)
            pool.empty_cache()
        assert pool.stats().reserved_bytes == 0


def test_many_holders_are_cut_to_ten() -> None:
    with blualloc.Pool(limit_bytes=1 << 20) as pool:
        held = [
            pool.allocate(1000 * (i + 1), tag=f"{'very ' * 20}long {i}" if i == 14 else f"tag {i}") for i in range(15)
        ]
        with pytest.raises(blualloc.OutOfMemoryError) as caught:
            pool.allocate(1 << 20)
        sizes = [holder.bytes for holder in caught.value.holders]
        assert sizes == sorted(sizes, reverse=True) == [1000 * i for i in range(15, 5, -1)]
        assert len(caught.value.holders[0].tag) == 63
        for address in held:
            pool.free(address)


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", metadata.version("blualloc"))
    assert set(blualloc.__all__) <= set(dir(blualloc))
