"""Refuse optimizers that need all parameters, or full ones, where each process holds a shard."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lightlib.errors import MisconfigurationException

_BY_WHOLE_PARAMETERS = {
    torch.optim.Adafactor: "its second moments are norms of rows and columns",
    torch.optim.Rprop: "it sets the gradients that have changed their sign by an index",
}


def refuse_all_at_once(optimizer: Optimizer, where: str) -> None:
    """Raise for an optimizer with a step that depends on all parameters at once.

    `where` is what shares the parameters out, such as ``"in a pipeline"``.

    Raises:
        MisconfigurationException: It is LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise MisconfigurationException(
            f"LBFGS {where}: its direction depends on all parameters at once, and each process steps a part of them.",
            expected="an optimizer that steps each parameter by itself.",
            fix="torch.optim.AdamW(self.parameters()); or strategy='ddp', in which LBFGS steps on all processes.",
        )


def refuse_on_parts(optimizer: Optimizer) -> None:
    """Raise for an optimizer that cannot step DTensors, when some of its parameters are.

    Raises:
        MisconfigurationException: It is LBFGS, Adafactor or Rprop.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    if not any(isinstance(parameter, DTensor) for parameter in parameters):
        return
    refuse_all_at_once(optimizer, "with parameters that are sharded over processes")
    why = next((why for kind, why in _BY_WHOLE_PARAMETERS.items() if isinstance(optimizer, kind)), None)
    if why is not None:
        raise MisconfigurationException(
            f"{type(optimizer).__name__} with parameters that are sharded over processes: {why}, which torch cannot do "
            "with a part of a parameter (DTensor).",
            expected="an optimizer that steps each element by itself, or full parameters.",
            fix="torch.optim.AdamW(self.parameters()); or strategy='ddp' or 'zero1', which keep full parameters.",
        )
