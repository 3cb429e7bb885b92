"""The backend through which einops works on tensors.

einops knows arrays by their class: it asks the subclasses of its `AbstractBackend` whose framework is imported. So the
subclass has to exist once both packages are; whichever comes second sees to it. einops is never imported from here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_BACKENDS = "einops._backends"


class _Loader(importlib.abc.Loader):
    """Loads einops' backends as before, then adds ours."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _define(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for einops to be imported, and is gone then."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _BACKENDS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def register() -> None:
    """Makes einops know tensors: now where it is imported, else as soon as it is."""
    module = sys.modules.get(_BACKENDS)
    if module is None:
        sys.meta_path.insert(0, _Finder())
    else:
        _define(module)


def _define(module: ModuleType) -> None:
    import blutensor as bt

    class BlutensorBackend(module.AbstractBackend):  # type: ignore[name-defined, misc]
        framework_name = "blutensor"

        def is_appropriate_type(self, tensor: object) -> bool:
            return isinstance(tensor, bt.Tensor)

        def from_numpy(self, x: Any) -> bt.Tensor:
            return bt.asarray(x)

        def to_numpy(self, x: bt.Tensor) -> Any:
            return x.detach().cpu().numpy()

        def arange(self, start: int, stop: int) -> bt.Tensor:
            return bt.arange(start, stop)

        def reshape(self, x: bt.Tensor, shape: Sequence[int]) -> bt.Tensor:
            return x.reshape(*shape)

        def transpose(self, x: bt.Tensor, axes: Sequence[int]) -> bt.Tensor:
            return x.permute_dims(*axes)

        def reduce(self, x: bt.Tensor, operation: str, axes: Sequence[int]) -> bt.Tensor:
            return getattr(bt, operation)(x, axis=tuple(axes))  # type: ignore[no-any-return]

        def stack_on_zeroth_dimension(self, tensors: list[bt.Tensor]) -> bt.Tensor:
            return bt.stack(tensors)

        def add_axis(self, x: bt.Tensor, new_position: int) -> bt.Tensor:
            return bt.expand_dims(x, new_position)

        def tile(self, x: bt.Tensor, repeats: Sequence[int]) -> bt.Tensor:
            return bt.tile(x, repeats)

        def add_axes(self, x: bt.Tensor, n_axes: int, pos2len: dict[int, int]) -> bt.Tensor:
            for position in sorted(pos2len):
                x = bt.expand_dims(x, position)
            return bt.broadcast_to(x, [pos2len.get(axis, size) for axis, size in enumerate(x.shape)])

        def concat(self, tensors: Sequence[bt.Tensor], axis: int) -> bt.Tensor:
            return bt.concat(tensors, axis)

        def is_float_type(self, x: bt.Tensor) -> bool:
            return x.dtype.is_floating

        def einsum(self, pattern: str, *x: bt.Tensor) -> bt.Tensor:
            return bt.einsum(pattern, *x)

    # einops finds it among the subclasses, which are held weakly.
    module._blutensor_backend = BlutensorBackend  # type: ignore[attr-defined]
