"""Reading safetensors files and the JSON beside them.

The library safetensors judges a file's header (at most 100 MB, offsets without gaps or overlaps that fit the file).
Tensors are then mapped, not read: weights of any size take no memory until they are written elsewhere, and bfloat16,
which NumPy does not have, needs no other library.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from blutrain.huggingface.configuration import CONFIG_JSON
from blutrain.huggingface.errors import ModelAccessError, ModelFileError, ModelFormatError, ModelNotFoundError

SUFFIX = ".safetensors"
"""Ends the names of files of tensors."""
SINGLE = "model.safetensors"
"""Name where all tensors are in one file."""
INDEX = "model.safetensors.index.json"
"""Name of the file that says which tensor is in which of several files."""
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""What weights may be, as NumPy sees it: bfloat16 as its bits."""

_MAX_JSON_BYTES = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file; nothing is read until ``values``."""

    path: Path
    """The file."""
    dtype: str
    """As the file calls it, for example ``BF16``."""
    shape: tuple[int, ...]
    """Sizes."""
    data: memoryview
    """Its bytes, mapped."""

    def values(self) -> NDArray[np.float32]:
        """As float32; mapped where it is that already, and read-only.

        Raises:
            KeyError: the dtype is none of ``DTYPES``.
        """
        stored = np.frombuffer(self.data, DTYPES[self.dtype]).reshape(self.shape)
        if self.dtype == "BF16":  # the upper half of a float32
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32, copy=False)


@dataclass(frozen=True)
class ModelFiles:
    """What a model consists of on disk."""

    config: Path
    """``config.json``."""
    weights: tuple[Path, ...]
    """Files of tensors."""
    index: Path | None = None
    """File that says what is in which."""

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self.config.parent


def find_files(sources: str | Path | Sequence[str | Path]) -> ModelFiles:
    """The files of a model.

    Args:
        sources: its folder; or its files: ``.safetensors`` files or their index, and ``config.json``, which may also
            lie beside the first of them unnamed.

    Returns:
        The files.

    Raises:
        ModelNotFoundError: something is missing.
        ModelFormatError: the index is damaged, or a file is of no kind that belongs here.
    """
    given = [Path(source) for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    if not given:
        raise ModelNotFoundError("[import-hf] expected the folder or the files of a model, got none")
    for path in given:
        if not path.is_file() and not path.is_dir():
            raise ModelNotFoundError(f"[import-hf] expected the folder or a file of a model, got nothing at {path}")
    if len(given) == 1 and given[0].is_dir():
        return _in_folder(given[0])
    index = [path for path in given if path.name.endswith(SUFFIX + ".index.json")]
    weights = [path for path in given if path.suffix == SUFFIX]
    configs = [path for path in given if path.suffix == ".json" and path not in index]
    foreign = [path for path in given if path not in (*index, *weights, *configs)]
    if foreign or len(configs) > 1 or len(index) > 1:
        wrong = (foreign or configs[1:] or index[1:])[0]
        message = f"[import-hf] expected {SUFFIX} files or one index of them, and one {CONFIG_JSON}, got also {wrong}"
        raise ModelFormatError(message + ": name one folder, or the files of one model")
    if not weights and not index:
        raise ModelNotFoundError(f"[import-hf] expected {SUFFIX} files of a model, got only {configs[0]}")
    config = configs[0] if configs else (index or weights)[0].with_name(CONFIG_JSON)
    if not config.is_file():
        raise ModelNotFoundError(f"[import-hf] expected {config} to describe the model, got no such file: name it too")
    if index:
        return ModelFiles(config, tuple({*weights, *_indexed(index[0])}), index[0])
    return ModelFiles(config, tuple(dict.fromkeys(weights)))


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Args:
        path: the file, of at most 100 MB.

    Raises:
        ModelFormatError: it holds something else.
        ModelAccessError: it can not be read.
    """
    with _access_errors(path), open(path, "rb") as file:
        # One byte more than there should be; asked for the most that there may be, Python would allocate all of it.
        raw = file.read(min(os.fstat(file.fileno()).st_size, _MAX_JSON_BYTES) + 1)
    if len(raw) > _MAX_JSON_BYTES:
        raise ModelFormatError(f"[import-hf] {path}: expected at most {_MAX_JSON_BYTES} bytes of JSON, got more")
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"[import-hf] {path}: expected JSON, got '{error}': download it again") from None
    if not isinstance(tree, dict):
        raise ModelFormatError(f"[import-hf] {path}: expected a JSON object, got {type(tree).__name__}")
    return tree


