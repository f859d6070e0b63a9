"""check_axis: the tests that every strategy axis with a dimension of its own has to pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies.axes.axis import Axis, AxisContext
from lightlib.strategies.mesh import MeshStrategy
from lightlib.testing.kit import selected
from lightlib.testing.module import QUIET
from lightlib.testing.plain import PlainLoop
from lightlib.testing.ranks import RanksKit, in_processes

_CLIP, _REPLICAS = 0.05, 2
_ONE_STEP: dict[str, Any] = {"max_epochs": 1, "limit_train_batches": 1}


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
    common: Any = {"make_module": make_module, "tolerance": tolerance, "size": size, "make_refused": make_refused}
    here = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else None
    if here not in (None, size, _REPLICAS * size):
        raise MisconfigurationException(
            f"check_axis with size={size} was called in a world of {here} processes.",
            expected=f"{size} processes or {_REPLICAS * size} processes.",
            fix=f"start {size} processes, or call check_axis in an ordinary process.",
        )
    for replicas in (1, _REPLICAS):
        chosen = [name for name in names if (name == "replicates") == (replicas > 1)]
        options = {**QUIET, "accelerator": "cpu", "devices": replicas * size}
        kit = AxisKit(partial(make_axis, size), **common, options=options)
        if here == replicas * size:
            kit.on_ranks(chosen)
        elif here is None and chosen:
            in_processes(partial(kit.on_ranks, chosen), replicas * size, method)


def _check_data(module: Module, size: int) -> None:
    loader = module.train_dataloader()
    most = _REPLICAS * size
    if not isinstance(loader, DataLoader) or not loader.batch_size:
        state = f"returned {loader!r}"
    elif loader.batch_size % most or len(loader.dataset) % loader.batch_size:  # type: ignore[arg-type]  # it has a length
        state = f"has {len(loader.dataset)} samples in batches of {loader.batch_size}"  # type: ignore[arg-type]  # likewise
    else:
        return
    raise MisconfigurationException(
        f"{type(module).__name__}.train_dataloader {state}, which check_axis cannot divide over {most} processes.",
        expected=f"a DataLoader with full batches of a multiple of {most} samples.",
        fix=f"return DataLoader(dataset, batch_size={4 * most}) with {16 * most} samples.",
    )


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
        (name, id(layer), type(layer), len(layer._forward_hooks), len(layer._forward_pre_hooks))  # noqa: SLF001  no public list
        for name, layer in module.named_modules()
    ]
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = [(name, id(tensor), tensor.shape, float(tensor.detach().double().sum())) for name, tensor in state.items()]
    return (*modules, *values)


@dataclass(kw_only=True)
class AxisKit(RanksKit):
    """The checks of `check_axis`."""

    size: int
    make_refused: Callable[[], Module] | None
    kind, base, documentation = "axis", Axis, check_axis.__doc__
    loss_fix = "return each step's output from `around` and `enter`, and declare what the axis splits."
    norm_fix = "return parameters that only this process holds from `local_parameters`."

    def plain(self, module: Module | None = None, epochs: int = 2, **options: Any) -> PlainLoop:
        """Train a module in the reference loop, with clipping."""
        return super().plain(module, epochs, clip=partial(nn.utils.clip_grad_norm_, max_norm=_CLIP), **options)

    def fit(self, axis: Axis, around: Sequence[Axis] = (), replicas: int = 1, **options: Any) -> Trainer:
        """Train a module on an axis between those of `around`, with clipping."""
        strategy = MeshStrategy(replicate=replicas, extra_axes=[*around[:1], axis, *around[1:]])
        readers = replicas * (self.size if axis.splits_batch else 1)
        return self.trained(strategy, readers, **{**self.options, "gradient_clip_val": _CLIP, **options})

    def test_declares(self) -> Iterator[str]:
        axis = self.make()
        if not isinstance(axis, Axis):
            yield self.foreign(axis)
        elif not axis.name or axis.order is None or axis.size != self.size:
            problem = f"{type(axis).__name__} has name={axis.name!r}, order={axis.order!r} and size={axis.size!r}."
            yield self.unmet(problem, "declare name and order in the class, and let make_axis(size) set the size.")

    def test_names(self) -> Iterator[str]:
        axis, module = self.make(), self.seeded()
        expected = [name for name, _ in module.named_parameters()]
        self.fit(axis, module=module, **_ONE_STEP)
        names = [name for name, _ in module.named_parameters()]
        if axis.divides_parameters:
            every = {name for rank in self.group.collectives.all_gather_object(names) for name in rank}
            names = [name for name in expected if name in every] + sorted(every - set(expected))
        if names != expected:
            yield self.renamed(names, expected, "the parameters")

    def test_trains(self) -> Iterator[str]:
        return self.compared(self.fit(self.make()), self.plain())

    def test_saves(self) -> Iterator[str]:
        path = self.folder / "axis.ckpt"
        self.fit(self.make(), max_epochs=1).save_checkpoint(path)
        resumed = self.fit(self.make(), module=self.seeded(seed=2), ckpt_path=path)
        state = torch.load(path, weights_only=True)["state_dict"]
        yield from self.differences(state, self.plain(epochs=1).weights, "torch.load of a checkpoint")
        yield from self.weights(resumed, self.plain(), "resuming from a checkpoint")

    def test_refuses(self) -> Iterator[str]:
        before, axis, after = _Probe(), self.make(), _Probe()
        self.fit(axis, (before, after), **_ONE_STEP)
        if before.seen != after.seen:
            yield self.unmet(f"{type(axis).__name__}.check changed the module.", "move the change to `apply`.")
        elif self.make_refused is not None and (how := self.taken(self.make_refused())):
            problem = f"for the module of make_refused, {type(axis).__name__} {how}."
            yield self.unmet(problem, "test the module in `check`, not in `apply`.")

    def taken(self, module: Module) -> str:
        """Return how a module was used that should be refused, or an empty text if it was."""
        probe, before = _Probe(), _fingerprint(module)
        try:
            self.fit(self.make(), [probe], module=module, **_ONE_STEP)
        except (MisconfigurationException, OtherRankError):  # the latter where another rank refused it first
            return "applied the axes first" if probe.applied or _fingerprint(module) != before else ""
        except Exception as error:  # noqa: BLE001  any other exception is the finding
            return f"raised {type(error).__name__}: {error}".partition("\n")[0]
        return "trained it"

    def test_fits_twice(self) -> Iterator[str]:
        axis = self.make()

        def train(**options: Any) -> Trainer:
            trainer = self.fit(axis, **options)
            axis.teardown()
            return trainer

        return self.fitted_twice(train)

    def test_replicates(self) -> Iterator[str]:
        return self.compared(self.fit(self.make(), replicas=_REPLICAS), self.plain())
