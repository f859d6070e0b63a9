"""IdentifiedService: base of loggers of services that give each run an id when it is opened."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

from lightlib.loggers.checkpoint_files import runs_with_checkpoints
from lightlib.loggers.log_files import below
from lightlib.loggers.services.service_logger import ServiceLogger
from lightlib.report import rank_zero_only


class IdentifiedService(ServiceLogger, ABC):
    """A service that gives each run an id once the client is open, which may be after training has begun.

    A subclass sets `_run_id` in `_open`, and continues the run with that id if there is one. The id is in the state of
    the logger, so a resumed training continues the same run.

    Args:
        run_id: The run that the user has chosen to continue. None: a new one.
        prefix: Put before every metric's name, with a ``-``.
    """

    def __init__(self, run_id: str | None, prefix: str = "") -> None:
        super().__init__(prefix)
        self._run_id, self._is_chosen = run_id, run_id is not None
        self._shared_id: str | None = None
        self._is_shared = False

    @property
    def version(self) -> str | None:
        """The id of the run; None before it exists, and during a run that began before the service answered."""
        return self._shared_id if self._is_shared else self._run_id

    def earlier_run_dirs(self, root: str) -> list[str]:
        """Return the folders of the runs below `name` on this machine; none when the user chose a run."""
        return [] if self._is_chosen else runs_with_checkpoints(below(self.save_dir or root, self.name or ""))

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        self._shared_id, self._is_shared = broadcast(self._run_id), True  # the same on all ranks, to the end

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id} if self._run_id is not None else {}

    @rank_zero_only
    def prepare(self) -> None:
        """Check that the package is installed, and begin to open the run."""
        self._is_shared = False
        super().prepare()

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run of the checkpoint, unless the user chose one."""
        if not self._is_chosen:
            self._run_id = state_dict["run_id"]
