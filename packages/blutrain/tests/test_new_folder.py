"""Folders that appear complete or not at all, whoever makes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blutrain.config_io import load_config
from blutrain.data import prepare, train_tokenizer
from blutrain.errors import BlutrainError, InvalidInputError
from blutrain.huggingface import export_hf
from blutrain.launch import train
from blutrain.new_folder import PlaceInUseError, new_folder

TINY = (
    "model.layers=1", "model.heads=1", "model.channels=8", "model.context=16", "train.micro_batch=2", "train.steps=1",
    "train.global_batch_tokens=32", "train.eval_every=0", "train.sample_every=0", "train.threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a data set of it and a run."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "text").write_text("a line of text, and another one\n" * 100)
    prepare(folder / "text", folder / "tokens")
    train(load_config(settings=[*TINY, f"data.path={folder / 'tokens'}", f"run.folder={folder / 'run'}"]))
    return folder


def make_prepared(home: Path, out: Path) -> None:
    prepare(home / "text", out)


def make_exported(home: Path, out: Path) -> None:
    export_hf(home / "run", out)


def make_tokenizer(home: Path, out: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    train_tokenizer(home / "text", out, vocab_size=300)


Make = Callable[[Path, Path], None]
every = pytest.mark.parametrize("make", [make_prepared, make_exported, make_tokenizer])


@every
def test_neither_the_current_folder_nor_a_mounted_disk_is_replaced(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    """A renamed folder would not be the one that a shell or a container sees there, or can not be renamed."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in (".", "../here", str(tmp_path / "here")):
        with pytest.raises(InvalidInputError, match=r"got the current folder, .*here/NAME for example"):
            make(home, Path(name))
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == str(tmp_path / "disk"))
    with pytest.raises(InvalidInputError, match=r"got the place where a disk is mounted, .*disk/NAME for example"):
        make(home, tmp_path / "disk")
    make(home, tmp_path / "disk" / "name")
    assert os.listdir(tmp_path / "disk") == ["name"]
    assert sorted(os.listdir(tmp_path)) == ["disk", "here"]


@every
def test_a_link_is_followed(home: Path, tmp_path: Path, make: Make) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("there", "absent"):  # an empty folder, and none yet
        (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
        if name == "there":
            (tmp_path / "elsewhere" / name).mkdir()
        make(home, tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert any((tmp_path / "elsewhere" / name).iterdir())
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["absent", "there"]


@every
def test_a_full_disk_leaves_nothing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(BlutrainError, match=r"to write .*out, got 'No space left.*free space, check") as caught:
        make(home, tmp_path / "out")
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == 28
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    make(home, tmp_path / "out")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from blutrain.new_folder import new_folder
with new_folder("x", Path({str(tmp_path / "out")!r})) as folder:
    (folder / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [".out.new"]
    with new_folder("x", tmp_path / "out") as folder:
        (folder / "whole").write_text("whole")
        with (
            pytest.raises(PlaceInUseError, match="another process writes: wait for it or choose another --out"),
            new_folder("x", tmp_path / "out"),
        ):
            pass
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["whole"]
