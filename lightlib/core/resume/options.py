"""Resume: the parts of a checkpoint that a run restores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lightlib.errors import ArgumentTypeError, UnknownNameError, shown

_CHANGES = ("warn", "refuse", "ignore")


@dataclass(frozen=True)
class Resume:
    """The parts of a checkpoint that `fit(…, ckpt_path=…, resume=…)` restores. Weights always are.

    Attributes:
        optimizers: States of the optimizers and of the loss scaler.
        schedules: States of the learning rate schedules.
        progress: Epoch, batch and step. Without it the run starts at epoch 0, without `data`, `metrics` and
            `user_state`.
        data: The position within the epoch. Without it the epoch starts from its first batch.
        metrics: Sums of `self.log` and of torchmetrics over the epoch, `trainer.callback_metrics`.
        callbacks: States of the callbacks.
        datamodule: State of the data module.
        random: States of the random number generators.
        user_state: What had changed in the user's objects since training began (attributes, training flags,
            ``requires_grad``, generators, torchmetrics).
        stop: A stop request: a run that was stopped early stops again at the same point. False continues training.
        strict: Whether the names of the weights must match; ``"shapes"``: take those of the same name and shape. None:
            the module's `strict_loading`.
        changes: What to do if data, seed or settings differ from those of the saved run: ``"warn"``,
            ``"refuse"``, or ``"ignore"``.

    Example:
        >>> Resume.of("weights").optimizers, Resume.of({"data": False}).data, Resume.of(None).full
        (False, False, True)
    """

    optimizers: bool = True
    schedules: bool = True
    progress: bool = True
    data: bool = True
    metrics: bool = True
    callbacks: bool = True
    datamodule: bool = True
    random: bool = True
    user_state: bool = True
    stop: bool = True
    strict: bool | Literal["shapes"] | None = None
    changes: str = "warn"

    @property
    def full(self) -> bool:
        """Whether everything is restored, so that the run can end like an uninterrupted one."""
        return all(getattr(self, name) for name in _PARTS)

    @property
    def weights_alone(self) -> bool:
        """Whether only weights are restored: then the checkpoint need not hold anything else."""
        return not any(getattr(self, name) for name in _PARTS)

    @classmethod
    def of(cls, given: Any) -> Resume:
        """Return a user's `resume` as a Resume: None or "all", "weights", a dict of the attributes, or a Resume.

        Raises:
            ArgumentTypeError: It is none of these, or an attribute has another type.
            UnknownNameError: There is no such part.
        """
        if isinstance(given, Resume):
            return _checked(given)
        if given is None or given == "all":
            return cls()
        if given == "weights":
            nothing: dict[str, Any] = dict.fromkeys(_PARTS, False)
            return cls(**nothing)
        if isinstance(given, str):
            raise UnknownNameError("resume", given, ("all", "weights"), fix='fit(…, resume={"optimizers": False})')
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(
                f"resume is {shown(given)}.",
                expected='"all", "weights", or a dict such as {"optimizers": False, "strict": False}.',
                fix='fit(module, ckpt_path="last", resume="weights")',
            )
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise UnknownNameError("part of resume", name, names, fix='fit(…, resume={"optimizers": False})')
        return _checked(cls(**given))


_PARTS = ("optimizers", "schedules", "progress", "data", "metrics", "callbacks", "datamodule", "random", "user_state")


def _checked(parts: Resume) -> Resume:
    for name in (*_PARTS, "stop", "strict"):
        value = getattr(parts, name)
        if not isinstance(value, bool) and not (name == "strict" and value in (None, "shapes")):
            raise ArgumentTypeError(
                f"resume has {name}={shown(value)}.",
                expected='True, False, "shapes" or None.' if name == "strict" else "True or False.",
                fix=f'fit(…, resume={{"{name}": False}})',
            )
    if parts.changes not in _CHANGES:
        raise UnknownNameError("changes of resume", parts.changes, _CHANGES, fix='resume={"changes": "refuse"}')
    if not parts.progress and (parts.data or parts.metrics or parts.user_state):
        return replace(parts, data=False, metrics=False, user_state=False)
    return parts
