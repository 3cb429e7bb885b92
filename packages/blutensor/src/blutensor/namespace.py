"""What the array API standard asks a namespace about itself."""

from __future__ import annotations

from typing import Any

from . import cuda, dtypes
from ._native import MAX_RANK
from .data_types import isdtype
from .devices import get_default_device
from .dtypes import DType
from .errors import DTypeError

API_VERSION = "2024.12"

_STANDARD = tuple(d for d in dtypes.ALL if d.name not in ("float16", "bfloat16"))


class NamespaceInfo:
    """Capabilities, devices and dtypes, as `__array_namespace_info__()` of the standard returns them."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean indexing and data-dependent shapes (not within a capture), and how many axes a tensor may have."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_RANK}

    def default_device(self) -> str:
        """Where tensors are made."""
        return get_default_device()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes that functions of the standard choose by themselves."""
        return {"real floating": dtypes.float32, "integral": dtypes.int64, "indexing": dtypes.int64}

    def devices(self) -> list[str]:
        """All that can be used here."""
        return ["cpu", *(f"cuda:{i}" for i in range(cuda.device_count()))]

    def dtypes(self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None) -> dict[str, DType]:
        """The dtypes of the standard, or those of some kinds (see `isdtype`); float16 and bfloat16 are beside them.

        Raises:
            DTypeError: Another kind.
        """
        return {d.name: d for d in _STANDARD if kind is None or isdtype(d, kind)}


def array_namespace_info() -> NamespaceInfo:
    """Capabilities, devices and dtypes."""
    return NamespaceInfo()


def checked_version(version: str | None) -> None:
    """That a version of the standard is one that this namespace follows.

    Raises:
        DTypeError: It is another.
    """
    if version not in (None, "2021.12", "2022.12", "2023.12", API_VERSION):
        raise DTypeError(
            f"[__array_namespace__] expected a version of the standard up to {API_VERSION}, got {version!r}"
        )
