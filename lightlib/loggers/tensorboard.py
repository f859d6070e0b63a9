"""TensorBoardLogger: scalars, hyperparameters, graph and all that a SummaryWriter can write."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import secrets
import warnings
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lightlib.accelerators.lookup import of
from lightlib.loggers import event_files, log_files
from lightlib.loggers.hyperparameters import flatten, plain
from lightlib.loggers.log_files import below
from lightlib.loggers.logger import ANOTHER_LOGGER, Logger, number, prefixed, rank_zero_experiment
from lightlib.loggers.media.events import summary_of
from lightlib.loggers.media.items import Media
from lightlib.loggers.version_logger import VersionLogger, check_inside
from lightlib.optional import missing
from lightlib.report import PossibleUserWarning, info, rank_zero_only, warn
from lightlib.tree import map_children

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.tensorboard import SummaryWriter


class EventFiles(VersionLogger, ABC):
    """Base of the TensorBoard loggers of the Trainer and of Fabric; see :class:`TensorBoardLogger`."""

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(save_dir, name, version, prefix)
        self._log_graph = log_graph
        self._default_hp_metric = default_hp_metric
        self._sub_dir = check_inside("sub_dir", os.fspath(sub_dir or ""))
        self._filename_suffix = kwargs.pop("filename_suffix", "")
        self._writer_arguments = kwargs
        self._logged_hparams = self._logged_graph = False
        self._experiment: SummaryWriter | None = None
        self._summary: Callable[[], Any]

    @property
    def sub_dir(self) -> str | None:
        """The directory of the event files, below that of the version."""
        return self._sub_dir or None

    @property
    def log_dir(self) -> str | None:
        """``save_dir/name/version_N/sub_dir``; None off rank zero while the version is not shared."""
        path = super().log_dir
        return below(path, self._sub_dir) if path else path

    @property
    def earlier_log_dirs(self) -> list[str]:
        """The directories of the versions that exist, the newest first; none when the version was given."""
        return [below(path, self._sub_dir) for path in super().earlier_log_dirs]

    @property
    @rank_zero_experiment
    def experiment(self) -> SummaryWriter:
        """The `SummaryWriter`, for images, histograms, text and the like. Opened at first use."""
        if self._experiment is None or self._experiment.file_writer is None:
            try:
                from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]  # optional: tensorboard
                from torch.utils.tensorboard import SummaryWriter  # optional: tensorboard
            except ImportError as error:
                raise missing("tensorboard", "TensorBoardLogger", otherwise=ANOTHER_LOGGER, error=error) from error
            path = self._make_directory(self.log_dir)
            self._summary = Summary
            if path is not None:
                event_files.wait_for_a_later_name(path)
            # SummaryWriter opens its files by name, so its name must not be predictable: a link could be there.
            suffix = f".{secrets.token_hex(4)}{self._filename_suffix}"
            # these arguments as they are: jsonargparse reads here which ones the command line may give
            self._experiment = SummaryWriter(path, filename_suffix=suffix, **self._writer_arguments)
        return self._experiment

    def prepare(self) -> None:
        _ = self.experiment
        self._settled = True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float | Mapping[str, float]], step: int | None = None) -> None:
        """Record scalars, all of one step as one event, which costs a third of one `add_scalar` each.

        A value that is a mapping becomes several curves in one diagram (`SummaryWriter.add_scalars`). Without `step`
        it is the step after the last one.
        """
        step = self._next_step if step is None else int(step)
        self._next_step = step + 1
        writer: Any = self.experiment
        summary = self._summary()
        for name, value in prefixed(metrics, self._prefix).items():
            if isinstance(value, Mapping):
                # add_scalars makes a directory of each curve's name
                curves = {_file_name(curve): number(f"{name}/{curve}", point) for curve, point in value.items()}
                writer.add_scalars(_file_name(name, slashes=True), curves, step)
            else:
                summary.value.add(tag=name, simple_value=value if type(value) is float else number(name, value))
        if summary.value:
            try:
                writer.file_writer.add_summary(summary, step)
            except OSError:  # the thread that writes the file has ended, as with a full disk: open a new file next time
                self._experiment = None
                raise

    @rank_zero_only
    def log_hyperparams(
        self, params: Any = None, metrics: Mapping[str, float] | float | None = None, step: int | None = None
    ) -> None:
        """Write ``hparams.yaml``, and the hyperparameters for TensorBoard's own page, with secrets masked.

        Args:
            params: A mapping, a dataclass or a Namespace, possibly nested.
            metrics: The metrics to show next to them; a number means ``{"hp_metric": number}``. TensorBoard keeps the
                names of the first call: to choose your own, set ``default_hp_metric=False``.
            step: The step of these metrics. Default: 0.

        Hyperparameters that this run, also before it was resumed, has logged are not logged again.
        """
        before = dict(self.hparams)
        self.hparams.update(plain(params))
        if metrics is None and self._logged_hparams and self.hparams == before:
            return
        self._write_hparams()
        self._logged_hparams = True
        if metrics is None:
            metrics = -1.0 if self._default_hp_metric else {}
        if not isinstance(metrics, Mapping):
            metrics = {"hp_metric": metrics}
        if metrics:
            from torch.utils.tensorboard.summary import hparams  # optional: tensorboard

            self.log_metrics(metrics, step or 0)
            writer: Any = self.experiment.file_writer
            for summary in hparams(flatten(self.hparams), dict(metrics)):  # type: ignore[no-untyped-call]
                writer.add_summary(summary)

    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | Any | None = None) -> None:
        """Record the graph of `model`, once, if ``log_graph=True``. A model that cannot be traced gives a warning.

        Args:
            model: The module. It is run once in eval mode, without gradients; random numbers are not used up.
            input_array: A tensor, a tuple of positional or a dict of keyword arguments of `forward`: all tensors, or
                lists and dicts of tensors. Default: ``model.example_input_array``.
        """
        if not self._log_graph or self._logged_graph:
            return
        inputs = getattr(model, "example_input_array", None) if input_array is None else input_array
        if inputs is None:
            warn(
                f"The graph of {type(model).__name__} is not logged: TensorBoardLogger(log_graph=True) needs an input. "
                "Set `self.example_input_array` in the module, or call log_graph(model, input_array).",
                PossibleUserWarning,
            )
            return
        strategy = getattr(getattr(model, "_trainer", None), "strategy", None)
        if strategy is not None and not strategy.runs_alone:
            warn(
                f"The graph of {type(model).__name__} is not logged: it is sharded over processes, and a forward would "
                "need all of them. Log it in a run of one process, or with strategy='ddp'.",
                PossibleUserWarning,
            )
            return
        try:
            with _quiet_trace(model) as device:
                self.experiment.add_graph(model, _arguments(model, inputs, device), use_strict_trace=False)
            self._logged_graph = True
        except Exception as error:  # noqa: BLE001 - it runs the user's forward, which may raise anything
            warn(
                f"The graph of {type(model).__name__} is not logged, because it cannot be traced: "
                f"{type(error).__name__}: {error}\n"
                "  Fix: TensorBoardLogger(log_graph=False), or a forward that `torch.jit.trace` accepts.",
                PossibleUserWarning,
            )

    @rank_zero_only
    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Record an item on TensorBoard's page of its kind; tables are text. PIL is not needed."""
        writer: Any = self.experiment
        writer.file_writer.add_summary(summary_of(name, media), self._step_of_media(step))

    @rank_zero_only
    def save(self) -> None:
        """Write the queue to disk, and an ``hparams.yaml`` if there is none yet."""
        if self._experiment is not None and self._experiment.file_writer is not None:
            self._experiment.flush()
            if not self._has_hparams:
                self._write_hparams(only_if_absent=True)

    @property
    def _hparams_dir(self) -> str | None:
        return self.log_dir if self._user_chose_log_dir else super().log_dir

    @property
    def _user_chose_log_dir(self) -> bool:
        return type(self).log_dir is not EventFiles.log_dir

    def state_dict(self) -> dict[str, Any]:
        if rank_zero_only.rank != 0 or self._known_version is None:
            return {}
        folder = self.log_dir
        assert folder is not None, "rank zero knows the version"
        sizes = event_files.sizes(folder)
        for name in sizes:
            log_files.flush(below(folder, name))
        return {
            **self._place(),
            "told": self._logged_hparams,
            "drawn": self._logged_graph,
            "files": sizes,
        }

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the version of the checkpoint, and drop the events that were written after it.

        If the event files are not those that the checkpoint describes, warn and leave them unchanged.
        """
        path = self._directory_in(state_dict)
        if path is None:
            return
        folder = (self.log_dir if self._user_chose_log_dir else None) or below(path, self._sub_dir)
        here, files = state_dict["root"] == self._place()["root"], state_dict["files"]
        is_same = event_files.begin_with(folder, files)
        if not is_same:
            warn(
                f"The event files in {folder!r} do not match the checkpoint: some are missing or shorter. "
                + ("They stay unchanged." if here else "The run logs to a new version.")
            )
        if not here and not is_same:
            return
        self.finalize("interrupted")  # it may have been opened before the run
        self._continue_in(state_dict)
        self._logged_hparams, self._logged_graph = state_dict["told"], state_dict["drawn"]
        if is_same:
            event_files.cut(folder, files)

    @rank_zero_only
    def start_anew(self) -> None:
        """Rename the event files of an earlier start; needed only when the version was given, so is the same."""
        folder = None if self._automatic or self._settled else self.log_dir
        if folder is not None and event_files.sizes(folder):
            info(f"No checkpoint was found, so the event files of an earlier start in {folder!r} are renamed.")
            self.finalize("interrupted")
            event_files.rename_all(folder)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the event file. When the logger is used again, it opens another one in the same directory."""
        if self._experiment is not None:
            writer, self._experiment = self._experiment, None
            writer.close()

    def __getstate__(self) -> dict[str, Any]:
        self.save()
        return {name: value for name, value in self.__dict__.items() if name != "_summary"} | {"_experiment": None}


