"""Reverse-mode differentiation."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import _native
from ._arguments import flag, text
from ._arguments import function as need_function
from ._calls import need_tensor
from ._naming import named
from .errors import ShapeError
from .tensor import Tensor

_lib = _native.lib
_callbacks: dict[int, Any] = {}
_contexts = itertools.count(1)


def _forget(context: int | None) -> None:
    if context is not None:
        _callbacks.pop(context, None)


_release = _native.ReleaseFn(_forget)


def borrowed(handle: int) -> Tensor:
    """A tensor over a handle that the native side lends."""
    tensor = Tensor._adopt((ctypes.c_void_p * 1)(handle))
    _lib.blutensor_tensor_retain(handle)
    return tensor


def give(tensor: Tensor) -> int:
    """A handle that the native side will own."""
    _lib.blutensor_tensor_retain(tensor._handle)
    return tensor._handle


# ---------------------------------------------------------------- modes


@contextlib.contextmanager
def _grad_mode(enabled: bool) -> Iterator[None]:
    before = _lib.blutensor_grad_enabled()
    try:
        _lib.blutensor_set_grad_enabled(int(enabled))
        yield
    finally:
        _lib.blutensor_set_grad_enabled(before)


def no_grad() -> contextlib.AbstractContextManager[None]:
    """A context (and decorator) in which operators are not recorded for backward."""
    return _grad_mode(False)


def enable_grad() -> contextlib.AbstractContextManager[None]:
    """A context (and decorator) in which operators are recorded, inside `no_grad` too."""
    return _grad_mode(True)


def is_grad_enabled() -> bool:
    """Whether operators of this thread are recorded for backward."""
    return bool(_lib.blutensor_grad_enabled())


# ---------------------------------------------------------------- backward passes


@named("backward", of=("len",))
def backward(
    roots: Sequence[Tensor],
    grads: Sequence[Tensor | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Accumulates d(roots)/d(leaf) into the `.grad` of every leaf.

    Args:
        roots: Tensors to differentiate.
        grads: A gradient per root, of its shape and dtype; None for a root of one element means 1.
        retain_graph: Keep the graph for another pass.
        create_graph: Record the pass itself (implies retain_graph).

    Raises:
        ShapeError: A root requires no gradient, or a gradient does not fit.
        AutogradError: A graph that was freed, or a saved tensor that was written in place.
    """
    roots = [need_tensor("backward", "roots", r) for r in roots]
    n = len(roots)
    given = [None] * n if grads is None else list(grads)
    if len(given) != n:
        raise ShapeError(f"[backward] expected {n} gradients, one per root, got {len(given)}")
    _native.check(
        _lib.blutensor_backward(
            _native.handle_array([r._handle for r in roots]),
            _native.handle_array([None if g is None else g._handle for g in given]),
            n,
            flag("backward", "retain_graph", retain_graph),
            flag("backward", "create_graph", create_graph),
        )
    )


@named("grad", of=("backward", "len"))
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> list[Tensor | None]:
    """d(outputs)/d(inputs), without touching any `.grad`.

    Args:
        outputs: Tensors to differentiate.
        inputs: With respect to these.
        grad_outputs: A gradient per output; None for one element means 1.
        retain_graph: Keep the graph for another pass.
        create_graph: Record the pass itself, for higher derivatives.
        allow_unused: None instead of an error for an input that the outputs do not depend on.

    Raises:
        ShapeError: An input that requires no gradient, or is unused.
        AutogradError: As for `backward`.
    """
    roots = [need_tensor("grad", "outputs", t) for t in ([outputs] if isinstance(outputs, Tensor) else outputs)]
    targets = [need_tensor("grad", "inputs", t) for t in ([inputs] if isinstance(inputs, Tensor) else inputs)]
    given = [None] * len(roots) if grad_outputs is None else list(grad_outputs)
    if len(given) != len(roots):
        raise ShapeError(f"[grad] expected {len(roots)} gradients, one per output, got {len(given)}")
    results = (ctypes.c_void_p * len(targets))()
    try:
        _native.check(
            _lib.blutensor_grad(
                _native.handle_array([r._handle for r in roots]),
                _native.handle_array([None if g is None else g._handle for g in given]),
                len(roots),
                _native.handle_array([t._handle for t in targets]),
                len(targets),
                flag("grad", "retain_graph", retain_graph),
                flag("grad", "create_graph", create_graph),
                flag("grad", "allow_unused", allow_unused),
                results,
            )
        )
        return [Tensor._adopt(results, i) if results[i] else None for i in range(len(targets))]
    except BaseException:  # a Ctrl-C during the call is raised after it
        _native.release_handles(results)
        raise


# ---------------------------------------------------------------- hooks


class HookHandle:
    """Removes a hook."""

    def __init__(self, tensor: Tensor, hook_id: int) -> None:
        self._tensor: Tensor | None = tensor
        self._id = hook_id

    def remove(self) -> None:
        """Removes the hook; a second call does nothing."""
        if self._tensor is not None:
            _native.check(_lib.blutensor_remove_hook(self._tensor._handle, self._id))
            self._tensor = None


