"""Configurations: TOML files, ``--set`` texts, and the tree that a checkpoint holds as JSON."""

from __future__ import annotations

import json
import math

import tomli_w
from targets import MemoryFile, Target, only

from blutrain.config import Config
from blutrain.config_io import config_from_dict, config_to_dict, config_to_toml, known_keys, load_config
from blutrain.errors import ConfigError
from blutrain.presets import PRESETS
from blutrain.validation import find_problems

_FILE, _AGAIN = MemoryFile("config"), MemoryFile("again")


def _check(config: Config) -> None:
    """Judging never fails, and what was read comes back from TOML as it was."""
    find_problems(config)
    if any(isinstance(v, float) and math.isnan(v) for s in config_to_dict(config).values() for v in s.values()):
        return  # not equal to itself
    assert load_config(_AGAIN.write(config_to_toml(config).encode())) == config


def run(data: bytes) -> bool:
    """Input: a byte that says how the rest is read."""
    kind, rest = data[:1], data[1:]
    with only(ConfigError) as outcome:
        if kind == b"s":
            _check(load_config(settings=rest.decode(errors="surrogateescape").split("\n")))
        elif kind == b"j":
            try:
                tree = json.loads(rest)
            except (ValueError, RecursionError):
                return False
            _check(config_from_dict(tree))
        else:
            _check(load_config(_FILE.write(rest)))
    return outcome.accepted


def seeds() -> list[bytes]:
    """A preset and the sections of all, each in the three forms: an input of one section is read in less time."""
    found = [b"tpreset = 'gpt2-nano'\n[train]\nsteps = 3", b"t" + config_to_toml(PRESETS["gpt2-nano"]).encode()]
    found += [b'j"text"', b"j[1]", b'j{"model": 3}']  # that are no tables
    found += [b'sdata.path="\0t"', b"sdata.path=" + 300 * b"9"]  # that no folder can have
    trees = [config_to_dict(preset) for preset in PRESETS.values()]
    for section in config_to_dict(Config()):
        for values in {json.dumps(tree[section]): tree[section] for tree in trees}.values():
            settings = [f"{section}.{name}={json.dumps(value)}" for name, value in values.items()]
            part = {section: values}
            found += [
                b"t" + tomli_w.dumps(part).encode(),
                b"j" + json.dumps(part).encode(),
                b"s" + "\n".join(settings).encode(),
            ]
    return found


_WORDS = (
    *(key.encode() for key in known_keys()), b"[model]", b"[[train]]", b"inf", b"nan", b"-inf", b"true", b"''",
    b"{}", b"[]", b"0x7fffffffffffffff", b"1979-05-27T07:32:00Z", b"07:32:00", b"9" * 400, b"9" * 5000, b"'''",
    b'"""', b"\\u0000", b"\0", b"preset", b"\xff", b"\xed\xa0\x80", b"a.b.c", b"[" * 500, b"1e400", b"0.5", b"=",
    b"\n", b"cuda:0", b"null",
)  # fmt: skip
TARGETS = (Target("config", run, seeds, _WORDS),)
