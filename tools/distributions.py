"""Checks what wheels and source distributions hold: exactly the files that git knows, with licence and metadata.

python tools/distributions.py dist/release/*
"""

from __future__ import annotations

import email.parser
import fnmatch
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import interpreters
import repository

#: Metadata that every distribution states, and what has to be in its text.
METADATA = {
    "License-Expression": "Apache-2.0",
    "License-File": "LICENSE",
    "Requires-Python": ">=3.11",
    "Author": "BluTrain developers",
    "Description-Content-Type": "text/markdown",
    "Keywords": ",",
    "Summary": " ",
}


def tracked(package: str, folder: str = "") -> set[str]:
    """The files below a folder of a package that git knows, relative to that folder."""
    top = repository.ROOT / "packages" / package / folder
    names = subprocess.run(["git", "ls-files"], cwd=top, check=True, capture_output=True, text=True).stdout
    return set(names.splitlines())


def _differences(where: str, expected: set[str], got: set[str]) -> Iterator[str]:
    for name in sorted(expected - got):
        yield f"{where}: expected {name}, got none"
    for name in sorted(got - expected):
        yield f"{where}: expected no {name}"


def metadata_problems(package: str, text: str) -> Iterator[str]:
    """What a METADATA or PKG-INFO file lacks."""
    fields = email.parser.Parser().parsestr(text)
    version = repository.project(package)["project"]["version"]
    for field, part in {**METADATA, "Name": package, "Version": version}.items():
        if part not in (fields[field] or ""):
            yield f"expected {field} with {part!r}, got {fields[field]!r}"
    classifiers = fields.get_all("Classifier", [])
    for python in interpreters.VERSIONS:
        if f"Programming Language :: Python :: {python}" not in classifiers:
            yield f"expected the classifier of Python {python}, got none"
    if not fields.get_payload():
        yield "expected the README as description, got none"


def _license_problems(content: bytes | None) -> Iterator[str]:
    if content != (repository.ROOT / "LICENSE").read_bytes():
        yield "expected the LICENSE of the repository, got another one or none"


def wheel_problems(package: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """What is wrong with a wheel of the given files."""
    info = f"{package}-{repository.project(package)['project']['version']}.dist-info"
    yield from metadata_problems(package, files.get(f"{info}/METADATA", b"").decode())
    yield from _license_problems(files.get(f"{info}/licenses/LICENSE"))
    below: dict[str, set[str]] = {}
    for name in files:
        top, _, rest = name.partition("/")
        below.setdefault(top, set()).add(rest)
    yield from _differences("wheel", {package, f"lib{package}", info}, set(below))
    yield from _differences(package, tracked(package, f"src/{package}"), below.get(package, set()))
    native = below.get(f"lib{package}", set())
    headers = {name.removeprefix("include/") for name in native if name.startswith("include/")}
    yield from _differences("include", tracked(package, "include"), headers)
    libraries = fnmatch.filter(native, "lib/*.so*")
    if len(libraries) != 1 or not fnmatch.fnmatch(libraries[0], f"lib/lib{package}.so.[0-9]*"):
        yield f"expected one library lib{package}.so.<ABI major>, got {libraries}"
    expected = {"__init__.py", "py.typed", *libraries, *(f"include/{name}" for name in headers)}
    config = {name for name in native if name.startswith(f"lib/cmake/{package}/")}
    yield from _differences(f"lib{package}", expected | config, native)
    if f"lib/cmake/{package}/{package}-config.cmake" not in config:
        yield "expected a configuration for CMake, got none"


def sdist_problems(package: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """What is wrong with a source distribution of the given files, named without the top folder."""
    yield from metadata_problems(package, files.get("PKG-INFO", b"").decode())
    yield from _license_problems(files.get("LICENSE"))
    excluded = repository.project(package)["tool"]["scikit-build"]["sdist"]["exclude"]
    kept = {
        name
        for name in tracked(package)
        if not any(fnmatch.fnmatch(part, pattern) for part in name.split("/") for pattern in excluded)
    }
    shared = {f"cmake/{path.name}" for path in (repository.ROOT / "cmake").iterdir()}
    yield from _differences("sdist", kept | shared | {"PKG-INFO"}, set(files))


def read(path: Path) -> dict[str, bytes]:
    """Name -> content of every file of an archive; a source distribution's without its top folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(path) as sdist:
        members = [(member, sdist.extractfile(member)) for member in sdist if not member.isdir()]
        return {member.name.split("/", 1)[1]: file.read() if file else b"" for member, file in members}


def problems(path: Path) -> list[str]:
    """What is wrong with a distribution.

    Raises:
        ValueError: the name is not that of a wheel or source distribution of this repository.
    """
    match = re.match(r"(\w+)-[\w.]+(-py3-none-\w+\.whl|\.tar\.gz)$", path.name)
    if match is None or match[1] not in repository.packages():
        raise ValueError(f"[problems] expected <package>-<version>-py3-none-<platform>.whl or .tar.gz, got {path.name}")
    check = wheel_problems if path.suffix == ".whl" else sdist_problems
    return list(check(match[1], read(path)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong with the given distributions."""
    paths = [Path(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    found = [f"{path.name}: {text}" for path in paths for text in problems(path)]
    for text in found:
        print(text)
    print(f"{len(found)} problems in {len(paths)} distributions")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
