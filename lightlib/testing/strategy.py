"""check_strategy: the tests that every strategy has to pass."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import LightlibError
from lightlib.launch.environment.detect import Environment
from lightlib.launch.start.spawn import launch_function
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies.strategy import Strategy
from lightlib.testing.kit import SavesOnce, in_processes, relative_error, selected, shared_folder, worst_weight
from lightlib.testing.module import BATCH, EVALUATED, QUIET, SAMPLES, BoringModule, samples
from lightlib.testing.plain import PlainLoop


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
    with ExitStack() as stack:
        kit = _Kit(make, devices, tolerance, options, stack)
        for name in names:
            kit.check(name)


class _Kit:
    """Shared state and helpers of the checks, in one process.

    Attributes:
        size: The data processes of the strategy, each of which reads its part of a batch.
        folder: For checkpoints; the same on all processes.
    """

    def __init__(
        self,
        make: Callable[[], Strategy],
        devices: int | None,
        tolerance: float,
        options: dict[str, Any],
        stack: ExitStack,
    ) -> None:
        self._make, self._tolerance = make, tolerance
        self._options = {"accelerator": "cpu", **QUIET, **({} if devices is None else {"devices": devices}), **options}
        first = self.trainer()
        first.validate(seeded(), DataLoader(samples(BATCH), 1), verbose=False)  # now the process group exists
        self.strategy = first.strategy
        self.size = self.strategy.data_size
        self.folder = stack.enter_context(shared_folder(self.strategy))

    def check(self, name: str) -> None:
        """Run one check; raise the findings of all processes on each of them."""
        findings = [finding for finding in CHECKS[name](self) if finding]
        every = [finding for rank in self.strategy.collectives.all_gather_object(findings) for finding in rank]
        if every:
            lines = "\n  ".join(dict.fromkeys(every))
            raise AssertionError(f"The strategy {type(self.strategy).__name__} fails the check {name!r}:\n  {lines}")

    def trainer(self, **options: Any) -> Trainer:
        """Return a Trainer with a new strategy."""
        return Trainer(**{**self._options, "max_epochs": 2, "strategy": self._make(), **options})

    def loader(self, count: int = SAMPLES) -> DataLoader[Any]:
        """Return a loader with this process's shard of each batch of one device."""
        return DataLoader(samples(count), max(1, BATCH // self.size))

    def fit(self, module: Module | None = None, ckpt_path: Any = None, **options: Any) -> Trainer:
        trainer = self.trainer(**options)
        on = None if ckpt_path is None else {"changes": "ignore"}  # the strategy differs on purpose
        trainer.fit(module or seeded(), self.loader(), self.loader(EVALUATED), ckpt_path=ckpt_path, resume=on)
        return trainer

    def on_one_device(self, work: Callable[[], list[str]]) -> list[str]:
        """Run `work` on rank 0 and return its findings on every rank; an exception is a finding."""
        found: list[str] = []
        if self.strategy.is_global_zero:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that another number of processes wrote a checkpoint
                    found = work()
            except Exception as error:  # noqa: BLE001  reported to the other ranks, which would wait forever
                found = [f"one device failed with {type(error).__name__}: {error}"]
        return self.strategy.broadcast(found)

    def single(self, **options: Any) -> Trainer:
        """Return a Trainer of one process, even among several."""
        place = Environment("local", launched=True)
        given: dict[str, Any] = {**QUIET, "max_epochs": 2, "devices": 1, "strategy": "single_device", **options}
        return Trainer(accelerator="cpu", plugins=place, **given)

    def weights(self, trainer: Trainer, wanted: Mapping[str, Tensor]) -> list[str]:
        """Return the differences between the weights of a run and those of one device."""
        state = trainer.strategy.module_state()
        return self.differences(state, wanted) if trainer.is_global_zero else []

    def differences(self, state: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> list[str]:
        missing = [f"the weight {name!r} is missing" for name in wanted if name not in state]
        strange = [f"there is a weight {name!r} that the module does not have" for name in state if name not in wanted]
        error, worst = worst_weight(state, wanted)
        if error <= self._tolerance:
            return missing + strange
        text = f"the weight {worst!r} is off by {error:.1e} of its size, more than {self._tolerance:g}"
        return [*missing, *strange, text]

    def number(self, what: str, found: Any, wanted: float) -> list[str]:
        """Return the difference between two numbers, if any."""
        if found is not None and abs(float(found) - wanted) <= 10 * self._tolerance * abs(wanted):
            return []
        return [f"{what} is {found}, and {wanted:.8g} on one device"]


def seeded() -> BoringModule:
    """Return the module with the same first values whenever it is called."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return BoringModule()


def _plain(module: BoringModule | None = None, epochs: int = 2, **options: Any) -> PlainLoop:
    return PlainLoop(module or seeded(), list(DataLoader(samples(SAMPLES), BATCH)), epochs, **options)


class _Fails(BoringModule):
    """Fails in its third step, on one process or on all."""

    rank: int | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 2 and self.rank in (None, self.global_rank):
            raise ValueError(_TEXT)
        return super().training_step(batch, batch_idx)


_TEXT = "a step that fails"


def _trains(kit: _Kit) -> list[str]:
    plain, trainer = _plain(), kit.fit()
    logged, last = trainer.callback_metrics.get("train_loss_epoch"), fmean(plain.losses[-(SAMPLES // BATCH) :])
    steps = [] if trainer.global_step == 8 else [f"trainer.global_step is {trainer.global_step} after 8 steps"]
    return [*kit.weights(trainer, plain.weights), *kit.number("train_loss_epoch", logged, last), *steps]


def _accumulates(kit: _Kit) -> list[str]:
    return kit.weights(kit.fit(accumulate_grad_batches=3), _plain(accumulate=3).weights)


def _clips_norm(kit: _Kit) -> list[str]:
    plain = _plain(accumulate=3, clip=partial(nn.utils.clip_grad_norm_, max_norm=0.05))
    trainer = kit.fit(accumulate_grad_batches=3, gradient_clip_val=0.05)
    return [*kit.weights(trainer, plain.weights), *kit.number("gradient_norm", trainer.gradient_norm, plain.norms[-1])]


def _clips_value(kit: _Kit) -> list[str]:
    plain = _plain(clip=partial(nn.utils.clip_grad_value_, clip_value=0.01))
    return kit.weights(kit.fit(gradient_clip_val=0.01, gradient_clip_algorithm="value"), plain.weights)


def _evaluates(kit: _Kit) -> list[str]:
    module, trainer = seeded(), kit.trainer()
    with torch.no_grad():
        wanted = float(module.loss(samples(EVALUATED).tensors))
    found = trainer.validate(module, kit.loader(EVALUATED), verbose=False)[0].get("val_loss")
    tested = trainer.test(module, kit.loader(EVALUATED), verbose=False)[0].get("test_loss")
    return [*kit.number("val_loss", found, wanted), *kit.number("test_loss", tested, wanted)]


def _predicts(kit: _Kit) -> list[str]:
    module, trainer = seeded(), kit.trainer()
    with torch.no_grad():
        wanted = module(samples(EVALUATED).tensors[0])
    outputs = trainer.predict(module, kit.loader(EVALUATED))
    own = torch.cat([one.cpu() for one in outputs]) if outputs else wanted[:0]
    parts = dict(trainer.strategy.collectives.all_gather_object((trainer.strategy.data_rank, own)))
    if sum(map(len, parts.values())) != len(wanted):
        return [f"{sum(map(len, parts.values()))} predictions for {len(wanted)} samples"]
    found = torch.empty_like(wanted)
    for rank, part in parts.items():
        found[rank :: kit.size] = part
    error = relative_error(found, wanted)
    return [] if error <= 1e-5 else [f"predictions are off by {error:.1e} of their size"]


def _saves(kit: _Kit) -> list[str]:
    plain, path = _plain(), kit.folder / "saved.ckpt"
    done = kit.weights(kit.fit(callbacks=SavesOnce(path)), plain.weights)

    def resumed() -> list[str]:
        trainer = kit.single()
        trainer.fit(seeded(), ckpt_path=path)
        loaded = BoringModule.load_from_checkpoint(path)
        first, name = seeded().state_dict(), "model.0.weight"
        untrained = ["the file has first weights"] if torch.equal(loaded.state_dict()[name], first[name]) else []
        return [*kit.differences(trainer.strategy.module_state(), plain.weights), *untrained]

    return [*done, *(f"resumed on one device, {text}" for text in kit.on_one_device(resumed))]


def _loads(kit: _Kit) -> list[str]:
    plain, path = _plain(), kit.folder / "single.ckpt"

    def saved() -> list[str]:
        kit.single(callbacks=SavesOnce(path)).fit(seeded())
        return []

    failed = kit.on_one_device(saved)
    if failed:
        return failed
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The checkpoint was written by")
        trainer = kit.fit(ckpt_path=path)
    return [f"resumed from one device's, {text}" for text in kit.weights(trainer, plain.weights)]


def _fits_twice(kit: _Kit) -> list[str]:
    alone = seeded()
    _plain(alone, epochs=1)
    plain = _plain(alone, epochs=1)
    module = seeded()
    trainer = kit.fit(module, max_epochs=1)
    trainer.max_epochs = 2
    trainer.fit(module, kit.loader(), kit.loader(EVALUATED))
    return kit.weights(trainer, plain.weights)


def _raises(kit: _Kit) -> list[str]:
    found = []
    try:
        kit.fit(_Fails())
    except (ValueError, OtherRankError) as error:
        found += [] if _TEXT in str(error) else [f"the step's error became {error!r}"]
    except Exception as error:  # noqa: BLE001  whatever it is
        found += [f"the step's ValueError became {type(error).__name__}: {error}"]
    else:
        found += ["the step's error did not come out of fit"]
    return [*found, *kit.weights(kit.fit(max_epochs=1), _plain(epochs=1).weights)]


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


CHECKS: dict[str, Callable[[_Kit], list[str]]] = {
    "trains": _trains,
    "accumulates": _accumulates,
    "clips_norm": _clips_norm,
    "clips_value": _clips_value,
    "evaluates": _evaluates,
    "predicts": _predicts,
    "saves": _saves,
    "loads": _loads,
    "fits_twice": _fits_twice,
    "raises": _raises,
    "ends": lambda kit: [],  # in processes of its own
}
