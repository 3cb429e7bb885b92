"""The tasks of this repository. The README has the two commands that a newcomer needs.

    nox -s train                  build the wheels, install them, train gpt2-nano on the standard library's sources;
                                  what follows ``--`` goes to the training, e.g. ``--set train.steps=200``
    nox -s tests                  everything that has to pass: each package's tests, integration, lint
    nox -s "tests(blublas)"       one suite of it; what follows ``--`` goes to pytest
    nox -s tests -- --require-torch
                                  with PyTorch installed; its absence is then a failure
    nox -s integration lint docs  the suites that span packages, alone; ``docs`` builds the site into build/docs/html,
                                  warnings as errors, and runs the tutorials
    nox -s wheels                 wheels of all packages (or of those named after ``--``) into dist/
    nox -s compatibility          every package alone, from its wheel with what it declares, on Python 3.11 to 3.13;
                                  ``nox -s "compatibility(blublas, 3.13)"`` is one of them
    nox -s release                what is published, checked and tried on these versions, in dist/release/
                                  (docs/releasing.md)
    nox -s version -- bump blublas minor
                                  set a version, and the ranges of those that need it
    nox -s bench -- ARGUMENTS     ``blutrain bench ARGUMENTS``
    nox -s array_api -- FOLDER    the array API standard's conformance suite, a checkout of which lies in FOLDER, on
                                  blutensor, but for packages/blutensor/tests/array_api_xfails.txt; what follows goes
                                  to pytest; the environment's ARRAY_API_TESTS_VERSION names an older version
    nox -s asan                   native tests under AddressSanitizer and UndefinedBehaviorSanitizer
    nox -s fuzz -- [TARGET...] [--runs N] [--seconds S] [--processes N] [--guided S]
                                  the readers of files under AddressSanitizer, with a million inputs each
    nox -s gpu                    wheels with CUDA into dist/cuda/, their device code checked; `--archs 90a-real` after
                                  ``--`` compiles one architecture instead of all; on the machine with the GPU,
                                  tools/gpu_machine.py then runs the GPU's tests and benchmarks

Nothing but Python 3.11+ with venv and g++ is expected: CMake, Ninja and the linters come from PyPI. All native code is
built in one environment, build/env, and one build tree per package, build/wheel/<package>; a wheel is built again only
when something that it is made from has changed.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import commands  # noqa: E402
import interpreters  # noqa: E402
import repository  # noqa: E402

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["tests"]

BUILD = ROOT / "build"
BUILD_ENV = BUILD / "env"
REPORTS = BUILD / "reports"
TOOLS = nox.project.load_toml(ROOT / "pyproject.toml")
SUITES = ["lint", *repository.packages(), "integration", "docs"]
REQUIRE_TORCH = "--require-torch"


def group(name: str) -> list[str]:
    """The requirements of a dependency group of the root pyproject.toml."""
    return list(nox.project.dependency_groups(TOOLS, name))


def installed_once(marker: Path, content: Sequence[str], install: Callable[[], None]) -> None:
    """Install unless the marker in the environment says that exactly this is there."""
    text = "\n".join(content)
    if marker.is_file() and marker.read_text(encoding="utf-8") == text:
        return
    marker.unlink(missing_ok=True)
    install()
    marker.write_text(text, encoding="utf-8")


# ---- wheels ----------------------------------------------------------------------------------------------------


def build_env_run(session: nox.Session, program: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run a program of the build environment; it finds its CMake and Ninja before the machine's."""
    path = os.pathsep.join([str(BUILD_ENV / "bin"), os.environ.get("PATH", "")])
    session.run(str(BUILD_ENV / "bin" / program), *arguments, external=True, env={"PATH": path, **(env or {})})


@functools.cache
def _prepared_build_env(session: nox.Session) -> None:
    python = BUILD_ENV / "bin" / "python"
    if not python.exists():
        session.run(sys.executable, "-m", "virtualenv", "-q", str(BUILD_ENV), external=True)
    needs = group("build")
    installed_once(
        BUILD_ENV / "build-requirements.txt",
        needs,
        lambda: build_env_run(session, "python", "-m", "pip", "install", "-q", *needs),
    )