def read_tensors(files: ModelFiles) -> dict[str, StoredTensor]:
    """Every tensor of a model by its name.

    Args:
        files: see ``find_files``.

    Returns:
        The tensors, mapped.

    Raises:
        ModelFormatError: a file is damaged, a name occurs twice, or the index says what is not so.
        ModelAccessError: a file can not be read.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in files.weights:
        for name, tensor in read_safetensors(path).items():
            if name in tensors:
                message = f"[import-hf] expected {name!r} in one file, got it in {tensors[name].path} and {path}"
                raise ModelFormatError(message + ": name the files of one model only")
            tensors[name] = tensor
    if files.index is not None:
        wanted = _weight_map(files.index)
        wrong = [name for name, file in wanted.items() if name not in tensors or tensors[name].path.name != file]
        if wrong:
            message = f"[import-hf] {files.index}: expected {wrong[0]!r} in {wanted[wrong[0]]!r}, got it not there"
            more = f" ({len(wrong)} tensors are not where the index says)" if len(wrong) > 1 else ""
            raise ModelFormatError(f"{message}{more}: download the files again")
    return tensors


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file by its name, mapped.

    Args:
        path: the file.

    Raises:
        ModelFormatError: the file is foreign, truncated or damaged.
        ModelAccessError: it can not be read.
    """
    with _access_errors(path), open(path, "rb") as file:
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, ValueError, OverflowError) as error:
            message = f"[import-hf] {path}: expected a safetensors file, got '{error}'"
            raise ModelFormatError(message + ": it is damaged or of another format; download it again") from None
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    begin = 8 + int.from_bytes(whole[:8], "little")
    tensors = {}
    for name, fields in json.loads(bytes(whole[8:begin])).items():
        if name == "__metadata__":
            continue
        first, end = fields["data_offsets"]
        shape = tuple(fields["shape"])
        tensor = StoredTensor(path, fields["dtype"], shape, whole[begin + first : begin + end])
        kind = DTYPES.get(tensor.dtype)
        # The library's parser and this one could differ about a name that occurs twice.
        if kind is not None and len(tensor.data) != math.prod(shape) * kind.itemsize:
            raise ModelFormatError(f"[import-hf] {path}: expected {name!r} once in the header, got it twice: damaged")
        tensors[name] = tensor
    return tensors


def _in_folder(folder: Path) -> ModelFiles:
    config = folder / CONFIG_JSON
    if not config.is_file():
        message = f"[import-hf] expected {CONFIG_JSON} in {folder}, got none"
        raise ModelNotFoundError(message + ": name the folder of a model as Hugging Face keeps it")
    if (folder / SINGLE).is_file():
        return ModelFiles(config, (folder / SINGLE,))
    if (folder / INDEX).is_file():
        return ModelFiles(config, _indexed(folder / INDEX), folder / INDEX)
    others = [path.name for path in folder.iterdir() if path.suffix in (".bin", ".h5", ".msgpack", SUFFIX)]
    found = f"{', '.join(sorted(others)[:4])}: " if others else "neither: "
    message = f"[import-hf] expected {SINGLE} or {INDEX} in {folder}, got {found}name {SUFFIX} files one by one, and"
    raise ModelNotFoundError(message + " save models of other formats with save_pretrained() first")


def _indexed(index: Path) -> tuple[Path, ...]:
    names = sorted(set(_weight_map(index).values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        message = f"[import-hf] expected the {len(names)} files that {index} names, got no {', '.join(missing[:10])}"
        raise ModelNotFoundError(f"{message}{' and more' if len(missing) > 10 else ''}: download them too")
    return tuple(index.parent / name for name in names)


def _weight_map(index: Path) -> Mapping[str, str]:
    """Name of tensor to name of file, which is a plain name: an index can not point out of its folder."""
    found = read_json_object(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelFormatError(f"[import-hf] {index}: expected an object 'weight_map', got {type(found).__name__}")
    for name, file in found.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(SUFFIX):
            message = f"[import-hf] {index}: expected the name of a {SUFFIX} file for {name!r}, got {str(file)[:80]!r}"
            raise ModelFormatError(message)
    return found


@contextmanager
def _access_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        if isinstance(cause, ModelFileError):
            raise
        message = f"[import-hf] expected to read {path}, got '{cause.strerror or cause}'"
        error = ModelAccessError(message + ": check the path and its permissions")
        error.errno = cause.errno
        raise error from cause
