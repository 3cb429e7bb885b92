"""Named configurations to start from: the sizes of GPT-2's family, and a nano model that trains in seconds on a laptop.

Batch, learning rate and warm-up of the larger ones follow the GPT-3 paper (Brown et al. 2020, table 2.1), as llm.c and
nanoGPT do.
"""

from __future__ import annotations

from dataclasses import replace

from blutrain.config import Config, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig

_GPT2_VOCAB = 50257


def _gpt2(
    layers: int, heads: int, channels: int, learning_rate: float, *, micro_batch: int, tied_head: bool = True
) -> Config:
    """A GPT-2 with a context of 1024 tokens and a batch of half a million tokens."""
    return Config(
        model=ModelConfig(
            layers=layers,
            heads=heads,
            channels=channels,
            context=1024,
            vocab_size=_GPT2_VOCAB,
            tied_head=tied_head,
        ),
        data=DataConfig(tokenizer="gpt2"),
        schedule=ScheduleConfig(learning_rate=learning_rate, warmup_steps=700),
        train=TrainConfig(
            steps=19073,  # 10 billion tokens
            global_batch_tokens=2**19,
            micro_batch=micro_batch,
            log_every=10,
            eval_every=250,
            checkpoint_every=1000,
            sample_every=1000,
        ),
    )


def _nano() -> Config:
    """4 layers of 128 channels on bytes: what ``nox -s train`` shows on any CPU."""
    return Config(
        model=ModelConfig(layers=4, heads=4, channels=128, context=128, vocab_size=256),
        optimizer=OptimizerConfig(beta2=0.99),
        schedule=ScheduleConfig(learning_rate=2e-3, warmup_steps=50),
        train=TrainConfig(
            steps=1000,
            global_batch_tokens=2048,
            micro_batch=16,
            eval_every=250,
            checkpoint_every=250,
            sample_every=500,
        ),
    )


PRESETS: dict[str, Config] = {
    "gpt2-nano": _nano(),
    "gpt2-44m": _gpt2(6, 8, 512, 6e-4, micro_batch=32),
    "gpt2-124m": _gpt2(12, 12, 768, 6e-4, micro_batch=16),
    "gpt2-163m": _gpt2(12, 12, 768, 6e-4, micro_batch=16, tied_head=False),
    "gpt2-350m": _gpt2(24, 16, 1024, 3e-4, micro_batch=8),
    "gpt2-774m": _gpt2(36, 20, 1280, 2.5e-4, micro_batch=8),
    "gpt2-1558m": _gpt2(48, 25, 1600, 2e-4, micro_batch=4),
    "gpt2-2420m": _gpt2(29, 20, 2560, 1.6e-4, micro_batch=4),
}
"""Every preset by name."""

for _name, _config in PRESETS.items():
    PRESETS[_name] = replace(_config, run=replace(_config.run, folder=f"runs/{_name}"))
