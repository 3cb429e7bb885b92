"""Weights & Biases and MLflow, through their libraries; accounts, servers and folders are those libraries' settings.

A resumed run goes on under its name in the tracker: ``trackers.json`` in the run folder holds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blutrain.checkpoint.files import OsFiles, write_small_file
from blutrain.loggers.background import Point, Tracker
from blutrain.run_folder import RunPaths

_MLFLOW_PARAMS = 100
"""Most parameters that MLflow takes at once."""
_MLFLOW_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class _Identity:
    """What a run is called in a tracker. A copy of the folder is another run."""

    def __init__(self, folder: RunPaths, tracker: str) -> None:
        self._file = folder.trackers
        self._folder = os.path.abspath(folder.path)
        self._tracker = tracker

    def get(self) -> str | None:
        """The name of this very folder's run, None when it has none yet."""
        known = self._read()
        found = known.get(self._tracker) if known.get("folder") == self._folder else None
        return found if isinstance(found, str) else None

    def keep(self, name: str) -> None:
        """Remember it."""
        known = self._read()
        if known.get("folder") != self._folder:
            known = {"folder": self._folder}
        write_small_file(OsFiles(), self._file, json.dumps({**known, self._tracker: name}, indent=1).encode())

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


class WandbTracker:
    """A run of Weights & Biases; ``WANDB_MODE=offline`` and the other variables of its library count.

    Args:
        folder: of the run; the library's own files go there when ``WANDB_DIR`` does not say otherwise.
        name: of the run.
        project: of the run.
        config: what it shows as the run's configuration.
    """

    name = "wandb"

    def __init__(self, folder: RunPaths, name: str, project: str, config: Mapping[str, Any]) -> None:
        self._folder, self._name, self._project, self._config = folder, name, project, dict(config)
        self._identity = _Identity(folder, self.name)
        self._run: Any = None
        self.place = ""

    def begin(self) -> None:
        """Start the run, or continue it."""
        import wandb

        self._run = wandb.init(
            project=self._project,
            name=self._name,
            id=self._identity.get(),
            resume="allow",
            config=self._config,
            dir=os.environ.get("WANDB_DIR") or str(self._folder.path),
            # The console is the run's: what is printed there is kept in log.jsonl.
            settings=wandb.Settings(console="off", silent=True),
        )
        self._identity.keep(self._run.id)
        self.place = os.path.dirname(self._run.dir) if self._run.offline else str(self._run.url)
        # Its own step never goes back, as a run does that is resumed from a checkpoint.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def points(self, points: Sequence[Point]) -> None:
        """One row of its history per step."""
        for point in points:
            self._run.log({**point.values, "step": point.step})

    def end(self, status: str) -> None:
        """Send what is left."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowTracker:
    """A run of MLflow, where ``MLFLOW_TRACKING_URI`` says.

    Args:
        folder: of the run.
        name: of the run.
        project: name of the experiment, made when it is missing.
        config: its parameters, by dotted key.
    """

    name = "mlflow"

    def __init__(self, folder: RunPaths, name: str, project: str, config: Mapping[str, Any]) -> None:
        self._name, self._project, self._config = name, project, dict(config)
        self._identity = _Identity(folder, self.name)
        self._client: Any = None
        self._run_id = ""
        self.place = ""

    def begin(self) -> None:
        """Make the run, or open it again."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        known = self._identity.get()
        self._run_id = self._make() if known is None else known
        self.place = f"{self._client.tracking_uri}, run {self._run_id}"
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            return
        self._identity.keep(self._run_id)
        params = [
            Param(f"{section}.{key}", str(value))
            for section, values in self._config.items()
            for key, value in values.items()
        ]
        for begin in range(0, len(params), _MLFLOW_PARAMS):
            self._client.log_batch(self._run_id, params=params[begin : begin + _MLFLOW_PARAMS])

    def _make(self) -> str:
        """Make the run, and its experiment when there is none."""
        experiment = self._client.get_experiment_by_name(self._project)
        made = self._client.create_experiment(self._project) if experiment is None else experiment.experiment_id
        return str(self._client.create_run(made, run_name=self._name).info.run_id)

    def points(self, points: Sequence[Point]) -> None:
        """One request for all."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(1000 * point.seconds), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, status: str) -> None:
        """Give it its status."""
        self._client.set_terminated(self._run_id, _MLFLOW_STATUS[status])


TRACKERS: dict[str, Callable[[RunPaths, str, str, Mapping[str, Any]], Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}
"""By the name of the logger."""
