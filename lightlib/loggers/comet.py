"""CometLogger: an experiment of Comet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from lightlib import lazy
from lightlib.loggers.checkpoint_files import runs_with_checkpoints
from lightlib.loggers.hyperparameters import flatten
from lightlib.loggers.log_files import below
from lightlib.loggers.logger import Logger, load_client, number, prefixed, rank_zero_experiment
from lightlib.report import described, rank_zero_only

if TYPE_CHECKING:
    from torch import Tensor, nn


class CometLogger(Logger):
    """Logs to Comet. Needs ``pip install comet-ml``; the package is imported at first use.

    The tests of this class use a stand-in for the documented interface of the client, not a server. Tried by hand with
    comet_ml 3.58.8 in offline mode.
    A training that resumes from its checkpoint (``ckpt_path="last"`` or ``"auto"``) continues the same experiment.
    Values logged after the checkpoint appear twice, because Comet cannot delete them.

    Args:
        api_key: Comet's key. Default: the one set by ``comet login`` or the environment's ``COMET_API_KEY``.
        workspace: The workspace. Default: the user's own.
        project: The project. Default: Comet's.
        experiment_key: The key of an experiment to continue, or of the new one.
        mode: ``"get_or_create"`` (Comet's default), ``"get"`` to continue, ``"create"`` for a new one.
        online: False writes to disk only, to be uploaded later. Default: Comet's, which is True.
        prefix: Put before every metric's name, with a ``-``.
        **kwargs: For `comet_ml.ExperimentConfig`: name, tags, offline_directory, log_code, …

    Raises:
        MisconfigurationException: When the run starts, and comet_ml is missing.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        workspace: str | None = None,
        project: str | None = None,
        experiment_key: str | None = None,
        mode: Literal["get_or_create", "get", "create"] | None = None,
        online: bool | None = None,
        prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._start = {
            "api_key": api_key,
            "workspace": workspace,
            "project": project,
            "experiment_key": experiment_key,
            "mode": mode,
            "online": online,
        }
        self._config = kwargs
        self._prefix = prefix or ""
        self._experiment: Any = None

    def __repr__(self) -> str:
        return described(self, **{**self._start, "experiment_key": self.version})

    @property
    def name(self) -> str | None:
        project: Any = self._start["project"]
        return project if project is None else str(project)

    @property
    def version(self) -> str | None:
        """The key of the experiment; None before it exists, if none was given."""
        key: Any = self._start["experiment_key"] if self._experiment is None else self._experiment.get_key()
        return key if key is None else str(key)

    def earlier_run_dirs(self, root: str) -> list[str]:
        """Return the folders of the project's experiments on this machine; none when the user chose one."""
        is_chosen = self.version is not None or self._start["mode"] == "create" or not self.name
        return [] if is_chosen else runs_with_checkpoints(below(self.save_dir or root, self.name))

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The `comet_ml.CometExperiment`; created at first use."""
        if self._experiment is None:
            comet_ml = load_client("comet_ml", "CometLogger")
            config = comet_ml.ExperimentConfig(**self._config)
            self._experiment = comet_ml.start(**self._start, experiment_config=config)
            self._experiment.log_other("Created from", "lightlib")
        return self._experiment

    def prepare(self) -> None:
        _ = self.experiment

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        self._start["experiment_key"] = broadcast(self.version)

    def state_dict(self) -> dict[str, Any]:
        return {"experiment_key": self.version} if self.version is not None else {}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the experiment of the checkpoint, unless the user chose one or the mode is ``"create"``."""
        if self._experiment is None and self._start["experiment_key"] is None and self._start["mode"] != "create":
            self._start["experiment_key"] = state_dict["experiment_key"]

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers. The one named ``epoch`` is also passed to Comet as the epoch of all of them."""
        values = {name: number(name, value) for name, value in metrics.items()}
        epoch = int(values["epoch"]) if "epoch" in values else None
        self.experiment.log_metrics(dict(prefixed(values, self._prefix)), step=step, epoch=epoch)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Record `params` as parameters, flattened, with secrets masked."""
        self.experiment.log_parameters(flatten(params))

    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | Any | None = None) -> None:
        """Record the text that describes the model's layers."""
        self.experiment.set_model_graph(str(model))

    @rank_zero_only
    def save(self) -> None:
        if self._experiment is not None:
            self._experiment.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send the queue and record `status`. The experiment stays open, for a later test."""
        if self._experiment is not None:
            self._experiment.log_other("status", status)
            self._experiment.flush()

    def __getstate__(self) -> dict[str, Any]:
        start = {**self._start, "experiment_key": self.version}
        return {**self.__dict__, "_start": start, "_experiment": None}


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
