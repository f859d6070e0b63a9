"""check_strategy: the tests that every strategy has to pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import LightlibError
from lightlib.launch.environment.detect import Environment
from lightlib.launch.start.spawn import launch_function
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies.strategy import Strategy
from lightlib.testing.kit import SavesOnce, relative_error, selected
from lightlib.testing.module import BATCH, EVALUATED, QUIET, SAMPLES, BoringModule, samples
from lightlib.testing.ranks import RanksKit, in_processes, shard_of

_TEXT = "a step that fails"


def check_strategy(
    make: Callable[[], Strategy],
    processes: int = 1,
    *,
    without: Iterable[str] = (),
    tolerance: float = 1e-5,
    method: str = "spawn",
    **trainer: Trainer,
) -> None:
    """Fail unless a strategy matches one device, in float32 on the CPU.

    The checks, by name, each with a new strategy:

    - ``"trains"``: two epochs give the weights, losses and logged losses of a plain loop on one device.
    - ``"accumulates"``: accumulation over 3 batches, whose last window of an epoch is short, gives those of the loop.
    - ``"clips_norm"``, ``"clips_value"``: clipping gives the weights of the loop, and `trainer.gradient_norm` is the
      norm of all gradients.
    - ``"evaluates"``: metrics are those of one device, on a number of samples that does not divide, on every process.
    - ``"predicts"``: each sample has the prediction of one device, once.
    - ``"saves"``: one device reads a checkpoint that was written within an epoch, and finishes with the same weights.
    - ``"loads"``: the strategy reads a checkpoint of one device, and finishes with the same weights.
    - ``"fits_twice"``: a second fit of the same Trainer continues with the module of the first.
    - ``"raises"``: an exception in a step reaches every process, and another run can follow.
    - ``"ends"``: when one process fails, all end, and the one that failed is named. It takes processes of its own, so
      it is left out in processes that the user started, and with one process.

    Called in an ordinary process it starts `processes` new ones; called in each process of a world (the variable RANK
    is set, as by torchrun) it takes those.

    Args:
        make: Returns a new strategy. With several processes it must be a top-level function.
        processes: How many are started.
        without: Names of checks to leave out.
        tolerance: Maximum relative error of a weight, a loss or a norm. Default 1e-5.
        method: How processes are started: ``"spawn"``, ``"forkserver"`` or ``"fork"``.
        trainer: Further arguments of the Trainer. Default: ``accelerator="cpu"``.

    Raises:
        AssertionError: On every process; it names the check and the difference, what was expected, and how to fix it.
        UnknownNameError: No check has a name in `without`.

    Example:
        >>> from lightlib.strategies.single import SingleDeviceStrategy
        >>> check_strategy(SingleDeviceStrategy, without=["saves", "loads"])
    """
    names = selected("a strategy", CHECKS, without)
    inside = "RANK" in os.environ
    arguments = {"accelerator": "cpu", **QUIET, **({} if inside else {"devices": processes}), **trainer}
    kit = StrategyKit(make, make_module=BoringModule, tolerance=tolerance, options=arguments)
    run = partial(kit.on_ranks, [name for name in names if name != "ends"])
    if inside or processes == 1:
        run()
        return
    in_processes(run, processes, method)
    if "ends" in names:
        kit.check_ends(processes, method)


class _Fails(BoringModule):
    """Fails in its third step, on one process or on all."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__()
        self.rank = rank

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 2 and self.rank in (None, self.global_rank):
            raise ValueError(_TEXT)
        return super().training_step(batch, batch_idx)


