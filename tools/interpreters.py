"""Where the interpreters are that the packages are tested with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

#: What the packages promise; their classifiers say the same.
VERSIONS = ("3.11", "3.12", "3.13")


def _candidates(version: str) -> Iterator[Path]:
    """Programs that may be the interpreter of a version: the one that runs this, those on PATH, pyenv's."""
    yield Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found is not None:
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)


def find(version: str) -> Path | None:
    """An interpreter of a version such as ``"3.12"`` that runs, or None. A shim of pyenv may lie there and not run."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for path in _candidates(version):
        try:
            result = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        except OSError:
            continue
        if result.returncode == 0 and result.stdout.strip() == version:
            return path
    return None
