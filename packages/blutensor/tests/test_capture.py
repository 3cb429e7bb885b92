"""Capture: the same bits as eager code, errors that name the operator, bounded programs, planned memory."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from models import batches, bits, build, same_bits, train_step, weights

import blutensor as bt
import blutensor.nn.functional as F
from blutensor import nn, optim

KINDS = ["mlp", "rnn", "transformer"]
STEPS = 6


def eager_run(kind: str) -> tuple[list[bytes], dict[str, Any]]:
    model, optimizer = build(kind)
    step = train_step(model, optimizer)
    losses = [bits(step(*batch)) for batch in batches(kind, STEPS)]
    return losses, weights(model) | {n: np.array(t.numpy()) for n, t in optimizer.state_dict().items()}


def captured_run(kind: str, replay: str) -> tuple[list[bytes], dict[str, Any]]:
    model, optimizer = build(kind)
    step = bt.capture(train_step(model, optimizer), name=kind)
    losses = []
    for batch in batches(kind, STEPS):
        if step.state == "replaying" and replay == "operator":
            for slot, value in zip(step.program.slots, batch, strict=True):
                slot.copy_(value)
            step.program.replay("operator")
            losses.append(bits(step.program.outputs[0]))
        else:
            losses.append(bits(step(*batch)))
    return losses, weights(model) | {n: np.array(t.numpy()) for n, t in optimizer.state_dict().items()}


@pytest.mark.parametrize("replay", ["native", "operator"])
@pytest.mark.parametrize("kind", KINDS)
def test_replays_have_the_bits_of_eager_code(kind: str, replay: str) -> None:
    """Losses, weights, moments, with dropout: what was run eagerly while recording, and what was replayed."""
    losses, state = captured_run(kind, replay)
    expected_losses, expected_state = eager_run(kind)
    assert losses == expected_losses
    assert len(set(losses)) == STEPS
    same_bits(state, expected_state)


@pytest.mark.parametrize("kind", KINDS)
def test_primitives_compute_the_same_within_rounding(kind: str) -> None:
    model, optimizer = build(kind)
    step = bt.capture(train_step(model, optimizer), level="primitive")
    losses = [step(*batch).item() for batch in batches(kind, STEPS)]
    expected = [np.frombuffer(loss, np.float32)[0] for loss in eager_run(kind)[0]]
    # Other orders of summation: rounding of 6e-8, which Adam amplifies where sqrt(v) is near 0, over six steps.
    np.testing.assert_allclose(losses, expected, rtol=2e-4)


def test_states_and_calls() -> None:
    calls = []

    def function(x: bt.Tensor) -> bt.Tensor:
        calls.append(1)
        return x * 2

    f = bt.capture(function, name="twice")
    with pytest.raises(bt.CaptureError, match="before the second call"):
        _ = f.program
    states = [f.state]
    for i in range(4):
        assert f(bt.asarray([float(i)])).tolist() == [2.0 * i]
        states.append(f.state)
    assert states == ["new", "recorded once", "replaying", "replaying", "replaying"]
    assert len(calls) == 2
    assert f(bt.asarray([1.0])).storage_id == f(bt.asarray([5.0])).storage_id


def test_results_are_nested_as_the_function_returned_them() -> None:
    class Pair(NamedTuple):
        a: bt.Tensor
        b: Any

    def function(x: bt.Tensor) -> Any:
        return {"list": [x + 1, (x + 2,)], "none": None, "pair": Pair(x + 3, x)}

    f = bt.capture(function)
    for i in range(4):
        result = f(bt.asarray(float(i)))
        assert result["list"][0].item() == i + 1
        assert isinstance(result["list"][1], tuple)
        assert result["list"][1][0].item() == i + 2
        assert result["none"] is None
        assert result["pair"].a.item() == i + 3
        assert result["pair"].b.item() == i
    with pytest.raises(bt.CaptureError, match="got float"):
        bt.capture(lambda x: 1.5)(bt.ones(()))


def test_arguments_may_have_any_strides_and_come_from_other_programs() -> None:
    f = bt.capture(lambda x: x * 2)
    g = bt.capture(lambda x: x + 1)
    x = bt.asarray(np.arange(6.0).reshape(2, 3))
    for _ in range(3):
        for view in (x, x.permute_dims(1, 0).contiguous().permute_dims(1, 0), bt.asarray(x.numpy()[::-1])[::-1]):
            assert g(f(view)).tolist() == (x.numpy() * 2 + 1).tolist()


def test_a_changed_host_scalar_names_the_operator_that_uses_it() -> None:
    scale = [1.0]
    f = bt.capture(lambda x: bt.exp(x * scale[0]), name="scaled")
    f(bt.ones(3))
    scale[0] = 2.0
    with pytest.raises(
        bt.CaptureError, match=r"'multiply'.* value = 1 in the first recording and 2 in the second.*0-d tensor"
    ):
        f(bt.ones(3))
    f(bt.ones(3))
    assert f(bt.ones(3)).tolist() == pytest.approx([np.exp(2.0)] * 3)
    assert f.state == "replaying"


def test_a_changed_attribute_names_its_operator() -> None:
    axis = [0]
    f = bt.capture(lambda x: F.softmax(x, axis[0]))
    f(bt.ones((2, 3)))
    axis[0] = 1
    with pytest.raises(bt.CaptureError, match=r"'softmax' \(call 0\) has axis = 0 .* 1 in the second"):
        f(bt.ones((2, 3)))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ((lambda x: bt.exp(x), lambda x: bt.tanh(x)), "'exp' .* became 'tanh'"),
        ((lambda x: x + x, lambda x: bt.exp(x + x)), "one of the two recordings only"),
        ((lambda x: x * x, lambda x: x * bt.ones(3)), "became 'full'|reads"),
    ],
)
def test_functions_that_do_something_else_the_second_time(functions: Any, message: str) -> None:
    turn = iter(functions)
    f = bt.capture(lambda x: next(turn)(x))
    f(bt.ones(3))
    with pytest.raises(bt.CaptureError, match=message):
        f(bt.ones(3))


def test_another_tensor_in_the_second_recording_is_named() -> None:
    constants = iter([bt.ones(3), bt.zeros(3)])
    f = bt.capture(lambda x: x + next(constants))
    f(bt.ones(3))
    with pytest.raises(bt.CaptureError, match=r"'add' .* reads another tensor \(input 1.*must be arguments"):
        f(bt.ones(3))


def test_dropout_without_advance_says_what_is_missing() -> None:
    f = bt.capture(lambda x: F.dropout(x, 0.5))
    f(bt.ones(10))
    with pytest.raises(bt.CaptureError, match=r"'dropout' .* op_id.*default_generator.advance\(\)"):
        f(bt.ones(10))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(), lambda x: x.numpy(), lambda x: x.tolist(), lambda x: float(x), lambda x: bool(x > 0),
        lambda x: np.asarray(x), lambda x: np.from_dlpack(x), lambda x: x.copy_(np.ones(())), lambda x: bt.asarray(1.0),
    ],
)  # fmt: skip
def test_values_cannot_be_read_or_written_on_the_host(read: Any) -> None:
    def function(x: bt.Tensor) -> bt.Tensor:
        y = x + 1
        read(y)
        return y

    with pytest.raises(bt.CaptureError, match="while a function is captured"):
        bt.capture(function)(bt.ones(()))
    assert "captured" in repr_in_capture()


def repr_in_capture() -> str:
    texts = []

    def function(x: bt.Tensor) -> bt.Tensor:
        texts.append(repr(x))
        return x + 1

    bt.capture(function)(bt.ones(()))
    return texts[0]


def test_constants_may_be_made_inside() -> None:
    f = bt.capture(lambda x: x + bt.arange(3, dtype="float32") * bt.full((3,), 2.0) + bt.zeros(3) + 1)
    for i in range(4):
        assert f(bt.full((3,), float(i))).tolist() == [i + 1, i + 3, i + 5]


def test_memory_filled_from_the_host_inside_is_an_error() -> None:
    f = bt.capture(lambda x: x + bt.empty(3))
    with pytest.raises(bt.CaptureError, match="filled from the host inside"):
        f(bt.ones(3))


def test_tensors_left_behind_cannot_be_read() -> None:
    left = []

    def function(x: bt.Tensor) -> bt.Tensor:
        hidden = x + 1
        left.append(hidden)
        return hidden * 2

    f = bt.capture(function, name="leaks")
    f(bt.ones(3))
    assert left[0].tolist() == [2, 2, 2]  # the first call was eager, and no program keeps its memory
    f(bt.ones(3))
    for read in (lambda t: t + 1, lambda t: t.numpy(), lambda t: t.fill_(0.0), lambda t: f(t)):
        with pytest.raises(bt.CaptureError, match="made inside the captured function 'leaks' and not returned"):
            read(left[1])
    assert "leaks" not in repr(f(bt.ones(3)))


def test_tensors_that_die_on_another_thread_are_noticed() -> None:
    """The garbage collector runs on any thread; a capture must not look at what it freed."""
    import threading

    def function(x: bt.Tensor) -> bt.Tensor:
        held = [x + i for i in range(50)]
        y = held[0] + held[-1]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        return y

    f = bt.capture(function)
    for _ in range(3):
        assert f(bt.ones(100)).tolist() == [51.0] * 100


def test_an_exception_leaves_the_process_usable() -> None:
    fail = [True]

    def function(x: bt.Tensor) -> bt.Tensor:
        y = F.dropout(x, 0.5)
        if fail[0]:
            raise ZeroDivisionError("own")
        bt.default_generator.advance()
        return y

    f = bt.capture(function)
    op_id = bt.default_generator.op_id
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="own"):
            f(bt.ones(3))
        assert not bt.is_capturing()
        assert bt.default_generator.op_id == op_id
        assert (bt.ones(2) + 1).tolist() == [2, 2]
    fail[0] = False
    f(bt.ones(3))
    fail[0] = True
    with pytest.raises(ZeroDivisionError):
        f(bt.ones(3))
    fail[0] = False
    for _ in range(3):
        f(bt.ones(3))
    assert f.state == "replaying"


def test_captures_do_not_nest() -> None:
    inner = bt.capture(lambda x: x + 1)
    for _ in range(3):
        inner(bt.ones(2))
    outer = bt.capture(lambda x: inner(x) * 2)
    with pytest.raises(bt.CaptureError, match=r"\[capture <lambda>\].*do not nest"):
        outer(bt.ones(2))
    fresh = bt.capture(lambda x: x + 1)
    with pytest.raises(bt.CaptureError, match="do not nest"):
        bt.capture(lambda x: fresh(x))(bt.ones(2))


def test_arguments_must_be_tensors() -> None:
    f = bt.capture(lambda x, y: x + y, name="sum")
    with pytest.raises(TypeError, match=r"\[capture sum\] expected tensors, argument 1 is float.*0-d tensors"):
        f(bt.ones(2), 1.0)
    with pytest.raises(ValueError, match="'operator' or 'primitive'"):
        bt.capture(lambda x: x, level="other")


def test_parameters_are_read_and_written_in_place() -> None:
    counter = bt.zeros((), dtype="int64")
    f = bt.capture(lambda x: (counter.add_(1), x + counter.astype("float32"))[1])
    assert [f(bt.zeros(())).item() for _ in range(5)] == [1, 2, 3, 4, 5]
    counter.fill_(100)
    assert f(bt.zeros(())).item() == 101


def test_a_program_counts_as_a_writer() -> None:
    """Eager backward notices that a replay wrote over what it saved."""
    state = bt.ones(2)
    f = bt.capture(lambda x: state.copy_(x) * 1)
    for _ in range(3):
        f(bt.ones(2))
    w = bt.ones(2).requires_grad_()
    y = (w * state).sum()
    f(bt.ones(2))
    with pytest.raises(bt.AutogradError, match="'replay of a captured function' wrote"):
        y.backward()


@pytest.mark.parametrize("order", ["inside", "before", "after"])
def test_zero_grad_inside_and_outside_of_the_captured_part(order: str) -> None:
    def run(captured: bool) -> bytes:
        bt.manual_seed(1)
        model = nn.Linear(3, 2)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def forward_backward(x: bt.Tensor) -> bt.Tensor:
            if order == "inside":
                optimizer.zero_grad()
            loss = (model(x) * model(x)).sum()
            loss.backward()
            return loss

        f = bt.capture(forward_backward) if captured else forward_backward
        for i in range(5):
            if order == "before":
                optimizer.zero_grad()
            f(bt.full((4, 3), float(i)))
            optimizer.step()
            if order == "after":
                optimizer.zero_grad()
        return bits(model.weight)

    assert run(True) == run(False)


def test_another_order_of_zero_grad_than_recorded_is_an_error() -> None:
    model = nn.Linear(3, 2)

    def forward_backward(x: bt.Tensor) -> None:
        model(x).sum().backward()

    f = bt.capture(forward_backward, name="fb")
    for _ in range(4):
        model.zero_grad()
        f(bt.ones((4, 3)))
    with pytest.raises(bt.CaptureError, match=r"recorded to overwrite the gradient.*zero_grad"):
        f(bt.ones((4, 3)))
    model.zero_grad()
    f(bt.ones((4, 3)))
    model.zero_grad(set_to_none=True)
    with pytest.raises(bt.CaptureError, match="dropped or replaced"):
        f(bt.ones((4, 3)))


def test_gradients_may_be_first_made_inside() -> None:
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: bt.Tensor) -> bt.Tensor:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    f = bt.capture(step)
    losses = [f(bt.ones((4, 3))).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert model.weight.grad is not None
    np.testing.assert_array_equal(model.weight.grad.numpy(), np.full((2, 3), 4.0))


def test_recompute_in_a_capture() -> None:
    model = nn.Linear(8, 8)

    def run(captured: bool) -> list[bytes]:
        bt.manual_seed(5)
        model.zero_grad(set_to_none=True)

        def function(x: bt.Tensor) -> bt.Tensor:
            model.zero_grad()
            y = bt.recompute(lambda t: F.dropout(bt.tanh(model(t)), 0.5), x)
            loss = F.dropout(y, 0.5).sum()
            loss.backward()
            bt.default_generator.advance()
            return loss

        f = bt.capture(function) if captured else function
        found = []
        for _ in range(4):
            found += [bits(f(bt.ones((4, 8)))), bits(model.weight.grad)]
        return found

    assert run(True) == run(False)


def test_textual_form() -> None:
    weight = bt.ones((4, 3))
    f = bt.capture(lambda x: bt.exp(F.linear(x, weight)).sum(1), name="readable")
    for _ in range(2):
        f(bt.ones((2, 3)))
    text = str(f.program)
    assert text.startswith("program readable on cpu {\n")
    assert text.endswith("}\n")
    assert re.search(r"buffer %\d+ = slot 24 bytes, calls 0\.\.0", text)
    assert re.search(r"buffer %\d+ = external 48 bytes", text)
    assert re.search(r"buffer %\d+ = internal 32 bytes, calls 0\.\.1, arena \d+", text)
    assert re.search(
        r"#0 %\d+:f32\[2,4\] = linear\(%\d+:f32\[2,3\], %\d+:f32\[4,3\], none, none\).* lane compute", text
    )
    assert re.search(r"#2 %\d+:f32\[2\] = sum\(.*\) \{axis=\(1,\), keepdims=false\}", text)
    assert re.search(r"return %\d+", text)
    assert f.program.num_calls == 3
    seen: list[tuple[int, str]] = []
    f.program.replay("operator", on_op=lambda i, name: seen.append((i, name)))
    assert seen == [(0, "linear"), (1, "exp"), (2, "sum")]

    def stop(_: int, name: str) -> None:
        if name == "exp":
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        f.program.replay("operator", on_op=stop)
    f.program.replay()


def test_random_numbers_before_the_first_recording() -> None:
    """Initialisers draw before the first step: the two recordings differ in op ids, the steps do not."""

    def run(captured: bool) -> list[bytes]:
        bt.manual_seed(3)
        bt.normal((5,))

        def step(x: bt.Tensor) -> bt.Tensor:
            y = F.dropout(F.dropout(x, 0.5), 0.5)
            bt.default_generator.advance()
            return y

        f = bt.capture(step) if captured else step
        return [bits(f(bt.ones(50))) for _ in range(5)]

    assert run(True) == run(False)


def test_random_numbers_around_a_captured_part() -> None:
    """Eager random operators of the same step go on counting where the replayed part ended."""

    def run(captured: bool) -> list[bytes]:
        bt.manual_seed(3)
        parts = [lambda x: F.dropout(F.dropout(x, 0.5), 0.5), lambda x: F.dropout(x, 0.1)]
        f, g = (bt.capture(part) if captured else part for part in parts)
        found = []
        for _ in range(5):
            y = g(F.dropout(f(bt.ones(50)), 0.3))
            found += [bits(y), bits(bt.uniform((3,)))]
            bt.default_generator.advance()
        return found

    assert run(True) == run(False)


@pytest.mark.parametrize("write", [lambda x: x.add_(bt.ones(2)), lambda x: x.__setitem__(0, 5.0), lambda x: x.fill_(1)])
def test_writing_into_an_argument_is_refused(write: Any) -> None:
    """The function has copies: the caller's tensor would stay what it is, unlike outside of a capture."""

    def function(x: bt.Tensor) -> bt.Tensor:
        write(x)
        return x + 1.0

    x = bt.zeros(2)
    with pytest.raises(bt.CaptureError, match="a write into argument 0"):
        bt.capture(function)(x)
    assert not bt.is_capturing()
    assert not x.numpy().any()
