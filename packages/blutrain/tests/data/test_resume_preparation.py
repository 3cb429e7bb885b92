"""A preparation that is killed, interrupted or given other threads writes the same bytes."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vocabulary import write_vocabulary

from blutrain.data import chunks, preparation, prepare, read_shard

SCRIPT = """
import os, signal, sys
from blutrain.data import chunks, preparation, prepare
sources, out, tokenizer, kill_at = sys.argv[1].split(","), *sys.argv[2:4], int(sys.argv[4])
chunks.PIECE, chunks.CHUNK, preparation._JOURNAL_SECONDS = 1000, 1500, 0.0
calls, fsync = 0, os.fsync

def counted(descriptor):
    global calls
    calls += 1
    if calls == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = counted
prepare(sources, out, tokenizer=tokenizer, shard_tokens=3000, val_fraction=0.2, report=print)
print("calls", calls)
"""


def run(sources: list[Path], out: Path, tokenizer: str, kill_at: int) -> tuple[int, str]:
    """Exit code and output of a process that prepares and kills itself at a call that brings something to the disk."""
    arguments = [",".join(map(str, sources)), str(out), tokenizer, str(kill_at)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def corpus(folder: Path) -> list[Path]:
    """A text file, JSONL, JSONL in gzip and Parquet, with documents longer than a piece."""
    draw = random.Random(1)
    words = ["hello", "world", "or", "hell", "well", "世界", "naïve", "\n", "  "]
    texts = [" ".join(draw.choices(words, k=draw.choice([3, 40, 700]))) for _ in range(40)]
    (folder / "a.txt").write_text(" ".join(draw.choices(words, k=3000)))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in [None, *texts, "", ""])
    (folder / "a.json").write_text(json.dumps([*texts[:20], None, {"text": texts[20]}]))
    (folder / "b.jsonl").write_text(lines)
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    sources = [folder / "a.txt", folder / "a.json", folder / "b.jsonl", folder / "c.jsonl.gz"]
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return sources
    pyarrow.parquet.write_table(pyarrow.table({"text": ["", *texts, None]}), folder / "d.parquet", row_group_size=7)
    return [*sources, folder / "d.parquet"]


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "bytes" if request.param == "bytes" else str(write_vocabulary(tmp_path / "vocabulary"))


def make(sources: list[Path], out: Path, tokenizer: str, **options: Any) -> dict[str, bytes]:
    prepare(sources, out, tokenizer=tokenizer, shard_tokens=3000, val_fraction=0.2, **options)
    return contents(out)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PIECE", 1000)
    monkeypatch.setattr(chunks, "CHUNK", 1500)
    monkeypatch.setattr(preparation, "_JOURNAL_SECONDS", 0.0)


@pytest.mark.usefixtures("small_chunks")
def test_killed_anywhere_it_continues_with_the_same_bytes(tmp_path: Path, tokenizer: str) -> None:
    sources = corpus(tmp_path)
    expected = make(sources, tmp_path / "whole", tokenizer)
    assert sum(name.endswith(".bin") for name in expected) > 5
    codes, said = [], ""
    for kill_at in (1, 3, 4, 5, 17, 50, 82, 2, 10**9):  # each time that many calls further
        assert not (tmp_path / "out").exists()
        code, printed = run(sources, tmp_path / "out", tokenizer, kill_at)
        codes.append(code)
        said += printed
    assert codes == [-signal.SIGKILL] * 8 + [0]
    assert said.count("continuing what was interrupted, at") >= 5
    assert contents(tmp_path / "out") == expected
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("small_chunks")
def test_killed_at_the_end_it_continues_with_the_same_bytes(tmp_path: Path) -> None:
    sources = corpus(tmp_path)
    expected = make(sources, tmp_path / "whole", "bytes")
    calls = int(run(sources, tmp_path / "counted", "bytes", 0)[1].split()[-1])
    for kill_at in (calls, calls - 1, calls - 3):  # manifest, last shard, last of the journal
        out = tmp_path / str(kill_at)
        assert run(sources, out, "bytes", kill_at)[0] == -signal.SIGKILL
        assert make(sources, out, "bytes") == expected


@pytest.mark.usefixtures("small_chunks")
def test_neither_threads_nor_an_interruption_change_a_byte(tmp_path: Path, tokenizer: str) -> None:
    sources = corpus(tmp_path)
    expected = make(sources, tmp_path / "one", tokenizer, workers=1)
    assert make(sources, tmp_path / "five", tokenizer, workers=5) == expected
    said: list[str] = []

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(sources, tmp_path / "out", tokenizer, progress=interrupt, report=said.append)
    assert said == ["interrupted: the same command continues from here"]
    assert make(sources, tmp_path / "out", tokenizer, report=said.append) == expected
    assert said[1].startswith("continuing what was interrupted, at ")
    assert 40 < int(said[1].rpartition(" ")[2].rstrip("%")) <= 60


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("change", ["text", "option", "shard", "journal"])
def test_work_of_another_job_or_damaged_work_is_not_continued(tmp_path: Path, change: str) -> None:
    sources = corpus(tmp_path)

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(sources, tmp_path / "out", "bytes", progress=interrupt)
    partial = tmp_path / ".out.partial"
    if change == "text":
        os.utime(sources[1], ns=(1, 1))
    elif change == "shard":
        os.truncate(partial / "train_000000.bin", 5000)
    elif change == "journal":
        (partial / "journal.json").write_text((partial / "journal.json").read_text()[:-20])
    said: list[str] = []
    field = "text" if change != "option" else "id"
    if change == "option":
        for source in sources[1:]:
            source.unlink()
        sources = sources[:1]
    found = make(sources, tmp_path / "out", "bytes", field=field, report=said.append)
    assert not [line for line in said if not line.startswith("left out: ")]
    assert found == make(sources, tmp_path / "again", "bytes", field=field)


@pytest.mark.usefixtures("small_chunks")
def test_cuts_and_chunks_change_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = str(write_vocabulary(tmp_path / "vocabulary"))
    sources = corpus(tmp_path)
    cut = make(sources, tmp_path / "cut", vocabulary)
    monkeypatch.setattr(chunks, "PIECE", 2**20)
    monkeypatch.setattr(chunks, "CHUNK", 2**18)
    whole = make(sources, tmp_path / "whole", vocabulary)
    tokens = {
        name: {n: c for n, c in found.items() if n.endswith(".bin")} for name, found in (("a", cut), ("b", whole))
    }
    assert tokens["a"] == tokens["b"]
    assert read_shard(tmp_path / "cut" / "train_000000.bin")[0] == 265
