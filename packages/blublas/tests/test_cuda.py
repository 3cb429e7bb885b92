"""Products on a CUDA device: every tile kernel, layout and size around its edges, every epilogue, against float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cuda_arrays import ROUNDOFF, Tensor, assert_as_good_as, chain, chains, matrix, poison, rows

import blublas

pytestmark = pytest.mark.gpu

CONFIGS = [name for name in blublas.cuda_configs() if name != "general"]
# Tile edges (64, 128, 256), one less and one more, primes, one row, a long K, K shorter than a vector.
SIZES = [
    (128, 128, 64),
    (129, 127, 65),
    (1, 1, 1),
    (7, 200, 33),
    (300, 130, 257),
    (63, 257, 1000),
    (257, 513, 96),
    (1, 700, 2049),
    (515, 3, 31),
]


def precision(config: str) -> tuple[str, str, Any]:
    """Dtype of the operands, key of ROUNDOFF, math."""
    kind = config.split("_")[0]
    if kind == "bf16":
        return "bfloat16", "bfloat16", "ieee"
    return "float32", "tf32" if kind == "tf32" else "float32", "tf32" if kind == "tf32" else "ieee"


def product(torch: Any, a: Tensor, b: Tensor, math: str) -> Tensor:
    """PyTorch's; in IEEE float32 and in float64 a chain of additions."""
    if a.dtype != torch.bfloat16 and a.ndim == 2 and (math == "ieee" or a.dtype == torch.float64):
        return chain(torch, a, b)
    torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
    result = a @ b
    torch.backends.cuda.matmul.allow_tf32 = False
    return result


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("config", CONFIGS)
def test_layouts_and_sizes(cuda: Any, config: str, parts: int) -> None:
    dtype, key, math = precision(config)
    blublas.set_cuda_config(f"{config}/{parts}")
    for (m, n, k), left, right in itertools.product(SIZES, ("rows", "columns"), ("rows", "columns")):
        a, b = matrix(cuda, m, k, dtype, left), matrix(cuda, k, n, dtype, right)
        truth, theirs = a.double() @ b.double(), product(cuda, a, b, math)
        for out_dtype in {dtype, "float32"}:
            out = poison(cuda, m, n, out_dtype)
            blublas.gemm(a, b, out, math=math)
            assert_as_good_as(out, theirs, truth, ROUNDOFF[key], f"{m} x {n} x {k} {left} {right} {out_dtype}")


@pytest.mark.parametrize(("dtype", "math"), [("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")])
def test_what_the_heuristics_choose(cuda: Any, dtype: str, math: Any) -> None:
    """Beside cuBLAS, which cuts a long K into parts as well: layers, their weight gradients, few tiles."""
    key = "tf32" if math == "tf32" else dtype
    for m, n, k in [
        (512, 768, 768),
        (768, 768, 8192),
        (768, 3072, 4096),
        (1024, 768, 50304),
        (3072, 768, 16384),
        (64, 64, 4096),
        (4, 2304, 768),
        (1, 700, 2048),
    ]:
        for left, right in itertools.product(("rows", "columns"), ("rows", "columns")):
            a, b, out = matrix(cuda, m, k, dtype, left), matrix(cuda, k, n, dtype, right), poison(cuda, m, n, "float32")
            cuda.backends.cuda.matmul.allow_tf32 = math == "tf32"
            theirs = a @ b
            blublas.gemm(a, b, out, math=math)
            assert_as_good_as(out, theirs, a.double() @ b.double(), ROUNDOFF[key], f"{m} x {n} x {k} {left} {right}")


