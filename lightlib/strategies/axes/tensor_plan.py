"""Plans of the tensor axis: which layers it splits, how, and which it refuses by name."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.func import functional_call

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, shown
from lightlib.strategies.axes.plan import matching

STYLES = ("colwise", "rowwise", "sequence", "vocab", "replicate")
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
_FUSED = ("qkv", "qkv_proj", "query_key_value", "c_attn", "in_proj", "wqkv", "to_qkv", "attn_qkv")
_HEADS = (
    "heads", "n_heads", "num_heads", "n_head", "nhead", "num_attention_heads",
    "kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads",
)  # fmt: skip
_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Identity, nn.Dropout,
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
    found: dict[str, str] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        for pairs in (_attention(part), _network(part), _in_sequential(part)):
            found.update({f"{name}.{key}" if name else key: style for key, style in pairs.items()})
    return patterns(found, module)


def automatic_plan(module: nn.Module, size: int) -> tuple[dict[str, str], list[str]]:
    """Return the layers that can certainly be split without a plan; and those that could with other sizes.

    Those are pairs of Linear layers with nothing but elementwise functions between: within an `nn.Sequential`, in
    torch's transformer layers, or under the usual names, if a trial with small numbers confirms it.
    """
    found: dict[str, str] = {}
    uneven: list[str] = []
    for name, part in module.named_modules():
        torchs = type(part) in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        sure = _in_sequential(part) or (_network(part) if torchs or _confirmed(part) else {})
        named = {f"{name}.{key}" if name else key: style for key, style in sure.items()}
        odd = [full for full in named if _width(module.get_submodule(full), named[full]) % size]
        uneven += odd
        if not odd:
            found |= named
    return found, uneven


def resolved(module: nn.Module, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan with each pattern replaced by the names it matches; of two patterns the later one counts.

    Raises:
        MisconfigurationException: A pattern matches nothing.
        UnknownNameError: A style that is no style.
    """
    found: dict[str, Any] = {}
    for pattern, style in plan.items():
        if isinstance(style, str) and style not in STYLES:
            raise UnknownNameError("style of the tensor axis", style, STYLES, fix="or a torch ParallelStyle.")
        if not isinstance(style, (str, ParallelStyle)):
            raise ArgumentTypeError(
                f"The tensor plan has {pattern!r}: {shown(style)}.",
                expected=f"one of {', '.join(map(repr, STYLES))}, or a style of torch.distributed.tensor.parallel.",
                fix=f'{{{pattern!r}: "colwise"}}',
            )
        found.update(dict.fromkeys(matching(module, [pattern], "tensor"), style))
    return found


def check_styles(module: nn.Module, styles: Mapping[str, Any], size: int, blocks: Iterable[str] = ()) -> None:
    """Refuse layers that cannot be split as planned.

    Raises:
        MisconfigurationException: Names the layer, its sizes, and what would do.
    """
    for name, style in styles.items():
        part = module.get_submodule(name)
        if style in ("colwise", "rowwise", "vocab"):
            _check_kind(name, part, style)
            dimension = _dimension(part, style)
            width = _width(part, style)
            if width % size:
                what = f"{name} ({type(part).__name__}, {dimension}={width}) cannot be split {style} over tensor={size}"
                raise _uneven(what, width, size, f"{dimension}={-(-width // size) * size}")
        if style == "colwise":
            _refuse_fused(name, part)
    _check_partners(module, styles, list(blocks))
    for name, key, count in head_counts(module, styles):
        if count % size:
            what = f"{name or type(module).__name__} has {key}={count}, which tensor={size} cannot split"
            raise _uneven(what, count, size, "another number of heads")


