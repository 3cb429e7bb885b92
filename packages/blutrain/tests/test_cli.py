"""The command line: every command, exit codes, one line for the user's mistakes, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blutrain.cli import run_command
from blutrain.console import ConsoleReporter
from blutrain.metrics import read_metrics

TINY = (
    "--set", "model.layers=1", "--set", "model.heads=1", "--set", "model.channels=8", "--set", "model.context=16",
    "--set", "train.micro_batch=2", "--set", "train.global_batch_tokens=32", "--set", "train.eval_every=0",
    "--set", "train.sample_every=0", "--set", "train.threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text("a line of text, and another one\n" * 200)
    assert run_command(["prepare", str(folder / "text"), "--out", str(folder / "tokens")]) == 0
    return folder / "tokens"


def blutrain(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blutrain", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["info"]) == 0
    assert "blutensor" in capsys.readouterr().out
    assert run_command(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [package["name"] for package in found["packages"]] == ["blualloc", "blublas", "blutensor", "blutrain"]
    assert all(package["problem"] is None for package in found["packages"])
    assert found["cpus"] >= 1


def test_a_whole_run(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    settings = (*TINY, "--set", f"data.path={data}", "--set", f"run.folder={folder}")
    assert run_command(["train", *settings, "--set", "train.steps=8", "--device", "cpu"]) == 0
    told = capsys.readouterr().err
    assert "estimated peak" in told
    assert "parameters" in told
    assert run_command(["train", str(folder), "--resume", "--set", "train.steps=10"]) == 0
    assert "resuming at step 8" in capsys.readouterr().err
    assert [event["step"] for event in read_metrics(folder)] == list(range(1, 11))
    assert run_command(["eval", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 10
    assert run_command(["eval", str(folder), "--split", "train", "--max-batches", "2"]) == 0
    assert "over 64 tokens" in capsys.readouterr().out
    assert run_command(["generate", str(folder), "--prompt", "a l", "--max-new-tokens", "5", "--top-k", "3"]) == 0
    assert capsys.readouterr().out.startswith("a l")
    assert run_command(["plot", str(folder)]) == 0
    assert Path(capsys.readouterr().out.strip()).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--set", "train.stepz=1"], "train.stepz: unknown key, did you mean 'train.steps'?"),
        (["train", "--preset", "gpt3"], "unknown preset 'gpt3'"),
        (["train", "absent.toml"], "got nothing at absent.toml: check the path, or start from --preset"),
        (["train", "."], "expected the folder of a run, which has a config.toml, got . without one"),
        (["train", "--set", "train.steps=99999999999999999999"], "train.steps: expected a number that fits 64 bits"),
        (["train", "--set", "train.threads=100000"], "train.threads: expected at most"),
        (["train", "--set", "train.sample_prompt=\udcff"], "train.sample_prompt: expected text in UTF-8"),
        (["prepare", "/dev/null", "--out", "x"], "expected a regular file, folder or glob, got a device"),
        (["prepare", __file__, "--out", f"{__file__}/x"], f"to write {__file__}/x, got"),
        (["prepare", __file__, "--out", "/proc/x"], "to write /proc/x, got"),
        (["plot", "."], "got one without metrics.jsonl"),
        (["plot", ".", "--out", "x.xyz"], "ends in .png or .svg, got '.xyz'"),
        (["train", *TINY], "data.path"),
        (["train", *TINY, "--set", "data.path=absent"], "blutrain prepare"),
        (["train", "--resume", "--overwrite"], "got both"),
        (["prepare", "absent", "--out", "x"], "'absent'"),
        (["prepare", ".", "--out", "x", "--tokenizer", "gpt-2"], "got 'gpt-2', did you mean 'gpt2'?"),
        (["prepare"], "SOURCE"),
        (["eval", "absent"], "absent"),
        (["generate", "absent"], "absent"),
        (["generate", "absent", "--temperature", "-1"], "temperature"),
        (["plot", "absent"], "absent"),
        (["bench", "--work", "nothing.*"], "known: train.nano"),
        (["nonsense"], "nonsense"),
    ],
)
def test_mistakes_are_exit_code_2_and_say_what(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert sorted(os.listdir(tmp_path)) == []


def test_an_unexpected_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OverflowError("too\nlarge")

    monkeypatch.setattr("blutrain.plotting.plot", fail)
    assert run_command(["plot", "x"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: unexpected OverflowError: too large ('blutrain --traceback ...' shows")
    with pytest.raises(OverflowError):
        run_command(["--traceback", "plot", "x"])


def test_an_error_of_the_system_names_path_and_fix() -> None:
    from blutrain.cli.errors import message_of

    told = message_of(NotADirectoryError(20, "Not a directory", "/a/b"))
    assert told == "error: /a/b: Not a directory: check the path, its permissions and the free space"


@pytest.mark.parametrize(
    "locale", [{}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "latin-1"}]
)
def test_any_bytes_are_a_prompt_and_any_terminal_will_do(data: Path, tmp_path: Path, locale: dict[str, str]) -> None:
    settings = (*TINY, "--set", f"data.path={data}", "--set", f"run.folder={tmp_path / 'run'}")
    assert run_command(["train", *settings, "--set", "train.steps=1"]) == 0
    command = [sys.executable, "-m", "blutrain", "generate", str(tmp_path / "run"), "--max-new-tokens", "1", "--prompt"]
    done = subprocess.run(
        [*map(os.fsencode, command), b"x\xff\xfe\xc3\xa4"], capture_output=True, env={**os.environ, **locale}
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stdout.startswith(b"x??\xe4" if "PYTHONIOENCODING" in locale else "x\ufffd\ufffd\xe4".encode())


def test_all_problems_are_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--set", "model.heads=3", "--set", "optimizer.eps=0", "--set", f"data.path={data}"]
    assert run_command(["train", *wrong]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in told] == ["optimizer.eps", "model.heads"]


def test_a_folder_with_a_run_is_not_lost(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (*TINY, "--set", f"data.path={data}", "--set", f"run.folder={tmp_path}", "--set", "train.steps=3")
    assert run_command(["train", *settings]) == 0
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert run_command(["train", *settings]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert run_command(["train", *settings, "--overwrite"]) == 0


def test_a_read_only_run_folder(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        (tmp_path / "file").write_text("in the way")
        folder = tmp_path / "file" / "run"
    else:
        tmp_path.chmod(0o500)
        folder = tmp_path / "run"
    assert run_command(["train", *TINY, "--set", f"data.path={data}", "--set", f"run.folder={folder}"]) == 2
    told = capsys.readouterr().err
    assert str(folder) in told
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [(signal.SIGINT, 1, 130), (signal.SIGINT, 5, 130), (signal.SIGTERM, 1, 143), (signal.SIGHUP, 1, 129)],
)
def test_a_signal_finishes_the_step_and_saves(data: Path, tmp_path: Path, number: int, times: int, code: int) -> None:
    folder = tmp_path / "run"
    settings = (*TINY, "--set", f"data.path={data}", "--set", f"run.folder={folder}", "--set", "train.steps=1000000")
    process = subprocess.Popen(
        [sys.executable, "-m", "blutrain", "train", *settings],
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup, which these tests may run under, a program goes on ignoring SIGHUP.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while len(read_metrics(folder)) < 20:
        assert time.monotonic() < deadline, "no steps were done"
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.02)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert "Traceback" not in told
    assert told.count("stopping: finishing the step, then saving; --resume continues") == 1
    assert "overview\n  result      interrupted at step " in told
    last = read_metrics(folder)[-1]["step"]
    assert (folder / "checkpoints" / f"step-{last:08d}.safetensors").exists()
    done = blutrain("train", folder, "--resume", "--set", f"train.steps={last + 2}")
    assert done.returncode == 0, done.stderr
    assert [event["step"] for event in read_metrics(folder)] == list(range(1, last + 3))


def reader_that_leaves(end: int) -> None:
    """Reads one line of a pipe, or what comes first of a terminal, and closes it."""
    while b"\n" not in os.read(end, 1):
        pass
    os.close(end)


@pytest.mark.parametrize("kind", ["pipe", "both", "terminal"])
def test_training_goes_on_when_nobody_reads_standard_error(data: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    settings = (*TINY, "--set", f"data.path={data}", "--set", f"run.folder={folder}", "--set", "train.steps=40")
    command = [sys.executable, "-X", "dev", "-m", "blutrain", "train", *settings, "--set", "train.checkpoint_every=20"]
    reader, writer = os.openpty() if kind == "terminal" else os.pipe()
    process = subprocess.Popen(command, stderr=writer, stdout=writer if kind == "both" else subprocess.PIPE)
    os.close(writer)
    reader_that_leaves(reader)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert not out
    assert [event["step"] for event in read_metrics(folder)] == list(range(1, 41))
    assert (folder / "checkpoints" / "step-00000040.safetensors").is_file()


@pytest.mark.parametrize("arguments", [["plot", "/nowhere"], ["plot", "--no-such-option"], ["prepare"]])
def test_a_message_that_nobody_reads_leaves_the_exit_code(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for environment in (dict(os.environ), ascii_only):
        command = [sys.executable, "-m", "blutrain", *arguments]
        done = subprocess.run(command, stderr=writer, stdout=subprocess.PIPE, env=environment)
        assert (done.returncode, done.stdout) == (2, b"")
    os.close(writer)


class Gone(io.StringIO):
    """A stream that fails from its second write on."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        if self.getvalue():
            raise self._error
        return super().write(text)


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_a_reporter_drops_what_it_can_not_write(error: OSError) -> None:
    stream = Gone(error)
    with ConsoleReporter(stream, interval=0.0) as reporter:
        reporter.line("first")
        reporter.start(0, 2)
        reporter.progress(1, 1.0, 1.0, 1.0)
        reporter.section("title", [("name", "text")])
        reporter.warning("last")
    assert stream.getvalue() == "first\n"
    stream.close()
    reporter.line("to a stream that is closed")


def test_an_interrupt_while_libraries_load_has_no_traceback() -> None:
    script = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("blutrain", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
