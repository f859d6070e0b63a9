"""ActivationMonitor: logs the outputs of layers: mean, deviation, largest value and zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitors.layers import checked_patterns, layers_of
from lightlib.errors import check_flag, check_int
from lightlib.loggers.media.items import Histogram
from lightlib.tree import tensors_in

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class ActivationMonitor(Callback):
    """Logs statistics of the outputs of layers in training.

    The names are ``activations/<layer>/mean``, ``std`` (without Bessel's correction), ``max_abs`` and ``zeros`` (the
    share of exact zeros, such as of dead ReLUs). They are of the first floating-point tensor that the layer returns, in
    its last call of the batch, on the first process. Layers are watched in the logged batches alone; other batches cost
    nothing in the layers. A compiled layer is compiled once more for them.

    Args:
        layers: Names of layers as in ``module.named_modules()``, with wildcards. Default: all.
        every_n_steps: The interval in optimizer steps. Default: the Trainer's `log_every_n_steps`.
        histograms: Whether histograms are logged as well, under ``activations/<layer>``. Default: False.

    Raises:
        ArgumentTypeError: An argument has another type.
        MisconfigurationException: `every_n_steps` is below 1; or when training begins: a name matches no layer.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[ActivationMonitor("blocks.*.mlp", every_n_steps=100)])
    """

    def __init__(
        self, layers: str | Sequence[str] = "*", every_n_steps: int | None = None, histograms: bool = False
    ) -> None:
        super().__init__()
        self.layers = checked_patterns("ActivationMonitor", layers)
        if every_n_steps is not None:
            check_int("ActivationMonitor", "every_n_steps", every_n_steps, 1, example=50)
        self.every_n_steps, self.histograms = every_n_steps, check_flag("ActivationMonitor", "histograms", histograms)
        self._watched: dict[str, nn.Module] = {}
        self._outputs: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        self._every = self._before = 0

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._watched = layers_of("ActivationMonitor", self.layers, pl_module)
        self._every = trainer.log_every_n_steps if self.every_n_steps is None else self.every_n_steps

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        self._release()  # after a batch that was skipped
        self._before = trainer.progress.step
        if self._every and not (trainer.progress.step + 1) % self._every and trainer.is_global_zero:
            self._handles = [
                part.register_forward_hook(lambda _, __, output, name=name: self._keep(name, output))
                for name, part in self._watched.items()
            ]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self._handles:
            return
        kept, step = dict(self._outputs), trainer.progress.step
        self._release()
        if not kept or step == self._before:  # the batch did not close the step
            return
        rows = torch.stack([_statistics(output) for output in kept.values()]).tolist()
        names = ("mean", "std", "max_abs", "zeros")
        values = {
            f"activations/{layer}/{name}": value
            for layer, row in zip(kept, rows, strict=True)
            for name, value in zip(names, row, strict=True)
        }
        trainer.log_metrics_now(values, step=trainer.global_step)
        for layer, output in kept.items() if self.histograms else ():
            trainer.log_media(f"activations/{layer}", Histogram(output.float()))

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._release()
        self._watched = {}

    def _keep(self, name: str, output: Any) -> None:
        first = next((tensor for tensor in tensors_in(output) if tensor.is_floating_point() and tensor.numel()), None)
        if first is not None:
            self._outputs[name] = first.detach()

    def _release(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._outputs = {}


def _statistics(output: Tensor) -> Tensor:
    full = output.full_tensor() if hasattr(output, "full_tensor") else output
    values = full.float()
    zeros = (values == 0).float().mean()
    return torch.stack([values.mean(), values.std(correction=0), values.abs().amax(), zeros])
