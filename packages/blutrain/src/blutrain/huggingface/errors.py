"""Errors of importing and exporting models: each names the file, what is wrong with it, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from blutrain.errors import BlutrainError, Problem


class ModelFileError(BlutrainError):
    """Base of everything that importing or exporting a model can report."""


class ModelFormatError(ModelFileError, ValueError):
    """A file is not what its name says: foreign, truncated, contradictory or damaged."""


class ModelNotFoundError(ModelFileError, FileNotFoundError):
    """A file or folder that is needed is not there."""


class ModelAccessError(ModelFileError, OSError):
    """The operating system refused to read or write."""


class _ProblemsError(ModelFileError, ValueError):
    """Several things are wrong, and all of them are told; ``problems`` has them one by one."""

    def __init__(self, place: object, problems: Sequence[Problem], advice: str) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        listed = "; ".join(str(problem) for problem in self.problems[:_MAX_LISTED])
        more = len(self.problems) - _MAX_LISTED
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(f"[import-hf] {place}: {count}: {listed}{rest}: {advice}")


class UnsupportedModelError(_ProblemsError):
    """A configuration asks for what GPT-2 as it is computed here does not have."""


class ModelTensorError(_ProblemsError):
    """Tensors are missing, unexpected, or of another shape or dtype than the configuration says."""


_MAX_LISTED = 20