def install_in_build_env(session: nox.Session, packages: Iterable[str]) -> None:
    """Install wheels that others are built against."""
    for package in packages:
        wheel = current_wheel(package)
        installed_once(
            BUILD_ENV / f"installed-{package}.txt",
            [repository.wheel_digest(package)],
            functools.partial(
                build_env_run,
                session,
                *("python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall", str(wheel)),
            ),
        )


def current_wheel(package: str) -> Path:
    """The wheel of a package that :func:`ensure_wheels` built or kept."""
    wheel = repository.built_wheel(package)
    if wheel is None:
        sys.exit(f"files of {package} changed while it was being built; run nox again")
    return wheel


def build_wheel(session: nox.Session, package: str) -> None:
    """Build one wheel in its kept build tree; its upstreams are in the build environment."""
    digest = repository.wheel_digest(package)
    out = BUILD / "wheelhouse" / package
    for old in out.glob("*.whl"):
        old.unlink()
    settings = {
        "build-dir": BUILD / "wheel" / package,
        "cmake.define.BLU_WERROR": "ON",
        "cmake.define.BLU_BUILD_TESTS": "OFF",
    }
    pip = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(out)]
    build_env_run(
        session, "python", *pip, *(f"-C{k}={v}" for k, v in settings.items()), str(ROOT / "packages" / package)
    )
    (wheel,) = out.glob("*.whl")
    kept = repository.keep_wheel(package, wheel, digest)
    session.log(f"built {kept.name} ({kept.stat().st_size >> 10} KiB)")


def ensure_wheels(session: nox.Session, wanted: Iterable[str]) -> list[Path]:
    """Wheels of the wanted packages and of what they need, in build order; unchanged ones are kept."""
    needed = repository.with_upstreams(wanted)
    for package in needed:
        if repository.built_wheel(package) is None:
            _prepared_build_env(session)
            install_in_build_env(session, repository.with_upstreams(repository.direct_upstreams(package)))
            build_wheel(session, package)
    return [current_wheel(package) for package in needed]


def install_packages(session: nox.Session, wanted: Iterable[str], *extra: str, groups: Sequence[str] = ()) -> None:
    """Install packages of this repository with all that they need, and more from PyPI."""
    wheels = [str(wheel) for wheel in ensure_wheels(session, wanted)]
    needed = repository.with_upstreams(wanted)
    foreign = [*repository.foreign_requirements(needed), *extra]
    foreign += [r for r in repository.foreign_requirements(wanted, *groups) if r not in foreign]
    content = [*foreign, *(repository.wheel_digest(package) for package in needed)]

    def install() -> None:
        if foreign:
            session.install("-q", *foreign)
        # pip takes another build of the same version for installed already, so it is told to replace it.
        session.install("-q", "--no-deps", "--no-index", "--force-reinstall", *wheels)

    installed_once(Path(session.virtualenv.location) / "installed-packages.txt", content, install)


def chosen_packages(session: nox.Session) -> Sequence[str]:
    """The packages named after ``--``, or all."""
    known = repository.packages()
    unknown = [name for name in session.posargs if name not in known]
    if unknown:
        session.error(f"expected packages out of {', '.join(known)}, got {', '.join(unknown)}")
    return session.posargs or known


@nox.session
def wheels(session: nox.Session) -> None:
    """Build wheels into dist/."""
    for wheel in ensure_wheels(session, chosen_packages(session)):
        session.log(str(wheel.relative_to(ROOT)))


# ---- train and bench -------------------------------------------------------------------------------------------


@nox.session
def train(session: nox.Session) -> None:
    """Build and install everything, then train gpt2-nano on the sources of Python's standard library."""
    install_packages(session, ["blutrain"])
    for command in commands.train(session.posargs):
        session.run("python", "-m", "blutrain", *command)


@nox.session
def bench(session: nox.Session) -> None:
    """``blutrain bench`` with everything after ``--``; PyTorch is installed when it is the peer."""
    install_packages(session, ["blutrain"], *(group("peer") if "torch" in session.posargs else []))
    session.run("python", "-m", "blutrain", "bench", *session.posargs)


# ---- tests -----------------------------------------------------------------------------------------------------


