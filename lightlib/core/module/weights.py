"""load_weights: loads weights into a module in which names or shapes differ, and reports them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor, nn

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.frozen import complete
from lightlib.errors import (
    ArgumentTypeError,
    CheckpointError,
    MisconfigurationException,
    check_type,
    few,
    nearest,
    shown,
    wrong_value,
)

_FIX = 'load_weights(module, path, rename={"backbone.*": "encoder.*"}, ignore=["head.*"], strict="shapes")'


@dataclass(frozen=True)
class LoadedWeights:
    """The outcome of `load_weights`, in names of the module but for `left`.

    Attributes:
        loaded: Those that have the values of the file.
        left: Names of the file, as they are in it, that were not used.
        new: Those that keep the values with which the module was built.
        shapes: Among `new`, those that the file has in another shape, with both shapes: the file's, the module's.
    """

    loaded: tuple[str, ...]
    left: tuple[str, ...]
    new: tuple[str, ...]
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} of {len(self.loaded) + len(self.new)} weights are loaded."]
        lines += [f"  left in the file ({len(self.left)}): {few(self.left)}"] if self.left else []
        others = [name for name in self.new if name not in self.shapes]
        lines += [f"  not in the file ({len(others)}): {few(others)}"] if others else []
        for name, (file, expected) in self.shapes.items():
            lines.append(f"  of another shape: {name!r}, {file} in the file, {expected} in the module")
        return "\n".join(lines)


def load_weights(
    module: nn.Module,
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    strict: bool | Literal["shapes"] = True,
    rename: Mapping[str, str] | None = None,
    ignore: str | Sequence[str] = (),
    verbose: bool = True,
) -> LoadedWeights:
    """Load weights into a module, in `__init__`, `configure_model` or before `fit`, and report the differences.

    Args:
        module: The module, or a part of it.
        source: A checkpoint, a safetensors file, a file of `torch.save` with weights, or a dict of tensors by name.
        strict: True: both have the same names and shapes, but for `ignore`. False: the names that both have, which must
            have equal shapes. ``"shapes"``: the names that both have in the same shape.
        rename: New names by patterns of names in the source: each ``*`` of the pattern stands for any characters, and
            the stars of the new name for the same ones. The first pattern that fits counts.
        ignore: Patterns of names, after `rename`, that are neither loaded nor missed.
        verbose: Print the report.

    Returns:
        The names that were loaded, left and new.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: A pattern fits no name, has fewer stars than its new name, or two names become one;
            the module is built without memory.
        CheckpointError: The source cannot be read, names or shapes differ where they must not, or no name fits.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        >>> pretrained = {"stem.weight": torch.ones(8, 4), "stem.bias": torch.zeros(8), "head.weight": torch.ones(9, 8)}
        >>> print(load_weights(net, pretrained, strict="shapes", rename={"stem.*": "0.*"}, verbose=False))
        2 of 4 weights are loaded.
          left in the file (1): 'head.weight'
          not in the file (2): '1.weight', '1.bias'
    """
    named, patterns = _checked(strict, rename, ignore)
    module_state = module.state_dict()
    if any(value.is_meta for value in module_state.values() if isinstance(value, Tensor)):
        raise MisconfigurationException(
            f"load_weights got {type(module).__name__}, which is built without memory.",
            expected="a module with memory.",
            fix='trainer.fit(module, ckpt_path=path, resume="weights"), which each process reads for its shard.',
        )
    content = {"state_dict": source} if isinstance(source, Mapping) else formats.read_weights(source)
    complete(content, lambda: module_state)
    state: Mapping[str, Any] = content["state_dict"]
    names = _renamed(state, named)
    _check_patterns(patterns, [*names.values(), *module_state])
    ignored = {
        name for name in {*names.values(), *module_state} if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    old_names = {new: old for old, new in names.items() if new in module_state and new not in ignored}
    sizes = {new: (_size(state[old]), _size(module_state[new])) for new, old in old_names.items()}
    shapes = {name: pair for name, pair in sizes.items() if pair[0] != pair[1]}
    loaded = [name for name in module_state if name in old_names and name not in shapes]
    result = LoadedWeights(
        tuple(loaded),
        tuple(old for old, new in names.items() if new not in loaded),
        tuple(name for name in module_state if name not in loaded),
        shapes,
    )
    _refuse(result, strict, ignored, names, module)
    module.load_state_dict({name: state[old_names[name]] for name in loaded}, strict=False)
    if verbose:
        report.info(f"load_weights: {result}")
    return result


def _checked(strict: object, rename: object, ignore: object) -> tuple[dict[str, str], list[str]]:
    if not (isinstance(strict, bool) or strict == "shapes"):  # 1 == True
        raise wrong_value("load_weights", "strict", strict, 'True, False or "shapes"', "shapes")
    check_type("load_weights", "rename", rename, Mapping | None, "a dict of patterns", fix=_FIX)
    named: Mapping[Any, Any] = rename or {}  # type: ignore[assignment]  # checked
    patterns: Any = [ignore] if isinstance(ignore, str) else ignore
    is_list = isinstance(patterns, Sequence) and all(isinstance(pattern, str) for pattern in patterns)
    if not is_list or not all(isinstance(name, str) for pair in named.items() for name in pair):
        argument = f"rename={shown(rename)}" if is_list else f"ignore={shown(ignore)}"
        raise ArgumentTypeError(
            f"load_weights got {argument}.", expected="patterns of names, which are text.", fix=_FIX
        )
    for old, new in named.items():
        if new.count("*") > old.count("*"):
            raise MisconfigurationException(
                f"load_weights got rename={{{old!r}: {new!r}}}.",
                expected="a new name with no more stars than its pattern, for each stands for what a star has matched.",
                fix=_FIX,
            )
    return dict(named), list(patterns)


def _renamed(state: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, str]:
    """Return the new name of each name."""
    rules = [(re.compile("(.*?)".join(map(re.escape, old.split("*")))), old, new) for old, new in rename.items()]
    names, used = {}, set()
    for name in state:
        names[name] = name
        for pattern, old, new in rules:
            if match := pattern.fullmatch(name):
                first, *rest = new.split("*")
                names[name] = first + "".join(part for pair in zip(match.groups(), rest, strict=False) for part in pair)
                used.add(old)
                break
    for old in rename:
        if old not in used:
            raise MisconfigurationException(
                f"load_weights got rename={{{old!r}: …}}, which fits no name of the source.{nearest(old, state)}",
                expected=f"patterns of names such as {few(list(state))}.",
                fix=_FIX,
            )
    taken: dict[str, str] = {}
    for old, new in names.items():
        if new in taken:
            raise MisconfigurationException(
                f"load_weights: {taken[new]!r} and {old!r} of the source both become {new!r}.",
                expected="a name of its own for each.",
                fix="patterns in rename that keep them apart.",
            )
        taken[new] = old
    return names


def _check_patterns(patterns: Iterable[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise MisconfigurationException(
                f"load_weights got ignore={pattern!r}, which fits no name.{nearest(pattern, names)}",
                expected="a pattern of names of the module, or of the source after rename.",
                fix=_FIX,
            )


def _refuse(
    result: LoadedWeights, strict: bool | str, ignored: set[str], names: Mapping[str, str], module: nn.Module
) -> None:
    wrong = []
    if strict != "shapes" and result.shapes:
        wrong.append("shapes differ")
    if strict is True and any(names[old] not in {*ignored, *result.shapes} for old in result.left):
        wrong.append("the file has names that the module lacks")
    if strict is True and any(name not in {*ignored, *result.shapes} for name in result.new):
        wrong.append("the module has names that the file lacks")
    if not result.loaded and not wrong:
        wrong.append("no name fits")
    if wrong:
        raise CheckpointError(
            f"load_weights does not fit {type(module).__name__}: {', and '.join(wrong)}. {result}",
            expected="the same names and shapes, or arguments for the differences.",
            fix=_FIX,
        )


def _size(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))
