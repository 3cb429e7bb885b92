"""Renders the generated ``lib<name>`` packages into build/typing, so that mypy sees them without a build."""

from __future__ import annotations

import re
from pathlib import Path

import repository

TYPING = repository.ROOT / "build" / "typing"


def render(package: str) -> str:
    """The text of ``lib<package>/__init__.py`` as CMake would write it, without upstreams."""
    header = repository.ROOT / "packages" / package / "include" / package / f"{package}.h"
    text = header.read_text(encoding="utf-8")
    version = repository.project(package)["project"]["version"]
    values = {"BLU_NAME": package, "BLU_BUILT_AGAINST": "", "BLU_FULL_VERSION": version}
    for part in ("MAJOR", "MINOR"):
        match = re.search(rf"^#define BLU[A-Z]+_ABI_{part} +(\d+)", text, re.MULTILINE)
        if match is None:
            raise ValueError(f"[render] expected #define <NAME>_ABI_{part} <number> in {header}, got none")
        values[f"BLU_ABI_{part}"] = match[1]
    template = (repository.ROOT / "cmake" / "lib_init.py.in").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)


def main() -> list[Path]:
    """Write one module per package that has a native library; returns the files."""
    written = []
    for package in repository.packages():
        folder = TYPING / f"lib{package}"
        if not (repository.ROOT / "packages" / package / "include").is_dir():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(render(package), encoding="utf-8")
        (folder / "py.typed").touch()
        written.append(folder / "__init__.py")
    return written


if __name__ == "__main__":
    main()
