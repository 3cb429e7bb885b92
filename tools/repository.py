"""The packages of this repository: which there are, what they need of each other, what a wheel is made from."""

from __future__ import annotations

import functools
import graphlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

#: What changes a wheel from outside of its files.
SETTINGS = ("CXX", "CXXFLAGS", "LDFLAGS", "CMAKE_ARGS", "SKBUILD_CMAKE_BUILD_TYPE", "SKBUILD_CMAKE_DEFINE")
#: Folders of a package that no wheel holds anything of.
NOT_IN_WHEELS = frozenset({"tests", "benchmarks", "lab", "build", "__pycache__"})


@functools.cache
def project(package: str) -> dict[str, Any]:
    """The parsed pyproject.toml of a package."""
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8"))


def requirement_name(requirement: str) -> str:
    """``"numpy>=1.26"`` -> ``"numpy"``.

    Raises:
        ValueError: the text does not begin with a name.
    """
    match = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
    if match is None:
        raise ValueError(f"[requirement_name] expected a requirement such as numpy>=1.26, got {requirement!r}")
    return match[0].lower().replace("_", "-")


@functools.cache
def packages() -> tuple[str, ...]:
    """All packages, each after those that it needs."""
    names = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
    needs = {
        name: {requirement_name(r) for r in project(name)["project"].get("dependencies", [])} & set(names)
        for name in names
    }
    return tuple(graphlib.TopologicalSorter({name: sorted(needs[name]) for name in names}).static_order())


def direct_upstreams(package: str) -> tuple[str, ...]:
    """The packages of this repository that a package names in its dependencies, in build order."""
    needed = {requirement_name(r) for r in project(package)["project"].get("dependencies", [])}
    return tuple(name for name in packages() if name in needed)


def with_upstreams(wanted: Iterable[str]) -> tuple[str, ...]:
    """The given packages and all that they need, in build order."""
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += direct_upstreams(name)
    return tuple(name for name in packages() if name in found)


def foreign_requirements(wanted: Iterable[str], *groups: str) -> list[str]:
    """What the packages need from outside of this repository at run time, and for the named dependency groups."""
    requirements: set[str] = set()
    for name in wanted:
        data = project(name)
        requirements.update(data["project"].get("dependencies", []))
        for group in groups:
            requirements.update(data.get("dependency-groups", {}).get(group, []))
    return sorted(r for r in requirements if requirement_name(r) not in packages())


def native_sources() -> list[str]:
    """Every C, C++ and CUDA file of the packages."""
    suffixes = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
    found = [p for p in (ROOT / "packages").rglob("*") if p.suffix in suffixes and "build" not in p.parts]
    return [str(p.relative_to(ROOT)) for p in sorted(found)]


# ---- wheels ----------------------------------------------------------------------------------------------------


def wheel_inputs(package: str) -> Iterator[Path]:
    """Every file that the wheel of a package is made from, sorted."""
    for top in (ROOT / "packages" / package, ROOT / "cmake"):
        for directory, folders, files in os.walk(top):
            folders[:] = sorted(f for f in folders if f not in NOT_IN_WHEELS and not f.startswith("."))
            yield from (Path(directory) / f for f in sorted(files) if not f.endswith((".pyc", "~")))


@functools.cache
def _toolchain() -> str:
    compiler = os.environ.get("CXX", "g++").split() or ["g++"]
    try:
        version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"expected a C++ compiler, got: {error}; install g++ (apt install g++) or set CXX")
    settings = [f"{key}={os.environ.get(key, '')}" for key in SETTINGS]
    return "\n".join([platform.machine(), version.splitlines()[0], *settings])


def wheel_digest(package: str) -> str:
    """Digest of everything that a wheel is made from: files, shared CMake, upstreams, toolchain, settings."""
    total = hashlib.sha256(_toolchain().encode())
    for upstream in direct_upstreams(package):
        total.update(wheel_digest(upstream).encode())
    for path in wheel_inputs(package):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def built_wheel(package: str) -> Path | None:
    """The wheel in ``dist/`` that was made from exactly what is there now, if there is one."""
    stamp = DIST / f".{package}.json"
    if not stamp.is_file():
        return None
    record = json.loads(stamp.read_text(encoding="utf-8"))
    wheel = DIST / record["wheel"]
    return wheel if record["digest"] == wheel_digest(package) and wheel.is_file() else None


def keep_wheel(package: str, wheel: Path, digest: str) -> Path:
    """Move a wheel that was built from the given digest to ``dist/`` and remember it; older ones of it go."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob(f"{package}-*.whl"):
        old.unlink()
    kept = wheel.rename(DIST / wheel.name)
    record = {"digest": digest, "wheel": kept.name}
    (DIST / f".{package}.json").write_text(json.dumps(record), encoding="utf-8")
    return kept
