"""Versions, the ranges in which packages need each other, and what a release has to hold."""

from __future__ import annotations

import importlib
import importlib.metadata
import shutil
from collections.abc import Iterator
from pathlib import Path

import distributions
import pytest
import repository
import versions
from conftest import PACKAGES, ROOT
from packaging.requirements import Requirement
from packaging.version import Version


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.1.0", ">=0.1.0,<0.2"), ("0.2.1rc1", ">=0.2.1rc1,<0.3"), ("1.4.2", ">=1.4.2,<2"), ("10.0.0", ">=10.0.0,<11")],
)
def test_a_range_ends_before_the_next_version_that_may_break(version: str, expected: str) -> None:
    assert versions.compatible_range(version) == expected


def test_a_version_has_three_numbers() -> None:
    with pytest.raises(ValueError, match=r"expected a version X.Y.Z, got '0.1'"):
        versions.compatible_range("0.1")


def test_versions_and_ranges_of_the_repository_fit_together() -> None:
    assert list(versions.problems()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_installed_metadata_takes_what_is_installed_and_nothing_from_the_next_version_on(package: str) -> None:
    found = importlib.metadata.version(package)
    assert found == versions.version(package)
    assert importlib.import_module(package).__version__ == found
    needs = [Requirement(text) for text in importlib.metadata.requires(package) or []]
    ours = [need for need in needs if need.name in PACKAGES]
    assert {need.name for need in ours} == set(repository.direct_upstreams(package))
    for need in ours:
        present = Version(importlib.metadata.version(need.name))
        major, minor = present.major, present.minor
        assert need.specifier.contains(present, prereleases=True)
        assert not need.specifier.contains(f"0.{minor + 1}.0" if major == 0 else f"{major + 1}.0.0")
        assert not need.specifier.contains("0.0.1")


@pytest.fixture
def copied_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What states versions, copied, to be changed."""
    for package in PACKAGES:
        for name in ("pyproject.toml", "CHANGELOG.md", "README.md"):
            path = Path("packages") / package / name
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tmp_path / path)
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    repository.project.cache_clear()
    yield tmp_path
    repository.project.cache_clear()


def test_a_bump_moves_the_version_its_ranges_and_the_changelog(copied_repository: Path) -> None:
    before = {package: versions.version(package) for package in PACKAGES}
    major, minor, _ = before["blublas"].split(".")
    new = f"{major}.{int(minor) + 1}.0"
    assert versions.main(["bump", "blublas", "minor"]) == 0
    assert {package: versions.version(package) for package in PACKAGES} == {**before, "blublas": new}
    for package in ("blutensor", "blutrain"):
        assert f"blublas{versions.compatible_range(new)}" in list(versions.stated_requirements(package))
    changelog = (copied_repository / "packages" / "blublas" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert 0 < changelog.index(f"## {new} (unreleased)") < changelog.index(f"## {before['blublas']}")


@pytest.mark.parametrize(
    ("package", "old", "new", "problem"),
    [
        ("blutensor", "{requirement}", "blublas>=0.0.1", "expected {requirement}, got blublas>=0.0.1"),
        ("blublas", 'version = "{version}"', 'version = "77.0.0"', "expected blublas>=77.0.0,<78, got {requirement}"),
        ("blublas", 'version = "{version}"', 'version = "77.0.0"', "expected 77.0.0 on top, got {version}"),
    ],
    ids=["open range", "range that was not moved", "changelog without the version"],
)
def test_what_does_not_fit_together_is_found(
    copied_repository: Path, package: str, old: str, new: str, problem: str
) -> None:
    version = versions.version("blublas")
    names = {"version": version, "requirement": f"blublas{versions.compatible_range(version)}"}
    path = copied_repository / "packages" / package / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    assert old.format(**names) in text
    path.write_text(text.replace(old.format(**names), new), encoding="utf-8")
    repository.project.cache_clear()
    assert any(problem.format(**names) in text for text in versions.problems())
    assert versions.main([]) == 1


def test_arguments_that_are_not_understood_change_nothing(copied_repository: Path) -> None:
    before = versions.version("blublas")
    assert versions.main(["bump", "numpy", "minor"]) == 2
    assert versions.main(["bump", "blublas"]) == 2
    assert versions.version("blublas") == before


# ---- what distributions hold -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel_files() -> dict[str, bytes]:
    """The files of blualloc's wheel, as they were installed."""
    wheel = repository.built_wheel("blualloc")
    if wheel is None:
        pytest.skip("no wheel of blualloc from the present sources in dist/: nox -s wheels")
    return distributions.read(wheel)


INFO = f"blualloc-{versions.version('blualloc')}.dist-info"


def test_the_wheel_holds_what_it_should(wheel_files: dict[str, bytes]) -> None:
    assert list(distributions.wheel_problems("blualloc", wheel_files)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"blualloc/__pycache__/x.pyc": b""}, "blualloc: expected no __pycache__/x.pyc"),
        ({"blualloc/pools.py": None}, "blualloc: expected pools.py, got none"),
        ({"blualloc.libs/libfoo.so": b""}, "wheel: expected no blualloc.libs"),
        ({"libblualloc/lib/libblualloc.so.2": b""}, "expected one library"),
        ({"libblualloc/include/blualloc/blualloc.h": None}, "include: expected blualloc/blualloc.h, got none"),
        ({"libblualloc/lib/cmake/blualloc/blualloc-config.cmake": None}, "expected a configuration for CMake"),
        ({f"{INFO}/licenses/LICENSE": b"all rights reserved"}, "expected the LICENSE of the repository"),
        ({f"{INFO}/METADATA": b"Name: blualloc\n\n"}, "expected License-Expression with 'Apache-2.0'"),
    ],
)
def test_a_wheel_that_holds_something_else_is_found(
    wheel_files: dict[str, bytes], change: dict[str, bytes | None], problem: str
) -> None:
    files = {name: content for name, content in {**wheel_files, **change}.items() if content is not None}
    assert any(problem in text for text in distributions.wheel_problems("blualloc", files))


def test_names_of_distributions_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected <package>-<version>-py3-none-<platform>.whl or .tar.gz"):
        distributions.problems(Path("blualloc-0.1.0-cp311-cp311-linux_x86_64.whl"))
