"""Errors of blutensor. All are subclasses of what Python itself would raise."""

from __future__ import annotations


class ShapeError(ValueError):
    """A shape, size, stride or value that an operator cannot take."""


class NumberRangeError(ShapeError, OverflowError):
    """A Python number that the integer dtype which is to hold it does not have."""


class DTypeError(TypeError):
    """A dtype or device that an operator cannot take."""


class IndexOutOfRangeError(IndexError):
    """An id, target, position or axis outside its range."""


class CaptureError(RuntimeError):
    """Something that a captured function cannot do, or two recordings that differ."""


class AutogradError(RuntimeError):
    """A graph that cannot be differentiated: freed, overwritten, not recorded. Or a write that would break one."""


class DeviceLostError(RuntimeError):
    """The GPU faulted or went away: nothing on it can be read any more, and the process has to be restarted."""


class UnsupportedError(NotImplementedError):
    """A device, kernel or instruction set that this build or machine does not have."""
