"""Lightning's base class of modules that a server answers requests with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = ["ServableModule"]


class ServableModule(ABC, nn.Module):
    """A module that turns a request into tensors and its output into an answer."""

    @abstractmethod
    def configure_payload(self) -> dict[str, Any]:
        """Return an example of a request."""

    @abstractmethod
    def configure_serialization(self) -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[..., Any]]]:
        """Return two dicts of functions: they turn inputs into tensors, and outputs into plain values."""

    @abstractmethod
    def serve_step(self, *args: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
        """Return the outputs for the inputs of a request."""

    @abstractmethod
    def configure_response(self) -> dict[str, Any]:
        """Return the answer to the example of :meth:`configure_payload`."""
