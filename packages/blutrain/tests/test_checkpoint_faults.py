"""No fault, crash or power cut at any operation of a save loses the newest good checkpoint."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoint_faults import (
    MOMENTS,
    CrashingFiles,
    FailingFiles,
    HookedFiles,
    PowerLossFiles,
    SimulatedCrash,
    UnsyncedFiles,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from blutrain.checkpoint import (
    CheckpointDigestError,
    CheckpointDiskFullError,
    CheckpointError,
    CheckpointReadOnlyError,
    CheckpointStore,
    CheckpointWriteError,
)
from blutrain.checkpoint.files import Files, OsFiles

OLD_STEPS = (10, 20)
NEW_STEP = 30
KEEP = 2


def state_of(step: int) -> dict[str, np.ndarray]:
    """Tensors that tell which step they belong to."""
    generator = np.random.default_rng(step)
    return {
        "weight": generator.standard_normal((7, 11), dtype=np.float32),
        "moment": generator.standard_normal((7, 11), dtype=np.float32),
        "rng": generator.integers(0, 2**60, size=2),
    }


def save(folder: Path, step: int, files: Files | None = None) -> Path:
    files = files or UnsyncedFiles()
    store = CheckpointStore(folder, keep=KEEP, files=files, num_threads=1)
    return store.save(step, state_of(step), {"loss": step / 7})


def fill(folder: Path) -> None:
    for step in OLD_STEPS:
        save(folder, step)


def check_is_good(path: Path | None, steps: tuple[int, ...]) -> int:
    """Asserts that a checkpoint is there, of one of ``steps``, and holds exactly what was saved; returns its step."""
    assert path is not None
    tensors, meta = CheckpointStore(path.parent, num_threads=1).load(path)
    assert meta["step"] in steps
    assert meta["loss"] == meta["step"] / 7
    expected = state_of(meta["step"])
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name], array, strict=True)
    return int(meta["step"])


def check_recovers(folder: Path, steps: tuple[int, ...]) -> int:
    """Asserts what must hold after any crash; returns the step that training would continue from."""
    step = check_is_good(CheckpointStore(folder, keep=KEEP, num_threads=1, files=UnsyncedFiles()).latest(), steps)
    recovered = CheckpointStore(folder, keep=KEEP, num_threads=1, files=UnsyncedFiles()).recover()
    assert check_is_good(recovered, steps) == step
    assert not list(folder.glob("*.tmp"))
    assert (folder / "latest").read_text() == f"step-{step:08d}.safetensors\n"
    # Training goes on: the step that was being saved is saved again, and nothing is in its way.
    check_is_good(save(folder, NEW_STEP), (NEW_STEP,))
    assert check_is_good(CheckpointStore(folder).latest(), (NEW_STEP,)) == NEW_STEP
    return step


def operations(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("operations")
    fill(folder)
    files = HookedFiles()
    save(folder, NEW_STEP, files)
    return files.log


@pytest.fixture(scope="module")
def save_operations(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The operations of the save that the tests break, in order."""
    return operations(tmp_path_factory)


def test_a_save_makes_the_operations_that_its_safety_needs(save_operations: list[str]) -> None:
    durable = [name for name in save_operations if name in ("write", "fsync", "read", "rename", "fsync_dir", "unlink")]
    collapsed = [name for name, before in zip(durable, [None, *durable], strict=False) if name != before]
    assert collapsed == [
        *("write", "fsync", "read", "rename", "fsync_dir"),  # the checkpoint
        *("write", "fsync", "rename", "fsync_dir"),  # latest
        "unlink",  # the oldest
    ]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_an_error_at_any_operation_is_typed_and_loses_nothing(
    tmp_path: Path, save_operations: list[str], code: int
) -> None:
    kinds = {errno.ENOSPC: CheckpointDiskFullError, errno.EROFS: CheckpointReadOnlyError, errno.EIO: CheckpointError}
    for strike, name in enumerate(save_operations):
        folder = tmp_path / f"{strike}"
        fill(folder)
        files = FailingFiles(strike, code)
        if name == "unlink":
            save(folder, NEW_STEP, files)  # an old checkpoint too many is reported, and no reason to fail
        else:
            with pytest.raises(CheckpointError) as caught:
                save(folder, NEW_STEP, files)
            if name not in ("open", "read") and save_operations[strike - 1] != "read":
                assert isinstance(caught.value, kinds[code])
                assert caught.value.errno == code
            assert str(folder) in str(caught.value)
        assert files.struck == name
        # A process that lives on tidies up after itself.
        assert not list(folder.glob("step-*.tmp"))
        renamed = save_operations.index("rename") < strike
        assert check_recovers(folder, (*OLD_STEPS, NEW_STEP)) == (NEW_STEP if renamed else OLD_STEPS[-1])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_crash_at_any_operation_loses_nothing(tmp_path: Path, save_operations: list[str], moment: str) -> None:
    rename = save_operations.index("rename")
    for strike in range(len(save_operations)):
        folder = tmp_path / f"{strike}"
        fill(folder)
        with pytest.raises(SimulatedCrash):
            save(folder, NEW_STEP, CrashingFiles(strike, moment))
        renamed = strike > rename or (strike == rename and moment == "after")
        assert check_recovers(folder, (*OLD_STEPS, NEW_STEP)) == (NEW_STEP if renamed else OLD_STEPS[-1])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_power_cut_at_any_operation_loses_nothing(tmp_path: Path, save_operations: list[str], moment: str) -> None:
    synced = save_operations.index("fsync_dir")
    num_wrecks = 0
    for strike in range(len(save_operations)):
        folder = tmp_path / f"{strike}"
        fill(folder)
        files = PowerLossFiles(folder, strike, moment)
        with pytest.raises(SimulatedCrash):
            save(folder, NEW_STEP, files)
        for number, wreck in enumerate(files.wrecks()):
            wrecked = tmp_path / f"{strike}-{number}"
            wreck.lay_out(wrecked)
            step = check_recovers(wrecked, (*OLD_STEPS, NEW_STEP))
            assert step >= OLD_STEPS[-1], wreck.description
            if strike > synced:
                assert step == NEW_STEP, wreck.description
            num_wrecks += 1
    assert num_wrecks > len(save_operations)


