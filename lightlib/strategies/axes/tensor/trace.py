"""Groups of Linear layers of a forward that can be split together, from a symbolic trace of it."""

from __future__ import annotations

import copy
import inspect
import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from lightlib.torch_private import drop_tensors

ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Identity, nn.Dropout,
)  # fmt: skip
_OF_FUNCTIONAL = (
    "relu", "relu6", "leaky_relu", "gelu", "silu", "elu", "celu", "selu", "mish", "tanh", "sigmoid", "softplus",
    "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "dropout",
)  # fmt: skip
_FUNCTIONS: frozenset[Any] = frozenset({
    *(getattr(functional, name) for name in _OF_FUNCTIONAL),
    torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.abs, torch.square, torch.sin, torch.cos, torch.mul,
    torch.add, torch.sub, torch.clamp, torch.pow, operator.mul, operator.add, operator.sub, operator.truediv,
    operator.pow, operator.neg,
})  # fmt: skip
_METHODS = frozenset({
    "relu", "tanh", "sigmoid", "exp", "abs", "square", "sin", "cos", "mul", "add", "sub", "div", "pow", "neg", "clamp",
    "contiguous", "clone", "float", "half", "bfloat16", "double", "relu_", "mul_", "tanh_", "sigmoid_",
})  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Linear layers that are split together.

    Attributes:
        first: Names of those whose outputs are split.
        second: Names of those that take them.
        elementwise: Whether only elementwise functions are in between, so that any split is correct.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    elementwise: bool


@dataclass
class Traced:
    """The result of a trace: groups, and for each other Linear layer the reason why it is in none."""

    groups: list[Group] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def structure_of(part: nn.Module) -> nn.Module:
    """Return a copy of `part` that shares its parameters and buffers."""
    return copy.deepcopy(part, {id(parameter): parameter for parameter in (*part.parameters(), *part.buffers())})


def trace(part: nn.Module, within: str = "") -> Traced | None:
    """Return the groups in the forward of `part`, by names with the prefix `within`; None if it cannot be traced."""
    try:
        root = structure_of(part).eval()  # a copy, because a forward may keep values in attributes
        parameters = inspect.signature(root.forward).parameters.values()
        leaves = {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
        }
        graph = _Tracer().trace(root, leaves or None)
    except Exception:  # noqa: BLE001  a forward is any code; if it cannot be traced, its children are
        return None
    analysis = _Analysis(graph, root, within).result()
    drop_tensors(root)  # a graph and its tracer hold each other, and would hold unsplit parameters
    return analysis


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True


class _Analysis:
    """Follows the outputs of each Linear layer to the layers that take them."""

    def __init__(self, graph: fx.Graph, root: nn.Module, within: str) -> None:
        self._prefix, self._type = f"{within}." if within else "", type(root).__name__
        self._modules = dict(root.named_modules())
        self._calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
        self._linear = [node for node in graph.nodes if self._is_linear(node)]
        self._left: dict[str, str] = {}
        self._ends: dict[fx.Node, set[fx.Node]] = {}  # of each first layer: the second ones
        self._between: dict[fx.Node, set[fx.Node]] = {}

    def result(self) -> Traced:
        for node in self._linear:
            reason = self._follow(node)
            reason = "it is called several times" if self._calls[str(node.target)] > 1 else reason
            if reason:
                self._left[self._name(node)] = reason
                del self._ends[node]
        self._choose()
        groups = [group for firsts in self._joined() if (group := self._group(firsts)) is not None]
        grouped = {name for group in groups for name in (*group.first, *group.second)}
        for node in self._linear:
            if self._name(node) not in grouped:
                self._left.setdefault(self._name(node), "no layer gives it outputs that can be split")
        return Traced(groups, self._left)

    def _follow(self, first: fx.Node) -> str:
        """Find the layers that take the outputs of `first`; return the reason if something else uses them too."""
        ends: set[fx.Node] = set()
        between: set[fx.Node] = set()
        waiting = [first]
        self._ends[first], self._between[first] = ends, between
        while waiting:
            for user in waiting.pop().users:
                if user.op == "output":
                    return f"its outputs are results of {self._type}"
                if self._is_linear(user):
                    ends.add(user)
                elif user.op == "call_module" and any(True for _ in self._modules[str(user.target)].parameters()):
                    kind = type(self._modules[str(user.target)]).__name__
                    return f"its outputs go to {self._name(user)} ({kind})"
                elif user not in between:
                    between.add(user)
                    waiting.append(user)
        return "" if ends else "no layer takes its outputs"

    def _choose(self) -> None:
        """Choose the first layers, those of one module first, so that no layer is both first and second."""
        first: set[fx.Node] = set()
        second: set[fx.Node] = set()
        for near in (True, False):
            for node, ends in self._ends.items():
                owners = {str(member.target).rpartition(".")[0] for member in (node, *ends)}
                if node not in second and not ends & first and (len(owners) == 1 or not near):
                    first.add(node)
                    second |= ends
        for node in [node for node in self._ends if node not in first]:
            del self._ends[node]
            if node not in second:
                self._left[self._name(node)] = "layers that take its outputs are split otherwise"

    def _joined(self) -> list[list[fx.Node]]:
        """Return the first layers, together those that share a second one."""
        joined: list[list[fx.Node]] = []
        for node, ends in self._ends.items():
            same = [firsts for firsts in joined if any(ends & self._ends[first] for first in firsts)]
            joined = [firsts for firsts in joined if firsts not in same]
            joined.append([*(first for firsts in same for first in firsts), node])
        return joined

    def _group(self, firsts: list[fx.Node]) -> Group | None:
        ends = set().union(*(self._ends[first] for first in firsts))
        between = set().union(*(self._between[first] for first in firsts))
        seconds = [node for node in self._linear if node in ends]
        strangers = [node for node in self._sources([*seconds, *between]) if node not in firsts and node not in between]
        for node in strangers:
            if self._is_linear(node):
                for member in (*firsts, *seconds):
                    self._left[self._name(member)] = f"{self._name(node)} is used together with it"
                return None
        widths = {self._modules[str(node.target)].out_features for node in firsts}
        widths |= {self._modules[str(node.target)].in_features for node in seconds}
        simple = len(widths) == 1 and not strangers and all(self._is_elementwise(node) for node in between)
        return Group(tuple(map(self._name, firsts)), tuple(map(self._name, seconds)), simple)

    def _sources(self, nodes: list[fx.Node]) -> list[fx.Node]:
        return [source for node in nodes for source in node.all_input_nodes]

    def _is_linear(self, node: fx.Node) -> bool:
        return node.op == "call_module" and type(self._modules[str(node.target)]) is nn.Linear

    def _is_elementwise(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(self._modules[str(node.target)], ELEMENTWISE)
        return node.target in (_FUNCTIONS if node.op == "call_function" else _METHODS)

    def _name(self, node: fx.Node) -> str:
        return f"{self._prefix}{node.target}"
