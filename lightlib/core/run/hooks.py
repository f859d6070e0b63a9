"""Hooks: one callable per hook, built when a stage starts; an undefined hook costs nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.callback import Callback, priority_of
from lightlib.core.metrics.results import Results
from lightlib.core.metrics.rules import rule_of
from lightlib.core.module.overrides import fixed_parameters, overrides, with_stage
from lightlib.errors import MisconfigurationException, StopTraining

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_EVALUATION = tuple(
    f"on_{stage}_{moment}"
    for stage in ("validation", "test", "predict")
    for moment in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
)
_AROUND_A_BATCH = tuple(name for name in _EVALUATION if "_batch_" in name)
# In the order in which they fire; `docs/lifecycle.md` draws it.
HOOKS: tuple[str, ...] = (
    "setup",
    "on_fit_start",
    "on_sanity_check_start",
    "on_sanity_check_end",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_substep_end",
    "on_accumulation_end",
    "on_log",
    *_EVALUATION,
    "on_train_epoch_end",
    "on_fit_epoch_end",
    "on_checkpoint_written",
    "on_checkpoint_uploaded",
    "on_save_checkpoint",
    "on_load_checkpoint",
    "on_train_end",
    "on_fit_end",
    "on_exception",
    "teardown",
)
STEPS = ("training_step", "validation_step", "test_step", "predict_step")
# Not called through the table: saving and loading a checkpoint calls each callback directly.
_BY_THE_CHECKPOINT = frozenset({"on_save_checkpoint", "on_load_checkpoint"})

SKIP_EPOCH = -1  # what `on_train_batch_start` returns to skip the rest of the epoch

Wrap = Callable[[str, str, Callable[..., Any]], Callable[..., Any]]


# An undefined hook: a C function that accepts and ignores any arguments without creating a Python frame.
nothing: Callable[..., Any] = "".format


def in_order(calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return one callable that makes all of `calls` and returns the last one's value."""
    if not calls:
        return nothing
    if len(calls) == 1:
        return calls[0]
    *first, last = calls

    def call_all(*args: Any) -> Any:
        for call in first:
            call(*args)
        return last(*args)

    return call_all


def skip_if_any(calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return one callable that makes all of `calls`, and returns -1 if any of them did."""
    if len(calls) < 2:
        return in_order(calls)

    def call_all(*args: Any) -> int | None:
        skip = None
        for call in calls:
            if call(*args) == SKIP_EPOCH:
                skip = SKIP_EPOCH
        return skip

    return call_all


def each(calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return one callable that makes all of `calls` even if some raise, then raises the first error."""
    if len(calls) < 2:
        return in_order(calls)

    def call_each(*args: Any) -> None:
        errors: list[Exception] = []
        for call in calls:
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)
        if errors:
            raise errors[0]

    return call_each


