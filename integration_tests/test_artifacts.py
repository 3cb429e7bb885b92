"""What the wheels and source distributions hold."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import repository
from conftest import PACKAGES, ROOT, SITE


def library(package: str) -> Path:
    """The shared library of an installed package."""
    (path,) = (SITE / f"lib{package}" / "lib").glob("*.so.*")
    return path


def output(*command: str | Path) -> str:
    """Standard output of a program of the compiler's binutils."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_one_wheel_serves_every_python(package: str) -> None:
    wheel = importlib.metadata.distribution(package).read_text("WHEEL")
    assert wheel is not None
    tags = [line.split(": ")[1] for line in wheel.splitlines() if line.startswith("Tag:")]
    assert tags
    assert all(tag.startswith("py3-none-") and not tag.endswith("-any") for tag in tags)


@pytest.mark.parametrize("package", PACKAGES)
def test_only_the_c_interface_is_exported(package: str) -> None:
    symbols = [line.split()[-1] for line in output("nm", "-D", "--defined-only", library(package)).splitlines()]
    assert f"{package}_abi_version" in symbols
    assert [s for s in symbols if not s.startswith(f"{package}_")] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_function_of_the_header_is_exported(package: str, tmp_path: Path) -> None:
    # A program that takes the address of each declared function links only when all are there.
    header = (ROOT / "packages" / package / "include" / package / f"{package}.h").read_text(encoding="utf-8")
    exported = {line.split()[-1] for line in output("nm", "-D", "--defined-only", library(package)).splitlines()}
    macro = f"{package.upper()}_API "
    declared = [part.split("(")[0].split()[-1].lstrip("*") for part in header.split(f"\n{macro}")[1:]]
    assert declared
    assert sorted(set(declared) - exported) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_symbols_are_bound_at_load_time_and_libpython_is_not_needed(package: str) -> None:
    dynamic = output("readelf", "-d", library(package))
    assert "BIND_NOW" in dynamic
    assert "libpython" not in dynamic
    needed = [line.split("[")[1].split("]")[0] for line in dynamic.splitlines() if "(NEEDED)" in line]
    ours = {name.split(".")[0].removeprefix("lib") for name in needed if name.startswith("libblu")}
    assert ours <= set(repository.direct_upstreams(package))


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_public_header_stands_alone(package: str, language: str, tmp_path: Path) -> None:
    source = tmp_path / f"header.{'c' if language == 'c' else 'cpp'}"
    source.write_text(f"#include <{package}/{package}.h>\nint main(void) {{ return 0; }}\n", encoding="utf-8")
    includes = [f"-I{SITE / f'lib{p}' / 'include'}" for p in repository.with_upstreams([package])]
    standard = "c11" if language == "c" else "c++20"
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    command = ["g++", "-x", language, *flags, *includes, str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_source_distribution_carries_the_shared_cmake(package: str, tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "packages" / package, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    shared = {f"cmake/{path.name}" for path in (ROOT / "cmake").iterdir()}
    assert shared <= names
    assert {"CMakeLists.txt", "pyproject.toml", f"include/{package}/{package}.h"} <= names


def test_generated_stubs_are_what_the_operator_table_says() -> None:
    stub = ROOT / "packages" / "blutensor" / "src" / "blutensor" / "_operators.pyi"
    command = [sys.executable, "-m", "blutensor.stubs", "--check", str(stub)]
    result = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_readme_and_ci_name_the_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tasks = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    for session in ("train", "tests"):
        assert f".venv/bin/nox -s {session}" in readme
        assert f"\ndef {session}(session: nox.Session" in tasks
    assert "-s tests -- --require-torch" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
