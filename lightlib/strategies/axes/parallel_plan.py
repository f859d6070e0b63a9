"""ParallelPlan: a module's description of its own structure, for every strategy."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, shown
from lightlib.strategies.axes.mixture import MixtureOfExperts


@dataclass(frozen=True)
class ParallelPlan:
    """The result of ``Module.parallel_plan()``. All fields are optional; names are those of `named_modules()`.

    Args:
        blocks: Names of the repeated blocks, the units of sharding, activation checkpointing and compilation; each may
            hold wildcards (``"model.blocks.*"``). Default: the children of the largest ModuleList or Sequential.
        tensor: By module name (with wildcards) how it is split over the tensor axis: ``"colwise"``, ``"rowwise"``,
            ``"sequence"``, ``"vocab"``, or a style of `torch.distributed.tensor.parallel`.
        loss_parallel: Whether the loss is computed on scores that stay split over their classes. Default False.
        pipelined: Name of the child module that the pipeline cuts, which every step calls once. Default: the child that
            is, or holds, the container of the blocks.
        stages: Names of modules inside of `pipelined` at which a new stage begins, or one list of names per stage, for
            a forward that does without absent layers. Default: an `nn.Sequential` is cut where the parameters balance,
            and an `nn.ModuleList` between two of the layers that the forward calls one after the other.
        context_buffers: Names of batch entries or buffers that are split along the sequence by the context axis.
        sequence_dim: The dimension of the sequence in the tensors of a batch, for the context axis. Default 1.
        sequence_overlap: Tokens at the end of each part of a sequence that are also the first of the next part, for the
            context axis: 1 for a step that shifts its targets itself. Default 0.
        experts: Names of the modules that hold experts as a ModuleList or as stacked parameters, for the expert axis.

    Example:
        >>> ParallelPlan(blocks=["blocks.*"], tensor={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}).blocks
        ['blocks.*']
    """

    blocks: Sequence[str] = ()
    tensor: Mapping[str, Any] = field(default_factory=dict)
    loss_parallel: bool = False
    pipelined: str | None = None
    stages: Sequence[Any] = ()
    context_buffers: Sequence[str] = ()
    sequence_dim: int = 1
    sequence_overlap: int = 0
    experts: Sequence[str] = ()


def plan_of(module: nn.Module) -> ParallelPlan:
    """Return the module's `parallel_plan`; an empty plan when it has none.

    Raises:
        ArgumentTypeError: `parallel_plan` returned something else.
    """
    method = getattr(module, "parallel_plan", None)
    plan = method() if callable(method) else None
    if plan is None:
        return ParallelPlan()
    if isinstance(plan, Mapping):
        unknown = sorted(set(plan) - set(ParallelPlan.__dataclass_fields__))
        if unknown:
            kind = f"key of the dict that {type(module).__name__}.parallel_plan() returned,"
            raise UnknownNameError(kind, unknown[0], ParallelPlan.__dataclass_fields__)
        return ParallelPlan(**plan)
    if not isinstance(plan, ParallelPlan):
        raise ArgumentTypeError(
            f"{type(module).__name__}.parallel_plan() returned {shown(plan)}.",
            expected="a lightlib.ParallelPlan.",
            fix="return ParallelPlan(blocks=['blocks.*'])",
        )
    return plan


def matching(module: nn.Module, patterns: Sequence[str], what: str) -> dict[str, nn.Module]:
    """Return the modules that one of `patterns` matches by name, in the order of the module.

    Raises:
        MisconfigurationException: A pattern matches nothing; the message shows the names that are near.
    """
    names = dict(module.named_modules())
    all_matched: set[str] = set()
    for pattern in patterns:
        matched = {
            name for name in names if fnmatch.fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")
        }
        all_matched |= matched
        if not matched:
            text = f"{what}={pattern!r} matches no module of {type(module).__name__}."
            raise no_such_module(text, "; * stands for one part of a name.", pattern, names)
    return {name: part for name, part in names.items() if name in all_matched}


def no_such_module(what: str, more: str, name: str, known: Iterable[str]) -> MisconfigurationException:
    """Return the error for a name that no module has; `more` names further ways to write one."""
    names = [candidate for candidate in known if candidate]
    near = closest(name, names, names[0] if names else "")
    return MisconfigurationException(
        what,
        expected=f"the name of a module as in `named_modules()`{more}",
        fix=f"for instance {near!r}; the names are {', '.join(names[:12])}, …",
    )


def blocks_of(module: nn.Module, plan: ParallelPlan, chosen: Any = None, what: str = "blocks") -> dict[str, nn.Module]:
    """Return the blocks by name: those `chosen`, else those of the plan, else the largest container's children.

    Blocks are chosen by their names or a function ``(name, module) -> bool``; containers are ModuleList and Sequential.
    `what` stands in the error for a name that matches nothing.
    """
    if callable(chosen):
        return {name: part for name, part in module.named_modules() if name and chosen(name, part)}
    if chosen is not None:
        return matching(module, [chosen] if isinstance(chosen, str) else chosen, what)
    if plan.blocks:
        return matching(module, plan.blocks, "parallel_plan(): blocks")
    blocks_container = container_of(module)
    if blocks_container is None:
        return {}
    name, container = blocks_container
    prefix = f"{name}." if name else ""
    return {f"{prefix}{key}": part for key, part in container.named_children() if any(True for _ in part.parameters())}


def container_of(module: nn.Module) -> tuple[str, nn.Module] | None:
    """Return name and value of the ModuleList or Sequential with the most children that have parameters.

    Those of experts and within them do not count: experts are called side by side, each on the process that has it.
    """
    best: tuple[str, nn.Module] | None = None
    most = 1
    mixtures = [part for part in module.modules() if isinstance(part, MixtureOfExperts)]
    within_experts = {id(part) for mixture in mixtures for part in mixture.experts.modules()}
    for name, part in module.named_modules():
        if isinstance(part, (nn.ModuleList, nn.Sequential)) and id(part) not in within_experts:
            count = sum(any(True for _ in child.parameters()) for child in part.children())
            if count > most:
                best, most = (name, part), count
    return best
