"""LoRA: low-rank changes of frozen weights, for any matrix of a module, and merging them into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lightlib.errors import (
    ArgumentTypeError,
    MisconfigurationException,
    check_int,
    check_number,
    nearest,
    shown,
)

M = TypeVar("M", bound=nn.Module)


class LowRank(nn.Module):
    """The parametrization ``weight + alpha / rank · B A`` of a frozen matrix, in which A and B are trained.

    It equals `weight` before training, for B is zero. Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language
    Models", section 4.1. A weight of more dimensions is taken as a matrix of ``weight.shape[0]`` rows.

    Args:
        weight: The frozen parameter.
        rank: Columns of B and rows of A.
        alpha: The scale of the change, times `rank`.

    Example:
        >>> LowRank(torch.ones(4, 6), rank=2, alpha=2.0)(torch.ones(4, 6)).equal(torch.ones(4, 6))
        True
    """

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = _sizes(weight)
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(weight.new_empty(rank, columns))
        self.lora_B = nn.Parameter(weight.new_zeros(rows, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.scale * (self.lora_B @ self.lora_A)).view_as(weight)


def lora(module: M, names: str | Sequence[str], rank: int = 8, alpha: float = 16.0, train: Sequence[str] = ()) -> M:
    """Freeze a module, and give some of its matrices low-rank changes that are trained instead.

    The layers keep their types. `weight` of a changed layer is kept as ``parametrizations.weight.original``, frozen,
    so load pretrained weights before. A further call leaves what an earlier one trains, so ranks may differ. Where the
    ``peft`` package knows the layers, prefer it: it does not compute a changed matrix, has dropout, and its adapters
    are read by other programs.

    Args:
        module: The module, which is changed in place.
        names: Patterns, with ``*``, of the names of layers with a `weight`, or of parameters:
            ``["*.attention.in_proj_weight", "head"]``. Vectors that a pattern fits next to matrices stay as they are.
        rank: Of each change.
        alpha: A change is multiplied by ``alpha / rank``.
        train: Patterns of the names of further parameters that are trained, such as ``["head.*"]``.

    Returns:
        `module`.

    Raises:
        ArgumentTypeError: `names` or `train` are no strings.
        MisconfigurationException: A pattern fits no name, a parameter is no matrix, is changed already or belongs to
            several layers, or `rank` is not smaller than its sides.

    Example:
        >>> model = lora(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), "0", rank=2)
        >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        ['0.parametrizations.weight.0.lora_A', '0.parametrizations.weight.0.lora_B']
    """
    check_int("lora", "rank", rank, 1, example=8)
    check_number("lora", "alpha", alpha, above=0, example=16.0)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    chosen: dict[str, None] = {}
    for pattern in _patterns("names", names):
        matched = _fitting(pattern, parameters)
        matrices = [name for name in matched if parameters[name].ndim > 1]  # with them, a star fits vectors as well
        chosen |= dict.fromkeys(matrices or matched)
    trained = [name for pattern in _patterns("train", train) for name in _fitting(pattern, parameters)]
    for name in chosen:
        _check(name, parameters, rank)
    if not any(isinstance(part, LowRank) for part in module.modules()):
        module.requires_grad_(False)
    for name in trained:
        parameters[name].requires_grad_()
    for name in chosen:
        layer, _, parameter_name = name.rpartition(".")
        holder, weight = module.get_submodule(layer), parameters[name]
        parametrize.register_parametrization(holder, parameter_name, LowRank(weight, rank, alpha))
    return module


def merge_lora(module: M) -> M:
    """Add the low-rank changes to the matrices; the module has its layers and names from before `lora`.

    Args:
        module: The module, which is changed in place. Its outputs stay the same but for rounding.

    Raises:
        MisconfigurationException: It has no such change.

    Example:
        >>> model = merge_lora(lora(nn.Sequential(nn.Linear(8, 4)), "0", rank=2))
        >>> sorted(model.state_dict())
        ['0.bias', '0.weight']
    """
    adapted = [
        (holder, name)
        for holder in module.modules()
        if parametrize.is_parametrized(holder)
        for name, kinds in cast("nn.ModuleDict", holder.parametrizations).items()
        if any(isinstance(kind, LowRank) for kind in cast("nn.ModuleList", kinds))
    ]
    if not adapted:
        raise MisconfigurationException(
            f"merge_lora got {type(module).__name__}, in which no matrix has a low-rank change.",
            expected="a module that lightlib.transforms.lora has changed.",
            fix="call lora(module, names) first; an adapter of peft is merged by its merge_and_unload().",
        )
    with torch.no_grad():
        for holder, name in adapted:
            parametrize.remove_parametrizations(holder, name, leave_parametrized=True)
    return module


def _sizes(weight: Tensor) -> tuple[int, int]:
    return weight.shape[0], math.prod(weight.shape[1:])


def _patterns(argument: str, value: object) -> list[str]:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentTypeError(
            f"lora got {argument}={shown(value)}.",
            expected="a pattern of names of layers or parameters, or a list of them.",
            fix=f"lora(module, {'' if argument == 'names' else 'names, train='}['*.attention.*'])",
        )
    return list(patterns)


def _fitting(pattern: str, parameters: dict[str, nn.Parameter]) -> list[str]:
    """Return the parameters with a name that fits, or that are the weight of a layer with such a name."""
    matches = [n for n in parameters if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.weight")]
    if not matches:
        layers = [name.removesuffix(".weight") for name in parameters if name.endswith(".weight")]
        raise MisconfigurationException(
            f"lora got the pattern {pattern!r}, which fits no name.{nearest(pattern, [*layers, *parameters])}",
            expected="a name of a layer with a weight, or of a parameter, where * stands for any characters.",
            fix="print([name for name, _ in module.named_parameters()])",
        )
    return matches


def _check(name: str, parameters: dict[str, nn.Parameter], rank: int) -> None:
    weight = parameters[name]
    tied = [other for other, parameter in parameters.items() if parameter is weight and other != name]
    if tied:
        raise MisconfigurationException(
            f"lora got a pattern that fits {name!r}, which is tied to {tied[0]!r}.",
            expected="matrices of one layer: a change of a tied one would be added to all of its layers when it is "
            "merged.",
            fix="patterns that leave it out, or untie it: layer.weight = nn.Parameter(layer.weight.detach().clone()).",
        )
    if ".parametrizations." in f".{name}":
        raise MisconfigurationException(
            f"lora got a pattern that fits {name!r}, which is parametrized already.",
            expected="a matrix without a change.",
            fix="merge_lora(module) first, or patterns that leave it out.",
        )
    if weight.ndim < 2:
        raise MisconfigurationException(
            f"lora got a pattern that fits {name!r} of the shape {tuple(weight.shape)}.",
            expected="parameters of two or more dimensions.",
            fix="patterns that end in the names of such layers, and train=[…] for vectors.",
        )
    if rank >= min(_sizes(weight)):
        raise MisconfigurationException(
            f"lora got rank={rank} for {name!r} of the shape {tuple(weight.shape)}.",
            expected=f"less than {min(_sizes(weight))}: else the change is no smaller than the matrix.",
            fix=f"rank={max(1, min(_sizes(weight)) // 4)}, or train={[name]!r} to train all of it.",
        )
