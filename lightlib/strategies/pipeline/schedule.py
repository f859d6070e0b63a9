"""Schedules of a pipeline: their names and rules, numbers of micro-batches, one for each shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from packaging.version import Version
from torch import Tensor, nn

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.strategies.pipeline.chain import Chain
from lightlib.strategies.pipeline.stage import Call, Stage
from lightlib.torch_private import flattened, structured


@dataclass(frozen=True)
class Kind:
    """Properties of one of torch's schedules.

    Attributes:
        name: As users write it.
        torch_name: The class in `torch.distributed.pipelining`.
        several: Whether each process has several stages.
        v: Whether stages go forth and back over the processes, so that the first has the last stage as well.
        zero_bubble: Whether gradients of inputs and of weights are computed at different times.
        since: The oldest torch that is accepted for it: with an older one it fails on CPUs. None: every one.
    """

    name: str
    torch_name: str
    several: bool = False
    v: bool = False
    zero_bubble: bool = False
    since: str | None = None

    def rule(self, number: int, stages: int, processes: int) -> tuple[bool, str]:
        """Return whether the schedule works with `number` micro-batches, and the rule in words."""
        if self.name in ("1f1b", "dualpipev"):
            return number >= stages, f"at least {stages}, one for each stage"
        if self.name in ("interleaved", "interleaved_zero_bubble"):
            multiple = number % max(1, number // processes) == 0
            return multiple, f"a multiple of {processes}, the number of processes"
        return number >= 1, "at least 1"

    def check_torch(self, version: str) -> None:
        """Check that this version of torch can run the schedule: an older one has a process send to itself.

        Raises:
            MisconfigurationException: It is too old.
        """
        if self.since and Version(version) < Version(self.since):
            raise MisconfigurationException(
                f"The schedule {self.name!r}, with torch {version}.",
                expected=f"torch {self.since} or newer for this schedule.",
                fix=f'schedule="interleaved_zero_bubble", or `pip install "torch>={self.since}"`.',
            )


ScheduleName = Literal["gpipe", "1f1b", "interleaved", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"]
SCHEDULES = {
    kind.name: kind
    for kind in (
        Kind("gpipe", "ScheduleGPipe"),
        Kind("1f1b", "Schedule1F1B"),
        Kind("interleaved", "ScheduleInterleaved1F1B", several=True),
        Kind("looped_bfs", "ScheduleLoopedBFS", several=True),
        Kind("interleaved_zero_bubble", "ScheduleInterleavedZeroBubble", several=True, zero_bubble=True),
        Kind("zbv", "ScheduleZBVZeroBubble", several=True, v=True, zero_bubble=True, since="2.12"),
        Kind("dualpipev", "ScheduleDualPipeV", several=True, v=True, zero_bubble=True, since="2.12"),
    )
}


def kind_of(schedule: str) -> Kind:
    """Return the schedule of a name: ours, or that of torch's class with or without ``"Schedule"``.

    Raises:
        UnknownNameError: There is no such schedule.

    Example:
        >>> kind_of("Interleaved1F1B").name
        'interleaved'
    """
    normalized = str(schedule).lower().replace("-", "_")
    for kind in SCHEDULES.values():
        if normalized in (kind.name, kind.torch_name.lower(), kind.torch_name.lower().removeprefix("schedule")):
            return kind
    raise UnknownNameError("schedule", schedule, SCHEDULES, fix='Pipeline(2, schedule="1f1b")')


def placed(kind: Kind, processes: int, per_process: int) -> list[int]:
    """Return the process of each stage.

    Example:
        >>> placed(kind_of("interleaved"), 2, 2), placed(kind_of("zbv"), 2, 2)
        ([0, 1, 0, 1], [0, 1, 1, 0])
    """
    once = list(range(processes))
    if kind.v:
        return [*once, *reversed(once)]
    return once * per_process


def in_one_piece(kind: Kind) -> Kind:
    """Return the schedule, with the stages in the same places, for a batch that `kind` cannot cut."""
    return SCHEDULES["zbv" if kind.v else "looped_bfs" if kind.several else "gpipe"]


def micro_batches(kind: Kind, size: int, asked: int | None, stages: int, processes: int, full: bool) -> int:
    """Return into how many micro-batches a batch of `size` samples is cut; 0: it does not go through the schedule.

    Args:
        asked: What the user wants; None is two for each stage, as far as that divides the batch.
        full: Whether this is a batch of the full size, and not the rest at the end of an epoch.

    Raises:
        MisconfigurationException: A full batch cannot be cut so.
    """
    fitting = [n for n in range(1, size + 1) if size % n == 0 and kind.rule(n, stages, processes)[0]]
    if asked is not None:
        if asked in fitting:
            return asked
        if full:
            raise _does_not_divide(kind, size, asked, stages, processes, fitting)
        return max((n for n in fitting if n <= asked), default=0)
    smaller = [n for n in fitting if n <= 2 * stages]
    if smaller and max(smaller) >= min(stages, size):
        return max(smaller)
    if fitting:
        return min((n for n in fitting if n > 2 * stages), default=max(fitting))
    if full:
        raise _does_not_divide(kind, size, None, stages, processes, fitting)
    return 0


def _does_not_divide(
    kind: Kind, size: int, asked: int | None, stages: int, processes: int, fitting: Sequence[int]
) -> MisconfigurationException:
    number = f"{asked} micro-batches" if asked is not None else "equal micro-batches"
    would = ", ".join(map(str, fitting[:8]))
    needed = stages if kind.name in ("1f1b", "dualpipev") else processes
    return MisconfigurationException(
        f"A batch of {size} samples cannot be cut into {number} for the schedule {kind.name!r}.",
        expected=f"a number that divides the batch and is {kind.rule(size, stages, processes)[1]}"
        + (f": {would}." if would else "; no number does."),
        fix=f"microbatches={fitting[-1] if not asked else min(fitting, key=lambda n: abs(n - asked))}, "
        "or another batch_size."
        if fitting
        else f"batch_size={max(1, -(-size // needed)) * needed}, or schedule='gpipe'.",
    )


class _Shaped(nn.Module):
    """A stage for tensors of one shape, as torch's schedules call it: tensors in, tensors out.

    `received` and `output` are examples, of which it keeps the structure and the shapes.
    """

    def __init__(self, stage: Stage, engine: Engine, apart: bool, received: Any, output: Any) -> None:
        super().__init__()
        self.__dict__["stage"] = stage
        self.engine = engine
        self.apart = apart  # zero bubble: torch detaches outputs in place between the gradients of inputs and weights
        self.arrives, inputs = _described(received)  # the structure, with tensors marked
        self.leaves, outputs = _described(output)
        self.inputs = _shapes(inputs if stage.index else [torch.zeros(1, dtype=torch.long)])
        self.outputs = _shapes(outputs)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.__dict__["stage"].parameters()  # type: ignore[no-any-return]

    def forward(self, *tensors: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        stage: Stage = self.__dict__["stage"]
        received = None if stage.index == 0 else _filled(self.arrives, tensors)
        try:
            output = stage(received, self.engine.calls[number_of(index)])
        except BaseException as error:
            self.engine.errors.append(error)
            raise
        if stage.is_last:
            self.engine.last_outputs.append(output)
            return tuple(leaf.detach() for leaf in _described(output)[1])
        leaves, sent = _described(output)
        if leaves != self.leaves:
            uneven = MisconfigurationException(
                f"Stage {stage.index} of the pipeline returned {leaves} for one micro-batch and {self.leaves} for "
                "another one.",
                expected="the same structure and the same plain values for each micro-batch.",
                fix="return tensors only.",
            )
            self.engine.errors.append(uneven)
            raise uneven
        return tuple(leaf.clone() if self.apart and leaf.requires_grad else leaf.contiguous() for leaf in sent)


_TENSOR = "a tensor"
number_of: Callable[[Tensor], int] = int  # of a micro-batch, as torch's schedules hand it on; a simulation replaces it


def _described(value: Any) -> tuple[Any, list[Tensor]]:
    if type(value) is Tensor:
        return _TENSOR, [value]
    leaves, structure = flattened(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return ([_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure), tensors


def _filled(described: Any, tensors: Sequence[Tensor]) -> Any:
    if described is _TENSOR:
        return tensors[0]
    left = iter(tensors)
    marked, structure = described
    return structured([next(left) if entry is _TENSOR else entry for entry in marked], structure)


class Engine:
    """A schedule for micro-batches of one shape, with its stages.

    Making one runs a micro-batch forward, without gradients, so that every process knows what it receives; buffers and
    random numbers are as before.

    Args:
        call: The first micro-batch's call of the part, on processes that know it.

    Attributes:
        calls: The calls of the micro-batches of the batch that runs.
        last_outputs: The output of the last stage, until its loss is computed.
        errors: What users' code raised, which torch hides.
    """

    def __init__(self, kind: Kind, number: int, chain: Chain, call: Call | None) -> None:
        from torch.distributed import pipelining  # optional: slow to import, and only for pipelines

        # After an error torch prints the full schedule as a table, which hides the error.
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
        self._each = torch.arange(number)
        self.loss_of: Callable[[int, Any], Tensor] | None = None
        self.calls: Sequence[Call | None] = ()
        self.last_outputs: list[Any] = []
        self.errors: list[BaseException] = []
        shapes = _look(chain, call)
        self.has_first, self.has_last = 0 in chain.stages, len(chain.ranks) - 1 in chain.stages
        stages = []
        for index, stage in sorted(chain.stages.items()):
            shaped = _Shaped(stage, self, kind.zero_bubble, *shapes[index])
            stages.append(
                pipelining.PipelineStage(
                    shaped, index, len(chain.ranks), chain.device, input_args=shaped.inputs,
                    output_args=shaped.outputs, group=chain.group,
                )
            )  # fmt: skip
        options = {"loss_fn": self._loss, "scale_grads": False}
        make_schedule = getattr(pipelining, kind.torch_name)
        self.schedule = make_schedule(stages if kind.several else stages[0], number, **options)

    def run(self, calls: Sequence[Call | None], loss_of: Callable[[int, Any], Tensor]) -> None:
        """Run all micro-batches forward and backward; the last stage calls ``loss_of(index, output)`` for each."""
        self.calls, self.loss_of = calls, loss_of
        self.errors.clear()
        each = self._each
        inputs, target = (each,) if self.has_first else (), each if self.has_last else None
        try:
            self.schedule.step(*inputs, index=each, target=target, return_outputs=False)
        except Exception as error:
            if not self.errors or self.errors[0] is error:
                raise
            raise self.errors[0] from None  # torch reports only "failed to run forward"
        finally:
            self.calls, self.loss_of = (), None

    def _loss(self, _: Any, target: Tensor) -> Tensor:
        assert self.loss_of is not None, "torch calls this within `run`"
        try:
            return self.loss_of(number_of(target), self.last_outputs.pop()).clone()
        except BaseException as error:
            self.errors.append(error)
            raise


def _shapes(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors of the same shapes without memory, of which all that can have a gradient have one."""
    described = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors]
    return tuple(leaf.requires_grad_(leaf.is_floating_point() or leaf.is_complex()) for leaf in described)


