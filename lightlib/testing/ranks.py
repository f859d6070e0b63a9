"""RanksKit: checks that all ranks of a world run together, compared with one device."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.launch.start.process_errors import ProcessFailedError
from lightlib.launch.start.spawn import launch_function
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies.strategy import Strategy
from lightlib.testing.kit import Kit
from lightlib.testing.module import BATCH, BoringModule, samples
from lightlib.testing.plain import PlainLoop


class RanksKit(Kit):
    """A kit that every rank makes once, for all checks; a check yields its findings.

    Args:
        make: The user's function, which returns a new plugin.
        make_module: Returns a new module.
        tolerance: Maximum relative error of a weight.
        first: A Trainer of the world.
        stack: Its contexts are left after the last check.

    Attributes:
        group: A strategy with the process group of all ranks.
        folder: The same on all ranks.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        make_module: Callable[[], Module],
        tolerance: float,
        first: Trainer,
        stack: ExitStack,
    ) -> None:
        first.validate(BoringModule(), DataLoader(samples(BATCH), 1), verbose=False)  # now the process group exists
        super().__init__("", make, stack.enter_context(_shared_folder(first.strategy)), stack)
        self.make_module, self.tolerance, self.group = make_module, tolerance, first.strategy

    def on_ranks(self, names: Sequence[str]) -> None:
        """Run checks in turn; raise the findings of all ranks on each of them."""
        for name in names:
            self.check, cause = name, None
            try:
                findings = [(False, text) for text in getattr(self, f"test_{name}")()]
            except Exception as error:  # noqa: BLE001  `raised` decides about it
                findings, cause = [(isinstance(error, OtherRankError), self.raised(error))], error
            every = [finding for rank in self.group.collectives.all_gather_object(findings) for finding in rank]
            if every:  # those that follow from another rank's come last
                texts = dict.fromkeys(text for _, text in sorted(every, key=lambda finding: finding[0]))
                raise AssertionError(self.joined(list(texts))) from cause

    @abstractmethod
    def joined(self, findings: Sequence[str]) -> str:
        """Return the message for the different findings of all ranks."""

    def raised(self, error: Exception) -> str:
        """Return the finding for an exception of a check; by default the exception is raised."""
        raise error

    def seeded(self, seed: int = 1) -> Any:
        """Return a module with the same first values at each call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make_module()

    def plain(self, module: Module | None = None, epochs: int = 2, **options: Any) -> PlainLoop:
        """Train a module in the reference loop."""
        module = module or self.seeded()
        return PlainLoop(module, list(module.train_dataloader()), epochs, **options)


def in_processes(run: Callable[[], None], processes: int, method: str) -> None:
    """Call `run` in new processes; the failure of a check in any of them is raised here."""
    try:
        launch_function(partial(_on_rank, run), processes, method)
    except ProcessFailedError as error:
        if not isinstance(error.__cause__, AssertionError):
            raise
        raise AssertionError(str(error.__cause__)) from error


def _on_rank(run: Callable[[], None], rank: int) -> None:  # noqa: ARG001  what a launched function gets
    torch.set_num_threads(1)
    run()


@contextmanager
def _shared_folder(strategy: Strategy) -> Iterator[Path]:
    """Yield a temporary folder, the same on all ranks."""
    made = Path(tempfile.mkdtemp(prefix="lightlib-")) if strategy.is_global_zero else None
    try:
        yield strategy.broadcast(made)  # type: ignore[misc]  # rank zero made one
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
