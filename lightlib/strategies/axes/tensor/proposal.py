"""The plan of a module that has none: which Linear layers are split, and why the rest is not."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lightlib.strategies.axes.tensor.layer_names import below, by_reason, groups_by_name, head_attributes, patterns
from lightlib.strategies.axes.tensor.planes import odd_columns
from lightlib.strategies.axes.tensor.trace import Group, trace
from lightlib.strategies.axes.tensor.trial import objection
from lightlib.torch_private import tied_parameters


@dataclass
class Proposal:
    """A plan without a plan of the module.

    Attributes:
        styles: ``"colwise"`` or ``"rowwise"`` by name.
        parts: The groups by the name of the module whose forward computes them.
        heads: ``(module, attribute, number)`` of the numbers of heads to divide.
        left: By name of each other Linear layer, the reason why it is not split.
    """

    styles: dict[str, str] = field(default_factory=dict)
    parts: dict[str, list[Group]] = field(default_factory=dict)
    heads: list[tuple[str, str, int]] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def split(self, part: str, group: Group, heads: list[tuple[str, str, int]]) -> None:
        """Add a group of the forward of `part`."""
        names = (*group.first, *group.second)
        self.styles |= {name: "colwise" if name in group.first else "rowwise" for name in names}
        self.parts.setdefault(part, []).append(group)
        self.heads += heads

    def leave(self, names: Iterable[str], reason: str) -> None:
        """Note why layers are not split."""
        self.left |= dict.fromkeys(names, reason)

    def finish(self, names: Iterable[str]) -> None:
        """Give every layer that is not split a reason, in the order of `names`."""
        reasons = {name: self.left.get(name, "no forward that can be traced calls it") for name in names}
        self.left = {name: reason for name, reason in reasons.items() if name not in self.styles}

    def described(self, module: nn.Module, size: int, columns: int = 1) -> str:
        """Return the plan as the text that is logged."""
        lines = []
        for part, group in ((part, group) for part, groups in self.parts.items() for group in groups):
            short = [[below(name, part) for name in names] for names in (group.first, group.second)]
            heads = [f"{key} {count} -> {count // size}" for name, key, count in self.heads if _within(name, group)]
            text = f"{', '.join(short[0])} colwise, then {', '.join(short[1])} rowwise"
            lines.append((part, text + (f" ({', '.join(heads)})" if heads else "")))
        shown = [f"  {name or type(module).__name__}: {text}" for name, text in _joined(lines, module)]
        left = [f"  {names}: {reason}" for names, reason in by_reason(self.left, module)]
        return "\n".join([
            f"tensor={size}{f' x {columns}' if columns > 1 else ''} splits, without a plan of {type(module).__name__}:",
            *shown,
            *(["Linear layers that stay in full on every process:", *left] if left else []),
            "The first forward compares the outputs of the split layers with those of unsplit ones.",
        ])  # fmt: skip


def proposed(module: nn.Module, size: int, full: Container[str] = (), columns: int = 1) -> Proposal:
    """Return which Linear layers of `module` can certainly be split over `size` processes.

    The forward of each module is traced, the largest first. Linear layers with nothing but elementwise functions
    between them are split; the rest, such as those of attention, if a trial with random weights gives the same results.
    Where nothing can be traced, layers with the usual names are tried. Those named in `full` are not split. `size` is
    the number of rows if there are `columns`.
    """
    proposal = Proposal()
    shared = {id(part) for tied in tied_parameters(module) for part, _ in tied}
    tried: dict[Any, str] = {}
    for group in _groups(module, proposal):
        part = _common(module, (*group.first, *group.second))
        heads = [] if group.elementwise else head_attributes(module, group.first, part)
        reason = _odd(module, group, heads, size, shared, full)
        reason = reason or _odd_columns(module, group, columns)
        if not reason and not group.elementwise:
            first, second = (tuple(below(name, part) for name in names) for names in (group.first, group.second))
            local = Group(first, second, False)
            inside = [(below(name, part), key, count) for name, key, count in heads]
            holder = module.get_submodule(part)
            key = (type(holder), str(holder), local, str(inside), _scalars(holder))
            if key not in tried:
                tried[key] = objection(holder, local, inside, size)
            reason = tried[key]
        if reason:
            proposal.leave((*group.first, *group.second), reason)
            continue
        proposal.split(part, group, heads)
    proposal.finish([name for name, part in module.named_modules() if type(part) is nn.Linear])
    return proposal


def _groups(module: nn.Module, proposal: Proposal) -> Iterator[Group]:
    """Yield the groups of all modules; note why other layers are in none."""
    traced: list[str] = []
    grouped: set[str] = set()
    for name, part in module.named_modules():
        if any(name.startswith(f"{traced_name}.") or not traced_name for traced_name in traced):
            continue
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)) or not _has_linear(part):
            continue
        result = trace(part, name)
        if result is None:
            continue
        traced.append(name)
        for layer, reason in result.left.items():
            proposal.leave([layer], reason)
        for group in result.groups:
            grouped |= {*group.first, *group.second}
            yield group
    for name, group in groups_by_name(module):
        if not grouped & {*group.first, *group.second}:
            is_traced = any(name.startswith(f"{traced_name}.") or traced_name in {name, ""} for traced_name in traced)
            if group.elementwise or not is_traced:
                yield group


def _has_linear(part: nn.Module) -> bool:
    return sum(type(child) is nn.Linear for child in part.modules()) > 1


def _common(module: nn.Module, names: tuple[str, ...]) -> str:
    """Return the innermost module that has a forward and holds all `names`."""
    parts = [name.split(".")[:-1] for name in names]
    depth = 0
    while all(len(part) > depth and part[depth] == parts[0][depth] for part in parts):
        depth += 1
    while depth and isinstance(module.get_submodule(".".join(parts[0][:depth])), (nn.ModuleList, nn.ModuleDict)):
        depth -= 1
    return ".".join(parts[0][:depth])


def _odd(
    module: nn.Module,
    group: Group,
    heads: list[tuple[str, str, int]],
    size: int,
    shared: Container[int],
    full: Container[str],
) -> str:
    """Return why the plan, the sizes or the sharing of parameters exclude the group; empty if they do not."""
    kept = [name for name in (*group.first, *group.second) if name in full]
    if kept:
        return f"the plan keeps {', '.join(kept)} in full"
    for name in (*group.first, *group.second):
        layer = module.get_submodule(name)
        dimension = "out_features" if name in group.first else "in_features"
        if id(layer) in shared:
            return f"{name} shares a parameter with another layer"
        if getattr(layer, dimension) % size:
            return f"{size} does not divide {dimension}={getattr(layer, dimension)} of {name}"
    for name, key, count in heads:
        if count % size:
            return f"{size} does not divide {key}={count} of {name or type(module).__name__}"
    return ""


def _odd_columns(module: nn.Module, group: Group, columns: int) -> str:
    styles = {**dict.fromkeys(group.first, "colwise"), **dict.fromkeys(group.second, "rowwise")}
    reasons = (odd_columns(name, module.get_submodule(name), style, columns) for name, style in styles.items())
    return next(filter(None, reasons), "")


def _scalars(part: nn.Module) -> str:
    kinds = (bool, int, float, str, type(None))
    return str(
        [{key: scalar for key, scalar in vars(child).items() if isinstance(scalar, kinds)} for child in part.modules()]
    )


def _joined(lines: list[tuple[str, str]], module: nn.Module) -> list[tuple[str, str]]:
    """Return names with their texts, one line with * for repeated modules with the same text."""
    texts: dict[str, tuple[str, ...]] = {}
    for name, text in lines:
        texts[name] = (*texts.get(name, ()), text)
    return [(name, text) for name, texts_of_pattern in patterns(texts, module).items() for text in texts_of_pattern]


def _within(name: str, group: Group) -> bool:
    return any(layer.rpartition(".")[0] == name for layer in group.first)
