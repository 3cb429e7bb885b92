"""The folder: which checkpoint is the newest good one, which are kept, and what is reported."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoint_faults import UnsyncedFiles

from blutrain.checkpoint import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointStore,
    CheckpointTypeError,
    CheckpointValueError,
)


class Reports(list[str]):
    """Collects what a store reports."""

    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def store(tmp_path: Path, reports: Reports) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=3, report=reports, files=UnsyncedFiles())


def save(store: CheckpointStore, *steps: int) -> list[Path]:
    return [store.save(step, {"a": np.full(5, step)}, {"loss": step / 2}) for step in steps]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def names(store: CheckpointStore) -> list[str]:
    return sorted(os.listdir(store.folder))


def test_a_new_folder_has_no_checkpoint(store: CheckpointStore) -> None:
    assert store.list() == []
    assert store.latest() is None
    assert store.load_latest() is None
    assert not store.folder.exists()
    assert store.recover() is None
    assert names(store) == []


def test_a_save_makes_the_newest_and_its_name_tells_the_step(store: CheckpointStore) -> None:
    paths = save(store, 0, 100)
    assert [path.name for path in paths] == ["step-00000000.safetensors", "step-00000100.safetensors"]
    assert store.list() == paths
    assert store.latest() == paths[1]
    assert (store.folder / "latest").read_text() == "step-00000100.safetensors\n"
    path, tensors, meta = store.load_latest() or pytest.fail("no checkpoint")
    assert path == paths[1]
    assert tensors["a"].tolist() == [100] * 5
    assert meta == {"step": 100, "loss": 50.0}
    assert store.load(paths[0])[1]["step"] == 0


def test_steps_of_nine_digits_sort_as_numbers(store: CheckpointStore) -> None:
    paths = save(store, 99_999_999, 100_000_000)
    assert store.list() == paths
    assert store.latest() == paths[1]


@pytest.mark.parametrize(("keep", "kept"), [(1, [40]), (2, [30, 40]), (None, [10, 20, 30, 40])])
def test_the_last_few_are_kept(tmp_path: Path, keep: int | None, kept: list[int]) -> None:
    store = CheckpointStore(tmp_path, keep=keep, files=UnsyncedFiles())
    save(store, 10, 20, 30, 40)
    assert store.list() == [store.path_of(step) for step in kept]


def test_keeping_fewer_than_before_removes_the_surplus(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, keep=None), 1, 2, 3, 4)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 5)
    assert store.list() == [store.path_of(4), store.path_of(5)]


def test_checkpoints_beyond_the_saved_step_are_neither_counted_nor_removed(store: CheckpointStore) -> None:
    save(store, 100, 110, 120)
    save(store, 10, 20, 30, 40)
    assert store.list() == [store.path_of(step) for step in (20, 30, 40, 100, 110, 120)]


def test_saving_a_step_again_replaces_it(store: CheckpointStore) -> None:
    (path,) = save(store, 10)
    damage(path)
    assert save(store, 10) == [path]
    assert store.latest() == path
    assert store.list() == [path]


def test_a_damaged_newest_is_reported_and_the_one_before_it_used(store: CheckpointStore, reports: Reports) -> None:
    paths = save(store, 10, 20, 30)
    damage(paths[2])
    paths[1].write_bytes(paths[1].read_bytes()[:50])
    assert store.latest() == paths[0]
    assert len(reports) == 2
    assert str(paths[2]) in reports[0]
    assert "tensor 'a' is damaged" in reports[0]
    assert "truncated" in reports[1]
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded[0] == paths[0]
    with pytest.raises(CheckpointFormatError):
        store.load(paths[2])


def test_without_any_good_checkpoint_there_is_none(store: CheckpointStore, reports: Reports) -> None:
    for path in save(store, 10, 20):
        damage(path)
    assert store.latest() is None
    assert store.load_latest() is None
    assert store.recover() is None
    assert len(reports) == 6


def test_a_file_that_was_given_the_name_of_another_step_is_reported(store: CheckpointStore, reports: Reports) -> None:
    paths = save(store, 10, 20)
    paths[1].rename(store.path_of(30))
    assert store.latest() == paths[0]
    assert "expected a checkpoint of step 30 as its name says, got step 20" in reports[0]


def test_latest_is_only_a_pointer(store: CheckpointStore) -> None:
    paths = save(store, 10, 20)
    for content in ("step-00000010.safetensors\n", "nonsense", "../../etc/passwd\n", ""):
        (store.folder / "latest").write_text(content)
        assert store.latest() == paths[1]
        assert store.recover() == paths[1]
        assert (store.folder / "latest").read_text() == "step-00000020.safetensors\n"
    (store.folder / "latest").unlink()
    assert store.latest() == paths[1]


def test_recovering_tidies_up_and_keeps_what_was_damaged(store: CheckpointStore, reports: Reports) -> None:
    paths = save(store, 10, 20)
    damage(paths[1])
    for name in ("step-00000030.safetensors.tmp", "latest.tmp", "notes.tmp", "step-1.safetensors", "notes.txt"):
        (store.folder / name).write_text("x")
    assert store.recover() == paths[0]
    assert names(store) == [
        *("latest", "notes.tmp", "notes.txt", "step-00000010.safetensors"),
        *("step-00000020.safetensors.damaged", "step-1.safetensors"),
    ]
    assert (store.folder / "latest").read_text() == "step-00000010.safetensors\n"
    assert len(reports) == 3
    reports.clear()
    assert store.recover() == paths[0]
    assert reports == []


def test_recovering_removes_what_a_killed_save_left_to_remove(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, keep=None), 1, 2, 3, 4)
    damage(tmp_path / "step-00000004.safetensors")
    store = CheckpointStore(tmp_path, keep=2, report=lambda _: None)
    assert store.recover() == store.path_of(3)
    assert store.list() == [store.path_of(2), store.path_of(3)]


def test_a_reader_leaves_the_folder_alone(store: CheckpointStore) -> None:
    damage(save(store, 10, 20)[1])
    (store.folder / "step-00000030.safetensors.tmp").write_text("x")
    before = names(store)
    reader = CheckpointStore(store.folder, report=lambda _: None)
    reader.latest()
    reader.load_latest()
    assert names(store) == before


class UnreadableFiles(UnsyncedFiles):
    """Opening the checkpoint of step 20 fails."""

    def __init__(self, code: int) -> None:
        self.code = code

    def open(self, path: Path) -> int:
        if path.name == "step-00000020.safetensors":
            raise OSError(self.code, os.strerror(self.code))
        return super().open(path)


def test_a_bad_sector_is_damage_but_a_lack_of_permission_is_not(store: CheckpointStore, reports: Reports) -> None:
    paths = save(store, 10, 20)
    assert CheckpointStore(store.folder, report=reports, files=UnreadableFiles(errno.EIO)).latest() == paths[0]
    assert "Input/output error" in reports[0]
    with pytest.raises(CheckpointReadError, match=r"Permission denied.*check its permissions"):
        CheckpointStore(store.folder, files=UnreadableFiles(errno.EACCES)).latest()
    # Removed by the process that saves, between listing and opening.
    assert CheckpointStore(store.folder, files=UnreadableFiles(errno.ENOENT)).latest() == paths[0]


def test_an_old_checkpoint_that_cannot_be_removed_is_reported(store: CheckpointStore, reports: Reports) -> None:
    class StickyFiles(UnsyncedFiles):
        def unlink(self, path: Path) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    sticky = CheckpointStore(store.folder, keep=1, report=reports, files=StickyFiles())
    paths = save(sticky, 10, 20)
    assert sticky.latest() == paths[1]
    assert sticky.list() == paths
    assert reports == [f"[checkpoint] {paths[0]}: not removed: Permission denied"]


def test_a_file_in_place_of_the_folder_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = CheckpointStore(tmp_path / "file" / "checkpoints")
    assert store.list() == []
    with pytest.raises(OSError, match="expected the folder"):
        save(store, 1)


def test_impossible_arguments_are_typed_errors(tmp_path: Path, store: CheckpointStore) -> None:
    with pytest.raises(CheckpointValueError, match="expected keep of 1 or more, or None for all, got 0"):
        CheckpointStore(tmp_path, keep=0)
    with pytest.raises(CheckpointValueError, match="expected num_threads of 1 or more, got 0"):
        CheckpointStore(tmp_path, num_threads=0)
    with pytest.raises(CheckpointValueError, match="expected step of 0 or more, got -1"):
        save(store, -1)
    for step in (1.0, True, "1", np.int64(1)):
        with pytest.raises(CheckpointTypeError, match="expected step of type int"):
            store.save(step, {}, {})  # type: ignore[arg-type]
    with pytest.raises(CheckpointValueError, match="expected metadata 'step' to be 1, got 2"):
        store.save(1, {}, {"step": 2})
    with pytest.raises(CheckpointNotFoundError):
        store.load(tmp_path / "missing")
    with pytest.raises(CheckpointValueError, match="expected a digest of"):
        save(CheckpointStore(tmp_path, algorithm="md5"), 1)
    assert names(CheckpointStore(tmp_path)) == []
