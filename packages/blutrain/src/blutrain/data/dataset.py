"""A prepared data set: a folder of shards with a manifest, or a foreign folder of shards without one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blutrain.arguments import checked
from blutrain.data.access import reading
from blutrain.data.shards import shard_dtype, shard_num_tokens
from blutrain.data.tokenizer import TokenizerIdentity
from blutrain.errors import DataError, ShardError

MANIFEST = "manifest.json"
"""Name of the file that describes a prepared folder."""
FORMAT = "blutrain-tokens"
"""Value of the manifest's key ``format``."""
VERSION = 2
"""Value of the manifest's key ``version``."""
SPLITS = ("train", "val")
"""Parts of a data set."""
TOKENIZER_FOLDER = "tokenizer"
"""Folder of the tokenizer's files, in a prepared folder and in a run's; absent for ``bytes``."""

_MOST_THREADS = 8
"""Files that are read at a time."""


@dataclass(frozen=True)
class Dataset:
    """Shards of both splits, with their headers checked."""

    path: Path
    """The folder."""
    shards: dict[str, tuple[Path, ...]]
    """Paths by split, in the order of the stream."""
    tokens: dict[str, int]
    """Number of tokens by split."""
    tokenizer: TokenizerIdentity | None
    """What the tokens were made with, None when there is no manifest."""
    manifest: dict[str, Any] | None
    """The whole manifest."""

    @property
    def vocab_size(self) -> int | None:
        """Number of the tokenizer's ids, None when there is no manifest."""
        return None if self.tokenizer is None else self.tokenizer.vocab_size

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder of the tokenizer's files, None when there is none."""
        folder = self.path / TOKENIZER_FOLDER
        return folder if folder.is_dir() else None

    @checked("data")
    def num_tokens(self, split: str) -> int:
        """Number of tokens of a split.

        Raises:
            InvalidTypeError: the split is no text.
            DataError: there are no shards of that split.
        """
        self.paths(split)
        return self.tokens[split]

    @checked("data")
    def paths(self, split: str) -> tuple[Path, ...]:
        """Shards of a split.

        Raises:
            InvalidTypeError: the split is no text.
            DataError: there are none.
        """
        if not self.shards.get(split):
            fix = (
                "prepare it with --val-fraction above 0, or set train.eval_every=0"
                if split == "val"
                else "prepare text"
            )
            raise DataError(f"[data] expected {split} shards in {self.path}, got none; {fix}")
        return self.shards[split]

    def digest(self) -> str | None:
        """SHA-256 over the training shards' digests in the manifest, in order; None without a manifest."""
        if self.manifest is None:
            return None
        digests = [str(entry.get("sha256")) for entry in self.manifest["shards"] if entry["split"] == "train"]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def verify(self) -> None:
        """Compare every shard with its digest in the manifest; reads all of them.

        Raises:
            ShardError: one differs.
            DataError: there is no manifest.
        """
        if self.manifest is None:
            raise DataError(f"[data] expected {self.path / MANIFEST} to verify against, got none")
        compare_digests(self.path, {entry["file"]: entry["sha256"] for entry in self.manifest["shards"]})


def file_digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal.

    Raises:
        DataAccessError: it can not be read.
    """
    with reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compare_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Read files, several at a time, and compare them with digests.

    Args:
        folder: that they are in.
        digests: SHA-256 in hexadecimal by name.

    Raises:
        ShardError: a file has another digest.
        DataAccessError: one can not be read.
    """
    threads = max(min(len(digests), _MOST_THREADS, os.cpu_count() or 1), 1)
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(file_digest, (folder / name for name in digests))
        for (name, expected), digest in zip(digests.items(), found, strict=True):
            if digest != expected:
                message = f"[shard] {folder / name}: expected SHA-256 {expected}, got {digest}"
                raise ShardError(message + "; it is damaged: prepare it again")