def head_counts(module: nn.Module, styles: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return (name, attribute, value) of the numbers of heads, for each attention with split projections."""
    names = set().union(*_PROJECTIONS)
    split = {full.rpartition(".")[0] for full, style in styles.items() if style == "colwise" and _leaf(full) in names}
    found = []
    for name in sorted(split):
        attributes = vars(module.get_submodule(name))
        found += [(name, key, attributes[key]) for key in _HEADS if type(attributes.get(key)) is int]
    return found


def patterns(names: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return the same with numbers replaced by *, wherever all modules of that pattern have one and the same style."""
    every: dict[str, list[str]] = {}
    for name, _ in module.named_modules(remove_duplicate=False):
        every.setdefault(_starred(name), []).append(name)
    found: dict[str, Any] = {}
    for name, style in names.items():
        alike = every.get(_starred(name), [name])
        same = len(alike) > 1 and all(names.get(other) == style for other in alike)
        found[_starred(name) if same else name] = style
    return found


def no_plan(module: nn.Module, size: int, uneven: list[str]) -> MisconfigurationException:
    """Return the error that shows the plan to write for this very module."""
    what = f"tensor={size}: nothing in {type(module).__name__} can surely be split without a plan."
    if uneven:
        part = module.get_submodule(uneven[0])
        what += f" {uneven[0]} could, but {size} does not divide its {_dimension(part, 'colwise')}."
    plan = transformer_plan(module)
    if not plan:
        linear = {name: "colwise" for name, part in module.named_modules() if isinstance(part, nn.Linear)}
        some = list(patterns(linear, module))[:4]
        plan = {name: ("colwise", "rowwise")[index % 2] for index, name in enumerate(some)}
    if not plan:
        return MisconfigurationException(
            f"{what} It has no Linear layer.", expected="Linear layers in pairs.", fix="MeshStrategy(shard=-1)"
        )
    lines = ",\n            ".join(f'"{name}": "{style}"' for name, style in plan.items())
    return MisconfigurationException(
        what,
        expected="a plan: layers whose outputs are split (colwise), each followed by one that takes them (rowwise).",
        fix=f"for instance, in {type(module).__name__}:\n"
        f"    def parallel_plan(self):\n        return ParallelPlan(tensor={{\n            {lines},\n        }})",
    )


# Automatic plans
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
    found: dict[str, str] = {}
    before = ""
    for key, child in part.named_children():
        if type(child) is nn.Linear:
            if before:
                found |= {before: "colwise", key: "rowwise"}
                before = ""
            else:
                before = key
        elif not isinstance(child, _ELEMENTWISE):
            before = ""
    return found


def _confirmed(part: nn.Module) -> bool:
    """Whether the network computes, from each part of its inner features, a part of the sum that is its output.

    It is tried with small random matrices in place of its own, in full and in two halves.
    """
    styles = _network(part)
    linear = _linear_children(part)
    others = [child for child in part.modules() if child is not part and child not in linear.values()]
    if not styles or set(linear) != set(styles) or not all(isinstance(child, _ELEMENTWISE) for child in others):
        return False
    if next(part.parameters(recurse=False), None) is not None or next(part.buffers(), None) is not None:
        return False
    random = torch.Generator().manual_seed(0)
    whole: dict[str, torch.Tensor] = {}
    first: dict[str, torch.Tensor] = {}
    second: dict[str, torch.Tensor] = {}
    for key, style in styles.items():
        shape = (8, 3) if style == "colwise" else (3, 8)
        weight = torch.randn(shape, generator=random, dtype=torch.float64, device="cpu")
        bias = torch.randn(shape[0], generator=random, dtype=torch.float64, device="cpu")
        dim = 0 if style == "colwise" else 1
        whole[f"{key}.weight"] = weight
        first[f"{key}.weight"], second[f"{key}.weight"] = weight.chunk(2, dim)
        if linear[key].bias is not None:
            whole[f"{key}.bias"] = bias
            halves = bias.chunk(2) if style == "colwise" else (bias, torch.zeros_like(bias))
            first[f"{key}.bias"], second[f"{key}.bias"] = halves
    x = torch.randn(5, 3, generator=random, dtype=torch.float64, device="cpu")
    return _adds_up(part, whole, first, second, x)


def _adds_up(part: nn.Module, whole: Any, first: Any, second: Any, x: torch.Tensor) -> bool:
    try:
        again = copy.deepcopy(part, {id(parameter): parameter for parameter in part.parameters()})
        again.eval()  # dropout would draw numbers
        with torch.no_grad(), torch.device("cpu"):
            outputs = [functional_call(again, values, (x,)) for values in (whole, first, second)]
        return bool(torch.allclose(outputs[0], outputs[1] + outputs[2]))
    except Exception:  # noqa: BLE001  its forward is anything; whatever is not confirmed needs a plan
        return False


# Refusals
def _check_kind(name: str, part: nn.Module, style: str) -> None:
    kinds: tuple[type[nn.Module], ...] = (nn.Embedding, nn.Linear) if style == "vocab" else (nn.Linear,)
    if not isinstance(part, kinds):
        expected = " or ".join(f"nn.{kind.__name__}" for kind in kinds)
        raise MisconfigurationException(
            f"The tensor plan makes {name} {style}, but it is {type(part).__name__}.",
            expected=f"{expected}; or a style of torch.distributed.tensor.parallel.",
            fix="name the layer inside of it, as in `named_modules()`.",
        )


def _refuse_fused(name: str, part: nn.Module) -> None:
    if isinstance(part, nn.Linear) and _leaf(name) in _FUSED and part.out_features == 3 * part.in_features:
        raise MisconfigurationException(
            f"{name} computes query, key and value at once ({part.in_features} → {part.out_features}); split colwise, "
            "the first process would get the query and half of the key.",
            expected="three Linear layers.",
            fix=f"three layers in place of {name}; or, if its outputs are ordered by head, "
            f"{{{name!r}: ColwiseParallel()}} of torch.distributed.tensor.parallel.",
        )


def _check_partners(module: nn.Module, styles: Mapping[str, Any], blocks: list[str]) -> None:
    own = [name for name, style in styles.items() if not isinstance(style, str)]
    for style, other in (("colwise", "rowwise"), ("rowwise", "colwise")):
        partners = [name for name, given in styles.items() if given == other] + own
        for name in [name for name, given in styles.items() if given == style]:
            within = max((block for block in blocks if name.startswith(f"{block}.")), key=len, default="")
            near = f"{within}." if within else ""
            if any(partner.startswith(near) for partner in partners):
                continue
            lacks = "no layer takes its split outputs" if style == "colwise" else "no layer gives it split inputs"
            linear = [key for key, part in module.named_modules() if isinstance(part, nn.Linear)]
            choices = [key for key in linear if key.startswith(near) and key not in styles] or linear
            raise MisconfigurationException(
                f"The tensor plan has {name} as {style}, and nothing {other} in {within or type(module).__name__}: "
                f"{lacks}.",
                expected="colwise and rowwise layers in pairs.",
                fix=f'add {closest(name, choices, choices[0])!r}: "{other}" (or another of {", ".join(choices[:6])}).',
            )


def _uneven(what: str, number: int, size: int, other: str) -> MisconfigurationException:
    divisors = [one for one in range(1, min(number, 64) + 1) if number % one == 0]
    return MisconfigurationException(
        f"{what}: {number} / {size} is no whole number.",
        expected=f"a size that divides {number}: {', '.join(map(str, divisors))}.",
        fix=f"MeshStrategy(tensor={max(one for one in divisors if one <= size)}), or {other}.",
    )


def _width(part: nn.Module, style: str) -> int:
    return int(getattr(part, _dimension(part, style)))


def _dimension(part: nn.Module, style: str) -> str:
    if isinstance(part, nn.Embedding):
        return "num_embeddings"
    return "in_features" if style == "rowwise" else "out_features"


def _linear_children(part: nn.Module) -> dict[str, nn.Linear]:
    return {key: child for key, child in part.named_children() if isinstance(child, nn.Linear)}


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _starred(name: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
