"""Rules of `self.log`: the hooks in which it works, and its defaults there."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """The rule for `self.log` in one hook.

    Attributes:
        hook: The hook's name.
        on_step: The default of `on_step`; the default of `on_epoch` is its opposite.
        steps: Whether `on_step=True` is allowed here.
        logs: Whether anything can be logged here.
    """

    hook: str
    on_step: bool
    steps: bool
    logs: bool = True


_TRAINING_STEP = (
    "training_step",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_substep_end",
    "on_accumulation_end",
    "backward",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "optimizer_step",
    "optimizer_zero_grad",
    "on_before_zero_grad",
    "configure_gradient_clipping",
    "clip_gradients",
    "lr_scheduler_step",
)
_EVALUATION_STEP = tuple(
    name
    for stage in ("validation", "test")
    for name in (f"{stage}_step", f"on_{stage}_batch_start", f"on_{stage}_batch_end")
)
_EPOCH = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    *(f"on_{stage}_{moment}" for stage in ("validation", "test") for moment in ("start", "epoch_start", "epoch_end")),
)

RULES: dict[str, Rule] = {
    **{name: Rule(name, on_step=True, steps=True) for name in _TRAINING_STEP},
    **{name: Rule(name, on_step=False, steps=True) for name in _EVALUATION_STEP},
    **{name: Rule(name, on_step=False, steps=False) for name in _EPOCH},
}


def rule_of(hook: str) -> Rule:
    """Return the rule for a hook; nothing can be logged in a hook without one."""
    return RULES.get(hook) or Rule(hook, on_step=False, steps=False, logs=False)


OUTSIDE = rule_of("outside of a run")