class TensorBoardLogger(EventFiles, Logger):
    """Writes event files to ``save_dir/name/version_N``, for ``tensorboard --logdir save_dir``.

    A run that resumes from its checkpoint (``ckpt_path="last"`` or ``"auto"``) continues its version. Event files are
    truncated to their sizes at the checkpoint, because the run logs the later values again: TensorBoard shows each
    value once, as for an uninterrupted run.

    Args:
        save_dir: A path (``~`` is expanded), or a URL that tensorboard can write to.
        name: The directory of all versions; an empty string leaves this level out.
        version: A number n gives ``version_n``, a string is taken unchanged. Default: the next free number.
        log_graph: Whether to record the model's graph, traced with its `example_input_array`.
        default_hp_metric: Whether hyperparameters logged without metrics get the metric ``hp_metric`` = -1, without
            which TensorBoard's page of hyperparameters stays empty.
        prefix: Put before every metric's name, with a ``-``.
        sub_dir: A directory below that of the version, for the event files.
        **kwargs: For `torch.utils.tensorboard.SummaryWriter`: max_queue, flush_secs, filename_suffix, …

    Raises:
        MisconfigurationException: `name`, `version` or `sub_dir` leads out of `save_dir`; and, when the run starts,
            the package tensorboard is missing or the directory cannot be written.

    Example:
        >>> import tempfile, torch
        >>> logger = TensorBoardLogger(tempfile.mkdtemp(), name="digits")
        >>> logger.log_metrics({"train/loss": 0.5, "train/accuracy": 0.75}, step=0)
        >>> logger.experiment.add_image("input", torch.rand(1, 8, 8), 0)
        >>> logger.finalize("success")
    """


