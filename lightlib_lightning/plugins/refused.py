"""Overrides of Lightning's methods that lightlib cannot honour, with their replacements."""

from __future__ import annotations

from typing import Any

from lightlib.strategies import DeepSpeedStrategy
from lightlib_lightning.plugins import precision as precisions
from lightlib_lightning.plugins.batch_calls import BACKWARD, STEPPING
from lightlib_lightning.plugins.overriding import HOOKS, STEPS, overridden, refuse

__all__ = ["refuse_for_trainers", "refuse_in_fabric"]

_BY_LIGHTLIB = "leave it out: lightlib places the module and its replicas; DDPStrategy(…) takes torch's arguments."
# Overrides that cannot be honoured, and what to use.
_REFUSED = {
    "setup_optimizers": "create and change optimizers in `configure_optimizers` of the module.",
    "_setup_optimizer": "change optimizers in `configure_optimizers` of the module.",
    "_setup_model": _BY_LIGHTLIB,
    "_setup_model_and_optimizers": _BY_LIGHTLIB,
    "configure_ddp": _BY_LIGHTLIB,
    "_register_ddp_hooks": "DDPStrategy(ddp_comm_hook=…, ddp_comm_state=…, ddp_comm_wrapper=…).",
    "block_backward_sync": _BY_LIGHTLIB,
    "_configure_launcher": "DDPStrategy(start_method=…), or a ClusterEnvironment in Trainer(plugins=[…]).",
    "setup_distributed": "DDPStrategy(process_group_backend=…, timeout=…), or override `setup_environment`.",
    "set_world_ranks": "a ClusterEnvironment in Trainer(plugins=[…]), which knows the ranks.",
    "global_rank": "a ClusterEnvironment in Trainer(plugins=[…]), which knows the ranks.",
    "local_rank": "a ClusterEnvironment in Trainer(plugins=[…]), which knows the ranks.",
    "node_rank": "a ClusterEnvironment in Trainer(plugins=[…]), which knows the ranks.",
    "world_size": "a ClusterEnvironment in Trainer(plugins=[…]), which knows the number of processes.",
    "model": "override the steps: lightlib keeps the user's module as it is.",
    "lightning_module": "override the steps: lightlib keeps the user's module as it is.",
    "handles_gradient_accumulation": "Trainer(accumulate_grad_batches=1), or accumulate in the module.",
    "lightning_restore_optimizer": "fit(…, resume={'optimizers': False}) of lightlib's Trainer.",
}
_OF_TRAINER: tuple[str, ...] = (
    *STEPS,
    *HOOKS,
    "pre_backward",
    "post_backward",
    "connect",
    "setup",
    "model_to_device",
    "setup_precision_plugin",
    "post_training_step",
    "model_sharded_context",
)
_OF_FABRIC: tuple[str, ...] = (
    "setup_module",
    "setup_module_and_optimizers",
    "setup_optimizer",
    "module_to_device",
    "all_reduce",
)
_OF_FABRIC += ("module_init_context", "get_module_state_dict", "load_module_state_dict", "get_optimizer_state")
_OF_FABRIC += ("clip_gradients_norm", "clip_gradients_value")


def refuse_for_trainers(strategy: Any) -> None:
    """Raise for the first override that a Trainer would not call."""
    for name in overridden(strategy, _REFUSED):
        raise refuse(type(strategy), name, _REFUSED[name])
    if isinstance(strategy, DeepSpeedStrategy):
        for name in overridden(strategy, (*BACKWARD, *STEPPING)):
            raise refuse(type(strategy), name, "another strategy: DeepSpeed's engine does backward and steps.")


def refuse_in_fabric(strategy: Any, layer_sync: Any) -> None:
    """Raise for the first method that only a Trainer calls, or that only shardings of Lightning's have."""
    fix = "use the Trainer, or call it in your loop."
    for name in overridden(strategy, _OF_TRAINER):
        raise refuse(type(strategy), name, fix)
    for name in overridden(strategy, ["module_sharded_context"]):
        raise refuse(type(strategy), name, "override `module_init_context`, which fabric.init_module enters.")
    if isinstance(strategy, DeepSpeedStrategy):
        for name in overridden(strategy, _OF_FABRIC):
            raise refuse(type(strategy), name, "another strategy: DeepSpeed's engine does this.")
    if layer_sync is not None:
        raise refuse(type(layer_sync), "apply", "change the layers before fabric.setup.")
    if isinstance(strategy.precision, precisions.Precision):
        for name in overridden(strategy.precision, precisions.OF_TRAINER):
            raise refuse(type(strategy.precision), name, fix)
