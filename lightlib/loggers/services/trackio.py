"""TrackioLogger: a run of Trackio, on this machine or in a Space of Hugging Face."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from lightlib.loggers.checkpoint_files import runs_with_checkpoints
from lightlib.loggers.log_files import below
from lightlib.loggers.logger import load_client
from lightlib.loggers.media.items import Image, Media, Table, Text
from lightlib.loggers.services.service_logger import ServiceLogger
from lightlib.report import described, rank_zero_only


class TrackioLogger(ServiceLogger):
    """Logs to Trackio. Needs ``pip install trackio``; the package is imported at first use.

    By default the values are in a database on this machine, below ``TRACKIO_DIR``, which ``trackio show`` displays. The
    service is called in the background: a slow or unreachable one is reported once, and training continues. A training
    that resumes from its checkpoint (``ckpt_path="last"`` or ``"auto"``) continues the same run. Values logged after
    the checkpoint appear twice.

    Args:
        project: The project, which groups runs. Default: ``"lightning_logs"``.
        name: The name of the run, to continue one. Default: a new one.
        prefix: Put before every metric's name, with a ``-``.
        **kwargs: For `trackio.init`: space_id, dataset_id, group, private, …

    Raises:
        MisconfigurationException: When the run starts, and trackio is missing.

    Example:
        >>> TrackioLogger(project="digits", name="first").version
        'first'
    """

    def __init__(
        self, project: str = "lightning_logs", name: str | None = None, prefix: str = "", **kwargs: Any
    ) -> None:
        super().__init__(prefix)
        self._project, self._run_name, self._options = project, name, kwargs
        self._is_chosen = name is not None

    def __repr__(self) -> str:
        return described(self, project=self._project, name=self._run_name)

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str | None:
        """The name of the run; None before the run exists, if none was given."""
        return self._run_name

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """Images, tables and text."""
        return (Image, Table, Text)

    def earlier_run_dirs(self, root: str) -> list[str]:
        """Return the folders of the project's runs on this machine; none when the user chose a run."""
        return [] if self._is_chosen else runs_with_checkpoints(below(self.save_dir or root, self.name))

    @rank_zero_only
    def prepare(self) -> None:
        """Check that the package is installed, choose the name of the run, and begin to open it."""
        self._run_name = self._run_name or f"run-{uuid.uuid4().hex[:8]}"
        super().prepare()

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        self._run_name = broadcast(self._run_name)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self._run_name} if self._run_name is not None else {}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run of the checkpoint, unless the user chose one."""
        if not self._is_chosen:
            self._run_name = state_dict["name"]

    def _check(self) -> None:
        _package()

    def _open(self) -> Any:
        self._run_name = self._run_name or f"run-{uuid.uuid4().hex[:8]}"
        options = {"resume": "allow", "embed": False, **self._options}
        return _package().init(project=self._project, name=self._run_name, **options)

    def _metrics(self, client: Any, metrics: dict[str, float], step: int | None) -> None:
        client.log(dict(metrics), step=step)

    def _hyperparameters(self, client: Any, params: dict[str, Any]) -> None:
        client.config.update(params)

    def _media(self, client: Any, name: str, media: Media, step: int | None) -> None:
        client.log({name: _of_trackio(_package(), media)}, step=step)

    def _close(self, client: Any, status: str) -> None:
        client.finish()


def _package() -> Any:
    return load_client("trackio", "TrackioLogger")


def _of_trackio(trackio: Any, media: Media) -> Any:
    if isinstance(media, Image):
        return trackio.Image(media.pixels.squeeze(2).numpy(), caption=media.caption or None)
    if isinstance(media, Table):
        return trackio.Table(columns=media.columns, data=media.rows)
    assert isinstance(media, Text), "the last of the kinds"
    return trackio.Markdown(media.text)
