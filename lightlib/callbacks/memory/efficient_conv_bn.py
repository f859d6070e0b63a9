"""EfficientConvBN: convolutions and frozen batch norms train as one convolution, in less memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_layers
from lightlib.errors import MisconfigurationException
from lightlib.transforms.conv_bn import ConvBNFusion, fuse_conv_bn

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class EfficientConvBN(Callback):
    """Fuses each batch norm in evaluation mode with the convolution before it, while training.

    It keeps less for backward; outputs and gradients differ by rounding only. Batch norms in training mode are not
    affected, so put them into evaluation mode, as for fine-tuning with frozen statistics. The pairs, and the batch
    norms that were not fused, are printed when training begins. After training the module is as before. It works on one
    device and under DDP. See `lightlib.transforms.fuse_conv_bn`.

    Args:
        modules: Names of the parts of the module to look at, with wildcards. Default: all.

    Raises:
        ArgumentTypeError: When training begins: `modules` is no list of names.
        MisconfigurationException: When training begins: a name matches no module, there is nothing to fuse, or the
            strategy shards parameters.

    Example:
        >>> EfficientConvBN(modules=["backbone"])
        EfficientConvBN(modules=['backbone'])
    """

    def __init__(self, modules: Sequence[str] | None = None) -> None:
        super().__init__()
        self.modules = modules
        self._fusion: ConvBNFusion | None = None

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            need_layers(self, trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        fusion = fuse_conv_bn(pl_module, self.modules)
        if not fusion.fused:
            raise MisconfigurationException(
                f"EfficientConvBN has {fusion.describe()}",
                expected="a convolution of torch whose output goes to one batch norm with running statistics.",
                fix="leave the callback out.",
            )
        self._fusion = fusion
        report.info(f"EfficientConvBN: {fusion.describe()}")

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0 and self._fusion is not None and all(norm.training for norm in self._fusion.norms):
            report.warn(
                "EfficientConvBN has no effect: all of its batch norms are in training mode. "
                "Call `.eval()` on them in `on_train_epoch_start` of the module, or leave the callback out.",
                report.PossibleUserWarning,
            )

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if self._fusion is not None:
            self._fusion.undo()
            self._fusion = None