@named("register_hook")
def register_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
    """See `Tensor.register_hook`."""
    need_function("register_hook", "hook", hook)

    def call(_context: int, handle: int, out: Any) -> int:
        try:
            replacement = hook(borrowed(handle))
            if replacement is not None:
                out[0] = give(replacement)
            return 0
        except BaseException as error:
            return _native.callback_failed(error)

    hook_id = ctypes.c_uint64()
    callback = _native.GradHookFn(call)
    context = next(_contexts)
    try:
        _callbacks[context] = callback
        _native.check(_lib.blutensor_add_hook(tensor._handle, callback, _release, context, ctypes.byref(hook_id)))
        return HookHandle(tensor, hook_id.value)
    except BaseException:  # an interrupt may come between any two of these
        if hook_id.value:
            _lib.blutensor_remove_hook(tensor._handle, hook_id)
        _forget(context)
        raise


# ---------------------------------------------------------------- nodes of the user's own


def custom_gradient(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    gradient: Callable[[list[Tensor | None]], Sequence[Tensor | None]],
) -> None:
    """Makes `outputs` (computed under `no_grad`) results of `inputs` with a gradient of your own.

    Args:
        name: Shown in error messages and as `grad_fn`.
        inputs: What the outputs were computed from.
        outputs: Fresh tensors.
        gradient: Takes the gradients of the outputs (None where unused) and returns those of the inputs (or None).

    Raises:
        ShapeError: An output is part of a graph already.
    """

    def call(_context: int, grad_outputs: Any, num_outputs: int, grad_inputs: Any, num_inputs: int) -> int:
        try:
            results = gradient([borrowed(grad_outputs[i]) if grad_outputs[i] else None for i in range(num_outputs)])
            if len(results) != num_inputs:
                raise ShapeError(f"[{name}] expected {num_inputs} gradients, one per input, got {len(results)}")
            for i, result in enumerate(results):
                grad_inputs[i] = None if result is None else give(result)
            return 0
        except BaseException as error:
            return _native.callback_failed(error)

    encoded = text("custom_gradient", "name", name).encode()
    callback = _native.CustomGradientFn(call)
    inputs_array, outputs_array = (_native.handle_array([t._handle for t in tensors]) for tensors in (inputs, outputs))
    context = next(_contexts)
    try:
        _callbacks[context] = callback
        _native.check(
            _lib.blutensor_record_custom(
                encoded, inputs_array, len(inputs), outputs_array, len(outputs), callback, _release, context
            )
        )
    except BaseException:  # an interrupt: the graph has the callback, or nobody has
        if not any(output.requires_grad for output in outputs):
            _forget(context)
        raise


def recompute(function: Callable[..., Any], *args: Any) -> Any:
    """Calls `function(*args)` and keeps none of its intermediate results: backward computes them again.

    The technique is gradient checkpointing (Chen et al., 2016, "Training Deep Nets with Sublinear Memory Cost").
    Random operators draw the same bits the second time.

    Args:
        function: Returns a tensor or a tuple of tensors; what it reads beside `args` (parameters) gets its gradients
            too.
        *args: Tensors and other values.

    Returns:
        What the function returned.
    """
    from .random import default_generator

    need_function("recompute", "function", function)
    tensors = [a for a in args if isinstance(a, Tensor)]
    first_op_id = default_generator.op_id
    with no_grad():
        results = function(*args)
    if not is_grad_enabled():
        return results
    outputs = [results] if isinstance(results, Tensor) else list(results)
    # One input that always requires a gradient: the function may only read parameters.
    anchor = _anchor()

    def gradient(grad_outputs: list[Tensor | None]) -> list[Tensor | None]:
        after = default_generator.op_id
        default_generator.op_id = first_op_id
        leaves = [t.detach().requires_grad_() if t.requires_grad else t.detach() for t in tensors]
        replaced = iter(leaves)
        again = [next(replaced) if isinstance(a, Tensor) else a for a in args]
        try:
            with enable_grad():
                repeated = function(*again)
        finally:
            default_generator.op_id = after
        repeated = [repeated] if isinstance(repeated, Tensor) else list(repeated)
        pairs = [(r, g) for r, g in zip(repeated, grad_outputs, strict=True) if g is not None and r.requires_grad]
        backward([r for r, _ in pairs], [g for _, g in pairs])
        return [leaf.grad if leaf.requires_grad else None for leaf in leaves] + [None]

    outputs = [o.detach() if o.requires_grad or any(o is t for t in tensors) else o for o in outputs]
    custom_gradient("recompute", [*tensors, anchor], outputs, gradient)
    return outputs[0] if isinstance(results, Tensor) else tuple(outputs)


_anchor_tensor: Tensor | None = None


def _anchor() -> Tensor:
    global _anchor_tensor
    if _anchor_tensor is None:
        from .interop import empty

        _anchor_tensor = empty((), device="cpu").requires_grad_()
    return _anchor_tensor


def graph_stats() -> dict[str, int]:
    """Live nodes of all graphs, bytes of their arena, and how often a chunk of it was used again."""
    stats = _native.AutogradStats(ctypes.sizeof(_native.AutogradStats))
    _native.check(_lib.blutensor_autograd_get_stats(ctypes.byref(stats)))
    return {
        "live_nodes": stats.live_nodes,
        "arena_bytes": stats.arena_bytes,
        "recycled_chunks": stats.arena_resets,
    }
