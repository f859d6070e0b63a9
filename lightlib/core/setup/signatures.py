"""Signatures of hooks: one that cannot be called with the arguments it gets is refused before the run."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

from lightlib.conventions import leniency
from lightlib.core.module.overrides import overrides
from lightlib.errors import MisconfigurationException, is_ours

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# The modules of the decorators `rank_zero_only`, `torch.no_grad()` and the like.
_PASS_ON = ("lightlib.report", "lightning_utilities.core.rank_zero", "torch.utils._contextlib")
LOGGER_METHODS = ("log_metrics", "log_hyperparams", "log_graph", "log_media", "save", "finalize")
_NO_HOOKS = ("log", "log_dict")
_HOOKS_OF_MODULE = ("configure_", "optimizer_", "lr_scheduler_step", "backward")
_REMOVED = frozenset(
    ("dataloader_idx", "optimizer_idx", "outputs", "unused", "on_tpu", "using_lbfgs", "using_native_amp")
)


def check_signatures(owner: object, base: type, names: Sequence[str] | None = None) -> None:
    """Refuse hooks of `owner` that cannot be called with the arguments they get.

    Args:
        owner: A callback, a module, a data module or a logger.
        base: lightlib's class of it, whose methods have these arguments.
        names: The methods. Default: the hooks of the class.

    Raises:
        MisconfigurationException: A hook has other arguments.
    """
    asked = _hooks_of(base) if names is None else names
    if is_ours(type(owner).__module__):  # only a hook that is set on the object may be wrong
        asked = [name for name in asked if name in vars(owner)]
    for name in asked:
        if not overrides(owner, base, name):
            continue
        try:
            signature = inspect.signature(_called(getattr(owner, name)), follow_wrapped=False)
        except (TypeError, ValueError):  # not callable, or a callable without a signature
            continue
        passed = [each for each in inspect.signature(getattr(base, name)).parameters.values() if each.name != "self"]
        passed = [each for each in passed if each.kind in _POSITIONAL]
        reason = _mismatch(signature, passed)
        if reason:
            leniency().tolerate(_refused(owner, name, signature, passed, reason), "the call of the hook fails")


def _called(method: Any) -> Any:
    """Return a method without decorators that pass on all arguments; other ones may add some."""
    function = getattr(method, "__func__", method)
    while getattr(function, "__globals__", {}).get("__name__") in _PASS_ON and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return MethodType(function, method.__self__) if isinstance(method, MethodType) else function


def _hooks_of(base: type) -> list[str]:
    """Return the names of the methods that a run calls on objects of this class."""
    names = []
    for cls in base.__mro__:
        has_hooks_only = cls.__name__.endswith("Hooks") or cls.__name__ in ("Callback", "DataModule")
        for name, value in vars(cls).items() if cls.__module__.startswith("lightlib.") else ():
            is_hook = has_hooks_only and not name.startswith("_") and name not in _NO_HOOKS
            is_hook |= cls.__name__ == "Module" and name.startswith(_HOOKS_OF_MODULE)
            if is_hook and isinstance(value, FunctionType):
                names.append(name)
    return names


def _mismatch(signature: inspect.Signature, passed: list[inspect.Parameter]) -> str:
    """Return why a call with these arguments fails; empty if it does not."""
    forms: list[tuple[int, dict[str, Any]]] = [(len(passed), {})]
    if passed and passed[-1].name == "dataloader_idx" and passed[-1].default is not passed[-1].empty:
        one_less = len(passed) - 1  # with one loader; with several it is passed by position or by name
        forms = [(one_less, {}), (len(passed), {}), (one_less, {"dataloader_idx": 0})]
    elif passed and passed[-1].name == "stage":  # passed by name to those that take it only so
        forms.append((len(passed) - 1, {"stage": None}))
    reasons = []
    for number, named in forms:
        try:
            signature.bind(*[None] * number, **named)
        except TypeError as error:
            reasons.append(str(error))
    return reasons[0] if len(reasons) == len(forms) else ""


def _refused(
    owner: object, name: str, signature: inspect.Signature, passed: list[inspect.Parameter], reason: str
) -> MisconfigurationException:
    is_function = name in vars(owner)  # as in LambdaCallback; otherwise a method
    before = [] if is_function else ["self"]
    has, gets = ", ".join([*before, *signature.parameters]), ", ".join([*before, *(each.name for each in passed)])
    removed = [each for each in signature.parameters if each in _REMOVED - {parameter.name for parameter in passed}]
    since = f" Lightning 2.0 removed {', '.join(f'`{each}`' for each in removed)}." if removed else ""
    outputs = f"  # collect the outputs in {name.replace('_epoch_end', '_batch_end')}" if "outputs" in removed else ""
    return MisconfigurationException(
        f"{type(owner).__name__}.{name} has the arguments ({has}), but it is called with ({gets}): {reason}.{since}",
        expected=f"a {'function' if is_function else 'method'} that can be called with ({gets}).",
        fix=(f"{name}=lambda {gets}: …" if is_function else f"def {name}({gets}):") + outputs,
    )
