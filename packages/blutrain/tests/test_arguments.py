"""Values of wrong types given to the public functions: one typed error that names function, argument and types."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import blutensor as bt
import blutrain
from blutrain.arguments import check_values, checked
from blutrain.config import Config, DataConfig, ModelConfig, RunConfig, TrainConfig
from blutrain.data import ShardWriter, read_shard, shard_num_tokens
from blutrain.data.tokenizer_bpe import byte_characters
from blutrain.errors import BlutrainError, ConfigError, InvalidInputError, InvalidTypeError
from blutrain.validation import find_problems

FUNCTIONS = [
    name
    for name in blutrain.__all__
    if inspect.isfunction(getattr(blutrain, name)) and inspect.signature(getattr(blutrain, name)).parameters
]
CLASSES = ["GPT", "Loader", "CheckpointStore", "SamplingOptions"]
GOOD: dict[str, Any] = {
    "run": "absent", "runs": ["absent"], "out": "absent/out", "sources": ["absent"], "path": "absent",
    "config": Config(), "name": "bytes", "folder": "absent", "paths": ["absent"], "batch": 1,
    "sequence_length": 1, "vocab_size": 2,
}  # fmt: skip


class Foreign:
    """What no function takes."""


def constructor(name: str) -> Callable[..., Any]:
    return getattr(blutrain, name)


def cases() -> list[tuple[str, str]]:
    found = []
    for name in [*FUNCTIONS, *CLASSES]:
        found += [(name, parameter) for parameter in inspect.signature(constructor(name)).parameters]
    return found


def call(name: str, /, **changed: Any) -> Any:
    function = constructor(name)
    needed = {
        parameter.name: GOOD[parameter.name]
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty
    }
    if name == "GPT":
        needed["config"] = ModelConfig()
    return function(**{**needed, **changed})


def test_all_public_functions_are_here() -> None:
    assert len(FUNCTIONS) == 15
    others = {name for name in blutrain.__all__ if name not in (*FUNCTIONS, *CLASSES)}
    assert others == {"Config", "BlutrainError", "PRESETS", "__version__", "info"}


@pytest.mark.parametrize(("function", "parameter"), cases())
def test_no_function_takes_anything_foreign(function: str, parameter: str) -> None:
    # A mapping of settings is iterable; it is refused with the advice what to give.
    for value in (Foreign(), 1j, *([] if parameter == "settings" else [{"a": Foreign()}])):
        with pytest.raises(InvalidTypeError) as caught:
            call(function, **{parameter: value})
        assert f"expected {parameter} of type " in str(caught.value)
        assert type(value).__name__ in str(caught.value)
        assert str(caught.value).startswith("[")
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_missing_and_unknown_arguments(function: str) -> None:
    with pytest.raises(InvalidTypeError, match="unexpected keyword argument 'colour'"):
        call(function, colour=1)
    if any(p.default is inspect.Parameter.empty for p in inspect.signature(constructor(function)).parameters.values()):
        with pytest.raises(InvalidTypeError, match="missing a required argument"):
            constructor(function)()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: blutrain.train("run"), r"\[train\] expected config of type Config, got str"),
        (lambda: blutrain.train(Config(), resume=1), r"\[train\] expected resume of type bool, got int"),
        (lambda: blutrain.train(Config(), reporter=print), r"expected reporter of type Reporter, got builtin"),
        (lambda: blutrain.prepare("t", "o", include="*.py"), r"\[prepare\] expected include of type list of str, got"),
        (lambda: blutrain.prepare([1], "o"), r"expected sources of type str or Path or list of str or Path, got list"),
        (lambda: blutrain.prepare("t", "o", val_fraction="0.1"), r"expected val_fraction of type float, got str"),
        (lambda: blutrain.prepare("t", "o", shard_tokens=1.5), r"expected shard_tokens of type int, got float"),
        (lambda: blutrain.prepare("t", "o", workers=True), r"expected workers of type int, got bool"),
        (lambda: blutrain.bench("nano"), r"\[bench\] expected works of type list of str, got str"),
        (lambda: blutrain.load_config(5), r"\[config\] expected path of type str or Path, got int"),
        (lambda: blutrain.generate("run", "x", max_new_tokens="5"), r"expected max_new_tokens of type int, got str"),
        (lambda: blutrain.get_tokenizer(None), r"\[tokenizer\] expected name of type str or Path, got NoneType"),
        (lambda: blutrain.Loader("abc", 1, 1, vocab_size=2), r"\[loader\] expected paths of type list of str or Path"),
        (lambda: blutrain.SamplingOptions(temperature="1"), r"\[generate\] expected temperature of type float"),
        (lambda: blutrain.plot(["a"], x=3), r"\[plot\] expected x of type list of str or str, got int"),
    ],
)  # fmt: skip
def test_messages(attempt: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        attempt()


def test_numbers_and_paths_of_other_libraries_are_welcome(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 50)
    assert blutrain.prepare(
        tmp_path / "text", tmp_path / "out", val_fraction=np.float32(0.25), shard_tokens=np.int64(100), force=np.True_
    ).num_tokens("train")
    assert blutrain.SamplingOptions(temperature=1, top_k=np.int32(3)).top_k == 3

    class Place:
        def __fspath__(self) -> str:
            return str(tmp_path / "out")

    assert blutrain.open_dataset(Place()).path == tmp_path / "out"  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "9" * 300, "folder/" * 1000])
def test_paths_that_no_file_can_have(path: str) -> None:
    with pytest.raises(InvalidInputError, match=r"\[data\] expected a path that a file can have as path, got"):
        blutrain.open_dataset(path)
    with pytest.raises(InvalidInputError, match=r"\[checkpoint\] expected a path that a file can have as run, got"):
        blutrain.load_model(Path(path))
    with pytest.raises(ConfigError) as caught:
        blutrain.load_config(settings=["steps=1", f"data.path={path}"])
    found = {problem.key: problem.message for problem in caught.value.problems}
    expected = "text in UTF-8" if path == "\ud800" else "a path that a file can have as path"
    assert f"expected {expected}, got" in found["data.path"]


def test_settings_that_are_no_texts() -> None:
    with pytest.raises(ConfigError, match="expected key=value, got 5"):
        blutrain.load_config(settings=[5])  # type: ignore[list-item]


# ---- configurations that Python code makes -----------------------------------------------------------------------


def test_values_of_wrong_types_in_a_configuration() -> None:
    config = Config(
        model=ModelConfig(layers="3", heads=3),  # type: ignore[arg-type]
        train=TrainConfig(steps=5.0, seed=-1),  # type: ignore[arg-type]
        data=DataConfig(path=Path("x")),  # type: ignore[arg-type]
        run="runs/x",  # type: ignore[arg-type]
    )
    found = {problem.key: problem.message for problem in find_problems(config)}
    assert found == {
        "model.layers": "expected an integer, got '3'",
        "model.heads": "expected a divisor of model.channels = 128, got 3; take 2",
        "train.steps": "expected an integer, got 5.0",
        "train.seed": "expected a finite number of at least 0, got -1",
        "data.path": f"expected text, got {Path('x')!r}",
        "run": "expected a RunConfig, got str",
    }
    with pytest.raises(ConfigError) as caught:
        blutrain.train(config)
    assert {problem.key for problem in caught.value.problems} == set(found)
    assert find_problems(Config(run=RunConfig(loggers=["tensorboard"]))) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Config)])
def test_sections_of_another_kind(field: str) -> None:
    for value in (None, 3, {"layers": 1}, Foreign()):
        with pytest.raises(ConfigError, match=f"{field}: expected a "):
            blutrain.train(dataclasses.replace(Config(), **{field: value}))


def test_a_model_judges_its_shape() -> None:
    with pytest.raises(ConfigError) as caught:
        blutrain.GPT(ModelConfig(layers=0, heads=3, context="8"))  # type: ignore[arg-type]
    assert {problem.key for problem in caught.value.problems} == {"model.layers", "model.heads", "model.context"}
    model = blutrain.GPT(ModelConfig(layers=1, heads=1, channels=8, context=4, vocab_size=5))
    for tokens in ([[1, 2]], np.zeros((1, 2), np.int32), bt.zeros((2,), dtype="int32")):
        with pytest.raises(InvalidInputError, match=r"\[GPT\] expected tokens as a tensor of integers \[B, T\], got"):
            model(tokens)


def test_what_a_store_does_not_take(tmp_path: Path) -> None:
    store = blutrain.CheckpointStore(tmp_path)
    attempts: list[Callable[[], Any]] = [
        lambda: store.save("1", {}, {}),  # type: ignore[arg-type]
        lambda: store.save(1, [], {}),  # type: ignore[arg-type]
        lambda: store.save(1, {}, None),  # type: ignore[arg-type]
        lambda: store.save(1, {"x": [1.0]}, {}),  # type: ignore[dict-item]
        lambda: store.save(1, {3: np.zeros(1)}, {}),  # type: ignore[dict-item]
        lambda: store.load(3),  # type: ignore[arg-type]
    ]
    for attempt in attempts:
        with pytest.raises(BlutrainError) as caught:
            attempt()
        assert isinstance(caught.value, TypeError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["bytes", "bpe", "tokenizers"])
def test_what_a_tokenizer_does_not_take(tmp_path: Path, kind: str) -> None:
    name: str | Path = "bytes"
    if kind == "bpe":
        tokens = [*byte_characters().values(), "<|endoftext|>"]
        (tmp_path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
        (tmp_path / "merges.txt").write_text("")
        name = tmp_path
    elif kind == "tokenizers":
        library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
        library.Tokenizer(library.models.WordLevel({"</s>": 0, "a": 1}, unk_token="a")).save(str(tmp_path / "a.json"))
        name = tmp_path / "a.json"
    tokenizer: Any = blutrain.get_tokenizer(name)
    attempts: list[Callable[[], Any]] = [
        lambda: tokenizer.encode(3),
        lambda: tokenizer.encode(None),
        lambda: tokenizer.encode("a", special="yes"),
        lambda: tokenizer.encode("a", True),
        lambda: tokenizer.encode_batch("ab"),
        lambda: tokenizer.encode_batch(["a", 3]),
        lambda: tokenizer.decode("ab"),
        lambda: tokenizer.decode(3),
        lambda: tokenizer.decode(["1"]),
        lambda: tokenizer.decode([1.0]),
        lambda: tokenizer.save(3),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidTypeError, match=r"^\[tokenizer( \w+)?\] expected "):
            attempt()
    assert tokenizer.decode(np.array([1], np.uint16)) == tokenizer.decode(iter([1])) == tokenizer.decode(b"\1")
    assert tokenizer.encode(np.str_("a")).tolist() == tokenizer.encode_batch(("a",))[0].tolist()


def test_what_data_sets_and_shards_do_not_take(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 9)
    dataset: Any = blutrain.prepare(tmp_path / "text", tmp_path / "out")
    writer: Any = ShardWriter(tmp_path, "train", 10)
    attempts: list[Callable[[], Any]] = [
        lambda: dataset.num_tokens(0),
        lambda: dataset.paths(None),
        lambda: ShardWriter(tmp_path, 3, 10),  # type: ignore[arg-type]
        lambda: ShardWriter(tmp_path, "train", "10"),  # type: ignore[arg-type]
        lambda: writer.append("abc"),
        lambda: read_shard(3),  # type: ignore[arg-type]
        lambda: shard_num_tokens(None),  # type: ignore[arg-type]
    ]
    for attempt in attempts:
        with pytest.raises(InvalidTypeError, match=r"^\[(data|prepare|shard)\] expected "):
            attempt()


# ---- the checks themselves ---------------------------------------------------------------------------------------


class Reader(typing.Protocol):
    """A protocol."""

    def read(self) -> str:
        """A text."""
        ...


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [1, np.int8(1)], [1.0, True, "1", None]),
        (float, [1, 1.5, np.float32(1)], ["1", True, 1j]),
        (bool, [True, np.False_], [0, 1, "x", None]),
        (str, ["", "x"], [b"x", 1, Path("x")]),
        (str | None, ["", None], [b"", 0]),
        (Path, [Path("x")], ["x", 1]),
        (str | Path, ["x", Path("x")], [b"x", 3, ["x"]]),
        (Sequence[str], [[], ["x"], ("x",)], ["x", b"x", [1], {"x"}, {"x": 1}, None]),
        (Sequence[str | Path], [["x", Path("y")]], [["x", 1]]),
        (Mapping[str, int], [{}, {"a": 1}], [[], "x"]),
        (Callable[[int], None], [print, len], [3, "print"]),
        (Callable[[int], None] | None, [None, print], [3]),
        (Literal["a", "b"], ["a", "b"], ["c", 1]),
        (np.ndarray[Any, Any], [np.zeros(2), [1, 2]], ["ab", 3]),
        (Reader, [io.StringIO()], [None, 3, "x"]),
        (Any, [1, None, "x"], []),
    ],
    ids=[
        "int", "float", "bool", "str", "optional", "Path", "path", "list", "list of paths", "mapping", "function",
        "optional function", "literal", "array", "protocol", "anything",
    ],
)  # fmt: skip
def test_hints(hint: Any, good: Sequence[Any], bad: Sequence[Any]) -> None:
    for value in good:
        check_values("test", {"value": value}, {"value": hint})
    for value in bad:
        with pytest.raises(InvalidTypeError, match=r"\[test\] expected value of type "):
            check_values("test", {"value": value}, {"value": hint})


def test_a_checked_function_is_itself() -> None:
    @checked("double")
    def double(value: int, *, times: int = 2) -> int:
        """Doubles."""
        return value * times

    assert double(3) == 6
    assert double(value=3, times=np.int64(3)) == 9
    assert double.__doc__ == "Doubles."
    assert str(inspect.signature(double)) == "(value: 'int', *, times: 'int' = 2) -> 'int'"
    with pytest.raises(InvalidTypeError, match=r"\[double\] expected times of type int, got str"):
        double(3, times="2")  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(typing, "TypeAliasType"), reason="Python 3.12 has them")
def test_an_alias_is_what_it_stands_for() -> None:
    """As ``numpy.typing.NDArray`` is since NumPy 2.5."""
    alias = typing.TypeAliasType("Count", int)  # type: ignore[attr-defined]
    for hint in (alias, alias | None):
        check_values("count", {"n": 3}, {"n": hint})
        with pytest.raises(InvalidTypeError, match=r"\[count\] expected n of type int, got str"):
            check_values("count", {"n": "3"}, {"n": hint})