def test_a_crash_while_recovering_loses_nothing(tmp_path: Path) -> None:
    def wreck(folder: Path) -> None:
        fill(folder)
        damage(save(folder, NEW_STEP))
        (folder / "step-00000040.safetensors.tmp").write_bytes(b"half")
        (folder / "latest.tmp").write_bytes(b"")
        (folder / "latest").write_text("nonsense")

    wreck(tmp_path / "whole")
    files = HookedFiles()
    assert CheckpointStore(tmp_path / "whole", files=files, report=lambda _: None).recover() is not None
    assert {"unlink", "rename", "write", "fsync"} <= set(files.log)
    for moment in MOMENTS:
        for strike in range(len(files.log)):
            folder = tmp_path / f"{moment}-{strike}"
            wreck(folder)
            with pytest.raises(SimulatedCrash):
                CheckpointStore(folder, files=CrashingFiles(strike, moment), report=lambda _: None).recover()
            check_recovers(folder, OLD_STEPS)


def damage(path: Path, offset: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


ACTIONS = st.one_of(
    st.tuples(st.just("save")),
    st.tuples(st.just("crash"), st.integers(0, 30), st.sampled_from(MOMENTS)),
    st.tuples(st.just("fail"), st.integers(0, 30), st.sampled_from([errno.EIO, errno.ENOSPC])),
    st.tuples(st.just("damage"), st.integers(0, 10**6)),
    st.tuples(st.just("recover")),
)


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=12), keep=st.sampled_from([1, 2, None]))
def test_any_history_of_saves_crashes_and_damage_keeps_the_newest_good_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple], keep: int | None
) -> None:
    folder = tmp_path_factory.mktemp("history")
    good: set[int] = set()  # steps whose files we know to be there and right
    step = 0

    def store(files: Files | None = None) -> CheckpointStore:
        return CheckpointStore(folder, keep=keep, files=files, num_threads=1, report=lambda _: None)

    def save_with(files: Files) -> None:
        store(files).save(step, state_of(step), {"loss": step / 7})

    for action, *arguments in actions:
        newest = max(good, default=None)
        if action == "save":
            step += 1
            save_with(UnsyncedFiles())
            good.add(step)
        elif action in ("crash", "fail"):
            step += 1
            strike, how = arguments
            files = CrashingFiles(strike, how) if action == "crash" else FailingFiles(strike, how)
            with contextlib.suppress(SimulatedCrash, CheckpointError):
                save_with(files)
            if store().path_of(step).exists():
                good.add(step)
        elif action == "damage" and newest is not None:
            path = store().path_of(newest)
            damage(path, arguments[0] % path.stat().st_size)
            good.discard(newest)
        elif action == "recover":
            store(UnsyncedFiles()).recover()
        good = {one for one in good if store().path_of(one).exists()}
        if newest is not None and action != "damage":
            assert good, f"{action} left no good checkpoint"
            assert max(good) >= newest
        latest = store().latest()
        assert latest == (store().path_of(max(good)) if good else None)
        if latest is not None:
            check_is_good(latest, (max(good),))


def test_a_disk_that_gives_back_other_bytes_is_found_out(tmp_path: Path) -> None:
    class ForgetfulFiles(OsFiles):
        def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
            count = OsFiles.read(self, descriptor, buffer, offset)
            if offset > 0:  # in a tensor, not in the header
                buffer[0] ^= 1
            return count

    fill(tmp_path)
    with pytest.raises(CheckpointDigestError, match="damaged"):
        save(tmp_path, NEW_STEP, ForgetfulFiles())
    check_recovers(tmp_path, OLD_STEPS)


