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


def model_flop_utilisation(config: Config, tokens_per_second: float, known_tflops: float | None = None) -> float | None:
    """Share of the device's peak that the model's arithmetic reaches.

    Args:
        config: for the model and ``train.peak_tflops``.
        tokens_per_second: measured.
        known_tflops: what is known of the device, for a ``train.peak_tflops`` of 0.

    Returns:
        The share, or None ("n/a") when the peak is neither given nor known.
    """
    peak = config.train.peak_tflops or known_tflops
    if not peak:
        return None
    return tokens_per_second * flops_per_token(config.model) / (peak * 1e12)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a training step at its peak."""

    parameters: int
    """Weights that the model computes with."""
    gradients: int
    """float32 gradients that outlive a micro-step; 0 where a step is one micro-batch."""
    optimizer: int
    """Two float32 moments, and in ``bf16`` the float32 master weights."""
    activations: int
    """The arena of the captured step: what forward keeps for backward, the scratch of the head, and in a step of one
    micro-batch the gradients, which take the place of activations that backward has used."""
    snapshot: int = 0
    """Copy of weights and moments that a checkpoint is written from behind the loop."""
    process: int = 0
    """What a process takes besides."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.states + self.activations + self.snapshot + self.process

    @property
    def states(self) -> int:
        """What stays from step to step."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def state_names(self) -> str:
        """What ``states`` consists of."""
        return "weights, gradients and moments" if self.gradients else "weights and moments"

    def __str__(self) -> str:
        mebibyte, states = 2**20, self.states
        snapshot = f"snapshot {self.snapshot / mebibyte:,.0f} MiB, " if self.snapshot else ""
        return (
            f"{self.total / mebibyte:,.0f} MiB ({self.state_names} {states / mebibyte:,.0f} MiB, "
            f"activations {self.activations / mebibyte:,.0f} MiB, {snapshot}process {self.process / mebibyte:,.0f} MiB)"
        )


_CHANNELS_PER_BLOCK = 10
"""Values per token and channel that a block keeps for backward: queries, keys and values (3), the attention's result,
two residual sums, the MLP's pre-activation (4). What LayerNorm gives is made anew."""
_CHANNELS_OUTSIDE = 10
"""The same outside the blocks, and the gradients that backward holds at once within one."""
_HEAD_CHUNK_BYTES = 32 * 2**20
"""Largest piece of the logits that the head holds on a CPU."""
_HEAD_CHUNK_BYTES_CUDA = 384 * 2**20
"""Likewise on a GPU."""
_PROCESS_BYTES = 60 * 2**20
"""Interpreter and libraries."""
_CONTEXT_BYTES = 512 * 2**20
"""What a process takes of a GPU before the first tensor: context, kernels, local memory."""


def estimate_memory(config: Config, *, cuda: bool = False) -> MemoryEstimate:
    """Peak of a training step before anything is allocated. The part of the activations is within a fifth of the arena.

    Args:
        config: the run.
        cuda: of a GPU's memory instead of the machine's.

    Returns:
        The parts in bytes.
    """
    model, tokens = config.model, config.train.micro_batch * config.model.context
    count, half = num_parameters(model), config.train.precision == "bf16"
    element = 2 if half else 4
    per_token = model.channels * (_CHANNELS_PER_BLOCK * model.layers + _CHANNELS_OUTSIDE)
    rows = model.padded_vocab_size
    chunk = min(element * rows * tokens, _HEAD_CHUNK_BYTES_CUDA if cuda else _HEAD_CHUNK_BYTES)
    activations = element * tokens * per_token + 4 * rows * model.channels + chunk
    gradients = 4 * count
    if config.accumulation_steps() == 1:
        # All gradients are there when backward ends; by then the blocks have left nothing else.
        at_the_end = gradients + element * tokens * model.channels * _CHANNELS_OUTSIDE
        activations, gradients = max(activations, at_the_end), 0
    return MemoryEstimate(
        parameters=element * count,
        gradients=gradients,
        optimizer=(12 if half else 8) * count,
        activations=activations,
        # A GPU's state is copied to the host, which is not the memory that is short.
        snapshot=12 * count if config.train.background_checkpoints == "on" and not cuda else 0,
        process=_CONTEXT_BYTES if cuda else _PROCESS_BYTES,
    )
