"""blutensor: tensors, operators, reverse-mode autograd, modules, optimizers, and capture of whole steps.

Names follow the Python array API standard, and PyTorch's for neural-network functions.
"""

from __future__ import annotations

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
    from_dlpack,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .devices import default_device, get_default_device, set_default_device  # noqa: E402
from .dtypes import DType, bfloat16, bool_, float16, float32, float64, int32, int64, uint8, uint16  # noqa: E402
from .errors import (  # noqa: E402
    AutogradError,
    CaptureError,
    DeviceLostError,
    DTypeError,
    IndexOutOfRangeError,
    ShapeError,
    UnsupportedError,
)
from .external import register_operator, registered  # noqa: E402
from .family import ProgramFamily, RunInterrupted, Source  # noqa: E402
from .gradcheck import gradcheck  # noqa: E402
from .indexing import index_write_, nonzero, take, take_along_axis  # noqa: E402
from .linear_algebra import einsum, matrix_transpose, outer, tensordot, vecdot  # noqa: E402
from .manipulation import (  # noqa: E402
    broadcast_arrays,
    broadcast_shapes,
    concat,
    diagonal,
    flip,
    meshgrid,
    moveaxis,
    repeat,
    roll,
    stack,
    tile,
    tril,
    triu,
    unstack,
)
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
from .tensor import Tensor  # noqa: E402

__all__ = [
    "AutogradError",
    "CaptureError",
    "CapturedFunction",
    "DType",
    "DTypeError",
    "DeviceLostError",
    "Generator",
    "IndexOutOfRangeError",
    "Program",
    "ProgramFamily",
    "RunInterrupted",
    "ShapeError",
    "Source",
    "Tensor",
    "UnsupportedError",
    "arange",
    "asarray",
    "backward",
    "bfloat16",
    "bool_",
    "broadcast_arrays",
    "broadcast_shapes",
    "capture",
    "concat",
    "cross_entropy",
    "cuda",
    "custom_gradient",
    "default_device",
    "default_generator",
    "diagonal",
    "einsum",
    "empty",
    "empty_like",
    "enable_grad",
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
    "index_write_",
    "int32",
    "int64",
    "is_capturing",
    "is_grad_enabled",
    "isa",
    "layer_norm",
    "linear_cross_entropy",
    "manual_seed",
    "matrix_transpose",
    "meshgrid",
    "mlp",
    "moveaxis",
    "nn",
    "no_grad",
    "nonzero",
    "num_threads",
    "ones",
    "ones_like",
    "optim",
    "outer",
    "own_generator",
    "qkv_attention",
    "random",
    "recompute",
    "register_operator",
    "registered",
    "repeat",
    "rms_norm",
    "roll",
    "rotary_embedding",
    "scaled_dot_product_attention",
    "set_default_device",
    "set_float32_math",
    "set_isa",
    "set_num_threads",
    "stack",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "uint8",
    "uint16",
    "unstack",
    "vecdot",
    "zeros",
    "zeros_like",
]
__all__ += _operators.__all__

_einops.register()

__version__ = libblutensor.VERSION
