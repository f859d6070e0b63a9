"""BackboneFinetuning: trains the head of a model first, and its backbone from an epoch on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from lightlib import report
from lightlib.callbacks.finetuning.base import BaseFinetuning
from lightlib.errors import MisconfigurationException, check_int, check_number, check_type, shown

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


def multiplicative(epoch: int) -> float:  # noqa: ARG001  the form of `lambda_func`
    """Return 2: the learning rate of the backbone doubles in every epoch.

    Example:
        >>> multiplicative(3)
        2.0
    """
    return 2.0


class BackboneFinetuning(BaseFinetuning):
    """Freezes ``self.backbone`` of the module, and trains it from an epoch on with a learning rate that grows.

    When that epoch begins, the backbone's parameters become a new group of the optimizer. When a later epoch begins,
    the learning rate of the group is its last one times ``lambda_func(epoch + 1)``. A resumed run continues all of it.

    Args:
        unfreeze_backbone_at_epoch: The first epoch, from 0, that trains the backbone.
        lambda_func: The factor of the backbone's learning rate, by the number of the next epoch. Default: 2.
        backbone_initial_ratio_lr: The first learning rate of the backbone, as a share of that of the first group.
        backbone_initial_lr: The first learning rate of the backbone, in place of that share.
        should_align: Never let the learning rate of the backbone exceed that of the first group.
        initial_denom_lr: Without effect, as in Lightning: the first learning rate is always given.
        train_bn: Train the backbone's batch norms with the new group. The frozen backbone trains them in any case, if
            the optimizer has them.
        verbose: Log both learning rates at the start of each epoch.
        rounding: Digits of the logged learning rates.

    Raises:
        ArgumentTypeError: An argument of another type.
        MisconfigurationException: An argument out of range; when a run begins: the module has no `backbone`, there are
            several optimizers, or the strategy is DeepSpeed.

    Example:
        >>> callback = BackboneFinetuning(unfreeze_backbone_at_epoch=3, lambda_func=lambda epoch: 1.5)
        >>> callback.unfreeze_backbone_at_epoch
        3
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float = 10e-2,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_int(name, "unfreeze_backbone_at_epoch", unfreeze_backbone_at_epoch, 0)
        check_int(name, "rounding", rounding, 0)
        expected = "a function of the epoch that returns a factor"
        check_type(name, "lambda_func", lambda_func, Callable, expected, "lambda epoch: 1.5")
        check_number(name, "backbone_initial_ratio_lr", backbone_initial_ratio_lr, above=0, example=0.1)
        check_number(name, "initial_denom_lr", initial_denom_lr, above=0, example=10.0)
        if backbone_initial_lr is not None:
            check_number(name, "backbone_initial_lr", backbone_initial_lr, above=0, example="1e-4")
        self.unfreeze_backbone_at_epoch, self.lambda_func = unfreeze_backbone_at_epoch, lambda_func
        self.backbone_initial_ratio_lr, self.backbone_initial_lr = backbone_initial_ratio_lr, backbone_initial_lr
        self.should_align, self.initial_denom_lr = should_align, initial_denom_lr
        self.train_bn, self.verbose, self.rounding = train_bn, verbose, rounding
        self.previous_backbone_lr: float | None = None  # None: it is frozen

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit" and not isinstance(getattr(pl_module, "backbone", None), nn.Module):
            name = type(pl_module).__name__
            raise MisconfigurationException(
                f"{name}.backbone is {shown(getattr(pl_module, 'backbone', None))}.",
                expected="an nn.Module, made in __init__, that is frozen at first.",
                fix=f"name that part of {name} `backbone`, or subclass BaseFinetuning.",
            )
        if stage == "fit":
            self.previous_backbone_lr = None
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if len(trainer.optimizers) != 1:
            raise MisconfigurationException(
                f"{type(self).__name__} got {len(trainer.optimizers)} optimizers.",
                expected="one: it would add the backbone to each of them.",
                fix="subclass BaseFinetuning, whose finetune_function gets each optimizer.",
            )
        super().on_fit_start(trainer, pl_module)

    def freeze_before_training(self, pl_module: Module) -> None:
        """Freeze the backbone but its batch norms."""
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Module, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the backbone, or set its learning rate."""
        if epoch < self.unfreeze_backbone_at_epoch:
            return
        rate = float(optimizer.param_groups[0]["lr"])
        if self.previous_backbone_lr is None:
            initial_lr = self.backbone_initial_lr
            backbone_lr = rate * self.backbone_initial_ratio_lr if initial_lr is None else initial_lr
            denominator = self.initial_denom_lr
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, backbone_lr, denominator, self.train_bn)
        else:
            backbone_lr = self.lambda_func(epoch + 1) * self.previous_backbone_lr
            backbone_lr = rate if self.should_align and backbone_lr > rate else backbone_lr
            group = _group_of(pl_module.backbone, optimizer)
            if group is not None:
                group["lr"] = backbone_lr
        self.previous_backbone_lr = backbone_lr
        if self.verbose:
            report.info(
                f"Epoch {epoch}: learning rate {round(rate, self.rounding)}, of the backbone "
                f"{round(backbone_lr, self.rounding)}."
            )

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]
        super().load_state_dict(state_dict)


def _group_of(backbone: Any, optimizer: Optimizer) -> dict[str, Any] | None:
    """Return the last group, if it has nothing but the backbone's parameters; one of another stage is empty."""
    ids, last = {id(parameter) for parameter in backbone.parameters()}, optimizer.param_groups[-1]
    alone = len(optimizer.param_groups) > 1 and all(id(parameter) in ids for parameter in last["params"])
    return last if alone else None
