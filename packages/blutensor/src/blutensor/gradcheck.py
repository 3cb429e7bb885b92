"""Gradients against central differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ._arguments import function as need_function
from .autograd import grad, no_grad
from .errors import AutogradError, DTypeError
from .interop import asarray
from .tensor import Tensor


def gradcheck(
    function: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    *,
    eps: float = 1e-6,
    atol: float = 1e-7,
    rtol: float = 1e-5,
) -> None:
    """Compares the gradient of every input element with (f(x + eps) - f(x - eps)) / (2 eps), in float64.

    Each output is contracted with a fixed random tensor, so one backward pass covers the whole Jacobian. Central
    differences in float64 with eps 1e-6 err by about 1e-10 relative to f, so the default tolerances leave room for
    ill-conditioned functions only.

    Args:
        function: Of the inputs; returns a tensor or several.
        inputs: float64 tensors; those that require a gradient are checked.
        eps: Step.
        atol: Absolute tolerance.
        rtol: Relative tolerance.

    Raises:
        DTypeError: An input that is checked is not float64.
        AutogradError: A gradient is wrong; the message names input and element.
    """
    need_function("gradcheck", "function", function)
    checked = [t for t in inputs if t.requires_grad]
    for t in checked:
        if t.dtype.name != "float64":
            raise DTypeError(f"[gradcheck] expected float64 inputs, got {t.dtype.name}")
    rng = np.random.default_rng(0)

    def outputs_of() -> list[Tensor]:
        result = function(*inputs)
        listed = [result] if isinstance(result, Tensor) else list(result)
        return [r for r in listed if r.dtype.is_floating]

    outputs = [o for o in outputs_of() if o.requires_grad]
    weights = [rng.standard_normal(o.shape) for o in outputs]
    analytic = grad(outputs, checked, [asarray(np.array(w)) for w in weights], allow_unused=True)

    def value() -> float:
        with no_grad():
            results = outputs_of()
        return float(sum((r.numpy() * w).sum() for r, w in zip(results, weights, strict=True)))

    for which, (tensor, gradient) in enumerate(zip(checked, analytic, strict=True)):
        memory = tensor.detach().numpy()
        got = np.zeros(tensor.shape) if gradient is None else gradient.detach().numpy()
        for index in np.ndindex(*tensor.shape):
            before = memory[index]
            memory[index] = before + eps
            above = value()
            memory[index] = before - eps
            below = value()
            memory[index] = before
            numeric = (above - below) / (2 * eps)
            if not abs(got[index] - numeric) <= atol + rtol * abs(numeric):
                raise AutogradError(
                    f"[gradcheck] input {which} element {index}: gradient {got[index]:.10g}, "
                    f"central difference {numeric:.10g}"
                )