def with_loader(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call`; if it requires a `dataloader_idx`, pass 0 when there is only one loader."""
    parameters = fixed_parameters(call) or ()
    before = next((n for n, p in enumerate(parameters) if p.name == "dataloader_idx" and p.default is p.empty), None)
    if before is None:
        return call

    def indexed(*args: Any) -> Any:
        return call(*args[:before], dataloader_idx=args[before] if len(args) > before else 0)

    return indexed


def _as_it_is(call: Callable[..., Any]) -> Callable[..., Any]:
    return call


# What lets a hook take its arguments in more than one form.
_ADAPTED = {**dict.fromkeys(_AROUND_A_BATCH, with_loader), "setup": with_stage, "teardown": with_stage}
# Hooks whose calls are not joined by `in_order`. `each` calls every owner at the end of a run, even after an error.
_JOINED = {"on_train_batch_start": skip_if_any, "on_exception": each, "teardown": each}


def in_priority(callbacks: Iterable[Any]) -> list[Any]:
    """Return the callbacks in the order in which they are called."""
    return sorted(callbacks, key=lambda callback: priority_of(callback) if hasattr(callback, "priority") else 50)


class FrozenCallbacks(tuple[Any, ...]):
    """The callbacks of a started run, which can no longer change."""

    __slots__ = ()

    def _refuse(self, *args: Any) -> None:
        raise MisconfigurationException(
            "trainer.callbacks can no longer be changed; the run has started.",
            expected="all callbacks before fit, validate, test or predict is called.",
            fix="Trainer(callbacks=[…]), or return them from `configure_callbacks` of the module.",
        )

    append = extend = insert = remove = clear = __iadd__ = _refuse


def scoped(results: Results, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call`, with the scope of `results` set to this hook while it runs."""
    rule = rule_of(name)

    def in_scope(*args: Any) -> Any:
        before = results.scope
        results.scope = rule
        try:
            return call(*args)
        finally:
            results.scope = before

    return in_scope


def stoppable(results: Results, name: str, call: Callable[..., Any], stop: Callable[[str], None]) -> Callable[..., Any]:
    """Return `scoped(results, name, call)` that passes the reason of a `StopTraining` to `stop`, in the same frame."""
    rule = rule_of(name)

    def in_scope(*args: Any) -> Any:
        before = results.scope
        results.scope = rule
        try:
            return call(*args)
        except StopTraining as request:
            return stop(request.reason)
        finally:
            results.scope = before

    return in_scope


# Of the functions that `scoped` and `stoppable` return, by which a call of a hook is found on the stack.
_CODES = {
    constant for make in (scoped, stoppable) for constant in make.__code__.co_consts if isinstance(constant, CodeType)
}


def _wraps(call: Callable[..., Any], inner: Callable[..., Any]) -> bool:
    return any(cell.cell_contents is inner for cell in getattr(call, "__closure__", None) or ())


class Hooks:
    """One callable per hook: `hooks.on_train_batch_end(…)` calls, in order, the objects that define it.

    Args:
        wrap: `wrap(owner, hook, call)` returns the callable to use instead of `call`: it sets the scope of `self.log`.
        before: By name of a hook, a call that is made before it.
        more: Calls after those of the callbacks and the module, by the name of the hook.

    Note:
        The table is built once per stage: a method patched later has no effect until `trainer.rebuild_hooks()`.
    """

    __slots__ = (*HOOKS, "_calls", "_events", "_owners", "_receivers", "module_base")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(
        self,
        trainer: Trainer,
        module: Module,
        callbacks: Sequence[Any],
        wrap: Wrap,
        module_base: type,
        before: Mapping[str, Callable[..., Any]] | None = None,
        more: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._owners: dict[str, list[str]] = {}
        self._calls: dict[str, list[Callable[..., Any]]] = {}
        self._events: dict[str, tuple[Callable[..., Any], ...]] = {}
        self._receivers = trainer, module, callbacks
        self.module_base = module_base
        for name in HOOKS:
            calls: list[Callable[..., Any]] = []
            owners: list[str] = []
            for owner in self._defining(name, module, callbacks):
                call = getattr(owner, name)
                if owner is not module:
                    call = partial(call, trainer, module)
                calls.append(wrap(type(owner).__name__, name, _ADAPTED.get(name, _as_it_is)(call)))
                priority = "normal" if owner is module else owner.priority
                owners.append(type(owner).__name__ + ("" if priority == "normal" else f" ({priority})"))
            if more and name in more:
                calls.append(wrap("Strategy", name, more[name]))
                owners.append("Strategy")
            joined = _JOINED.get(name, in_order)(calls)
            setattr(self, name, in_order([before[name], joined]) if before and name in before else joined)
            if owners:
                self._owners[name], self._calls[name] = owners, calls

    def defines(self, name: str) -> bool:
        return name in self._owners

    def event(self, name: str, without: Callable[[str, list[type]], None] = nothing) -> tuple[Callable[..., Any], ...]:
        """Return the methods `name` of the callbacks that define it and of the module, in order of priority.

        `without(name, classes)` is called once if none of these classes has the method.
        """
        if name not in self._events:
            trainer, module, callbacks = self._receivers
            _check_event(name)
            calls = []
            for owner in (*callbacks, module):
                call = getattr(owner, name) if hasattr(type(owner), name) else None
                if callable(call):
                    calls.append(call if owner is module else partial(call, trainer, module))
            self._events[name] = tuple(calls)
            if not calls:
                without(name, [type(owner) for owner in (*callbacks, module)])
        return self._events[name]

    def follow(self, name: str, call: Callable[..., Any]) -> None:
        """Make `call`, with the same arguments, after all calls of the hook `name`."""
        setattr(self, name, in_order([getattr(self, name), call]))
        self._calls[name] = [*self._calls.get(name, ()), call]

    def owners(self, name: str) -> list[str]:
        """Return the names of the classes that define the hook `name`, in the order of the calls."""
        return list(self._owners.get(name, ()))

    def running(self, names: Collection[str]) -> tuple[str, int, tuple[Any, ...]] | None:
        """Return the outermost of these hooks that is running: its name, the calls begun, and their arguments.

        It is read from the stack, so that a hook costs nothing while no checkpoint is written in it.
        """
        hook, frame = None, inspect.currentframe()
        while frame is not None:
            if frame.f_code in _CODES and (name := frame.f_locals["rule"].hook) in names:
                call, calls = frame.f_locals["call"], self._calls.get(name, ())
                place = next((n for n, of_ours in enumerate(calls) if _wraps(of_ours, call)), None)
                hook = hook if place is None else (name, place + 1, frame.f_locals["args"])
            frame = frame.f_back
        return hook

    def rest(self, name: str, begun: int) -> Callable[..., Any]:
        """Return one callable that makes the calls of the hook `name` after the first `begun`."""
        return _JOINED.get(name, in_order)(self._calls.get(name, [])[begun:])

    def leave_out(self, name: str, begun: int, then: Callable[[], object]) -> None:
        """Leave out the first `begun` calls when the hook `name` is next called, and call `then` after it."""
        complete, rest = getattr(self, name), self.rest(name, begun)

        def once(*args: Any) -> Any:
            setattr(self, name, complete)
            value = rest(*args)
            then()
            return value

        setattr(self, name, once)

    def replace_by(self, other: Hooks) -> None:
        """Adopt the calls of `other`; the loop keeps its reference to this table."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def _defining(self, name: str, module: Module, callbacks: Sequence[Any]) -> list[Any]:
        if name in _BY_THE_CHECKPOINT:
            return []
        modules = [module] if overrides(module, self.module_base, name) else []
        defining = [callback for callback in callbacks if overrides(callback, Callback, name)]
        if name == "on_train_epoch_end":
            late = [callback for callback in defining if getattr(callback, "after_module", False)]
            return [callback for callback in defining if callback not in late] + modules + late
        return defining + modules

    def __str__(self) -> str:
        width = max((len(name) for name in self._owners), default=0)
        lines = [f"{name:<{width}}  {' → '.join(owners)}" for name, owners in self._owners.items()]
        return "\n".join(lines) or "no hook is defined"

    def __repr__(self) -> str:
        return f"<Hooks: {len(self._owners)} defined; print(trainer.hooks) lists them>"


def _check_event(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise MisconfigurationException(
            f"The event {name!r} cannot be called.",
            expected="the name of a public method of your callbacks or module.",
            fix="trainer.call_event('on_my_event', value=1)",
        )
    if name in (*HOOKS, *STEPS) or hasattr(Callback, name):
        raise MisconfigurationException(
            f"trainer.call_event({name!r}): lightlib calls this method itself.",
            expected="a name of your own for an event of your own.",
            fix=f"trainer.call_event('on_my_{name.removeprefix('on_')}')",
        )