class StrategyKit(RanksKit):
    """The checks of `check_strategy`."""

    kind, base, documentation = "strategy", Strategy, check_strategy.__doc__
    loss_fix = "average the gradients of all ranks, and return the output of the step, in `forward_backward`."
    norm_fix = "return the norm of all gradients, before clipping, from `clip_gradients`."
    metric_fix = "set `collectives`, `data_rank` and `data_size` in `setup_environment`."

    def subject(self) -> str:
        """Return the name of the plugin in messages."""
        return f"strategy {type(self.make()).__name__}"

    def first_strategy(self) -> Strategy:
        """Return a strategy that makes the process group, and of which all ranks know their data."""
        return self.make()  # type: ignore[no-any-return]

    def trainer(self) -> Trainer:
        """Return a Trainer with a new strategy."""
        return Trainer(**{**self.options, "strategy": self.make()})

    def fit(self, module: Module | None = None, **options: Any) -> Trainer:
        """Train a module with a new strategy."""
        return self.trained(self.make(), self.group.data_size, module, **{**self.options, **options})

    def alone(self, **options: Any) -> Trainer:
        """Train a module in one process, even among several."""
        place = Environment("local", launched=True)
        return self.trained("single_device", 1, accelerator="cpu", devices=1, plugins=place, **QUIET, **options)

    def test_trains(self) -> Iterator[str]:
        trainer, expected = self.fit(), self.plain()
        yield from self.compared(trainer, expected)
        metrics, last = trainer.callback_metrics, fmean(expected.losses[-(SAMPLES // BATCH) :])
        yield from self.number("train_loss_epoch", metrics.get("train_loss_epoch"), last, self.metric_fix)
        yield from self.number("trainer.global_step", trainer.global_step, 8, self.loss_fix)

    def test_accumulates(self) -> Iterator[str]:
        return self.compared(self.fit(accumulate_grad_batches=3), self.plain(accumulate=3))

    def test_clips_norm(self) -> Iterator[str]:
        expected = self.plain(accumulate=3, clip=partial(nn.utils.clip_grad_norm_, max_norm=0.05))
        return self.compared(self.fit(accumulate_grad_batches=3, gradient_clip_val=0.05), expected)

    def test_clips_value(self) -> Iterator[str]:
        expected = self.plain(clip=partial(nn.utils.clip_grad_value_, clip_value=0.01))
        return self.weights(self.fit(gradient_clip_val=0.01, gradient_clip_algorithm="value"), expected)

    def test_evaluates(self) -> Iterator[str]:
        module, trainer = self.seeded(), self.trainer()
        with torch.no_grad():
            expected = float(module.loss(samples(EVALUATED).tensors))
        for method, metric in ((trainer.validate, "val_loss"), (trainer.test, "test_loss")):
            measured = method(module, verbose=False)[0].get(metric)
            yield from self.number(metric, measured, expected, self.metric_fix)

    def test_predicts(self) -> Iterator[str]:
        module, trainer, size = self.seeded(), self.trainer(), self.group.data_size
        with torch.no_grad():
            expected = module(samples(EVALUATED).tensors[0])
        local = torch.cat([expected[:0], *(output.cpu() for output in trainer.predict(module))])
        shards = dict(self.group.collectives.all_gather_object((trainer.strategy.data_rank, local)))
        for rank, predictions in shards.items():
            error = relative_error(predictions, expected[rank::size])
            if error > 1e-5 or len(shards) != size:
                count = f"{len(predictions)} predictions for {len(expected[rank::size])} samples"
                yield self.unmet(f"data rank {rank} of {size} has {count}, off by {error:.1e}.", self.metric_fix)

    def test_saves(self) -> Iterator[str]:
        expected, path = self.plain(), self.folder / "saved.ckpt"
        yield from self.weights(self.fit(callbacks=[SavesOnce(path)]), expected)
        if self.group.is_global_zero:
            resumed = self.alone(ckpt_path=path).strategy.module_state()
            yield from self.differences(resumed, expected.weights, "resuming on one device")
            loaded, first = BoringModule.load_from_checkpoint(path).state_dict(), self.seeded().state_dict()
            if torch.equal(loaded["model.0.weight"], first["model.0.weight"]):
                yield self.unmet("the checkpoint has the first weights.", "return those of now in `module_state`.")

    def test_loads(self) -> Iterator[str]:
        expected, path = self.plain(), self.folder / f"{self.group.global_rank}.ckpt"
        self.alone(callbacks=[SavesOnce(path)])
        self.group.barrier()
        resumed = self.fit(ckpt_path=path.with_stem("0"))
        yield from self.weights(resumed, expected, "resuming from a checkpoint of one device")

    def test_fits_twice(self) -> Iterator[str]:
        return self.fitted_twice(self.fit)

    def test_raises(self) -> Iterator[str]:
        raised = "no error was raised"
        try:
            self.fit(_Fails())
        except Exception as error:  # noqa: BLE001  any other exception is the finding
            right = isinstance(error, (ValueError, OtherRankError)) and _TEXT in str(error)
            raised = "" if right else f"{type(error).__name__} was raised: {error}"
        if raised:
            fix = "let exceptions leave `forward_backward` as they are."
            yield self.unmet(f"a step raised ValueError({_TEXT!r}), and {raised}.", fix)
        yield from self.weights(self.fit(max_epochs=1), self.plain(epochs=1))

    def check_ends(self, processes: int, method: str) -> None:
        """Train in new processes, of which the last one fails."""
        self.check, raised = "ends", "no error was raised."
        try:
            launch_function(self.fail_on_last, processes, method)
        except LightlibError as error:
            if f"{processes - 1}" in str(error).partition("\n")[0] and _TEXT in str(error):
                return
            raised = f"the error is: {error}"
        fix = "raise errors where they happen, so that the watchdog between the ranks can end all of them."
        raise AssertionError(self.unmet(f"rank {processes - 1} failed, but {raised}", fix))

    def fail_on_last(self, rank: int) -> None:
        processes = self.options["devices"]
        module, trainer = _Fails(processes - 1), Trainer(**{**self.options, "strategy": self.make(), "max_epochs": 1})
        trainer.fit(module, shard_of(module, processes))


CHECKS = (*StrategyKit.checks(), "ends")
