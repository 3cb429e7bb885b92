"""Preparing much text takes no more memory than preparing little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from vocabulary import write_vocabulary

SCRIPT = """
import sys
from blutrain.data import prepare
prepare(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], workers=2)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
SENTENCE = "hello world, hello hell or well, and then the world again\n"


def write(path: Path, mebibytes: int) -> Path:
    block = SENTENCE * (2**14 // len(SENTENCE))
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        rows = [block] * 64 * mebibytes
        parquet.write_table(pyarrow.table({"text": rows}), path, row_group_size=256, use_dictionary=False)
        return path
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(64 * mebibytes):
            file.write(json.dumps({"text": block}) + "\n" if path.suffix == ".jsonl" else block)
    return path


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".parquet"])
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, suffix: str, kind: str) -> None:
    tokenizer = "bytes" if kind == "bytes" else str(write_vocabulary(tmp_path / "vocabulary"))
    peaks = []
    for mebibytes in (8, 48):
        source = write(tmp_path / f"text-{mebibytes}{suffix}", mebibytes)
        command = [sys.executable, "-c", SCRIPT, str(source), str(tmp_path / f"out-{mebibytes}"), tokenizer]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) / 1024)
    # Holding the text would take 40 MiB more for the longer one; half of that is room for where threads happen to be.
    assert peaks[1] - peaks[0] < 20
    assert peaks[1] < 250  # of the 500 MiB that any amount of text may take; seen: 48 to 92, most of it libraries
