"""NormMonitor: logs the norms of gradients and parameters, in total, by parameter group and by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitors.layers import checked_patterns, layers_of
from lightlib.callbacks.summary.training_memory import local_part
from lightlib.errors import MisconfigurationException, check_flag, check_int
from lightlib.loggers.media.items import Histogram

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

Pairs = list[tuple[Any, Any]]


class NormMonitor(Callback):
    """Logs the 2-norms of gradients and parameters before optimizer steps, over all processes.

    The names are ``grad_norm`` and ``param_norm``. An optimizer with several parameter groups also has
    ``grad_norm/pg1``, ``grad_norm/pg2``, …, or the group's ``"name"`` in place of the number. The second optimizer's
    names begin with ``grad_norm-1``. The values are in `trainer.callback_metrics` as well, where other callbacks can
    monitor them.

    Gradients are those of the full step: accumulated, reduced over the processes, without the scale of the loss, and
    before clipping. Norms are those of the full tensors, whichever shards each process holds. In steps that are not
    logged, nothing is computed and the device is not waited for.

    Args:
        gradients: Whether the norms of gradients are logged. Default: True.
        parameters: Whether the norms of parameters are logged, of those that are trained. Default: True.
        every_n_steps: The interval in optimizer steps. Default: the Trainer's `log_every_n_steps`.
        layers: Names of layers as in ``module.named_modules()``, with wildcards, such as ``"blocks.*"``: their norms
            are logged as ``grad_norm/<layer>``. Default: none.
        histograms: Whether histograms of these layers' gradients and parameters are logged as well, under
            ``gradients/<layer>`` and ``parameters/<layer>``: of the part that the first process holds. Default: False.

    Raises:
        ArgumentTypeError: `gradients` or `parameters` is no bool, or `every_n_steps` no int.
        MisconfigurationException: `every_n_steps` is below 1, or both are switched off; when a run begins: the
            strategy keeps gradients for itself, as DeepSpeed does; or a name matches no layer.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[NormMonitor(every_n_steps=100)])
    """

    def __init__(
        self,
        gradients: bool = True,
        parameters: bool = True,
        every_n_steps: int | None = None,
        layers: str | Sequence[str] = (),
        histograms: bool = False,
    ) -> None:
        super().__init__()
        check_flag("NormMonitor", "gradients", gradients)
        check_flag("NormMonitor", "parameters", parameters)
        if not gradients and not parameters:
            raise MisconfigurationException(
                "NormMonitor(gradients=False, parameters=False) has nothing to log.",
                expected="at least one of the two.",
                fix="NormMonitor(), or leave the callback out.",
            )
        if every_n_steps is not None:
            check_int("NormMonitor", "every_n_steps", every_n_steps, 1, example=50)
        self.gradients, self.parameters, self.every_n_steps = gradients, parameters, every_n_steps
        self.layers = checked_patterns("NormMonitor", layers)
        self.histograms = check_flag("NormMonitor", "histograms", histograms)
        self._every = 0
        self._parts: dict[str, list[Any]] = {}

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self.layers and trainer.strategy.divides_parameters:
            raise MisconfigurationException(
                f"NormMonitor(layers={list(self.layers)!r}) with {trainer.strategy.describe()}.",
                expected="a strategy whose processes all have each layer, in full or a shard of it.",
                fix="leave out layers, or name groups of parameters in the optimizer: their norms are logged.",
            )
        layers = layers_of("NormMonitor", self.layers, pl_module)
        self._parts = {name: list(part.parameters()) for name, part in layers.items()}

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit" and not trainer.strategy.steps_parameters:
            raise MisconfigurationException(
                f"NormMonitor with {type(trainer.strategy).__name__}, which keeps gradients for itself.",
                expected="a strategy whose parameters have gradients: one device, DDP, FSDP, tensor, a pipeline.",
                fix="strategy='fsdp', or log trainer.gradient_norm in on_train_batch_end, with gradient_clip_val set.",
            )
        self._every = trainer.log_every_n_steps if self.every_n_steps is None else self.every_n_steps

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Any) -> None:
        step = trainer.progress.step + 1
        if not self._every or step % self._every:
            return
        number = next(index for index, candidate in enumerate(trainer.optimizers) if _same(candidate, optimizer))
        suffix = f"-{number}" if number else ""
        groups = [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]
        names = _names(optimizer.param_groups)
        norms: dict[str, Tensor] = {}
        if self.gradients:
            pairs = [[(p, p.grad) for p in group if p.grad is not None] for group in groups]
            norms |= _norms(trainer, f"grad_norm{suffix}", names, pairs)
        if self.parameters:
            norms |= _norms(trainer, f"param_norm{suffix}", names, [[(p, p) for p in group] for group in groups])
        owned = {id(p) for group in groups for p in group}
        parts = {name: [p for p in part if id(p) in owned] for name, part in self._parts.items()}
        parts = {name: part for name, part in parts.items() if part}
        if self.gradients and parts:
            pairs = [[(p, p.grad) for p in part if p.grad is not None] for part in parts.values()]
            norms |= _norms(trainer, f"grad_norm{suffix}", [*parts], pairs, total=False)
        if self.parameters and parts:
            pairs = [[(p, p) for p in part] for part in parts.values()]
            norms |= _norms(trainer, f"param_norm{suffix}", [*parts], pairs, total=False)
        if self.histograms:
            self._log_histograms(trainer, parts)
        values = dict(zip(norms, _read(norms), strict=True))
        if trainer.run is not None:
            trainer.run.results.note(values)
        trainer.log_metrics_now(values, step=step)

    def _log_histograms(self, trainer: Trainer, parts: dict[str, list[Any]]) -> None:
        for kind, is_logged in (("gradients", self.gradients), ("parameters", self.parameters)):
            for name, part in parts.items() if is_logged else ():
                tensors = [p.grad if kind == "gradients" else p.detach() for p in part]
                values = [local_part(tensor).float().flatten() for tensor in tensors if tensor is not None]
                if values and sum(tensor.numel() for tensor in values):
                    trainer.log_media(f"{kind}/{name}", Histogram(torch.cat(values)), step=trainer.progress.step + 1)


def _same(optimizer: Any, other: Any) -> bool:
    """Whether two optimizers are one, or one wraps the other: they share their parameter groups."""
    return getattr(optimizer, "param_groups", optimizer) is getattr(other, "param_groups", other)


def _names(groups: list[dict[str, Any]]) -> list[str]:
    """Return the names of several groups; none if there is only one. A name that is taken twice becomes a number."""
    group_names = [str(group.get("name", "")) for group in groups]
    names = [name if name and group_names.count(name) == 1 else f"pg{at}" for at, name in enumerate(group_names, 1)]
    return names if len(groups) > 1 else []


def _norms(
    trainer: Trainer, prefix: str, names: list[str], groups: list[Pairs], total: bool = True
) -> dict[str, Tensor]:
    """Return the norm of all groups, and that of each if there are several; without the `total` that of each alone."""
    every = [*([[pair for group in groups for pair in group]] if total else ()), *(groups if names else ())]
    keys = [*([prefix] if total else ()), *(f"{prefix}/{name}" for name in names)]
    return dict(zip(keys, trainer.strategy.norms(every), strict=True))


def _read(norms: dict[str, Tensor]) -> list[float]:
    """Read the numbers from the device at once."""
    numbers: list[float] = torch.stack([*norms.values()]).tolist()
    return numbers
