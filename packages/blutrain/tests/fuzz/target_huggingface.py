"""Models in Hugging Face's format: a safetensors file, and a folder with its configuration and index."""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import save
from targets import MemoryFile, MemoryFolder, Target, only

from blutrain.huggingface import names
from blutrain.huggingface.configuration import model_config_json, read_model_config
from blutrain.huggingface.errors import ModelFileError
from blutrain.huggingface.files import (
    DTYPES,
    INDEX,
    SINGLE,
    StoredTensor,
    find_files,
    read_json_object,
    read_safetensors,
    read_tensors,
)
from blutrain.model import ModelConfig

_FILE = MemoryFile("model")
_FOLDER = MemoryFolder()
_MODEL = ModelConfig(layers=1, heads=1, channels=4, context=4, vocab_size=8)


def _check(tensor: StoredTensor) -> None:
    """What the file says of a tensor is so."""
    if tensor.dtype in DTYPES:
        values = tensor.values()
        assert values.dtype == np.float32
        assert values.shape == tensor.shape


def run_tensors(data: bytes) -> bool:
    """Reads every tensor of a file."""
    path = _FILE.write(data)
    with only(ModelFileError) as outcome:
        for tensor in read_safetensors(path).values():
            _check(tensor)
    return outcome.accepted


def run_folder(data: bytes) -> bool:
    """Input: lengths of configuration and index in 2 bytes each, both, then the tensors; an empty index is none."""
    config, index = (int.from_bytes(data[at : at + 2], "little") for at in (0, 2))
    parts = data[4 : 4 + config], data[4 + config : 4 + config + index], data[4 + config + index :]
    _FOLDER.write("config.json", parts[0])
    if parts[1]:
        _FOLDER.remove(SINGLE)
        _FOLDER.write("part.safetensors", parts[2])
        _FOLDER.write(INDEX, parts[1])
    else:
        _FOLDER.remove(INDEX)
        _FOLDER.write(SINGLE, parts[2])
    with only(ModelFileError) as outcome:
        files = find_files(_FOLDER.path)
        model = read_model_config(files.config, read_json_object(files.config), pad_vocab_to=1)
        assert model.channels % model.heads == 0
        for name, tensor in read_tensors(files).items():
            names.without_prefix(name)
            _check(tensor)
    return outcome.accepted


def _tensors() -> bytes:
    """A few of a model's tensors, of every dtype that weights may have and of some that they may not."""
    found = {
        "transformer.wte.weight": np.zeros((8, 4), np.float32),
        "transformer.wpe.weight": np.ones((4, 4), np.float16),
        "ids": np.arange(3),
        "transformer.h.0.attn.bias": np.zeros((1, 1, 4, 4), np.bool_),
        "empty": np.zeros((0, 3), np.float32),
    }
    return save(found, {"format": "pt"})


def seeds_tensors() -> list[bytes]:
    """A file of several tensors, one of them in bfloat16, and one without any."""
    file = _tensors()
    length = int.from_bytes(file[:8], "little")
    text = file[8 : 8 + length].replace(b'"F16"', b'"BF16"')
    return [file, len(text).to_bytes(8, "little") + text + file[8 + length :], save({})]


def seeds_folder() -> list[bytes]:
    """A folder with one file of tensors, and one with an index."""
    config = json.dumps(model_config_json(_MODEL, 7)).encode()
    tensors = _tensors()
    header = json.loads(tensors[8 : 8 + int.from_bytes(tensors[:8], "little")])
    weight_map = {name: "part.safetensors" for name in header if name != "__metadata__"}
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()
    return [
        len(config).to_bytes(2, "little") + len(extra).to_bytes(2, "little") + config + extra + tensors
        for extra in (b"", index)
    ]


_WORDS = (
    b'"F32"', b'"BF16"', b'"F16"', b'"F8_E5M2"', b'"I64"', b'"BOOL"', b'"dtype"', b'"shape"', b'"data_offsets"',
    b'"__metadata__"', b"null", b"true", b"{}", b"[]", b"[0,0]", b"[0,9223372036854775807]",
    b"[4611686018427387904,4]", b"[0,4611686018427387904]", b"-1", b"1e999", b"NaN", b"[" * 2000, b'"\\ud800"',
    b'"weight_map"', b'"part.safetensors"', b'"../part.safetensors"', b'"n_embd"', b'"n_head"', b'"model_type"',
    b'"gpt2"', b'"num_hidden_layers"', b"2147483648", b"9" * 5000, b'"n_inner"', b'"pruned_heads"', b",",
)  # fmt: skip
TARGETS = (
    Target("safetensors", run_tensors, seeds_tensors, _WORDS),
    Target("huggingface", run_folder, seeds_folder, _WORDS),
)
