"""Runs and their tokenizers: the copy in the run folder, tokenizers that do not fit, GPT-2's tokens end to end."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from blutrain.cli import run_command
from blutrain.config import Config
from blutrain.config_io import load_config
from blutrain.console import SilentReporter
from blutrain.data import ShardWriter, get_tokenizer, prepare, train_tokenizer
from blutrain.data.tokenizer_bpe import byte_characters
from blutrain.errors import ConfigError, DataError, InvalidInputError, TokenizerError
from blutrain.evaluation import evaluate
from blutrain.generation import generate
from blutrain.huggingface import export_hf
from blutrain.launch import train

TINY = (
    "model.layers=1", "model.heads=2", "model.channels=8", "model.context=16", "train.micro_batch=2",
    "train.global_batch_tokens=32", "train.eval_every=0", "train.sample_every=2", "train.sample_tokens=4",
    "train.threads=1", "train.steps=2", "model.vocab_size=320",
)  # fmt: skip
TEXT = "the quick brown fox jumps over the lazy dog, and then it goes to sleep again\n" * 60


class Warnings(SilentReporter):
    """Keeps what a person has to know."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warning(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """GPT-2's two files with a few merges."""
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    merges = ["t h", "th e", "Ġ the"]
    tokens = [*byte_characters().values(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    (folder / "encoder.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (folder / "vocab.bpe").write_text("".join(f"{merge}\n" for merge in merges))
    return folder


@pytest.fixture
def data(tmp_path: Path, vocabulary: Path) -> Path:
    """A data set made with it."""
    (tmp_path / "text").write_text(TEXT)
    return prepare(tmp_path / "text", tmp_path / "tokens", tokenizer=vocabulary).path


def configure(data: Path, folder: Path, *settings: str) -> Config:
    return load_config(settings=[*TINY, f"data.path={data}", f"run.folder={folder}", *settings])


def test_a_run_has_all_that_generation_needs(tmp_path: Path, data: Path, vocabulary: Path) -> None:
    result = train(configure(data, tmp_path / "run", f"data.tokenizer={vocabulary}"))
    assert "step 2" in (tmp_path / "run" / "samples.txt").read_text()
    copy = tmp_path / "run" / "tokenizer"
    assert get_tokenizer(copy).identity == get_tokenizer(vocabulary).identity
    shutil.rmtree(data)
    shutil.rmtree(vocabulary)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    expected = generate(moved, "the fox", max_new_tokens=5)
    assert expected.startswith("the fox")
    assert result.checkpoint is not None
    assert generate(moved / "checkpoints", "the fox", max_new_tokens=5) == expected
    assert generate(moved / "checkpoints" / result.checkpoint.name, "the fox", max_new_tokens=5) == expected
    shutil.rmtree(moved / "tokenizer")
    with pytest.raises(TokenizerError, match=r"no file at .*vocabulary"):
        generate(moved, "the")


def test_the_path_may_be_gone_where_the_run_has_a_copy(tmp_path: Path, data: Path, vocabulary: Path) -> None:
    config = configure(data, tmp_path / "run", f"data.tokenizer={vocabulary}")
    train(config)
    shutil.rmtree(vocabulary)
    train(configure(data, tmp_path / "run", f"data.tokenizer={vocabulary}", "train.steps=3"), resume=True)
    assert evaluate(tmp_path / "run", max_batches=1).step == 3


def test_another_tokenizer_than_the_data_s_is_an_error_with_its_fix(
    tmp_path: Path, data: Path, vocabulary: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"got 'gpt2': set data\.tokenizer={data}/tokenizer, or prepare") as caught:
        train(configure(data, tmp_path / "run", "data.tokenizer=gpt2"))
    assert [problem.key for problem in caught.value.problems] == ["data.tokenizer"]
    (vocabulary / "vocab.bpe").write_text("t h\n")
    with pytest.raises(ConfigError, match=r"expected the tokenizer that .* was prepared with, 'bpe' with 260 ids"):
        train(configure(data, tmp_path / "run", f"data.tokenizer={vocabulary}"))
    with pytest.raises(ConfigError, match="no file at absent"):
        train(configure(data, tmp_path / "run", "data.tokenizer=absent/tokenizer.json"))
    with pytest.raises(ConfigError, match=r"model\.vocab_size: expected at least 260"):
        train(configure(data, tmp_path / "run", f"data.tokenizer={data}/tokenizer", "model.vocab_size=256"))
    assert not (tmp_path / "run").exists()
    train(configure(data, tmp_path / "run", f"data.tokenizer={data}/tokenizer"))


def test_a_run_is_not_resumed_with_data_of_another_tokenizer(tmp_path: Path, data: Path) -> None:
    train(configure(data, tmp_path / "run", f"data.tokenizer={data}/tokenizer"))
    other = prepare(tmp_path / "text", tmp_path / "bytes").path
    with pytest.raises(
        ConfigError, match=r"data\.tokenizer: expected the tokenizer of the checkpoint of step 2, 'bpe'"
    ):
        train(configure(other, tmp_path / "run", "data.tokenizer=bytes", "train.steps=3"), resume=True)


@pytest.mark.parametrize("where", ["data", "named"])
def test_files_of_another_tokenizer_go_nowhere(tmp_path: Path, data: Path, vocabulary: Path, where: str) -> None:
    """Beside the tokenizer's own files lie some that are not read: in the prepared folder, or where it was named."""
    if where == "named":  # foreign shards, with nothing beside them
        shutil.rmtree(data / "tokenizer")
        (data / "manifest.json").unlink()
    beside = data / "tokenizer" if where == "data" else vocabulary
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "notes.txt", "vocab.json"):
        (beside / name).write_text('{"of": "another"}')
    train(configure(data, tmp_path / "run", f"data.tokenizer={vocabulary}"))
    assert sorted(path.name for path in (tmp_path / "run" / "tokenizer").iterdir()) == ["encoder.json", "vocab.bpe"]
    exported = export_hf(tmp_path / "run", tmp_path / "hf").files
    assert exported == ("config.json", "merges.txt", "model.safetensors", "vocab.json")
    assert get_tokenizer(tmp_path / "hf").identity == get_tokenizer(vocabulary).identity
    shutil.rmtree(tmp_path / "run" / "tokenizer")  # then the named one is exported
    export_hf(tmp_path / "run", tmp_path / "named")
    assert sorted(os.listdir(tmp_path / "named")) == list(exported)


def test_damaged_files_beside_the_data(tmp_path: Path, data: Path, vocabulary: Path) -> None:
    (data / "tokenizer" / "vocab.bpe").write_text("t h\n")
    with pytest.raises(DataError, match="prepare the data again"):
        train(configure(data, tmp_path / "run", f"data.tokenizer={vocabulary}"))


def test_overwriting_gives_the_old_tokenizer_back_when_nothing_comes_of_it(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(configure(data, tmp_path / "run", f"data.tokenizer={data}/tokenizer"))
    before = get_tokenizer(tmp_path / "run" / "tokenizer").identity
    other = train_tokenizer(tmp_path / "text", tmp_path / "own", vocab_size=280)
    prepare(tmp_path / "text", tmp_path / "other", tokenizer=tmp_path / "own")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    config = configure(tmp_path / "other", tmp_path / "run", f"data.tokenizer={tmp_path / 'own'}")
    with monkeypatch.context() as patch:
        patch.setattr("blutrain.launch.Trainer.run", fail)
        with pytest.raises(KeyboardInterrupt):
            train(config, overwrite=True)
    assert get_tokenizer(tmp_path / "run" / "tokenizer").identity == before
    train(config, overwrite=True)
    assert get_tokenizer(tmp_path / "run" / "tokenizer").identity == other.identity


def test_foreign_shards_train_without_their_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with ShardWriter(tmp_path / "x", "fineweb_train", 1000) as writer:
        (tmp_path / "x").mkdir()
        writer.append(np.arange(300, dtype=np.uint16))
    told = Warnings()
    result = train(configure(tmp_path / "x", tmp_path / "run", "data.tokenizer=gpt2"), reporter=told)
    assert result.step == 2
    assert any("training without samples" in text and "encoder.json and vocab.bpe" in text for text in told.texts)
    with pytest.raises(TokenizerError, match=r"encoder\.json and vocab\.bpe"):
        generate(tmp_path / "run")


def test_sampled_ids_are_the_tokenizer_s(tmp_path: Path, data: Path) -> None:
    train(configure(data, tmp_path / "run", f"data.tokenizer={data}/tokenizer"))
    text = generate(tmp_path / "run", max_new_tokens=300)  # 60 of the model's 320 ids mean nothing to the tokenizer
    assert len(text) > 0


# ---- a tokenizer of one's own ------------------------------------------------------------------------------------


def test_a_trained_tokenizer_from_text_to_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    (tmp_path / "text").write_text(TEXT)
    command = ["train-tokenizer", str(tmp_path / "text"), "--vocab-size", "300", "--out"]
    assert run_command([*command, str(tmp_path / "own")]) == 0
    assert "300 ids, end-of-text is 0" in capsys.readouterr().out
    assert run_command([*command, str(tmp_path / "twin")]) == 0
    assert get_tokenizer(tmp_path / "own").identity == get_tokenizer(tmp_path / "twin").identity
    assert run_command([*command, str(tmp_path / "own")]) == 2
    data = prepare(tmp_path / "text", tmp_path / "tokens", tokenizer=tmp_path / "own")
    assert data.num_tokens("train") < len(TEXT) / 2
    train(configure(data.path, tmp_path / "run", f"data.tokenizer={tmp_path / 'own' / 'tokenizer.json'}"))
    assert generate(tmp_path / "run", "the lazy", max_new_tokens=3).startswith("the lazy")


def test_what_a_tokenizer_does_not_know_of_a_prompt_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {word: number for number, word in enumerate(["</s>", "[UNK]", *sorted(set(TEXT.split()))])}
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    engine.save(str(tmp_path / "words.json"))
    (tmp_path / "text").write_text(TEXT)
    data = prepare(tmp_path / "text", tmp_path / "tokens", tokenizer=tmp_path / "words.json")
    train(configure(data.path, tmp_path / "run", f"data.tokenizer={tmp_path / 'words.json'}"))
    command = ["generate", str(tmp_path / "run"), "--max-new-tokens", "1", "--prompt"]
    assert run_command([*command, "the purple fox"]) == 0
    assert "does not know 1 of 3 tokens of the prompt" in capsys.readouterr().err
    assert run_command([*command, "the quick fox"]) == 0
    assert "does not know" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["encoder.json", "vocab.bpe", "tokenizer.json", "tokenizer_config.json"])
def test_a_byte_order_mark_is_no_part_of_a_tokenizer(tmp_path: Path, vocabulary: Path, name: str) -> None:
    if name.startswith("tokenizer"):
        pytest.importorskip("tokenizers", reason="tokenizers is not installed")
        (tmp_path / "text").write_text(TEXT)
        train_tokenizer(tmp_path / "text", tmp_path / "own", vocab_size=270)
    folder = tmp_path / "own" if name.startswith("tokenizer") else vocabulary
    expected = get_tokenizer(folder).identity
    (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    assert get_tokenizer(folder).identity == expected


def test_a_vocabulary_that_falls_short_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a").write_text("abc")
    (tmp_path / "text" / "b").write_bytes(b"\0")
    command = ["train-tokenizer", str(tmp_path / "text"), "--out", str(tmp_path / "own"), "--vocab-size"]
    assert run_command([*command, "300"]) == 0
    found = capsys.readouterr()
    assert "259 ids, end-of-text is 0" in found.out
    left_out, short = found.err.splitlines()
    assert left_out == f"left out: 1 file(s) that are no text (a byte 0): {tmp_path}/text/b"
    assert short.startswith("notice: the vocabulary has 259 ids and not 300: nothing is left to merge in the text")
    shutil.rmtree(tmp_path / "own")
    assert run_command([*command, "259"]) == 0
    assert "notice" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"caf\xe9",
            r"^\[data\] expected text in UTF-8, got byte 0xe9 at position 3 of .*leave it out with --exclude$",
        ),
        (b'{"text": null}', r"expected text, got none; left out: 1 record\(s\) without text .*line 1"),
    ],
)
def test_no_tokenizer_of_what_is_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    path = tmp_path / ("a.txt" if content.startswith(b"c") else "a.jsonl")
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        train_tokenizer(path, tmp_path / "own")
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("size", [256, 2**24 + 1])
def test_impossible_sizes(tmp_path: Path, size: int) -> None:
    with pytest.raises(InvalidInputError, match=f"257 to 16777216 ids, got {size}"):
        train_tokenizer(tmp_path, tmp_path / "own", vocab_size=size)


# ---- GPT-2 -------------------------------------------------------------------------------------------------------


def test_gpt2_tokens_end_to_end(tmp_path: Path, gpt2_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text(TEXT)
    command = ["prepare", str(tmp_path / "text"), "--out", str(tmp_path / "tokens"), "--tokenizer", str(gpt2_files)]
    assert run_command(command) == 0
    settings = [
        "model.layers=1", "model.heads=2", "model.channels=16", "model.context=32", "train.micro_batch=4",
        "train.global_batch_tokens=128", "train.steps=4", "train.eval_every=2", "train.sample_every=2",
        "train.sample_tokens=3", "train.threads=1", "schedule.warmup_steps=1", "train.checkpoint_every=0",
        f"data.path={tmp_path / 'tokens'}", f"run.folder={tmp_path / 'run'}",
    ]  # fmt: skip
    arguments = [text for setting in settings for text in ("--set", setting)]
    assert run_command(["train", "--preset", "gpt2-44m", *arguments]) == 0  # the preset's tokenizer is 'gpt2'
    capsys.readouterr()
    assert run_command(["generate", str(tmp_path / "run"), "--prompt", "the quick", "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("the quick")
    assert run_command(["eval", str(tmp_path / "run")]) == 0
