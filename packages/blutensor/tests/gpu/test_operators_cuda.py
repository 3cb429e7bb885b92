"""Every operator of the table on the GPU, forward and backward, against the CPU's operator.

Copies, comparisons, integers, random bits and float32's elementwise functions have the CPU's bits. Everything else is
compared with the CPU in float64: at most twice the error of PyTorch on the GPU at the same dtype (of the CPU's
operator where PyTorch has none), plus roundings. Results are poisoned before, and computed twice with the same bits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from operator_cases import ELSEWHERE, EVERY, FLOATS, PLANS, Array, Case

import blutensor as bt
from blutensor import _operators
from blutensor._table import OPERATORS
from blutensor.nn import functional as F

# Unit roundoff of the result, and of what sums are accumulated in.
ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-9, "float16": 2.0**-12}
# As a factor of CUDA's float64 functions: their errors are below 4 units, the CPU's below 1.
FUNCTION_UNITS = {"float64": 8.0}

LAYOUTS = ("contiguous", "offset", "transposed", "stepped", "reversed")


def placed(values: Array, dtype: str, device: str, layout: str = "contiguous") -> bt.Tensor:
    """The values as a tensor of this dtype on a device, in memory in one of several ways."""
    values = np.asarray(values)
    if layout == "contiguous" or values.ndim == 0 or values.size == 0:
        return bt.asarray(np.array(values, order="C"), dtype=dtype).to(device)
    if layout == "offset":
        flat = np.concatenate([values.ravel()[:1], values.ravel()])
        return bt.asarray(flat, dtype=dtype).to(device)[1:].reshape(values.shape)
    if layout == "stepped":
        return bt.asarray(np.repeat(values, 2, axis=-1), dtype=dtype).to(device)[..., ::2]
    if layout == "reversed":
        return bt.asarray(np.ascontiguousarray(values[..., ::-1]), dtype=dtype).to(device)[..., ::-1]
    order = (*range(values.ndim - 2), values.ndim - 1, values.ndim - 2) if values.ndim > 1 else (0,)
    return bt.asarray(np.ascontiguousarray(values.transpose(order)), dtype=dtype).to(device).permute_dims(*order)


def dtype_of(values: Array, dtype: str) -> str:
    """Floats take the dtype of the test, ids and conditions keep theirs."""
    return dtype if values.dtype == np.float64 else values.dtype.name


def as_numpy(tensor: bt.Tensor) -> Array:
    """Values on the host; 16-bit floats as float64."""
    host = tensor.detach().cpu()
    return host.astype("float64").numpy() if host.dtype.name in ("bfloat16", "float16") else np.array(host.numpy())


def function_of(name: str) -> Callable[..., Any]:
    """The public function: nn.functional's where the operator has one there, with tensors alone."""
    if name == "layer_norm":
        return lambda x, weight, bias: _operators.layer_norm(x, weight, bias)[0]
    if name == "rms_norm":
        return lambda x, weight: _operators.rms_norm(x, weight)[0]
    return getattr(F, name, None) or getattr(_operators, name)


def listed(result: Any) -> list[Any]:
    return [result] if not isinstance(result, (tuple, list)) else list(result)


