"""Placement: one module on a strategy of its own, with forward and backward as separate calls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lightlib.fabric.refusals import no_second_strategy
from lightlib.strategies.strategy import Strategy

_STEPS = ("training_step", "validation_step")


class StrategyCopies:
    """A copy of the user's strategy from before it was connected, from which each further module gets its own.

    A strategy places one module. A Fabric may have several, and all of their strategies share the process group.

    Args:
        strategy: The user's, not connected yet.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy, self._error = None, None
        try:
            self._strategy = copy.deepcopy(strategy)
        except Exception as error:  # noqa: BLE001  an option may refuse it; with one module no copy is needed
            self._error = error

    def strategy_like(self, connected: Strategy) -> Strategy:
        """Return another strategy with the same settings, connected as `connected` is.

        Raises:
            MisconfigurationException: The user's strategy cannot be copied.
        """
        if self._strategy is None:
            raise no_second_strategy(connected, self._error) from self._error
        strategy = copy.deepcopy(self._strategy)
        strategy.use(connected.accelerator, list(connected.devices), connected.precision, connected.environment)
        strategy.setup_environment()
        return strategy


class Placement:
    """A module on its devices, and how a strategy runs it when the user's own loop calls forward and backward.

    A strategy runs a batch as one call, `forward_backward`. Here that call makes the forward pass and leaves the
    backward pass to `Fabric.backward`: it gets a `backward` that only takes note of an engine's own backward.

    Args:
        strategy: Used for this module alone.
        module: The user's. It is placed now.
        trains: Whether a forward pass may be followed by a backward pass before there is an optimizer.

    Attributes:
        sync: Whether gradients are reduced over processes in the backward pass of the next forward pass.
        by: The backward of the engine that ran the last forward pass; None for autograd's.
        forwards: The number of forward passes so far: the position that other ranks see.
        trains: Whether a forward pass may be followed by a backward pass.
        optimizers: The wrapped optimizers of its parameters.
        called: What is called to run the module: itself, or what the strategy has put around it.
        is_running: Whether the strategy runs the module now.
    """

    def __init__(self, strategy: Strategy, module: nn.Module, trains: bool = True) -> None:
        self.strategy, self.module = strategy, module
        self.called: Any = module
        self.sync = True
        self.by: Callable[..., None] | None = None
        self.forwards = 0
        self.trains = trains
        self.is_running = False
        self.optimizers: list[Any] = []
        strategy.place(module, dict.fromkeys(_STEPS, _run))

    def add(self, optimizer: Any) -> None:
        """Add a wrapped optimizer, so that backward passes are possible also with an engine."""
        self.optimizers.append(optimizer)
        self.trains = True

    def call_through(self, called: Any) -> None:
        """Call `called` in place of the module."""
        self.called = called

    def train(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call `method` so that the strategy can reduce the gradients of a backward pass."""
        self.forwards = number = self.forwards + 1
        outer, self.is_running = self.is_running, True
        try:
            return self.strategy.forward_backward((method, args, kwargs), number, self._note, self.sync)
        finally:
            self.is_running = outer

    def evaluate(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call `method` without a backward pass after it."""
        self.forwards = number = self.forwards + 1
        outer, self.is_running = self.is_running, True
        try:
            return self.strategy.validation_step((method, args, kwargs), number)
        finally:
            self.is_running = outer

    def _note(self, output: Any, by: Callable[..., None] | None = None, parts: int = 1) -> None:
        self.by = by


def _run(call: tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], number: int) -> Any:  # noqa: ARG001  a step
    method, args, kwargs = call
    return method(*args, **kwargs)
