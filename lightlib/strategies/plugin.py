"""StrategyPlugin: an object in `Trainer(plugins=[…])` that changes the strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lightlib.strategies.strategy import Strategy

__all__ = ["StrategyPlugin"]


class StrategyPlugin(ABC):
    """An object in ``Trainer(plugins=[…])`` that changes the strategy."""

    @abstractmethod
    def attach_to(self, strategy: Strategy) -> None:
        """Change `strategy`, which has been connected; nothing has been started yet."""
