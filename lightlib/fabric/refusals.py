"""Refusals: the errors of Fabric, each raised before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from lightlib.core.optimization.window import unusable
from lightlib.errors import ArgumentTypeError, MisconfigurationException, Owner, shown
from lightlib.strategies.strategy import Strategy

OWNER = Owner(
    name="Fabric",
    noun="Fabric",
    logger="loggers",
    loaders="fabric.setup_dataloaders(loader, ",
    backward="fabric.backward(loss)",
)
# What a strategy's axis does to a batch cannot be undone between a forward and a backward pass of the user's.
_AROUND_STEPS = {
    "pipeline": "the schedule of a pipeline calls forward and backward itself, once for each micro-batch",
    "context": "the context axis cuts the sequences of a batch for the step that computes the loss from it",
}


def refuse_pipelines(strategy: Strategy) -> None:
    """Refuse strategies that run forward and backward as one call.

    Raises:
        MisconfigurationException: It is one of them.
    """
    sizes = getattr(strategy, "sizes", {})
    name = next((name for name in _AROUND_STEPS if sizes.get(name, 1) != 1), None)
    if name is not None:
        raise MisconfigurationException(
            f"Fabric got a strategy with {name}={sizes[name]}: {_AROUND_STEPS[name]}.",
            expected="a strategy in which your loop can call both: 'ddp', 'fsdp', 'hsdp', 'zero1', 'tensor', "
            "'model_parallel' or 'deepspeed'.",
            fix="Fabric(strategy='fsdp'), or trainer.fit, which runs this strategy.",
        )


def not_launched(call: str, strategy: Strategy) -> MisconfigurationException:
    """Return the error for a call that comes before `launch`."""
    spawns = strategy.launcher not in (None, "subprocess") and not strategy.environment.launched
    return MisconfigurationException(
        f"fabric.{call} was called before fabric.launch(), with {strategy.world_size} processes.",
        expected="launch first: it starts the processes and connects them.",
        fix="put the code into a function and call fabric.launch(function)."
        if spawns
        else "write fabric.launch() directly after fabric = Fabric(…).",
    )


def check_argument(call: str, value: Any, kind: type, fix: str) -> None:
    """Refuse an argument that is no instance of `kind`; a class is none.

    Raises:
        ArgumentTypeError: It is not.
    """
    if not isinstance(value, kind):
        instance = f"{value.__name__}(…)" if isinstance(value, type) and issubclass(value, kind) else ""
        raise ArgumentTypeError(
            f"fabric.{call} got {shown(value)}.",
            expected=f"an instance of {kind.__module__.split('.')[0]}'s {kind.__name__}.",
            fix=f"pass an instance: {instance}" if instance else fix,
        )


def check_module(call: str, module: Any) -> None:
    """Refuse an object that is no module."""
    check_argument(call, module, nn.Module, f"fabric.{call}(module) with a torch.nn.Module")


def check_optimizer(call: str, optimizer: Any) -> None:
    """Refuse an object that is no optimizer."""
    if not isinstance(optimizer, Optimizer) and hasattr(optimizer, "optimizer") and hasattr(optimizer, "last_epoch"):
        raise ArgumentTypeError(
            f"fabric.{call} got {type(optimizer).__name__}, a learning-rate schedule, among the optimizers.",
            expected="schedules by their name; they need no set-up and may also be left out.",
            fix=f"fabric.{call}(module, optimizer, scheduler=scheduler)",
        )
    check_argument(call, optimizer, Optimizer, f"fabric.{call}(module, optimizer) with a torch.optim.Optimizer")


def twice(call: str, what: str) -> MisconfigurationException:
    """Return the error for an object that is set up a second time."""
    return MisconfigurationException(
        f"fabric.{call} got a {what} that is set up already.",
        expected=f"each {what} to be set up once.",
        fix="use what the first call returned; to begin again, build new objects.",
    )


def of_another_module(call: str, optimizer: Any, strange: Sequence[torch.Tensor]) -> MisconfigurationException:
    """Return the error for an optimizer with parameters of no module that is set up."""
    kind, total = type(optimizer).__name__, sum(len(group["params"]) for group in optimizer.param_groups)
    return MisconfigurationException(
        f"fabric.{call} got an {kind}, {len(strange)} of whose {total} parameters belong to no module that is set up; "
        f"the first has the shape {tuple(strange[0].shape)}.",
        expected="an optimizer of the parameters of the module next to it, or of modules that were set up before.",
        fix="fabric.setup(module, optimizer) with the optimizer's own module; or set up all modules with "
        "fabric.setup_module, then build the optimizer from their parameters, and call fabric.setup_optimizers.",
    )


def several_modules_of(optimizer: Any, strategy: Strategy) -> MisconfigurationException:
    """Return the error for an optimizer of several modules where a strategy has sharded them."""
    return MisconfigurationException(
        f"{type(optimizer).__name__} has the parameters of several modules, which the strategy {strategy.describe()} "
        "shards one by one.",
        expected="an optimizer for each module, or one module that holds all of them.",
        fix="model = nn.ModuleDict({'encoder': encoder, 'decoder': decoder}), and one optimizer of its parameters.",
    )


def no_second_strategy(strategy: Strategy, error: BaseException | None) -> MisconfigurationException:
    """Return the error for a second module, when the strategy cannot be copied for it."""
    return MisconfigurationException(
        f"A second module was set up, and the strategy {type(strategy).__name__} cannot be copied for it: {error}.",
        expected="a strategy whose options can be copied with copy.deepcopy, or one module.",
        fix="put both modules into one nn.ModuleDict, or pass the strategy by its name.",
    )


def without_graph(tensor: Any, has_gradient: bool) -> MisconfigurationException | None:
    """Return the error for a tensor that cannot be differentiated; None if it can."""
    usable = isinstance(tensor, torch.Tensor) and tensor.requires_grad
    if usable and (has_gradient or tensor.numel() == 1):
        return None
    return unusable(tensor, "fabric.backward got")


def needs_model(count: int, strategy: Strategy) -> MisconfigurationException:
    """Return the error for a backward pass without a model, if each model has its own engine."""
    return MisconfigurationException(
        f"fabric.backward got no model, and {count} modules are set up: with the strategy {strategy.describe()} each "
        "has an engine of its own, which runs the backward pass.",
        expected="the model whose loss it is.",
        fix="fabric.backward(loss, model=model)",
    )


def check_loader(loader: Any) -> None:
    """Refuse an object that is no loader.

    Raises:
        ArgumentTypeError: It is a class, a data set, a tensor, or cannot be iterated.
    """
    is_data = isinstance(loader, (Dataset, torch.Tensor)) and not isinstance(loader, DataLoader)
    if is_data or isinstance(loader, (type, str, bytes, nn.Module)) or not isinstance(loader, Iterable):
        raise ArgumentTypeError(
            f"fabric.setup_dataloaders got {shown(loader)}.",
            expected="a DataLoader, or an iterable of batches.",
            fix="fabric.setup_dataloaders(DataLoader(dataset, batch_size=32))",
        )
