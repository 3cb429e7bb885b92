"""The versions of the packages, and the ranges in which they need each other.

    python tools/versions.py                        check that all of it fits together
    python tools/versions.py bump blublas minor     set a version as ``hatch version`` does, and all ranges after it

A package's version is stated in its pyproject.toml and nowhere else. A package needs its upstreams from the version
that it is built and tested with up to, and without, the next one that may break: the next minor below 1.0, the next
major from there on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

import repository

USAGE = "expected nothing or: bump PACKAGE major|minor|patch|rc|X.Y.Z"


def version(package: str) -> str:
    """The version that a package's pyproject.toml states."""
    return str(repository.project(package)["project"]["version"])


def compatible_range(of: str) -> str:
    """``"0.2.1"`` -> ``">=0.2.1,<0.3"``; ``"1.2.0"`` -> ``">=1.2.0,<2"``.

    Raises:
        ValueError: the text does not begin with X.Y.Z.
    """
    match = re.match(r"(\d+)\.(\d+)\.\d+", of)
    if match is None:
        raise ValueError(f"[compatible_range] expected a version X.Y.Z, got {of!r}")
    major, minor = int(match[1]), int(match[2])
    return f">={of},<0.{minor + 1}" if major == 0 else f">={of},<{major + 1}"


def stated_requirements(package: str) -> Iterator[str]:
    """Every requirement of a package that names another one of this repository, for running and for building."""
    data = repository.project(package)
    for requirement in [*data["project"].get("dependencies", []), *data["build-system"]["requires"]]:
        if repository.requirement_name(requirement) in repository.packages():
            yield requirement


def changelog_version(package: str) -> str | None:
    """The version of the newest entry of a package's changelog."""
    path = repository.ROOT / "packages" / package / "CHANGELOG.md"
    match = re.search(r"^## (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return None if match is None else match[1]


def problems() -> Iterator[str]:
    """What does not fit together, each with what would."""
    for package in repository.packages():
        where = f"packages/{package}"
        for requirement in stated_requirements(package):
            upstream = repository.requirement_name(requirement)
            expected = upstream + compatible_range(version(upstream))
            if requirement != expected:
                yield f"{where}/pyproject.toml: expected {expected}, got {requirement}"
        if changelog_version(package) != version(package):
            yield f"{where}/CHANGELOG.md: expected {version(package)} on top, got {changelog_version(package)}"


def bump(package: str, change: str) -> None:
    """Set the version of a package, open an entry in its changelog, and write the ranges of those that need it."""
    folder = repository.ROOT / "packages" / package
    subprocess.run([sys.executable, "-m", "hatchling", "version", change], cwd=folder, check=True)
    repository.project.cache_clear()
    new = version(package)
    for other in repository.packages():
        path = repository.ROOT / "packages" / other / "pyproject.toml"
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(rf'"{package}>=[^"]*"', f'"{package}{compatible_range(new)}"', text), encoding="utf-8")
    repository.project.cache_clear()
    if changelog_version(package) != new:
        path = folder / "CHANGELOG.md"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("\n## ", f"\n## {new} (unreleased)\n\n## ", 1), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, or bump and check."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        if len(arguments) != 3 or arguments[0] != "bump" or arguments[1] not in repository.packages():
            print(USAGE, file=sys.stderr)
            return 2
        bump(*arguments[1:])
    found = list(problems())
    for text in found:
        print(text)
    versions = ", ".join(f"{package} {version(package)}" for package in repository.packages())
    print(f"{len(found)} problems of versions: {versions}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