def _file_name(name: str, slashes: bool = False) -> str:
    """Return `name` without path separators; `slashes` stay where torch replaces them itself."""
    name = name.replace("\\", "_")
    return name if slashes else name.replace("/", "_")


@contextlib.contextmanager
def _quiet_trace(model: nn.Module) -> Iterator[torch.device]:
    """Yield the model's device, and keep the modes, random numbers and standard output as they are.

    The tracer prints errors, and sets all submodules to the mode of the model, even frozen ones.
    """
    modes = {part: part.training for part in model.modules()}
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    with (
        of(device).fork_rng(device),
        torch.no_grad(),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            yield device
        finally:
            for part, training in modes.items():
                part.training = training


def _arguments(model: nn.Module, inputs: Any, device: torch.device) -> Any:
    """Return `inputs` on `device`, those given by keyword as positional ones, which the tracer takes."""
    if isinstance(inputs, Mapping):
        bound = inspect.signature(model.forward).bind(**inputs)
        if bound.kwargs:
            raise TypeError(f"the tracer cannot give {', '.join(bound.kwargs)} to forward by position")
        inputs = bound.args
    return _moved(inputs, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):  # the tracer takes only dicts
        return {key: _moved(item, device) for key, item in value.items()}
    return map_children(lambda item: _moved(item, device), value)
