"""Checks of the arguments of ModelPruning, and the pruning function that they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune

from lightlib.errors import MisconfigurationException, UnknownNameError, wrong_type, wrong_value

NAMES = ("weight", "bias")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(prune, name)
    for name in ("ln_structured", "l1_unstructured", "random_structured", "random_unstructured")
}
METHODS: dict[str, type[prune.BasePruningMethod]] = {
    "ln_structured": prune.LnStructured,
    "l1_unstructured": prune.L1Unstructured,
    "random_structured": prune.RandomStructured,
    "random_unstructured": prune.RandomUnstructured,
}
Layers = Sequence[tuple[nn.Module, str]]


def pruning_function(
    owner: str, given: object, everywhere: bool, dim: int | None, norm: int | float | None
) -> tuple[Any, dict[str, Any], str]:
    """Return the function or method of torch that prunes, its further arguments, and its name.

    Args:
        everywhere: Whether all parameters are pruned as one, which takes a method of type "unstructured".
    """
    if isinstance(given, str):
        name = given.lower()
        if name not in FUNCTIONS:
            raise UnknownNameError("pruning_fn", given, FUNCTIONS, fix=f'{owner}("l1_unstructured")')
        options: dict[str, Any] = {}
        if name.endswith("_structured"):
            _need(owner, name, "pruning_dim", dim, 0)
            options["dim"] = dim
        if name == "ln_structured":
            _need(owner, name, "pruning_norm", norm, 2)
            options["n"] = norm
        function: Any = METHODS[name] if everywhere else partial(FUNCTIONS[name], **options)
    elif inspect.isclass(given) and issubclass(given, prune.BasePruningMethod):
        if not everywhere:
            raise MisconfigurationException(
                f"{owner}(pruning_fn={given.__name__}, use_global_unstructured=False).",
                expected="a name, to prune each parameter by itself; a class prunes all of them as one.",
                fix=f"{owner}({given.__name__}, use_global_unstructured=True)",
            )
        function, options, name = given, {}, given.__name__
    else:
        expected = f"one of {', '.join(FUNCTIONS)}, or a subclass of torch.nn.utils.prune.BasePruningMethod"
        raise wrong_type(owner, "pruning_fn", given, expected, fix=f'{owner}("l1_unstructured")')
    if everywhere and function.PRUNING_TYPE != "unstructured":
        raise MisconfigurationException(
            f"{owner}(pruning_fn={name}, use_global_unstructured=True): its type is {function.PRUNING_TYPE!r}.",
            expected="an unstructured method, to prune all parameters as one.",
            fix=f"{owner}({name!r}, use_global_unstructured=False, …)",
        )
    return function, options, name


def _need(owner: str, name: str, argument: str, value: object, example: int) -> None:
    if value is None:
        raise MisconfigurationException(
            f"{owner}({name!r}) without {argument}.",
            expected=f"{argument}, which {name} needs.",
            fix=f"{owner}({name!r}, {argument}={example})",
        )


def check_amount(owner: str, amount: object) -> None:
    """Check how much is pruned: a share, a number of elements, or a function of the epoch."""
    if callable(amount):
        return
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise wrong_type(owner, "amount", amount, "a float from 0 to 1, an int, or a function of the epoch", 0.2)
    if amount < 0 or (isinstance(amount, float) and amount > 1):
        raise wrong_value(owner, "amount", amount, "a share from 0.0 to 1.0, or a number of elements", 0.2)


def parameters_in(owner: str, pl_module: nn.Module, given: Any, names: Sequence[str]) -> Layers:
    """Return the layers and the names of their parameters that are pruned.

    Args:
        given: The user's; empty: all parameters of these `names`.
    """
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    layers = [part for part in pl_module.modules() if part is not pl_module and not isinstance(part, containers)]
    if not given:
        return [(layer, name) for name in names for layer in layers if _has(layer, name)]
    example = f'{owner}(…, parameters_to_prune=[(module.layer, "weight")])'
    pairs = isinstance(given, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in given
    )
    if not pairs or not all(isinstance(layer, nn.Module) and isinstance(name, str) for layer, name in given):
        expected = "a list of pairs of a layer and the name of its parameter"
        raise wrong_type(owner, "parameters_to_prune", given, expected, fix=example)
    ids = {id(layer) for layer in layers}
    for layer, name in given:
        if id(layer) not in ids or not _has(layer, name):
            raise MisconfigurationException(
                f"{owner}(parameters_to_prune=…) has {name!r} of {type(layer).__name__}, which "
                f"{type(pl_module).__name__} does not have.",
                expected="layers of the module that is trained, and parameters of theirs.",
                fix=example,
            )
    return [(layer, name) for layer, name in given]


def described(given: Any) -> tuple[str, ...]:
    """Return the layer, name and shape of each pair of the user, in words that are the same in every run."""
    pairs = given if isinstance(given, (list, tuple)) else ()
    return tuple(
        f"{type(pair[0]).__name__}.{pair[1]}{_shape(*pair)}"
        for pair in pairs
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], nn.Module)
    )


def _shape(layer: nn.Module, name: Any) -> list[int]:
    parameter = getattr(layer, name, None) if isinstance(name, str) else None
    return [] if parameter is None or is_lazy(parameter) else list(parameter.shape)


def _has(layer: nn.Module, name: str) -> bool:
    parameters = dict(layer.named_parameters(recurse=False))
    return name in parameters or f"{name}_orig" in parameters
