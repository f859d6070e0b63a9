"""Compile: torch.compile for each block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.axis import Axis, Site
from lightlib.strategies.axes.plan import blocks_of, container_of, matching

__all__ = ["Compile"]


class Compile(Axis):
    """The forward of each block is compiled. Blocks that are alike are compiled once.

    It comes after activation checkpointing and before `shard` and `replicate`, whose hooks stay outside of what is
    compiled. Names of parameters do not change.

    Args:
        blocks: Names of modules, with wildcards. Default: what `parallel_plan` says; else the children of the largest
            ModuleList or Sequential, or the Sequential itself when they are single layers; else the module's children.
        mode: ``"default"``, ``"reduce-overhead"``, ``"max-autotune"``, …, as for `torch.compile`.
        dynamic: Whether sizes may vary without compiling again. Default None: found out when they do.
        fullgraph: Refuse what cannot be compiled as one graph. Default False.
        backend: Default ``"inductor"``.
        options: Further options of the backend. Default: none.

    Raises:
        MisconfigurationException: The module has nothing to compile.

    Example:
        >>> Compile(backend="aot_eager").backend
        'aot_eager'
    """

    def __init__(
        self,
        blocks: Sequence[str] | None = None,
        mode: str | None = None,
        dynamic: bool | None = None,
        fullgraph: bool = False,
        backend: str | Callable[..., Any] = "inductor",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.blocks, self.backend = blocks, backend
        self._names: list[str] = []
        self._arguments: dict[str, Any] = {
            "mode": mode, "dynamic": dynamic, "fullgraph": fullgraph, "backend": backend, "options": options,
        }  # fmt: skip

    def check(self, module: nn.Module, site: Site) -> None:
        self._names = list(self._chosen(module, site))
        if not self._names:
            raise MisconfigurationException(
                f"compile=True, but {type(module).__name__} has no child module with parameters.",
                expected="blocks that can be compiled.",
                fix='Compile(blocks=["encoder"]), or compile=False.',
            )

    def apply(self, module: nn.Module, site: Site) -> None:
        codes: dict[str, CodeType] = {}
        here = dict(module.named_modules())  # a pipeline's stage has not all of them
        for block in [here[name] for name in self._names if name in here]:
            block.forward = self._compiled(block, codes)

    def _compiled(self, block: nn.Module, codes: dict[str, CodeType]) -> Callable[..., Any]:
        forward = block.forward

        def call(*args: Any, **kwargs: Any) -> Any:  # torch compiles no forward of its own containers, but calls of it
            return forward(*args, **kwargs)

        # What torch has compiled it keeps with the code, up to a limit: blocks that are alike share it, others do not.
        code = codes.setdefault(str(block), call.__code__.replace(co_name=type(block).__name__))
        own = FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
        return torch.compile(own, **self._arguments)

    def _chosen(self, module: nn.Module, site: Site) -> dict[str, nn.Module]:
        if self.blocks is not None:
            return matching(module, [self.blocks] if isinstance(self.blocks, str) else self.blocks, "blocks")
        found = blocks_of(module, site.plan)
        container = None if site.plan.blocks else container_of(module)
        if container is not None and isinstance(container[1], nn.Sequential) and container[1] is not module:
            single = not any(True for part in found.values() for _ in part.children())
            found = dict([container]) if single else found
        return found or {name: child for name, child in module.named_children() if _computes(child)}


def _computes(part: nn.Module) -> bool:
    return not isinstance(part, (nn.ModuleList, nn.ModuleDict)) and any(True for _ in part.parameters())
