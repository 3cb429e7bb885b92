"""Every reader against inputs that nobody wrote: the seeds, what once broke a reader, and a few seconds of mutations.

`nox -s fuzz` does the same for a million inputs each, guided by coverage and under AddressSanitizer.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "fuzz"
sys.path.insert(0, str(FOLDER))
from mutation import mutations  # noqa: E402
from target_checkpoint import HONEST  # noqa: E402
from target_data import ENTRIES  # noqa: E402
from target_tokenizer import END_OF_TEXT, pair  # noqa: E402
from targets import MODULES, target_of  # noqa: E402

from blutrain.data.dataset import FORMAT, VERSION  # noqa: E402

SECONDS = 4


def checkpoint(header: dict[str, object]) -> bytes:
    """A checkpoint file without tensors' bytes, whose digests will fit."""
    placed = {"__metadata__": {"blutrain.header_digest": "sha256:" + "0" * 64, "blutrain.format": "1"}, **header}
    text = json.dumps(placed, separators=(",", ":")).encode()
    return bytes([HONEST]) + len(text).to_bytes(2, "little") + text


def manifest(**entry: object) -> bytes:
    """A manifest whose first shard has other values; None leaves one out."""
    first = {key: value for key, value in {**ENTRIES[0], **entry}.items() if value is not None}
    identity = {"kind": "bytes", "digest": "bytes", "vocab_size": 256, "end_of_text": 0}
    shards = [first, *ENTRIES[1:]]
    return json.dumps({"format": FORMAT, "version": VERSION, "tokenizer": identity, "shards": shards}).encode()


def tokenizer(model: dict[str, object], added: object = END_OF_TEXT) -> bytes:
    """A tokenizer.json."""
    tokens = [{"id": 1, "content": added, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False}]  # fmt: skip
    return pair({"version": "1.0", "added_tokens": tokens, "pre_tokenizer": {"type": "Whitespace"}, "model": model}, "")


WORDS = {"low": 0, END_OF_TEXT: 1}
# What once broke a reader.
FOUND = {
    "checkpoint: an empty tensor whose other sizes NumPy cannot count": (
        "checkpoint", checkpoint({"w": {"dtype": "F64", "shape": [0, 2**60], "data_offsets": [0, 0]}})),
    "manifest: no digest": ("manifest", manifest(sha256=None)),
    "manifest: a number as a file": ("manifest", manifest(file=3)),
    "manifest: infinitely many tokens": ("manifest", manifest(tokens=float("inf"))),
    "manifest: a name too long": ("manifest", manifest(file="a" * 300)),
    "documents: half of a surrogate pair, which a tokenizer of bytes took for a byte": (
        "documents", b"\x00\x00" + rb'{"text": "\udc80"}'),
    "choices: half of a surrogate pair": ("choices", rb'{"ctx": "a", "endings": ["b", "\udc80"], "label": 0}'),
    "choices: an object as endings": ("choices", b'{"ctx": "a", "endings": {"b": 1, "c": 2}, "label": 0}'),
    "tokenizer: the library cannot encode": (
        "tokenizer", tokenizer({"type": "WordPiece", "vocab": WORDS, "unk_token": "[UNK]",
                                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100})),
    "tokenizer: a list as a token": (
        "tokenizer", tokenizer({"type": "WordLevel", "vocab": WORDS, "unk_token": "low"}, [])),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_mutations(name: str, tmp_path: Path) -> None:
    """In a process of its own, whose memory is limited."""
    command = [sys.executable, str(FOLDER / "fuzz.py"), name, "--engine", "mutation", "--seconds", str(SECONDS)]
    done = subprocess.run(
        [*command, "--crashes", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] >= 64


def test_mutations_are_shared_out_among_processes(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "fuzz.py"), "metrics", "--engine", "mutation", "--runs", "101"]
    done = subprocess.run(
        [*command, "--processes", "2", "--crashes", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == 101
    assert list(tmp_path.iterdir()) == []


def test_mutations_are_those_of_the_seed() -> None:
    target = target_of("choices")
    first, again, other = (
        list(itertools.islice(mutations(target.seeds(), target.words, seed), 500)) for seed in (3, 3, 4)
    )
    assert first == again != other


@pytest.mark.parametrize(("fault", "code"), [("raise KeyError", 1), ("os.abort()", -signal.SIGABRT)])
def test_an_input_that_breaks_a_reader_is_kept(tmp_path: Path, fault: str, code: int) -> None:
    """Also where native code ends the process."""
    lines = f"""
        import os, sys
        from pathlib import Path
        sys.path.insert(0, {str(FOLDER)!r})
        from fuzz import Running, keeper, watched
        def run(data):
            if data == b"bad":
                {fault}
        folder = Path({str(tmp_path)!r})
        running = Running(folder / "name-running-1")
        one = watched(run, keeper("name", folder), running.begin)
        one(b"good input")
        one(b"bad")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(lines)], capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"bad"}


@pytest.mark.parametrize("name", MODULES)
def test_most_seeds_are_accepted(name: str) -> None:
    """Mutations of what a reader refuses at once would try nothing of it."""
    target = target_of(name)
    accepted = [target.run(seed) for seed in target.seeds()]
    assert sum(accepted) >= len(accepted) / 2


@pytest.mark.parametrize("case", FOUND)
def test_what_once_broke_a_reader_is_refused(case: str) -> None:
    name, data = FOUND[case]
    assert not target_of(name).run(data)
