"""Mutations of inputs, for where no coverage-guided fuzzer is installed: deterministic for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_EDGES = [0, 1, 2, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
_NUMBERS = [b"0", b"-1", b"1", b"1e999", b"-0.0", b"NaN", b"Infinity", b"0.5", b"9223372036854775808", b"1" * 400]
_DIGITS = b"0123456789"
MAX_BYTES = 1 << 16


def mutations(seeds: Sequence[bytes], words: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Endless mutations of the seeds; ``words`` are pieces of the format to insert and to put in place of others."""
    generator = random.Random(seed)
    while True:
        data = bytearray(generator.choice(seeds))
        for _ in range(generator.choice((1, 1, 1, 2, 3, 5))):
            _edit(data, seeds, words, generator)
        yield bytes(data[:MAX_BYTES])


def _edit(data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes], generator: random.Random) -> None:
    at = generator.randrange(len(data) + 1)
    end = min(len(data), at + generator.choice((1, 1, 2, 4, 8, 16, 64)))
    kind = generator.randrange(9)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << generator.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = generator.randrange(256)
    elif kind == 2:
        size = generator.choice((1, 2, 4, 8))
        data[at : at + size] = (generator.choice(_EDGES) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    elif kind == 3:
        del data[at:end]
    elif kind == 4:
        data[at:at] = data[at:end] * generator.choice((1, 1, 2, 50))
    elif kind == 5:
        other = generator.choice(seeds)
        begin = generator.randrange(len(other) + 1)
        data[at:end] = other[begin : begin + generator.choice((4, 16, 64, 1024))]
    elif kind == 6 and words:
        data[at : at if generator.random() < 0.5 else end] = generator.choice(words)
    elif kind == 7 and words:
        _replace_word(data, generator.choice(words), generator.choice(words), generator)
    else:
        _replace_number(data, generator)


def _replace_word(data: bytearray, old: bytes, new: bytes, generator: random.Random) -> None:
    at = data.find(old, generator.randrange(len(data) + 1))
    if at >= 0:
        data[at : at + len(old)] = new


def _replace_number(data: bytearray, generator: random.Random) -> None:
    """Put another number in the place of one that is written in digits."""
    begin = generator.randrange(len(data) + 1)
    while begin < len(data) and data[begin] not in _DIGITS:
        begin += 1
    end = begin
    while end < len(data) and data[end] in _DIGITS:
        end += 1
    data[begin:end] = generator.choice(_NUMBERS)
