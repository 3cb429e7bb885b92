"""Layers. Names, arguments, parameter names and initialisation follow `torch.nn`."""

from __future__ import annotations

import math

from .. import dtypes
from .._arguments import flag, integer, not_negative, probability
from .._naming import named
from ..errors import DTypeError, IndexOutOfRangeError, ShapeError
from ..interop import empty
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter


def _sizes(layer: str, **sizes: int) -> None:
    for name, value in sizes.items():
        integer(layer, name, value, least=1)


def _normalized_shape(layer: str, shape: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not sizes:
        raise ShapeError(f"[{layer}] expected at least one size for normalized_shape, got none")
    return tuple(integer(layer, "normalized_shape", size, least=1) for size in sizes)


def _module(layer: str, value: Module) -> Module:
    if not isinstance(value, Module):
        raise DTypeError(f"[{layer}] expected modules, got {dtypes.described(value)}")
    return value


def _child(parent: Module, index: int) -> Module:
    children, layer = list(parent.children()), type(parent).__name__
    place = integer(layer, "index", index)
    if not -len(children) <= place < len(children):
        raise IndexOutOfRangeError(f"[{layer}] expected an index below {len(children)}, got {dtypes.shown(place)}")
    return children[place]


class Linear(Module):
    """y = x W^T + b.

    Args:
        in_features: K; input [..., K].
        out_features: N; output [..., N].
        bias: Whether there is a b.
        dtype: Of the parameters.
    """

    @named("Linear")
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: dtypes.DType | str = dtypes.float32
    ) -> None:
        super().__init__()
        _sizes("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.kaiming_uniform_(empty((out_features, in_features), dtype=dtype), a=math.sqrt(5)))
        self.bias: Parameter | None = None
        if flag("Linear", "bias", bias):
            bound = 1 / math.sqrt(in_features)
            self.bias = Parameter(init.uniform_(empty(out_features, dtype=dtype), -bound, bound))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """X [..., K] -> [..., N]; `residual` [..., N] is added by the GEMM."""
        return F.linear(x, self.weight, self.bias, residual)

    def extra_repr(self) -> str:
        """Shown between the parentheses of `repr`."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """Rows of a table by integer id.

    Args:
        num_embeddings: V, rows.
        embedding_dim: C, columns.
        dtype: Of the table.
    """

    @named("Embedding")
    def __init__(self, num_embeddings: int, embedding_dim: int, dtype: dtypes.DType | str = dtypes.float32) -> None:
        super().__init__()
        _sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter(init.normal_(empty((num_embeddings, embedding_dim), dtype=dtype)))

    def forward(self, ids: Tensor) -> Tensor:
        """Integers [...] -> [..., C]."""
        return F.embedding(ids, self.weight)

    def extra_repr(self) -> str:
        """Shown between the parentheses of `repr`."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


class LayerNorm(Module):
    """Layer normalization (Ba et al., 2016) over the last axes.

    Args:
        normalized_shape: C, or several sizes.
        eps: Added to the variance.
        bias: Whether there is a bias beside the weight.
        dtype: Of the parameters.
    """

    @named("LayerNorm")
    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        bias: bool = True,
        dtype: dtypes.DType | str = dtypes.float32,
    ) -> None:
        super().__init__()
        self.normalized_shape = _normalized_shape("LayerNorm", normalized_shape)
        self.eps = not_negative("LayerNorm", "eps", eps)
        self.weight = Parameter(init.ones_(empty(self.normalized_shape, dtype=dtype)))
        self.bias: Parameter | None = None
        if flag("LayerNorm", "bias", bias):
            self.bias = Parameter(init.zeros_(empty(self.normalized_shape, dtype=dtype)))

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Shown between the parentheses of `repr`."""
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """Root-mean-square normalization (Zhang and Sennrich, 2019) over the last axes.

    Args:
        normalized_shape: C, or several sizes.
        eps: Added to the mean square; by default the distance from 1 to the next number of the input's dtype.
        elementwise_affine: Whether there is a weight.
        dtype: Of the weight.
    """

    @named("RMSNorm")
    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: dtypes.DType | str = dtypes.float32,
    ) -> None:
        super().__init__()
        self.normalized_shape = _normalized_shape("RMSNorm", normalized_shape)
        self.eps = None if eps is None else not_negative("RMSNorm", "eps", eps)
        self.weight: Parameter | None = None
        if flag("RMSNorm", "elementwise_affine", elementwise_affine):
            self.weight = Parameter(init.ones_(empty(self.normalized_shape, dtype=dtype)))

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Shown between the parentheses of `repr`."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class Dropout(Module):
    """Dropout (Srivastava et al., 2014) in training mode, the identity otherwise."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = probability("Dropout", p)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Shown between the parentheses of `repr`."""
        return f"p={self.p}"


class GELU(Module):
    """See `functional.gelu`."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
            raise ShapeError(f"[GELU] expected approximate 'none' or 'tanh', got {dtypes.described(approximate)}")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return F.gelu(x, "tanh" if self.approximate == "tanh" else "none")


class Sequential(Module):
    """Modules applied one after the other, named "0", "1", ..."""

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        for i, module in enumerate(modules):
            setattr(self, str(i), _module("Sequential", module))

    def forward(self, x: Tensor) -> Tensor:
        """Through all of them."""
        for module in self.children():
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._registry("_modules"))

    def __getitem__(self, index: int) -> Module:
        return _child(self, index)


class ModuleList(Module):
    """A list of modules, named "0", "1", ..."""

    @named("ModuleList")
    def __init__(self, modules: list[Module] | tuple[Module, ...] = ()) -> None:
        super().__init__()
        for i, module in enumerate(modules):
            setattr(self, str(i), _module("ModuleList", module))

    def append(self, module: Module) -> None:
        """Adds one at the end."""
        setattr(self, str(len(self)), _module("ModuleList", module))

    def __len__(self) -> int:
        return len(self._registry("_modules"))

    def __getitem__(self, index: int) -> Module:
        return _child(self, index)
