"""ChannelsLast: the module and its batches in the memory format that suits convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_layers
from lightlib.errors import MisconfigurationException, is_ours
from lightlib.transforms.channels_last import to_channels_last

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class ChannelsLast(Callback):
    """Keeps the parameters of convolutions, and the tensors of four dimensions in each batch, in channels_last.

    Many convolutions are faster so on GPUs with tensor cores and on CPUs with bfloat16. Values do not change; sums may
    be added in another order. The module stays in this format after the run. It works on one device and under DDP.

    Raises:
        MisconfigurationException: When a run begins: the module has no parameter of four dimensions, or the strategy
            shards parameters. With several processes: `configure_model` builds such a parameter.

    Example:
        >>> ChannelsLast()
        ChannelsLast()
    """

    def __init__(self) -> None:
        super().__init__()
        self._move: Any = None  # of the strategy, before this callback

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        need_layers(self, trainer)
        if _is_to_change(pl_module):
            to_channels_last(pl_module)
        strategy, self._move = trainer.strategy, trainer.strategy.extension.move
        owner = next((candidate for candidate in (trainer.datamodule, pl_module) if _transfers(candidate)), None)
        before = self._move

        def move(batch: Any, dataloader_idx: int) -> Any:
            if before is not None:
                batch = before(batch, dataloader_idx)
            elif owner is not None:
                batch = owner.transfer_batch_to_device(batch, strategy.root_device, dataloader_idx)
            else:
                batch = strategy.batch_to_device(batch)
            return to_channels_last(batch)

        strategy.extend(move=move)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._check(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._check(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._check(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._check(trainer, pl_module)

    def _check(self, trainer: Trainer, pl_module: Module) -> None:
        """Change layers that `configure_model` has built; DDP needs their format before."""
        if not any(parameter.ndim == 4 for parameter in pl_module.parameters()):
            to_channels_last(pl_module)  # raises
        if not _is_to_change(pl_module):
            return
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"ChannelsLast on several processes, and configure_model of {type(pl_module).__name__} builds layers.",
                expected="their parameters in channels_last when the strategy places them.",
                fix="lightlib.transforms.to_channels_last(self.net) at the end of configure_model.",
            )
        to_channels_last(pl_module)

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        trainer.strategy.extend(move=self._move)


def _is_to_change(module: nn.Module) -> bool:
    four = (parameter for parameter in module.parameters() if parameter.ndim == 4)
    return any(not parameter.is_contiguous(memory_format=torch.channels_last) for parameter in four)


def _transfers(owner: Any) -> bool:
    """Whether a module or data module moves batches by a method of its own."""
    method = getattr(owner, "transfer_batch_to_device", None)
    return method is not None and not is_ours(getattr(method, "__func__", method).__module__)
