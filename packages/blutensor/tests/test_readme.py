"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 1
    lines = [line for line in examples[0].splitlines() if line]
    assert len(lines) <= 12
    exec(compile(examples[0], "README.md", "exec"), {})
    losses = [float(v) for v in capsys.readouterr().out.split()]
    assert len(losses) == 300
    assert losses[-1] < losses[0] / 10
