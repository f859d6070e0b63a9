"""The rows of a ModelSummary, and how those of the stages of a pipeline become one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

OTHERS = "(other parameters)"
_Size = Any  # list[int], a list of sizes, or "?" where there is no tensor


@dataclass
class Layer:
    """One row of a summary.

    Attributes:
        name: The module's name within the root module; ``"(other parameters)"`` for those that are in no listed module.
        type: The class of the module.
        parameters: How many numbers its parameters hold.
        training: Whether it is in training mode; None for other parameters.
        uninitialized: Whether a parameter has no shape before the first batch.
        in_size, out_size: Shapes of what goes in and comes out, batch included; None when unknown.
        flops: Floating-point operations of one forward; None when unknown.
    """

    name: str
    type: str
    parameters: int
    training: bool | None
    uninitialized: bool = False
    in_size: _Size = None
    out_size: _Size = None
    flops: int | None = None

    def note_sizes(self, in_size: _Size, out_size: _Size) -> None:
        """Note the shapes of one forward; None if they are unknown."""
        self.in_size, self.out_size = in_size, out_size

    def note_flops(self, flops: int) -> None:
        """Note the floating-point operations of one forward."""
        self.flops = flops

    def add_parameters(self, count: int) -> None:
        """Add the parameters of another stage's part of the module."""
        self.parameters += count


def merged(stages: Iterable[Sequence[Layer]], names: Sequence[str]) -> list[Layer]:
    """Return the rows of the full module, in its order.

    Args:
        stages: The rows of each stage; every stage has different layers of the module.
        names: Of all parameters of the module, in its order. A layer without parameters stays behind its neighbour.

    Example:
        >>> first = [Layer("net", "Net", 2, True), Layer("net.0", "Linear", 2, True), Layer("net.1", "ReLU", 0, True)]
        >>> second = [Layer("net", "Net", 3, True), Layer("net.2", "Linear", 3, True)]
        >>> [(row.name, row.parameters) for row in merged([second, first], ["net.0.weight", "net.2.weight"])]
        [('net', 5), ('net.0', 2), ('net.1', 0), ('net.2', 3)]
    """
    spans = _spans(names)
    rows: dict[str, tuple[tuple[int, int, int], Layer]] = {}
    for layers in stages:
        neighbours: dict[str, int] = {}  # by parent, where the last of its children ends
        for layer in layers:
            parent = layer.name.rpartition(".")[0]
            first, last = spans.get(layer.name, (None, neighbours.get(parent, spans.get(parent, (0, 0))[0])))
            last = len(names) if layer.name == OTHERS else last
            neighbours[parent] = last
            if layer.name in rows:
                rows[layer.name][1].add_parameters(layer.parameters)
            else:
                place = (last, len(names)) if first is None else (first, layer.name.count("."))
                rows[layer.name] = ((*place, len(rows)), layer)
    return [layer for _, layer in sorted(rows.values(), key=lambda row: row[0])]


def _spans(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return for each module the places of its first and its last parameter."""
    spans: dict[str, tuple[int, int]] = {}
    for place, name in enumerate(names):
        module = name.rpartition(".")[0]
        while module:
            spans[module] = (spans.get(module, (place, place))[0], place)
            module = module.rpartition(".")[0]
    return spans
