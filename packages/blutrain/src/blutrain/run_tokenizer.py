"""The tokenizer of a run, whose files are copied into the run folder.

So a run generates text wherever it is moved to, without its data and without a network; the copy takes a megabyte or
two, far less than one checkpoint.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from blutrain.checkpoint.files import OsFiles, write_small_file
from blutrain.config import Config
from blutrain.data.dataset import Dataset
from blutrain.data.tokenizer import NAMES, Tokenizer, TokenizerIdentity, get_tokenizer, tokenizer_files
from blutrain.errors import DataError, TokenizerError
from blutrain.run_folder import RunPaths


def expected_tokenizer(config: Config) -> TokenizerIdentity | str:
    """What the configuration asks for.

    Args:
        config: of the run.

    Returns:
        A name of ``NAMES``, or the identity of the tokenizer at the path; where the path is gone, of the run's copy.

    Raises:
        TokenizerError: there is nothing of that name, or its files are unusable.
    """
    name = config.data.tokenizer
    if name in NAMES:
        return name
    copy = RunPaths(config.run.folder).tokenizer
    return get_tokenizer(copy if not Path(name).exists() and copy.is_dir() else name).identity


def tokenizer_of_data(config: Config, dataset: Dataset) -> Tokenizer:
    """The tokenizer that a run's data were made with.

    Args:
        config: of the run.
        dataset: its data; without a manifest, the configuration's word is taken.

    Returns:
        The tokenizer.

    Raises:
        TokenizerError: it can not be had.
        DataError: the files beside the shards are not those that made them.
    """
    if dataset.tokenizer_path is None:
        return get_tokenizer(config.data.tokenizer)
    tokenizer = get_tokenizer(dataset.tokenizer_path)
    if dataset.tokenizer is not None and tokenizer.identity != dataset.tokenizer:
        message = f"[data] expected the tokenizer {dataset.tokenizer} in {dataset.tokenizer_path}, got"
        raise DataError(f"{message} {tokenizer.identity}; prepare the data again")
    return tokenizer


def keep_tokenizer(config: Config, dataset: Dataset, folder: Path) -> Tokenizer:
    """Copy the files of a run's tokenizer, and no other that lies beside them, into its folder, each in one step.

    Args:
        config: of the run.
        dataset: its data.
        folder: the run folder.

    Returns:
        The tokenizer.

    Raises:
        TokenizerError: it can not be had; files that lie beside the data are copied even so.
        DataError: the files beside the shards are not those that made them.
        OSError: the disk is full or the folder may not be written to.
    """
    if dataset.tokenizer_path is not None:
        _copy(tokenizer_files(dataset.tokenizer_path), folder)
        return tokenizer_of_data(config, dataset)
    tokenizer = tokenizer_of_data(config, dataset)
    with tempfile.TemporaryDirectory() as temporary:
        _copy(tokenizer.save(temporary), folder)
    return tokenizer


def tokenizer_of_run(run: str | Path, config: Config) -> Tokenizer:
    """The tokenizer of a trained model.

    Args:
        run: run folder, its folder of checkpoints, or one checkpoint file.
        config: that it was trained with.

    Returns:
        The tokenizer: the run's copy, or where there is none what the configuration names.

    Raises:
        TokenizerError: it can not be had, or has more ids than the model.
    """
    name = tokenizer_place(run, config)
    tokenizer = get_tokenizer(name)
    if tokenizer.vocab_size > config.model.vocab_size:
        message = f"[tokenizer] expected at most the {config.model.vocab_size} ids of the model, got"
        raise TokenizerError(f"{message} {tokenizer.identity} in {name}; put the run's tokenizer back")
    return tokenizer


def tokenizer_place(run: str | Path, config: Config) -> Path | str:
    """Where the tokenizer of a trained model is.

    Args:
        run: run folder, its folder of checkpoints, or one checkpoint file.
        config: that it was trained with.

    Returns:
        The run's copy, or where there is none what the configuration names.
    """
    path = Path(run) if Path(run).is_dir() else Path(run).parent
    paths = RunPaths(path.parent) if path == RunPaths(path.parent).checkpoints else RunPaths(path)
    copy = paths.tokenizer
    return copy if config.data.tokenizer != "bytes" and copy.is_dir() else config.data.tokenizer


def _copy(paths: Iterable[Path], folder: Path) -> None:
    files = OsFiles()
    for path in paths:
        files.make_folder(RunPaths(folder).tokenizer)
        write_small_file(files, RunPaths(folder).tokenizer / path.name, path.read_bytes())
