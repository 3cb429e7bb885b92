"""Builds the documentation with Sphinx, warnings as errors: ``python tools/docs_site.py [OUT]``, by default build/docs.

The pages of ``docs/`` are copied to ``OUT/source`` and the generated ones (see docs_reference) are written beside them;
the site is ``OUT/html``. Links out of ``docs/`` are named as the files that they lead to.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import docs_reference

ROOT = Path(__file__).resolve().parent.parent
READMES = docs_reference.PACKAGES
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def stage(out: Path) -> None:
    """Lay out everything that Sphinx reads in a folder, which is replaced."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    reference = out / "reference"
    reference.mkdir(exist_ok=True)
    pages = {
        "commands.md": docs_reference.command_page(),
        "configuration.md": docs_reference.configuration_page(),
        "operators.md": docs_reference.operator_page(),
        **{f"{package}.rst": docs_reference.package_page(package) for package in docs_reference.PACKAGES},
    }
    for name, text in pages.items():
        (reference / name).write_text(text, encoding="utf-8")
    packages = out / "packages"
    packages.mkdir()
    for package in READMES:
        shutil.copy(ROOT / "packages" / package / "README.md", packages / f"{package}.md")
    for page in out.rglob("*.md"):
        page.write_text(_with_links(page, out, page.read_text(encoding="utf-8")), encoding="utf-8")


def _with_links(page: Path, out: Path, text: str) -> str:
    """Links to files that are no pages become those files' names, as they are in the repository."""

    def replaced(match: re.Match[str]) -> str:
        label, target = match[1], match[2]
        if (page.parent / target).exists():
            return match[0]
        name = Path(target).name
        same = [other for other in out.rglob(name) if other.suffix == ".md"] if name.endswith(".md") else []
        if len(same) == 1:
            return f"[{label}](/{same[0].relative_to(out).as_posix()})"
        return f"{label} (`{target.lstrip('./')}`)"

    return _LINK.sub(replaced, text)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build the documentation with Sphinx, warnings as errors.")
    default = ROOT / "build" / "docs"
    parser.add_argument("out", nargs="?", type=Path, default=default, help="folder, by default build/docs")
    out: Path = parser.parse_args(arguments).out
    stage(out / "source")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    return subprocess.run([*command, str(out / "source"), str(out / "html")], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
