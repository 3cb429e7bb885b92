"""Where long text may be cut without changing its tokens.

Byte-level BPE first splits text with a regular expression, so a cut between two of those parts changes nothing. Parts
of GPT-2's expression never go from a character that is no space to one that is; the expressions of later models make
exceptions next to punctuation and line ends, but none between a letter and the space before the next word.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

BYTE_ORDER_MARK = codecs.BOM_UTF8
"""What some editors write before UTF-8; it is no text."""
_FOREIGN_MARKS = {  # those of UTF-32 first: one of them begins with one of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32 (little-endian)",
    codecs.BOM_UTF32_BE: "UTF-32 (big-endian)",
    codecs.BOM_UTF16_LE: "UTF-16 (little-endian)",
    codecs.BOM_UTF16_BE: "UTF-16 (big-endian)",
}
_BETWEEN_WORDS = re.compile(r"[A-Za-z](?= [A-Za-z])")
_BEFORE_SPACE = re.compile(r"\S(?=\s)")
_SEARCHED = 4096


def half_of_a_pair(error: UnicodeEncodeError) -> str:
    """What UTF-8 could not encode, for messages."""
    return f"half of a surrogate pair, U+{ord(error.object[error.start]):04X} at position {error.start}"


def foreign_encoding(begin: bytes) -> str | None:
    """The encoding that the first bytes of a file name by their byte order mark, None for UTF-8 or no mark."""
    return next((name for mark, name in _FOREIGN_MARKS.items() if begin.startswith(mark)), None)


def find_cut(text: str, limit: int) -> int:
    """Where to cut a text that is longer than ``limit``.

    Args:
        text: the text.
        limit: most characters before the cut, at least 1.

    Returns:
        The length of the first part: the last place between two words near the limit, else the last one before a space,
        else the limit itself, where a text without spaces has no better place.
    """
    if len(text) <= limit:
        return len(text)
    for pattern, begin in (
        (_BETWEEN_WORDS, max(limit - _SEARCHED, 0)),
        (_BEFORE_SPACE, max(limit - _SEARCHED, 0)),
        (_BEFORE_SPACE, 0),
    ):
        last = None
        for last in pattern.finditer(text, begin, limit + 1):  # noqa: B007 - the last one is wanted
            pass
        if last is not None:
            return last.end()
    return limit


def cut_text(text: str, limit: int) -> Iterator[str]:
    """A text in parts of at most ``limit`` characters, cut by ``find_cut``."""
    while len(text) > limit:
        end = find_cut(text, limit)
        yield text[:end]
        text = text[end:]
    yield text
