"""BaseFinetuning: base class of callbacks that freeze parts of a model and unfreeze them later."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.finetuning.flags import flags_of, joined, set_flags, set_tracking
from lightlib.callbacks.finetuning.schedules import follow_groups, note_group
from lightlib.callbacks.requirements import need_stepped_parameters
from lightlib.errors import MisconfigurationException
from lightlib.torch_private import AnyBatchNorm

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

Modules = Any  # a module, or an iterable of modules and of further iterables
_METADATA = "internal_optimizer_metadata"  # by it Lightning restores the groups


class BaseFinetuning(Callback):
    """Freezes parts of a model before training and unfreezes them at the start of epochs. Subclass it.

    `freeze_before_training` is called when `fit` begins, before `configure_optimizers`, which gives the optimizer the
    parameters that are trained from the start: ``filter(lambda p: p.requires_grad, self.parameters())``.
    `finetune_function` is called when an epoch begins, for each optimizer, and adds the parameters that it unfreezes as
    a new group. A resumed run has the same groups and the same frozen parameters, under every strategy but DeepSpeed.

    A learning-rate schedule of the optimizer also moves an added group, in proportion to the first one.

    Example:
        >>> class UnfreezeEncoder(BaseFinetuning):
        ...     def freeze_before_training(self, pl_module):
        ...         self.freeze(pl_module.encoder)
        ...
        ...     def finetune_function(self, pl_module, epoch, optimizer):
        ...         if epoch == 5:
        ...             self.unfreeze_and_add_param_group(pl_module.encoder, optimizer, lr=1e-4)
    """

    def __init__(self) -> None:
        super().__init__()
        self._internal_optimizer_metadata: dict[int, list[dict[str, Any]]] = {}
        self._saved: Mapping[str, Any] | None = None  # from a checkpoint, until training begins

    # to override
    def freeze_before_training(self, pl_module: Module) -> None:
        """Freeze the parameters that are not trained from the start. Override it."""
        raise _missing(self, "freeze_before_training(self, pl_module)")

    def finetune_function(self, pl_module: Module, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze parameters from `epoch` (from 0) on, and add them to `optimizer`. Override it."""
        raise _missing(self, "finetune_function(self, pl_module, epoch, optimizer)")

    # tools
    @staticmethod
    def flatten_modules(modules: Modules) -> list[nn.Module]:
        """Return the modules that have no children, or parameters of their own.

        Args:
            modules: A module, or an iterable of modules and of further iterables.

        Example:
            >>> BaseFinetuning.flatten_modules([nn.Sequential(nn.Tanh()), nn.ReLU()])
            [Tanh(), ReLU()]
        """
        if isinstance(modules, nn.ModuleDict):
            modules = modules.values()
        if isinstance(modules, Iterable):
            flat = [module for several in modules for module in BaseFinetuning.flatten_modules(several)]
        else:
            flat = list(modules.modules())
        return [module for module in flat if not list(module.children()) or _has_parameters(module)]

    @staticmethod
    def filter_params(
        modules: Modules, train_bn: bool = True, requires_grad: bool = True
    ) -> Generator[nn.Parameter, None, None]:
        """Yield the parameters that are trained, or those that are not.

        Args:
            modules: A module, or an iterable of them.
            train_bn: Whether to include those of batch norms.
            requires_grad: True for those that are trained.
        """
        for part in BaseFinetuning.flatten_modules(modules):
            if train_bn or not isinstance(part, AnyBatchNorm):
                yield from (p for p in part.parameters(recurse=False) if p.requires_grad == requires_grad)

    @staticmethod
    def make_trainable(modules: Modules) -> None:
        """Unfreeze modules: their parameters are trained, and batch norms track their statistics."""
        _train(modules, True)

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Freeze the parameters that the module has itself, without those of its children."""
        _train_one(module, False)

    @staticmethod
    def freeze(modules: Modules, train_bn: bool = True) -> None:
        """Freeze modules.

        Args:
            modules: A module, or an iterable of them.
            train_bn: Whether batch norms are trained all the same. Otherwise their running statistics stay as they are.
        """
        for part in BaseFinetuning.flatten_modules(modules):
            _train_one(part, train_bn and isinstance(part, AnyBatchNorm))

    @staticmethod
    def filter_on_optimizer(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that the optimizer does not have yet, and warn about the rest."""
        new, present = _apart(optimizer, params)
        if present:
            _warn_of_known(optimizer, len(present))
        return new

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: Modules,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Unfreeze modules and add their parameters to an optimizer as a new group.

        Args:
            modules: A module, or an iterable of them.
            optimizer: As `finetune_function` gets it.
            lr: The learning rate of the group. Default: that of the first group, divided by `initial_denom_lr`.
            initial_denom_lr: The divisor, without `lr`.
            train_bn: Whether to add the parameters of batch norms.
        """
        frozen = {id(p) for p in BaseFinetuning.filter_params(modules, train_bn=train_bn, requires_grad=False)}
        BaseFinetuning.make_trainable(modules)
        params, present = _apart(optimizer, BaseFinetuning.filter_params(modules, train_bn=train_bn))
        unfrozen = [parameter for parameter in present if id(parameter) in frozen]
        if present and (unfrozen or not params):
            _warn_of_known(optimizer, len(unfrozen or present))
        if present and not params:
            return  # without any parameter they are on another stage of a pipeline, and all have the same groups
        rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else float(lr)
        optimizer.add_param_group({"params": params, "lr": rate})
        note_group(optimizer.param_groups)

    # training
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        need_stepped_parameters(self, trainer)
        self._internal_optimizer_metadata, self._saved = {}, None
        self.freeze_before_training(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self._saved is not None:
            state = trainer.run.user_state if trainer.run is not None else None
            later = state.pending if state is not None and state.saves else None
            set_flags(pl_module, self._saved, later or {})

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self._saved is None and trainer.progress.begun:  # a second fit, within the epoch in which the first ended
            self.on_train_epoch_start(trainer, pl_module)
        self._saved = None
        self._follow(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        for optimizer in trainer.optimizers:
            self.finetune_function(pl_module, trainer.current_epoch, optimizer)
        self._follow(trainer)

        names = [trainer.strategy.parameter_names(optimizer) for optimizer in trainer.optimizers]
        groups = [
            _with_names(o.param_groups, group_names) for o, group_names in zip(trainer.optimizers, names, strict=True)
        ]
        self._internal_optimizer_metadata = dict(enumerate(groups))

    def _store(
        self, pl_module: Module, opt_idx: int, num_param_groups: int, current_param_groups: list[dict[str, Any]]
    ) -> None:
        """Note the groups from `num_param_groups` on, or all if none are noted; kraken calls it in its own hooks."""
        noted = self._internal_optimizer_metadata.setdefault(opt_idx, [])
        new = current_param_groups[num_param_groups:] if noted else current_param_groups
        names = {parameter: name for name, parameter in pl_module.named_parameters()}
        noted += _with_names(new, [[names[parameter] for parameter in group["params"]] for group in new])

    def _follow(self, trainer: Trainer) -> None:
        """Let the schedules follow the groups."""
        for config in trainer.lr_scheduler_configs:
            owner = getattr(config.scheduler, "optimizer", None)
            if owner is not None:
                follow_groups(config.scheduler, owner.param_groups)

    # checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {_METADATA: self._internal_optimizer_metadata}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict
        self._internal_optimizer_metadata = state_dict.get(_METADATA, {})

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        if "callbacks" not in checkpoint:
            return
        waiting = self._saved
        flags = {k: waiting[k] for k in joined(()) if k in waiting} if waiting is not None else flags_of(pl_module)
        flags = joined(trainer.strategy.collectives.all_gather_object(flags))
        checkpoint["callbacks"][self.state_key] = {**checkpoint["callbacks"].get(self.state_key, {}), **flags}


def _has_parameters(module: nn.Module) -> bool:
    """Whether a module has parameters besides those of its children."""
    return next(module.parameters(recurse=False), None) is not None


def _train(modules: Modules, trains: bool) -> None:
    for part in BaseFinetuning.flatten_modules(modules):
        _train_one(part, trains)


def _train_one(part: nn.Module, trains: bool) -> None:
    if isinstance(part, AnyBatchNorm):
        set_tracking(part, trains)
    for parameter in part.parameters(recurse=False):
        parameter.requires_grad_(trains)


def _apart(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that an optimizer does not have, and those that it has."""
    ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    by_id = {id(p): p for p in params}  # a parameter that two layers share comes once
    return [p for i, p in by_id.items() if i not in ids], [p for i, p in by_id.items() if i in ids]


def _with_names(groups: list[dict[str, Any]], names: list[list[str]]) -> list[dict[str, Any]]:
    """Return groups of an optimizer with the names of their parameters, as Lightning stores them."""
    pairs = zip(groups, names, strict=True)
    return [{**{k: v for k, v in group.items() if k != "param_names"}, "params": params} for group, params in pairs]


def _warn_of_known(optimizer: Optimizer, number: int) -> None:
    name = type(optimizer).__name__
    report.warn(
        f"{number} parameters to unfreeze are in a group of {name} already, and keep its learning rate. Make the "
        f"optimizer of those that are trained: {name}(filter(lambda p: p.requires_grad, self.parameters()), …)."
    )


def _missing(callback: BaseFinetuning, method: str) -> MisconfigurationException:
    name = type(callback).__name__
    return MisconfigurationException(
        f"{name} has no {method.partition('(')[0]}.",
        expected="a subclass that defines freeze_before_training and finetune_function.",
        fix=f"class My{name}({name}): def {method}: …",
    )
