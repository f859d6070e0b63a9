"""check_strategy: the tests that every strategy has to pass."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightlib.core.trainer import Trainer
from lightlib.errors import LightlibError
from lightlib.launch.environment.detect import Environment
from lightlib.launch.start.spawn import launch_function
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies.strategy import Strategy
from lightlib.testing.kit import SavesOnce, relative_error, selected, worst_weight
from lightlib.testing.module import BATCH, EVALUATED, QUIET, SAMPLES, BoringModule, samples
from lightlib.testing.ranks import RanksKit, in_processes


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

    - ``"trains"``: two epochs give the weights and logged losses of a plain loop on one device.
    - ``"accumulates"``: so does accumulation over 3 batches, whose last window of an epoch is short.
    - ``"clips_norm"``, ``"clips_value"``: so does clipping; and `trainer.gradient_norm` is the norm of all gradients.
    - ``"evaluates"``: metrics are those of one device, on a number of samples that does not divide, on every process.
    - ``"predicts"``: each sample has the prediction of one device, once.
    - ``"saves"``: one device reads a checkpoint that was written within an epoch, and finishes with the same weights.
    - ``"loads"``: the strategy reads one device's, likewise.
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
        AssertionError: On every process; it names the check and what differs.
        UnknownNameError: No check has a name in `without`.

    Example:
        >>> from lightlib.strategies.single import SingleDeviceStrategy
        >>> check_strategy(SingleDeviceStrategy, without=["saves", "loads"])
    """
    names = selected("a strategy", CHECKS, without)
    inside = "RANK" in os.environ
    if inside or processes == 1:
        _run(make, None if inside else 1, names, tolerance, trainer)
        return
    in_processes(partial(_run, make, processes, names, tolerance, trainer), processes, method)
    if "ends" in names:
        _check_ends(make, processes, method, trainer)


def _run(
    make: Callable[[], Strategy], devices: int | None, names: Sequence[str], tolerance: float, options: dict[str, Any]
) -> None:
    given = {"accelerator": "cpu", **QUIET, **({} if devices is None else {"devices": devices}), **options}
    with ExitStack() as stack:
        StrategyKit(given, make, BoringModule, tolerance, Trainer(**given, strategy=make()), stack).on_ranks(names)


class _Fails(BoringModule):
    """Fails in its third step, on one process or on all."""

    rank: int | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 2 and self.rank in (None, self.global_rank):
            raise ValueError(_TEXT)
        return super().training_step(batch, batch_idx)


_TEXT = "a step that fails"


