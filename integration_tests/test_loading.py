"""The libraries of the installed packages: one copy of each, in any import order, and only those that fit together."""

from __future__ import annotations

import importlib
import itertools
import shutil
from pathlib import Path

import pytest
import repository
from conftest import PACKAGES, SITE, run_python

# (package, upstream) for every library that is linked to another one. Importing lib<name> loads nothing.
LINKS = [(p, upstream) for p in PACKAGES for upstream in importlib.import_module(f"lib{p}").BUILT_AGAINST]
LINKED = sorted({package for package, _ in LINKS})

# Prints the files of ours that are mapped, each once.
MAPPED = """
paths = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/libblu" in line}
print("\\n".join(sorted(paths)))
"""


def load(*names: str) -> str:
    """Code that loads the libraries of packages in the given order. Importing a package may put that off."""
    return "\n".join(f"import lib{name}; lib{name}.load_library()" for name in names) + "\n"


def copy_native_half(package: str, folder: Path) -> Path:
    """Copy an installed ``lib<package>`` into a folder and return the copy.

    Without compiled modules: an interpreter that starts meanwhile writes them under names that are gone a moment later.
    """
    return shutil.copytree(
        SITE / f"lib{package}", folder / f"lib{package}", ignore=shutil.ignore_patterns("__pycache__")
    )


def library_name(path: str) -> str:
    """``/x/libblualloc.so.1`` -> ``libblualloc``."""
    return Path(path).name.split(".")[0]


@pytest.mark.parametrize("order", list(itertools.permutations(PACKAGES, 2)), ids="-".join)
def test_import_order_is_free_and_one_copy_is_mapped(order: tuple[str, str]) -> None:
    result = run_python("\n".join(f"import {p}\n{load(p)}" for p in order) + MAPPED)
    assert result.returncode == 0, result.stderr
    names = [library_name(path) for path in result.stdout.split()]
    assert len(set(names)) == len(names)
    assert {f"lib{p}" for p in order} <= set(names)
    assert set(names) <= {f"lib{p}" for p in repository.with_upstreams(order)}


def test_all_packages_map_one_copy_of_each_library() -> None:
    result = run_python("\n".join(f"import {p}\n{load(p)}" for p in reversed(PACKAGES)) + MAPPED)
    assert result.returncode == 0, result.stderr
    paths = result.stdout.split()
    assert [library_name(p) for p in paths] == sorted(f"lib{p}" for p in PACKAGES)
    assert all(Path(p).is_relative_to(SITE) for p in paths)


def test_reported_abi_is_that_of_the_header_and_of_the_file_name() -> None:
    code = "import importlib\n" + "\n".join(
        f"m = importlib.import_module('lib{p}'); print(m.ABI == m.abi_version(), m.ABI[0])" for p in PACKAGES
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    for package, line in zip(PACKAGES, result.stdout.splitlines(), strict=True):
        same, major = line.split()
        assert same == "True"
        assert (SITE / f"lib{package}" / "lib" / f"lib{package}.so.{major}").is_file()


def test_importing_the_native_half_loads_nothing() -> None:
    # Build backends import lib<name> to find its CMake configuration, also when the libraries do not fit together.
    result = run_python("\n".join(f"import lib{p}; lib{p}.root()" for p in PACKAGES) + MAPPED)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


@pytest.mark.parametrize("package", LINKED)
def test_upstreams_may_lie_in_another_folder_of_the_path(package: str, tmp_path: Path) -> None:
    # The library's RUNPATH does not reach them there: load_library() has to load them first.
    copy_native_half(package, tmp_path)
    result = run_python(load(package) + MAPPED, env={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    paths = {library_name(p): Path(p) for p in result.stdout.split()}
    assert paths.pop(f"lib{package}").is_relative_to(tmp_path)
    assert [path for path in paths.values() if not path.is_relative_to(SITE)] == []


def test_a_stray_library_path_does_not_win(tmp_path: Path) -> None:
    for package in PACKAGES:
        for library in (SITE / f"lib{package}" / "lib").glob("*.so.*"):
            shutil.copy(library, tmp_path)
    result = run_python(load(*reversed(PACKAGES)) + MAPPED, env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    paths = [Path(p) for p in result.stdout.split()]
    assert paths
    assert all(path.is_relative_to(SITE) for path in paths)


# ---- ABI mismatch: doctored packages, first on the path --------------------------------------------------------


def doctored_upstream(folder: Path, upstream: str, abi: tuple[int, int]) -> None:
    """A ``lib<upstream>`` in ``folder`` that loads the real library but reports another ABI."""
    copy = copy_native_half(upstream, folder)
    with (copy / "__init__.py").open("a", encoding="utf-8") as module:
        module.write(f"\n\ndef abi_version():\n    return {abi}\n")


@pytest.mark.parametrize(("package", "upstream"), LINKS)
@pytest.mark.parametrize("change", ["newer major", "older major"])
def test_another_abi_major_is_an_error_that_says_what_to_upgrade(
    package: str, upstream: str, change: str, tmp_path: Path
) -> None:
    major, minor, _, version = importlib.import_module(f"lib{package}").BUILT_AGAINST[upstream]
    doctored = (major + 1, 0) if change == "newer major" else (major - 1, 99)
    doctored_upstream(tmp_path, upstream, doctored)
    code = (
        f"import lib{package}\n"
        "try:\n"
        f"    lib{package}.load_library()\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    result = run_python(code, env={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    # Another upstream that is loaded before may have noticed first; then it is the one to be named.
    culprits = {package, *repository.with_upstreams([package])} if change == "newer major" else {upstream}
    assert result.stdout.startswith("ABIMismatchError [")
    assert f"expected {upstream} with ABI {major}.{minor} or a later minor, as in {upstream} {version}" in result.stdout
    got = f"got ABI {doctored[0]}.{doctored[1]} of {upstream} {version} ({tmp_path / f'lib{upstream}'})"
    assert got in result.stdout
    assert any(f"upgrade {culprit}: pip install --upgrade" in result.stdout for culprit in culprits)


@pytest.mark.parametrize(("package", "upstream"), LINKS)
def test_a_later_minor_is_accepted_exactly_where_the_stable_abi_is_enough(
    package: str, upstream: str, tmp_path: Path
) -> None:
    major, minor, exact, _ = importlib.import_module(f"lib{package}").BUILT_AGAINST[upstream]
    doctored_upstream(tmp_path, upstream, (major, minor + 1))
    result = run_python(load(package), env={"PYTHONPATH": str(tmp_path)})
    assert (result.returncode != 0) == exact, result.stderr
    assert ("ABIMismatchError" in result.stderr) == exact


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("content", [None, b"", b"\x7fELF and then nothing"], ids=["missing", "empty", "foreign"])
def test_a_library_that_does_not_load_is_an_import_error_that_names_it(
    package: str, content: bytes | None, tmp_path: Path
) -> None:
    (library,) = (copy_native_half(package, tmp_path) / "lib").glob("*.so.*")
    library.unlink()
    if content is not None:
        library.write_bytes(content)
    result = run_python(load(package), env={"PYTHONPATH": str(tmp_path)})
    assert result.returncode != 0
    assert f"ImportError: [{package}] expected a loadable library at {library}" in result.stderr
    assert "pip install --force-reinstall" in result.stderr
