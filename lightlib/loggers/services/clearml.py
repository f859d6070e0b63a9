"""ClearMLLogger: a task of ClearML."""

from __future__ import annotations

import io
from typing import Any

from lightlib.loggers.logger import load_client
from lightlib.loggers.media.items import Audio, Figure, Histogram, Image, Media, Table, Text
from lightlib.loggers.services.identified_service import IdentifiedService
from lightlib.report import described


class ClearMLLogger(IdentifiedService):
    """Logs to ClearML. Needs ``pip install clearml``; the package is imported at first use.

    The service is called in the background: a slow or unreachable one is reported once, and training continues. A
    metric ``train/loss`` is the series ``loss`` of the plot ``train``. ClearML's own records of arguments of the
    command line, models and output are off; `kwargs` switch them on. A training that resumes from its checkpoint
    (``ckpt_path="last"`` or ``"auto"``) continues the same task. Values logged after the checkpoint are sent again.

    The search of clearml 2.1.12 for a repository sometimes hangs in a thread of its own; then the task is not closed.
    ``auto_connect_frameworks={"detect_repository": False}`` switches it off.

    Args:
        project_name: The project. Default: ``"lightning_logs"``.
        task_name: The name of the task. Default: ``"lightlib"``.
        task_id: A task to continue.
        offline: Whether to write to a local folder only, which `clearml.Task.import_offline_session` uploads later; a
            switch of the process. Default: False.
        prefix: Put before every metric's name, with a ``-``.
        **kwargs: For `clearml.Task.init`: tags, output_uri, auto_connect_frameworks, …

    Raises:
        MisconfigurationException: When the run starts, and clearml is missing.

    Example:
        >>> ClearMLLogger(project_name="digits", offline=True).name
        'digits'
    """

    def __init__(
        self,
        project_name: str = "lightning_logs",
        task_name: str = "lightlib",
        task_id: str | None = None,
        offline: bool = False,
        prefix: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(task_id, prefix)
        self._project, self._task_name, self._offline, self._options = project_name, task_name, offline, kwargs

    def __repr__(self) -> str:
        return described(self, project_name=self._project, task_name=self._task_name, task_id=self._run_id)

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """All of them."""
        return (Media,)

    def _check(self) -> None:
        _package()

    def _open(self) -> Any:
        task = _package().Task
        if self._offline:
            task.set_offline(True)
        quiet = dict.fromkeys(
            ("auto_connect_arg_parser", "auto_connect_frameworks", "auto_resource_monitoring", "auto_connect_streams"),
            False,
        )
        opened = task.init(
            project_name=self._project,
            task_name=self._task_name,
            **{"continue_last_task": self._run_id or False, "reuse_last_task_id": False, **quiet, **self._options},
        )
        if self._run_id is not None:
            opened.set_initial_iteration(0)  # steps are counted by the run, also after a resume
        self._run_id = opened.id
        return opened

    def _metrics(self, client: Any, metrics: dict[str, float], step: int | None) -> None:
        logger = client.get_logger()
        for name, value in metrics.items():
            logger.report_scalar(*_title(name), value=value, iteration=step or 0)

    def _hyperparameters(self, client: Any, params: dict[str, Any]) -> None:
        client.connect(params, name="hyperparameters")

    def _media(self, client: Any, name: str, media: Media, step: int | None) -> None:
        logger, (title, series) = client.get_logger(), _title(name)
        if isinstance(media, Image):
            logger.report_image(title, series, iteration=step, image=media.pixels.squeeze(2).numpy())
        elif isinstance(media, (Figure, Audio)):
            stream = io.BytesIO(media.encoded())
            logger.report_media(title, series, iteration=step, stream=stream, file_extension=media.extension)
        elif isinstance(media, Histogram):
            labels = [f"{edge:.4g}" for edge in media.edges[:-1]]
            logger.report_histogram(title, series, iteration=step, values=media.counts, xlabels=labels)
        elif isinstance(media, Table):
            rows = [media.columns, *([str(value) for value in row] for row in media.rows)]
            logger.report_table(title, series, iteration=step, table_plot=rows)
        else:
            assert isinstance(media, Text), "the last of the kinds"
            logger.report_text(f"{name}: {media.text}", print_console=False)

    def _close(self, client: Any, status: str) -> None:
        if status == "failed":
            client.mark_failed(status_reason="the run has failed")
        client.close()


def _title(name: str) -> tuple[str, str]:
    """Return the plot and the series of a name.

    Example:
        >>> _title("val/loss"), _title("epoch")
        (('val', 'loss'), ('epoch', 'epoch'))
    """
    title, _, series = name.rpartition("/")
    return title or series, series


def _package() -> Any:
    return load_client("clearml", "ClearMLLogger")
