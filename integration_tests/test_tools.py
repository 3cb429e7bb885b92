"""The scripts that lint and CI rely on: a check that never fails checks nothing."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docs_tables
import file_lengths
import include_directions
import interpreters
import isa_leaks
import pytest
import repository
import sum_reports

ROW = {
    "work": "gemm.fp32.square512.tflops",
    "ours": 0.1234567,
    "peer": 0.1,
    "peer_name": "torch",
    "ratio": 1.234567,
    "better": "higher",
    "machine": "M",
    "commit": "abc1234",
    "date": "2026-12-01",
    "command": "python bench.py",
}
TEXT = "before\n<!-- table:r/*.json -->\n<!-- /table -->\nafter\n"


def repository_with(folder: Path, rows: object, text: str = TEXT) -> Path:
    """A root folder with one document and one result file."""
    (folder / "r").mkdir()
    (folder / "r" / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "README.md").write_text(text, encoding="utf-8")
    return folder


# ---- tables of the documentation -------------------------------------------------------------------------------


def test_a_table_is_written_once_and_then_agrees_with_its_json(tmp_path: Path) -> None:
    root = repository_with(tmp_path, [ROW])
    assert docs_tables.main(["--check", "--root", str(root)]) == 1
    assert docs_tables.main(["--root", str(root)]) == 0
    text = (root / "README.md").read_text(encoding="utf-8")
    assert "| `gemm.fp32.square512.tflops` | 0.1235 | torch | 0.1 | higher | 1.23x |" in text
    assert "commit `abc1234`, with `python bench.py`" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert docs_tables.main(["--check", "--root", str(root)]) == 0


def test_a_changed_figure_fails_the_check(tmp_path: Path) -> None:
    root = repository_with(tmp_path, [ROW])
    docs_tables.main(["--root", str(root)])
    (root / "r" / "a.json").write_text(json.dumps([{**ROW, "ours": 0.2}]), encoding="utf-8")
    assert docs_tables.main(["--check", "--root", str(root)]) == 1


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([ROW], TEXT.replace("r/*", "missing/*")),
        ([ROW], TEXT.replace(" -->\n<", " work=train.* -->\n<")),
        ([ROW], TEXT.replace("<!-- /table -->", "")),
        ({"work": "x"}, TEXT),
        ([{key: value for key, value in ROW.items() if key != "command"}], TEXT),
    ],
    ids=["no file", "no matching row", "not closed", "no list", "missing field"],
)
def test_a_marker_without_a_table_is_a_failure(tmp_path: Path, rows: object, text: str) -> None:
    assert docs_tables.main(["--root", str(repository_with(tmp_path, rows, text))]) == 1


def test_work_selects_rows(tmp_path: Path) -> None:
    other = {**ROW, "work": "train.nano.fp32.T128.B16.tokens_per_s.cpu"}
    root = repository_with(tmp_path, [ROW, other], TEXT.replace(" -->\n<", " work=train.* -->\n<"))
    assert docs_tables.main(["--root", str(root)]) == 0
    text = (root / "README.md").read_text(encoding="utf-8")
    assert "train.nano" in text
    assert "gemm.fp32" not in text


# ---- include directions ----------------------------------------------------------------------------------------

LAYERS = include_directions.LayerRules("p", ["low", ["left", "right"], "high"])


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("low/a.cpp", "low/a.h", True),
        ("high/a.cpp", "low/a.h", True),
        ("left/deep/a.cpp", "low/deep/a.h", True),
        ("low/a.cpp", "left/a.h", False),
        ("left/a.cpp", "right/a.h", False),
        ("left/a.cpp", "high/a.h", False),
        ("module.cpp", "high/a.h", True),
        ("high/a.cpp", "module.h", False),
        ("tests/a.cpp", "high/a.h", True),
        ("unknown/a.cpp", "low/a.h", False),
        ("high/a.cpp", "unknown/a.h", False),
    ],
)
def test_a_layer_reaches_only_itself_and_earlier_ones(source: str, target: str, allowed: bool) -> None:
    assert (LAYERS.check(Path(source), Path(target)) is None) == allowed


@pytest.fixture
def two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root with package ``blub``, and ``blua`` that knows nothing of it."""
    for name, needs in (("blua", "[]"), ("blub", '["blua~=0.1.0"]')):
        for folder in ("native/low", f"include/{name}", f"src/{name}"):
            (tmp_path / "packages" / name / folder).mkdir(parents=True)
        text = f'[project]\nname = "{name}"\nversion = "0.1.0"\ndependencies = {needs}\n'
        (tmp_path / "packages" / name / "pyproject.toml").write_text(text, encoding="utf-8")
        (tmp_path / "packages" / name / "include" / name / f"{name}.h").touch()
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    repository.packages.cache_clear()
    repository.project.cache_clear()
    yield tmp_path / "packages"
    repository.packages.cache_clear()
    repository.project.cache_clear()