def run_pytest(session: nox.Session, name: str, folder: Path, python: str = "python") -> None:
    """Run the tests of a folder against what is installed: no folder of sources is on the path."""
    arguments = [a for a in session.posargs if a != REQUIRE_TORCH]
    env = {"BLU_REQUIRE_TORCH": "1"} if REQUIRE_TORCH in session.posargs else {}
    session.run(
        *(python, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
        *(f"--junitxml={REPORTS / name}.pytest.xml", str(folder), *arguments),
        env=env,
        external=True,
    )


def has_native_tests(package: str) -> bool:
    """Whether a CMakeLists.txt of the package declares a native test."""
    lists = (ROOT / "packages" / package).rglob("CMakeLists.txt")
    return any("blu_native_test(" in path.read_text(encoding="utf-8") for path in lists)


def run_native_tests(session: nox.Session, package: str) -> None:
    """Build the native tests in the build tree of the wheel, whose objects they share, and run them.

    The objects of kernels are looked at as well: none may leak its instruction set to the rest of the library.
    """
    tree = BUILD / "wheel" / package
    _prepared_build_env(session)
    install_in_build_env(session, repository.with_upstreams(repository.direct_upstreams(package)))
    if not (tree / "CMakeCache.txt").is_file():
        build_wheel(session, package)
    session.run("python", "tools/isa_leaks.py", str(tree))
    if not has_native_tests(package):
        return
    build_env_run(session, "cmake", "-S", str(ROOT / "packages" / package), "-B", str(tree), "-DBLU_BUILD_TESTS=ON")
    build_env_run(session, "cmake", "--build", str(tree))
    run_ctest(session, tree, f"tests({package}).native")


def run_ctest(session: nox.Session, tree: Path, name: str, env: dict[str, str] | None = None) -> None:
    """Run the native tests of a build tree, with a report."""
    report = str(REPORTS / f"{name}.xml")
    build_env_run(
        session,
        *("ctest", "--test-dir", str(tree), "--output-on-failure", "--no-tests=error", "--output-junit", report),
        env=env,
    )


def test_package(session: nox.Session, package: str) -> None:
    """Tests of one package against the installed wheels of it and of what it needs."""
    groups = ["test", "peer"] if REQUIRE_TORCH in session.posargs else ["test"]
    install_packages(session, [package], *group("test"), groups=groups)
    run_native_tests(session, package)
    run_pytest(session, f"tests({package})", ROOT / "packages" / package / "tests")


def test_integration(session: nox.Session, name: str) -> None:
    """Tests of what spans packages."""
    needs = [*group("test"), *group("build"), *group("integration")]
    needs += group("peer") if REQUIRE_TORCH in session.posargs else []
    install_packages(session, repository.packages(), *needs)
    run_pytest(session, name, ROOT / "integration_tests")


def test_docs(session: nox.Session, name: str) -> None:
    """The documentation: its site, its references, its tutorials."""
    groups = ["test", "peer"] if REQUIRE_TORCH in session.posargs else ["test"]
    install_packages(session, repository.packages(), *group("test"), *group("docs"), groups=groups)
    session.run("python", "tools/docs_site.py")
    run_pytest(session, name, ROOT / "docs" / "tests")


@nox.session
@nox.parametrize("suite", [nox.param(name, id=name) for name in SUITES])
def tests(session: nox.Session, suite: str) -> None:
    """Everything that has to pass, one suite at a time."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    if suite == "lint":
        run_lint(session, "tests(lint)")
    elif suite == "integration":
        test_integration(session, "tests(integration)")
    elif suite == "docs":
        test_docs(session, "tests(docs)")
    else:
        test_package(session, suite)


@nox.session
def integration(session: nox.Session) -> None:
    """Tests of what spans packages, alone."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    test_integration(session, "integration")


@nox.session
def docs(session: nox.Session) -> None:
    """The site of the documentation, in build/docs/html, and the tests of its references and tutorials."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    test_docs(session, "docs")


@nox.session
def array_api(session: nox.Session) -> None:
    """The conformance suite of the array API standard (data-apis/array-api-tests) from a folder, on blutensor."""
    if not session.posargs or not Path(session.posargs[0]).is_dir():
        session.error("expected the folder of a checkout of array-api-tests, with its submodule, after --")
    suite, *arguments = session.posargs
    suite = str(Path(suite).resolve())
    known = ROOT / "packages" / "blutensor" / "tests" / "array_api_xfails.txt"
    install_packages(session, ["blutensor"], "-r", str(Path(suite) / "requirements.txt"))
    with session.chdir(suite):
        # The version of the standard that the namespace states, unless ARRAY_API_TESTS_VERSION names another.
        session.run(
            *("python", "-m", "pytest", "array_api_tests", "--disable-deadline", f"--xfails-file={known}", *arguments),
            env={"ARRAY_API_TESTS_MODULE": "blutensor"},
        )


@nox.session
def asan(session: nox.Session) -> None:
    """The native tests of every package (or of those named after ``--``), all code built with ASan and UBSan."""
    wanted = chosen_packages(session)
    REPORTS.mkdir(parents=True, exist_ok=True)
    _prepared_build_env(session)
    top = BUILD / "asan"
    prefixes = ";".join(str(top / "prefix" / f"lib{package}") for package in repository.packages())
    for package in repository.with_upstreams(wanted):
        tree = top / package
        build_env_run(
            session,
            *("cmake", "-S", str(ROOT / "packages" / package), "-B", str(tree), "-G", "Ninja"),
            *("-DBLU_SANITIZE=address,undefined", "-DBLU_BUILD_TESTS=ON", f"-DCMAKE_PREFIX_PATH={prefixes}"),
        )
        build_env_run(session, "cmake", "--build", str(tree))
        build_env_run(session, "cmake", "--install", str(tree), "--prefix", str(top / "prefix"))
        if not has_native_tests(package):
            session.warn(f"{package} has no native tests")
            continue
        # Without detect_stack_use_after_return: GCC 12's fake stack frames are not aligned for 64-byte vectors.
        options = {"ASAN_OPTIONS": "detect_stack_use_after_return=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        run_ctest(session, tree, f"asan.{package}", env=options)


# ---- other versions of Python, releases ------------------------------------------------------------------------


def environment_of(session: nox.Session, version: str, name: str) -> str:
    """The interpreter of a new environment; the session is skipped where the version of Python is not installed."""
    base = interpreters.find(version)
    if base is None:
        session.skip(f"Python {version} is not on this machine")
    folder = BUILD / "environments" / f"{name}-{version}"
    session.run(sys.executable, "-m", "virtualenv", "-q", "--clear", "-p", str(base), str(folder), external=True)
    return str(folder / "bin" / "python")


@nox.session(venv_backend="none")
@nox.parametrize("version", [nox.param(version, id=version) for version in interpreters.VERSIONS])
@nox.parametrize("package", [nox.param(package, id=package) for package in repository.packages()])
def compatibility(session: nox.Session, package: str, version: str) -> None:
    """One package alone on one version of Python: its wheel, what that declares, its tests."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    python = environment_of(session, version, package)
    wheels = [str(wheel) for wheel in ensure_wheels(session, [package])]
    session.run(python, "-m", "pip", "install", "-q", *wheels, external=True)
    # Before the tests bring packages of their own: what is declared has to be enough to import everything.
    session.run(python, "-W", "error", "tools/try_installation.py", package, external=True)
    needs = [*group("test"), *repository.foreign_requirements([package], "test")]
    session.run(python, "-m", "pip", "install", "-q", *needs, external=True)
    run_pytest(session, f"compatibility({package}, {version})", ROOT / "packages" / package / "tests", python)


@nox.session
def release(session: nox.Session) -> None:
    """What is published: source distributions and manylinux wheels in dist/release/, checked, and tried.

    Wheels are built from the source distributions; with ``-- --kept-wheels`` those of ``nox -s wheels`` are taken, and
    only the wheels that take seconds are built from source distributions as well.
    """
    session.install("-q", *group("release"))
    if "--kept-wheels" in session.posargs:
        ensure_wheels(session, repository.packages())
    session.run("python", "tools/release.py", *session.posargs)
    wheels = [str(wheel) for wheel in sorted((ROOT / "dist" / "release").glob("*.whl"))]
    for version in interpreters.VERSIONS:
        if interpreters.find(version) is None:
            session.warn(f"Python {version} is not on this machine: the wheels are not tried on it")
            continue
        python = environment_of(session, version, "release")
        session.run(python, "-m", "pip", "install", "-q", *wheels, external=True)
        trial = ["tools/try_installation.py", "--train", *repository.packages()]
        session.run(python, "-W", "error", *trial, external=True)


@nox.session
def version(session: nox.Session) -> None:
    """Check the versions and ranges of the packages; ``-- bump PACKAGE PART`` sets one."""
    session.install("-q", *group("version"))
    session.run("python", "tools/versions.py", *session.posargs)


# ---- fuzzing ---------------------------------------------------------------------------------------------------


@nox.session
def fuzz(session: nox.Session) -> None:
    """Feed the readers of files with what nobody wrote: a million inputs each, under AddressSanitizer."""
    install_packages(session, ["blutrain"], *group("build"), *group("fuzz"), groups=["test"])
    session.run("python", "tools/fuzz.py", *session.posargs)


# ---- GPU -------------------------------------------------------------------------------------------------------

ALL_ARCHS = "80-real;86-real;89-real;90a-real;90-virtual"
GPU_BUILD_MINUTES = 10
"""So long one architecture may take on two cores."""


@nox.session
def gpu(session: nox.Session) -> None:
    """Build wheels with CUDA kernels and check their device code. Needs nvcc 13, no GPU."""
    archs = session.posargs[1] if session.posargs[:1] == ["--archs"] and len(session.posargs) == 2 else ALL_ARCHS
    if session.posargs and archs == ALL_ARCHS:
        session.error("expected nothing or --archs LIST after --, for example --archs 90a-real")
    session.install("-q", *group("cuda"))
    _prepared_build_env(session)
    top, out = BUILD / "gpu", ROOT / "dist" / "cuda"
    shutil.rmtree(out, ignore_errors=True)
    prefixes = ";".join(str(top / "prefix" / f"lib{package}") for package in repository.packages())
    begin = time.monotonic()
    for package in repository.packages():
        settings = {
            "build-dir": top / package,
            "cmake.define.BLU_WERROR": "ON",
            "cmake.define.BLU_CUDA": "ON",
            "cmake.define.BLU_CUDA_ARCHS": archs,
            "cmake.define.CMAKE_PREFIX_PATH": prefixes,
        }
        pip = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(out)]
        folder = str(ROOT / "packages" / package)
        build_env_run(session, "python", *pip, *(f"-C{k}={v}" for k, v in settings.items()), folder)
        build_env_run(session, "cmake", "--install", str(top / package), "--prefix", str(top / "prefix"))
    minutes = (time.monotonic() - begin) / 60
    session.log(f"compiled {archs} in {minutes:.1f} minutes")
    session.run("python", "tools/device_code.py", *sorted(str(wheel) for wheel in out.glob("*.whl")))
    if ";" not in archs and minutes > GPU_BUILD_MINUTES:
        session.error(f"expected one architecture to compile in {GPU_BUILD_MINUTES} minutes, took {minutes:.1f}")
    session.log("next, on a machine with a GPU: python tools/gpu_machine.py --wheels dist/cuda")


# ---- lint ------------------------------------------------------------------------------------------------------


def run_lint(session: nox.Session, name: str) -> None:
    """Run every check, also after one failed, and write a report like that of the tests."""
    # mypy reads the types of what the packages import.
    needs = [*group("lint"), *repository.foreign_requirements(repository.packages())]
    installed_once(
        Path(session.virtualenv.location) / "installed-linters.txt", needs, lambda: session.install("-q", *needs)
    )
    session.run("python", "tools/native_modules.py", silent=True)
    failed, cases = [], []
    for check, command in commands.lint().items():
        try:
            session.run(*command)
            failure = ""
        except nox.command.CommandFailed:
            failed.append(check)
            failure = "<failure/>"
        cases.append(f"<testcase classname='lint' name={quoteattr(check)}>{failure}</testcase>")
    report = f"<testsuite name='lint' tests='{len(cases)}' failures='{len(failed)}'>{''.join(cases)}</testsuite>\n"
    (REPORTS / f"{name}.checks.xml").write_text(report, encoding="utf-8")
    session.log(f"lint: {len(cases) - len(failed)} checks passed, {len(failed)} failed")
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting, types, directions of includes and imports, lengths of files, tables of the documentation."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    run_lint(session, "lint")
