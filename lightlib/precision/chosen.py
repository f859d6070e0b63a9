"""Chosen parts in half precision: some inputs of a batch, and modules that stay in float32."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException, closest, shown
from lightlib.precision.context import DefaultDtype, cast_floating
from lightlib.tree import named_children, tensors_in, with_children

Inputs = Sequence[int | str] | None
Modules = Sequence[str | type]


def checked_inputs(name: str, given: object) -> tuple[int | str, ...] | None:
    """Return `inputs_to_half` as a tuple, or None.

    Raises:
        ArgumentTypeError: It holds something else than indices and keys.
        MisconfigurationException: It is empty.
    """
    if given is None:
        return None
    several: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else [given]
    right = all(isinstance(entry, str) or (type(entry) is int and entry >= 0) for entry in several)
    if not right or isinstance(given, (str, int)):
        raise ArgumentTypeError(
            f"Precision({name!r}) got inputs_to_half={shown(given)}.",
            expected="a list of indices from 0 (of a batch that is a tuple or a list) or keys (of one that is a dict).",
            fix="inputs_to_half=[0]",
        )
    if not several:
        raise MisconfigurationException(
            f"Precision({name!r}) got inputs_to_half=[], which casts no input.",
            expected="at least one index or key, or None for the default of the precision.",
            fix="inputs_to_half=[0]",
        )
    return tuple(several)


def checked_modules(name: str, given: object) -> tuple[str | type, ...]:
    """Return `float32_modules` as a tuple.

    Raises:
        ArgumentTypeError: It holds something else than names and classes of modules.
    """
    several: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else [given]
    fine = all(
        isinstance(entry, str) or (isinstance(entry, type) and issubclass(entry, nn.Module)) for entry in several
    )
    if not fine or isinstance(given, (str, type)):
        raise ArgumentTypeError(
            f"Precision({name!r}) got float32_modules={shown(given)}.",
            expected="a list of names of modules, with wildcards, or of their classes.",
            fix='float32_modules=["head", torch.nn.LayerNorm]',
        )
    return tuple(several)


def cast_chosen(batch: Any, chosen: Sequence[int | str], dtype: torch.dtype) -> Any:
    """Return a copy of `batch` in which only the chosen entries are cast.

    Args:
        batch: A tensor (its index is 0), or a tuple, list, mapping or dataclass.
        chosen: Indices or keys.
        dtype: The dtype of their floating tensors.

    Raises:
        MisconfigurationException: The batch has no such entry.

    Example:
        >>> x, y = cast_chosen([torch.ones(1), torch.ones(1)], [0], torch.bfloat16)
        >>> x.dtype, y.dtype
        (torch.bfloat16, torch.float32)
    """
    if isinstance(batch, Tensor):
        batch_entries: dict[Any, Any] = {0: batch}
    else:
        batch_entries = dict(named_children(batch))
    absent = [entry for entry in chosen if entry not in batch_entries]
    if absent:
        raise MisconfigurationException(
            f"inputs_to_half holds {absent[0]!r}, and a batch is a {type(batch).__name__} with the entries "
            f"{list(batch_entries)}.",
            expected="an index of a batch that is a tuple or a list, or a key of one that is a dict.",
            fix=f"inputs_to_half=[{next(iter(batch_entries), 0)!r}]",
        )
    cast = {key: cast_floating(value, dtype) if key in chosen else value for key, value in batch_entries.items()}
    return cast[0] if isinstance(batch, Tensor) else with_children(batch, cast.values())


def matching(module: nn.Module, patterns: Modules) -> dict[str, nn.Module]:
    """Return the modules that `patterns` match by name or class, without those inside of another match.

    Raises:
        MisconfigurationException: A pattern matches nothing.
    """
    names = dict(module.named_modules())
    names.pop("")
    matches: dict[str, nn.Module] = {}
    for pattern in patterns:
        matched = {name: part for name, part in names.items() if _matches(name, part, pattern)}
        if not matched:
            raise _matches_nothing(module, pattern, names)
        matches |= matched
    inner = {id(part) for match in matches.values() for part in match.modules() if part is not match}
    return {name: part for name, part in names.items() if name in matches and id(part) not in inner}


def _matches(name: str, part: nn.Module, pattern: str | type) -> bool:
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")
    return isinstance(part, pattern)


def _matches_nothing(module: nn.Module, pattern: str | type, names: dict[str, nn.Module]) -> MisconfigurationException:
    kind = type(module).__name__
    if isinstance(pattern, str):
        near = closest(pattern, list(names), next(iter(names), ""))
        return MisconfigurationException(
            f"float32_modules holds {pattern!r}, which matches no module of {kind}.",
            expected="the name of a module as in `named_modules()`; * stands for one part of a name.",
            fix=f"for instance {near!r}; the names are {', '.join(list(names)[:12])}, …",
        )
    kinds = sorted({type(part).__name__ for part in names.values()})
    return MisconfigurationException(
        f"float32_modules holds {pattern.__name__}, and {kind} has no module of this class.",
        expected="the class of one of its modules.",
        fix=f"leave it out; the classes are {', '.join(kinds[:12])}.",
    )


class InFloat32:
    """The forward of a module that stays in float32, in a network of half precision.

    Args:
        forward: The forward to run.
        outside: The dtype to which outputs are cast; None under autocast, which casts where it needs to.
    """

    def __init__(self, forward: Callable[..., Any], outside: torch.dtype | None) -> None:
        self.forward, self.outside = forward, outside

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast_floating((args, kwargs), torch.float32)
        first = next(tensors_in((args, kwargs)), None)
        kind = "cpu" if first is None else first.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            if self.outside is None:
                return self.forward(*args, **kwargs)
            with DefaultDtype(torch.float32):
                output = self.forward(*args, **kwargs)
        return cast_floating(output, self.outside)


def keep_in_float32(module: nn.Module, patterns: Modules, cast: Callable[[], Any], outside: torch.dtype | None) -> None:
    """Cast `module` by `cast`, all but the modules that `patterns` name, which then compute in float32.

    Their parameters keep their values: they are not rounded.
    """
    chosen = matching(module, patterns)
    kept = {id(tensor): tensor.data for part in chosen.values() for tensor in part.parameters()}
    buffers = {id(part): dict(part.named_buffers()) for part in chosen.values()}
    cast()
    for part in chosen.values():
        for parameter in part.parameters():
            parameter.data = kept[id(parameter)]  # the same parameter, with its values before they were rounded
        for name, buffer in part.named_buffers():
            buffer.data = buffers[id(part)][name]
        part.float()
        vars(part)["forward"] = InFloat32(part.forward, outside)


def release(module: nn.Module) -> None:
    """Give the modules that `keep_in_float32` has changed their own forwards back."""
    for part in module.modules():
        mine = vars(part).get("forward")
        if isinstance(mine, InFloat32):
            del vars(part)["forward"]
            if getattr(mine.forward, "__func__", None) is not type(part).forward:
                vars(part)["forward"] = mine.forward
