"""Where the coefficients of include/blublas/simd/math.h come from (run it; needs mpmath and NumPy).

Each polynomial minimises the largest error in units of the last place of the function's result: weighted least squares
whose weights grow where the error is largest (Lawson), on Chebyshev nodes. Coefficients are rounded to float32 from the
one with the largest influence on; the remaining ones are fitted again after each rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Function = Callable[[mp.mpf], mp.mpf]
mp.mp.prec = 120
ROUNDOFF = 2.0**-24
NODES = 1200


def lawson(target: Vector, basis: Vector, weight: Vector, iterations: int) -> tuple[float, Vector]:
    """The smallest largest |weight (basis c - target)| that was found, and its c."""
    matrix, right = basis * weight[:, None], target * weight
    shares = np.full(len(target), 1 / len(target))
    best = (np.inf, np.zeros(basis.shape[1]))
    for _ in range(iterations):
        scaled = matrix * np.sqrt(shares)[:, None]
        norms = np.linalg.norm(scaled, axis=0)
        solution = np.linalg.lstsq(scaled / norms, right * np.sqrt(shares), rcond=None)[0] / norms
        error = np.abs(matrix @ solution - right)
        if error.max() < best[0]:
            best = (float(error.max()), solution)
        shares *= error / error.max() + 1e-12
        shares /= shares.sum()
    return best


def fit(title: str, function: Function, low: float, high: float, degree: int, weight: Function) -> None:
    """Prints the coefficients, lowest power first, and the error in units of 2^-24 of the result."""
    x = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    target = np.array([float(function(mp.mpf(v))) for v in x])
    weights = np.array([float(weight(mp.mpf(v))) / ROUNDOFF for v in x])
    rest, iterations = list(range(degree + 1)), 400
    print(title)
    while rest:
        error, solution = lawson(target, np.stack([x**p for p in rest], 1), weights, iterations)
        if iterations == 400:
            print(f"  before rounding: {error:.3f}")
        iterations, rounded = 150, float(np.float32(solution[0]))
        target = target - rounded * x ** rest[0]
        print(f"  x^{rest.pop(0)}  {rounded.hex()}")
    print(f"  after rounding: {np.abs(target * weights).max():.3f}")


def main() -> None:
    half_ln2, quarter_turn = 0.34659, float(mp.pi / 4) ** 2  # a little beyond ln 2 / 2
    root = mp.sqrt
    fit("exp: q", lambda r: (mp.exp(r) - 1 - r) / r**2, -half_ln2, half_ln2, 4, lambda r: r**2 / mp.exp(r))
    fit("log: P", lambda f: (mp.log(1 + f) - f + f * f / 2) / f**3, float(root(0.5) - 1), float(root(2) - 1), 8,
        lambda f: abs(f**3 / mp.log(1 + f)))  # fmt: skip
    fit("tanh: P of x^2", lambda s: (mp.tanh(root(s)) / root(s) - 1) / s, 1e-6, 0.625**2, 4,
        lambda s: s * root(s) / mp.tanh(root(s)))  # fmt: skip
    fit("erf below 0.92: P of x^2", lambda s: mp.erf(root(s)) / root(s) - 1, 1e-6, 0.93**2, 5,
        lambda s: root(s) / mp.erf(root(s)))  # fmt: skip
    fit("erf beyond: Q", lambda t: -mp.log(mp.erfc(t)) / t - 1, 0.92, 3.95, 6, lambda t: t * mp.erfc(t))
    fit("sine: P of x^2", lambda s: (mp.sin(root(s)) / root(s) - 1) / s, 1e-6, quarter_turn, 2,
        lambda s: s * root(s) / mp.sin(root(s)))  # fmt: skip
    fit("cosine: Q of x^2", lambda s: (mp.cos(root(s)) - 1 + s / 2) / s**2, 1e-4, quarter_turn, 2,
        lambda s: s**2 / mp.cos(root(s)))  # fmt: skip


if __name__ == "__main__":
    main()
