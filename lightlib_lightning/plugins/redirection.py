"""Redirection: lightlib's calls of the methods that the user's strategy or precision overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch

from lightlib_lightning.plugins import precision as precisions
from lightlib_lightning.plugins.io import PluginStore
from lightlib_lightning.plugins.overriding import HOOKS, STEPS, STORING, overridden

__all__ = ["Redirection", "in_contexts", "states"]

_CONTEXTS = ("tensor_init_context", "model_sharded_context")


class Redirection:
    """The calls of a run that go to the user's methods; without an override a call stays lightlib's.

    Args:
        strategy: The user's, which has its precision.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._waiting_states: list[dict[str, Any]] = []

    def extension(self) -> dict[str, Any]:
        """Return the attributes of the strategy's extension that change."""
        strategy, precision, mine = self._strategy, self._strategy.precision, partial(overridden, self._strategy)
        hooks = {name: getattr(strategy, name) for name in mine(HOOKS)}
        changes: dict[str, Any] = {"hooks": {**strategy.extension.hooks, **hooks}}
        if mine(["process_dataloader"]):
            changes["loader"] = strategy.process_dataloader
        if mine(["batch_to_device"]):
            changes["move"] = self._move
        if mine(["reduce"]):
            changes["reduce"] = self._reduce
        if mine(STORING):
            changes["store"] = PluginStore(strategy.checkpoint_io, strategy)
        if isinstance(precision, precisions.Precision):
            if overridden(precision, ["state_dict", "on_save_checkpoint"]):
                changes["written"] = self._write_precision
            if overridden(precision, ["load_state_dict", "on_load_checkpoint"]):
                changes["read"] = self._read_precision
        return changes

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods of lightlib's protocol that change, by name."""
        strategy, precision = self._strategy, self._strategy.precision
        mine, methods = partial(overridden, strategy), dict[str, Callable[..., Any]]()
        if isinstance(precision, precisions.Precision) and overridden(precision, precisions.CLIPPING):
            methods["clip_gradients"] = precision.clip_gradients
        if mine(["lightning_module_state_dict"]):
            methods["module_state"] = strategy.lightning_module_state_dict
        if mine(["load_model_state_dict"]):
            methods["load_module_state"] = self._load_module_state
        if mine(["load_optimizer_state_dict"]):
            methods["load_optimizer_state"] = self._collect_optimizer_state
        if mine(_CONTEXTS):
            methods["init_context"] = self._init_context
        return methods

    def _move(self, batch: Any, loader: int) -> Any:
        return self._strategy.batch_to_device(batch, dataloader_idx=loader)

    def _reduce(self, value: Any, how: str) -> Any:
        return self._strategy.reduce(torch.as_tensor(value, device=self._strategy.root_device), reduce_op=how)

    def _init_context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(self._strategy.tensor_init_context())
        stack.enter_context(self._strategy.model_sharded_context())
        return stack

    def _load_module_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        self._strategy.load_model_state_dict({"state_dict": state}, strict=strict)

    def _collect_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Call `load_optimizer_state_dict` when the states of all optimizers have come."""
        self._waiting_states.append(state)
        if len(self._waiting_states) == len(self._strategy.optimizers):
            states, self._waiting_states = self._waiting_states, []
            self._strategy.load_optimizer_state_dict({"optimizer_states": states})

    def _write_precision(self, content: dict[str, Any]) -> None:
        precision = self._strategy.precision
        if state := precision.state_dict():
            content[type(precision).__qualname__] = state
        precision.on_save_checkpoint(content)

    def _read_precision(self, content: dict[str, Any]) -> None:
        precision = self._strategy.precision
        precision.on_load_checkpoint(content)
        state = content.get(type(precision).__qualname__)
        if state is not None and overridden(precision, ["load_state_dict"]):
            precision.load_state_dict(state)


def states(to: Any, module: Any) -> dict[str, Callable[..., Any]]:
    """Return the methods by which a Fabric saves and loads its module's states, by the user's strategy.

    Args:
        to: The user's strategy; a method that it does not override is left out.
        module: The object that is called for the module.
    """
    methods = dict[str, Callable[..., Any]]()
    if overridden(to, ["get_module_state_dict"]):
        methods["module_state"] = partial(to.get_module_state_dict, module)
    if overridden(to, ["load_module_state_dict"]):
        methods["load_module_state"] = partial(to.load_module_state_dict, module)
    if overridden(to, ["get_optimizer_state"]):
        methods["optimizer_state"] = to.get_optimizer_state
    return methods


def in_contexts(strategy: Any, steps: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the steps in the contexts of a precision that overrides them, one for each kind of step."""
    precision, entered = strategy.precision, dict(steps)
    if isinstance(precision, precisions.Precision) and overridden(precision, precisions.STEP_CONTEXTS):
        for name, context in zip(STEPS, precisions.STEP_CONTEXTS, strict=True):
            if name in entered:
                entered[name] = _within(entered[name], getattr(precision, context))
    if overridden(strategy, ["post_training_step"]) and "training_step" in entered:
        entered["training_step"] = _then(entered["training_step"], strategy.post_training_step)
    return entered


def _within(step: Callable[..., Any], context: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    def entered(*args: Any) -> Any:
        with context():
            return step(*args)

    return entered


def _then(step: Callable[..., Any], call: Callable[[], None]) -> Callable[..., Any]:
    def followed(*args: Any) -> Any:
        output = step(*args)
        call()
        return output

    return followed
