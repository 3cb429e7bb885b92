"""Data: tokenizers, text to shards, shards to batches."""

from __future__ import annotations

from blutrain.data.dataset import Dataset, open_dataset
from blutrain.data.loader import Loader, Position
from blutrain.data.preparation import prepare
from blutrain.data.shards import ShardWriter, read_shard, shard_num_tokens
from blutrain.data.tokenizer import ByteTokenizer, Tokenizer, TokenizerIdentity, get_tokenizer
from blutrain.data.tokenizer_training import train_tokenizer

__all__ = [
    "ByteTokenizer",
    "Dataset",
    "Loader",
    "Position",
    "ShardWriter",
    "Tokenizer",
    "TokenizerIdentity",
    "get_tokenizer",
    "open_dataset",
    "prepare",
    "read_shard",
    "shard_num_tokens",
    "train_tokenizer",
]
