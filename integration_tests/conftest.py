"""What the integration tests share: the packages, and a way to ask a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import repository  # noqa: E402

PACKAGES = repository.packages()
SITE = next(Path(p) for p in sys.path if (Path(p) / f"lib{PACKAGES[0]}").is_dir())
"""The folder that the packages are installed in."""


def run_python(
    code: str, env: Mapping[str, str] | None = None, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter of its own, outside of the repository."""
    return subprocess.run(
        [python, "-c", code],
        env={**os.environ, **(env or {})},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="session")
def native_packages() -> list[str]:
    """Every package with a native library, in build order."""
    return [p for p in repository.packages() if (ROOT / "packages" / p / "include").is_dir()]
