"""A thousand repetitions of a captured pass, with other addresses and other timing each, give one result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_thousand_repetitions_have_the_same_bits(precision: str) -> None:
    script = Path(__file__).with_name("repetitions.py")
    command = [sys.executable, str(script), "1000", precision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("one graph of ")
    assert [line.split()[0::2] for line in lines[1:]] == [["digest", "1000"]], done.stdout
