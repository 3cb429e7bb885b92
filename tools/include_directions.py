"""Checks that nothing is used against the direction of the architecture.

- Between packages: C++ includes and Python imports reach only packages that pyproject.toml names as dependencies, and
  of those C++ sees only what lies under include/, Python only what has no leading underscore.
- Inside a package: folders under native/ include only their own and earlier layers (include_directions.toml).
- Nowhere: Python.h, or the inclusion of a .cpp or .cu file.

Prints one line per violation and exits with 1 when there is one.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import repository

NATIVE_SUFFIXES = {".h", ".hpp", ".inl", ".cpp", ".cu", ".cuh", ".c"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
RULES = repository.ROOT / "tools" / "include_directions.toml"


class LayerRules:
    """The order of the folders under ``native/`` of one package."""

    def __init__(self, package: str, layers: list[str | list[str]]) -> None:
        self.package = package
        self.level: dict[str, int] = {}
        for level, entry in enumerate(layers):
            for folder in [entry] if isinstance(entry, str) else entry:
                self.level[folder] = level
        self.last = len(layers)

    def of(self, inside: Path) -> int | None:
        """Level of a path relative to ``native/``; None when its folder is not listed."""
        outermost = len(inside.parts) == 1 or inside.parts[0] == "tests"
        return self.last if outermost else self.level.get(inside.parts[0])

    def check(self, source: Path, target: Path) -> str | None:
        """What is wrong when ``source`` includes ``target``, both relative to ``native/``."""
        if not self.level:
            return None
        if self.of(source) is None:
            return f"folder native/{source.parts[0]} is in no layer; add it to {RULES.name}"
        have, want = self.of(target), self.of(source)
        if have is None or want is None:
            return f"includes {target}, whose folder is in no layer; add it to {RULES.name}"
        peers = have == want != self.last and source.parts[0] != target.parts[0]
        if have > want or peers:
            return f"includes {target}: {source.parts[0]} may not use {target.parts[0]}"
        return None


def native_violations(package: str, rules: LayerRules) -> Iterator[str]:
    """Violations in the C and C++ files of a package."""
    top = repository.ROOT / "packages" / package
    allowed = {package, *repository.direct_upstreams(package)}
    for path in sorted(p for p in top.rglob("*") if p.suffix in NATIVE_SUFFIXES and p.is_file()):
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            where = f"{path.relative_to(repository.ROOT)}:{text.count(chr(10), 0, match.start(2)) + 1}"
            problem = _native_problem(top, path, match[1], match[2], allowed, rules)
            if problem:
                yield f"{where}: {problem}"


def _native_problem(
    top: Path, path: Path, quote: str, included: str, allowed: set[str], rules: LayerRules
) -> str | None:
    if included == "Python.h":
        return "includes Python.h; bindings go through ctypes over the C interface"
    if included.endswith((".cpp", ".cu", ".c")):
        return f"includes the source file {included}"
    owner = included.split("/")[0]
    if owner in repository.packages():
        if owner not in allowed:
            return f"includes {included}, but {owner} is no dependency of {rules.package} in pyproject.toml"
        public = repository.ROOT / "packages" / owner / "include" / included
        if owner != rules.package and not public.is_file():
            return f"includes {included}; of another package only what lies under include/ is public"
        return None
    if quote == "<":
        return None
    native = top / "native"
    candidates = [path.parent / included, native / included, top / "include" / included]
    found = next((c.resolve() for c in candidates if c.is_file()), None)
    if found is None:
        return f'includes "{included}", which is not in this package; use <> for foreign headers'
    if not found.is_relative_to(top):
        return f"includes {included}, which lies outside of its package"
    if found.is_relative_to(native) and path.is_relative_to(native):
        return rules.check(path.relative_to(native), found.relative_to(native))
    if path.is_relative_to(top / "include"):
        return f"the public header includes {included}; it must stand alone"
    return None


def python_violations(package: str) -> Iterator[str]:
    """Violations in the Python sources of a package."""
    allowed = {package, *repository.direct_upstreams(package)}
    for path in sorted((repository.ROOT / "packages" / package / "src").rglob("*.py*")):
        if path.suffix not in {".py", ".pyi"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            for module in _imported(node):
                parts = module.split(".")
                owner = parts[0].removeprefix("lib") if parts[0].startswith("libblu") else parts[0]
                if owner not in repository.packages():
                    continue
                where = f"{path.relative_to(repository.ROOT)}:{getattr(node, 'lineno', 0)}"
                if owner not in allowed:
                    yield f"{where}: imports {module}, but {owner} is no dependency of {package} in pyproject.toml"
                elif owner != package and any(p.startswith("_") and not p.startswith("__") for p in parts[1:]):
                    yield f"{where}: imports {module}, which is private to {owner}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def main() -> int:
    """Check every package; the number of violations decides the exit status."""
    layers = tomllib.loads(RULES.read_text(encoding="utf-8"))["layers"]
    found = []
    for package in repository.packages():
        rules = LayerRules(package, layers.get(package, []))
        found += [*native_violations(package, rules), *python_violations(package)]
    print("\n".join(found) if found else f"include directions of {len(repository.packages())} packages: no violation")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
