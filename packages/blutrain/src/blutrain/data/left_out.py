"""What a corpus holds that no tokens are made of: counted by reason, with the first few names.

Folders hold more than text, and records may have none. Leaving it out is right; not saying so would hide a folder that
is half of another encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

EMPTY, BINARY, ENCODING, SPECIAL, NO_TEXT = "empty", "binary", "encoding", "special", "no_text"
REASONS = {
    EMPTY: "empty file(s)",
    BINARY: "file(s) that are no text (a byte 0)",
    ENCODING: "file(s) in UTF-16 or UTF-32 (convert them to UTF-8)",
    SPECIAL: "name(s) that are no file (a pipe, a device, a broken link or a link to a folder)",
    NO_TEXT: "record(s) without text (null or empty)",
}
"""Why something was left out: keys of the manifest's ``left_out``, and how people are told."""
_NAMES = 3


class LeftOut:
    """Counts by reason, with the first names of each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Number by key of ``REASONS``."""
        self._names: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, reason: str, name: object) -> None:
        """Count one more.

        Args:
            reason: a key of ``REASONS``.
            name: a file, or the place of a record.
        """
        self._add(reason, 1, [str(name)])

    def merge(self, other: LeftOut) -> None:
        """Add what another one counted after this one."""
        for reason, count in other.counts.items():
            self._add(reason, count, other._names[reason])

    def lines(self) -> Iterator[str]:
        """A line for people about each reason."""
        for reason, count in self.counts.items():
            shown = [name if name.isprintable() else repr(name) for name in self._names[reason]]
            names = ", ".join([*shown, "..."] if count > len(shown) else shown)
            yield f"{count:,} {REASONS[reason]}: {names}"

    def with_lines(self, message: str) -> str:
        """A message of an error, and what was left out, which may be why."""
        return "; ".join([message, *(f"left out: {line}" for line in self.lines())])

    def to_json(self) -> dict[str, Any]:
        """For the journal of a preparation."""
        return {"counts": self.counts, "names": self._names}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LeftOut:
        """The inverse of ``to_json``; of an empty mapping, nothing left out.

        Raises:
            KeyError: there are no names of a reason.
            TypeError: a value is of another type.
            ValueError: a number is none.
        """
        found = cls()
        for reason, count in values.get("counts", {}).items():
            found._add(str(reason), int(count), list(map(str, values["names"][reason])))
        return found

    def _add(self, reason: str, count: int, names: list[str]) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count
        known = self._names.setdefault(reason, [])
        known += names[: _NAMES - len(known)]
