"""The one configuration tree of a run: frozen dataclasses with a docstring per field.

Reading and writing TOML and ``--set`` is in ``config_io``, what makes values impossible is in ``validation``, named
starting points are in ``presets``.

Legend of shapes and counts: B = micro-batch (sequences), T = context (tokens), L = layers, H = heads, C = channels, V
= vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the GPT: learned positions, pre-LayerNorm, tanh GELU, biases."""

    layers: int = 4
    """L: number of transformer blocks."""
    heads: int = 4
    """H: attention heads; must divide ``channels``."""
    channels: int = 128
    """C: width of the residual stream."""
    context: int = 128
    """T: longest sequence, in tokens; also the length of every training sequence."""
    vocab_size: int = 256
    """Number of real token ids, the tokenizer's."""
    pad_vocab_to: int = 64
    """The embedding has ``vocab_size`` rounded up to a multiple of this many rows. Padded ids are never sampled. 1
    pads nothing."""
    tied_head: bool = True
    """Whether the output projection shares the token embedding's weight."""
    dropout: float = 0.0
    """Probability of zeroing an element of the embedding's sum and of each residual branch while training."""

    @property
    def padded_vocab_size(self) -> int:
        """V: rows of the token embedding."""
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to

    @property
    def head_channels(self) -> int:
        """D: channels of one attention head."""
        return self.channels // self.heads


@dataclass(frozen=True)
class DataConfig:
    """Where the tokens come from."""

    path: str = ""
    """Folder written by ``blutrain prepare``, or one holding ``*train*.bin`` and ``*val*.bin`` shards in llm.c's
    format."""
    tokenizer: str = "bytes"
    """Tokenizer that the shards were made with and that samples are decoded with: ``bytes``, ``gpt2``, or the path of
    its files (``tokenizer.json``, or ``encoder.json`` with ``vocab.bpe``), such as ``tokenizer/`` of a prepared
    folder."""
    shuffle: bool = True
    """Whether every epoch has a new order of its windows, drawn from ``train.seed``; false reads front to back."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with decoupled weight decay on matrices only, and clipping of the global gradient norm."""

    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled decay of weight matrices; biases, LayerNorm gains and nothing else are exempt."""
    clip_norm: float = 1.0
    """Largest allowed norm of the mean gradient over all parameters; 0 never clips."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate of every step."""

    kind: str = "cosine"
    """``cosine``, ``linear``, ``constant`` or ``trapezoidal`` (also called warmup-stable-decay); all start with a
    linear warm-up."""
    learning_rate: float = 6e-4
    """Peak learning rate, reached at the end of the warm-up."""
    warmup_steps: int = 0
    """Steps of linear warm-up; step i of it has ``(i + 1) / warmup_steps`` of the peak."""
    final_fraction: float = 0.1
    """Learning rate of the last step as a fraction of the peak (``constant`` ignores it)."""
    decay_fraction: float = 0.2
    """Last part of the run in which ``trapezoidal`` decays linearly."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: int = 1000
    """Optimizer steps of the whole run."""
    global_batch_tokens: int = 2048
    """Tokens of one optimizer step over all micro-batches and ranks; must be a multiple of ``micro_batch *
    model.context``."""
    micro_batch: int = 16
    """B: sequences that one forward and backward pass holds at once."""
    seed: int = 1337
    """Seed of initialisation, data order and dropout."""
    precision: str = "fp32"
    """Number mode. ``fp32``: IEEE float32 throughout. ``tf32`` (GPU): float32 tensors whose matrix products round their
    operands to nearest tf32. ``bf16``: bfloat16 weights and activations, float32 accumulation, gradients, master
    weights and moments."""
    device: str = "auto"
    """``auto`` (the first GPU, or the CPU where there is none), ``cpu``, ``cuda`` or ``cuda:<index>``."""
    threads: int = 0
    """CPU threads; 0 takes all that the process may use."""
    memory_limit_gib: float = 0.0
    """Most memory that tensors may take, in GiB, to try a smaller device on a larger one; 0 is no limit."""
    log_every: int = 1
    """Every how many steps a line of loss, learning rate and speed goes to ``metrics.jsonl`` and TensorBoard."""
    eval_every: int = 250
    """Every how many steps the validation loss is measured (and at the end); 0 never."""
    eval_batches: int = 20
    """Largest number of micro-batches of one validation; 0 takes all of the validation shards."""
    checkpoint_every: int = 500
    """Every how many steps a checkpoint is written (and at the end); 0 only at the end."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay on disk; 0 keeps all."""
    background_checkpoints: str = "auto"
    """Whether checkpoints are written behind the training loop, from a copy of the state: ``on``, ``off`` or ``auto``,
    which is ``on`` for a GPU. On a CPU the writing takes the training's own cores, and the copy takes as much memory as
    the weights and moments."""
    sample_every: int = 500
    """Every how many steps text is generated into ``samples.txt`` (and at the end); 0 never."""
    sample_tokens: int = 200
    """Length of such a sample in tokens."""
    sample_prompt: str = ""
    """Text that samples continue; empty starts a new document."""
    sample_temperature: float = 0.8
    """Temperature of samples; 0 is greedy."""
    max_skipped_steps: int = 10
    """After this many steps in a row with a non-finite loss or gradient the run stops."""
    peak_tflops: float = 0.0
    """Peak TFLOP/s of the device, for model FLOP utilisation (MFU). 0 takes what is known of the GPU in this number
    mode, and reports MFU as n/a where nothing is."""


@dataclass(frozen=True)
class RunConfig:
    """What is kept of a run and where."""

    folder: str = "runs/latest"
    """Folder of configuration, metrics, checkpoints and samples."""
    name: str = ""
    """Name of the run in trackers and plots; empty takes the folder's name."""
    loggers: tuple[str, ...] = ("tensorboard",)
    """Where scalars go besides ``metrics.jsonl``: ``tensorboard`` (files in the run folder), ``wandb`` (Weights &
    Biases) and ``mlflow``, each through its own library and that library's own settings. One that fails is told of once
    and left out; it never stops the run."""
    project: str = "blutrain"
    """Project of Weights & Biases, experiment of MLflow."""


@dataclass(frozen=True)
class Config:
    """Everything that determines a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Shape of the model."""
    data: DataConfig = field(default_factory=DataConfig)
    """Where the tokens come from."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer and clipping."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Learning rate."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Training loop."""
    run: RunConfig = field(default_factory=RunConfig)
    """Run folder."""

    def accumulation_steps(self, world: int = 1) -> int:
        """Micro-steps of one optimizer step on each of ``world`` ranks.

        Args:
            world: number of data-parallel ranks.

        Returns:
            ``global_batch_tokens / (micro_batch * context * world)``; at least 1 for a valid configuration.
        """
        return self.train.global_batch_tokens // (self.train.micro_batch * self.model.context * world)
