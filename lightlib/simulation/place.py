"""Place: which layer of a module runs, in which phase of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lightlib.torch_private import flattened, is_in_backward


class Place:
    """Follows a module through its forward and backward passes.

    Attributes:
        phase: ``"forward"``, ``"backward"`` or ``"optimizer step"``.
        layer: The fully qualified name of the innermost layer that was entered last; empty outside of all.
    """

    def __init__(self) -> None:
        self.phase = self.layer = ""

    def begin(self, phase: str) -> None:
        """Begin a phase, outside of all layers."""
        self.phase, self.layer = phase, ""

    @contextmanager
    def following(self, module: nn.Module) -> Iterator[None]:
        """Note the layers of `module` that run."""
        handles: list[Any] = []
        for name, part in module.named_modules():
            handles += [
                part.register_forward_pre_hook(lambda *_, name=name: self._enter(name)),
                part.register_forward_hook(lambda _, __, output, name=name: self._leave(name, output)),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> None:
        self.phase = "backward" if is_in_backward() else "forward"  # activations that are computed again
        self.layer = name

    def _leave(self, name: str, output: Any) -> None:
        self.layer = name.rpartition(".")[0]
        for tensor in flattened(output)[0]:
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(lambda *_: self._enter(name))

    def __str__(self) -> str:
        return f"{self.phase} of {self.layer}" if self.layer else self.phase
