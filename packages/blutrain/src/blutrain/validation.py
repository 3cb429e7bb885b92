"""What makes a configuration impossible: the one place that judges values, all of them before it raises."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from blutrain.arguments import is_possible_path
from blutrain.config import Config
from blutrain.config_io import keys_of, with_readable_values
from blutrain.data.tokenizer import MAX_VOCAB
from blutrain.errors import ConfigError, DataError, InvalidInputError, Problem, TokenizerError
from blutrain.loggers import logger_problems
from blutrain.schedule import SCHEDULE_KINDS

if TYPE_CHECKING:
    from blutrain.data.dataset import Dataset

PRECISIONS = ("fp32", "tf32", "bf16")
"""Number modes; ``tf32`` needs a GPU."""
DEVICES = ("auto", "cpu", "cuda")
"""Devices; ``cuda:<index>`` names one of several GPUs."""
BACKGROUND = ("auto", "on", "off")
"""When checkpoints are written behind the training loop."""

_POSITIVE = (
    "model.layers", "model.heads", "model.channels", "model.context", "model.vocab_size", "model.pad_vocab_to",
    "train.steps", "train.global_batch_tokens", "train.micro_batch", "train.log_every", "train.sample_tokens",
    "train.max_skipped_steps",
)  # fmt: skip
_NOT_NEGATIVE = (
    "optimizer.weight_decay", "optimizer.clip_norm", "schedule.warmup_steps", "train.threads", "train.eval_every",
    "train.eval_batches", "train.checkpoint_every", "train.keep_checkpoints", "train.sample_every",
    "train.sample_temperature", "train.peak_tflops", "train.seed", "train.memory_limit_gib",
)  # fmt: skip
_CUDA_INDEX = re.compile(r"cuda:[0-9]{1,3}")
_MAX_COUNT = 2**31 - 1
_COUNTS = tuple(key for key in (*_POSITIVE, *_NOT_NEGATIVE) if key not in ("train.seed", "train.global_batch_tokens"))
_MAX_SEED = 2**63 - 1  # checkpoints and TOML hold int64


def check_config(config: Config, dataset: Dataset | None = None) -> None:
    """Raise when anything about a configuration is impossible.

    Args:
        config: what to check.
        dataset: the opened data set, to check context, tokenizer and sizes against it.

    Raises:
        ConfigError: with every problem that ``find_problems`` found.
    """
    problems = find_problems(config, dataset)
    if problems:
        raise ConfigError(problems)


def open_checked(config: Config) -> Dataset:
    """Open a configuration's data set and check the configuration, against the data too.

    Args:
        config: what to check.

    Returns:
        The data set.

    Raises:
        DataError: the data are unusable, and nothing else is wrong.
        InvalidInputError: likewise, and no file can have that path.
        ConfigError: every problem, those with the data among them.
    """
    from blutrain.data.dataset import open_dataset

    readable, of_types = with_readable_values(config)
    if of_types:
        raise ConfigError([*of_types, *problems_beside(readable, keys_of(of_types))])
    try:
        dataset = open_dataset(config.data.path)
    except (DataError, InvalidInputError) as error:
        problems = find_problems(config)
        if not problems:
            raise
        raise ConfigError([*problems, Problem("data.path", str(error))]) from error
    check_config(config, dataset)
    return dataset


def problems_beside(config: Config, not_understood: Set[str]) -> list[Problem]:
    """What is impossible about a configuration beside values that could not even be read.

    Args:
        config: with defaults in the place of those values.
        not_understood: their keys; nothing is said about them, nor about what depends on them.

    Returns:
        The problems, those with the data among them where a data set is named.
    """
    from blutrain.data.dataset import open_dataset

    named = config.data.path and "data.path" not in not_understood
    try:
        dataset = open_dataset(config.data.path) if named else None
    except (DataError, InvalidInputError) as error:
        return [*find_problems(config, None, not_understood), Problem("data.path", str(error))]
    return find_problems(config, dataset, not_understood)


def find_problems(
    config: Config, dataset: Dataset | None = None, not_understood: Set[str] = frozenset()
) -> list[Problem]:
    """Everything that is impossible about a configuration, in the order of the tree.

    Args:
        config: what to check.
        dataset: the opened data set, or None to leave out what depends on data.
        not_understood: keys to say nothing about.

    Returns:
        The problems; empty when the configuration can run.
    """
    config, of_types = with_readable_values(config)
    silent = not_understood | keys_of(of_types)
    problems = _ranges(config)
    bad = silent | {problem.key for problem in problems}
    problems += _choices(config)
    problems += _relations(config, bad)
    if dataset is not None:
        problems += _against_data(config, dataset)
    return [*of_types, *(problem for problem in problems if problem.key not in silent)]


def _get(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _ranges(config: Config) -> list[Problem]:
    problems = []
    for key in _POSITIVE:
        if _get(config, key) < 1:
            problems.append(Problem(key, f"expected at least 1, got {_get(config, key)}"))
    for key in _NOT_NEGATIVE:
        value = _get(config, key)
        if not 0 <= value < math.inf:
            problems.append(Problem(key, f"expected a finite number of at least 0, got {value}"))
    for key in ("optimizer.beta1", "optimizer.beta2", "model.dropout"):
        if not 0 <= _get(config, key) < 1:
            problems.append(Problem(key, f"expected 0 <= value < 1, got {_get(config, key)}"))
    for key in ("optimizer.eps", "schedule.learning_rate"):
        if not 0 < _get(config, key) < math.inf:
            problems.append(Problem(key, f"expected a finite number above 0, got {_get(config, key)}"))
    for key in ("schedule.final_fraction", "schedule.decay_fraction"):
        if not 0 <= _get(config, key) <= 1:
            problems.append(Problem(key, f"expected 0 <= value <= 1, got {_get(config, key)}"))
    for key in _COUNTS:
        value = _get(config, key)
        if type(value) is int and value > _MAX_COUNT:
            problems.append(Problem(key, f"expected at most {_MAX_COUNT}, got {value}"))
    most = _max_threads()
    if most is not None and most < config.train.threads <= _MAX_COUNT:
        problems.append(Problem("train.threads", f"expected at most {most} threads, got {config.train.threads}"))
    if config.train.seed > _MAX_SEED:
        problems.append(Problem("train.seed", f"expected at most {_MAX_SEED}, got {config.train.seed}"))
    if MAX_VOCAB < config.model.vocab_size <= _MAX_COUNT:
        problems.append(Problem("model.vocab_size", f"expected at most {MAX_VOCAB}, got {config.model.vocab_size}"))
    return problems


def _max_threads() -> int | None:
    """Most threads of the pool; None where the library is not installed, which is told later."""
    try:
        import blublas
    except ImportError:
        return None
    return blublas.info().max_threads


def device_problem(name: str) -> str:
    """What is wrong with a name of a device, empty where nothing is; whether the machine has it is not asked."""
    if name in DEVICES or _CUDA_INDEX.fullmatch(name):
        return ""
    return f"expected one of {', '.join(DEVICES)}, cuda:<index>, got {name!r}{_did_you_mean(name, DEVICES)}"


def _did_you_mean(value: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(value, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _choices(config: Config) -> list[Problem]:
    problems = []
    for key, known in (
        ("schedule.kind", SCHEDULE_KINDS),
        ("train.precision", PRECISIONS),
        ("train.background_checkpoints", BACKGROUND),
    ):
        value = _get(config, key)
        if value not in known:
            message = f"expected one of {', '.join(known)}, got {value!r}{_did_you_mean(value, known)}"
            problems.append(Problem(key, message))
    device = device_problem(config.train.device)
    problems += [Problem("train.device", device)] if device else []
    problems += [Problem("run.loggers", problem) for problem in logger_problems(config.run.loggers)]
    for key in ("data.tokenizer", "run.folder"):  # that of the data is told where it is opened
        if not is_possible_path(_get(config, key)):
            problems.append(Problem(key, f"expected a path that a file can have, got {_get(config, key)!r:.300}"))
    if not config.run.project:
        problems.append(Problem("run.project", "expected the name of a project, got ''"))
    if not config.run.folder:
        problems.append(Problem("run.folder", "expected the path of a folder, got ''"))
    return problems


def _relations(config: Config, bad: Set[str]) -> list[Problem]:
    """Problems between values; those that are wrong by themselves are left out."""
    problems = []
    model, train = config.model, config.train
    if not bad & {"model.heads", "model.channels"} and model.channels % model.heads:
        message = f"expected a divisor of model.channels = {model.channels}, got {model.heads}"
        problems.append(Problem("model.heads", f"{message}; take {_nearest_divisor(model.channels, model.heads)}"))
    micro_tokens = train.micro_batch * model.context
    if (
        not bad & {"train.global_batch_tokens", "train.micro_batch", "model.context"}
        and train.global_batch_tokens % micro_tokens
    ):
        near = max(1, round(train.global_batch_tokens / micro_tokens)) * micro_tokens
        message = f"expected a multiple of train.micro_batch * model.context = {train.micro_batch} * {model.context}"
        message += f" = {micro_tokens}, got {train.global_batch_tokens}; take {near}"
        problems.append(Problem("train.global_batch_tokens", message))
    return problems


def _nearest_divisor(channels: int, heads: int) -> int:
    small = [n for n in range(1, math.isqrt(channels) + 1) if channels % n == 0]
    divisors = [*small, *(channels // n for n in small)]
    return min(divisors, key=lambda n: (abs(n - heads), n))


def _tokenizer_problems(config: Config, dataset: Dataset) -> list[Problem]:
    from blutrain.run_tokenizer import expected_tokenizer

    found, asked = dataset.tokenizer, config.data.tokenizer
    if found is None or not is_possible_path(asked):
        return []
    name = found.kind if dataset.tokenizer_path is None else str(dataset.tokenizer_path)
    fix = f"set data.tokenizer={name}, or prepare the text again with --tokenizer {asked}"
    try:
        expected = expected_tokenizer(config)
    except TokenizerError as error:
        return [Problem("data.tokenizer", f"{error}; {fix}")]
    if expected in (found, found.kind):
        return []
    message = f"expected the tokenizer that {dataset.path} was prepared with, {found}, got {asked!r}"
    return [Problem("data.tokenizer", f"{message}: {fix}")]


def _against_data(config: Config, dataset: Dataset) -> list[Problem]:
    problems = _tokenizer_problems(config, dataset)
    if dataset.vocab_size is not None and dataset.vocab_size > config.model.vocab_size:
        message = (
            f"expected at least {dataset.vocab_size}, the vocabulary of {dataset.path}, got {config.model.vocab_size}"
        )
        problems.append(Problem("model.vocab_size", message))
    for split in ("train", "val"):
        if split == "val" and not config.train.eval_every:
            continue
        try:
            tokens = dataset.num_tokens(split)
        except DataError as error:
            problems.append(Problem("data.path", str(error)))
            continue
        if split == "train" and tokens <= config.model.context:
            message = (
                f"expected at most {max(tokens - 1, 1)}: the train shards of {dataset.path} hold {tokens} tokens and"
            )
            message += f" a window needs one more than its context; got {config.model.context}"
            problems.append(Problem("model.context", message))
        if split == "val" and tokens < 2:
            message = f"expected at least 2 validation tokens in {dataset.path}, got {tokens}; prepare more text"
            problems.append(Problem("data.path", message + " or set train.eval_every=0"))
    return problems
