"""The site's builder: pages are laid out whole, links lead somewhere, and a page that is wrong is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_reference  # noqa: E402
import docs_site  # noqa: E402


def test_all_pages_are_laid_out(tmp_path: Path) -> None:
    out = tmp_path / "source"
    docs_site.stage(out)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.suffix in (".md", ".rst")}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written <= found
    generated = {"commands.md", "configuration.md", "operators.md", *(f"{p}.rst" for p in docs_reference.PACKAGES)}
    assert {f"reference/{name}" for name in generated} | {f"packages/{p}.md" for p in docs_reference.PACKAGES} <= found
    assert not (out / "tests").exists()
    docs_site.stage(out)  # replaces what is there


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[x](there.md)", "[x](there.md)"),
        ("[x](../../docs/deep/page.md)", "[x](/deep/page.md)"),
        ("[x](../gone/native/pool.cpp)", "x (`gone/native/pool.cpp`)"),
        ("[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
        ("[x](#place)", "[x](#place)"),
    ],
)
def test_links(tmp_path: Path, link: str, becomes: str) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("page.md", "there.md", "deep/page.md"):
        (tmp_path / name).touch()
    (tmp_path / "page.md").unlink()
    assert docs_site._with_links(tmp_path / "start.md", tmp_path, link) == becomes


def test_a_warning_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(out: Path) -> None:
        out.mkdir(parents=True)
        (out / "conf.py").write_text('extensions = ["myst_parser"]\n')
        (out / "index.md").write_text("# Title\n\n[nowhere](nowhere.md)\n")

    pytest.importorskip("sphinx", reason="Sphinx is not installed: the site is not built")
    monkeypatch.setattr(docs_site, "stage", stage)
    assert docs_site.main([str(tmp_path)]) != 0
    right = tmp_path / "right"
    (right / "source").mkdir(parents=True)
    (right / "source" / "conf.py").touch()
    (right / "source" / "index.rst").write_text("Title\n=====\n")
    monkeypatch.setattr(docs_site, "stage", lambda out: None)
    assert docs_site.main([str(right)]) == 0
    assert (right / "html" / "index.html").exists()


def test_the_builder_is_a_program() -> None:
    command = [sys.executable, str(ROOT / "tools" / "docs_site.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert "build/docs" in done.stdout
