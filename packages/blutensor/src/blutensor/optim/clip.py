"""Gradient norm and clipping, on the device."""

from __future__ import annotations

from collections.abc import Iterable

from .._naming import named
from .._operators import private
from ..autograd import no_grad
from ..errors import ShapeError
from ..tensor import Tensor
from .base import fresh_grad

_grad_norm, _clip_scale = private("grad_norm"), private("clip_scale")


@named("grad_norm")
def grad_norm(params: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all fresh gradients together: 0-d float32.

    Raises:
        ShapeError: There is no gradient.
    """
    grads = [g for p in params if (g := fresh_grad(p)) is not None]
    if not grads:
        raise ShapeError("[grad_norm] expected at least one gradient; call backward first")
    with no_grad():
        return _grad_norm(grads)


@named("clip_scale")
def clip_scale(norm: Tensor, max_norm: float, token_count: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Factor for gradients of a loss summed over tokens, and whether to skip the step.

    The factor is min(1, max_norm / (norm / count)) / count.

    Args:
        norm: 0-d, of the summed loss.
        max_norm: Largest norm of the mean loss's gradient; infinity for no clipping.
        token_count: 0-d; 1 when not given.

    Returns:
        (scale, skip), 0-d float32, for `Optimizer.step(grad_scale=scale, skip=skip)`. skip is 1 when the norm is not
        finite.
    """
    with no_grad():
        scale, skip = _clip_scale(norm, max_norm, token_count)
    return scale, skip


@named("clip_grad_norm_")
def clip_grad_norm_(params: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scales gradients in place so that their norm is at most max_norm; returns the norm before.

    As `torch.nn.utils.clip_grad_norm_`.
    """
    from .. import _operators

    listed = list(params)
    norm = grad_norm(listed)
    with no_grad():
        scale, _ = _clip_scale(norm, max_norm, None)
        for p in listed:
            grad = fresh_grad(p)
            if grad is not None:
                _operators.copy_(grad, _operators.multiply(grad, scale))
    return norm
