"""Byte-level BPE as GPT-2 has it: from its files, or for GPT-2 itself from tiktoken.

Text is split by GPT-2's expression, the bytes of each part are shown as characters, and pairs are merged in the order
of a list (Radford et al. 2019, Sennrich et al. 2016). The work is done by tiktoken; where it is not installed, or the
vocabulary is not in the order that it needs, by tokenizers, with the same tokens.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blutrain.arguments import checked
from blutrain.data.shards import token_dtype
from blutrain.data.text import cut_text
from blutrain.data.tokenizer import END_OF_TEXT, TokenizerIdentity, Tokens, as_text, check_vocab_size, checked_ids
from blutrain.errors import TokenizerError

MERGES_OF = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
"""Names of GPT-2's two files: as it was released, and as Hugging Face calls them."""
GPT2_DIGEST = "ab5bc53b3eeb2e570596a5395afeb76f28adce0ab1a110b76a3cebef4f141a5f"
"""Digest of GPT-2's vocabulary and merges."""
PATTERN = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's expression, which cuts text into the parts that are merged."""
DOWNLOAD_SECONDS = 30.0
"""How long tiktoken may take to bring GPT-2's vocabulary."""
INSTALL = "pip install 'blutrain[tokenizers]'"
"""What brings the libraries."""

_LONGEST_TOKEN = 512  # bytes; GPT-2's has 128
_LONGEST = 2**18  # tiktoken's matcher gives up on a million spaces in a row
_Merge = tuple[str, str]
_Engine = Callable[[str, bool], Tokens]


