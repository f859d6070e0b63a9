"""Runs a Trainer method in spawned or forked processes and brings the results back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.core.check import check_module
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.overrides import overrides
from lightlib.core.progress.states import TrainerFn, TrainerState, TrainerStatus
from lightlib.core.resume.callback_tensors import callback_tensors
from lightlib.data.seed import rng_state, set_rng_state
from lightlib.launch.environment.detect import of_launcher
from lightlib.launch.start.program import is_shell
from lightlib.launch.start.spawn import launch_function
from lightlib.tree import map_tensors

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_INTERRUPTED = 130  # exit code after Ctrl-C


def spawns_processes(trainer: Trainer) -> bool:
    """Whether the strategy spawns its processes, and this is not one of them."""
    strategy = trainer.strategy
    return strategy.launcher not in (None, "subprocess") and not strategy.environment.launched


def call(trainer: Trainer, verb: str, arguments: Mapping[str, Any]) -> Any:
    """Run ``trainer.<verb>(**arguments)`` in new processes, then load rank 0's results into this process's objects.

    Weights, the position, callback states and metrics come back; optimizers do not.
    """
    loaders = {name: value for name, value in arguments.items() if name not in ("self", "unknown")}
    session = trainer._session  # noqa: SLF001  it is sent too: an evaluation may use the last call's module
    module = loaders.get("model")
    module = check_module(session.module if module is None and verb != "fit" else module, verb)
    environment, method = trainer.strategy.environment, trainer.strategy.launcher
    assert method is not None
    session.forget_run()  # it is not sent
    session.use_state(TrainerState(TrainerFn(verb), None, TrainerStatus.RUNNING))
    function = partial(_in_child, trainer, verb, loaders, rng_state())
    try:
        result = launch_function(function, environment.local_size, method, environment)
    except BaseException as error:
        session.fail_as(error)
        if isinstance(error, SystemExit) and error.code == _INTERRUPTED and is_shell():
            raise KeyboardInterrupt from None  # this process has no trained weights; a checkpoint has
        raise
    session.use_state(TrainerState(TrainerFn(verb), None, TrainerStatus.FINISHED))
    module.load_state_dict(result["weights"])
    if loaders.get("model") is not None:
        data = (loaders.get(name) for name in ("datamodule", "train_dataloaders", "dataloaders"))
        session.use_module(module, next((value for value in data if isinstance(value, DataModule)), None))
    trainer.progress.load_state_dict(result["progress"])
    session.use_metrics(result["metrics"])
    for callback in trainer.callbacks:
        state = result["callbacks"].get(callback.state_key)
        if state is not None:
            if "dirpath" in state and hasattr(callback, "dirpath"):
                callback.dirpath = state["dirpath"]  # the same run writes to the same folder
            callback.load_state_dict(state)
        tensors = result["callback_tensors"].get(callback.state_key)
        if tensors is not None:
            callback.load_sharded_state(trainer, module, tensors)
    return result["returned"]


def _in_child(
    trainer: Trainer, verb: str, arguments: Mapping[str, Any], random_numbers: dict[str, Any], rank: int
) -> dict[str, Any]:
    """Run the call as rank `rank`; rank 0 returns the results for the starting process."""
    set_rng_state(random_numbers)  # a new interpreter has a different state
    strategy = trainer.strategy
    environment = of_launcher()
    assert environment is not None, "launch_function sets it"
    report.rank_zero_only.rank = environment.rank
    strategy.use(trainer.accelerator, trainer.devices, trainer.precision_plugin, environment)
    returned = getattr(trainer, verb)(**arguments)
    weights = map_tensors(lambda tensor: tensor.cpu(), strategy.module_state())  # an extra state may be any object
    tensors = callback_tensors(trainer, trainer.lightning_module, strategy, trainer.callbacks)
    if rank != 0:
        return {}
    stateful = [callback for callback in trainer.callbacks if overrides(callback, Callback, "state_dict")]
    return {
        "returned": returned,
        "weights": weights,
        "progress": trainer.progress.state_dict(),
        "callbacks": {callback.state_key: callback.state_dict() for callback in stateful},
        "callback_tensors": map_tensors(lambda tensor: tensor.cpu(), tensors),
        "metrics": trainer._session.results.dictionaries(),  # noqa: SLF001  as above
    }
