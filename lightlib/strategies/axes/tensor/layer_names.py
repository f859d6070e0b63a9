"""Names that layers of attention and of networks usually have, and a plan from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from lightlib.strategies.axes.tensor.trace import ELEMENTWISE, Group

_PROJECTIONS = tuple(
    {f"{prefix}{letter}{suffix}" for prefix, suffix in (("", ""), ("", "_proj"), ("w", ""), ("to_", ""), ("", "_lin"))}
    | {word, f"{word}_proj", f"{word}_projection"}
    for letter, word in (("q", "query"), ("k", "key"), ("v", "value"))
)
_OUT = (
    "o", "o_proj", "out", "out_proj", "proj", "project", "projection", "wo", "to_out", "out_lin", "c_proj", "output",
)  # fmt: skip
_UP = (
    "up", "up_proj", "gate", "gate_proj", "fc1", "w1", "w3", "c_fc", "linear1", "lin1", "wi", "wi_0", "wi_1", "fc_in",
)  # fmt: skip
_DOWN = ("down", "down_proj", "fc2", "w2", "c_proj", "linear2", "lin2", "wo", "fc_out")
FUSED = ("qkv", "qkv_proj", "query_key_value", "c_attn", "in_proj", "wqkv", "to_qkv", "attn_qkv")
_HEADS = (
    "heads", "n_heads", "num_heads", "n_head", "nhead", "num_attention_heads",
    "kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads",
)  # fmt: skip


def transformer_plan(module: nn.Module) -> dict[str, str]:
    """Return a plan for the attention and the networks of transformer blocks, found by the names of their layers.

    A module that holds three Linear layers for query, key and value (``q``, ``q_proj``, ``query``, ``wq``, ``to_q``, …)
    and one that follows attention (``o_proj``, ``out``, ``proj``, ``wo``, …) is an attention; one that holds
    ``up``/``gate``/``fc1``/``w1``/``w3`` and ``down``/``fc2``/``w2`` is a network; so are Linear, activation, Linear in
    an `nn.Sequential`. It is for `Module.parallel_plan`, since only you know that the attention computes its heads from
    the sizes it meets (``unflatten(-1, (-1, head_dim))``) or from an attribute such as ``self.num_heads``, which the
    tensor axis divides.

    Args:
        module: The module, or a part of it.

    Returns:
        By name, with * for the numbers of repeated layers, ``"colwise"`` or ``"rowwise"``.

    Example:
        >>> attention = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("q", "k", "v", "o")})
        >>> transformer_plan(nn.ModuleList([attention, attention]))
        {'*.q': 'colwise', '*.k': 'colwise', '*.v': 'colwise', '*.o': 'rowwise'}
    """
    styles: dict[str, str] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        for pairs in (_attention(part), _network(part), _in_sequential(part)):
            styles.update({f"{name}.{key}" if name else key: style for key, style in pairs.items()})
    return patterns(styles, module)


def head_counts(module: nn.Module, styles: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return (name, attribute, value) of the numbers of heads, for each attention with split projections."""
    names = set().union(*_PROJECTIONS)
    split = {full.rpartition(".")[0] for full, style in styles.items() if style == "colwise" and leaf(full) in names}
    counts = []
    for name in sorted(split):
        attributes = vars(module.get_submodule(name))
        counts += [(name, key, attributes[key]) for key in _HEADS if type(attributes.get(key)) is int]
    return counts


def head_attributes(module: nn.Module, names: Iterable[str], part: str) -> list[tuple[str, str, int]]:
    """Return (name, attribute, value) of the numbers of heads in the modules that hold `names`, and in `part`."""
    holders = sorted({part, *(name.rpartition(".")[0] for name in names)})
    attributes_of_heads = []
    for name in holders:
        attributes = vars(module.get_submodule(name))
        attributes_of_heads += [(name, key, attributes[key]) for key in _HEADS if type(attributes.get(key)) is int]
    return attributes_of_heads


def groups_by_name(module: nn.Module) -> Iterator[tuple[str, Group]]:
    """Yield the modules that hold layers with the usual names, and those layers.

    In torch's own transformer layers only elementwise functions are between them.
    """
    for name, part in module.named_modules():
        torchs = type(part) in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        for styles in (_attention(part), _network(part)):
            named = {f"{name}.{key}" if name else key: style for key, style in styles.items()}
            if named and all(type(module.get_submodule(key)) is nn.Linear for key in named):
                first = tuple(key for key, style in named.items() if style == "colwise")
                yield name, Group(first, tuple(key for key in named if key not in first), torchs)


def patterns(names: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return the same with numbers replaced by *, wherever all modules of that pattern have one and the same style."""
    every: dict[str, list[str]] = {}
    for name, _ in module.named_modules(remove_duplicate=False):
        every.setdefault(_starred(name), []).append(name)
    by_pattern: dict[str, Any] = {}
    for name, style in names.items():
        alike = every.get(_starred(name), [name])
        same = len(alike) > 1 and all(names.get(other) == style for other in alike)
        by_pattern[_starred(name) if same else name] = style
    return by_pattern


# What is found by name
def _attention(part: nn.Module) -> dict[str, str]:
    linear = _linear_children(part)
    projections = [next((key for key in linear if key in names), "") for names in _PROJECTIONS]
    out = next((key for key in linear if key in _OUT and key not in projections), "")
    if not (all(projections) and out) or linear[out].in_features != linear[projections[0]].out_features:
        return {}
    return {**dict.fromkeys(projections, "colwise"), out: "rowwise"}


def _network(part: nn.Module) -> dict[str, str]:
    linear = _linear_children(part)
    up = [key for key in linear if key in _UP]
    down = next((key for key in linear if key in _DOWN and key not in up), "")
    if not up or not down or any(linear[key].out_features != linear[down].in_features for key in up):
        return {}
    return {**dict.fromkeys(up, "colwise"), down: "rowwise"}


def _in_sequential(part: nn.Module) -> dict[str, str]:
    """Return the pairs of Linear layers of a Sequential with nothing but elementwise functions between."""
    if type(part) is not nn.Sequential:
        return {}
    styles: dict[str, str] = {}
    before = ""
    for key, child in part.named_children():
        if type(child) is nn.Linear:
            if before:
                styles |= {before: "colwise", key: "rowwise"}
                before = ""
            else:
                before = key
        elif not isinstance(child, ELEMENTWISE):
            before = ""
    return styles


def _linear_children(part: nn.Module) -> dict[str, nn.Linear]:
    return {key: child for key, child in part.named_children() if isinstance(child, nn.Linear)}


def by_reason(left: Mapping[str, str], module: nn.Module) -> list[tuple[str, str]]:
    """Return (names, reason) of the layers that stay in full, with * for those of repeated modules."""
    starred = {name: re.sub(r"(?<=\.)\d+(?=\.)", "*", reason) for name, reason in left.items()}
    names: dict[str, list[str]] = {}
    for name, reason in patterns(starred, module).items():
        names.setdefault(reason, []).append(name)
    return [(", ".join(every), reason) for reason, every in names.items()]


def leaf(name: str) -> str:
    """Return the last part of a name."""
    return name.rpartition(".")[2]


def _starred(name: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def below(name: str, part: str) -> str:
    """Return the name of a module within `part`; empty for itself."""
    return "" if name == part else name[len(part) + 1 :] if part else name