class BpeTokenizer:
    """A vocabulary and merges in GPT-2's form.

    Args:
        vocab: id of every token, its bytes written as characters (see ``byte_characters``), ``end_of_text`` among them.
        merges: pairs in the order in which they are merged.
        end_of_text: the token that separates documents.
        place: where it comes from, for messages.

    Raises:
        TokenizerError: the two do not belong together, are not byte-level, or no library is installed.
    """

    def __init__(
        self, vocab: Mapping[str, int], merges: Sequence[_Merge], *, end_of_text: str = END_OF_TEXT, place: str = "gpt2"
    ) -> None:
        _check(vocab, merges, end_of_text, place)
        self.vocab = dict(vocab)
        """Id of every token."""
        self.merges = list(merges)
        """Pairs in order."""
        self.end_of_text = vocab[end_of_text]
        """Id that separates documents."""
        self.vocab_size = max(vocab.values()) + 1
        """Largest id plus one."""
        digest = _digest(vocab, merges, end_of_text)
        kind = "gpt2" if digest == GPT2_DIGEST else "bpe"
        self.identity = TokenizerIdentity(kind, digest, self.vocab_size, self.end_of_text)
        """What makes it the same as another one."""
        bytes_of = {character: byte for byte, character in byte_characters().items()}
        ranks = {bytes(bytes_of[c] for c in token): id for token, id in vocab.items() if token != end_of_text}
        self._bytes = {id: token for token, id in ranks.items()} | {self.end_of_text: END_OF_TEXT.encode()}
        self._special = end_of_text
        in_order = kind == "gpt2" or _is_in_order(ranks, merges, bytes_of)
        self._engine = (in_order and _tiktoken_engine(ranks, vocab, end_of_text)) or _tokenizers_engine(
            self.vocab, self.merges, end_of_text
        )

    @checked("tokenizer")
    def encode(self, text: str | bytes, *, special: bool = False) -> Tokens:
        """Token ids of a text.

        Args:
            text: text, or its UTF-8.
            special: whether the end-of-text token's name inside the text is that token.

        Returns:
            [tokens], of ``token_dtype(vocab_size)``.

        Raises:
            InvalidTypeError: an argument of another type.
            TokenizerError: it is no UTF-8, or half of a surrogate pair.
        """
        return self._encode(text, special)

    def _encode(self, text: str | bytes, special: bool = False) -> Tokens:
        whole = as_text(text, self.identity.kind)
        parts = [self._engine(part, special) for part in cut_text(whole, _LONGEST)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @checked("tokenizer")
    def encode_batch(self, texts: Sequence[str | bytes]) -> list[Tokens]:
        """``encode`` of each text."""
        return [self._encode(text) for text in texts]

    @checked("tokenizer")
    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids.

        Args:
            tokens: ids of the vocabulary.

        Returns:
            The text; bytes that are no UTF-8 become U+FFFD.

        Raises:
            InvalidTypeError: no integers.
            TokenizerError: an id is not in the vocabulary.
        """
        ids = checked_ids(tokens, self.vocab_size, self.identity.kind)
        unused = [id for id in ids if id not in self._bytes]
        if unused:
            raise TokenizerError(f"[tokenizer {self.identity.kind}] expected an id of a token, got {unused[0]}")
        return b"".join(self._bytes[id] for id in ids).decode(errors="replace")

    @checked("tokenizer")
    def save(self, folder: str | Path) -> list[Path]:
        """Write ``encoder.json`` and ``vocab.bpe``."""
        if self._special != END_OF_TEXT:
            return self._save_json(Path(folder))
        vocab, merges = (Path(folder, name) for name in ("encoder.json", MERGES_OF["encoder.json"]))
        by_id = dict(sorted(self.vocab.items(), key=lambda item: item[1]))
        vocab.write_text(json.dumps(by_id), encoding="utf-8")
        lines = "".join(f"{left} {right}\n" for left, right in self.merges)
        merges.write_text(f"#version: 0.2\n{lines}", encoding="utf-8")
        return [vocab, merges]

    def _save_json(self, folder: Path) -> list[Path]:
        """GPT-2's two files can not name another end-of-text token."""
        from blutrain.data.tokenizer_file import save_tokenizer_json

        return save_tokenizer_json(folder, byte_level_bpe(self.vocab, self.merges, self._special), self._special)


def byte_characters() -> dict[int, str]:
    """How GPT-2's files write each byte: as its Latin-1 character where that can be seen, else as one from 256 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


def load_bpe(path: Path) -> BpeTokenizer:
    """A tokenizer from GPT-2's two files.

    Args:
        path: ``encoder.json`` or ``vocab.json``; ``vocab.bpe`` or ``merges.txt`` lies beside it.

    Returns:
        The tokenizer.

    Raises:
        TokenizerError: a file is missing or not what its name says.
    """
    merges = path.with_name(MERGES_OF[path.name])
    try:
        vocab = json.loads(path.read_text(encoding="utf-8-sig"))
        lines = merges.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        message = f"[tokenizer] expected {path.name} and {merges.name} in {path.parent}, got no {error.filename}"
        raise TokenizerError(message + ": put both there") from None
    except (OSError, ValueError, RecursionError) as error:
        message = f"[tokenizer] expected {path} with JSON and {merges} with text, got {type(error).__name__}: {error}"
        raise TokenizerError(message + "; download them again") from error
    if not isinstance(vocab, dict):
        raise TokenizerError(f"[tokenizer] expected an object of tokens and ids in {path}, got {type(vocab).__name__}")
    pairs = [line for line in lines if line and not line.startswith("#version")]
    return BpeTokenizer(vocab, parse_merges(pairs, str(merges)), place=str(path))


def parse_merges(pairs: Iterable[Any], place: str) -> list[_Merge]:
    """Merges from ``"a b"`` or ``["a", "b"]``.

    Raises:
        TokenizerError: one is no pair.
    """
    merges = []
    for number, pair in enumerate(pairs, 1):
        parts = tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) if isinstance(pair, list) else ()
        if len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise TokenizerError(
                f"[tokenizer] expected two tokens as merge {number} of {place}, got {str(pair)[:60]!r}"
            )
        merges.append((parts[0], parts[1]))
    return merges


def load_gpt2(seconds: float = DOWNLOAD_SECONDS) -> BpeTokenizer:
    """GPT-2's tokenizer, whose vocabulary tiktoken keeps in its cache or downloads.

    Args:
        seconds: how long that may take.

    Returns:
        The tokenizer.

    Raises:
        TokenizerError: tiktoken is not installed, or can not bring the vocabulary in that time.
    """
    found: list[Any] = []

    def bring() -> None:
        try:
            import tiktoken

            found.append(tiktoken.get_encoding("gpt2"))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=bring, daemon=True)  # tiktoken's download has no time limit of its own
    thread.start()
    thread.join(seconds)
    encoding = found[0] if found else TimeoutError(f"no answer for {seconds:g} seconds")
    if isinstance(encoding, Exception):
        missing = f"; install tiktoken: {INSTALL}" if isinstance(encoding, ImportError) else ""
        reason = " ".join(f"{type(encoding).__name__}: {encoding}".split())[:200]
        message = (
            f"[tokenizer gpt2] expected tiktoken's copy of GPT-2's vocabulary or its download, got {reason}{missing}"
        )
        fix = "; or give the files: name a folder with encoder.json and vocab.bpe (--tokenizer FOLDER, data.tokenizer)"
        raise TokenizerError(message + fix) from encoding
    return _from_ranks({encoding.decode_single_token_bytes(id): id for id in range(encoding.eot_token)})


def byte_level_bpe(vocab: Mapping[str, int], merges: Sequence[_Merge], end_of_text: str) -> Any:
    """The same tokenizer as an object of tokenizers.

    Raises:
        TokenizerError: tokenizers is not installed.
    """
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise TokenizerError(f"[tokenizer] expected tiktoken or tokenizers, got neither: {INSTALL}") from error
    engine = Tokenizer(models.BPE(dict(vocab), list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(end_of_text, normalized=False, special=True)])
    return engine


# ---- engines -----------------------------------------------------------------------------------------------------


def _tiktoken_engine(ranks: dict[bytes, int], vocab: Mapping[str, int], end_of_text: str) -> _Engine | None:
    try:
        import tiktoken
    except ImportError:
        return None
    special = {end_of_text: vocab[end_of_text]}
    dtype = token_dtype(max(vocab.values()) + 1)
    encoding = tiktoken.Encoding("blutrain", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)

    def encode(text: str, with_special: bool) -> Tokens:
        allowed: Any = "all" if with_special else set()
        tokens = encoding.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
        return np.asarray(tokens, dtype)

    return encode


def _tokenizers_engine(vocab: Mapping[str, int], merges: Sequence[_Merge], end_of_text: str) -> _Engine:
    plain, special = (byte_level_bpe(vocab, merges, end_of_text) for _ in range(2))
    plain.encode_special_tokens = True  # as text
    dtype = token_dtype(max(vocab.values()) + 1)

    def encode(text: str, with_special: bool) -> Tokens:
        return np.array((special if with_special else plain).encode(text, add_special_tokens=False).ids, dtype)

    return encode


# ---- vocabularies ------------------------------------------------------------------------------------------------


def _check(vocab: Mapping[str, int], merges: Sequence[_Merge], end_of_text: str, place: str) -> None:
    def fail(expected: str, found: object) -> None:
        raise TokenizerError(f"[tokenizer] expected {expected} in {place}, got {str(found)[:80]}; download it again")

    wrong = [(token, id) for token, id in vocab.items() if type(id) is not int or id < 0]
    if wrong:
        fail("an id of at least 0 for every token", f"{wrong[0][1]!r} for {wrong[0][0]!r}")
    if len(set(vocab.values())) != len(vocab):
        fail("a different id for every token", f"{len(vocab)} tokens with {len(set(vocab.values()))} ids")
    if end_of_text not in vocab:
        fail(f"the token {end_of_text}", "none")
    check_vocab_size(max(vocab.values()) + 1, place)
    alphabet = set(byte_characters().values())
    absent = alphabet - vocab.keys()
    if absent:
        fail("a token for each of the 256 bytes", f"none for {min(absent)!r}")
    foreign = [token for token in vocab if token != end_of_text and not (token and alphabet.issuperset(token))]
    if foreign:
        fail("bytes written as GPT-2 does", repr(foreign[0]))
    for left, right in merges:
        missing = [token for token in (left, right, left + right) if token not in vocab]
        if missing:
            fail(f"the tokens of the merge {left!r} {right!r}", f"none for {missing[0]!r}")


def _digest(vocab: Mapping[str, int], merges: Sequence[_Merge], end_of_text: str) -> str:
    content = [end_of_text, sorted(vocab.items(), key=lambda item: item[1]), [list(merge) for merge in merges]]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def _split(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The parts that lower ranks merge a token's bytes into."""
    limit = ranks[token]
    parts = [token[index : index + 1] for index in range(len(token))]
    while True:
        joined = [ranks.get(left + right, limit) for left, right in itertools.pairwise(parts)]
        lowest = min(joined, default=limit)
        if lowest >= limit:
            return parts
        index = joined.index(lowest)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


def _is_in_order(ranks: Mapping[bytes, int], merges: Sequence[_Merge], bytes_of: Mapping[str, int]) -> bool:
    """Whether merging whatever has the lowest id, as tiktoken does, is merging in the order of the list."""
    last = -1
    for merge in merges:
        left, right = (bytes(bytes_of[character] for character in part) for part in merge)
        token = left + right
        if ranks[token] <= last or len(token) > _LONGEST_TOKEN or _split(token, ranks) != [left, right]:
            return False
        last = ranks[left + right]
    return len(merges) == len(ranks) - 256


def _from_ranks(ranks: Mapping[bytes, int]) -> BpeTokenizer:
    """GPT-2 from tiktoken's form, which has no merges: they follow from the ranks."""
    characters = byte_characters()

    def shown(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    in_order = sorted(ranks, key=ranks.__getitem__)
    merges = [_split(token, ranks) for token in in_order if len(token) > 1]
    vocab = {shown(token): ranks[token] for token in in_order} | {END_OF_TEXT: len(ranks)}
    return BpeTokenizer(vocab, [(shown(left), shown(right)) for left, right in merges])
