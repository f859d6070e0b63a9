"""Strategies: how one module trains on its devices."""

from lightlib.strategies.collectives import Collectives as Collectives
from lightlib.strategies.single import SingleDeviceStrategy as SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy as Strategy

__all__ = ["Collectives", "SingleDeviceStrategy", "Strategy"]
