"""Checks that the operator table itself asks for: gradients, decompositions, documentation, the generated stub."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import blutensor as bt
from blutensor import _operators, stubs
from blutensor._table import OPERATORS, GradCase, OperatorSpec

PUBLIC = [spec for spec in OPERATORS.values() if spec.public and spec.category != "registered"]

# Differentiable operators whose checks the table cannot describe, and where they are.
ELSEWHERE = {
    "concat": "a list of inputs: tests/ops/test_copy.py",
    "where": "a condition: tests/ops/test_elementwise.py",
    "dropout": "random bits: tests/ops/test_random.py",
    "embedding": "integer ids: tests/ops/test_embedding.py",
    "take_along_axis": "integer indices: tests/test_array_indexing.py",
    "cross_entropy": "integer targets: tests/ops/test_cross_entropy.py",
    "linear_cross_entropy": "integer targets: tests/ops/test_linear_cross_entropy.py",
}
# Their other outputs have no gradient, and say so when one is asked for.
FIRST_OUTPUT_ONLY = {"layer_norm", "rms_norm"}
CASES = [pytest.param(s, c, id=f"{s.name}-{i}") for s in PUBLIC for i, c in enumerate(s.grad_cases)]


def draw(domain: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Float64 values of a domain of the table."""
    x = rng.standard_normal(shape)
    if domain == "normal":
        return x
    if domain == "positive":
        return np.abs(x) + 0.5
    if domain == "away_from_zero":
        return np.where(x < 0, -1.0, 1.0) * (np.abs(x) + 0.5)
    if domain == "unit":
        return rng.uniform(-0.9, 0.9, shape)
    if domain == "above_one":
        return 1.5 + np.abs(x)
    if domain == "fraction":  # away from whole numbers and halves
        return np.round(2 * x) + rng.uniform(0.1, 0.4, shape)
    raise AssertionError(f"unknown domain {domain}")


def inputs_of(spec: OperatorSpec, case: GradCase) -> list[bt.Tensor]:
    """Leaves of a case: the table gives the shapes of the required inputs, then of optional ones."""
    rng = np.random.default_rng(zlib.crc32(repr((spec.name, case)).encode()))
    leaves = []
    for shape in case.shapes:
        leaf = bt.asarray(draw(case.domain, shape, rng))
        leaf.requires_grad = True
        leaves.append(leaf)
    return leaves


def function_of(spec: OperatorSpec, case: GradCase) -> Any:
    """The operator as a function of the case's tensors alone."""
    function = getattr(_operators, spec.name)
    attrs = {attr.name: value for attr, value in zip(spec.attrs, case.attrs, strict=False)}
    if spec.name == "astype":
        attrs["dtype"] = "float64"
    names = [i.name for kind in ("required", "optional") for i in spec.inputs if i.kind == kind]

    def call(*tensors: bt.Tensor) -> Any:
        result = function(**dict(zip(names, tensors, strict=False)), **attrs)
        return result[0] if spec.name in FIRST_OUTPUT_ONLY else result

    return call


def listed(result: Any) -> list[bt.Tensor]:
    return [result] if isinstance(result, bt.Tensor) else list(result)


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_gradient(spec: OperatorSpec, case: GradCase) -> None:
    bt.gradcheck(function_of(spec, case), inputs_of(spec, case))


@pytest.mark.parametrize(("spec", "case"), [c for c in CASES if c.values[0].composite])
def test_decomposition(spec: OperatorSpec, case: GradCase) -> None:
    """The primitives of a composite operator compute the same values and gradients, within float64's rounding."""
    leaves = inputs_of(spec, case)
    function = function_of(spec, case)

    def forward_and_backward(*tensors: bt.Tensor) -> Any:
        again = [t.detach().requires_grad_() for t in tensors]
        outputs = [o for o in listed(function(*again)) if o.dtype.is_floating]
        return outputs, bt.grad([outputs[0].sum() + (outputs[0] * outputs[0]).sum()], again)

    outputs, grads = forward_and_backward(*leaves)
    captured = bt.capture(forward_and_backward, level="primitive", name=spec.name)
    constants = [t.detach() for t in leaves]
    for _ in range(3):
        primitive_outputs, primitive_grads = captured(*constants)
        pairs = [*zip(outputs[:1], primitive_outputs[:1], strict=True), *zip(grads, primitive_grads, strict=True)]
        for expected, got in pairs:
            # Sums of at most some hundred terms of size 1 to 10, each rounded once: 1e-12 is four digits above them.
            np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), rtol=1e-12, atol=1e-12)
    called = {line.split("(")[0].split()[-1] for line in str(captured.program).splitlines() if "lane" in line}
    composite = {name for name in called if name in OPERATORS and OPERATORS[name].composite}
    assert not composite, f"composite operators {composite} in a program of primitives"


@pytest.mark.parametrize("spec", PUBLIC, ids=lambda spec: spec.name)
def test_documentation(spec: OperatorSpec) -> None:
    assert len(spec.doc) > 10
    assert spec.category
    function = getattr(_operators, spec.name)
    assert spec.doc in function.__doc__
    if spec.differentiable:
        assert spec.grad_cases or spec.name in ELSEWHERE, "a differentiable operator needs grad_cases"
    else:
        assert "Not differentiable" in function.__doc__


def test_exceptions_are_needed() -> None:
    """The list of operators that are checked elsewhere names no others."""
    assert {s.name for s in PUBLIC if s.differentiable and not s.grad_cases} == set(ELSEWHERE)


def test_private_operators_have_documentation() -> None:
    assert [s.name for s in OPERATORS.values() if len(s.doc) <= 10 and s.category != "registered"] == []


def test_stub_is_current() -> None:
    assert stubs.main(["--check"]) == 0


def test_stub_names_a_change(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stub = tmp_path / "_operators.pyi"
    assert stubs.main(["--write", str(stub)]) == 0
    assert stubs.main(["--check", str(stub)]) == 0
    stub.write_text(stub.read_text() + "\n")
    assert stubs.main(["--check", str(stub)]) == 1
    assert "--write" in capsys.readouterr().out