@checked("data")
def open_dataset(path: str | Path) -> Dataset:
    """Open a folder of shards and check every header.

    With a manifest its shards must be there with the numbers of tokens that it states. Without one, files named
    ``*train*.bin`` and ``*val*.bin`` are taken in the order of their names.

    Args:
        path: the folder.

    Returns:
        The data set.

    Raises:
        DataError: there is no such folder, or nothing in it.
        DataAccessError: it can not be read.
        ShardError: a shard is truncated, foreign, empty, or not the one that the manifest describes.
    """
    folder = Path(path)
    if not str(path):
        raise DataError(
            "[data] expected a folder of shards in data.path, got ''; run 'blutrain prepare' and set data.path"
        )
    with reading(folder):
        if not folder.is_dir():
            raise DataError(f"[data] expected a folder of shards, got {folder}; make one with 'blutrain prepare'")
        if (folder / MANIFEST).exists():
            return _from_manifest(folder)
        shards = {split: tuple(sorted(folder.glob(f"*{split}*.bin"))) for split in SPLITS}
    if not any(shards.values()):
        message = f"[data] expected {MANIFEST} or *train*.bin shards in {folder}, got neither"
        raise DataError(message + "; make them with 'blutrain prepare'")
    tokens = {split: sum(map(shard_num_tokens, paths)) for split, paths in shards.items()}
    return Dataset(folder, shards, tokens, None, None)


def _checked_entry(folder: Path, entry: Any) -> tuple[str, Path, int]:
    """Split, path and number of tokens of a shard in a manifest; ``Dataset`` relies on the rest of the entry too."""
    for key, kind in (("split", str), ("file", str), ("tokens", int), ("sha256", str)):
        if type(entry[key]) is not kind:
            raise TypeError(f"{key} {entry[key]!r}"[:100])
    return entry["split"], folder / entry["file"], entry["tokens"]


def _check_counts(manifest: Mapping[str, Any], key: str) -> None:
    """Numbers by name, which may be absent: manifests from before there were any do not have them."""
    counts = manifest.get(key, {})
    if not isinstance(counts, dict) or any(type(count) is not int or count < 0 for count in counts.values()):
        raise TypeError(f"{key} {counts!r}"[:100])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, say
        return False


def _from_manifest(folder: Path) -> Dataset:
    path = folder / MANIFEST
    with reading(path):
        text = path.read_bytes()
    try:
        manifest = json.loads(text.decode())
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise ValueError(f"format {manifest['format']!r} version {manifest['version']!r}")
        entries = [_checked_entry(folder, entry) for entry in manifest["shards"]]
        tokenizer = TokenizerIdentity.from_dict(manifest["tokenizer"])
        dtype = manifest.get("dtype", "uint16")  # manifests from before there were others do not say
        if dtype not in ("uint16", "uint32"):
            raise ValueError(f"dtype {dtype!r}"[:100])
        for key in ("left_out", "unknown_tokens"):
            _check_counts(manifest, key)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        message = (
            f"[data] expected a {FORMAT} manifest of version {VERSION} in {path}, got {type(error).__name__}: {error}"
        )
        raise DataError(message + "; prepare the data again") from error
    shards: dict[str, tuple[Path, ...]] = dict.fromkeys(SPLITS, ())
    tokens = dict.fromkeys(SPLITS, 0)
    for split, shard, expected in entries:
        if not _is_file(shard):
            raise ShardError(f"[shard] expected {shard}, which {path} names, got no file; prepare the data again")
        found = shard_num_tokens(shard)
        if found != expected:
            message = f"[shard] {shard}: expected {expected} tokens as {path} says, got {found}"
            raise ShardError(message + "; prepare the data again")
        if shard_dtype(shard).name != dtype:
            message = f"[shard] {shard}: expected {dtype} tokens as {path} says, got {shard_dtype(shard).name}"
            raise ShardError(message + "; prepare the data again")
        if split in shards:
            shards[split] += (shard,)
            tokens[split] += found
    return Dataset(folder, shards, tokens, tokenizer, manifest)
