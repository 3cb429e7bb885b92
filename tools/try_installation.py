"""Tries installed packages, in the environment that runs it: all imports, one copy of each library is mapped.

    python tools/try_installation.py [--train] PACKAGE...

With ``--train``, a model is trained for a few steps before the mapped libraries are looked at. Nothing but the packages
and what they declare has to be installed.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: Libraries of the user's choice: a module of ours may need them, and then says so at import.
OPTIONAL = {"einops", "mlflow", "pyarrow", "safetensors", "tensorboard", "tiktoken", "tokenizers", "torch", "wandb"}
STEPS = 5


def import_everything(package: str) -> int:
    """Import all modules of a package; returns how many there are.

    Raises:
        ImportError: a module needs something that the package does not declare.
    """
    found = importlib.import_module(package)
    names = [m.name for m in pkgutil.walk_packages(found.__path__, f"{package}.") if not m.name.endswith("__main__")]
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in OPTIONAL:
                raise
    importlib.import_module(f"lib{package}").load_library()
    return len(names)


def train(folder: Path) -> None:
    """Train gpt2-nano by the command line on text that is made here, and generate from it."""
    from blutrain.cli import cli

    text, data, run = folder / "text.txt", folder / "data", folder / "run"
    text.write_text("\n".join(f"{n} and {n} is {n + n}" for n in range(4000)), encoding="utf-8")
    settings = {"data.path": data, "run.folder": run, "train.steps": STEPS, "train.device": "cpu"}
    commands = [
        ["prepare", str(text), "--tokenizer", "bytes", "--out", str(data)],
        ["train", "--preset", "gpt2-nano", *(part for key, v in settings.items() for part in ("--set", f"{key}={v}"))],
        ["generate", str(run), "--prompt", "1 and", "--max-new-tokens", "5"],
    ]
    for command in commands:
        cli.main(command, standalone_mode=False)


def mapped_libraries() -> list[Path]:
    """The files of this repository's libraries that the process has mapped, each once."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {Path(line.split(None, 5)[5]) for line in maps if "/libblu" in line}
    return sorted(path for path in paths if path.name.startswith("libblu"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Import, train if asked to, and look at what is mapped."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    packages = [argument for argument in arguments if argument != "--train"]
    for package in packages:
        version = importlib.import_module(f"lib{package}").VERSION
        print(f"{package} {version}: {import_everything(package)} modules imported")
    if "--train" in arguments:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder))
    mapped = mapped_libraries()
    site = Path(sysconfig.get_paths()["platlib"])
    names = [path.name.split(".")[0] for path in mapped]
    strays = [path for path in mapped if not path.is_relative_to(site)]
    if len(set(names)) != len(names) or strays or not {f"lib{package}" for package in packages} <= set(names):
        print(f"expected one copy of each library below {site}, got {[str(path) for path in mapped]}")
        return 1
    print(f"Python {sys.version.split()[0]}: {', '.join(path.name for path in mapped)}, one copy of each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
