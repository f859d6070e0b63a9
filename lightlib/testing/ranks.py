"""RanksKit: checks that all ranks of a world run together, compared with one device."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightlib.callbacks.callback import Callback
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.launch.start.process_errors import ProcessFailedError
from lightlib.launch.start.spawn import launch_function
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies.strategy import Strategy
from lightlib.testing.kit import Kit, worst_weight
from lightlib.testing.module import BATCH, BoringModule, samples
from lightlib.testing.plain import PlainLoop


@dataclass(kw_only=True)
class RanksKit(Kit):
    """A kit of checks that all ranks of a world run together; a check yields its findings.

    Attributes:
        make_module: Returns a new module.
        tolerance: Maximum relative error of a weight; ten times as much for any other number.
        options: Arguments of each Trainer.
        group: A strategy with the process group of all ranks.
        loss_fix: How to fix a wrong loss.
        norm_fix: How to fix a wrong norm of the gradients.
    """

    make_module: Callable[[], Module]
    tolerance: float
    options: dict[str, Any]
    group: Strategy = field(init=False)
    loss_fix: ClassVar[str]
    norm_fix: ClassVar[str]

    def first_strategy(self) -> Any:
        """Return a strategy that makes the process group."""
        return "ddp"

    def on_ranks(self, names: Iterable[str], rank: int = 0) -> None:
        """Run checks in turn, in a folder that all ranks share."""
        first = Trainer(**{**self.options, "strategy": self.first_strategy()})
        first.validate(BoringModule(), DataLoader(samples(BATCH), 1), verbose=False)  # now the process group exists
        self.group = first.strategy
        with tempfile.TemporaryDirectory(prefix="lightlib-", ignore_cleanup_errors=True) as folder:
            self.folder = Path(self.group.broadcast(folder))
            for self.check in names:
                self.on_each_rank(getattr(self, f"test_{self.check}"))

    def on_each_rank(self, test: Callable[[], Iterable[str]]) -> None:
        """Run one check; raise the findings of all ranks."""
        findings: list[str] = []
        cause: Exception | None = None
        try:
            findings.extend(test())
        except Exception as error:  # noqa: BLE001  raised below, on every rank
            problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            findings = [self.unmet(problem, f"correct the method of the {self.kind} that raised.")]
            cause = error
        every = self.group.collectives.all_gather_object((isinstance(cause, OtherRankError), findings))
        first = min((echo for echo, texts in every if texts), default=None)  # echoes of another rank are left out
        texts = dict.fromkeys(text for echo, texts in every if echo == first for text in texts)
        if texts:
            raise AssertionError("\n".join(texts)) from cause

    def seeded(self, seed: int = 1) -> Any:
        """Return a module with the same first values at each call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make_module()

    def plain(self, module: Module | None = None, epochs: int = 2, **options: Any) -> PlainLoop:
        """Train a module in the reference loop."""
        module = module or self.seeded()
        return PlainLoop(module, list(module.train_dataloader()), epochs, **options)

    def trained(
        self,
        strategy: Any,
        readers: int,
        module: Module | None = None,
        ckpt_path: Any = None,
        callbacks: Sequence[Callback] = (),
        **options: Any,
    ) -> Trainer:
        """Train a module; each of the readers gets its shard of each batch of one device."""
        module, fixed = module or self.seeded(), {"strategy": strategy, "callbacks": [_Recorder(), *callbacks]}
        trainer = Trainer(**{"max_epochs": 2, **options, **fixed})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The checkpoint was written by")  # another strategy, on purpose
            changes = None if ckpt_path is None else {"changes": "ignore"}
            trainer.fit(module, shard_of(module, readers), ckpt_path=ckpt_path, resume=changes)
        return trainer

    def compared(self, trainer: Trainer, wanted: PlainLoop) -> Iterator[str]:
        """Yield the first loss and the first norm of a run that differ from those of a plain loop, and a weight."""
        recorder = next(callback for callback in trainer.callbacks if isinstance(callback, _Recorder))
        losses = [each for each in self.group.collectives.all_gather_object(recorder.losses) if each]
        means = [fmean(ranks) for ranks in zip(*losses, strict=True)]
        findings = self.numbers("the loss of batch", means, wanted.losses, self.loss_fix)
        if trainer.gradient_clip_val is not None:
            findings += self.numbers("the norm of the gradients of step", recorder.norms, wanted.norms, self.norm_fix)
        yield from (text for _, text in sorted(findings))
        yield from self.weights(trainer, wanted)

    def fitted_twice(self, train: Callable[..., Trainer]) -> Iterator[str]:
        """Train a module for an epoch, and again with the same Trainer; yield the difference of its weights."""
        alone, module = self.seeded(), self.seeded()
        self.plain(alone, epochs=1)
        trainer = train(module=module, max_epochs=1)
        trainer.max_epochs = 2
        trainer.fit(module, shard_of(module, trainer.strategy.data_size))
        yield from self.weights(trainer, self.plain(alone, epochs=1), "a second fit")

    def numbers(self, what: str, found: Sequence[float], wanted: Sequence[float], fix: str) -> list[tuple[int, str]]:
        """Return the first difference of losses or norms from those of one device, with its index."""
        pairs = enumerate(zip([*found, *[None] * len(wanted)], wanted, strict=False))
        findings = ((index, text) for index, pair in pairs for text in self.number(f"{what} {index}", *pair, fix))
        return list(islice(findings, 1))

    def number(self, what: str, found: Any, wanted: float, fix: str) -> list[str]:
        """Return the difference of a number from that of one device."""
        if found is not None and abs(float(found) - wanted) <= 10 * self.tolerance * abs(wanted):
            return []
        return [self.unmet(f"{what} is {found}, and {wanted:.8g} on one device.", fix)]

    def weights(self, trainer: Trainer, wanted: PlainLoop, after: str = "training") -> Iterator[str]:
        """Yield the difference of the weights of a run from those of one device, on rank 0."""
        yield from self.differences(trainer.strategy.module_state(), wanted.weights, after)

    def differences(self, state: Mapping[str, Any], wanted: Mapping[str, Tensor], after: str) -> Iterator[str]:
        """Yield the difference of weights from those of one device, on rank 0."""
        error, worst = worst_weight(state, wanted)
        if self.group.is_global_zero and state.keys() != wanted.keys():
            yield self.renamed(list(state), list(wanted), f"the weights after {after}")
        elif self.group.is_global_zero and error > self.tolerance:
            problem = (
                f"the weight {worst!r} is off by {error:.1e} of its size after {after}, more than {self.tolerance:g}."
            )
            yield self.unmet(problem, "compare the gradient of this weight on each process with that of one device.")

    def renamed(self, names: list[str], wanted: list[str], what: str) -> str:
        """Return the finding for other names of parameters."""
        missing = [name for name in wanted if name not in names]
        new = [name for name in names if name not in wanted]
        return self.unmet(
            f"{what} have other names: missing {missing}, new {new}.",
            "change modules in place instead of wrapping them: checkpoints fit any number of processes.",
        )


class _Recorder(Callback):
    """Records the loss of each batch and the norm of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self.losses.append(float(loss))
        if trainer.gradient_norm is not None and len(self.norms) < trainer.global_step:
            self.norms.append(float(trainer.gradient_norm))


def shard_of(module: Module, readers: int) -> DataLoader[Any]:
    """Return a loader of a module's samples; the batches of that many ranks are a batch of the module's loader."""
    loader: DataLoader[Any] = module.train_dataloader()
    assert loader.batch_size is not None
    return DataLoader(loader.dataset, max(1, loader.batch_size // readers), collate_fn=loader.collate_fn)


def in_processes(run: Callable[[int], None], processes: int, method: str) -> None:
    """Call `run` in new processes; the failure of a check in any of them is raised here."""
    try:
        launch_function(run, processes, method)
    except ProcessFailedError as error:
        if not isinstance(error.__cause__, AssertionError):
            raise
        raise AssertionError(str(error.__cause__)) from error
