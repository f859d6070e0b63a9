"""check_axis: the tests that every strategy axis with a dimension of its own has to pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightlib.callbacks.callback import Callback
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies.axes.axis import Axis, AxisContext
from lightlib.strategies.mesh import MeshStrategy
from lightlib.testing.kit import failure, in_processes, selected, shared_folder, worst_weight
from lightlib.testing.module import BATCH, QUIET, BoringModule, samples
from lightlib.testing.plain import PlainLoop

_CLIP, _REPLICAS = 0.05, 2


class _Finding(NamedTuple):
    what: str
    expected: str
    fix: str


def check_axis(
    make_axis: Callable[[int], Axis],
    make_module: Callable[[], Module],
    size: int = 2,
    *,
    make_refused: Callable[[], Module] | None = None,
    without: Iterable[str] = (),
    tolerance: float = 1e-5,
    method: str = "spawn",
) -> None:
    """Fail unless an axis with a dimension of its own computes the numbers of one device, in float32 on the CPU.

    The checks, by name, each with a new axis and module:

    - ``"declares"``: the axis has a name, an order and the requested size.
    - ``"names"``: parameters keep their names. With `divides_parameters` each process has some of them.
    - ``"trains"``: two epochs with clipping give the losses, norms of gradients and weights of a plain PyTorch loop.
    - ``"saves"``: a checkpoint holds the weights of the run, and a new run continues from it as a plain loop does.
    - ``"refuses"``: `check` leaves the module as it is. With `make_refused` it raises a `MisconfigurationException` on
      every process, before any `apply` is called.
    - ``"fits_twice"``: `teardown` may be called twice, and a second fit of the same Trainer continues.
    - ``"replicates"``: ``MeshStrategy(replicate=2, extra_axes=[axis])`` on twice the processes reaches the same
      numbers.

    Called in an ordinary process it starts `size` new ones, then twice as many. Called in each process of a world (the
    variable RANK is set, as by torchrun) it takes those: with `size` processes it runs all checks but the last, with
    twice as many only the last.

    Args:
        make_axis: Returns a new axis of that many processes, usually its class. It must be a top-level function.
        make_module: Returns a new module, likewise. Its `train_dataloader` returns a `DataLoader` that does not
            shuffle, with full batches that divide by twice the `size`; its `configure_optimizers` one optimizer, with
            or without one schedule for every step.
        size: The processes along the dimension.
        make_refused: Returns a module that the axis must refuse. Default: none.
        without: Names of checks to leave out.
        tolerance: Maximum relative error of a weight; ten times as much for a loss or a norm. Default 1e-5.
        method: How processes are started: ``"spawn"``, ``"forkserver"`` or ``"fork"``.

    Raises:
        AssertionError: It names the check and the difference, what was expected, and how to fix it.
        MisconfigurationException: The data or the number of processes cannot be used.
        UnknownNameError: No check has a name in `without`.
    """
    names = selected("an axis", AXIS_CHECKS, without)
    _check_data(make_module(), size)
    worlds = {
        size: [name for name in names if name != "replicates"],
        _REPLICAS * size: [name for name in names if name == "replicates"],
    }
    run = partial(_run, make_axis, make_module, size, make_refused, tolerance)
    if "RANK" in os.environ:
        world = int(os.environ["WORLD_SIZE"])
        if world not in worlds:
            raise MisconfigurationException(
                f"check_axis with size={size} was called in a world of {world} processes.",
                expected=" or ".join(f"{count} processes" for count in worlds) + ".",
                fix=f"start {size} processes, or call check_axis in an ordinary process.",
            )
        run(worlds[world])
        return
    for world, chosen in worlds.items():
        if chosen:
            in_processes(partial(run, chosen), world, method)


def _check_data(module: Module, size: int) -> None:
    loader = module.train_dataloader()
    most = _REPLICAS * size
    if not isinstance(loader, DataLoader) or not loader.batch_size:
        given = f"returned {loader!r}"
    elif loader.batch_size % most or len(loader.dataset) % loader.batch_size:  # type: ignore[arg-type]  # it has a length
        given = f"has {len(loader.dataset)} samples in batches of {loader.batch_size}"  # type: ignore[arg-type]  # likewise
    else:
        return
    raise MisconfigurationException(
        f"{type(module).__name__}.train_dataloader {given}, which check_axis cannot divide over {most} processes.",
        expected=f"a DataLoader with full batches of a multiple of {most} samples.",
        fix=f"return DataLoader(dataset, batch_size={4 * most}) with {16 * most} samples.",
    )


def _run(
    make_axis: Callable[[int], Axis],
    make_module: Callable[[], Module],
    size: int,
    make_refused: Callable[[], Module] | None,
    tolerance: float,
    names: Sequence[str],
) -> None:
    with ExitStack() as stack:
        kit = _Kit(make_axis, make_module, size, make_refused, tolerance, stack)
        for name in names:
            kit.check(name)


class _Kit:
    """Shared state and helpers of the checks, in one process."""

    def __init__(
        self,
        make_axis: Callable[[int], Axis],
        make_module: Callable[[], Module],
        size: int,
        make_refused: Callable[[], Module] | None,
        tolerance: float,
        stack: ExitStack,
    ) -> None:
        self.size, self.make_refused, self.tolerance = size, make_refused, tolerance
        self._make_axis, self._make_module = make_axis, make_module
        first = Trainer(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", **QUIET)
        first.validate(BoringModule(), DataLoader(samples(BATCH), 1), verbose=False)  # now the process group exists
        self.collectives, self.is_first = first.strategy.collectives, first.is_global_zero
        self.folder = stack.enter_context(shared_folder(first.strategy))

    def check(self, name: str) -> None:
        """Run one check; raise the first finding of all processes on each of them."""
        findings: list[_Finding] = []
        secondary: list[_Finding] = []
        cause: Exception | None = None
        try:
            findings = AXIS_CHECKS[name](self)
        except OtherRankError as error:
            secondary = [_raised(error)]
        except Exception as error:  # noqa: BLE001  an exception is a finding of the check
            findings, cause = [_raised(error)], error
        ranks = self.collectives.all_gather_object((findings, secondary))
        every = [finding for kind in (0, 1) for rank in ranks for finding in rank[kind]]
        if every:
            raise failure("axis", name, *every[0]) from cause

    def axis(self) -> Axis:
        return self._make_axis(self.size)

    def seeded(self, seed: int = 1) -> Module:
        """Return a module with the same first values at each call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._make_module()

    def plain(self, module: Module | None = None, epochs: int = 2) -> PlainLoop:
        """Train a module in the reference loop."""
        module = module or self.seeded()
        clip = partial(nn.utils.clip_grad_norm_, max_norm=_CLIP)
        return PlainLoop(module, list(module.train_dataloader()), epochs, clip=clip)

    def loader(self, axis: Axis, replicas: int = 1) -> DataLoader[Any]:
        """Return a loader with this process's shard of each batch of one device."""
        loader = self.seeded().train_dataloader()
        readers = replicas * (self.size if axis.splits_batch else 1)
        return DataLoader(loader.dataset, loader.batch_size // readers, collate_fn=loader.collate_fn)

    def trainer(self, axes: Sequence[Axis], replicas: int = 1, **options: Any) -> Trainer:
        strategy = MeshStrategy(replicate=replicas, extra_axes=list(axes))
        given = {"devices": replicas * self.size, "max_epochs": 2, "gradient_clip_val": _CLIP, **options}
        return Trainer(**{**QUIET, "accelerator": "cpu", "strategy": strategy, **given})

    def compared(self, replicas: int) -> list[_Finding]:
        """Train on the axis and in a plain loop, and return the differences."""
        axis, module, recorder, wanted = self.axis(), self.seeded(), _Recorder(), self.plain()
        trainer = self.trainer([axis], replicas, callbacks=recorder)
        trainer.fit(module, self.loader(axis, replicas))
        ranks = [losses for losses in self.collectives.all_gather_object(recorder.losses) if losses]
        means = [sum(losses) / len(losses) for losses in zip(*ranks, strict=True)]
        return [
            *self._steps([(means, wanted.losses), (recorder.norms, wanted.norms)]),
            *self.weights(trainer, wanted.weights),
        ]

    def _steps(self, series: list[tuple[list[float], list[float]]]) -> list[_Finding]:
        """Return the first difference between the losses and norms of a run and those of one device."""
        for index, step in enumerate(zip(*(wanted for _, wanted in series), strict=True)):
            for (what, fix), (measured, _), right in zip(_SERIES, series, step, strict=True):
                number = measured[index] if index < len(measured) else None
                if number is None or not abs(number - right) <= 10 * self.tolerance * abs(right):
                    shown = number if number is None else f"{number:.8g}"
                    return [_Finding(f"{what} of batch {index} is {shown}.", f"{right:.8g}, as on one device.", fix)]
        return []

    def weights(self, trainer: Trainer, wanted: Mapping[str, Tensor], after: str = "training") -> list[_Finding]:
        """Return the difference between the weights of a run and those of one device."""
        state = trainer.strategy.module_state()
        return self.differences(state, wanted, after) if self.is_first else []

    def differences(self, state: Mapping[str, Any], wanted: Mapping[str, Tensor], after: str) -> list[_Finding]:
        if state.keys() != wanted.keys():
            return [_named(list(state), list(wanted), f"the weights after {after}")]
        error, worst = worst_weight(state, wanted)
        if error <= self.tolerance:
            return []
        return [
            _Finding(
                f"the weight {worst!r} is off by {error:.1e} of its size after {after}.",
                f"at most {self.tolerance:g} from a plain PyTorch loop on one device.",
                "compare the gradient of this weight on each process with that of one device.",
            )
        ]


_SERIES = (
    ("the loss", "return each step's output from `around` and `enter`, and declare what the axis splits."),
    ("the norm of the gradients", "return parameters that only this process holds from `local_parameters`."),
)


class _Recorder(Callback):
    """Records the loss of each batch and the norm of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self.losses.append(float(loss))
        if trainer.gradient_norm is not None:
            self.norms.append(float(trainer.gradient_norm))


class _Probe(Axis):
    """A transform that changes nothing: records the module at `check`, and whether `apply` was called."""

    def __init__(self) -> None:
        self.seen: tuple[Any, ...] = ()
        self.applied = False

    def check(self, module: nn.Module, site: AxisContext) -> None:
        self.seen = _fingerprint(module)

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        self.applied = True


def _fingerprint(module: nn.Module) -> tuple[Any, ...]:
    modules = [
        (name, id(one), type(one), len(one._forward_hooks), len(one._forward_pre_hooks))  # noqa: SLF001  no public list
        for name, one in module.named_modules()
    ]
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = [(name, id(one), one.shape, float(one.detach().double().sum())) for name, one in state.items()]
    return (*modules, *values)


def _raised(error: Exception) -> _Finding:
    what = str(error).partition("\n")[0]
    return _Finding(f"{type(error).__name__}: {what}", "no exception.", "correct the method of the axis that raised.")


def _named(names: list[str], wanted: list[str], what: str) -> _Finding:
    missing = [name for name in wanted if name not in names]
    new = [name for name in names if name not in wanted]
    return _Finding(
        f"{what} have other names: missing {missing}, new {new}.",
        "the names of one device in the same order, so that checkpoints fit any number of processes.",
        "change modules in place instead of wrapping them.",
    )


def _declares(kit: _Kit) -> list[_Finding]:
    axis = kit.axis()
    if not isinstance(axis, Axis):
        return [
            _Finding(
                f"make_axis({kit.size}) returned {axis!r}.",
                "an object of a class that inherits from lightlib.strategies.Axis.",
                f"class {type(axis).__name__}(Axis): ...",
            )
        ]
    kind = type(axis).__name__
    if not axis.name or axis.order is None or axis.size != kit.size:
        return [
            _Finding(
                f"{kind} has name={axis.name!r}, order={axis.order!r} and size={axis.size!r}.",
                f"a name, a number as order, and size={kit.size}.",
                "declare name and order in the class, and let make_axis(size) set the size.",
            )
        ]
    return []


def _names(kit: _Kit) -> list[_Finding]:
    axis, module = kit.axis(), kit.seeded()
    wanted = [name for name, _ in module.named_parameters()]
    kit.trainer([axis], max_epochs=1, limit_train_batches=1).fit(module, kit.loader(axis))
    names = [name for name, _ in module.named_parameters()]
    if axis.divides_parameters:
        every = {name for rank in kit.collectives.all_gather_object(names) for name in rank}
        names = [name for name in wanted if name in every] + sorted(every - set(wanted))
    return [] if names == wanted else [_named(names, wanted, "the parameters")]


def _saves(kit: _Kit) -> list[_Finding]:
    path, axis, wanted = kit.folder / "axis.ckpt", kit.axis(), kit.plain(epochs=1).weights
    trainer = kit.trainer([axis], max_epochs=1)
    trainer.fit(kit.seeded(), kit.loader(axis))
    trainer.save_checkpoint(path)
    saved: list[_Finding] = []
    if kit.is_first:
        state = torch.load(path, weights_only=True)["state_dict"]
        saved = kit.differences(state, wanted, "torch.load of a checkpoint")
    again = kit.axis()
    resumed = kit.trainer([again])
    resumed.fit(kit.seeded(seed=2), kit.loader(again), ckpt_path=path)
    return [*saved, *kit.weights(resumed, kit.plain().weights, "resuming from a checkpoint")]


def _refuses(kit: _Kit) -> list[_Finding]:
    before, axis, after = _Probe(), kit.axis(), _Probe()
    kit.trainer([before, axis, after], max_epochs=1, limit_train_batches=1).fit(kit.seeded(), kit.loader(axis))
    kind = type(axis).__name__
    if before.seen != after.seen:
        return [
            _Finding(
                f"{kind}.check changed the module.",
                "an unchanged module: another axis may still refuse it.",
                "move the change to `apply`.",
            )
        ]
    return [] if kit.make_refused is None else _refuses_module(kit, kit.make_refused())


def _refuses_module(kit: _Kit, module: Module) -> list[_Finding]:
    probe, axis, before = _Probe(), kit.axis(), _fingerprint(module)
    how = "trained it"
    try:
        kit.trainer([probe, axis], max_epochs=1, limit_train_batches=1).fit(module, kit.loader(axis))
    except (MisconfigurationException, OtherRankError):  # the latter where another rank refused it first
        how = "applied the axes first" if probe.applied or _fingerprint(module) != before else ""
    except Exception as error:  # noqa: BLE001  any other exception is the finding
        how = f"raised {type(error).__name__}: {error}".partition("\n")[0]
    if not how:
        return []
    return [
        _Finding(
            f"for the module of make_refused, {type(axis).__name__} {how}.",
            "a MisconfigurationException in `check` on every process, before anything is changed.",
            "test the module in `check`, not in `apply`.",
        )
    ]


def _fits_twice(kit: _Kit) -> list[_Finding]:
    alone = kit.seeded()
    kit.plain(alone, epochs=1)
    wanted = kit.plain(alone, epochs=1).weights
    axis, module = kit.axis(), kit.seeded()
    trainer = kit.trainer([axis], max_epochs=1)
    trainer.fit(module, kit.loader(axis))
    axis.teardown()
    trainer.max_epochs = 2
    trainer.fit(module, kit.loader(axis))
    return kit.weights(trainer, wanted, "a second fit")


AXIS_CHECKS: dict[str, Callable[[_Kit], list[_Finding]]] = {
    "declares": _declares,
    "names": _names,
    "trains": lambda kit: kit.compared(1),
    "saves": _saves,
    "refuses": _refuses,
    "fits_twice": _fits_twice,
    "replicates": lambda kit: kit.compared(_REPLICAS),
}
