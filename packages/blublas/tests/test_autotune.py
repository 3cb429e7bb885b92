"""The table of measured choices: what is written, what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from blublas.autotune import Choice, main, render

TABLE = Path(__file__).resolve().parents[1] / "native" / "cuda" / "tuned.h"
EMPTY = """#pragma once
inline constexpr TunedChoice kTunedChoices[] = {
    {0, false, false, 0, 0, 0, "", 1},  // for the table not to be empty
};
"""


def test_entries_are_added_replaced_and_kept() -> None:
    first = Choice(90, True, False, 16384, 768, 3072, "bf16_128x128x64_3", 1)
    other = Choice(80, True, False, 16384, 768, 3072, "bf16_128x128x64_3", 2)
    text = render(EMPTY, [first, other])
    assert first.line() in text
    assert other.line() in text
    assert '""' not in text
    assert text.startswith("#pragma once")
    assert text.endswith("};\n")
    better = Choice(90, True, False, 16384, 768, 3072, "bf16_128x256x64_4", 1)
    single = Choice(90, True, False, 16384, 768, 3072, "tf32_128x128x32_3", 1)  # another precision: an entry of its own
    text = render(text, [better, single])
    assert first.line() not in text
    assert all(choice.line() in text for choice in (better, single, other))
    assert render(text, []) == text
    assert render(EMPTY, []) == EMPTY


def test_the_table_in_the_tree_is_what_would_be_written() -> None:
    if not TABLE.exists():
        pytest.skip("the sources are not here")
    text = TABLE.read_text(encoding="utf-8")
    assert render(text, []) == text


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "--tokens" in capsys.readouterr().out
