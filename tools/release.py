"""Makes what is published, in dist/release/: source distributions, and wheels that run on every Linux from a glibc on.

    python tools/release.py                  wheels are built from the source distributions, each in isolation
    python tools/release.py --kept-wheels    wheels are those in dist/; QUICK ones are built from source as well

Isolation: a wheel is built from its source distribution alone, with the build tools of its pyproject.toml from PyPI and
the wheels of its upstreams, and no index in reach that could serve another package by one of our names.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import distributions
import repository

OUT = repository.DIST / "release"
WORK = repository.ROOT / "build" / "release"
POLICY = "manylinux_2_34"
"""What g++ 12 on Debian 12 reaches: its threads are those of glibc 2.34."""
NEWEST_GLIBC = (2, 36)
"""Debian 12's. What is linked on a newer system may ask for more than POLICY."""
OURS = "libblu*.so.*"
"""Libraries that come from other wheels of this repository, never as a second copy in one."""
QUICK = ("blutrain",)
"""Built from its source distribution in every check: it takes seconds."""


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a program of this environment, and end when it fails."""
    print("release:", *command, flush=True)
    result = subprocess.run([sys.executable, "-m", *command], cwd=cwd, check=False)
    if result.returncode != 0:
        sys.exit(f"expected {command[0]} to succeed, got status {result.returncode}")


def build_sdist(package: str) -> Path:
    """The source distribution of a package, in OUT."""
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    folder = repository.ROOT / "packages" / package
    subprocess.run([sys.executable, "-c", code, str(OUT)], cwd=folder, check=True, capture_output=True)
    (sdist,) = OUT.glob(f"{package}-*.tar.gz")
    return sdist


def fetch_build_tools(packages: Sequence[str]) -> None:
    """Wheels of what the given packages are built with, from outside of this repository, into WORK/tools."""
    stated = {r for package in packages for r in repository.project(package)["build-system"]["requires"]}
    foreign = {r for r in stated if repository.requirement_name(r) not in repository.packages()}
    # An upstream is installed to build against it, with what it needs itself.
    foreign |= set(repository.foreign_requirements(u for p in packages for u in repository.direct_upstreams(p)))
    # scikit-build-core asks for these two where the machine has none that are new enough.
    tools = ["cmake>=3.24", "ninja"]
    run("pip", "download", "-q", "--only-binary=:all:", "-d", WORK / "tools", *sorted(foreign), *tools)


def build_wheel(sdist: Path, out: Path) -> Path:
    """Build a wheel from a source distribution alone; upstreams' wheels are looked for in ``out``."""
    links = [part for folder in (WORK / "tools", out) for part in ("--find-links", str(folder))]
    run("pip", "wheel", "-q", "--no-index", *links, "--no-deps", "-w", out, sdist)
    (wheel,) = out.glob(f"{sdist.name.split('-')[0]}-*.whl")
    return wheel


def repair(wheel: Path, checked_only: bool) -> Path:
    """Check a wheel's libraries against POLICY and write it with that tag into OUT.

    What a library needs of our other wheels is named by its RUNPATH and stays there; anything else that POLICY does not
    name would be copied into the wheel, which `distributions` then refuses. What is only checked gets the tag of the
    system where that is newer than what releases are made on.
    """
    tag = f"{POLICY}_{wheel.stem.split('linux_', 1)[1]}"
    if checked_only and tuple(int(part) for part in platform.libc_ver()[1].split(".")) > NEWEST_GLIBC:
        tag = "auto"
    run("auditwheel", "repair", "--only-plat", "--plat", tag, "--exclude", OURS, "-w", OUT, wheel)
    (repaired,) = OUT.glob(f"{wheel.name.split('-')[0]}-*.whl")
    if tag != "auto" and not repaired.stem.endswith(f"-{tag}"):
        sys.exit(f"expected a wheel for {tag}, got {repaired.name}")
    return repaired


def collect_wheels(sdists: Sequence[Path], from_sdists: bool) -> list[Path]:
    """One wheel per source distribution, in build order."""
    built = WORK / "wheels"
    built.mkdir()
    chosen = [sdist for sdist in sdists if from_sdists or sdist.name.split("-")[0] in QUICK]
    fetch_build_tools([sdist.name.split("-")[0] for sdist in chosen])
    wheels = {sdist.name.split("-")[0]: build_wheel(sdist, built) for sdist in chosen}
    for package in repository.packages():
        if package not in wheels:
            kept = repository.built_wheel(package)
            if kept is None:
                sys.exit(f"expected a wheel of {package} from what is there now in dist/, got none; nox -s wheels")
            wheels[package] = kept
    return [wheels[package] for package in repository.packages()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, repair and check everything; anything that is wrong ends it."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(argument != "--kept-wheels" for argument in arguments):
        print("expected nothing or --kept-wheels", file=sys.stderr)
        return 2
    for folder in (OUT, WORK):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    sdists = [build_sdist(package) for package in repository.packages()]
    kept = "--kept-wheels" in arguments
    wheels = [repair(wheel, checked_only=kept) for wheel in collect_wheels(sdists, from_sdists=not kept)]
    made = [*sdists, *wheels]
    run("twine", "check", "--strict", *made)
    status = distributions.main([str(path) for path in made])
    for path in made:
        print(f"{path.stat().st_size >> 10:6d} KiB  {path.relative_to(repository.ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
