"""Values of tensors between devices and NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native, _operators, dtypes
from .autograd import custom_gradient, is_grad_enabled
from .devices import CPU, DeviceKey, device_name
from .errors import ShapeError
from .tensor import Tensor

_lib = _native.lib


def array_over(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: dtypes.DType, keep: object = None
) -> npt.NDArray[Any]:
    """A NumPy array over native memory. `address` is that of element (0, ..., 0); `keep` lives as long as the array."""
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    item = dtype.itemsize
    low = sum(s * (d - 1) for s, d in zip(strides, shape, strict=True) if s < 0) * item
    high = sum(s * (d - 1) for s, d in zip(strides, shape, strict=True) if s > 0) * item + item
    buffer: Any = (ctypes.c_char * (high - low)).from_address(address + low)
    buffer._keep = keep
    return np.ndarray(shape, dtype.numpy, buffer, -low, [s * item for s in strides])


def host_array(tensor: Tensor, op: str) -> npt.NDArray[Any]:
    """The values as an array: over the same memory on the cpu, a copy from another device."""
    shape, _, dtype, device = tensor._fixed()
    if device == CPU:
        return tensor._view(op)
    source = tensor if tensor.is_contiguous() else _operators.contiguous(tensor.detach())
    array = np.empty(shape, dtype.numpy)
    _native.check(_lib.blutensor_tensor_read(source._handle, op.encode(), array.ctypes.data, array.nbytes))
    return array


def write_array(tensor: Tensor, source: npt.NDArray[Any], *, bits: bool = False) -> None:
    """Writes an array (broadcast, cast) into a tensor on any device; with `bits`, bfloat16 takes its bits."""
    from .interop import array_tensor, converted

    shape, _, dtype, device = tensor._fixed()
    if not bits:
        source = converted("copy_", source, dtype)
    try:
        source = np.broadcast_to(source, shape)
    except ValueError:
        raise ShapeError(f"[copy_] expected values that broadcast to shape {shape}, got {source.shape}") from None
    if device == CPU:
        tensor._view("copy_", write=True)[...] = source
        return
    array = np.empty(shape, dtype.numpy)
    array[...] = source
    if tensor.is_contiguous() and not (tensor.requires_grad and is_grad_enabled()):
        _native.check(_lib.blutensor_tensor_write(tensor._handle, b"copy_", array.ctypes.data, array.nbytes))
    else:
        _operators.copy_(tensor, array_tensor(array, dtype).to(tensor.device))


def copy_between(target: Tensor, source: Tensor) -> None:
    """`copy_` from another device: the bytes where layout and dtype agree, else by way of a copy there."""
    whole = target.is_contiguous() and source.is_contiguous()
    same = target.shape == source.shape and target.dtype is source.dtype
    differentiated = is_grad_enabled() and (target.requires_grad or source.requires_grad)
    if whole and same and not differentiated:
        _native.check(_lib.blutensor_copy_bytes(target._handle, source._handle))
    else:
        _operators.copy_(target, source.to(target.device))


def moved(tensor: Tensor, device: DeviceKey) -> Tensor:
    """A row-major copy on another device, through which gradients flow back."""
    source = tensor.detach()
    if not source.is_contiguous():
        source = _operators.contiguous(source)
    out = _native.OwnedHandle()
    _native.check(_lib.blutensor_copy_to_device(source._handle, *device, out))
    copy = Tensor._adopt(out)
    if tensor.requires_grad and is_grad_enabled():
        back = device_name(tensor._fixed()[3])
        custom_gradient("to", [tensor], [copy], lambda grads: [None if g is None else g.to(back) for g in grads])
    return copy
