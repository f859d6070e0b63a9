"""ActivationCheckpoint: activations are computed again in backward instead of kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.report import PossibleUserWarning, warn
from lightlib.strategies.axes.axis import Axis, Site
from lightlib.strategies.axes.plan import blocks_of, matching

__all__ = ["ActivationCheckpoint"]


class ActivationCheckpoint(Axis):
    """Blocks keep only their inputs for backward, which runs their forward again: less memory, about a third more time.

    Losses and gradients are the same, bit for bit. Names of parameters do not change.

    Args:
        blocks: Names of modules, with wildcards (``"blocks.*"``), or a function ``(name, module) -> bool``. Default:
            what `parallel_plan` says, else the children of the largest ModuleList or Sequential.
        every: Only each n-th of them, beginning with the first. Default 1: all.
        preserve_rng_state: Draw the same random numbers in the second forward, which dropout needs. Default True.

    Raises:
        MisconfigurationException: There are no blocks, or `every` is less than 1.

    Example:
        >>> ActivationCheckpoint(every=2).every
        2
    """

    def __init__(
        self,
        blocks: Sequence[str] | Callable[[str, nn.Module], bool] | None = None,
        every: int = 1,
        preserve_rng_state: bool = True,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int):
            raise ArgumentTypeError(f"every={shown(every)}.", expected="an int >= 1.", fix="every=2")
        if every < 1:
            raise MisconfigurationException(
                f"ActivationCheckpoint(every={every}).", expected="an int >= 1.", fix="every=2: each second block."
            )
        self.blocks, self.every, self.preserve_rng_state = blocks, every, preserve_rng_state
        self._names: list[str] = []

    def check(self, module: nn.Module, site: Site) -> None:
        chosen = self._chosen(module, site)
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

    def apply(self, module: nn.Module, site: Site) -> None:
        here = dict(module.named_modules())  # a pipeline's stage has not all of them
        for block in [here[name] for name in self._names if name in here]:
            again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=self.preserve_rng_state)
            block.forward = again  # in place: a wrapper would change the names

    def _chosen(self, module: nn.Module, site: Site) -> dict[str, nn.Module]:
        if self.blocks is None:
            every = blocks_of(module, site.plan)
        elif callable(self.blocks):
            every = {name: part for name, part in module.named_modules() if name and self.blocks(name, part)}
        else:
            every = matching(module, [self.blocks] if isinstance(self.blocks, str) else self.blocks, "blocks")
        return {name: part for index, (name, part) in enumerate(every.items()) if index % self.every == 0}