class StrategyKit(RanksKit):
    """The checks of `check_strategy`."""

    kind, base = "strategy", Strategy

    def __init__(self, options: dict[str, Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.options = options

    def joined(self, findings: Sequence[str]) -> str:
        """Return one message with all findings."""
        name, lines = type(self.group).__name__, "\n  ".join(findings)
        return f"The strategy {name} fails the check {self.check!r}:\n  {lines}"

    def trainer(self, **options: Any) -> Trainer:
        """Return a Trainer with a new strategy."""
        return Trainer(**{**self.options, "max_epochs": 2, "strategy": self.make(), **options})

    def loader(self, count: int = SAMPLES) -> DataLoader[Any]:
        """Return a loader with this process's shard of each batch of one device."""
        return DataLoader(samples(count), max(1, BATCH // self.group.data_size))

    def fit(self, module: BoringModule | None = None, ckpt_path: Any = None, **options: Any) -> Trainer:
        trainer = self.trainer(**options)
        on = None if ckpt_path is None else {"changes": "ignore"}  # the strategy differs on purpose
        trainer.fit(module or self.seeded(), self.loader(), self.loader(EVALUATED), ckpt_path=ckpt_path, resume=on)
        return trainer

    def on_one_device(self, work: Callable[[], Iterator[str]]) -> list[str]:
        """Run `work` on rank 0 and return its findings on every rank; an exception is a finding."""
        findings: list[str] = []
        if self.group.is_global_zero:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that another number of processes wrote a checkpoint
                    findings = list(work())
            except Exception as error:  # noqa: BLE001  reported to the other ranks, which would wait forever
                findings = [f"one device failed with {type(error).__name__}: {error}"]
        return self.group.broadcast(findings)

    def single(self, **options: Any) -> Trainer:
        """Return a Trainer of one process, even among several."""
        place = Environment("local", launched=True)
        given: dict[str, Any] = {**QUIET, "max_epochs": 2, "devices": 1, "strategy": "single_device", **options}
        return Trainer(accelerator="cpu", plugins=place, **given)

    def weights(self, trainer: Trainer, wanted: Mapping[str, Tensor]) -> Iterator[str]:
        """Yield the differences between the weights of a run and those of one device."""
        state = trainer.strategy.module_state()
        if trainer.is_global_zero:
            yield from self.differences(state, wanted)

    def differences(self, state: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> Iterator[str]:
        yield from (f"the weight {name!r} is missing" for name in wanted if name not in state)
        yield from (f"there is a weight {name!r} that the module does not have" for name in state if name not in wanted)
        error, worst = worst_weight(state, wanted)
        if error > self.tolerance:
            yield f"the weight {worst!r} is off by {error:.1e} of its size, more than {self.tolerance:g}"

    def number(self, what: str, found: Any, wanted: float) -> Iterator[str]:
        """Yield the difference between two numbers, if any."""
        if found is None or not abs(float(found) - wanted) <= 10 * self.tolerance * abs(wanted):
            yield f"{what} is {found}, and {wanted:.8g} on one device"

    def test_trains(self) -> Iterator[str]:
        plain, trainer = self.plain(), self.fit()
        yield from self.weights(trainer, plain.weights)
        last = fmean(plain.losses[-(SAMPLES // BATCH) :])
        yield from self.number("train_loss_epoch", trainer.callback_metrics.get("train_loss_epoch"), last)
        if trainer.global_step != 8:
            yield f"trainer.global_step is {trainer.global_step} after 8 steps"

    def test_accumulates(self) -> Iterator[str]:
        return self.weights(self.fit(accumulate_grad_batches=3), self.plain(accumulate=3).weights)

    def test_clips_norm(self) -> Iterator[str]:
        plain = self.plain(accumulate=3, clip=partial(nn.utils.clip_grad_norm_, max_norm=0.05))
        trainer = self.fit(accumulate_grad_batches=3, gradient_clip_val=0.05)
        yield from self.weights(trainer, plain.weights)
        yield from self.number("gradient_norm", trainer.gradient_norm, plain.norms[-1])

    def test_clips_value(self) -> Iterator[str]:
        plain = self.plain(clip=partial(nn.utils.clip_grad_value_, clip_value=0.01))
        return self.weights(self.fit(gradient_clip_val=0.01, gradient_clip_algorithm="value"), plain.weights)

    def test_evaluates(self) -> Iterator[str]:
        module, trainer = self.seeded(), self.trainer()
        with torch.no_grad():
            wanted = float(module.loss(samples(EVALUATED).tensors))
        for method, metric in ((trainer.validate, "val_loss"), (trainer.test, "test_loss")):
            found = method(module, self.loader(EVALUATED), verbose=False)[0].get(metric)
            yield from self.number(metric, found, wanted)

    def test_predicts(self) -> Iterator[str]:
        module, trainer = self.seeded(), self.trainer()
        with torch.no_grad():
            wanted = module(samples(EVALUATED).tensors[0])
        outputs = trainer.predict(module, self.loader(EVALUATED))
        local = torch.cat([output.cpu() for output in outputs]) if outputs else wanted[:0]
        shards = dict(trainer.strategy.collectives.all_gather_object((trainer.strategy.data_rank, local)))
        count = sum(map(len, shards.values()))
        if count != len(wanted):
            yield f"{count} predictions for {len(wanted)} samples"
            return
        found = torch.empty_like(wanted)
        for rank, shard in shards.items():
            found[rank :: self.group.data_size] = shard
        error = relative_error(found, wanted)
        if error > 1e-5:
            yield f"predictions are off by {error:.1e} of their size"

    def test_saves(self) -> Iterator[str]:
        plain, path = self.plain(), self.folder / "saved.ckpt"
        yield from self.weights(self.fit(callbacks=SavesOnce(path)), plain.weights)

        def resumed() -> Iterator[str]:
            trainer = self.single()
            trainer.fit(self.seeded(), ckpt_path=path)
            loaded, first = BoringModule.load_from_checkpoint(path).state_dict(), self.seeded().state_dict()
            yield from self.differences(trainer.strategy.module_state(), plain.weights)
            if torch.equal(loaded["model.0.weight"], first["model.0.weight"]):
                yield "the file has first weights"

        yield from (f"resumed on one device, {text}" for text in self.on_one_device(resumed))

    def test_loads(self) -> Iterator[str]:
        plain, path = self.plain(), self.folder / "single.ckpt"

        def saved() -> Iterator[str]:
            self.single(callbacks=SavesOnce(path)).fit(self.seeded())
            return iter(())

        failed = self.on_one_device(saved)
        if failed:
            yield from failed
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The checkpoint was written by")
            trainer = self.fit(ckpt_path=path)
        yield from (f"resumed from one device's, {text}" for text in self.weights(trainer, plain.weights))

    def test_fits_twice(self) -> Iterator[str]:
        alone = self.seeded()
        self.plain(alone, epochs=1)
        plain, module = self.plain(alone, epochs=1), self.seeded()
        trainer = self.fit(module, max_epochs=1)
        trainer.max_epochs = 2
        trainer.fit(module, self.loader(), self.loader(EVALUATED))
        return self.weights(trainer, plain.weights)

    def test_raises(self) -> Iterator[str]:
        try:
            self.fit(_Fails())
        except (ValueError, OtherRankError) as error:
            if _TEXT not in str(error):
                yield f"the step's error became {error!r}"
        except Exception as error:  # noqa: BLE001  whatever it is
            yield f"the step's ValueError became {type(error).__name__}: {error}"
        else:
            yield "the step's error did not come out of fit"
        yield from self.weights(self.fit(max_epochs=1), self.plain(epochs=1).weights)

    def test_ends(self) -> Iterator[str]:
        return iter(())  # in processes of its own, by `_check_ends`


def _fit_and_fail(make: Callable[[], Strategy], processes: int, options: dict[str, Any], rank: int) -> None:  # noqa: ARG001
    module = _Fails()
    module.rank = processes - 1
    fixed = {"devices": processes, "strategy": make(), "max_epochs": 1}
    loader = DataLoader(samples(SAMPLES), BATCH // processes or 1)  # every process reaches the third batch
    Trainer(**{"accelerator": "cpu", **QUIET, **options, **fixed}).fit(module, loader)


def _check_ends(make: Callable[[], Strategy], processes: int, method: str, options: dict[str, Any]) -> None:
    failing = processes - 1
    try:
        launch_function(partial(_fit_and_fail, make, processes, options), processes, method)
    except LightlibError as error:
        if f"{failing}" in str(error).partition("\n")[0] and _TEXT in str(error):
            return
        raise AssertionError(
            f"The strategy fails the check 'ends': rank {failing} failed, but the error is: {error}"
        ) from error
    raise AssertionError(f"The strategy fails the check 'ends': rank {failing} failed, and no error was raised.")


CHECKS = StrategyKit.checks()
