"""Small tokenizers for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blutrain.data.tokenizer_bpe import byte_characters

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]


def write_vocabulary(folder: Path, merges: list[str] = MERGES, vocab: dict[str, Any] | None = None) -> Path:
    """GPT-2's two files: by default 256 bytes, nine merges and the end-of-text token."""
    folder.mkdir(exist_ok=True)
    if vocab is None:
        tokens = [*byte_characters().values(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
        vocab = {token: index for index, token in enumerate(tokens)}
    (folder / "encoder.json").write_text(json.dumps(vocab))
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
    return folder