def poison(sizes: list[int]) -> None:
    """Leaves NaN where the next results are likely to lie."""
    blocks = [bt.full((max(1, (n + 3) // 4),), float("nan"), device="cuda") for n in sizes for _ in range(2)]
    del blocks


def compute(name: str, case: Case, dtype: str, device: str, layout: str, rounded: list[Array | None]) -> list[Array]:
    """Outputs, then the gradients of the first output after two backwards, which add up."""
    tensors = [None if v is None else placed(v, dtype_of(v, dtype), device, layout) for v in rounded]
    differentiable = OPERATORS[name].differentiable and dtype in FLOATS
    leaves = []
    for i, t in enumerate(tensors):
        if differentiable and t is not None and t.dtype.is_floating:
            tensors[i] = t.detach().requires_grad_()
            leaves.append(tensors[i])
    function = function_of(name)
    outputs = listed(function(tensors, **case.attrs) if case.is_list else function(*tensors, **case.attrs))
    results = [as_numpy(o) for o in outputs]
    if leaves and outputs[0].dtype.is_floating:
        rng = np.random.default_rng(5)
        upstream = rng.standard_normal(outputs[0].shape).astype(np.float32)
        g = bt.asarray(upstream, dtype=outputs[0].dtype.name).to(device)
        outputs[0].backward(g, retain_graph=True)
        outputs[0].backward(g)
        results += [as_numpy(leaf.grad) for leaf in leaves if leaf.grad is not None]
    return results


def peer_results(name: str, case: Case, dtype: str, rounded: list[Array | None]) -> list[Array] | None:
    """PyTorch's first output and gradients on the GPU."""
    peer = PLANS[name].peer
    if peer is None:
        return None
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")
    tensors, leaves = [], []
    for v in rounded:
        t = None if v is None else torch.tensor(v, device="cuda")
        if t is not None and v is not None and v.dtype == np.float64:
            t = t.to(getattr(torch, dtype)).requires_grad_()
            leaves.append(t)
        tensors.append(t)
    output = peer(torch, *tensors, **case.attrs)
    results = [output.detach().double().cpu().numpy()]
    rng = np.random.default_rng(5)
    upstream = rng.standard_normal(output.shape).astype(np.float32)
    g = torch.tensor(upstream, device="cuda").to(output.dtype)
    for leaf, grad in zip(leaves, torch.autograd.grad(output, leaves, g, allow_unused=True), strict=True):
        results.append(2 * (torch.zeros_like(leaf) if grad is None else grad).double().cpu().numpy())
    return results


def same_bits(a: Array, b: Array) -> bool:
    """Equal, zeros of the same sign, NaN in the same places."""
    if a.shape != b.shape or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return False
    return a.dtype.kind != "f" or np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


def complaint(got: Array, cpu: Array, exact: Array, peer: Array | None, dtype: str, terms: int) -> str | None:
    """Why the error is too large; None when it is not."""
    if got.shape != exact.shape:
        return f"shape {got.shape}, expected {exact.shape}"
    if got.size == 0:
        return None
    if not np.array_equal(np.isfinite(got), np.isfinite(exact)):
        return f"{np.sum(~np.isfinite(got))} elements are not finite, {np.sum(~np.isfinite(exact))} expected"
    error = np.abs(got - exact)
    other = cpu if peer is None else peer
    allowed = 2 * np.abs(other.astype(np.float64) - exact).max()
    rounding = ROUNDOFF[dtype] * np.abs(exact)
    # Rounding errors of a sum of n terms walk at random: sqrt(n) units of the size of its partial sums, which are taken
    # to be up to four times the largest result. The CPU, summing in float64, does not show them.
    unit = ROUNDOFF["float64" if dtype == "float64" else "float32"]
    chain = 8 * np.sqrt(terms) * unit * np.abs(exact).max() + FUNCTION_UNITS.get(dtype, 0.0) * rounding.max()
    bound = allowed + 2 * rounding.max() + chain
    if error.max() <= bound:
        return None
    at = np.unravel_index(error.argmax(), error.shape)
    found = f"{got[at]} for {exact[at]} at {tuple(map(int, at))}"
    return f"error {error.max():.3g}, allowed {bound:.3g} (theirs {allowed / 2:.3g}): {found}"


def representable(v: Array | None, dtype: str) -> Array | None:
    """The values that a dtype can hold nearest to these; ids and conditions as they are."""
    if v is None or v.dtype != np.float64:
        return v
    if dtype in FLOATS:
        return placed(v, dtype, "cpu").astype("float64").numpy()
    whole = np.round(v * (20 if dtype != "bool" else 1))
    return np.abs(whole) if dtype.startswith("u") or dtype == "bool" else whole


def check(name: str, case: Case, dtype: str, layout: str) -> Iterator[str]:
    """What is wrong with one case."""
    shapes = [None if v is None else (*v.shape,) for v in case.inputs]
    label = f"{name} {dtype} {layout} {shapes} {case.attrs}"
    rounded = [representable(v, dtype) for v in case.inputs]
    cpu = compute(name, case, dtype, "cpu", layout, rounded)
    poison([r.nbytes for r in cpu])
    got = compute(name, case, dtype, "cuda", layout, rounded)
    again = compute(name, case, dtype, "cuda", layout, rounded)
    if len(got) != len(cpu):
        yield f"{label}: {len(got)} results, the CPU has {len(cpu)}"
        return
    exact = compute(name, case, "float64", "cpu", "contiguous", rounded) if dtype in FLOATS else cpu
    peers = peer_results(name, case, dtype, rounded) if dtype in FLOATS else None
    outputs = len(cpu) - (len(peers) - 1 if peers else 0)
    for i, (a, b, c, e) in enumerate(zip(got, again, cpu, exact, strict=True)):
        if a.tobytes() != b.tobytes():
            yield f"{label}: result {i} has other bits when computed again"
        if (dtype in PLANS[name].exact and (i == 0 or dtype not in FLOATS)) or a.dtype.kind != "f":
            if not same_bits(a, c):
                yield f"{label}: result {i} is not the CPU's: {a.ravel()[:4]} and {c.ravel()[:4]}"
            continue
        peer = None
        if peers and (i == 0 or i >= outputs):
            peer = peers[0 if i == 0 else 1 + i - outputs].reshape(e.shape)
        wrong = complaint(a, c, e, peer, dtype, case.terms)
        if wrong:
            yield f"{label}: result {i}: {wrong}"


@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(n, d, id=f"{n}-{d}") for n, plan in PLANS.items() for d in plan.dtypes]
)
def test_operator(name: str, dtype: str) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    wrong: list[str] = []
    for case in PLANS[name].cases(rng):
        for layout in LAYOUTS if case.strided else LAYOUTS[:1]:
            try:
                wrong += check(name, case, dtype, layout)
            except NotImplementedError as error:
                pytest.fail(str(error))
            except Exception as error:
                wrong.append(f"{name} {dtype} {layout} {case.attrs}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:12])


def sanitized_dtypes(name: str) -> tuple[str, ...]:
    """What training computes in, or an operator's first dtype where it takes neither."""
    dtypes = PLANS[name].dtypes
    return tuple(dtype for dtype in ("float32", "bfloat16") if dtype in dtypes) or dtypes[:1]


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in PLANS for d in sanitized_dtypes(n)])
def test_sanitized(name: str, dtype: str) -> None:
    """Small cases without a peer, for compute-sanitizer; the same bits twice."""
    cases = [
        c for c in PLANS[name].cases(np.random.default_rng(1)) if sum(v.size for v in c.inputs if v is not None) < 9000
    ]
    for case in cases[1:6]:
        values = [representable(v, dtype) for v in case.inputs]
        first, second = (compute(name, case, dtype, "cuda", "contiguous", values) for _ in range(2))
        assert [a.tobytes() for a in first] == [b.tobytes() for b in second]


def test_all_operators_are_tested() -> None:
    """A new operator needs a line here."""
    known = {n for n, s in OPERATORS.items() if not s.view and s.category != "registered" and "." not in n}
    assert known == set(PLANS) | set(ELSEWHERE)


# ---------------------------------------------------------------- what the table of cases cannot say


@pytest.mark.parametrize("dtype", EVERY)
def test_creation(dtype: str) -> None:
    for shape in ((), (0,), (1,), (257,), (33, 65), (100003,)):
        for value in (0, 1, 100):
            assert same_bits(
                as_numpy(bt.full(shape, value, dtype=dtype, device="cuda")),
                as_numpy(bt.full(shape, value, dtype=dtype)),
            )
    if dtype != "bool":
        for start, stop, step in ((0, 1000, 1), (5, -700, -3), (0, 0, 1), (3, 100003, 2), (0, 120, 7)):
            if "int" in dtype and not all(np.can_cast(np.min_scalar_type(n), dtype) for n in (start, stop)):
                continue  # refused
            a = bt.arange(start, stop, step, dtype=dtype, device="cuda")
            assert same_bits(as_numpy(a), as_numpy(bt.arange(start, stop, step, dtype=dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_bits(dtype: str) -> None:
    """The numbers of the CPU: bit for bit, but for the logarithm and sine of float64."""

    def draw(device: str) -> list[Array]:
        bt.manual_seed(99)
        results = []
        for n in (1, 3, 257, 100003):
            x = bt.full((n,), 1.25, dtype=dtype, device=device).requires_grad_()
            y = bt.dropout(x, p=0.3)
            y.backward(bt.full((n,), 3.0, dtype=dtype, device=device))
            results += [as_numpy(y), as_numpy(x.grad)]
            results.append(as_numpy(bt.random.uniform((n,), -1, 2, dtype=dtype, device=device)))
            results.append(as_numpy(bt.random.normal((n,), 0.5, 0.02, dtype=dtype, device=device)))
            bt.default_generator.advance()
        return results

    for i, (a, b) in enumerate(zip(draw("cuda"), draw("cpu"), strict=True)):
        if dtype == "float64" and i % 4 == 3:
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)
        else:
            assert same_bits(a, b), i


@pytest.mark.parametrize("dtype", EVERY)
def test_writes(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for shape in ((1,), (33,), (4, 257), (3, 5, 64)):
        for layout in LAYOUTS:
            values, source = np.abs(10 * rng.standard_normal(shape)), np.abs(10 * rng.standard_normal(shape[-1:]))
            results = []
            for device in ("cuda", "cpu"):
                x = placed(np.round(values), dtype, device, layout)
                y = placed(np.round(source), dtype, device)
                after = []
                if dtype != "bool":
                    for write in (x.add_, x.mul_, x.sub_):
                        write(y)
                        after.append(as_numpy(x))
                if dtype in FLOATS:
                    x.div_(3.0)
                after.append(as_numpy(x))
                x.copy_(y)
                after.append(as_numpy(x))
                x.fill_(3)
                after.append(as_numpy(x))
                results.append(after)
            for a, b in zip(*results, strict=True):
                assert same_bits(a, b), (shape, layout)
    write = _operators.index_write_
    for axis, position in ((0, 0), (1, 6), (2, 2)):
        results = []
        for device in ("cuda", "cpu"):
            cache = placed(np.zeros((8, 9, 16)), dtype, device)
            rows = placed(np.ones([3 if a == axis else n for a, n in enumerate((8, 9, 16))]), dtype, device)
            write(cache, rows, placed(np.array(position), "int64", device), axis=axis)
            results.append(as_numpy(cache))
        assert same_bits(*results)


def test_a_position_out_of_range_is_told() -> None:
    cache, rows = bt.zeros((8, 4), device="cuda"), bt.ones((2, 4), device="cuda")
    _operators.index_write_(cache, rows, bt.asarray(7).to("cuda"), axis=0)
    with pytest.raises(bt.IndexOutOfRangeError, match=r"\[index_write_\] expected a position from 0 to 6, got 7"):
        cache.cpu()


@pytest.mark.parametrize("dtype", FLOATS)
def test_slice_gradient(dtype: str) -> None:
    results = []
    for device in ("cuda", "cpu"):
        x = placed(np.random.default_rng(2).standard_normal((9, 40)), dtype, device).requires_grad_()
        (x[1:8:2, ::-3] * 3).backward(bt.ones((4, 14), dtype=dtype, device=device))
        assert x.grad is not None
        results.append(as_numpy(x.grad))
    assert same_bits(*results)


def optimizers() -> Iterator[tuple[str, Callable[[list[bt.Tensor]], Any]]]:
    yield "adamw", lambda p: bt.optim.AdamW(p, lr=1e-2, weight_decay=0.1)
    yield "sgd", lambda p: bt.optim.SGD(p, lr=1e-2)
    yield "momentum", lambda p: bt.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize(("name", "make"), list(optimizers()), ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimizers(name: str, make: Callable[[list[bt.Tensor]], Any], dtype: str) -> None:
    """Five clipped steps of parameters of many sizes."""
    shapes = [(), (1,), (31,), (33, 65), (257, 256), (70000,), (0,)]
    results = []
    for device, kind in (("cuda", dtype), ("cpu", dtype), ("cpu", "float64")):
        rng = np.random.default_rng(3)
        params = [placed(rng.standard_normal(s), kind, device).requires_grad_() for s in shapes]
        optimizer = make(params)
        norms = []
        for _ in range(5):
            for p in params:
                p.grad = placed(rng.standard_normal(p.shape), kind, device)
            norm = bt.optim.grad_norm(params)
            scale, skip = bt.optim.clip_scale(norm, 1.0)
            optimizer.step(grad_scale=scale, skip=skip)
            norms.append(as_numpy(norm))
        results.append([as_numpy(p) for p in params] + [np.array(norms)])
    for a, b, exact in zip(*results, strict=True):
        wrong = complaint(a, b, exact, None, dtype, 140000)
        assert wrong is None, (name, wrong)
