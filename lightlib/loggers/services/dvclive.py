"""DVCLiveLogger: metrics and parameters in a folder that DVC and its Studio read."""

from __future__ import annotations

import os
from typing import Any

from lightlib.loggers import log_files
from lightlib.loggers.log_files import below
from lightlib.loggers.logger import load_client
from lightlib.loggers.media.items import Image, Media
from lightlib.loggers.services.service_logger import ServiceLogger
from lightlib.report import described, rank_zero_only


class DVCLiveLogger(ServiceLogger):
    """Logs by DVCLive. Needs ``pip install dvclive``; the package is imported at first use.

    The values are files in `dir`: ``plots/metrics/<name>.tsv``, ``metrics.json`` and ``params.yaml``. DVCLive is called
    in the background, because it may send them to DVC Studio. A training that resumes from its checkpoint
    (``ckpt_path="last"`` or ``"auto"``) continues the same folder: values that were logged after the checkpoint are
    removed, because the run logs them again.

    Args:
        run_name: The name of the experiment in DVC. Default: DVC's.
        prefix: Put before every metric's name, with a ``-``.
        dir: The folder. Default: ``"dvclive"``.
        resume: Whether to continue what an earlier run has left in the folder, which is removed otherwise. Default:
            False.
        **kwargs: For `dvclive.Live`: save_dvc_exp, dvcyaml, report, monitor_system, …

    Raises:
        MisconfigurationException: When the run starts, and dvclive is missing.

    Example:
        >>> DVCLiveLogger(dir="results/first", save_dvc_exp=False).log_dir
        'results/first'
    """

    def __init__(
        self,
        run_name: str | None = None,
        prefix: str = "",
        dir: str | os.PathLike[str] | None = None,  # noqa: A002 - the client's name
        resume: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(prefix)
        self._run_name, self._resume, self._options = run_name, resume, kwargs
        self._folder = os.path.expanduser(os.fspath(dir or "dvclive"))
        self._sizes: dict[str, int] | None = None  # of the files, at the checkpoint

    def __repr__(self) -> str:
        return described(self, run_name=self._run_name, dir=self._folder)

    @property
    def name(self) -> str:
        """``"DvcLive"``, as in DVCLive's own logger."""
        return "DvcLive"

    @property
    def version(self) -> str:
        """The name of the experiment; an empty string if none was given."""
        return self._run_name or ""

    @property
    def save_dir(self) -> str:
        """The folder of the values."""
        return self._folder

    @property
    def log_dir(self) -> str:
        """The folder of the values."""
        return self._folder

    @property
    def earlier_log_dirs(self) -> list[str]:
        """The folder, if a run has left its values there."""
        return [self._folder] if os.path.isdir(self._folder) else []

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """Images, which are numbered by their step."""
        return (Image,)

    @rank_zero_only
    def save(self) -> None:
        """Wait up to a second for values that are not written yet."""
        self.wait(1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the sizes of the files."""
        return {"sizes": self._present()} if self._client is not None else {}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the folder of the checkpoint, and drop the values that were written after it."""
        self._resume = True
        for name, size in self._present().items():
            path = below(self._folder, name)
            saved_size = state_dict["sizes"].get(name)
            if saved_size is None:
                log_files.remove(path)
            elif size > saved_size:
                log_files.cut(path, saved_size)

    def _present(self) -> dict[str, int]:
        """Return the size of each file of values, which grow by lines."""
        present = [
            os.path.relpath(os.path.join(folder, name), self._folder)
            for folder, _, names in os.walk(below(self._folder, "plots", "metrics"))
            for name in names
            if name.endswith(".tsv")
        ]
        return {name: log_files.size_of(below(self._folder, name)) or 0 for name in present}

    def _check(self) -> None:
        _package()

    def _open(self) -> Any:
        options = {"exp_name": self._run_name, **self._options}
        live = _package().Live(dir=self._folder, resume=self._resume, **options)
        self._resume = True  # if it is opened again, for a test after the fit
        return live

    def _metrics(self, client: Any, metrics: dict[str, float], step: int | None) -> None:
        client.step = client.step + 1 if step is None else step
        for name, value in metrics.items():
            client.log_metric(name, value)
        client.make_summary()

    def _hyperparameters(self, client: Any, params: dict[str, Any]) -> None:
        if params:
            client.log_params(params)

    def _media(self, client: Any, name: str, media: Media, step: int | None) -> None:
        assert isinstance(media, Image), "the only kind"
        client.log_image(f"{name}/{step or 0:08d}.png", media.pixels.squeeze(2).numpy())

    def _close(self, client: Any, status: str) -> None:
        client.end()


def _package() -> Any:
    return load_client("dvclive", "DVCLiveLogger")
