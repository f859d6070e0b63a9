"""Profiler: the interface for measuring named actions and writing a summary."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightlib import report, safe_files
from lightlib.errors import MisconfigurationException, nearest

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts on which a recommendation to train faster depends.

    Attributes:
        device: The type of the device: ``"cpu"``, ``"cuda"``, ``"mps"``.
        cores: CPU cores that each process may use.
        num_workers: Of the training loader; the smallest if there are several, None if it has no such attribute.
        pin_memory: Whether all training loaders use pinned memory; None if they have no such attribute.
        batch_size: Of the training loader, None if unknown.
        log_every_n_steps: The Trainer's setting.
        async_save: Whether checkpoints are written in the background.
        fused: Whether an optimizer steps with one fused kernel; None if none can.
    """

    device: str = "cpu"
    cores: int = 1
    num_workers: int | None = None
    pin_memory: bool | None = None
    batch_size: int | None = None
    log_every_n_steps: int = 50
    async_save: bool = False
    fused: bool | None = None


class Profiler(ABC):
    """Base of all profilers: `start` and `stop` mark where an action begins and ends, `summary` returns the result.

    The trainer measures its hooks and steps under names such as ``[LightningModule]Net.training_step``,
    ``[LightningDataModule]Data.prepare_data``, ``[Callback]ModelCheckpoint.on_train_end``,
    ``[Strategy]SingleDeviceStrategy.backward`` and ``run_training_batch``; your own code uses :meth:`profile`.

    Args:
        dirpath: The folder of the files; the trainer's `log_dir` when it is None.
        filename: The start of the files' names. Without `dirpath` and `filename` the summary is shown and not written.

    Example:
        >>> class Names(Profiler):
        ...     def start(self, action_name):
        ...         print(f"{action_name} begins")
        ...     def stop(self, action_name):
        ...         print(f"{action_name} ends")
        >>> with Names().profile("loading"):
        ...     pass
        loading begins
        loading ends
    """

    default_filename: str = "profile"

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None) -> None:
        super().__init__()
        self.dirpath = dirpath
        self.filename = filename
        self.stage: str | None = None
        self._local_rank: int | None = None
        self._log_dir: str | None = None

    @property
    def dirpath(self) -> str | os.PathLike[str] | None:
        """The folder of the files, as it was given; from `setup` on the trainer's `log_dir`, when none was given."""
        return self._log_dir if self._dirpath is None else self._dirpath

    @dirpath.setter
    def dirpath(self, dirpath: str | os.PathLike[str] | None) -> None:
        self._dirpath = dirpath

    @property
    def local_rank(self) -> int:
        """The rank of this process on its machine."""
        return self._local_rank or 0

    @abstractmethod
    def start(self, action_name: str) -> None:
        """Start measuring an action."""

    @abstractmethod
    def stop(self, action_name: str) -> None:
        """Stop measuring an action."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Measure the `with` block as an action."""
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)

    def summary(self) -> str:
        """Return the measurements as text; an empty string when there are none."""
        return ""

    def watch(self, module: nn.Module) -> None:
        """Receive the module that will be trained; called before `setup`."""

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Prepare for a run.

        Args:
            stage: ``fit``, ``validate``, ``test`` or ``predict``.
            local_rank: The rank of this process on its machine; None if it is the only process of the run.
            log_dir: The folder of the run's logs.
        """
        self.stage, self._local_rank, self._log_dir = stage, local_rank, log_dir

    def inspect(self, facts: RunFacts) -> None:
        """Receive facts about the run; called once before `describe`."""

    def note_failure(self, error: BaseException) -> None:
        """Receive the error that ends the run, before `teardown`."""

    def teardown(self, stage: str | None) -> None:
        """Release everything at the end of a run, also after an exception."""

    def describe(self) -> None:
        """Write the summary into a file per rank, or print it on rank zero."""
        text = self.summary()
        if not text:
            return
        if self._dirpath is None and self.filename is None:
            report.info(text)
            return
        path = self.path(".txt")
        safe_files.replace(path, text.encode())
        report.info(f"The profile was written to {path}")

    def path(self, suffix: str) -> Path:
        """Return ``<dirpath>/<stage>-<filename>-<rank><suffix>``; the folder exists afterwards.

        A run of one process has no rank in its names.
        """
        return self._file("-".join(self._name_parts(self.filename or self.default_filename)) + suffix)

    def path_of(self, action_name: str, suffix: str) -> Path:
        """Return ``<dirpath>/<stage>-<filename>-<rank>-<action><suffix>``; `filename` only if it was given."""
        name = "-".join(self._name_parts(self.filename, action_name)) + suffix
        return self._file(re.sub(r"_+", "_", re.sub(r'[\\/:*?"<>|\n\r\t]', "_", name)))

    def _name_parts(self, filename: str | None, *more: str) -> list[str]:
        several = self._local_rank is not None or report.rank_zero_only.rank
        rank = str(report.rank_zero_only.rank or self.local_rank) if several else None
        return [word for word in (self.stage, filename, rank, *more) if word]

    def _file(self, name: str) -> Path:
        folder = Path(self.dirpath or "")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name


class PassThroughProfiler(Profiler):
    """Measures nothing; the default of the Trainer.

    Example:
        >>> with PassThroughProfiler().profile("nothing"):
        ...     pass
    """

    def start(self, action_name: str) -> None:
        pass

    def stop(self, action_name: str) -> None:
        pass


def started_twice(action_name: str) -> MisconfigurationException:
    """Return the error of an action that is started while it runs."""
    return MisconfigurationException(
        f"The action {action_name!r} was started while it was already running.",
        expected="one stop for every start before the next start of the same name.",
        fix=f"with profiler.profile({action_name!r}): ..., or another name for the inner action.",
    )


def not_started(action_name: str, running: Collection[str]) -> MisconfigurationException:
    """Return the error of an action that is stopped but does not run."""
    return MisconfigurationException(
        f"The action {action_name!r} was stopped but is not running.{nearest(action_name, running)}",
        expected=f"one of the running actions: {', '.join(map(repr, running)) or 'there is none'}.",
        fix=f"with profiler.profile({action_name!r}): ..., or profiler.start({action_name!r}) first.",
    )
