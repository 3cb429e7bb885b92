"""The configuration tree: reading, writing, settings, and reporting everything that is wrong at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blublas
from blutrain.config import Config, ScheduleConfig
from blutrain.config_io import config_from_dict, config_to_dict, config_to_toml, known_keys, load_config, save_config
from blutrain.data import ShardWriter, open_dataset, prepare
from blutrain.errors import ConfigError, InvalidInputError
from blutrain.launch import train
from blutrain.presets import PRESETS
from blutrain.schedule import SCHEDULE_KINDS, learning_rates
from blutrain.validation import check_config, find_problems


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_survive_toml(name: str, tmp_path: Path) -> None:
    config = load_config(preset=name)
    check_config(config)
    save_config(config, tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml") == config
    assert config_from_dict(config_to_dict(config)) == config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2-44m", 45.2), ("gpt2-124m", 124.5), ("gpt2-163m", 163.1), ("gpt2-350m", 354.9), ("gpt2-774m", 774.1),
        ("gpt2-1558m", 1557.7), ("gpt2-2420m", 2413.0),
    ],
)  # fmt: skip
def test_presets_have_the_size_of_their_name(name: str, parameters: float) -> None:
    model = PRESETS[name].model
    c, v = model.channels, model.padded_vocab_size
    count = v * c * (1 if model.tied_head else 2) + model.context * c + model.layers * (12 * c * c + 13 * c) + 2 * c
    assert count / 1e6 == pytest.approx(parameters, abs=0.06)


def test_every_field_is_documented() -> None:
    import ast
    import inspect

    import blutrain.config as module

    for cls in (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)):
        for field, after in zip(cls.body, cls.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{cls.name}.{ast.unparse(field.target)} has no docstring"


def test_later_sources_win(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('preset = "gpt2-nano"\n[train]\nsteps = 7\nseed = 3\n[schedule]\nlearning_rate = 1\n')
    config = load_config(path, settings=["train.steps=9", "data.path=some/where", "model.tied_head=false"])
    assert config.train.steps == 9
    assert config.train.seed == 3
    assert config.schedule.learning_rate == 1.0
    assert isinstance(config.schedule.learning_rate, float)
    assert config.data.path == "some/where"
    assert not config.model.tied_head
    assert config.model.context == 128
    assert load_config(settings=['data.path="quoted = x"']).data.path == "quoted = x"
    assert load_config(settings=["data.path=007"]).data.path == "007"


def test_all_mistakes_of_form_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[trian]\nsteps = 1\n[train]\nsteeps = 2\nmicro_batch = 1.5\n[model]\ntied_head = 1\nheads = true\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, preset="gpt2-nona", settings=["steps=5", "oops", "train.seed=abc", "data.path.x=1"])
    found = {problem.key: problem.message for problem in caught.value.problems}
    assert "did you mean 'train'?" in found["trian"]
    assert "did you mean 'train.steps'?" in found["train.steeps"]
    assert "did you mean 'train.steps'?" in found["steps"]
    assert "did you mean 'gpt2-nano'?" in found["preset"]
    assert found["train.micro_batch"] == "expected an integer, got 1.5"
    assert found["train.seed"] == "expected an integer, got 'abc'"
    assert found["model.tied_head"] == "expected true or false, got 1"
    assert found["model.heads"] == "expected an integer, got True"
    assert found["--set"] == "expected key=value, got 'oops'"
    assert set(found) == {
        "trian", "train.steeps", "steps", "preset", "train.micro_batch", "train.seed", "model.tied_head", "model.heads",
        "--set", "data.path.x",
    }  # fmt: skip
    assert "\n" not in str(caught.value)


def test_mistakes_of_form_and_impossible_values_are_reported_together(tmp_path: Path) -> None:
    settings = [
        "train.steps=many", "oops", "model.heads=3", "train.seed=-1", "model.channels=x", "optimizer.beta2=1",
        f"data.path={tmp_path / 'absent'}",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        load_config(settings=settings)
    found = {problem.key: problem.message for problem in caught.value.problems}
    assert set(found) == {"train.steps", "--set", "model.channels", "train.seed", "optimizer.beta2", "data.path"}
    assert found["train.steps"] == "expected an integer, got 'many'"  # once: its default is no problem
    assert "absent" in found["data.path"]
    # Of a preset that is not known nothing can be said but of what was given beside it.
    with pytest.raises(ConfigError) as caught:
        load_config(preset="gpt2-nona", settings=["model.heads=3", "train.seed=-1"])
    assert [problem.key for problem in caught.value.problems] == ["preset", "train.seed"]


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("steps = = 3")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load_config(tmp_path / "c.toml")
    with pytest.raises(FileNotFoundError):
        load_config(tmp_path / "absent.toml")


def test_all_impossible_values_are_reported_at_once() -> None:
    config = load_config(
        settings=[
            "model.heads=3", "train.global_batch_tokens=2049", "optimizer.beta2=1", "schedule.kind=cosin",
            "train.precision=fp8", "train.device=gpu", "train.steps=0", "train.seed=-1", f"model.vocab_size={2**25}",
            "schedule.learning_rate=nan", "optimizer.clip_norm=inf", "schedule.final_fraction=1.5", "run.folder=",
        ]
    )  # fmt: skip
    problems = {problem.key: problem.message for problem in find_problems(config)}
    assert problems["model.heads"] == "expected a divisor of model.channels = 128, got 3; take 2"
    assert problems["train.global_batch_tokens"].endswith("= 2048, got 2049; take 2048")
    assert "did you mean 'cosine'?" in problems["schedule.kind"]
    assert set(problems) == {
        "model.heads", "train.global_batch_tokens", "optimizer.beta2", "schedule.kind", "train.precision",
        "train.device", "train.steps", "train.seed", "model.vocab_size", "schedule.learning_rate",
        "optimizer.clip_norm", "schedule.final_fraction", "run.folder",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["99999999999999999999", "-99999999999999999999", "9" * 5000, "0x" + "f" * 9000])
@pytest.mark.parametrize("key", ["train.steps", "schedule.learning_rate"])
def test_integers_beyond_64_bits_are_a_problem_of_form(key: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(settings=[f"{key}={text}"])
    section, name = key.split(".")
    (tmp_path / "file.toml").write_text(f"[{section}]\n{name} = {text}\n")
    with pytest.raises(ConfigError):
        load_config(tmp_path / "file.toml")


def test_absurd_integers_name_the_largest_value() -> None:
    settings = [f"{key}={2**31}" for key in ("train.steps", "model.channels", "train.micro_batch")]
    problems = {problem.key: problem.message for problem in find_problems(load_config(settings=settings))}
    assert {key: problems[key] for key in ("train.steps", "model.channels", "train.micro_batch")} == dict.fromkeys(
        ("train.steps", "model.channels", "train.micro_batch"), "expected at most 2147483647, got 2147483648"
    )
    limit = blublas.info().max_threads
    problems = {item.key: item.message for item in find_problems(load_config(settings=[f"train.threads={limit + 1}"]))}
    assert problems == {"train.threads": f"expected at most {limit} threads, got {limit + 1}"}
    assert find_problems(load_config(settings=[f"train.threads={limit}", "train.steps=2147483647"])) == []
    prime = ["model.channels=2147483647", "model.heads=1073741824"]
    (problem,) = find_problems(load_config(settings=prime))
    assert problem.message.endswith("take 1")


@pytest.mark.parametrize("key", known_keys())
def test_no_value_crashes_the_judge(key: str) -> None:
    section, name = key.split(".")
    kind = type(getattr(getattr(Config(), section), name))
    numbers = {int: (-1, 0, 2**62 + 1, 2**63 - 1), float: (-1.0, 0.0, 1e300), bool: (True,)}
    for value in (numbers | {str: ("", "x"), tuple: ((), ("x",))})[kind]:
        tree = config_to_dict(Config())
        tree[section][name] = value
        assert isinstance(find_problems(config_from_dict(tree)), list)


def test_against_the_data(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("0123456789" * 5)
    dataset = prepare([tmp_path / "text"], tmp_path / "data", val_fraction=0)
    config = load_config(settings=["model.vocab_size=100", "data.tokenizer=gpt2", "model.context=51"])
    problems = {problem.key: problem.message for problem in find_problems(config, dataset)}
    assert "expected at most 50" in problems["model.context"]
    assert "'bytes'" in problems["data.tokenizer"]
    assert "at least 256" in problems["model.vocab_size"]
    assert "expected val shards" in problems["data.path"]
    small = load_config(settings=["model.context=50", "train.eval_every=0", "train.global_batch_tokens=800"])
    assert find_problems(small, dataset) == []
    with ShardWriter(tmp_path, "val", 9) as writer:
        writer.append(np.zeros(1, np.uint16))
    problems = find_problems(Config(), open_dataset(tmp_path))
    assert [problem.key for problem in problems] == ["data.path", "data.path"]  # no train shards, too few val tokens


# ---- schedules ---------------------------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(SCHEDULE_KINDS),
    steps=st.integers(0, 60),
    warmup=st.integers(0, 70),
    final=st.floats(0, 1),
    decay=st.floats(0, 1),
)
def test_schedule_bounds(kind: str, steps: int, warmup: int, final: float, decay: float) -> None:
    schedule = ScheduleConfig(kind, 2.0, warmup, final, decay)
    rates = learning_rates(schedule, steps)
    assert rates.shape == (steps,)
    assert (rates >= 0).all()
    assert (rates <= 2.0).all()
    ramp = rates[: min(warmup, steps)]
    assert ramp == pytest.approx(2.0 * (np.arange(len(ramp)) + 1) / max(warmup, 1))
    assert (np.diff(rates[max(warmup - 1, 0) :]) <= 1e-12).all()


@given(
    kind=st.sampled_from(SCHEDULE_KINDS),
    steps=st.integers(1, 80),
    first=st.integers(0, 90),
    count=st.integers(0, 90),
    warmup=st.integers(0, 20),
)
def test_a_part_of_a_schedule_has_the_bits_of_the_whole(
    kind: str, steps: int, first: int, count: int, warmup: int
) -> None:
    schedule = ScheduleConfig(kind=kind, warmup_steps=warmup)
    whole = learning_rates(schedule, steps)
    assert learning_rates(schedule, steps, first, count).tolist() == whole[first : first + count].tolist()


def test_a_schedule_of_any_length_costs_its_part() -> None:
    assert len(learning_rates(ScheduleConfig(), 2**31 - 1, 2**30, 5)) == 5


def test_schedule_values() -> None:
    def rates(kind: str, **changes: float) -> list[float]:
        schedule = dataclasses.replace(ScheduleConfig(kind, 1.0, 2, 0.1, 0.5), **changes)
        return [round(float(rate), 6) for rate in learning_rates(schedule, 6)]

    assert rates("constant") == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear") == [0.5, 1, 0.775, 0.55, 0.325, 0.1]
    assert rates("cosine") == [0.5, 1, 0.868198, 0.55, 0.231802, 0.1]
    assert rates("trapezoidal") == [0.5, 1, 1, 0.7, 0.4, 0.1]
    assert rates("trapezoidal", decay_fraction=0.0) == [0.5, 1, 1, 1, 1, 1]
    with pytest.raises(InvalidInputError, match="cosine"):
        learning_rates(ScheduleConfig("cos"), 3)
    with pytest.raises(InvalidInputError, match="-1"):
        learning_rates(ScheduleConfig(), -1)


def test_toml_text_is_stable() -> None:
    assert config_to_toml(Config()).startswith("[model]\nlayers = 4\n")


@pytest.mark.parametrize("settings", ["train.steps=3", {"train.steps": 3}])
def test_settings_are_a_list(settings: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"expected settings as a list of 'key=value' texts"):
        load_config(settings=settings)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf[train]\r\nsteps = 7\r\n")
    assert load_config(tmp_path / "run.toml").train.steps == 7


@pytest.mark.parametrize("key", ["data.tokenizer", "run.folder"])
def test_a_path_that_no_file_can_have_is_a_problem_of_its_key(tmp_path: Path, key: str) -> None:
    """Beside other problems too, when the configuration is read, and when a run is to start."""
    setting = f'{key}="a\\u0000b"'
    (tmp_path / "text").write_text("a line of text, and another one\n" * 100)
    data = prepare(tmp_path / "text", tmp_path / "tokens").path
    settings = [f"data.path={data}", f"run.folder={tmp_path / 'run'}", setting]
    for more in ([], ["train.steps=many"], ["model.heads=3"]):
        with pytest.raises(ConfigError) as caught:
            train(load_config(settings=[*settings, *more]))
        (told,) = [problem.message for problem in caught.value.problems if problem.key == key]
        assert told == "expected a path that a file can have, got 'a\\x00b'"
        assert len(caught.value.problems) == 1 + len(more)


@pytest.mark.parametrize("tree", ["text", [1], 3, None])
def test_a_tree_that_is_no_table(tree: object) -> None:
    with pytest.raises(ConfigError, match=r"configuration: expected a table of sections, got"):
        config_from_dict(tree)  # type: ignore[arg-type]