@pytest.mark.parametrize(
    ("package", "line", "problem"),
    [
        ("blub", "#include <blua/blua.h>", None),
        ("blub", "#include <vector>", None),
        ("blub", '#include "blub/blub.h"', None),
        ("blua", "#include <blub/blub.h>", "no dependency of blua"),
        ("blub", "#include <blua/inner.h>", "only what lies under include/ is public"),
        ("blub", '#include "../../../blua/native/x.h"', "lies outside of its package"),
        ("blub", '#include "nowhere.h"', "not in this package"),
        ("blub", "#include <Python.h>", "Python.h"),
        ("blub", '#include "other.cpp"', "source file"),
    ],
)
def test_native_includes_between_packages(two_packages: Path, package: str, line: str, problem: str | None) -> None:
    (two_packages / "blua" / "native" / "x.h").touch()
    (two_packages / package / "native" / "low" / "x.cpp").write_text(f"// text\n{line}\n", encoding="utf-8")
    found = list(include_directions.native_violations(package, include_directions.LayerRules(package, [])))
    if problem is None:
        assert found == []
    else:
        assert len(found) == 1
        assert f"packages/{package}/native/low/x.cpp:2: " in found[0]
        assert problem in found[0]


@pytest.mark.parametrize(
    ("package", "line", "problem"),
    [
        ("blub", "import blua", None),
        ("blub", "from blub import _native", None),
        ("blua", "import blub", "no dependency of blua"),
        ("blua", "import libblub", "no dependency of blua"),
        ("blua", "from blub.deep import x", "no dependency of blua"),
        ("blub", "from blua import _native", "private to blua"),
        ("blub", "import blua._native", "private to blua"),
    ],
)
def test_python_imports_between_packages(two_packages: Path, package: str, line: str, problem: str | None) -> None:
    (two_packages / package / "src" / package / "x.py").write_text(f"{line}\n", encoding="utf-8")
    found = list(include_directions.python_violations(package))
    assert len(found) == (problem is not None)
    assert all(problem in text for text in found)


# ---- instruction sets ------------------------------------------------------------------------------------------

KERNEL = """inline float twice(float x) { return 2 * x; }
float four(float x);
float four(float x) { return twice(x) * 2; }
"""


