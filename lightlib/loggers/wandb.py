"""WandbLogger: a run of Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers.checkpoint_files import CheckpointFile, CheckpointUploads, runs_with_checkpoints
from lightlib.loggers.hyperparameters import plain
from lightlib.loggers.log_files import below
from lightlib.loggers.logger import Logger, load_client, prefixed, rank_zero_experiment
from lightlib.loggers.media.items import Audio, Figure, Histogram, Image, Media, Table, Text
from lightlib.report import described, rank_zero_only, warn

if TYPE_CHECKING:
    from torch import nn

_STEP = "trainer/global_step"


class WandbLogger(Logger):
    """Logs to Weights & Biases. Needs ``pip install wandb``; the package is imported at first use.

    The tests of this class use a stand-in for the documented interface of the client, not a server. Tried by hand with
    wandb 0.31.0 in offline mode.
    A training that resumes from its checkpoint (``ckpt_path="last"`` or ``"auto"``) continues the same run. Values
    logged after the checkpoint appear twice, because wandb cannot delete them.

    Args:
        name: The name of the run.
        save_dir: Where the client keeps its files (``~`` is expanded).
        version: The id of the run, to continue one. Default: the environment's ``WANDB_RUN_ID``, else a new one.
        offline: Write to disk only; ``wandb sync`` uploads it later.
        dir: Same as `save_dir`, which it replaces when given.
        id: Same as `version`.
        anonymous: Passed on to the client when not None.
        project: The project. Default: the environment's ``WANDB_PROJECT``, else ``"lightning_logs"``.
        log_model: Upload checkpoints: ``"all"`` when each is written, True at the end of the run (at once if
            ``save_top_k=-1``), False never.
        experiment: A run that exists already, from `wandb.init`.
        prefix: Put before every metric's name, with a ``-``.
        checkpoint_name: The name of uploaded checkpoints. Default: ``model-<id of the run>``.
        add_file_policy: ``"mutable"`` uploads from a copy, ``"immutable"`` from the file itself.
        **kwargs: For `wandb.init`: entity, group, tags, config, …

    Raises:
        MisconfigurationException: `log_model` together with `offline`; and, when the run starts, wandb is missing.
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        version: str | None = None,
        offline: bool = False,
        dir: str | os.PathLike[str] | None = None,  # noqa: A002 - Lightning's name
        id: str | None = None,  # noqa: A002 - Lightning's name
        anonymous: bool | None = None,
        project: str | None = None,
        log_model: Literal["all"] | bool = False,
        experiment: Any = None,
        prefix: str = "",
        checkpoint_name: str | None = None,
        add_file_policy: Literal["mutable", "immutable"] = "mutable",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if offline and log_model:
            raise MisconfigurationException(
                f"WandbLogger(log_model={log_model!r}, offline=True): an offline run cannot upload checkpoints.",
                expected="only one of the two.",
                fix="set log_model=False, or offline=False.",
            )
        self._save_dir = os.path.expanduser(os.fspath(save_dir if dir is None else dir))
        self._uploads = CheckpointUploads(log_model)
        self._prefix = prefix
        self._checkpoint_name = checkpoint_name
        self._add_file_policy = add_file_policy
        self._experiment = experiment
        self._init: dict[str, Any] = {
            "name": name,
            "project": project or os.environ.get("WANDB_PROJECT", "lightning_logs"),
            "dir": self._save_dir,
            "id": version or id or os.environ.get("WANDB_RUN_ID"),
            "resume": "allow",
            **({"anonymous": "allow" if anonymous else None} if anonymous is not None else {}),
            **({"mode": "offline"} if offline else {}),
            **kwargs,
        }

    def __repr__(self) -> str:
        arguments = {name: self._init[name] for name in ("name", "project")}
        return described(self, **arguments, save_dir=self._save_dir, id=self.version)

    @property
    def name(self) -> str | None:
        project: str | None = self._init["project"]
        return project

    @property
    def version(self) -> str | None:
        """The id of the run; None before the run exists, if none was given."""
        version: str | None = self._init["id"] if self._experiment is None else self._experiment.id
        return version

    @property
    def save_dir(self) -> str:
        """Where the client keeps its files."""
        return self._save_dir

    def earlier_run_dirs(self, root: str) -> list[str]:
        """Return the folders of the project's runs on this machine; none when the user chose a run."""
        return [] if self.version is not None else runs_with_checkpoints(below(self.save_dir, self.name))

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The `wandb.Run`; created at first use, or the one that `wandb.init` has created before."""
        if self._experiment is None:
            wandb = _client()
            if wandb.run is not None:
                warn(
                    f"A wandb run is in progress already ({wandb.run.id}); WandbLogger continues it. "
                    "Call `wandb.finish()` first to start a new one."
                )
                self._experiment = wandb.run
            else:
                os.makedirs(self._save_dir, exist_ok=True)
                self._experiment = wandb.init(**self._init)
            if self._init.get("sync_tensorboard"):  # wandb reads the x axis from TensorBoard's events
                self._experiment.define_metric("*", step_metric="global_step")
            else:
                self._experiment.define_metric(_STEP)
                self._experiment.define_metric("*", step_metric=_STEP, step_sync=True)
        return self._experiment

    def prepare(self) -> None:
        _ = self.experiment

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        self._init["id"] = broadcast(self.version)

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.version} if self.version is not None else {}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run of the checkpoint, unless the user chose one."""
        if self._experiment is None and self._init["id"] is None:
            self._init["id"] = state_dict["id"]

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers, or media of wandb, against the x axis ``trainer/global_step``."""
        values = dict(prefixed(metrics, self._prefix))
        if step is not None and not self._init.get("sync_tensorboard"):
            values[_STEP] = step
        self.experiment.log(values)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Add `params` to the config of the run, nested as they are, with secrets masked."""
        self.experiment.config.update(plain(params), allow_val_change=True)

    @rank_zero_only
    def log_table(
        self,
        key: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Record a table, from `columns` and `data` or from a pandas `dataframe`."""
        self.log_metrics({key: _client().Table(columns=columns, data=data, dataframe=dataframe)}, step)

    def log_text(
        self,
        key: str,
        columns: list[str] | None = None,
        data: list[list[str]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Record text, as a table."""
        self.log_table(key, columns, data, dataframe, step)

    @rank_zero_only
    def log_image(self, key: str, images: list[Any], step: int | None = None, **kwargs: Any) -> None:
        """Record images (tensors, arrays, PIL images, paths).

        Args:
            key: The name.
            images: The images.
            step: The optimizer step.
            **kwargs: Arguments of `wandb.Image`, each a list with one value per image, as ``caption=["a", "b"]``.
        """
        self._log_media("Image", key, images, step, kwargs)

    @rank_zero_only
    def log_audio(self, key: str, audios: list[Any], step: int | None = None, **kwargs: Any) -> None:
        """Record audio (arrays, paths); `kwargs` are lists for `wandb.Audio`, as ``sample_rate=[16000, 16000]``."""
        self._log_media("Audio", key, audios, step, kwargs)

    @rank_zero_only
    def log_video(self, key: str, videos: list[Any], step: int | None = None, **kwargs: Any) -> None:
        """Record videos (arrays, paths); `kwargs` are lists for `wandb.Video`, as ``fps=[4, 4]``."""
        self._log_media("Video", key, videos, step, kwargs)

    def _log_media(
        self, kind: str, key: str, items: Any, step: int | None, arguments: dict[str, Sequence[Any]]
    ) -> None:
        if not isinstance(items, list):
            raise ArgumentTypeError(
                f"log_{kind.lower()}({key!r}) got a {type(items).__name__}.", expected="a list.", fix="pass [item]."
            )
        for name, values in arguments.items():
            if len(values) != len(items):
                raise MisconfigurationException(
                    f"log_{kind.lower()}({key!r}) got {len(items)} items but {len(values)} values of {name!r}.",
                    expected="one value for each item.",
                    fix=f"pass a list of {len(items)} as {name}.",
                )
        make = getattr(_client(), kind)
        media = [make(item, **{name: values[i] for name, values in arguments.items()}) for i, item in enumerate(items)]
        self.log_metrics({key: media}, step)

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """All of them; texts appear as tables."""
        return (Media,)

    @rank_zero_only
    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Record an item as wandb's object for its kind; audio needs the package soundfile, as wandb does."""
        self.log_metrics({name: _of_wandb(_client(), media)}, step)

    def watch(
        self,
        model: nn.Module,
        log: Literal["gradients", "parameters", "all"] | None = "gradients",
        log_freq: int = 100,
        log_graph: bool = True,
    ) -> None:
        """Record histograms of the model's gradients or parameters every `log_freq` steps."""
        self.experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    def unwatch(self, model: nn.Module) -> None:
        """Undo `watch`."""
        self.experiment.unwatch(model)

    def use_artifact(self, artifact: str, artifact_type: str | None = None) -> Any:
        """Declare `artifact`, as ``"project/name:version"``, an input of this run, and return it."""
        return self.experiment.use_artifact(artifact, type=artifact_type)

    @staticmethod
    @rank_zero_only
    def download_artifact(
        artifact: str,
        save_dir: str | os.PathLike[str] | None = None,
        artifact_type: str | None = None,
        use_artifact: bool = True,
    ) -> str:
        """Download `artifact` and return the directory.

        Args:
            artifact: ``"entity/project/name:version"``.
            save_dir: Where to. Default: a directory that wandb chooses.
            artifact_type: The type it must have.
            use_artifact: Whether to declare it an input of the run in progress, if there is one.
        """
        wandb = _client()
        if wandb.run is not None and use_artifact:
            downloaded = wandb.run.use_artifact(artifact, type=artifact_type)
        else:
            downloaded = wandb.Api().artifact(artifact, type=artifact_type)
        directory: str = downloaded.download(root=None if save_dir is None else os.fspath(save_dir))
        return directory

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Upload the checkpoint now or at the end of the run, depending on `log_model`."""
        self._upload(self._uploads.after_save(checkpoint_callback))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Upload the checkpoints of a run that succeeded. The run stays open: `wandb.finish()` closes it."""
        if status == "success":
            self._upload(self._uploads.at_end())

    def _upload(self, checkpoints: list[CheckpointFile]) -> None:
        for checkpoint in checkpoints:
            run, wandb = self.experiment, _client()
            file_name = os.path.basename(checkpoint.path)
            artifact = wandb.Artifact(
                name=self._checkpoint_name or f"model-{run.id}",
                type="model",
                metadata={
                    "score": checkpoint.score,
                    "original_filename": file_name,
                    "ModelCheckpoint": checkpoint.settings,
                },
            )
            if os.path.isdir(checkpoint.path):
                artifact.add_dir(checkpoint.path, name="model.ckpt", policy=self._add_file_policy)
            else:
                artifact.add_file(checkpoint.path, name="model.ckpt", policy=self._add_file_policy)
            run.log_artifact(artifact, aliases=list(checkpoint.aliases))

    def __getstate__(self) -> dict[str, Any]:
        init = {**self._init, "id": self.version}
        return {**self.__dict__, "_init": init, "_experiment": None}


def _of_wandb(wandb: Any, media: Media) -> Any:
    """Return wandb's object for an item."""
    if isinstance(media, Image):
        return wandb.Image(media.pixels.squeeze(2).numpy(), caption=media.caption or None)
    if isinstance(media, Figure):
        return wandb.Image(media.figure, caption=media.caption or None)
    if isinstance(media, Histogram):
        return wandb.Histogram(np_histogram=(media.counts, media.edges))
    if isinstance(media, Audio):
        return wandb.Audio(media.samples.T.numpy(), sample_rate=media.sample_rate)
    if isinstance(media, Text):
        return wandb.Table(columns=["text"], data=[[media.text]])
    assert isinstance(media, Table), "the last of the kinds"
    return wandb.Table(columns=media.columns, data=media.rows)


def _client() -> Any:
    return load_client("wandb", "WandbLogger")
