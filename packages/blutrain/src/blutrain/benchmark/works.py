"""The names of what is measured: ``train.<model>.<precision>.T<T>.B<B>[.limit<GiB>][.cpu].<quantity>``.

Works without ``.cpu`` run on a GPU. ``.limit48`` is under a limit of 48 GiB, ours and the peer's.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from blutrain.config import Config, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from blutrain.errors import InvalidInputError

MODELS: dict[str, ModelConfig] = {
    "nano": ModelConfig(layers=4, heads=4, channels=128, vocab_size=256),
    "30M": ModelConfig(layers=6, heads=6, channels=384, vocab_size=50257),
    "124M": ModelConfig(layers=12, heads=12, channels=768, vocab_size=50257),
    "350M": ModelConfig(layers=24, heads=16, channels=1024, vocab_size=50257),
    "1558M": ModelConfig(layers=48, heads=25, channels=1600, vocab_size=50257),
    "2420M": ModelConfig(layers=29, heads=20, channels=2560, vocab_size=50257),
}
"""Models by the names of the peers' scripts; the context is the work's."""


@dataclass(frozen=True)
class TrainWork:
    """Training steps of one model on random tokens."""

    model: str
    """Key of ``MODELS``."""
    context: int
    """T."""
    batch: int
    """B."""
    precision: str = "fp32"
    """Number mode."""
    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    peers: tuple[str, ...] = ("eager",)
    """What of PyTorch it is compared with: ``eager``, or a mode of ``torch.compile``; the fastest counts."""
    limit_gib: int = 0
    """Limit on the GPU's memory; 0 is none."""

    @property
    def name(self) -> str:
        """Without the quantity."""
        limit = f".limit{self.limit_gib}" if self.limit_gib else ""
        where = "" if self.device == "cuda" else f".{self.device}"
        return f"train.{self.model}.{self.precision}.T{self.context}.B{self.batch}{limit}{where}"

    def config(self, data: str, threads: int) -> Config:
        """The run that is measured: everything that ``blutrain train`` does in a step, with nothing between steps.

        Args:
            data: folder of shards.
            threads: CPU threads.
        """
        model = MODELS[self.model]
        shape = ModelConfig(
            layers=model.layers,
            heads=model.heads,
            channels=model.channels,
            context=self.context,
            vocab_size=model.vocab_size,
        )
        return Config(
            model=shape,
            data=DataConfig(path=data),
            optimizer=OptimizerConfig(beta2=0.999, weight_decay=0.1, clip_norm=1.0),
            schedule=ScheduleConfig(kind="constant", learning_rate=1e-4),
            train=TrainConfig(
                steps=1_000_000,
                micro_batch=self.batch,
                global_batch_tokens=self.batch * self.context,
                threads=threads,
                eval_every=0,
                sample_every=0,
                checkpoint_every=0,
                precision=self.precision,
                device=self.device,
                memory_limit_gib=float(self.limit_gib),
            ),
        )


TRAIN_WORKS = (
    TrainWork("nano", 128, 16),
    TrainWork("30M", 256, 4),
    TrainWork("124M", 256, 4),
    TrainWork("124M", 1024, 16, "tf32", "cuda", ("default",)),
    TrainWork("124M", 1024, 16, "bf16", "cuda", ("default",)),
    TrainWork("124M", 1024, 4, "bf16", "cuda", ("reduce-overhead",)),
    TrainWork("124M", 1024, 16, "fp32", "cuda", ("eager",)),
    TrainWork("124M", 16384, 2, "tf32", "cuda", ("default",)),
    TrainWork("2420M", 1024, 2, "tf32", "cuda", ("eager", "default"), limit_gib=48),
    TrainWork("2420M", 1024, 4, "tf32", "cuda", ("eager", "default"), limit_gib=48),
)
"""Training works that ``blutrain bench`` knows."""

DEFAULT_WORKS = ("train.nano.*", "train.30M.*")
"""What is measured when nothing is named: what a laptop finishes in minutes."""


def select(patterns: tuple[str, ...]) -> list[TrainWork]:
    """Works whose name, with any of its quantities, matches a pattern.

    Args:
        patterns: shell patterns, for example ``train.nano.*``; empty takes ``DEFAULT_WORKS``.

    Raises:
        InvalidInputError: a pattern matches nothing.
    """
    found: list[TrainWork] = []
    for pattern in patterns or DEFAULT_WORKS:
        matching = [work for work in TRAIN_WORKS if _matches(work, pattern)]
        if not matching:
            known = ", ".join(work.name for work in TRAIN_WORKS)
            raise InvalidInputError(f"[bench] expected a pattern of known work, got {pattern!r}; known: {known}")
        found += [work for work in matching if work not in found]
    return found


def _matches(work: TrainWork, pattern: str) -> bool:
    names = (work.name, f"{work.name}.tokens_per_s", f"{work.name}.peak_gib")
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)
