"""einops on tensors: rearrange, reduce, repeat, einsum, pack; found by itself in any order of imports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import blutensor as bt

einops = pytest.importorskip("einops", reason="einops is not installed: it is not tried")


def numbered(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("a b c -> c b a", {}),
        ("a b c -> (a b) c", {}),
        ("a (b1 b2) c -> b2 (a c) b1", {"b1": 3}),
        ("a b ... -> ... b a", {}),
        ("a b c -> a b c 1", {}),
        ("a b c -> (c a b)", {}),
    ],
)
def test_rearrange(pattern: str, sizes: dict[str, int]) -> None:
    x = numbered(2, 6, 4)
    got = einops.rearrange(bt.asarray(x), pattern, **sizes)
    assert isinstance(got, bt.Tensor)
    np.testing.assert_array_equal(got.numpy(), einops.rearrange(x, pattern, **sizes))


@pytest.mark.parametrize("operation", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize(
    ("pattern", "sizes"), [("a b c -> b", {}), ("a (b k) c -> a b 1 c", {"k": 2}), ("a b c -> ", {})]
)
def test_reduce(operation: str, pattern: str, sizes: dict[str, int]) -> None:
    x = np.sin(numbered(2, 6, 4))
    got = einops.reduce(bt.asarray(x), pattern, operation, **sizes)
    np.testing.assert_allclose(got.numpy(), einops.reduce(x, pattern, operation, **sizes), rtol=1e-14)


def test_repeat_copies_nothing_that_strides_can_say() -> None:
    x = numbered(2, 3)
    for pattern in ("a b -> a r b", "a b -> (a r) b", "a b -> r a (s b)"):
        sizes = {"r": 2} | ({"s": 3} if "s" in pattern else {})
        np.testing.assert_array_equal(
            einops.repeat(bt.asarray(x), pattern, **sizes).numpy(), einops.repeat(x, pattern, **sizes)
        )
    tensor = bt.asarray(x)
    assert einops.repeat(tensor, "a b -> a r b", r=5).storage_id == tensor.storage_id


def test_einsum_pack_and_lists() -> None:
    a, b = numbered(2, 3, 4), numbered(2, 4, 5)
    got = einops.einsum(bt.asarray(a), bt.asarray(b), "batch i k, batch k j -> batch i j")
    np.testing.assert_array_equal(got.numpy(), a @ b)
    packed, shapes = einops.pack([bt.asarray(a), bt.asarray(a[:, 0])], "b * c")
    assert packed.shape == (2, 4, 4)
    assert [p.shape for p in einops.unpack(packed, shapes, "b * c")] == [(2, 3, 4), (2, 4)]
    stacked = einops.rearrange([bt.asarray(a), bt.asarray(a)], "n b i k -> b (n i) k")
    np.testing.assert_array_equal(stacked.numpy(), np.concatenate([a, a], 1))
    assert einops.parse_shape(bt.asarray(a), "x y _") == {"x": 2, "y": 3}
    np.testing.assert_array_equal(einops.asnumpy(bt.asarray(a)), a)


def test_gradients_and_captures() -> None:
    x = bt.asarray(np.random.default_rng(1).standard_normal((2, 6, 4))).requires_grad_()
    bt.gradcheck(lambda t: einops.reduce(t * t, "a (b k) c -> c b", "mean", k=2), [x])

    def step(t: bt.Tensor) -> bt.Tensor:
        return einops.rearrange(t, "a (b k) c -> (a b) (k c)", k=3) * 2.0  # type: ignore[no-any-return]

    captured = bt.capture(step)
    for _ in range(4):
        np.testing.assert_array_equal(captured(x.detach()).numpy(), step(x.detach()).numpy())


def test_mistakes_are_told_by_einops() -> None:
    with pytest.raises(einops.EinopsError, match="Shape mismatch"):
        einops.rearrange(bt.zeros((2, 3)), "(a b) c -> a b c", a=4)


@pytest.mark.parametrize(
    "order",
    [
        "import einops, blutensor",
        "import blutensor, einops",
        "import blutensor\nfrom einops import rearrange\nimport einops",
    ],
)
def test_any_order_of_imports(order: str) -> None:
    """A process of its own: nothing is to be called, and einops is not imported by blutensor."""
    code = f"""
import sys
{order}
left = [f for f in sys.meta_path if "einops" in type(f).__module__]
print(einops.rearrange(blutensor.zeros((2, 3)), "a b -> b a").shape, left)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "(3, 2) []", result.stderr
    code = "import sys, blutensor; print('einops' in sys.modules)"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert alone.stdout.strip() == "False"
