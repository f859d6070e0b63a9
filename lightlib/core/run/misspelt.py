"""Warnings about methods of callbacks and modules that nothing calls: their names are misspelt."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from lightlib import report
from lightlib.core.run.hooks import HOOKS, STEPS

_REMOVED = {
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
    "test_epoch_end": "on_test_epoch_end",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_batch_start": "on_train_batch_start",
    "on_batch_end": "on_train_batch_end",
    "on_pretrain_routine_start": "on_fit_start",
    "on_pretrain_routine_end": "on_fit_start",
    "on_configure_sharded_model": "configure_model",
    "on_init_start": "setup",
    "on_init_end": "setup",
    "training_step_end": "training_step",
    "validation_step_end": "validation_step",
    "test_step_end": "test_step",
}
_HOOKS_TOO = ("configure_", "optimizer_", "lr_scheduler_")  # so begin the hooks among the methods of a module


def warn_for_misspelt_event(name: str, owners: Iterable[type]) -> None:
    """Warn about an event that no object receives if one has a method of nearly this name."""
    named = {
        method: owner.__name__
        for owner in owners
        for method in dir(owner)
        if not method.startswith("_") and method not in HOOKS and callable(getattr(owner, method, None))
    }
    for near in get_close_matches(name, named, n=1, cutoff=0.8):
        report.warn(
            f"trainer.call_event({name!r}): no callback and no method of the module has this name. Did you mean "
            f"{near!r} of {named[near]}?\n  Expected: one name in the call and in the methods.\n"
            f"  Fix: trainer.call_event({near!r}, …)",
            report.PossibleUserWarning,
        )


def warn_for_misspelt_hooks(owner: object, base: type) -> None:
    """Warn about public methods of `owner` that look like misspelt hooks, and about hooks of Lightning 1.x."""
    hook_classes = [cls for cls in base.__mro__ if cls.__module__.startswith("lightlib.core.module.")]
    names = [
        name
        for cls in hook_classes
        for name in vars(cls)
        if cls.__name__.endswith("Hooks") or name.startswith(_HOOKS_TOO)
    ]
    hooks = [*HOOKS, *STEPS, *names]
    class_name = type(owner).__name__
    for name in dir(type(owner)):
        if name.startswith("_") or hasattr(base, name) or not callable(getattr(type(owner), name, None)):
            continue
        # Short names are too similar to one another: `step` is not a misspelt `setup`.
        looks_like_hook = name.startswith("on_") or name.endswith(("_step", "_dataloader")) or len(name) >= 12
        if name in _REMOVED:
            why, meant = f"it was removed in Lightning 2.0. Use `{_REMOVED[name]}`.", _REMOVED[name]
        elif looks_like_hook and name not in hooks and (near := get_close_matches(name, hooks, n=1, cutoff=0.9)):
            why, meant = f"no hook has this name. Did you mean {near[0]!r}?", near[0]
        else:
            continue
        report.warn(
            f"{class_name}.{name} is never called: {why}\n"
            "  Expected: the name of a hook (docs/lifecycle.md), or a name that is unlike one.\n"
            f"  Fix: rename it to `{meant}`.",
            report.PossibleUserWarning,
        )
