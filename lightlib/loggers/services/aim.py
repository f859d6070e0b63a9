"""AimLogger: a run of Aim, in a folder of this machine or on a server."""

from __future__ import annotations

import io
import os
from typing import Any

from lightlib.loggers.logger import load_client
from lightlib.loggers.media.items import Audio, Figure, Histogram, Image, Media, Text
from lightlib.loggers.services.identified_service import IdentifiedService
from lightlib.report import described


class AimLogger(IdentifiedService):
    """Logs to Aim. Needs ``pip install aim``; the package is imported at first use.

    By default the values are in the folder ``.aim``, which ``aim up`` displays. Aim is called in the background: a slow
    or unreachable server is reported once, and training continues. Aim's own records of the machine, the environment
    and the terminal are off; `kwargs` switch them on. A training that resumes from its checkpoint
    (``ckpt_path="last"`` or ``"auto"``) continues the same run, and values that are logged again replace those of the
    same step.

    Args:
        repo: The folder that has or gets ``.aim``, or the address of a server (``aim://…``). Default: Aim's, which is
            ``AIM_REPO`` or the working folder.
        experiment: Groups runs. Default: ``"lightning_logs"``.
        run_name: Shown for the run. Default: Aim's.
        run_hash: A run to continue. Default: a new one.
        prefix: Put before every metric's name, with a ``-``.
        **kwargs: For `aim.Run`: system_tracking_interval, log_system_params, capture_terminal_logs.

    Raises:
        MisconfigurationException: When the run starts, and aim is missing.

    Example:
        >>> AimLogger(repo="results", experiment="digits").name
        'digits'
    """

    def __init__(
        self,
        repo: str | os.PathLike[str] | None = None,
        experiment: str = "lightning_logs",
        run_name: str | None = None,
        run_hash: str | None = None,
        prefix: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(run_hash, prefix)
        self._repo = None if repo is None else os.path.expanduser(os.fspath(repo))
        self._experiment_name, self._run_name, self._options = experiment, run_name, kwargs

    def __repr__(self) -> str:
        return described(self, repo=self._repo, experiment=self._experiment_name, run_hash=self._run_id)

    @property
    def name(self) -> str:
        """The experiment."""
        return self._experiment_name

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """All but tables."""
        return (Audio, Figure, Histogram, Image, Text)

    def _check(self) -> None:
        _package()

    def _open(self) -> Any:
        quiet = {"system_tracking_interval": None, "capture_terminal_logs": False, "log_system_params": False}
        options = {"force_resume": self._run_id is not None, **quiet, **self._options}
        run = _package().Run(self._run_id, repo=self._repo, experiment=self._experiment_name, **options)
        if self._run_name is not None:
            run.name = self._run_name
        self._run_id = run.hash
        return run

    def _metrics(self, client: Any, metrics: dict[str, float], step: int | None) -> None:
        for name, value in metrics.items():
            client.track(value, name=name, step=step)

    def _hyperparameters(self, client: Any, params: dict[str, Any]) -> None:
        for name, value in params.items():
            client.set(("hparams", name), value, strict=False)

    def _media(self, client: Any, name: str, media: Media, step: int | None) -> None:
        client.track(_of_aim(_package(), media), name=name, step=step)

    def _close(self, client: Any, status: str) -> None:
        if status == "success":
            client.report_successful_finish()
        client.close()


def _package() -> Any:
    return load_client("aim", "AimLogger")


def _of_aim(aim: Any, media: Media) -> Any:
    if isinstance(media, (Image, Figure)):
        import PIL.Image  # optional: pillow, which aim requires

        return aim.Image(PIL.Image.open(io.BytesIO(media.encoded())), caption=media.caption)
    if isinstance(media, Histogram):
        return aim.Distribution(hist=media.counts, bin_range=(media.edges[0], media.edges[-1]))
    if isinstance(media, Audio):
        return aim.Audio(media.encoded(), format="wav")
    assert isinstance(media, Text), "the last of the kinds"
    return aim.Text(media.text)