@pytest.mark.parametrize("k", [1032, 3072, 3080, 4104, 20000, 50304])
def test_long_float32_sums_are_cut(cuda: Any, k: int) -> None:
    """Beyond 3072, every float32 kernel is as good as chains of 1024 additions; one of 20000 is 4 times worse."""
    lefts = {layout: matrix(cuda, 136, k, "float32", layout) for layout in ("rows", "columns")}
    rights = {layout: matrix(cuda, k, 264, "float32", layout) for layout in ("rows", "columns")}
    lefts["rows"].copy_(lefts["columns"])
    rights["rows"].copy_(rights["columns"])
    a, b = lefts["rows"], rights["rows"]
    truth, theirs = a.double() @ b.double(), chains(cuda, a, b, 1024 if k > 3072 else k)
    for config in [name for name in blublas.cuda_configs() if name.startswith("f32")]:
        blublas.set_cuda_config(f"{config}/1")
        for left, right in itertools.product(lefts, rights):
            out = poison(cuda, 136, 264, "float32")
            blublas.gemm(lefts[left], rights[right], out)
            assert_as_good_as(out, theirs, truth, ROUNDOFF["float32"], f"{config} {left} {right}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_strides_that_no_tile_kernel_takes(cuda: Any, dtype: str) -> None:
    x = rows(cuda, 400, 900, dtype)
    cases = {
        "odd lines": (x[:101, :333], x[:333, :77].contiguous()),
        "not aligned": (x[:100, 1:334], x[:333, 3:70]),
        "no unit stride": (x[::2, ::3][:100, :200], x[:200, ::7]),
        "broadcast": (x[:1].expand(77, 900)[:, :300], x[:300, :50]),
        "column-major": (x[:60, :300].t(), x[:60, 5:99]),
    }
    for name, (a, b) in cases.items():
        truth = a.double() @ b.double()
        for layout in ("rows", "columns"):
            out = poison(cuda, *truth.shape, dtype, layout)
            blublas.gemm(a, b, out)
            assert_as_good_as(out, product(cuda, a, b, "ieee"), truth, ROUNDOFF[dtype], f"{name} {layout}")


def test_negative_strides(cuda: Any) -> None:
    """PyTorch has none: the native call gets them."""
    from cuda_native import call, describe

    x, b = rows(cuda, 50, 96, "float32"), rows(cuda, 96, 40, "float32")
    out = poison(cuda, 50, 40, "float32")
    args = describe(x, b, out)
    args.a.data += 49 * x.stride(0) * 4
    args.a.row_stride = -x.stride(0)
    call(cuda, args)
    truth = x.flip(0).double() @ b.double()
    assert_as_good_as(out, chain(cuda, x.flip(0), b), truth, ROUNDOFF["float32"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_empty_products(cuda: Any, dtype: str) -> None:
    sums = "float64" if dtype == "float64" else "float32"
    for m, n, k in [(0, 5, 3), (5, 0, 3), (4, 5, 0), (0, 0, 0)]:
        a, b, out = (matrix(cuda, *s, dtype, "rows") for s in ((m, k), (k, n), (m, n)))
        out.fill_(float("nan"))
        column_sum = cuda.full((n,), 7.0, device="cuda", dtype=getattr(cuda, sums))
        row_sum = cuda.full((m,), 7.0, device="cuda", dtype=getattr(cuda, sums))
        blublas.gemm(a, b, out, column_sum=column_sum, row_sum_a=row_sum)
        assert bool((out == 0).all())
        assert bool((column_sum == 0).all())
        # Sums of three numbers: the order may differ from PyTorch's by one rounding.
        assert cuda.allclose(row_sum, a.to(row_sum.dtype).sum(1), rtol=1e-6, atol=1e-6)
        blublas.gemm(a, b, out, column_sum=column_sum, column_sum_accumulate=True, beta=1.0)
        assert bool((column_sum == 0).all())


@pytest.mark.parametrize("math", ["ieee", "tf32"])
def test_batches(cuda: Any, math: Any) -> None:
    for dtype in ("float32", "bfloat16", "float64"):
        key = "tf32" if math == "tf32" and dtype == "float32" else dtype
        a = cuda.randn(5, 72, 40, device="cuda").to(getattr(cuda, dtype))
        b = cuda.randn(5, 40, 64, device="cuda").to(getattr(cuda, dtype))
        for left, right in [
            (a, b),
            (a, b[:1]),
            (a[::2], b[:3]),
            (a.transpose(1, 2)[:, :, :40], b),
            (a[None], b[:, None]),
        ]:
            truth, theirs = left.double() @ right.double(), product(cuda, left, right, math)
            if dtype == "float64":  # whose truth has an error like ours
                theirs = (left[..., None] * right[..., None, :, :]).sum(-2)
            out = blublas.gemm(left, right, math=math)
            assert out.dtype == a.dtype
            assert_as_good_as(out, theirs, truth, ROUNDOFF[key], f"{dtype} {tuple(left.shape)} {tuple(right.shape)}")


def test_a_batch_of_more_than_one_launch(cuda: Any) -> None:
    a, b = cuda.randn(1500, 4, 8, device="cuda"), cuda.randn(1500, 8, 4, device="cuda")
    bias = cuda.randn(1500, 4, device="cuda")
    out = blublas.gemm(a, b, bias=bias)
    truth = a.double() @ b.double() + bias[:, None].double()
    assert_as_good_as(out, a @ b + bias[:, None], truth, ROUNDOFF["float32"])


def test_operands_of_half_a_gibibyte(cuda: Any) -> None:
    """Offsets beyond 2^31 elements, in operands and result."""
    free, _ = cuda.cuda.mem_get_info()
    if free < 24 * 2**30:
        pytest.skip("needs 24 GiB of device memory")
    m, n, k = 2**20 + 64, 2112, 64
    a, b = cuda.randn(m, k, device="cuda").bfloat16(), cuda.randn(k, n, device="cuda").bfloat16()
    out = cuda.full((m, n), float("nan"), device="cuda", dtype=cuda.bfloat16)
    blublas.gemm(a, b, out)
    for part in (slice(0, 64), slice(m - 64, m)):
        assert_as_good_as(out[part], a[part] @ b, a[part].double() @ b.double(), ROUNDOFF["bfloat16"])
    back = blublas.gemm(out, b, transpose_b=True)
    part = slice(m - 64, m)
    assert_as_good_as(back[part], out[part] @ b.t(), out[part].double() @ b.t().double(), ROUNDOFF["bfloat16"])


def test_tf32_rounds_to_nearest(cuda: Any) -> None:
    """Operands cut off instead of rounded would lose 2^-11 of every product of positive numbers on average."""
    for config, left, right in itertools.product(
        [name for name in CONFIGS if name.startswith("tf32")], ("rows", "columns"), ("rows", "columns")
    ):
        blublas.set_cuda_config(config)
        a, b = matrix(cuda, 384, 2048, "float32", left).abs(), matrix(cuda, 2048, 256, "float32", right).abs()
        truth = a.double() @ b.double()
        error = ((blublas.gemm(a, b, math="tf32").double() - truth) / truth).mean().item()
        assert abs(error) < 2**-13, (config, left, right, error)


def test_special_numbers(cuda: Any) -> None:
    """NaN and infinity come through every kernel, in every place of a tile; nothing leaks from past the edge."""
    for config in CONFIGS:
        dtype, _, math = precision(config)
        blublas.set_cuda_config(config)
        for left, right in itertools.product(("rows", "columns"), ("rows", "columns")):
            a, b = matrix(cuda, 140, 70, dtype, left), matrix(cuda, 70, 136, dtype, right)
            # NaN of all bits set, which rounding by integer addition would turn into 0.
            a[3, 69] = float("nan")
            a.view(cuda.int16 if dtype == "bfloat16" else cuda.int32)[77, 1] = (
                0x7FFF if dtype == "bfloat16" else 2**31 - 1
            )
            a[100, 5], b[5, 131] = float("inf"), 1.0
            b[9, 64] = float("-inf")
            out, theirs = poison(cuda, 140, 136, dtype), a @ b
            blublas.gemm(a, b, out, math=math)
            assert bool((out.isnan() == theirs.isnan()).all()), (config, left, right)
            assert bool((out.isinf() == theirs.isinf()).all()), (config, left, right)


def test_same_bits_every_time(cuda: Any) -> None:
    """Whatever the workspace holds and wherever it is, beside other work on another stream."""
    from cuda_native import call, describe

    other, noise = cuda.cuda.Stream(), cuda.randn(2048, 2048, device="cuda")
    for config in (*CONFIGS, "auto"):
        dtype, _, math = precision(config) if config != "auto" else ("bfloat16", "bfloat16", "ieee")
        blublas.set_cuda_config(f"{config}/5" if config != "auto" else "auto")
        a, b = matrix(cuda, 300, 4096, dtype, "columns"), matrix(cuda, 4096, 264, dtype, "rows")
        results = set()
        for repeat in range(20):
            with cuda.cuda.stream(other):
                noise @ noise
            out, column_sum = poison(cuda, 300, 264, "float32"), cuda.full((264,), float("nan"), device="cuda")
            row_sum = cuda.full((300,), float("nan"), device="cuda")
            args = describe(a, b, out, math=math, column_sum=column_sum, row_sum_a=row_sum)
            call(cuda, args, more=256 * repeat)
            results.add(tuple(x.contiguous().cpu().numpy().tobytes() for x in (out, column_sum, row_sum)))
        assert len(results) == 1, config


def test_streams(cuda: Any) -> None:
    """The work is in the stream that is current in PyTorch, or the one that is named; a graph can hold it."""
    a, b = rows(cuda, 256, 256, "float32"), rows(cuda, 256, 256, "float32")
    expected = blublas.gemm(a, b)
    stream = cuda.cuda.Stream()
    stream.wait_stream(cuda.cuda.current_stream())
    named = blublas.gemm(a, b, stream=stream)
    with cuda.cuda.stream(stream):
        current = blublas.gemm(a, b)
    stream.synchronize()
    assert cuda.equal(named, expected)
    assert cuda.equal(current, expected)

    out, graph = poison(cuda, 256, 256, "float32"), cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        blublas.gemm(a, b, out)
    assert bool(out.isnan().all())
    graph.replay()
    cuda.cuda.synchronize()
    assert cuda.equal(out, expected)


def test_refusals(cuda: Any) -> None:
    from cuda_native import describe, status

    a, b = rows(cuda, 32, 32, "float32"), rows(cuda, 32, 32, "float32")
    with pytest.raises(blublas.InvalidValueError, match="one device"):
        blublas.gemm(a, b.cpu())
    with pytest.raises(blublas.InvalidValueError, match="overlaps a"):
        blublas.gemm(a, b, a)
    with pytest.raises(blublas.InvalidValueError, match="math of 'ieee', 'tf32'"):
        blublas.gemm(a, b, math="fast")  # type: ignore[call-overload]
    with pytest.raises(blublas.InvalidTypeError, match="stream as a CUDA stream"):
        blublas.gemm(a, b, stream="fast")
    with pytest.raises(blublas.InvalidValueError, match="set_cuda_config"):
        blublas.set_cuda_config("fastest")
    out = poison(cuda, 32, 32, "float32")
    args = describe(a, b, out, column_sum=cuda.empty(32, device="cuda"))
    assert status(args) == 1  # no workspace
    args = describe(a, b, out)
    args.device_index = 99
    assert status(args) == 4
    cuda.cuda.synchronize()
    assert bool(out.isnan().all())
