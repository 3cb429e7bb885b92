"""Prepared data sets (the manifest), foreign folders of shards, and the metrics of a run."""

from __future__ import annotations

import json

import numpy as np
from targets import MemoryFile, MemoryFolder, Target, only

from blutrain.data import ShardWriter, open_dataset
from blutrain.data.dataset import FORMAT, MANIFEST, SPLITS, VERSION, file_digest
from blutrain.data.shards import FORMATS, HEADER_BYTES, read_shard
from blutrain.data.tokenizer import get_tokenizer
from blutrain.errors import DataError
from blutrain.metrics import RunFolderError, read_metrics

_FOLDER, _FOREIGN = MemoryFolder(), MemoryFolder()
_METRICS = MemoryFile("metrics")


def _shards() -> list[dict[str, object]]:
    entries = []
    for split, count in (("train", 40), ("val", 9)):
        with ShardWriter(_FOLDER.path, split, 25) as writer:
            writer.append(np.arange(count, dtype=np.uint16))
        for path, tokens in writer.shards:
            entries.append({"file": path.name, "split": split, "tokens": tokens, "sha256": file_digest(path)})
    return entries


ENTRIES = _shards()


def run_manifest(data: bytes) -> bool:
    """Opens the data set that a manifest describes and uses all of it."""
    _FOLDER.write(MANIFEST, data)
    with only(DataError) as outcome:
        dataset = open_dataset(_FOLDER.path)
        dataset.digest()
        for split in ("train", "val"):
            assert dataset.num_tokens(split) >= 1
        dataset.verify()
    return outcome.accepted


def seeds_manifest() -> list[bytes]:
    """A manifest as ``prepare`` writes it with everything and with the least, and a damaged one."""
    identity = get_tokenizer("bytes").identity.to_dict()
    manifest = {"format": FORMAT, "version": VERSION, "tokenizer": identity, "shards": ENTRIES}
    counts = {"left_out": {"binary": 2, "no_text": 1}, "unknown_tokens": {"train": 3, "val": 0}}
    whole = {**manifest, "dtype": "uint16", **counts}
    return [json.dumps(manifest).encode(), json.dumps(whole).encode(), json.dumps({**manifest, "shards": []}).encode()]


def run_foreign(data: bytes) -> bool:
    """Input: length of the first shard in 2 bytes, two shards, each without the zeros that fill its header."""
    cut = 2 + int.from_bytes(data[:2], "little")
    parts = dict(zip(SPLITS, (data[2:cut], data[cut:]), strict=True))
    files = {split: part[:12] + bytes(HEADER_BYTES - 12) + part[12:] for split, part in parts.items()}
    for split, content in files.items():
        _FOREIGN.write(f"fineweb_{split}_000000.bin", content)
    with only(DataError) as outcome:
        dataset = open_dataset(_FOREIGN.path)
        assert dataset.digest() is None
        for split, content in files.items():
            (path,) = dataset.paths(split)
            tokens = read_shard(path)
            assert len(tokens) == dataset.num_tokens(split)
            assert tokens.tobytes() == content[HEADER_BYTES:]
    return outcome.accepted


def seeds_foreign() -> list[bytes]:
    """Pairs of shards of 16 bits and of 32 as llm.c writes them, and one that is cut short."""

    def shard(count: int, written: int, width: int = 2) -> bytes:
        header = np.array([*FORMATS[width], count], "<i4")
        return header.tobytes() + np.arange(written, dtype=f"<u{width}").tobytes()

    pairs = [
        (shard(40, 40), shard(9, 9)),
        (shard(1, 1), shard(300, 300)),
        (shard(40, 40, 4), shard(9, 9, 4)),
        (shard(40, 40), shard(9, 8)),
    ]
    return [len(train).to_bytes(2, "little") + train + val for train, val in pairs]


def run_metrics(data: bytes) -> bool:
    """Reads the events of a run."""
    path = _METRICS.write(data)
    with only(RunFolderError) as outcome:
        assert all(isinstance(event, dict) for event in read_metrics(path))
    return outcome.accepted


def seeds_metrics() -> list[bytes]:
    """Lines as the trainer writes them, the last one cut short."""
    step = {
        "event": "step",
        "step": 3,
        "loss": 2.5,
        "lr": 1e-3,
        "grad_norm": 0.5,
        "tokens_per_second": 1e5,
        "time": 1.0,
    }
    lines = [step, {**step, "loss": None}, {"event": "eval", "step": 3, "loss": 2.4}, {"event": "end", "step": 9}]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    return [text + b"\n", text[:-9]]


_WORDS = (
    b'"train"', b'"val"', b'"file"', b'"tokens"', b'"sha256"', b'"split"', b'"shards"', b'"../../etc"',
    b'"/dev/zero"', b"null", b"true", b"{}", b"[]", b"-1", b"1e999", b"NaN", b"[" * 2000, b'"\\ud800"', b'"\\u0000"',
    b'"' + b"a" * 300 + b'"', b'"."', b'"train_000000.bin"', b'"manifest.json"', b'""', b"0.5", b'"1"', b"9" * 5000,
    b"\xff", b'"step"', b'"loss"', b"\n",
)  # fmt: skip
_SHARD_WORDS = (
    *(np.array(form, "<i4").tobytes() for form in FORMATS.values()),
    *(number.to_bytes(4, "little") for number in (0, 1, 9, 40, 2**31 - 1, 2**31, 2**32 - 1)),
)
TARGETS = (
    Target("manifest", run_manifest, seeds_manifest, _WORDS),
    Target("foreign_shards", run_foreign, seeds_foreign, _SHARD_WORDS),
    Target("metrics", run_metrics, seeds_metrics, _WORDS),
)
