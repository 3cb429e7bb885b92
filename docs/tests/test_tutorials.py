"""Every tutorial runs as it stands, and a block that prints something else than the page says is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_tutorial import blocks_of

RUNNER = Path(__file__).with_name("run_tutorial.py")
TUTORIALS = sorted((RUNNER.parents[1] / "tutorials").glob("*.md"))


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), str(page)], cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page: Path, tmp_path: Path) -> None:
    done = run(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *left_out, last = done.stdout.splitlines()
    print("\n".join(left_out))
    assert last.endswith("blocks were run")
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    assert blocks
    assert int(last.split()[0]) + len(left_out) == len(blocks)


def test_a_script_of_30_lines_trains_from_python() -> None:
    page = next(page for page in TUTORIALS if page.stem == "python_api")
    first = blocks_of(page.read_text(encoding="utf-8"))[0]
    assert "blutrain.train(" in first.code
    assert len(first.code.splitlines()) <= 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nprint(1)\n```\n\n```output\n2\n```\n", "expected\n2\n"),
        ("```bash\necho x; false\n```\n", "exit code 1"),
        ("```bash\nblutrain nonsense\n```\n", "exit code 2"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "page.md"),
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "page.md").write_text(text)
    done = run(tmp_path / "page.md", tmp_path)
    assert done.returncode == 1
    assert message in done.stderr


def test_blocks_share_a_session_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "```python\nx = 3\nopen('a', 'w').write('there')\n```\ntext\n```bash\ncat a\n```\n```output\nthe...\n```\n"
        "<!-- needs: no_such_module -->\n```python\nraise SystemError\n```\n"
        "```text\nnot run\n```\n```python\nprint(x)\n```\n\n```output\n3\n```\n"
    )
    done = run(tmp_path / "page.md", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["page.md:14: left out, because it needs no_such_module", "3 blocks were run"]
