"""What the command line says of an error: one line, and never a traceback unless it is asked for."""

from __future__ import annotations

from typing import TypeGuard

from blutrain.errors import BlutrainError, ConfigError, text_of


def is_user_error(error: Exception) -> bool:
    """Whether an error is one that the user can cause and repair, and no defect of ours."""
    if isinstance(error, (BlutrainError, OSError, MemoryError)):
        return True
    return isinstance(error, ImportError) and (error.name or "").removeprefix("lib").startswith("blu")


def message_of(error: Exception) -> str:
    """The error with its notes as one line; a configuration's problems stay one line each."""
    if isinstance(error, ConfigError):
        return "\n".join(f"error: {problem}" for problem in error.problems)
    if is_plain_os_error(error):
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        place = "" if error.filename is None else f"{error.filename}: "
        return f"error: {place}{error.strerror or error}: check the path, its permissions and the free space{notes}"
    text = text_of(error)
    if is_user_error(error):
        return f"error: {text}"
    name = type(error).__name__
    return f"error: unexpected {name}: {text} ('blutrain --traceback ...' shows where it comes from; please report it)"


def is_plain_os_error(error: Exception) -> TypeGuard[OSError]:
    """Whether an error is the operating system's, without a text of ours."""
    return (
        isinstance(error, OSError) and not isinstance(error, (BlutrainError, ImportError)) and error.errno is not None
    )
