"""Plans of the tensor axis: which layers it splits, how, and which it refuses by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, shown
from lightlib.strategies.axes.parallel_plan import matching
from lightlib.strategies.axes.tensor.layer_names import FUSED, by_reason, head_counts, leaf, patterns, transformer_plan

STYLES = ("colwise", "rowwise", "sequence", "vocab", "replicate")


def resolved(module: nn.Module, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan with each pattern replaced by the names it matches; of two patterns the later one counts.

    Raises:
        MisconfigurationException: A pattern matches nothing.
        UnknownNameError: A style that is no style.
    """
    styles: dict[str, Any] = {}
    for pattern, style in plan.items():
        if isinstance(style, str) and style not in STYLES:
            raise UnknownNameError("style of the tensor axis", style, STYLES, fix="or a torch ParallelStyle.")
        if not isinstance(style, (str, ParallelStyle)):
            raise ArgumentTypeError(
                f"The tensor plan has {pattern!r}: {shown(style)}.",
                expected=f"one of {', '.join(map(repr, STYLES))}, or a style of torch.distributed.tensor.parallel.",
                fix=f'{{{pattern!r}: "colwise"}}',
            )
        styles.update(dict.fromkeys(matching(module, [pattern], "parallel_plan(): tensor"), style))
    return styles


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
                problem = (
                    f"{name} ({type(part).__name__}, {dimension}={width}) cannot be split {style} over tensor={size}"
                )
                raise _uneven(problem, width, size, f"{dimension}={-(-width // size) * size}")
        if style == "colwise":
            _refuse_fused(name, part)
    _check_partners(module, styles, list(blocks))
    for name, key, count in head_counts(module, styles):
        if count % size:
            problem = f"{name or type(module).__name__} has {key}={count}, which tensor={size} cannot split"
            raise _uneven(problem, count, size, "another number of heads")


def no_plan(module: nn.Module, size: int, left: Mapping[str, str]) -> MisconfigurationException:
    """Return the error that shows the plan to write for this very module; `left` has the reasons by layer."""
    problem = f"tensor={size}: nothing in {type(module).__name__} can surely be split without a plan."
    for names, reason in by_reason(left, module)[:4]:
        problem += f" {names}: {reason}."
    plan = transformer_plan(module)
    if not plan:
        linear = {name: "colwise" for name, part in module.named_modules() if isinstance(part, nn.Linear)}
        some = list(patterns(linear, module))[:4]
        plan = {name: ("colwise", "rowwise")[index % 2] for index, name in enumerate(some)}
    if not plan:
        return MisconfigurationException(
            f"{problem} It has no Linear layer.", expected="Linear layers in pairs.", fix="MeshStrategy(shard=-1)"
        )
    lines = ",\n            ".join(f'"{name}": "{style}"' for name, style in plan.items())
    return MisconfigurationException(
        problem,
        expected="a plan: layers whose outputs are split (colwise), each followed by one that takes them (rowwise).",
        fix=f"for instance, in {type(module).__name__}:\n"
        f"    def parallel_plan(self):\n        return ParallelPlan(tensor={{\n            {lines},\n        }})",
    )


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
    if isinstance(part, nn.Linear) and leaf(name) in FUSED and part.out_features == 3 * part.in_features:
        raise MisconfigurationException(
            f"{name} computes query, key and value at once ({part.in_features} → {part.out_features}); split colwise, "
            "the first process would get the query and half of the key.",
            expected="three Linear layers.",
            fix=f"three layers in place of {name}; or, if its outputs are ordered by head, "
            f"{{{name!r}: ColwiseParallel()}} of torch.distributed.tensor.parallel.",
        )


def _check_partners(module: nn.Module, styles: Mapping[str, Any], blocks: list[str]) -> None:
    custom = [name for name, style in styles.items() if not isinstance(style, str)]
    for style, other in (("colwise", "rowwise"), ("rowwise", "colwise")):
        partners = [name for name, partner_style in styles.items() if partner_style == other] + custom
        for name in [name for name, name_style in styles.items() if name_style == style]:
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


def _uneven(problem: str, number: int, size: int, other: str) -> MisconfigurationException:
    divisors = [divisor for divisor in range(1, min(number, 64) + 1) if number % divisor == 0]
    return MisconfigurationException(
        f"{problem}: {number} / {size} is no whole number.",
        expected=f"a size that divides {number}: {', '.join(map(str, divisors))}.",
        fix=f"MeshStrategy(tensor={max(divisor for divisor in divisors if divisor <= size)}), or {other}.",
    )


def _width(part: nn.Module, style: str) -> int:
    return int(getattr(part, _dimension(part, style)))


def _dimension(part: nn.Module, style: str) -> str:
    if isinstance(part, nn.Embedding):
        return "num_embeddings"
    return "in_features" if style == "rowwise" else "out_features"
