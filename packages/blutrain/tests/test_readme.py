"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    lines = [line for line in found[1].splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("30 ")
    assert any(line.startswith("the quick") for line in printed)
    assert Path(printed[-1]).name == "loss.png"
    assert (tmp_path / "run" / "loss.png").stat().st_size > 1000
