"""Pipeline: every process has some layers, and micro-batches flow through them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from lightlib.errors import MisconfigurationException, check_int, wrong_type
from lightlib.report import PossibleUserWarning, warn
from lightlib.strategies.axes.axis import Axis, AxisContext, LocalParameters, Step
from lightlib.strategies.axes.optimizer_checks import refuse_all_at_once
from lightlib.strategies.pipeline.chain import Chain
from lightlib.strategies.pipeline.cut import Cut
from lightlib.strategies.pipeline.schedule import Kind, ScheduleName, kind_of, placed
from lightlib.strategies.pipeline.split import Split, Unit, find_split, outside
from lightlib.strategies.pipeline.stage import keep
from lightlib.strategies.pipeline.training import Training
from lightlib.tree import to_device

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Pipeline(Axis):
    """Every process has some of the layers; batches are cut into micro-batches that flow through them.

    The module is written as for one device, with one rule: **a step calls the pipelined part exactly once, and no
    parameter is used before that call.** The step is cut at the call: the process with the first stage runs what stands
    before it, the one with the last stage what stands after it, once per micro-batch, and there `self.log` and metrics
    work as always. Layers outside of the pipelined part belong to the last stage.

    What is cut: an `nn.Sequential` where its parameters balance; an `nn.ModuleList` whose layers a forward calls one
    after the other (what is defined before it goes to the first stage, what is defined after it to the last); anything
    else by `stages`, if its forward does without absent layers.

    Args:
        size: Processes; -1: as many as there are left.
        schedule: ``"gpipe"``, ``"1f1b"`` (default), and with two stages per process ``"interleaved"``,
            ``"looped_bfs"``, ``"interleaved_zero_bubble"``, ``"zbv"``, ``"dualpipev"``; or torch's names for them.
        microbatches: Into how many a batch is cut. Default: two for each stage, as far as that divides the batch.
        stages_per_rank: Stages of each process. Default: 1, or 2 where the schedule needs several.
        stages: In place of `parallel_plan().stages`: names of layers at which a stage begins, or one list of names for
            each stage.

    Attributes:
        zero_bubble: Whether the schedule computes gradients of weights apart.
        has_last: Whether this process has the last stage, and so sees losses and what steps return.

    Raises:
        UnknownNameError: There is no such schedule.
        MisconfigurationException: `stages_per_rank` or `microbatches` do not go with the schedule.

    Example:
        >>> Pipeline(2, schedule="zbv").stages_per_rank
        2
    """

    name = "pipeline"
    order = 10
    divides_parameters = True
    runs_microbatches = True
    # set by `check`, `apply` and `enter`
    _split: Split
    _chain: Chain
    _cut: Cut
    _module: nn.Module
    _site: AxisContext
    _step: Step

    def __init__(
        self,
        size: int = 1,
        *,
        schedule: ScheduleName = "1f1b",
        microbatches: int | None = None,
        stages_per_rank: int | None = None,
        stages: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        self.size, self.kind = size, kind_of(schedule)
        for name, value in (("microbatches", microbatches), ("stages_per_rank", stages_per_rank)):
            if value is not None:
                check_int("Pipeline", name, value, 1, meaning=", or None", example=4)
        self.microbatches = microbatches
        self.stages_per_rank = stages_per_rank or (2 if self.kind.several else 1)
        _check_stages_per_rank(self.kind, self.stages_per_rank)
        if isinstance(stages, str) or not isinstance(stages, Sequence):
            expected = "a list of names at which a stage begins, or of one list of names for each stage"
            raise wrong_type("Pipeline", "stages", stages, expected, '["model.blocks.4"]')
        self.stages = list(stages)
        self.zero_bubble, self.has_last = self.kind.zero_bubble, True
        self.options = frozenset({"zero_bubble"} if self.zero_bubble else ())

    # the module
    def check(self, module: nn.Module, site: AxisContext) -> None:
        if not site.automatic:
            raise MisconfigurationException(
                f"{type(module).__name__} has automatic_optimization=False, and the strategy is a pipeline.",
                expected="automatic optimization: the schedule differentiates micro-batches, not the step.",
                fix='strategy="ddp" or "fsdp", or automatic_optimization=True.',
            )
        self.kind.check_torch(torch.__version__)
        size = site.sizes["pipeline"]
        count = size * self.stages_per_rank
        split = find_split(module, site.plan, self.stages, count)
        ranks = placed(self.kind, size, self.stages_per_rank)
        _refuse_shared(module, split, ranks)
        if split.kind == "named" and self.stages_per_rank > 1:
            _refuse_own_parameters(split)
        norms = [
            name
            for name, layer in split.part.named_modules()
            if isinstance(layer, _BATCH_NORMS) and layer.track_running_stats
        ]
        if norms:
            warn(
                f"{norms[0]} (and {len(norms) - 1} more) is a batch normalisation within a pipeline: its statistics "
                "are those of micro-batches, not of batches.",
                PossibleUserWarning,
            )
        self._split = split

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        split = self._split
        del self._split  # it has the layers of all stages
        group, rank = site.mesh["pipeline"].get_group(), site.coordinate("pipeline")
        ranks = placed(self.kind, site.sizes["pipeline"], self.stages_per_rank)
        local_stages = [index for index, stage_rank in enumerate(ranks) if stage_rank == rank]
        self.has_last = ranks[-1] == rank
        stages = keep(module, split, local_stages, len(ranks), site.device, site.context)
        self._cut = Cut(module, split.part, split.name, site.device, site.accelerator)
        self._chain, self._module = Chain(group, ranks, stages, site.device, site.accelerator), module
        self._site = site
        site.cut_at(split.part)

    @property
    def sees_loss(self) -> bool:  # type: ignore[override]
        """Whether this process has the last stage."""
        return self.has_last

    def local_parameters(self) -> LocalParameters:
        """Return all parameters: stages have none in common."""
        return LocalParameters(self._chain.group)

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Refuse an optimizer that cannot step some of the parameters alone."""
        refuse_all_at_once(optimizer, "in a pipeline")
        return optimizer

    # the steps
    def enter(self, name: str, method: Step) -> Step:
        if name == "training_step":
            self._step = method
            return method
        return partial(self._evaluate, name, method)

    def around(self, step: Step) -> Step:
        """Return the schedule, which runs a batch in place of `step`."""
        return Training(self.kind, self.microbatches, self._chain, self._cut, self._module, self._step, self._site)

    def _evaluate(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        """Run one batch forward through all stages, and the step on the last one."""
        chain, cut, site = self._chain, self._cut, self._site
        message = torch.zeros(2, dtype=torch.long)
        first, call = chain.rank == chain.ranks[0], None
        if first:
            seed = random.getrandbits(31)  # not torch's generator: samplers shuffle as on one device
            call = cut.capture(method, seed, args)
            message = torch.tensor([seed, int(call is not None)])
        distributed.broadcast(message, group=chain.group, group_src=chain.ranks[0])
        seed, called = message.tolist()
        if called and not first and chain.captures:
            call = cut.capture(method, seed, args)
        output = chain.forward(call) if called else None
        result = None
        if self.has_last:
            result = cut.replay(method, name, seed, args, output) if called else method(*args)
        if name == "predict_step":
            box = [to_device(result, torch.device("cpu"))]
            distributed.broadcast_object_list(box, group=chain.group, group_src=chain.ranks[-1])
            return result if self.has_last else to_device(box[0], site.device, site.accelerator.has_streams)
        return result


def _check_stages_per_rank(kind: Kind, number: int) -> None:
    if kind.v and number != 2:
        expected = "2: stages go forth and back over the processes."
    elif not kind.several and number != 1:
        expected = "1; several stages for each process need 'interleaved', 'looped_bfs' or 'interleaved_zero_bubble'."
    else:
        return
    raise MisconfigurationException(
        f"stages_per_rank={number} with schedule={kind.name!r}.", expected=expected, fix="leave stages_per_rank out."
    )


def _refuse_shared(module: nn.Module, split: Split, ranks: Sequence[int]) -> None:
    """Refuse parameters that two processes would hold: their gradients would go apart."""
    holders: dict[int, tuple[str, int]] = {}
    units: list[tuple[Unit, int]] = list(zip(split.units, [ranks[stage] for stage in split.stages], strict=True))
    units += [(unit, ranks[-1]) for unit in outside(module, split.part)]
    for unit, rank in units:
        value = unit.value
        parameters = value.named_parameters(remove_duplicate=False) if isinstance(value, nn.Module) else [("", value)]
        for inner, parameter in parameters:
            name = f"{unit.name}.{inner}".rstrip(".")
            other, where = holders.setdefault(id(parameter), (name, rank))
            if where != rank:
                raise MisconfigurationException(
                    f"{other} and {name} are one parameter, but the layers are on two processes of the pipeline "
                    f"({where} and {rank}).",
                    expected="a parameter on one process; with the schedules 'zbv' and 'dualpipev' the first process "
                    "has the last stage as well.",
                    fix="Pipeline(schedule='zbv'), or two parameters.",
                )


def _refuse_own_parameters(split: Split) -> None:
    names = [unit.name for unit in split.units if not isinstance(unit.value, nn.Module)]
    if names:
        raise MisconfigurationException(
            f"{names[0]} is a parameter that the pipelined part holds itself, and each process has several stages.",
            expected="parameters inside of layers, when stages are named and stages_per_rank is more than 1.",
            fix=f"move {names[0]} into a layer of its own, or use a schedule with one stage per process.",
        )