def _look(chain: Chain, call: Call | None) -> dict[int, tuple[Any, Any]]:
    """Return the input and output of each stage of this process for one micro-batch."""
    shapes: dict[int, tuple[Any, Any]] = {}

    def observe(index: int, received: Any, output: Any) -> None:
        shapes[index] = received, output
        stage = chain.stages[index]
        if stage.split.kind == "blocks" and _broken(output) and not _broken(received):
            with stage.absent_values.harmless():
                again = stage(received, call)
            if not _broken(again):
                raise stage.used_in_later_stage()

    part = next(iter(chain.stages.values())).split.part
    buffers = {buffer: buffer.clone() for buffer in part.buffers()}
    with chain.accelerator.fork_rng(chain.device), torch.no_grad():
        chain.forward(call, observe)
        for buffer, value in buffers.items():
            buffer.copy_(value)
    return shapes


def _broken(value: Any) -> bool:
    """Return whether a value is not a number somewhere."""
    leaves, _ = flattened(value)
    return any(isinstance(leaf, Tensor) and leaf.is_floating_point() and bool(leaf.isnan().any()) for leaf in leaves)


def shape_of(call: Call) -> Hashable:
    """Return the key of a schedule: shapes, dtypes and structure."""
    args, kwargs = call
    if len(args) == 1 and type(args[0]) is Tensor and not kwargs:
        return args[0].shape, args[0].dtype
    leaves, structure = flattened(call)
    kinds = [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves]
    return *kinds, str(structure)
