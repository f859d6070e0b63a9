"""Attachment: the run of a module, restored when a nested call of another Trainer ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from lightlib.core.module.export import set_modes
from lightlib.core.module.module import Module

if TYPE_CHECKING:
    from lightlib.core.metrics.results import Results


class Attachment:
    """The Trainer (or Fabric) of a module and its data module, and the placement of the module.

    A callback may pass the module of its run to another Trainer. That one attaches the module to itself and places it
    by its own strategy; the run continues as if it had not.

    Args:
        module: The module.
        datamodule: The data module of the call that begins, or None.
        trains: Whether the call trains: then the weights that it ends with stay.
    """

    def __init__(self, module: Module, datamodule: Any, trains: bool) -> None:
        self._trains = trains
        modules = [part for part in module.modules() if isinstance(part, Module)]
        self._modules = [(part, part._trainer, part._results, part.device_mesh) for part in modules]  # noqa: SLF001  lightlib's own
        self._datamodule = datamodule, getattr(datamodule, "trainer", None)
        self._modes = {part: part.training for part in module.modules()}
        self._parameters = [(p, p.data, p.grad, None if p.grad is None else p.grad.data) for p in module.parameters()]
        self._buffers = [
            (part, name, buffer)
            for part in module.modules()
            for name, buffer in part._buffers.items()  # noqa: SLF001  torch has no method for those of one module
            if buffer is not None
        ]
        if trains:
            for parameter, *_ in self._parameters:
                parameter.grad = None  # those of an accumulation that is not complete

    @staticmethod
    def is_needed(module: Module, datamodule: Any, trainer: Any) -> bool:
        """Whether another Trainer uses one of them now, or a Fabric has set up the module."""
        owners: list[Any] = [module._trainer, getattr(datamodule, "trainer", None)]  # noqa: SLF001  a property raises
        others = [owner for owner in owners if owner is not None and owner is not trainer]
        return any(getattr(owner, "fabric", None) is not None or owner._session.is_open for owner in others)  # noqa: SLF001  lightlib's own

    def restore(self) -> None:
        """Attach everything again."""
        for module, trainer, results, mesh in self._modules:
            module._attach(trainer, cast("Results", results))  # noqa: SLF001  lightlib's own
            if module.device_mesh is not mesh:
                module.device_mesh = mesh
        datamodule, trainer = self._datamodule
        if datamodule is not None and trainer is not None:
            datamodule.trainer = trainer
        set_modes(self._modes)
        with torch.inference_mode(False), torch.no_grad():
            self._restore_tensors()

    def _restore_tensors(self) -> None:
        """Put tensors that were moved or cast back where they were, with their former values unless they were trained.

        Optimizers and hooks hold the parameters, which stay the same objects.
        """
        for parameter, data, grad, grad_data in self._parameters:
            if _has_moved(parameter.data, data):
                self._copy(parameter.data, data)
                parameter.data = data
            if grad is not None and grad_data is not None and _has_moved(grad.data, grad_data):
                grad.data = grad_data
            parameter.grad = grad
        for module, name, buffer in self._buffers:
            present = module._buffers.get(name)  # noqa: SLF001  as above
            if present is not None and _has_moved(present, buffer):
                self._copy(present, buffer)
                module._buffers[name] = buffer  # noqa: SLF001  as above

    def _copy(self, present: Tensor, former: Tensor) -> None:
        """Keep a change of the values; an evaluation by another precision only rounds them."""
        if self._trains or present.dtype == former.dtype:
            former.copy_(present)


def _has_moved(present: Tensor, former: Tensor) -> bool:
    return present.device != former.device or present.dtype != former.dtype
