"""MLFlowLogger: a run of an MLflow tracking server or directory."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from lightlib import lazy, optional
from lightlib.errors import MisconfigurationException
from lightlib.loggers.background_calls import BackgroundCalls
from lightlib.loggers.checkpoint_files import CheckpointFile, CheckpointUploads, runs_with_checkpoints
from lightlib.loggers.hyperparameters import flatten
from lightlib.loggers.log_files import below
from lightlib.loggers.logger import ANOTHER_LOGGER, Logger, load_client, number, prefixed, rank_zero_experiment
from lightlib.loggers.media.items import Media
from lightlib.report import described, rank_zero_only, warn

_DIRECTORY = "./mlruns"
_STATUS = {"success": "FINISHED", "finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_PARAMS_PER_CALL, _METRICS_PER_CALL, _VALUE_LENGTH = 100, 1000, 250  # limits that every server accepts


class MLFlowLogger(Logger):
    """Logs to MLflow. Needs ``pip install mlflow``; the package is imported at first use.

    The tests of this class use a stand-in for the documented interface of the client, not a server. Tried by hand with
    mlflow 3.17.2 on SQLite and on a directory.
    A training that resumes from its checkpoint (``ckpt_path="last"`` or ``"auto"``) continues the same run. Values
    logged after the checkpoint appear twice, because MLflow cannot delete them.
    In names of metrics and parameters, characters that MLflow refuses become ``_``; values of parameters are cut at 250
    characters.

    Args:
        experiment_name: The experiment, created when it does not exist.
        run_name: The name of the run.
        tracking_uri: The server or database. Default: the environment's ``MLFLOW_TRACKING_URI``, else a database in
            `save_dir`, ``mlflow.db``; or `save_dir` itself if MLflow's files of earlier runs are there, which recent
            versions of MLflow accept only with ``MLFLOW_ALLOW_FILE_STORE=true``.
        tags: Tags of the run.
        save_dir: The directory used when there is no server. Default: ``./mlruns``.
        log_model: Upload checkpoints: ``"all"`` when each is written, True at the end of the run (at once if
            ``save_top_k=-1``), False never.
        prefix: Put before every metric's name, with a ``-``.
        artifact_location: Where a new experiment keeps its artifacts.
        run_id: A run to continue.
        synchronous: Whether the client waits for the server at each call. None: values are sent to a server in the
            background, so that no call waits longer than a second, and to a database at once. Default: None.

    Raises:
        MisconfigurationException: When the run starts, and mlflow is missing or cannot use `tracking_uri`.
    """

    def __init__(
        self,
        experiment_name: str = "lightning_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: dict[str, Any] | None = None,
        save_dir: str | os.PathLike[str] | None = "./mlruns",
        log_model: Literal["all"] | bool = False,
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool | None = None,
    ) -> None:
        super().__init__()
        self._directory = os.path.expanduser(os.fspath(save_dir or _DIRECTORY))
        self._tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or _local_store(self._directory)
        self._experiment_name = experiment_name
        self._run_name = run_name
        self._tags = tags
        self._uploads = CheckpointUploads(log_model)
        self._prefix = prefix
        self._artifact_location = artifact_location
        self._run_id = run_id
        self._run_of_checkpoint = False  # whether a checkpoint, not the user, chose the run
        self._wait = {} if synchronous is None else {"synchronous": synchronous}
        self._experiment_id: str | None = None
        self._client: Any = None
        is_remote = self._tracking_uri.startswith(("http:", "https:", "databricks"))
        self._calls = BackgroundCalls("MLFlowLogger") if is_remote and synchronous is None else None

    def __repr__(self) -> str:
        arguments = {"experiment_name": self._experiment_name, "run_name": self._run_name, "run_id": self._run_id}
        return described(self, **arguments)

    @property
    def name(self) -> str | None:
        """The id of the experiment."""
        return self.experiment_id

    @property
    def version(self) -> str | None:
        """The id of the run."""
        return self.run_id

    @property
    def experiment_id(self) -> str | None:
        """The id of the experiment; the run is started when needed."""
        _ = self.experiment
        return self._experiment_id

    @property
    def run_id(self) -> str | None:
        """The id of the run, which is started when needed."""
        _ = self.experiment
        return self._run_id

    @property
    def save_dir(self) -> str | None:
        """The directory, when MLflow writes to one; None when there is a server."""
        if self._tracking_uri == _database_in(self._directory):
            return self._directory
        return self._tracking_uri.removeprefix("file:") if self._tracking_uri.startswith("file:") else None

    def run_dir(self, root: str) -> str | None:
        """Return ``save_dir/<id of the experiment>/<id of the run>``; None before the run is started."""
        return None if self._client is None else super().run_dir(root)

    def earlier_run_dirs(self, root: str) -> list[str]:
        """Return the folders of the experiment's runs on this machine; none when the user chose a run."""
        if self._run_id is not None:
            return []
        with self._explained() as client:
            experiment = client.get_experiment_by_name(self._experiment_name)
        return (
            [] if experiment is None else runs_with_checkpoints(below(self.save_dir or root, experiment.experiment_id))
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The `mlflow.MlflowClient`. First use starts the run."""
        if self._client is None:
            with self._explained() as client:
                self._start(client)
            self._client = client
        return self._client

    @contextmanager
    def _explained(self) -> Iterator[Any]:
        """Yield a client; turn its exceptions into errors that explain the fix."""
        mlflow = load_client("mlflow", "MLFlowLogger")
        from mlflow.exceptions import MlflowException  # optional: mlflow

        try:
            if self.save_dir is not None:
                os.makedirs(self.save_dir, exist_ok=True)
            yield mlflow.MlflowClient(self._tracking_uri)
        except ImportError as error:  # a database needs more than mlflow-skinny has
            raise optional.missing("mlflow", "MLFlowLogger", otherwise=ANOTHER_LOGGER, error=error) from error
        except MlflowException as error:
            raise MisconfigurationException(
                f"MLFlowLogger cannot use tracking_uri {self._tracking_uri!r}: {error}",
                expected="a server or database that can be reached and written to.",
                fix="MLFlowLogger(tracking_uri='http://…' or 'sqlite:///mlflow.db', which needs mlflow and not only "
                "mlflow-skinny); for a directory set the environment variable MLFLOW_ALLOW_FILE_STORE=true.",
            ) from error

    def _start(self, client: Any) -> None:
        from mlflow.exceptions import MlflowException  # optional: mlflow

        info: Any = None
        if self._run_id is not None:
            try:
                info = client.get_run(self._run_id).info
            except MlflowException as error:
                if not self._run_of_checkpoint:
                    raise
                where = f"The run {self._run_id} of the checkpoint is not at {self._tracking_uri!r}"
                warn(f"{where}; a new one is started: {error}")
        if info is not None:
            self._experiment_id = info.experiment_id
            if info.status != "RUNNING":
                client.update_run(self._run_id, status="RUNNING")
            return
        experiment = client.get_experiment_by_name(self._experiment_name)
        place = self._artifact_location
        if place is None and self._tracking_uri == _database_in(self._directory) and self._directory != _DIRECTORY:
            place = os.path.join(os.path.abspath(self._directory), self._experiment_name)  # else MLflow takes ./mlruns
        self._experiment_id = (
            client.create_experiment(self._experiment_name, artifact_location=place)
            if experiment is None
            else experiment.experiment_id
        )
        run = client.create_run(self._experiment_id, tags=self._tags, run_name=self._run_name)
        self._run_id = run.info.run_id

    def prepare(self) -> None:
        _ = self.experiment

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        self._experiment_id, self._run_id = broadcast((self._experiment_id, self._run_id))

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id} if self._run_id is not None else {}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run of the checkpoint, unless the user chose one."""
        if self._run_id is None:
            self._run_id, self._run_of_checkpoint = state_dict["run_id"], True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers, all in one call. Without `step` MLflow takes 0."""
        from mlflow.entities import Metric  # optional: mlflow

        now = int(time.time() * 1000)
        values = [
            Metric(_accepted(name), number(name, value), now, step or 0)
            for name, value in prefixed(metrics, self._prefix).items()
        ]
        for start in range(0, len(values), _METRICS_PER_CALL):
            self._send("log_batch", self.run_id, metrics=values[start : start + _METRICS_PER_CALL], **self._wait)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Record `params` as parameters of the run, flattened, with secrets masked."""
        from mlflow.entities import Param  # optional: mlflow

        values = [Param(_accepted(name), str(value)[:_VALUE_LENGTH]) for name, value in flatten(params).items()]
        for start in range(0, len(values), _PARAMS_PER_CALL):
            self._send("log_batch", self.run_id, params=values[start : start + _PARAMS_PER_CALL], **self._wait)

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """All of them."""
        return (Media,)

    @rank_zero_only
    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Record an item as the artifact ``media/<name>/<step>.png`` (or .json, .txt, .csv, .wav) of the run."""
        content, client, run_id = media.encoded(), self.experiment, self.run_id

        def upload() -> None:
            with tempfile.TemporaryDirectory(prefix="lightlib-") as folder:
                path = os.path.join(folder, f"{step or 0:08d}{media.extension}")
                with open(path, "wb") as file:
                    file.write(content)
                client.log_artifact(run_id, path, f"media/{_accepted(name)}")

        (upload if self._calls is None else partial(self._calls.add, upload))()

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Upload the checkpoint now or at the end of the run, depending on `log_model`."""
        self._upload(self._uploads.after_save(checkpoint_callback))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Upload remaining checkpoints and set the status of the run."""
        if self._client is None:
            return
        self._upload(self._uploads.at_end())
        self._send("set_terminated", self._run_id, _STATUS.get(status, status.upper()))
        if self._calls is not None:
            self._calls.finish()

    def _send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of the client, in the background if there is a server."""
        call = partial(getattr(self.experiment, method), *args, **kwargs)
        (call if self._calls is None else partial(self._calls.add, call))()

    def _upload(self, checkpoints: list[CheckpointFile]) -> None:
        for checkpoint in checkpoints:
            file_name = os.path.basename(checkpoint.path)
            place = f"model/checkpoints/{os.path.splitext(file_name)[0]}"
            if os.path.isdir(checkpoint.path):
                self.experiment.log_artifacts(self.run_id, checkpoint.path, f"{place}/{file_name}")
            else:
                self.experiment.log_artifact(self.run_id, checkpoint.path, place)
            description = {"score": checkpoint.score, "aliases": list(checkpoint.aliases), **checkpoint.settings}
            self.experiment.log_dict(self.run_id, description, f"{place}/metadata.json")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}


def _database_in(directory: str) -> str:
    return f"sqlite:///{os.path.join(directory, 'mlflow.db')}"


def _local_store(directory: str) -> str:
    """Return the address of the database in `directory`, or of the files that MLflow has kept there so far."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    is_of_files = "mlflow.db" not in names and any(
        os.path.isfile(os.path.join(directory, name, "meta.yaml")) for name in names
    )
    return f"file:{directory}" if is_of_files else _database_in(directory)


def _accepted(name: str) -> str:
    """Return `name` with ``_`` in place of characters other than words and ``/ . - :``, and of ``..`` parts."""
    parts = re.sub(r"[^/\w.\- :]", "_", name).split("/")
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
