"""check_axis: the tests that every strategy axis with a dimension of its own has to pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

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
from lightlib.testing.kit import selected, worst_weight
from lightlib.testing.module import QUIET
from lightlib.testing.plain import PlainLoop
from lightlib.testing.ranks import RanksKit, in_processes

_CLIP, _REPLICAS = 0.05, 2


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
    names = selected("an axis", AxisKit.checks(), without)
    _check_data(make_module(), size)
    worlds = {
        size: [name for name in names if name != "replicates"],
        _REPLICAS * size: [name for name in names if name == "replicates"],
    }
    run = partial(_run, make_axis, make_module, tolerance, size, make_refused)
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


def _run(
    make_axis: Callable[[int], Axis],
    make_module: Callable[[], Module],
    tolerance: float,
    size: int,
    make_refused: Callable[[], Module] | None,
    names: Sequence[str],
) -> None:
    first = Trainer(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", **QUIET)
    with ExitStack() as stack:
        AxisKit(size, make_refused, partial(make_axis, size), make_module, tolerance, first, stack).on_ranks(names)


class AxisKit(RanksKit):
    """The checks of `check_axis`."""

    kind, base = "axis", Axis

    def __init__(self, size: int, make_refused: Callable[[], Module] | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.size, self.make_refused = size, make_refused

    def joined(self, findings: Sequence[str]) -> str:
        """Return the first finding."""
        return findings[0]

    def raised(self, error: Exception) -> str:
        """Return the finding for an exception of a check."""
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        return self.unmet(what, "no exception.", "correct the method of the axis that raised.")

    def clipped(self, module: Module | None = None, epochs: int = 2) -> PlainLoop:
        """Train a module in the reference loop, with clipping."""
        return self.plain(module, epochs, clip=partial(nn.utils.clip_grad_norm_, max_norm=_CLIP))

    def loader(self, axis: Axis, replicas: int = 1) -> DataLoader[Any]:
        """Return a loader with this process's shard of each batch of one device."""
        loader = self.seeded().train_dataloader()
        readers = replicas * (self.size if axis.splits_batch else 1)
        return DataLoader(loader.dataset, loader.batch_size // readers, collate_fn=loader.collate_fn)

    def fit(self, module: Module, *axes: Axis, replicas: int = 1, ckpt_path: Any = None, **options: Any) -> Trainer:
        """Train a module; the second of three axes, or the only one, is that under test."""
        strategy = MeshStrategy(replicate=replicas, extra_axes=list(axes))
        given = {"devices": replicas * self.size, "max_epochs": 2, "gradient_clip_val": _CLIP, **options}
        trainer = Trainer(**{**QUIET, "accelerator": "cpu", "strategy": strategy, **given})
        trainer.fit(module, self.loader(axes[len(axes) // 2], replicas), ckpt_path=ckpt_path)
        return trainer

    def compared(self, replicas: int) -> Iterator[str]:
        """Train on the axis and in a plain loop, and yield the differences."""
        recorder, wanted = _Recorder(), self.clipped()
        trainer = self.fit(self.seeded(), self.make(), replicas=replicas, callbacks=recorder)
        ranks = [losses for losses in self.group.collectives.all_gather_object(recorder.losses) if losses]
        means = [sum(losses) / len(losses) for losses in zip(*ranks, strict=True)]
        for index, (loss, norm) in enumerate(zip(wanted.losses, wanted.norms, strict=True)):
            fix = "return each step's output from `around` and `enter`, and declare what the axis splits."
            yield from self.number(f"the loss of batch {index}", means[index : index + 1], loss, fix)
            fix = "return parameters that only this process holds from `local_parameters`."
            what = f"the norm of the gradients of batch {index}"
            yield from self.number(what, recorder.norms[index : index + 1], norm, fix)
        yield from self.weights(trainer, wanted.weights)

    def number(self, what: str, found: Sequence[float], wanted: float, fix: str) -> Iterator[str]:
        """Yield the difference between a loss or a norm, if there is one, and that of one device."""
        if not found or not abs(found[0] - wanted) <= 10 * self.tolerance * abs(wanted):
            shown = f"{found[0]:.8g}" if found else None
            yield self.unmet(f"{what} is {shown}.", f"{wanted:.8g}, as on one device.", fix)

    def weights(self, trainer: Trainer, wanted: Mapping[str, Tensor], after: str = "training") -> Iterator[str]:
        """Yield the difference between the weights of a run and those of one device."""
        yield from self.differences(trainer.strategy.module_state(), wanted, after)

    def differences(self, state: Mapping[str, Any], wanted: Mapping[str, Tensor], after: str) -> Iterator[str]:
        """Yield the difference between weights and those of one device, on rank 0."""
        error, worst = worst_weight(state, wanted)
        if not self.group.is_global_zero:
            return
        if state.keys() != wanted.keys():
            yield self.renamed(list(state), list(wanted), f"the weights after {after}")
        elif error > self.tolerance:
            yield self.unmet(
                f"the weight {worst!r} is off by {error:.1e} of its size after {after}.",
                f"at most {self.tolerance:g} from a plain PyTorch loop on one device.",
                "compare the gradient of this weight on each process with that of one device.",
            )

    def renamed(self, names: list[str], wanted: list[str], what: str) -> str:
        """Return the finding for other names of parameters."""
        missing = [name for name in wanted if name not in names]
        new = [name for name in names if name not in wanted]
        return self.unmet(
            f"{what} have other names: missing {missing}, new {new}.",
            "the names of one device in the same order, so that checkpoints fit any number of processes.",
            "change modules in place instead of wrapping them.",
        )

    def test_declares(self) -> Iterator[str]:
        axis = self.make()
        if not isinstance(axis, Axis):
            yield self.foreign(axis, f"make_axis({self.size})")
        elif not axis.name or axis.order is None or axis.size != self.size:
            yield self.unmet(
                f"{type(axis).__name__} has name={axis.name!r}, order={axis.order!r} and size={axis.size!r}.",
                f"a name, a number as order, and size={self.size}.",
                "declare name and order in the class, and let make_axis(size) set the size.",
            )

    def test_names(self) -> Iterator[str]:
        axis, module = self.make(), self.seeded()
        wanted = [name for name, _ in module.named_parameters()]
        self.fit(module, axis, max_epochs=1, limit_train_batches=1)
        names = [name for name, _ in module.named_parameters()]
        if axis.divides_parameters:
            every = {name for rank in self.group.collectives.all_gather_object(names) for name in rank}
            names = [name for name in wanted if name in every] + sorted(every - set(wanted))
        if names != wanted:
            yield self.renamed(names, wanted, "the parameters")

    def test_trains(self) -> Iterator[str]:
        return self.compared(1)

    def test_saves(self) -> Iterator[str]:
        path = self.folder / "axis.ckpt"
        self.fit(self.seeded(), self.make(), max_epochs=1).save_checkpoint(path)
        if self.group.is_global_zero:
            state = torch.load(path, weights_only=True)["state_dict"]
            yield from self.differences(state, self.clipped(epochs=1).weights, "torch.load of a checkpoint")
        resumed = self.fit(self.seeded(seed=2), self.make(), ckpt_path=path)
        yield from self.weights(resumed, self.clipped().weights, "resuming from a checkpoint")

    def test_refuses(self) -> Iterator[str]:
        before, axis, after = _Probe(), self.make(), _Probe()
        self.fit(self.seeded(), before, axis, after, max_epochs=1, limit_train_batches=1)
        if before.seen != after.seen:
            yield self.unmet(
                f"{type(axis).__name__}.check changed the module.",
                "an unchanged module: another axis may still refuse it.",
                "move the change to `apply`.",
            )
        elif self.make_refused is not None and (how := self.taken(self.make_refused())):
            yield self.unmet(
                f"for the module of make_refused, {type(axis).__name__} {how}.",
                "a MisconfigurationException in `check` on every process, before anything is changed.",
                "test the module in `check`, not in `apply`.",
            )

    def taken(self, module: Module) -> str:
        """Return how a module was used that should be refused, or an empty text if it was."""
        probe, before = _Probe(), _fingerprint(module)
        try:
            self.fit(module, probe, self.make(), max_epochs=1, limit_train_batches=1)
        except (MisconfigurationException, OtherRankError):  # the latter where another rank refused it first
            return "applied the axes first" if probe.applied or _fingerprint(module) != before else ""
        except Exception as error:  # noqa: BLE001  any other exception is the finding
            return f"raised {type(error).__name__}: {error}".partition("\n")[0]
        return "trained it"

    def test_fits_twice(self) -> Iterator[str]:
        alone = self.seeded()
        self.clipped(alone, epochs=1)
        wanted = self.clipped(alone, epochs=1).weights
        axis, module = self.make(), self.seeded()
        trainer = self.fit(module, axis, max_epochs=1)
        axis.teardown()
        trainer.max_epochs = 2
        trainer.fit(module, self.loader(axis))
        yield from self.weights(trainer, wanted, "a second fit")

    def test_replicates(self) -> Iterator[str]:
        return self.compared(_REPLICAS)
