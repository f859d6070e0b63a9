"""LayerSync: replaces layers by ones that synchronise over processes, and puts them back."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from torch import nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies.plugin import StrategyPlugin
from lightlib.torch_private import AnyBatchNorm

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.strategies.strategy import Strategy

__all__ = ["LayerSync", "TorchSyncBatchNorm"]


class LayerSync(StrategyPlugin):
    """Base of objects that change layers of the module before training, passed as ``Trainer(plugins=[…])``."""

    @abstractmethod
    def apply(self, model: nn.Module) -> nn.Module:
        """Change the layers of `model` in place before a fit, and return it."""

    @abstractmethod
    def revert(self, model: nn.Module) -> nn.Module:
        """Undo `apply` when the fit ends."""

    def attach_to(self, strategy: Strategy) -> None:
        """Change the module of `strategy` in each fit.

        Raises:
            MisconfigurationException: ``sync_batchnorm=True`` is given as well, or the strategy is none of Lightning's.
        """
        if strategy.sync_batchnorm:
            raise MisconfigurationException(
                f"Trainer(sync_batchnorm=True, plugins=[{type(self).__name__}()]): both change the layers.",
                expected="one of the two.",
                fix="leave out sync_batchnorm.",
            )
        if type(self) is TorchSyncBatchNorm:
            strategy.synchronize_batchnorm()
            return
        use = getattr(strategy, "use_layer_sync", None)
        if use is None:
            raise MisconfigurationException(
                f"{type(self).__name__} with the strategy {strategy.describe()}.",
                expected="one of Lightning's strategies: 'single_device', 'ddp', 'fsdp', …",
                fix="Trainer(strategy='ddp')",
            )
        use(self)


class TorchSyncBatchNorm(LayerSync):
    """Batch norms that use the mean and variance over all processes; the same as ``sync_batchnorm=True``.

    Example:
        >>> layer = TorchSyncBatchNorm().apply(nn.Sequential(nn.BatchNorm1d(2)))[0]
        >>> type(layer).__name__, type(TorchSyncBatchNorm().revert(nn.Sequential(layer))[0]).__name__
        ('SyncBatchNorm', 'BatchNormOfAnyShape')
    """

    def apply(self, model: nn.Module) -> nn.Module:
        """Replace each batch norm by torch's SyncBatchNorm."""
        synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return synchronised

    def revert(self, model: nn.Module) -> nn.Module:
        """Replace each SyncBatchNorm by a batch norm with the same parameters and statistics, for any shape."""
        if isinstance(model, nn.SyncBatchNorm):
            return _local(model)
        for name, child in model.named_children():
            model.add_module(name, self.revert(child))
        return model


class BatchNormOfAnyShape(AnyBatchNorm):
    """A batch norm for inputs of any number of dimensions: SyncBatchNorm has forgotten which it replaced."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  torch's name
        return


def _local(layer: nn.SyncBatchNorm) -> nn.Module:
    local = BatchNormOfAnyShape(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    for values in (vars(layer)["_parameters"], vars(layer)["_buffers"]):
        for name, value in values.items():
            setattr(local, name, value)
    return local.train(layer.training)
