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
    samples: int = 0
    """Keys and values of the text that a run writes now and then."""
    snapshot: int = 0
    """Copy of weights and moments that a checkpoint is written from behind the loop."""
    process: int = 0
    """What a process takes besides, its tokenizer with it."""
    mapped: int = 0
    """Pages of the shards that the run reads and the system keeps in memory as long as there is room: they count as the
    process's own, and are never the reason why something does not fit."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.states + self.activations + self.samples + self.snapshot + self.process + self.mapped

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
        parts = {"samples": self.samples, "snapshot": self.snapshot, "mapped data": self.mapped}
        more = "".join(f"{name} {size / mebibyte:,.0f} MiB, " for name, size in parts.items() if size >= mebibyte)
        return (
            f"{self.total / mebibyte:,.0f} MiB ({self.state_names} {states / mebibyte:,.0f} MiB, "
            f"activations {self.activations / mebibyte:,.0f} MiB, {more}process {self.process / mebibyte:,.0f} MiB)"
        )


_KEPT_PER_BLOCK = 10
"""Values per token and channel that a block keeps for backward: queries, keys and values (3), the attention's result,
two residual sums, the MLP's pre-activation (4). What LayerNorm gives is made anew."""
_STATISTICS_PER_BLOCK = 4
"""float32 per token that a block's two LayerNorms keep: mean and scale."""
_GRADIENTS_IN_BLOCK = 5
"""Values per token and channel that backward holds at once within a block: of the residual stream and of the MLP's
pre-activation."""
_HEAD_CHUNK_BYTES = 64 * 2**20
"""Largest piece of the logits that the head holds on a CPU, where the vocabulary is cut in blocks too."""
_HEAD_BLOCK = 512
_HEAD_GROUPS = 16
_HEAD_CHUNK_BYTES_CUDA = 256 * 2**20
"""Largest piece of the logits that the head holds on a GPU."""
_PACKING_BYTES = 2**20
"""About what the products of the blocks take to pack their operands on a CPU."""
_LIBRARIES_BYTES = 50 * 2**20
"""Interpreter and libraries as they are loaded when a run is about to start, where no process is looked at."""
_LOADED_LATER_BYTES = 7 * 2**20
"""What comes to them while a run trains, writes samples and saves: pages of their code that were not needed before, and
small objects. Measured: 6 to 10 MiB."""
_TOKENIZER_BYTES = 1024
"""What a tokenizer takes for each of its ids, in this process and in the library that encodes."""
_CONTEXT_BYTES = 512 * 2**20
"""What a process takes of a GPU before the first tensor: context, kernels, local memory."""


def estimate_memory(config: Config, *, cuda: bool = False, libraries: int = _LIBRARIES_BYTES) -> MemoryEstimate:
    """Peak of a training step before anything is allocated. The part of the activations is within a tenth of the arena.

    Args:
        config: the run.
        cuda: of a GPU's memory instead of the machine's.
        libraries: bytes that interpreter and libraries take before the run; it differs between installations.

    Returns:
        The parts in bytes.
    """
    model, half = config.model, config.train.precision == "bf16"
    count, element = num_parameters(model), 2 if half else 4
    one_micro_batch = config.accumulation_steps() == 1
    tokenizer = _TOKENIZER_BYTES * model.vocab_size if config.data.tokenizer != "bytes" else 0
    keys_and_values = 2 * element * model.layers * model.context * model.channels
    return MemoryEstimate(
        parameters=element * count,
        gradients=0 if one_micro_batch else 4 * count,
        optimizer=(12 if half else 8) * count,
        activations=_arena_bytes(config, element, one_micro_batch, cuda),
        samples=keys_and_values if config.train.sample_every else 0,
        # A GPU's state is copied to the host, which is not the memory that is short.
        snapshot=12 * count if config.train.background_checkpoints == "on" and not cuda else 0,
        process=_CONTEXT_BYTES if cuda else libraries + _LOADED_LATER_BYTES + tokenizer,
    )


def _arena_bytes(config: Config, element: int, one_micro_batch: bool, cuda: bool) -> int:
    """What lives at once where most does: in the head, after it, or at either end of backward."""
    model, tokens = config.model, config.train.micro_batch * config.model.context
    stream = element * tokens * model.channels
    block = _KEPT_PER_BLOCK * stream + 4 * tokens * (_STATISTICS_PER_BLOCK + model.heads)  # and log-sum-exps
    head_gradient = 4 * model.padded_vocab_size * model.channels
    kept = model.layers * block + stream + (0 if cuda else _PACKING_BYTES)  # with the sum of the embeddings
    in_head = kept + 2 * stream + head_gradient + _head_bytes(model, tokens, element, cuda)
    weights = 4 * 12 * model.channels**2  # gradients of a block's
    in_backward = kept + _GRADIENTS_IN_BLOCK * stream + head_gradient + weights // 3
    if not one_micro_batch:  # gradients have a place of their own, which they are added to
        return max(in_head, in_backward)
    # They are scaled out of place, and pile up while the blocks give back what they kept.
    after_head = kept + stream + 2 * head_gradient
    in_first_block = block + stream + _GRADIENTS_IN_BLOCK * stream + head_gradient + model.layers * weights
    at_the_end = 4 * num_parameters(model) + 2 * stream
    return max(in_head, in_backward, after_head, in_first_block, at_the_end)


def _head_bytes(model: ModelConfig, tokens: int, element: int, cuda: bool) -> int:
    """Scratch of the head and the loss: a piece of the logits, and what is summed beside it."""
    if cuda:
        columns = _rounded_up(model.padded_vocab_size, 64)
        fitting = max(_HEAD_CHUNK_BYTES_CUDA // (element * columns) // 128 * 128, 128)
        rows = min(_rounded_up(-(-tokens // -(-tokens // fitting)), 128), tokens)
        return element * columns * rows + 8 * tokens
    rows, channels = model.vocab_size, model.channels
    chunks = -(-tokens // max(_HEAD_CHUNK_BYTES // 4 // rows, 64))
    chunk = _rounded_up(-(-tokens // chunks), 16)
    stride = chunk + 16 if 4 * chunk % 1024 == 0 else chunk
    blocks = -(-rows // _HEAD_BLOCK)
    total = 4 * rows * stride + 12 * blocks * stride + 16 * tokens
    if blocks >= _HEAD_GROUPS:
        total += 4 * _HEAD_GROUPS * chunk * channels
    if element == 2:  # it is computed in float32, from copies
        total += 4 * channels * (2 * tokens + model.padded_vocab_size)
    return total


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
