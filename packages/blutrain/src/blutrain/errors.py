"""Errors of blutrain: each names what was found, where, and what to do about it.

All of them are *user errors*: the command line prints their text as one line and exits with code 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def text_of(error: BaseException) -> str:
    """What an error says, with its notes, as one line."""
    return " ".join("; ".join([str(error), *getattr(error, "__notes__", ())]).split())


class BlutrainError(Exception):
    """Base of every error that a user of blutrain can cause and repair."""


class InvalidInputError(BlutrainError, ValueError):
    """A value given to a command or function is impossible; the message names the value and the fix."""


class InvalidTypeError(BlutrainError, TypeError):
    """A value given to a function is of a type that it can not be of; the message names both types."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration."""

    key: str
    """Dotted key, for example ``model.heads``."""
    message: str
    """What was expected, what was got and how to repair it."""

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class ConfigError(BlutrainError, ValueError):
    """A configuration is unusable; ``problems`` lists everything that is wrong with it, not just the first thing."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        head = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"[config] {head}: " + "; ".join(str(problem) for problem in self.problems))


class ConfigFileError(BlutrainError, OSError):
    """A configuration file can not be read; the message names it and the fix."""


class ConfigFileNotFoundError(ConfigFileError, FileNotFoundError):
    """There is no such configuration file."""


class DataError(BlutrainError, ValueError):
    """A corpus or a prepared data set is unusable."""


class DataAccessError(DataError, OSError):
    """The operating system refused to read text or to write a data set; nothing half-made is left."""


class ShardError(DataError):
    """A shard file is truncated, foreign, empty or of another tokenizer."""


class TokenizerError(DataError):
    """A tokenizer is unknown, or text can not be encoded by it."""


class NotEnoughMemoryError(BlutrainError, MemoryError):
    """A run does not fit into memory; found before anything was allocated."""


class DeviceError(BlutrainError, RuntimeError):
    """A run asks for a device that is not there, or for a number mode that it does not have."""


class NonFiniteLogitsError(InvalidInputError):
    """A model's logits are NaN or infinite, so that no token can be chosen."""


class NonFiniteError(BlutrainError, RuntimeError):
    """Too many steps in a row had a non-finite loss or gradient norm; the newest checkpoint is intact."""
