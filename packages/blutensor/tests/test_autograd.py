"""The backward pass: order, accumulation, hooks, modes, higher derivatives, errors, long graphs, nodes of one's own."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import blualloc
import blutensor as bt
from blutensor import nn, optim


def leaf(*values: float, dtype: str = "float64") -> bt.Tensor:
    """A vector that requires a gradient."""
    return bt.asarray(np.array(values, dtype)).requires_grad_()


def grad_of(tensor: bt.Tensor) -> list[float]:
    assert tensor.grad is not None
    values: list[float] = tensor.grad.tolist()
    return values


def test_gradients_accumulate_until_they_are_zeroed() -> None:
    x = leaf(1.0, 2.0)
    assert x.grad is None
    (x * x).sum().backward()
    assert grad_of(x) == [2, 4]
    (x * 3).sum().backward()
    assert grad_of(x) == [5, 7]
    buffer = x.grad
    assert buffer is not None
    optim.base.zero_grad([x])
    (x * 3).sum().backward()
    assert grad_of(x) == [3, 3]
    assert x.grad.storage_id == buffer.storage_id
    optim.base.zero_grad([x])
    assert grad_of(x) == [0, 0]
    optim.base.zero_grad([x], set_to_none=True)
    assert x.grad is None


def test_a_stale_gradient_is_overwritten_not_added() -> None:
    """Also where the buffer holds NaN: 0 * NaN would survive an addition."""
    x = leaf(1.0, 2.0)
    (x * float("nan")).sum().backward()
    optim.base.zero_grad([x])
    x.sum().backward()
    assert grad_of(x) == [1, 1]


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (64, 33)])
def test_gradients_of_layers_accumulate_in_place(shape: tuple[int, int]) -> None:
    """Layers write weight gradients themselves: the sum of two passes is the gradient of the sum."""
    model = nn.Sequential(nn.Linear(shape[1], 6, dtype="float64"), nn.LayerNorm(6, dtype="float64"))
    rng = np.random.default_rng(0)
    a, b = (bt.asarray(rng.standard_normal(shape)) for _ in range(2))
    (model(a).sum() + (model(b) * 2.0).sum()).backward()
    together = [np.array(p.grad.numpy()) for p in model.parameters()]
    model.zero_grad()
    model(a).sum().backward()
    (model(b) * 2.0).sum().backward()
    for p, expected in zip(model.parameters(), together, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_order_is_from_the_youngest_node_to_the_oldest() -> None:
    seen: list[str] = []
    x = leaf(1.0)
    a = x * 2
    b = x * 3
    c = a + b
    for name, tensor in (("a", a), ("b", b), ("c", c), ("x", x)):
        tensor.register_hook(lambda _, name=name: seen.append(name))
    c.backward()
    assert seen == ["c", "b", "a", "x"]


def test_a_diamond_is_passed_once() -> None:
    calls = []
    x = leaf(3.0)
    shared = x * x
    shared.register_hook(lambda g: calls.append(g.item()))
    y = shared
    for _ in range(10):
        y = y + shared
    y.backward()
    assert calls == [11.0]
    assert grad_of(x) == [66.0]


def test_hooks_see_complete_gradients_and_may_replace_them() -> None:
    x = leaf(1.0, 2.0)
    seen = []
    handle = x.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g * 10)
    ((x * 2).sum() + (x * 3).sum()).backward()
    assert seen == [[5, 5]]
    assert grad_of(x) == [50, 50]
    handle.remove()
    handle.remove()
    x.sum().backward()
    assert seen == [[5, 5]]
    assert grad_of(x) == [60, 60]


@pytest.mark.parametrize("of_result", [False, True])
def test_a_hook_may_remove_itself(of_result: bool) -> None:
    x = leaf(1.0)
    target = x * 2 if of_result else x
    calls: list[str] = []
    handles: list[Any] = []

    def once(_: bt.Tensor) -> None:
        calls.append("once")
        handles[0].remove()

    handles.append(target.register_hook(once))
    target.register_hook(lambda _: calls.append("other"))
    root = target * 1
    root.backward(retain_graph=True)
    root.backward()
    assert calls == ["once", "other", "other"]


def test_an_exception_of_a_hook_comes_out_as_it_is() -> None:
    class Own(Exception):
        pass

    def fail(_: bt.Tensor) -> None:
        raise Own("from the hook")

    x = leaf(1.0)
    y = x * 2
    y.register_hook(fail)
    with pytest.raises(Own, match="from the hook"):
        y.backward()
    (x * 5).backward()
    assert grad_of(x) == [5]


def test_hooks_need_a_gradient_and_a_fitting_replacement() -> None:
    with pytest.raises(ValueError, match="requires a gradient"):
        bt.ones(2).register_hook(lambda g: g)
    x = leaf(1.0, 2.0)
    y = x * 1
    y.register_hook(lambda _: bt.ones(3, dtype="float64"))
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        y.sum().backward()


def test_modes() -> None:
    x = leaf(1.0)
    with bt.no_grad():
        assert not bt.is_grad_enabled()
        assert not (x * 2).requires_grad
        with bt.enable_grad():
            assert (x * 2).requires_grad
        assert not bt.is_grad_enabled()
    assert (x * 2).requires_grad

    @bt.no_grad()
    def function() -> bt.Tensor:
        return x * 2

    assert not function().requires_grad
    assert not function().requires_grad
    with pytest.raises(ZeroDivisionError), bt.no_grad():
        raise ZeroDivisionError
    assert bt.is_grad_enabled()


def test_detach_shares_memory_outside_of_the_graph() -> None:
    x = leaf(1.0, 2.0)
    y = (x * 2).detach()
    assert not y.requires_grad
    assert y.is_leaf
    assert x.detach().storage_id == x.storage_id
    (x * y).sum().backward()
    assert grad_of(x) == [2, 4]


def test_requires_grad_flags() -> None:
    x = leaf(1.0)
    y = x * 2
    assert (y.requires_grad, y.is_leaf, y.grad_fn) == (True, False, "multiply")
    with pytest.raises(ValueError, match="detach"):
        y.requires_grad = False
    x.requires_grad = False
    assert not (x * 2).requires_grad
    with pytest.raises(TypeError, match="floating-point"):
        bt.arange(3).requires_grad_()
    assert not (leaf(1.0) > 0).requires_grad


def test_second_derivatives() -> None:
    x = leaf(0.3, -0.7)
    y = (bt.exp(x) * x * x).sum()
    (first,) = bt.grad(y, x, create_graph=True)
    assert first is not None
    (second,) = bt.grad(first.sum(), x, create_graph=True)
    assert second is not None
    (third,) = bt.grad(second.sum(), x)
    assert third is not None
    v = np.array([0.3, -0.7])
    np.testing.assert_allclose(first.detach().numpy(), np.exp(v) * (v * v + 2 * v), rtol=1e-13)
    np.testing.assert_allclose(second.detach().numpy(), np.exp(v) * (v * v + 4 * v + 2), rtol=1e-13)
    np.testing.assert_allclose(third.numpy(), np.exp(v) * (v * v + 6 * v + 6), rtol=1e-13)
    assert x.grad is None


def test_backward_with_create_graph_leaves_differentiable_gradients() -> None:
    x = leaf(2.0)
    (x * x * x).backward(create_graph=True)
    assert x.grad is not None
    (second,) = bt.grad(x.grad, x)
    assert second is not None
    assert second.tolist() == [12.0]
    x.grad = None  # the leaf and its gradient hold each other
    del second
    gc.collect()
    assert bt.graph_stats()["live_nodes"] == 0


def test_the_second_derivative_of_a_network() -> None:
    """A penalty on the gradient (as in Gulrajani et al., 2017): every operator of the network twice."""
    rng = np.random.default_rng(0)
    w1, w2 = (bt.asarray(rng.standard_normal(s)).requires_grad_() for s in ((4, 3), (1, 4)))
    x = bt.asarray(rng.standard_normal((2, 3))).requires_grad_()

    def penalty(x: bt.Tensor, w1: bt.Tensor, w2: bt.Tensor) -> bt.Tensor:
        y = nn.functional.linear(bt.tanh(nn.functional.linear(x, w1)), w2).sum()
        (gradient,) = bt.grad(y, x, create_graph=True)
        assert gradient is not None
        return (gradient * gradient).sum()

    inputs = [x, w1, w2]
    gradients = bt.grad(penalty(*inputs), inputs)
    for tensor, gradient in zip(inputs, gradients, strict=True):
        assert gradient is not None
        memory = tensor.detach().numpy()
        for index in np.ndindex(*tensor.shape):
            before = memory[index]
            memory[index] = before + 1e-6
            above = penalty(*inputs).item()
            memory[index] = before - 1e-6
            below = penalty(*inputs).item()
            memory[index] = before
            assert gradient.numpy()[index] == pytest.approx((above - below) / 2e-6, rel=1e-5, abs=1e-7)


def test_graphs_are_freed_by_backward_unless_retained() -> None:
    x = leaf(2.0)
    y = bt.exp(x * x)
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(bt.AutogradError, match="retain_graph=True"):
        y.backward()
    assert grad_of(x) == pytest.approx([8 * np.exp(4.0)])


def test_writing_to_a_saved_tensor_names_both_operators() -> None:
    x = leaf(1.0, 2.0)
    factor = bt.asarray(np.array([3.0, 4.0]))
    y = (x * factor).sum()
    factor.add_(1.0)
    with pytest.raises(bt.AutogradError, match=r"'multiply' saved its input 1 .* 'add_' wrote to it in place"):
        y.backward()
    z = bt.exp(x)
    w = z.sum()
    with bt.no_grad():
        z.fill_(0.0)
    with pytest.raises(bt.AutogradError, match=r"'exp' saved its output 0 .* 'fill_'"):
        w.backward()
    view = bt.zeros(4, dtype="float64")
    y = (x * view[:2]).sum()
    view[3] = 1.0  # the same memory, other elements: versions count whole storages
    with pytest.raises(bt.AutogradError, match="'fill_'"):
        y.backward()


def test_writing_in_place_to_the_graph() -> None:
    x = leaf(1.0, 2.0)
    for write in (lambda t: t.fill_(0.0), lambda t: t.zero_(), lambda t: t.add_(bt.ones(2, dtype="float64"))):
        with pytest.raises(bt.AutogradError, match="leaf that requires a gradient"):
            write(x)
        y = x * 2
        view = y[:1]
        with pytest.raises(bt.AutogradError, match=r"result of 'multiply' .* shares its memory"):
            write(y)
        assert view.tolist() == [2]
    with bt.no_grad():
        x.fill_(5.0)
    assert x.tolist() == [5, 5]


def test_a_gradient_is_not_lost_in_a_write() -> None:
    """copy_ and add_ are not recorded, so a source that requires a gradient is an error."""
    x, buffer = leaf(1.0, 2.0), bt.zeros(2, dtype="float64")
    for write in (lambda: buffer.copy_(x * 2), lambda: buffer.add_(x), lambda: buffer.__setitem__(0, x[0])):
        with pytest.raises(bt.AutogradError, match=r"not recorded for backward.*detach"):
            write()
    assert buffer.tolist() == [0, 0]
    buffer.copy_((x * 2).detach())
    with bt.no_grad():
        buffer.add_(x)
    assert buffer.tolist() == [3, 6]


def test_wrong_roots_and_gradients() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(ValueError, match="does not require a gradient"):
        bt.ones(()).backward()
    with pytest.raises(ValueError, match="only a root of one element"):
        (x * 2).backward()
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        (x * 2).backward(bt.ones(3, dtype="float64"))
    with pytest.raises(TypeError, match="dtype float64, got float32"):
        (x * 2).backward(bt.ones(2))
    with pytest.raises(ValueError, match="allow_unused"):
        bt.grad(x.sum(), leaf(1.0))
    assert bt.grad(x.sum(), leaf(1.0), allow_unused=True) == [None]
    with pytest.raises(ValueError, match="input 0 does not"):
        bt.grad(x.sum(), bt.ones(2))
    with pytest.raises(ValueError, match="1 gradients"):
        bt.grad(x.sum(), x, [None, None])
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        x.grad = bt.ones(3, dtype="float64")
    with pytest.raises(TypeError, match="dtype float64"):
        x.grad = bt.ones(2)


def test_grad_of_intermediate_results_and_several_roots() -> None:
    x = leaf(1.0, 2.0)
    y = x * x
    z = y * 3
    gy, gx = bt.grad([z.sum(), y.sum()], [y, x])
    assert gy is not None
    assert gx is not None
    assert gy.tolist() == [4, 4]
    assert gx.tolist() == [8, 16]
    bt.backward([(x * 2).sum(), (x * 3).sum()])
    assert grad_of(x) == [5, 5]
    same, again = bt.grad(x.sum(), [x, x])
    assert same is not None
    assert again is not None
    assert same.tolist() == again.tolist() == [1, 1]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_chain_of_100000_nodes_does_not_overflow_the_stack(passes: int) -> None:
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + x
    for i in range(passes):
        y.backward(retain_graph=i + 1 < passes)
    assert grad_of(x) == [100_001.0 * passes]
    del y
    gc.collect()
    assert bt.graph_stats()["live_nodes"] == 0


def test_a_chain_is_dropped_without_backward() -> None:
    y = leaf(1.0)
    for _ in range(100_000):
        y = y * y  # saves its inputs
    assert bt.graph_stats()["live_nodes"] == 100_000
    del y
    gc.collect()
    assert bt.graph_stats()["live_nodes"] == 0


def test_the_graph_arena_is_used_again() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)])
    x = bt.ones((2, 4))

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    for _ in range(3):
        step()
    gc.collect()
    before = bt.graph_stats()
    live = blualloc.stats().live_bytes
    for _ in range(200):
        step()
    after = bt.graph_stats()
    assert after["arena_bytes"] == before["arena_bytes"]
    assert after["recycled_chunks"] > before["recycled_chunks"]
    assert after["live_nodes"] == 0
    assert blualloc.stats().live_bytes == live


def test_custom_gradient() -> None:
    x = leaf(1.0, 2.0)
    with bt.no_grad():
        y = x * x
    seen: list[Any] = []

    def gradient(grads: list[bt.Tensor | None]) -> list[bt.Tensor | None]:
        seen.append(grads[0])
        assert grads[0] is not None
        return [grads[0] * 100]

    bt.custom_gradient("mine", [x], [y], gradient)
    assert y.grad_fn == "mine"
    (y * 2).sum().backward()
    assert seen[0].tolist() == [2, 2]
    assert grad_of(x) == [200, 200]
    with pytest.raises(bt.AutogradError, match=r"'mine' was already used"):
        y.sum().backward()


def test_custom_gradient_misuse() -> None:
    x = leaf(1.0)
    with pytest.raises(ValueError, match="no_grad"):
        bt.custom_gradient("mine", [x], [x * 2], lambda g: g)
    for gradient, error, message in (
        (lambda g: [*g, *g], ValueError, "expected 1 gradients"),
        (lambda g: 1 / 0, ZeroDivisionError, "division"),
        (lambda g: [bt.ones(7, dtype="float64")], RuntimeError, r"\(7,\)"),
    ):
        y = x.detach() * 2
        bt.custom_gradient("mine", [x], [y], gradient)
        with pytest.raises(error, match=message):
            y.sum().backward()


def test_callbacks_are_released() -> None:
    from blutensor.autograd import _callbacks

    gc.collect()
    before = len(_callbacks)
    x = leaf(1.0)
    for _ in range(5):
        y = x.detach() * 2
        bt.custom_gradient("mine", [x], [y], lambda g: g)
        z = y * 1
        z.register_hook(lambda g: g)
        z.backward()
        y = z = x
    gc.collect()
    assert len(_callbacks) == before


def test_gradcheck_finds_a_wrong_gradient() -> None:
    def wrong(x: bt.Tensor) -> bt.Tensor:
        y = x.detach() * x.detach()
        bt.custom_gradient("wrong", [x], [y], lambda g: [g[0] * x.detach()])
        return y

    bt.gradcheck(lambda x: x * x, [leaf(1.0, 2.0)])
    with pytest.raises(bt.AutogradError, match=r"\[gradcheck\] input 0 element \(0,\)"):
        bt.gradcheck(wrong, [leaf(1.0, 2.0)])
    with pytest.raises(TypeError, match="float64"):
        bt.gradcheck(lambda x: x * x, [leaf(1.0, dtype="float32")])
