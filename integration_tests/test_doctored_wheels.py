"""Wheels with another native interface than the rest was built against, installed by pip over all objections."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import repository
from conftest import PACKAGES, SITE, run_python

# (package, upstream) for every library that is linked to another one.
LINKS = [(p, upstream) for p in PACKAGES for upstream in importlib.import_module(f"lib{p}").BUILT_AGAINST]
VERSION = "0.0.9"  # what is doctored says that it is from this one, which was never released


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command that has to succeed."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def wheel_of(package: str) -> Path:
    """The wheel that the installed package came from."""
    wheel = repository.built_wheel(package)
    if wheel is None:
        pytest.skip(f"no wheel of {package} from the present sources in dist/: nox -s wheels")
    return wheel


def doctored_wheel(package: str, folder: Path, doctor: Callable[[Path], None]) -> Path:
    """The wheel of a package after ``doctor`` changed its native half, with hashes that are true again."""
    folder.mkdir()
    run(sys.executable, "-m", "wheel", "unpack", wheel_of(package), "-d", folder)
    (content,) = folder.glob(f"{package}-*")
    doctor(content / f"lib{package}")
    run(sys.executable, "-m", "wheel", "pack", content, "-d", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def replace(path: Path, pattern: str, text: str) -> None:
    """Replace the one line of a file that a pattern describes."""
    changed, count = re.subn(pattern, text, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1
    path.write_text(changed, encoding="utf-8")


def provide(package: str, abi: tuple[int, int], native: Path) -> None:
    """Give the native half of a package a library of another ABI: it only exports the function that says so."""
    replace(native / "__init__.py", r"^ABI: .*$", f"ABI: tuple[int, int] = {abi}")
    replace(native / "__init__.py", r"^VERSION = .*$", f'VERSION = "{VERSION}"')
    (library,) = (native / "lib").glob("*.so.*")
    library.unlink()
    name = f"lib{package}.so.{abi[0]}"
    code = f'extern "C" unsigned {package}_abi_version() {{ return {abi[0] << 16 | abi[1]}u; }}\n'
    source = native.parent.parent / "abi.cpp"
    source.write_text(code, encoding="utf-8")
    run("g++", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", native / "lib" / name, source)


def need(upstream: str, abi: tuple[int, int], native: Path) -> None:
    """Let a native half say that it was built against another ABI of an upstream."""
    replace(native / "__init__.py", rf'^    "{upstream}": .*$', f'    "{upstream}": {(*abi, False, VERSION)},')


def environment(folder: Path, wheels: list[Path]) -> Path:
    """The interpreter of an environment with the given wheels, and with what they need from elsewhere."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    install = ["install", "-q", "--no-deps", "--no-index", "--no-compile", *map(str, wheels)]
    run(sys.executable, "-m", "pip", "--python", python, *install)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "foreign.pth").write_text(f"{SITE}\n", encoding="utf-8")  # comes after what is in site-packages itself
    return python


def other_abi(built: tuple[int, int], change: str) -> tuple[int, int]:
    """The next major, or the minor before (of the major before, where there is none)."""
    major, minor = built
    if change == "newer":
        return major + 1, 0
    return (major, minor - 1) if minor else (major - 1, 99)


@pytest.mark.parametrize(("package", "upstream"), LINKS)
@pytest.mark.parametrize("change", ["newer", "older"])
def test_an_import_names_what_was_found_what_is_needed_and_the_command(
    package: str, upstream: str, change: str, tmp_path: Path
) -> None:
    major, minor, _, version = importlib.import_module(f"lib{package}").BUILT_AGAINST[upstream]
    found = other_abi((major, minor), change)
    doctored = doctored_wheel(upstream, tmp_path / "doctored", functools.partial(provide, upstream, found))
    others = [wheel_of(p) for p in PACKAGES if p != upstream]
    python = environment(tmp_path / "environment", [doctored, *others])
    code = (
        "try:\n"
        f"    import {package}\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error.name, error)\n"
    )
    result = run_python(code, python=python)
    assert result.returncode == 0, result.stderr
    expected = f"[{package}] expected {upstream} with ABI {major}.{minor} or a later minor, as in {upstream} {version}"
    assert result.stdout.startswith(f"ABIMismatchError {package} {expected}")
    assert f", got ABI {found[0]}.{found[1]} of {upstream} {VERSION} (" in result.stdout
    assert str(tmp_path / "environment") in result.stdout
    culprit = package if change == "newer" else upstream
    assert f"upgrade {culprit}: pip install --upgrade {upstream} {package}" in result.stdout


@pytest.mark.parametrize(("package", "upstream"), LINKS)
def test_info_tells_what_a_newer_package_needs(package: str, upstream: str, tmp_path: Path) -> None:
    major, minor, *_ = importlib.import_module(f"lib{package}").BUILT_AGAINST[upstream]
    doctored = doctored_wheel(package, tmp_path / "doctored", functools.partial(need, upstream, (major, minor + 1)))
    others = [wheel_of(p) for p in PACKAGES if p != package]
    python = environment(tmp_path / "environment", [doctored, *others])
    result = run_python("from blutrain.cli import cli; cli.main(['info'])", python=python)
    assert result.returncode == 0, result.stderr
    expected = (
        f"[{package}] expected {upstream} with ABI {major}.{minor + 1} or a later minor, as in {upstream} {VERSION}"
    )
    assert expected in result.stdout
    assert f"upgrade {upstream}: pip install --upgrade {upstream} {package}" in result.stdout
    assert "--force-reinstall" not in result.stdout
