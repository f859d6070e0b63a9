"""ModuleTrainer: takes the Trainer's place in a lightlib.Module that a Fabric has set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightlib.errors import nearest
from lightlib.fabric.wrapped import FabricModule, FabricOptimizer

if TYPE_CHECKING:
    from lightlib.loggers.fabric_logger import FabricLogger


class ModuleTrainer:
    """The attributes of a Trainer that a Fabric has as well, for the methods of a module: `print`, `optimizers`, ….

    Args:
        fabric: The Fabric that has set up the module.
        optimizers: Those that were set up together with the module. More are added as they are set up.

    Attributes:
        lr_scheduler_configs: Empty: the user's loop steps the schedules.
    """

    lr_scheduler_configs: tuple[()] = ()

    def __init__(self, fabric: Any, wrapped: FabricModule, optimizers: list[FabricOptimizer]) -> None:
        self.fabric, self._wrapped, self._optimizers = fabric, wrapped, optimizers

    @property
    def run(self) -> ModuleTrainer:
        """Itself: a Fabric has no runs."""
        return self

    @property
    def optimization(self) -> ModuleTrainer:
        """Itself: see :meth:`for_user`, :meth:`manual_backward` and :meth:`clip_gradients`."""
        return self

    @property
    def logger(self) -> FabricLogger | None:
        """The first logger, or None."""
        return next(iter(self.fabric.loggers), None)

    @property
    def current_epoch(self) -> int:
        """Not known: the user's loop counts."""
        raise _counted("current_epoch")

    @property
    def global_step(self) -> int:
        """Not known: the user's loop counts."""
        raise _counted("global_step")

    def for_user(self, use_pl_optimizer: bool) -> Any:
        """Return the optimizer of the module or the list of them; see `Module.optimizers`."""
        optimizers = [optimizer if use_pl_optimizer else optimizer.optimizer for optimizer in self._optimizers]
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients; see `Fabric.backward`."""
        self.fabric.backward(loss, *args, model=self._wrapped, **kwargs)

    def clip_gradients(self, optimizer: Any, value: float | None, algorithm: str | None) -> None:
        """Clip the gradients of `optimizer`; see `Module.clip_gradients`. No value changes nothing."""
        if value is None:
            return
        if algorithm == "value":
            self.fabric.clip_gradients(self._wrapped, optimizer, clip_val=value)
        else:
            self.fabric.clip_gradients(self._wrapped, optimizer, max_norm=value)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the Fabric: `strategy`, `global_rank`, `print`, …."""
        if name.startswith("_") or not hasattr(self.fabric, name):
            public = [attribute for attribute in dir(self.fabric) if not attribute.startswith("_")]
            raise AttributeError(
                f"self.trainer.{name} was read in a module that a Fabric has set up: there is no Trainer."
                f"\n  Expected: an attribute of the Fabric.{nearest(name, public)}"
                "\n  Fix: use self.fabric, pass the value to the module, or use Trainer.fit."
            )
        return getattr(self.fabric, name)


def _counted(name: str) -> RuntimeError:
    return RuntimeError(
        f"self.{name} was read in a module that a Fabric has set up.\n"
        "  Expected: a run of Trainer.fit: in a loop of your own only the loop counts.\n"
        "  Fix: pass the number to the module."
    )