@pytest.mark.parametrize(
    ("source", "flag", "leaking"),
    [
        (KERNEL, "-mavx2", ["_Z5twicef"]),
        (KERNEL, "-O0", []),
        (f"namespace avx2 {{\n{KERNEL}}}\n", "-mavx2", []),
        (KERNEL.replace("inline", "static"), "-mavx512f", []),
    ],
    ids=["inline function", "baseline", "in its namespace", "internal"],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
def test_weak_symbols_of_kernels_are_found(tmp_path: Path, source: str, flag: str, leaking: list[str]) -> None:
    (tmp_path / "kernel.cpp").write_text(source, encoding="utf-8")
    command = ["g++", flag, "-o", "kernel.o", "-c", "kernel.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    entry = {"directory": str(tmp_path), "command": " ".join(command), "file": "kernel.cpp"}
    (tmp_path / "compile_commands.json").write_text(json.dumps([entry]), encoding="utf-8")
    objects = list(isa_leaks.kernel_objects(tmp_path))
    found = [
        name
        for path in objects
        for name in isa_leaks.leaks(subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout)
    ]
    assert len(objects) == (flag != "-O0")
    assert found == leaking
    assert isa_leaks.main([str(tmp_path)]) == bool(leaking)


# ---- wheels ----------------------------------------------------------------------------------------------------


def test_packages_come_after_what_they_need() -> None:
    order = repository.packages()
    for package in order:
        assert all(order.index(upstream) < order.index(package) for upstream in repository.direct_upstreams(package))


def test_a_digest_changes_with_sources_and_upstreams_but_not_with_tests(two_packages: Path) -> None:
    before = {name: repository.wheel_digest(name) for name in ("blua", "blub")}
    (two_packages / "blua" / "tests").mkdir()
    (two_packages / "blua" / "tests" / "test_x.py").touch()
    assert {name: repository.wheel_digest(name) for name in before} == before
    (two_packages / "blub" / "native" / "new.cpp").touch()
    assert repository.wheel_digest("blua") == before["blua"]
    assert repository.wheel_digest("blub") != before["blub"]
    between = repository.wheel_digest("blub")
    (two_packages / "blua" / "native" / "new.cpp").touch()
    assert repository.wheel_digest("blua") != before["blua"]
    assert repository.wheel_digest("blub") != between


# ---- interpreters and lengths of files -------------------------------------------------------------------------


def test_an_interpreter_is_found_that_runs_and_is_of_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert interpreters.find(own) is not None
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    assert interpreters.find("3.99") is None
    programs = {"shims/python3.99": "exit 127", "pyenv/versions/3.99.0/bin/python": "echo 3.99"}
    for name, does in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        path.chmod(0o755)
    assert interpreters.find("3.99") == tmp_path / "pyenv/versions/3.99.0/bin/python"


def test_classifiers_name_the_versions_that_are_tested() -> None:
    for package in repository.packages():
        classifiers = repository.project(package)["project"]["classifiers"]
        named = {
            text.rpartition(" ")[2] for text in classifiers if text.startswith("Programming Language :: Python :: 3.")
        }
        assert named == set(interpreters.VERSIONS)


@pytest.mark.parametrize(
    ("first", "lines", "status", "named"),
    [("", 500, 0, 0), ("", 501, 0, 1), ("", 701, 1, 1), ('"""Signatures, generated from a table."""', 701, 0, 0)],
)
def test_long_files_are_named_and_longer_ones_fail(
    two_packages: Path, capsys: pytest.CaptureFixture[str], first: str, lines: int, status: int, named: int
) -> None:
    path = two_packages / "blua" / "src" / "blua" / "long.py"
    path.write_text(first + "\n" * lines, encoding="utf-8")
    assert file_lengths.main() == status
    assert f"{named} files have more than 500 lines" in capsys.readouterr().out


# ---- sums of CI ------------------------------------------------------------------------------------------------


def write_reports(folder: Path, sessions: dict[str, str]) -> None:
    """Two reports, one with a failure, an error and a skip, and nox's own."""
    (folder / "tests(a).pytest.xml").write_text(
        "<testsuites><testsuite><testcase name='x'/><testcase name='y'><failure/></testcase>"
        "<testcase name='z'><error/></testcase><testcase name='s'><skipped/></testcase></testsuite></testsuites>",
        encoding="utf-8",
    )
    (folder / "tests(b).native.xml").write_text(
        "<testsuite><testcase name='n' status='run'/></testsuite>", encoding="utf-8"
    )
    results = [{"name": "tests", "signatures": [name], "result": result} for name, result in sessions.items()]
    (folder / "nox-tests.json").write_text(json.dumps({"result": 0, "sessions": results}), encoding="utf-8")


def test_sums_count_cases_and_sessions_that_failed_outside_of_their_tests(tmp_path: Path) -> None:
    write_reports(tmp_path, {"tests(a)": "failed", "tests(b)": "failed", "tests(c)": "aborted", "tests(d)": "success"})
    counts, broken = sum_reports.sum_up(tmp_path)
    assert counts["tests(a).pytest"] == sum_reports.Counts(passed=1, failed=2, skipped=1)
    assert counts["tests(b).native"] == sum_reports.Counts(passed=1)
    assert broken == ["tests(b) (failed)", "tests(c) (aborted)"]


def test_an_unreadable_report_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("<testsuite><testcase", encoding="utf-8")
    assert sum_reports.sum_up(tmp_path)[0] == {"x": sum_reports.Counts(failed=1)}
