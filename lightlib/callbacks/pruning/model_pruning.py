"""ModelPruning: prunes the weights of a model while it trains, with torch.nn.utils.prune."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.pruning.masks import (
    mask_of,
    order_kept,
    original,
    prune_as_saved,
    refresh,
    remove,
    without_masks,
)
from lightlib.callbacks.pruning.pruning_arguments import (
    NAMES,
    Layers,
    check_amount,
    described,
    parameters_in,
    pruning_function,
)
from lightlib.callbacks.requirements import need_one_average
from lightlib.checkpoint.directory.tensors import dtensor_type, read_tensors
from lightlib.checkpoint.storage.content import TRAINED
from lightlib.errors import MisconfigurationException, UnknownNameError, check_flag, check_type, wrong_value

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class ModelPruning(Callback):
    """Prunes parameters at the end of each training epoch: the smallest weights become 0 and stay 0.

    By default the remaining weights then go back to their first values (the lottery ticket hypothesis, Frankle and
    Carbin, https://arxiv.org/abs/1803.03635). When training ends the masks are removed and the weights are final.

    A checkpoint's `state_dict` has the pruned weights without masks; ``current_model_state`` has the masks and the
    weights that are trained, with which a resumed run continues, bit for bit. With `make_pruning_permanent=False` the
    masks are in `state_dict`. It works on one device and with DDP, whose ranks get the masks of the first one.

    Args:
        pruning_fn: ``"l1_unstructured"``, ``"random_unstructured"``, ``"ln_structured"``, ``"random_structured"``, or a
            subclass of :class:`torch.nn.utils.prune.BasePruningMethod`.
        parameters_to_prune: Pairs of a layer and the name of its parameter. Default: all of `parameter_names`.
        parameter_names: Of ``"weight"`` and ``"bias"``. Default: both.
        use_global_unstructured: Prune all parameters as one; otherwise each by itself.
        amount: A share from 0.0 to 1.0 of the elements that are left, a number of elements, or a function of the
            epoch.
        apply_pruning: Whether to prune, or a function of the epoch.
        make_pruning_permanent: Remove the masks at the end of training, and from the `state_dict` of checkpoints.
        use_lottery_ticket_hypothesis: Whether to reset the weights after pruning, or a function of the epoch.
        resample_parameters: Reset to new random values of the layers' `reset_parameters`.
        pruning_dim, pruning_norm: Dimension and norm of structured pruning.
        verbose: 1 logs how much is pruned, 2 also for each parameter.
        prune_on_train_epoch_end: False prunes at the end of each validation instead.

    Raises:
        ArgumentTypeError, MisconfigurationException, UnknownNameError: A wrong argument; when a run begins: a parameter
            that the module does not have, or a strategy that shards parameters.

    Example:
        >>> callback = ModelPruning("l1_unstructured", amount=0.2, use_lottery_ticket_hypothesis=False)
        >>> callback.amount
        0.2
    """

    PARAMETER_NAMES = NAMES

    def __init__(
        self,
        pruning_fn: Callable[..., Any] | str,
        parameters_to_prune: Layers = (),
        parameter_names: list[str] | None = None,
        use_global_unstructured: bool = True,
        amount: int | float | Callable[[int], int | float] = 0.5,
        apply_pruning: bool | Callable[[int], bool] = True,
        make_pruning_permanent: bool = True,
        use_lottery_ticket_hypothesis: bool | Callable[[int], bool] = True,
        resample_parameters: bool = False,
        pruning_dim: int | None = None,
        pruning_norm: int | None = None,
        verbose: int = 0,
        prune_on_train_epoch_end: bool = True,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        for flag in ("use_global_unstructured", "make_pruning_permanent", "resample_parameters"):
            check_flag(owner, flag, locals()[flag])
        check_flag(owner, "prune_on_train_epoch_end", prune_on_train_epoch_end)
        for flag in ("apply_pruning", "use_lottery_ticket_hypothesis"):
            expected = "True or False, or a function of the epoch"
            check_type(owner, flag, locals()[flag], (bool, Callable), expected, True)
        check_amount(owner, amount)
        for name in parameter_names or ():
            if name not in NAMES:
                raise UnknownNameError("parameter name", name, NAMES, fix=f'{owner}(…, parameter_names=["weight"])')
        if verbose not in (0, 1, 2):
            raise wrong_value(owner, "verbose", verbose, "0, 1 or 2", 1)
        self._use_global_unstructured, self._parameter_names = use_global_unstructured, parameter_names or NAMES
        self.pruning_fn, self._options, self._pruning_method_name = pruning_function(
            owner, pruning_fn, use_global_unstructured, pruning_dim, pruning_norm
        )
        self._given = parameters_to_prune
        self._parameters_to_prune: Layers = ()
        self.amount, self._apply_pruning, self._make_pruning_permanent = amount, apply_pruning, make_pruning_permanent
        self._use_lottery_ticket_hypothesis, self._resample_parameters = (
            use_lottery_ticket_hypothesis,
            resample_parameters,
        )
        self._verbose, self._prune_on_train_epoch_end = verbose, prune_on_train_epoch_end
        self._first: dict[str, Tensor] = {}  # values to go back to, by the parameter's number
        self._handles: list[Any] = []
        self._last_step = -1  # after which it ran

    @property
    def state_key(self) -> str:
        """Several can be used together when they differ in the method, or in the names or shapes of parameters."""
        described_parameters = described(self._given) or tuple(self._parameter_names)
        return self._generate_state_key(pruning_fn=self._pruning_method_name, parameters=described_parameters)

    # to override
    def filter_parameters_to_prune(self, parameters_to_prune: Layers = ()) -> Layers:
        """Return the pairs of a layer and a parameter's name that are pruned. Override it to leave some out."""
        return parameters_to_prune

    @staticmethod
    def sanitize_parameters_to_prune(
        pl_module: nn.Module, parameters_to_prune: Layers = (), parameter_names: Sequence[str] = ()
    ) -> Layers:
        """Return the checked pairs of a layer and a parameter's name, or all of the module."""
        return parameters_in("ModelPruning", pl_module, parameters_to_prune, parameter_names or NAMES)

    # pruning
    def apply_pruning(self, amount: int | float) -> None:
        """Prune once.

        Args:
            amount: A share of the elements that are left, or a number of elements.
        """
        layers = self._parameters_to_prune
        before = [_zeros(layer, name) for layer, name in layers]
        refresh(layers)  # else torch judges by the weights before the last step
        with _orders_kept(layers):
            if self._use_global_unstructured:
                accepted = inspect.signature(self.pruning_fn).parameters
                options = {k: v for k, v in {**self._options, "amount": amount}.items() if k in accepted}
                prune.global_unstructured(layers, pruning_method=self.pruning_fn, **options)
            else:
                for layer, name in layers:
                    self.pruning_fn(layer, name=name, amount=amount)
        if self._verbose:
            self._report(before, amount)

    def apply_lottery_ticket_hypothesis(self) -> None:
        """Give the pruned parameters their first values again, or new random ones."""
        resampled = self._resampled() if self._resample_parameters else {}
        with torch.no_grad():
            for number, (layer, name) in enumerate(self._parameters_to_prune):
                value = resampled.get(number, self._first.get(str(number)))
                if value is not None:
                    original(layer, name).copy_(value)

    def make_pruning_permanent(self, module: nn.Module) -> None:
        """Remove the masks of a module: its weights are the pruned ones."""
        remove(module)

    def _resampled(self) -> dict[int, Tensor]:
        """Return new random values of the layers that can make some, by the parameter's number."""
        values: dict[int, Tensor] = {}
        layers = {id(layer): layer for layer, _ in self._parameters_to_prune}
        refresh(self._parameters_to_prune)  # what a forward computed cannot be copied
        copies = {key: copy.deepcopy(layer) for key, layer in layers.items() if hasattr(layer, "reset_parameters")}
        for layer_copy in copies.values():
            layer_copy.reset_parameters()  # type: ignore[operator]
        for number, (layer, name) in enumerate(self._parameters_to_prune):
            if id(layer) in copies:
                values[number] = getattr(copies[id(layer)], name).detach()
        return values

    def _run_pruning(self, trainer: Trainer, epoch: int) -> None:
        self._last_step = trainer.global_step
        amount = self.amount(epoch) if callable(self.amount) else self.amount
        if not _now(self._apply_pruning, epoch) or not amount:
            return
        self.apply_pruning(amount)
        if _now(self._use_lottery_ticket_hypothesis, epoch):
            self.apply_lottery_ticket_hypothesis()
        if trainer.world_size > 1:
            self._share(trainer)
        refresh(self._parameters_to_prune)

    @torch.no_grad()
    def _share(self, trainer: Trainer) -> None:
        """Give all ranks the masks and weights of the first one: each draws random numbers of its own."""
        for layer, name in self._parameters_to_prune:
            for tensor in (mask_of(layer, name), original(layer, name)):
                if tensor is not None:
                    tensor.copy_(trainer.strategy.broadcast(tensor.detach().cpu()))

    def _report(self, before: list[int], amount: int | float) -> None:
        layers = self._parameters_to_prune
        after, sizes = [_zeros(*pair) for pair in layers], [original(*pair).numel() for pair in layers]
        total = sum(sizes)
        report.info(
            f"{self._pruning_method_name} pruned {sum(before)} -> {sum(after)} of {total} elements "
            f"({sum(after) / max(total, 1):.2%})."
        )
        for (layer, name), old, new, size in zip(layers, before, after, sizes, strict=True):
            if self._verbose == 2:
                share = f"{old} -> {new} of {size} ({new / size:.2%})"
                report.info(f"{self._pruning_method_name}(amount={amount}) of {layer!r}.{name}: {share}.")

    # hooks
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        strategy, name = trainer.strategy, type(self).__name__
        if strategy.lockstep or strategy.data_size != strategy.world_size or not strategy.steps_parameters:
            raise _sharded(name, type(strategy).__name__)
        need_one_average(self, trainer)
        parameters = parameters_in(name, pl_module, self._given, self._parameter_names)
        self._parameters_to_prune, self._first = self.filter_parameters_to_prune(parameters), {}
        self._last_step = -1
        for layer in {id(layer): layer for layer, _ in self._parameters_to_prune}.values():
            self._handles.append(layer.register_load_state_dict_pre_hook(prune_as_saved))  # type: ignore[no-untyped-call]

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        name, layers = type(self).__name__, self._parameters_to_prune
        if any(isinstance(parameter, dtensor_type()) for parameter in pl_module.parameters()):
            raise _sharded(name, type(trainer.strategy).__name__)
        flat = [parameter for layer, parameter in layers if original(layer, parameter).ndim < 2]
        if flat and self._pruning_method_name.endswith("_structured"):
            raise MisconfigurationException(
                f"{name}({self._pruning_method_name!r}) would prune a {flat[0]!r} of one dimension.",
                expected="parameters of two dimensions or more, for structured pruning.",
                fix=f'{name}({self._pruning_method_name!r}, parameter_names=["weight"], …)',
            )
        if self._use_lottery_ticket_hypothesis and not self._first:
            self._first = {str(i): original(*pair).detach().clone() for i, pair in enumerate(layers)}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._prune_on_train_epoch_end:
            self._run_pruning(trainer, trainer.current_epoch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._prune_on_train_epoch_end and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._run_pruning(trainer, trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.progress.epoch_batch and trainer.global_step != self._last_step:
            self.on_train_epoch_end(trainer, pl_module)  # resumed where the saved run had stopped within an epoch
        if self._make_pruning_permanent:
            self.make_pruning_permanent(pl_module)

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        refresh(self._parameters_to_prune)  # what a forward computed holds a graph, and cannot be copied

    # checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {"original": dict(self._first), "last_step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._last_step = state_dict["last_step"]
        numbered = dict(enumerate(self._parameters_to_prune))
        for number, value in state_dict.get("original", {}).items():
            if int(number) in numbered:
                self._first[number] = value.to(original(*numbered[int(number)]).device)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        if not self._make_pruning_permanent or not any(
            mask_of(*pair) is not None for pair in self._parameters_to_prune
        ):
            return
        if "callbacks" in checkpoint:
            checkpoint.setdefault(TRAINED, state)  # another one may have taken the masks from `state_dict` already
        checkpoint["state_dict"] = without_masks(state)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and checkpoint.get(TRAINED) is not None:
            trainer.strategy.load_module_state(read_tensors(checkpoint[TRAINED]))
        refresh(self._parameters_to_prune)


def _now(setting: bool | Callable[[int], bool], epoch: int) -> bool:
    return bool(setting(epoch) if callable(setting) else setting)


def _zeros(layer: nn.Module, name: str) -> int:
    mask = mask_of(layer, name)
    return 0 if mask is None else int((mask == 0).sum())


def _orders_kept(layers: Layers) -> Any:
    return order_kept(nn.ModuleList({id(layer): layer for layer, _ in layers}.values()))


def _sharded(owner: str, strategy: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"{owner} got a {strategy} that shards or copies parameters.",
        expected="one device or DDP: torch prunes complete parameters of the module itself.",
        fix='Trainer(strategy="ddp")',
    )
