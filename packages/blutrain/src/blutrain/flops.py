"""Arithmetic and memory of a training step, from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from blutrain.config import Config, ModelConfig

MFU_FORMULA = "MFU = tokens/s * (6 N + 6 L T C) / peak FLOP/s"
"""N: parameters, L: layers, T: context, C: channels. Causal attention is counted once, forward and backward."""


def num_parameters(model: ModelConfig) -> int:
    """N: parameters of a GPT, embeddings included."""
    channels, rows = model.channels, model.padded_vocab_size
    heads = rows * channels * (1 if model.tied_head else 2)
    return heads + model.context * channels + model.layers * (12 * channels**2 + 13 * channels) + 2 * channels


def flops_per_token(model: ModelConfig) -> int:
    """FLOPs of forward and backward for one token: ``6 N + 6 L T C`` (Kaplan et al. 2020, with causal attention)."""
    return 6 * num_parameters(model) + 6 * model.layers * model.context * model.channels


def model_flop_utilisation(config: Config, tokens_per_second: float) -> float | None:
    """Share of the device's peak that the model's arithmetic reaches.

    Args:
        config: for the model and ``train.peak_tflops``.
        tokens_per_second: measured.

    Returns:
        The share, or None ("n/a") when ``train.peak_tflops`` is 0.
    """
    if config.train.peak_tflops <= 0:
        return None
    return tokens_per_second * flops_per_token(config.model) / (config.train.peak_tflops * 1e12)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a training step at its peak."""

    parameters: int
    """float32 weights."""
    gradients: int
    """float32 gradients."""
    optimizer: int
    """Two float32 moments."""
    activations: int
    """What forward keeps for backward, and the scratch of the head: the arena of the captured step."""
    snapshot: int = 0
    """Copy of weights and moments that a checkpoint is written from behind the loop."""
    process: int = 60 * 2**20
    """Interpreter and libraries."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.snapshot + self.process

    def __str__(self) -> str:
        mebibyte = 2**20
        states = self.parameters + self.gradients + self.optimizer
        snapshot = f"snapshot {self.snapshot / mebibyte:,.0f} MiB, " if self.snapshot else ""
        return (
            f"{self.total / mebibyte:,.0f} MiB (weights, gradients and moments {states / mebibyte:,.0f} MiB, "
            f"activations {self.activations / mebibyte:,.0f} MiB, {snapshot}process {self.process / mebibyte:,.0f} MiB)"
        )


_CHANNELS_PER_BLOCK = 10
"""float32 values per token and channel that a block keeps for backward: queries, keys and values (3), the attention's
result, two residual sums, the MLP's pre-activation (4). What LayerNorm gives is made anew."""
_CHANNELS_OUTSIDE = 10
"""The same outside the blocks, and the gradients that backward holds at once within one."""
_HEAD_CHUNK_BYTES = 32 * 2**20
"""Largest piece of the logits that the head holds."""


def estimate_memory(config: Config) -> MemoryEstimate:
    """Peak of a training step before anything is allocated. The part of the activations is within a fifth of the arena.

    Args:
        config: the run.

    Returns:
        The parts in bytes.
    """
    model, tokens = config.model, config.train.micro_batch * config.model.context
    states = 4 * num_parameters(model)
    per_token = model.channels * (_CHANNELS_PER_BLOCK * model.layers + _CHANNELS_OUTSIDE)
    rows = model.padded_vocab_size
    head = 4 * rows * model.channels + min(4 * rows * tokens, _HEAD_CHUNK_BYTES)
    snapshot = 3 * states if config.train.background_checkpoints else 0
    return MemoryEstimate(states, states, 2 * states, 4 * tokens * per_token + head, snapshot)
