"""Optimizers, gradient norm and clipping."""

from __future__ import annotations

from .adamw import AdamW
from .base import Optimizer
from .clip import clip_grad_norm_, clip_scale, grad_norm
from .sgd import SGD

__all__ = ["SGD", "AdamW", "Optimizer", "clip_grad_norm_", "clip_scale", "grad_norm"]
