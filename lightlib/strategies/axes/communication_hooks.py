"""Communication hooks of DistributedDataParallel by name: bf16, fp16 and PowerSGD, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightlib.errors import UnknownNameError, check_type

Hook = Callable[[Any, Any], Any]


def communication_hook(hook: str | Hook, state: Any, group: Any) -> tuple[Any, Hook]:
    """Return state and hook for `DistributedDataParallel.register_comm_hook`.

    Args:
        hook: ``"bf16"``, ``"fp16"`` (gradients are sent in that dtype), ``"powersgd"`` (Vogels et al., 2019:
            arXiv 1905.13727), or a hook.
        state: What a hook of the user's gets; for ``"powersgd"`` a PowerSGDState or None.
        group: The processes that average.

    Raises:
        UnknownNameError: No hook has this name.
    """
    if callable(hook):
        return state, hook
    expected = "'bf16', 'fp16', 'powersgd' or a function hook(state, bucket)"
    check_type("DDPStrategy", "comm_hook", hook, str, expected, "'bf16'")
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # optional: only for hooks

    if hook == "bf16":
        # It works with every backend, but torch refuses it without NCCL, by its name.
        return group, lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket)  # noqa: PLW0108  see above
    if hook == "fp16":
        return group, default_hooks.fp16_compress_hook
    if hook == "powersgd":
        hook_state = state or powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=10)
        return hook_state, powerSGD_hook.powerSGD_hook
    raise UnknownNameError("comm_hook", hook, ("bf16", "fp16", "powersgd"), fix="DDPStrategy(comm_hook='bf16')")
