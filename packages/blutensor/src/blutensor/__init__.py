"""blutensor: tensors, operators, reverse-mode autograd, modules, optimizers, and capture of whole steps.

Names follow the Python array API standard, and PyTorch's for neural-network functions.
"""

from __future__ import annotations

import math

import libblutensor

libblutensor.load_library()  # libblualloc and libblublas first, each with its ABI checked

from blublas import num_threads, set_num_threads  # noqa: E402

from . import _einops, _operators, cuda, nn, optim, random  # noqa: E402
from ._operators import *  # noqa: E402, F403
from .autograd import (  # noqa: E402
    backward,
    custom_gradient,
    enable_grad,
    grad,
    graph_stats,
    is_grad_enabled,
    no_grad,
    recompute,
)
from .creation import (  # noqa: E402
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .data_types import can_cast, finfo, iinfo, isdtype, result_type  # noqa: E402
from .devices import default_device, get_default_device, set_default_device  # noqa: E402
from .dtypes import (  # noqa: E402
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .elementwise import astype, clip, conj, positive, real  # noqa: E402
from .errors import (  # noqa: E402
    AutogradError,
    CaptureError,
    DeviceLostError,
    DTypeError,
    IndexOutOfRangeError,
    NumberRangeError,
    ShapeError,
    UnsupportedError,
)
from .external import register_operator, registered  # noqa: E402
from .family import ProgramFamily, RunInterrupted, Source, SourceError  # noqa: E402
from .gradcheck import gradcheck  # noqa: E402
from .indexing import index_write_, nonzero, take, take_along_axis  # noqa: E402
from .linear_algebra import einsum, matmul, matrix_transpose, outer, tensordot, vecdot  # noqa: E402
from .manipulation import (  # noqa: E402
    broadcast_arrays,
    broadcast_shapes,
    concat,
    diagonal,
    flip,
    meshgrid,
    moveaxis,
    repeat,
    reshape,
    roll,
    stack,
    tile,
    tril,
    triu,
    unstack,
)
from .namespace import API_VERSION as __array_api_version__  # noqa: E402
from .namespace import array_namespace_info as __array_namespace_info__  # noqa: E402
from .nn.functional import (  # noqa: E402
    cross_entropy,
    layer_norm,
    linear_cross_entropy,
    mlp,
    qkv_attention,
    rms_norm,
    rotary_embedding,
    scaled_dot_product_attention,
)
from .process import float32_math, isa, set_float32_math, set_isa  # noqa: E402
from .program import CapturedFunction, Program, capture, is_capturing  # noqa: E402
from .random import Generator, default_generator, manual_seed, own_generator  # noqa: E402
from .sorting import argsort, searchsorted, sort, unique_all, unique_counts, unique_inverse, unique_values  # noqa: E402
from .statistical import cumulative_prod, cumulative_sum, diff, prod, sum  # noqa: E402
from .tensor import Tensor  # noqa: E402

# Names of the array API standard beside functions and dtypes.
bool = bool_
e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi

__all__ = [
    "AutogradError",
    "CaptureError",
    "CapturedFunction",
    "DType",
    "DTypeError",
    "DeviceLostError",
    "Generator",
    "IndexOutOfRangeError",
    "NumberRangeError",
    "Program",
    "ProgramFamily",
    "RunInterrupted",
    "ShapeError",
    "Source",
    "SourceError",
    "Tensor",
    "UnsupportedError",
    "__array_api_version__",
    "__array_namespace_info__",
    "arange",
    "argsort",
    "asarray",
    "astype",
    "backward",
    "bfloat16",
    "bool_",
    "broadcast_arrays",
    "broadcast_shapes",
    "can_cast",
    "capture",
    "clip",
    "concat",
    "conj",
    "cross_entropy",
    "cuda",
    "cumulative_prod",
    "cumulative_sum",
    "custom_gradient",
    "default_device",
    "default_generator",
    "diagonal",
    "diff",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "enable_grad",
    "eye",
    "finfo",
    "flip",
    "float16",
    "float32",
    "float32_math",
    "float64",
    "from_dlpack",
    "full",
    "full_like",
    "get_default_device",
    "grad",
    "gradcheck",
    "graph_stats",
    "iinfo",
    "index_write_",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_capturing",
    "is_grad_enabled",
    "isa",
    "isdtype",
    "layer_norm",
    "linear_cross_entropy",
    "linspace",
    "manual_seed",
    "matmul",
    "matrix_transpose",
    "meshgrid",
    "mlp",
    "moveaxis",
    "nan",
    "newaxis",
    "nn",
    "no_grad",
    "nonzero",
    "num_threads",
    "ones",
    "ones_like",
    "optim",
    "outer",
    "own_generator",
    "pi",
    "positive",
    "prod",
    "qkv_attention",
    "random",
    "real",
    "recompute",
    "register_operator",
    "registered",
    "repeat",
    "reshape",
    "result_type",
    "rms_norm",
    "roll",
    "rotary_embedding",
    "scaled_dot_product_attention",
    "searchsorted",
    "set_default_device",
    "set_float32_math",
    "set_isa",
    "set_num_threads",
    "sort",
    "stack",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "vecdot",
    "zeros",
    "zeros_like",
]
__all__ += _operators.__all__

_einops.register()

__version__ = libblutensor.VERSION
