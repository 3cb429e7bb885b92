"""Modules, layers, initialisers and neural-network functions."""

from __future__ import annotations

from . import functional, init
from .layers import GELU, Dropout, Embedding, LayerNorm, Linear, ModuleList, RMSNorm, Sequential
from .module import Module
from .parameter import Parameter
from .rotary import RotaryScaling

__all__ = [
    "GELU",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "RotaryScaling",
    "Sequential",
    "functional",
    "init",
]
