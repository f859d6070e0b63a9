"""The strategy of `strategy="auto"` once the module is known: shards where replicas do not fit."""

from __future__ import annotations

import torch
from torch import nn

from lightlib import report
from lightlib.core.setup.plugins import strategy_of
from lightlib.strategies.advice import advise
from lightlib.strategies.extension import Extension
from lightlib.strategies.strategy import Strategy


def strategy_by_memory(given: Strategy, module: nn.Module) -> Strategy:
    """Return the strategy to train `module` with, in place of one that ``strategy="auto"`` has chosen by number.

    It is another one only if parameters, gradients and optimizer state do not fit on a device, the processes are those
    of one machine, and the memory of its devices is known; the reason is logged (``docs/decisions/0051``).

    Args:
        given: Connected, and not set up yet.
    """
    memories = [given.accelerator.memory(device) for device in given.devices]
    known_memories = [memory for memory in memories if memory is not None]
    if not known_memories or len(known_memories) < len(memories) or given.launcher not in (None, "subprocess"):
        return given
    stored = given.precision.param_dtype
    dtype = None if given.precision.autocasts or stored is torch.float32 else stored
    advice = advise(module, given.world_size, min(known_memories), param_dtype=dtype)
    if advice.fits and advice.strategy != "fsdp":
        if given.world_size > 1:
            report.info(f'strategy="auto" is {advice.strategy}: {advice.reason}.')
        return given
    if advice.strategy != "fsdp":
        report.warn(
            f'strategy="auto" is {advice.strategy}: {advice.reason}. '
            "Use more devices, precision='bf16-true', or an optimizer with less state.",
            report.PossibleUserWarning,
        )
        return given
    if given.environment.num_nodes > 1 or given.extension != Extension():
        report.warn(
            f'strategy="auto" is ddp: {advice.reason}, but on several machines, or with a plugin that changes the '
            "strategy, it is not changed. Use strategy='fsdp'.",
            report.PossibleUserWarning,
        )
        return given
    chosen = strategy_of("fsdp", given.environment)
    chosen.use(given.accelerator, list(given.devices), given.precision, given.environment)
    chosen.transform(given.transforms)  # all of the Trainer: it has made the strategy by its name
    if given.sync_batchnorm:
        chosen.synchronize_batchnorm()
    report.info(f'strategy="auto" is fsdp: {advice.reason}.')
    if advice.fits is False:
        report.warn(
            f'strategy="auto": even sharded over {given.world_size} devices the module does not fit. '
            "Use more devices, or strategy='fsdp_cpu_offload'.",
            report.PossibleUserWarning,
        )
    return chosen
