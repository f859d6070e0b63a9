"""FabricLogger: the interface that Fabric needs, and the base of all loggers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightlib.report import described

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lightlib.loggers.media.items import Media


class FabricLogger(ABC):
    """A logger for Fabric. It defines `name`, `version`, `log_metrics` and `log_hyperparams`.

    A loop with Fabric calls the logger itself, so nothing here belongs to a run: the directories, versions and
    checkpoints of a Trainer's runs are in :class:`lightlib.loggers.Logger`, which derives from this class. Every logger
    of the Trainer therefore works with Fabric, and one that derives from this class alone is refused by the Trainer.

    Example:
        >>> import lightlib
        >>> class Print(FabricLogger):
        ...     name, version = "print", 0
        ...     def log_metrics(self, metrics, step=None):
        ...         print(step, dict(metrics))
        ...     def log_hyperparams(self, params, *args, **kwargs):
        ...         print(params)
        >>> lightlib.Fabric(accelerator="cpu", loggers=Print()).log("loss", 0.5, step=3)
        3 {'loss': 0.5}
    """

    def __repr__(self) -> str:
        return described(self)

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name of the experiment, which groups several runs."""

    @property
    @abstractmethod
    def version(self) -> int | str | None:
        """The number or name of this run; None while it is unknown in this process."""

    @property
    def root_dir(self) -> str | None:
        """The directory of all versions of one experiment; None when the logger writes no files."""
        return None

    @property
    def log_dir(self) -> str | None:
        """The directory of this run; None when the logger writes no files."""
        return None

    @property
    def group_separator(self) -> str:
        """The separator in metric names, as in ``val/loss``."""
        return "/"

    @property
    def experiment(self) -> Any:
        """The client library's object, for features that this class does not have; None when there is none."""
        return None

    @abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers.

        Args:
            metrics: Name to number.
            step: The optimizer step they belong to. None leaves the choice to the logger.
        """

    @abstractmethod
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Record the hyperparameters: a mapping, a dataclass or a Namespace, possibly nested."""

    def log_graph(self, model: nn.Module, input_array: Tensor | Any | None = None) -> None:
        """Record the model's graph, where the logger can show one."""

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """The kinds of media that `log_media` records; none by default."""
        return ()

    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Record an image, a figure, a histogram, a text, a table or audio, if it is one of `media_kinds`.

        Args:
            name: Its name, as ``val/examples``.
            media: The item, one of `lightlib.loggers.media`.
            step: The optimizer step it belongs to. None leaves the choice to the logger.
        """

    def save(self) -> None:
        """Flush values that are still in memory."""

    def finalize(self, status: str) -> None:
        """Write everything: the run ends. The Trainer calls it, a loop with Fabric calls it itself.

        Args:
            status: ``"success"``; ``"failed"`` after an exception, also one in the teardown; or ``"interrupted"`` when
                Ctrl-C or a signal stopped the run.
        """
        self.save()
