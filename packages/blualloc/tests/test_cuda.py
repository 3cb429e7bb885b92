"""Pools of a CUDA device and of pinned memory: what only the real thing can show. The contract runs over them too."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_trace import gpt2_step
from variants import KIB, MIB, CudaPool, check_invariants, cuda

import blualloc

GIB = 1 << 30
SEGMENTS = ["virtual", "whole"]

pytestmark = pytest.mark.gpu


@pytest.fixture(params=SEGMENTS)
def pool(request: pytest.FixtureRequest) -> Iterator[CudaPool]:
    made = CudaPool(request.param)
    yield made
    check_invariants(made)
    made.close(force=True)


def run_python(program: str, **environment: str) -> str:
    """What a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def used_bytes() -> int:
    """What the driver says is in use on the device, by whomever (NVML reports the same counter)."""
    free, total = blualloc.device_memory("cuda:0")
    return total - free


def nvml_used_bytes() -> int | None:
    """What NVML says is in use; None where it cannot be asked."""
    try:
        printed = subprocess.run(
            ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return int(printed) * MIB
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def test_the_default_pool_is_there() -> None:
    assert blualloc.cuda_reason() == ""
    assert blualloc.device_count("cuda") >= 1
    assert blualloc.device_count("pinned") == 1
    pool = blualloc.default_pool("cuda:0")
    address = pool.allocate(3 * MIB + 5, tag="test")
    assert address % 256 == 0
    cuda().fill(address, 3 * MIB + 5, 0xA5)
    assert cuda().read(address, 3 * MIB + 5) == b"\xa5" * (3 * MIB + 5)
    assert pool.find_block(address + 17).tag == "test"
    pool.free(address)
    blualloc.empty_cache("cuda:0")
    assert blualloc.stats("cuda:0").reserved_bytes == 0


def test_a_device_that_is_not_there_is_named() -> None:
    number = blualloc.device_count("cuda")
    with pytest.raises(NotImplementedError, match=rf"got cuda:{number}: this process sees {number} CUDA device"):
        blualloc.stats(f"cuda:{number}")
    with pytest.raises(NotImplementedError, match="which all devices share"):
        blualloc.stats("pinned:1")


def test_hidden_devices_are_explained() -> None:
    printed = run_python(
        """
        import blualloc
        print(blualloc.device_count("cuda"), blualloc.cuda_reason())
        try:
            blualloc.stats("cuda:0")
        except NotImplementedError as error:
            print(error)
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert printed.startswith("0 the NVIDIA driver shows no device")
    assert printed.count("CUDA_VISIBLE_DEVICES (now '')") == 2


@pytest.mark.usefixtures("whole_device")
def test_counters_agree_with_the_driver(pool: CudaPool) -> None:
    rng = random.Random(5)
    before, nvml_before = used_bytes(), nvml_used_bytes()
    held: list[int] = []
    for _ in range(400):
        held.append(pool.allocate(rng.randrange(1, 48 * MIB)))
        if len(held) > 200:
            pool.free(held.pop(rng.randrange(len(held))))
    stats = pool.stats()
    assert stats.reserved_bytes > 4 * GIB
    assert used_bytes() - before == pytest.approx(stats.reserved_bytes, rel=0.02)
    if nvml_before is not None:
        assert (nvml_used_bytes() or 0) - nvml_before == pytest.approx(stats.reserved_bytes, rel=0.02)
    for address in held[::2]:
        pool.free(address)
    pool.empty_cache()
    after = pool.stats()
    assert after.reserved_bytes < stats.reserved_bytes
    assert used_bytes() - before == pytest.approx(after.reserved_bytes, rel=0.02, abs=64 * MIB)
    for address in held[1::2]:
        pool.free(address)
    assert pool.empty_cache() == after.reserved_bytes
    assert used_bytes() - before == pytest.approx(0, abs=64 * MIB)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_training_step_reserves_little_more_than_it_needs(recompute: bool) -> None:
    """Eager steps of a GPT-2 with 124M parameters, weights and moments kept: at most 3% above the live peak."""
    trace = gpt2_step(recompute=recompute)
    moments: dict[int, list[int]] = {}
    for number, buffer in enumerate(trace.buffers):
        indices = [index for _, index in buffer.uses]
        moments.setdefault(2 * min(indices), []).append(number)
        moments.setdefault(2 * max(indices) + 1, []).append(number)
    stream = 1
    with CudaPool("virtual") as pool:
        kept = [pool.allocate(4 * 768 * 768 * 12, stream=stream, tag="weights") for _ in range(12 * 3)]
        start_up = pool.allocate(3 * GIB, stream=stream, tag="start-up")
        pool.free(start_up, stream=stream)
        returned = 0
        for step in range(4):
            addresses: dict[int, int] = {}
            for moment in sorted(moments):
                for number in moments[moment]:
                    if moment % 2 == 0:
                        addresses[number] = pool.allocate(trace.buffers[number].bytes, stream=stream)
                    else:
                        pool.free(addresses.pop(number), stream=stream)
            returned += pool.end_of_step(step).returned_bytes
            if step == 0:
                pool.reset_peak()
        stats = pool.stats()
        assert returned >= GIB
        assert stats.peak_live_bytes > GIB
        assert stats.peak_reserved_bytes <= 1.03 * stats.peak_live_bytes
        for address in kept:
            pool.free(address, stream=stream)


@pytest.mark.usefixtures("whole_device")
def test_the_limit_names_holders_and_leaves_the_pool_usable(pool: CudaPool) -> None:
    pool.set_limit(1 * GIB)
    held = [pool.allocate(100 * MIB, tag=f"layer {i % 3}") for i in range(9)]
    before = used_bytes()
    with pytest.raises(blualloc.OutOfMemoryError, match="'activations'") as caught:
        pool.allocate(300 * MIB, tag="activations")
    assert [(h.tag, h.count) for h in caught.value.holders] == [("layer 0", 3), ("layer 1", 3), ("layer 2", 3)]
    assert caught.value.limit == GIB
    assert 0 < caught.value.device_free < caught.value.device_total
    assert "set_limit" in str(caught.value)
    assert used_bytes() <= before
    for address in held[:4]:
        pool.free(address)
    held[:4] = [pool.allocate(300 * MIB, tag="activations")]
    cuda().fill(held[0], 300 * MIB, 3)
    assert cuda().read(held[0] + 300 * MIB - 16, 16) == b"\3" * 16


def test_a_full_device_is_out_of_memory_and_goes_on(pool: CudaPool) -> None:
    free, total = blualloc.device_memory("cuda:0")
    with pytest.raises(blualloc.OutOfMemoryError, match="the device has") as caught:
        pool.allocate(total)
    assert (caught.value.limit, caught.value.live) == (0, 0)
    assert caught.value.device_free == pytest.approx(free, rel=0.02)
    address = pool.allocate(MIB)
    cuda().fill(address, MIB, 1)
    assert cuda().read(address, 4) == b"\1\1\1\1"


def test_parts_of_a_virtual_segment_go_back_and_come_again() -> None:
    with CudaPool("virtual") as pool:
        blocks = [pool.allocate(4 * MIB) for _ in range(16)]
        for i, address in enumerate(blocks):
            cuda().fill(address, 4 * MIB, i)
        for address in blocks[1::2]:
            pool.free(address)
        assert pool.empty_cache() >= 8 * 4 * MIB - 2 * MIB
        again = [pool.allocate(4 * MIB) for _ in range(8)]
        assert sorted(again) == sorted(blocks[1::2]), "holes are filled before more address space is taken"
        for address in again:
            cuda().fill(address, 4 * MIB, 99)
        for i, address in list(enumerate(blocks))[::2]:
            assert cuda().read(address, 4 * MIB) == bytes([i]) * (4 * MIB), "a neighbour was unmapped or overwritten"
        for address in blocks[::2] + again:
            pool.free(address)


def test_pinned_memory_is_seen_by_both_sides() -> None:
    with blualloc.Pool("pinned") as pool:
        import ctypes

        size = 5 * MIB + 3
        host = pool.allocate(size, tag="staging")
        ctypes.memset(host, 0x5A, size)
        device = cuda().allocate(size)
        cuda().copy(device, host, size)
        assert cuda().read(device, size) == b"\x5a" * size
        cuda().free(device)
        pool.free(host)
        assert pool.empty_cache() == pool.stats().peak_reserved_bytes >= size


def test_pools_may_be_used_on_threads_without_a_context() -> None:
    printed = run_python(
        """
        import threading
        import blualloc
        pool = blualloc.default_pool("cuda:0")
        def work():
            for i in range(50):
                pool.free(pool.allocate(7 << 20, tag="thread"))
                pool.empty_cache()
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(pool.stats().num_live, pool.stats().reserved_bytes)
        """
    )
    assert printed == "0 0\n"


def test_only_the_used_device_gets_a_context() -> None:
    if blualloc.device_count("cuda") < 2:
        pytest.skip("needs two CUDA devices")
    printed = run_python(
        """
        import ctypes
        import blualloc
        pool = blualloc.default_pool("cuda:1")
        pool.free(pool.allocate(1 << 20))
        flags, active = ctypes.c_uint(), ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        print(active.value)
        """
    )
    assert printed == "0\n"


def test_a_lost_device_is_an_error_that_says_so() -> None:
    printed = run_python(
        """
        import ctypes
        import blualloc
        from cuda import Cuda
        cuda = Cuda()
        pool = blualloc.default_pool("cuda:0")
        held = pool.allocate(1 << 20)
        pool.free(pool.allocate(8 << 20))
        source = (b".version 7.0\\n.target sm_70\\n.address_size 64\\n"
                  b".visible .entry fault() { .reg .u64 %a; mov.u64 %a, 64; st.global.u64 [%a], %a; ret; }")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(module), source)
        cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"fault")
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        cuda.call("cuLaunchKernel", function, one, one, one, one, one, one, none, None, None, None)
        for call in (pool.empty_cache, lambda: pool.free(held), pool.empty_cache):
            try:
                call()
            except RuntimeError as error:
                print(error)
        print(pool.stats().num_live)
        """,
        PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    )
    first, second, live = printed.splitlines()
    assert "device cuda:0" in first
    assert "the device is lost to this process: start a new one" in first
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in second
    assert live == "0"


def test_memory_is_mapped_while_a_stream_captures() -> None:
    """Another thread's or library's capture must not forbid the pool to grow or to look at events."""
    import ctypes

    stream = cuda().stream()
    cuda().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(0))
    with CudaPool("virtual") as pool, CudaPool("whole") as other:
        blocks = [(each, each.allocate(8 * MIB)) for each in (pool, other)]
        for each, address in blocks:
            each.record_use(address, stream=2)
            each.free(address)
            each.free(each.allocate(8 * MIB))
    graph = ctypes.c_void_p()
    cuda().call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    cuda().call("cuGraphDestroy", graph)
    cuda().destroy_stream(stream)


def test_small_blocks_share_granules() -> None:
    with CudaPool("virtual") as pool:
        held = [pool.allocate(300, stream=1) for _ in range(1000)]
        assert pool.stats().reserved_bytes == 2 * MIB
        assert all(address % 256 == 0 for address in held)
        for address in held:
            pool.free(address, stream=1)
        assert pool.stats().largest_free_bytes == 2 * MIB >= 512 * KIB