def test_a_disk_that_takes_few_bytes_at_a_time_is_no_fault(tmp_path: Path) -> None:
    class SlowFiles(OsFiles):
        def write(self, descriptor: int, data: memoryview, offset: int) -> int:
            return OsFiles.write(self, descriptor, data[:100], offset)

        def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
            return OsFiles.read(self, descriptor, buffer[:100], offset)

    check_is_good(save(tmp_path, NEW_STEP, SlowFiles()), (NEW_STEP,))


def test_a_disk_that_takes_no_bytes_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    class StuckFiles(OsFiles):
        def write(self, descriptor: int, data: memoryview, offset: int) -> int:
            return 0

    with pytest.raises(CheckpointWriteError):
        save(tmp_path, NEW_STEP, StuckFiles())


def test_ctrl_c_while_saving_leaves_no_half_file(tmp_path: Path, save_operations: list[str]) -> None:
    class InterruptedFiles(HookedFiles):
        def around(self, name, perform, half):
            if len(self.log) - 1 == strike:
                raise KeyboardInterrupt
            return perform()

    for strike in range(len(save_operations)):
        folder = tmp_path / f"{strike}"
        fill(folder)
        with pytest.raises(KeyboardInterrupt):
            save(folder, NEW_STEP, InterruptedFiles())
        assert not list(folder.glob("step-*.tmp"))
        check_recovers(folder, (*OLD_STEPS, NEW_STEP))


def test_a_file_beyond_the_systems_limit_is_a_typed_error(tmp_path: Path) -> None:
    """The system's own refusal in the middle of a write, without a disk that is really full."""
    fill(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(CheckpointWriteError) as caught:
            CheckpointStore(tmp_path).save(NEW_STEP, {"large": np.ones(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    check_recovers(tmp_path, OLD_STEPS)


READ_ONLY_CHILD = """
import os, sys
from pathlib import Path
import numpy as np
from blutrain.checkpoint import CheckpointReadOnlyError, CheckpointStore

if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
store = CheckpointStore(sys.argv[1])
for save in (lambda: store.save(30, {"a": np.ones(3)}, {}), store.recover):
    try:
        save()
    except CheckpointReadOnlyError as error:
        print(error)
assert store.latest() == Path(sys.argv[1]) / "step-00000020.safetensors"
"""


def test_a_folder_without_permission_to_write_is_a_typed_error_and_can_be_read() -> None:
    """A process without root's privileges meets a folder that it may only read."""
    with tempfile.TemporaryDirectory() as name:  # pytest's folders cannot even be entered by other users
        Path(name).chmod(0o755)
        folder = Path(name) / "checkpoints"
        fill(folder)
        (folder / "latest").write_text("nonsense that recover wants to repair")
        folder.chmod(0o555)
        child = run_child("-c", READ_ONLY_CHILD, str(folder))
        folder.chmod(0o755)
    assert child.returncode == 0, child.stderr
    assert child.stdout.count("make it writable for this user") == 2


def run_child(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python, with this process's import path, on ``arguments``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)


KILLED_CHILD = """
import os, signal, sys
from pathlib import Path
from checkpoint_faults import MOMENTS, KilledFiles
from test_checkpoint_faults import NEW_STEP, fill, save

for moment in MOMENTS:
    for strike in range(int(sys.argv[2])):
        folder = Path(sys.argv[1]) / f"{moment}-{strike}"
        fill(folder)
        child = os.fork()
        if child == 0:
            save(folder, NEW_STEP, KilledFiles(strike, moment))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (moment, strike, status)
"""


def test_sigkill_at_any_operation_loses_nothing(tmp_path: Path, save_operations: list[str]) -> None:
    rename = save_operations.index("rename")
    child = run_child("-c", KILLED_CHILD, str(tmp_path), str(len(save_operations)))
    assert child.returncode == 0, child.stderr
    for moment in MOMENTS:
        for strike in range(len(save_operations)):
            renamed = strike > rename or (strike == rename and moment == "after")
            step = check_recovers(tmp_path / f"{moment}-{strike}", (*OLD_STEPS, NEW_STEP))
            assert step == (NEW_STEP if renamed else OLD_STEPS[-1])


RESTLESS_CHILD = """
import sys
from pathlib import Path
from blutrain.checkpoint.files import OsFiles
from test_checkpoint_faults import save

step = int(sys.argv[2])
while True:
    step += 1
    save(Path(sys.argv[1]), step, OsFiles())
    print(step, flush=True)
"""


def test_sigkill_at_a_random_moment_of_saves_in_a_row_loses_nothing(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    step = 0
    for _ in range(8):
        command = [sys.executable, "-c", RESTLESS_CHILD, str(tmp_path), str(step)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline()
            time.sleep(generator.uniform(0, 0.05))
            child.send_signal(signal.SIGKILL)
            confirmed = [int(line) for line in child.stdout.read().splitlines()]
        newest = CheckpointStore(tmp_path, keep=KEEP).recover()
        last = max(confirmed, default=step + 1)
        step = check_is_good(newest, (last, last + 1))
