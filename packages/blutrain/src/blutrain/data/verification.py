"""Whether shards are still what their manifest says, before a run trains on them.

Their sizes are checked whenever a data set is opened. Their digests are compared here, by reading all of them: up to
1 GiB at the beginning of every run, also of one that is resumed; of more, each shard once. ``.verified.json`` in the
data's folder remembers which, by size, time of change and inode, so a shard that was copied or written is read again.
Where that file can not be written, more than 1 GiB is not read, and that is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blutrain.checkpoint.files import OsFiles, write_small_file
from blutrain.data.access import reading
from blutrain.data.dataset import Dataset, compare_digests

RECORD = ".verified.json"
"""Name of the file that remembers what was compared."""
_ALWAYS_READ = 2**30


def verify_shards(dataset: Dataset, report: Callable[[str], None] | None = None) -> None:
    """Compare a data set's shards with the digests of its manifest; nothing without a manifest.

    Args:
        dataset: opened, so that its sizes are right.
        report: told before much is read, and when it can not be.

    Raises:
        ShardError: a shard is damaged, or another.
        DataAccessError: one can not be read.
    """
    if dataset.manifest is None:
        return
    tell = report or (lambda _: None)
    states = {str(entry["file"]): _state(dataset.path / entry["file"]) for entry in dataset.manifest["shards"]}
    digests = {str(entry["file"]): str(entry["sha256"]) for entry in dataset.manifest["shards"]}
    if sum(size for size, _, _ in states.values()) <= _ALWAYS_READ:
        compare_digests(dataset.path, digests)
        return
    known = _remembered(dataset.path / RECORD)
    new = {name: digest for name, digest in digests.items() if known.get(name) != [digest, *states[name]]}
    if not new:
        return
    amount = f"{len(new)} shard(s) ({sum(states[name][0] for name in new) / 1e9:,.1f} GB) of {dataset.path}"
    if not os.access(dataset.path, os.W_OK):
        tell(f"notice: {amount} are not compared with the digests of the manifest: the folder can not be written to")
        return
    tell(f"comparing {amount} with the digests of the manifest, which is done once")
    compare_digests(dataset.path, new)
    _remember(dataset.path / RECORD, {name: [digests[name], *states[name]] for name in digests}, tell)


def _state(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced: size, time and inode."""
    with reading(path):
        status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _remembered(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(path: Path, known: dict[str, Any], tell: Callable[[str], None]) -> None:
    try:
        write_small_file(OsFiles(), path, json.dumps(known, indent=1).encode())
    except OSError as error:
        tell(f"notice: the comparison will be done again: '{error.strerror or error}' for {path}")
