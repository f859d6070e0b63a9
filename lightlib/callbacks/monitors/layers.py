"""Layers by name: the modules that match wildcards."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from lightlib.errors import MisconfigurationException, nearest, wrong_type


def checked_patterns(owner: str, given: Any) -> tuple[str, ...]:
    """Return the patterns of an argument `layers`, which is a text or several.

    Raises:
        ArgumentTypeError: It is something else.
    """
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise wrong_type(owner, "layers", given, "names of layers, with wildcards", '"blocks.*.mlp"')
    return tuple(patterns)


def layers_of(owner: str, patterns: Sequence[str], module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that match a pattern, by their names. ``*`` matches dots as well.

    Raises:
        MisconfigurationException: A pattern matches no layer.

    Example:
        >>> list(layers_of("NormMonitor", ["0", "*2"], nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))))
        ['0', '2']
    """
    named = {name: part for name, part in module.named_modules() if name}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            few = ", ".join(map(repr, list(named)[:8])) + (", …" if len(named) > 8 else "")
            raise MisconfigurationException(
                f"{owner}(layers={pattern!r}) matches no layer of {type(module).__name__}.{nearest(pattern, named)}",
                expected=f"names as in named_modules(): {few or 'there are none'}.",
                fix=f"{owner}(layers={next(iter(named), '*')!r})",
            )
    return {name: part for name, part in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
