"""Values that a search sets: attributes, hyperparameters, and learning rates of parameter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lightlib import report
from lightlib.errors import MisconfigurationException


def holders(name: str, module: Any, datamodule: Any) -> list[Any]:
    """Return the places that hold `name`: objects with the attribute, and hyperparameters with the key."""
    owners: list[Any] = []
    for owner in (module, datamodule):
        if owner is None:
            continue
        if hasattr(owner, name):
            owners.append(owner)
        hparams = owner.hparams if hasattr(owner, "hparams") else {}
        if isinstance(hparams, Mapping) and name in hparams:
            owners.append(hparams)
    return owners


def value_of(holder: Any, name: str) -> Any:
    """Return the value in one of the `holders`."""
    return holder[name] if isinstance(holder, Mapping) else getattr(holder, name)


def set_value(name: str, value: Any, module: Any, datamodule: Any) -> None:
    """Set `name` everywhere it is held, so that the places keep one value."""
    for holder in holders(name, module, datamodule):
        if isinstance(holder, Mapping):
            holder[name] = value  # type: ignore[index]  # hyperparameters are a dict
        else:
            setattr(holder, name, value)


def warn_of_several(name: str, module: Any, datamodule: Any) -> None:
    """Warn if the places that hold `name` have different values."""
    values = [value_of(holder, name) for holder in holders(name, module, datamodule)]
    if any(value != values[0] for value in values):
        report.warn(
            f"`{name}` has several values: {', '.join(map(repr, values))}, in attributes and hparams of the module and "
            "the data module. The search sets all of them.",
            report.PossibleUserWarning,
        )


def find_name(names: Sequence[str], module: Any, datamodule: Any, what: str, argument: str) -> str:
    """Return the first of `names` that is held.

    Raises:
        MisconfigurationException: None is.
    """
    for name in names:
        if holders(name, module, datamodule):
            return name
    looked = " or ".join(f"`{name}`" for name in names)
    owners = type(module).__name__ + ("" if datamodule is None else f" and {type(datamodule).__name__}")
    raise MisconfigurationException(
        f"{what} looked for {looked} in {owners} and in their hparams, and found none.",
        expected="an attribute or a hyperparameter that the search can set.",
        fix=f"self.{names[0]} = … in __init__ and use it, or {argument}='the name of yours'.",
    )


def set_rate(group: dict[str, Any], rate: float, name: str = "lr") -> None:
    """Set a learning rate of a parameter group, in place if it is a tensor."""
    if isinstance(group[name], Tensor):
        group[name].fill_(rate)
    else:
        group[name] = rate
