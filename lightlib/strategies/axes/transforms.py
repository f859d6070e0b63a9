"""ActivationCheckpoint and Compile: axes that change how blocks are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightlib.errors import MisconfigurationException, check_int
from lightlib.report import PossibleUserWarning, warn
from lightlib.strategies.axes.axis import Axis, AxisContext
from lightlib.strategies.axes.parallel_plan import ParallelPlan, blocks_of, container_of, plan_of


class ActivationCheckpoint(Axis):
    """Blocks keep only their inputs for backward, which runs their forward again: less memory, about a third more time.

    Losses and gradients are the same, bit for bit. Names of parameters do not change.

    Args:
        blocks: Names of modules, with wildcards (``"blocks.*"``), or a function ``(name, module) -> bool``. Default:
            those of `parallel_plan`, else the children of the largest ModuleList or Sequential.
        every: Only each n-th of them, beginning with the first. Default 1: all.
        preserve_rng_state: Draw the same random numbers in the second forward, which dropout needs. Default True.

    Raises:
        MisconfigurationException: There are no blocks, or `every` is less than 1.

    Example:
        >>> ActivationCheckpoint(every=2).every
        2
    """

    name = "checkpointing"

    def __init__(
        self,
        blocks: Sequence[str] | Callable[[str, nn.Module], bool] | None = None,
        every: int = 1,
        preserve_rng_state: bool = True,
    ) -> None:
        super().__init__()
        check_int("ActivationCheckpoint", "every", every, 1, example=2)
        self.blocks, self.every, self.preserve_rng_state = blocks, every, preserve_rng_state
        self._names: list[str] = []

    def check(self, module: nn.Module, site: AxisContext) -> None:
        self._check(module, site.plan)

    def _check(self, module: nn.Module, plan: ParallelPlan) -> None:
        chosen = dict([*blocks_of(module, plan, self.blocks).items()][:: self.every])
        self._names = list(chosen)
        if not chosen:
            raise MisconfigurationException(
                f"activation_checkpointing found no blocks in {type(module).__name__}.",
                expected="an nn.ModuleList or nn.Sequential of blocks, or their names.",
                fix='ActivationCheckpoint(blocks=["encoder", "decoder"]), or parallel_plan() with blocks=[…].',
            )
        single = [name for name, part in chosen.items() if not any(True for _ in part.children())]
        if len(single) == len(chosen):
            warn(
                f"activation_checkpointing: the blocks are single layers ({', '.join(single[:3])}, …), which keep "
                "little but their inputs: it saves no memory. Name larger blocks: ActivationCheckpoint(blocks=[…]).",
                PossibleUserWarning,
            )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        self._apply(module)

    def apply_on_one_device(self, module: nn.Module) -> Callable[[], None]:
        """Check and change `module`, and return a function that gives its blocks their own forwards back."""
        self._check(module, plan_of(module))
        return partial(_restore, self._apply(module))

    def _apply(self, module: nn.Module) -> dict[nn.Module, Any]:
        """Change the blocks, and return the attribute `forward` that each of them had, or None."""
        here = dict(module.named_modules())  # a pipeline's stage has only some of them
        before: dict[nn.Module, Any] = {}
        for block in [here[name] for name in self._names if name in here]:
            before[block] = vars(block).get("forward")
            again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=self.preserve_rng_state)
            block.forward = again  # in place: a wrapper would change the names
        return before


def _restore(before: dict[nn.Module, Any]) -> None:
    for block, forward in before.items():
        del vars(block)["forward"]
        if forward is not None:
            vars(block)["forward"] = forward


class Compile(Axis):
    """Compiles the forward of each block. Equal blocks are compiled once.

    It comes after activation checkpointing and before `shard` and `replicate`, whose hooks stay outside of what is
    compiled. Names of parameters do not change.

    Args:
        blocks: Names of modules, with wildcards. Default: those of `parallel_plan`; else the children of the largest
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

    name = "compile"

    def __init__(
        self,
        blocks: Sequence[str] | None = None,
        mode: str | None = None,
        dynamic: bool | None = None,
        fullgraph: bool = False,
        backend: str | Callable[..., Any] = "inductor",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.blocks, self.backend = blocks, backend
        self._names: list[str] = []
        self._arguments: dict[str, Any] = {
            "mode": mode, "dynamic": dynamic, "fullgraph": fullgraph, "backend": backend, "options": options,
        }  # fmt: skip

    def check(self, module: nn.Module, site: AxisContext) -> None:
        self._names = list(self._chosen(module, site))
        if not self._names:
            raise MisconfigurationException(
                f"compile=True, but {type(module).__name__} has no child module with parameters.",
                expected="blocks that can be compiled.",
                fix='Compile(blocks=["encoder"]), or compile=False.',
            )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        codes: dict[str, CodeType] = {}
        here = dict(module.named_modules())  # a pipeline's stage has only some of them
        for block in [here[name] for name in self._names if name in here]:
            block.forward = self._compiled(block, codes)  # in place: a wrapper would change the names

    def _compiled(self, block: nn.Module, codes: dict[str, CodeType]) -> Callable[..., Any]:
        forward = block.forward

        # torch does not compile the forward of its own containers, but calls of it
        def call(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        # torch keeps compiled graphs with the code, up to a limit: equal blocks share one, different blocks do not.
        code = codes.setdefault(str(block), call.__code__.replace(co_name=type(block).__name__))
        own = FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
        return torch.compile(own, **self._arguments)

    def _chosen(self, module: nn.Module, site: AxisContext) -> dict[str, nn.Module]:
        found = blocks_of(module, site.plan, self.blocks)
        container = None if site.plan.blocks or self.blocks is not None else container_of(module)
        if container is not None and isinstance(container[1], nn.Sequential) and container[1] is not module:
            single = not any(True for part in found.values() for _ in part.children())
            found = dict([container]) if single else found
        return found or {name: child for name, child in module.named_children() if _computes(child)}


def _computes(part: nn.Module) -> bool:
    return not isinstance(part, (nn.ModuleList, nn.ModuleDict)) and any(True for _ in part.parameters())
