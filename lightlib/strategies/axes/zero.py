"""ZeRO stage 1: shards the state of an optimizer over replicas of a module."""

from __future__ import annotations

import inspect
from typing import Any

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer


def shard_state(optimizer: Optimizer, group: Any) -> Optimizer:
    """Return an optimizer of the same kind that steps a shard of the parameters, and sends them to the `group`.

    The groups are shared with `optimizer`, so that schedules made for it keep working.
    """
    groups = [dict(group) for group in optimizer.param_groups]
    accepted = inspect.signature(type(optimizer).__init__).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    shared = ZeroRedundancyOptimizer(groups, optimizer_class=type(optimizer), process_group=group, **defaults)
    optimizer.param_groups = shared.param_groups  # schedules write to them
    # Schedules read this to warn when they step before the optimizer, but the sharded one steps instead.
    optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
    return shared
