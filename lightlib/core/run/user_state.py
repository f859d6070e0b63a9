"""User state: the changes in the user's objects since training began, saved with each checkpoint."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.core.metrics.torchmetric import is_metric, load_metric_state, metric_state
from lightlib.core.module.export import set_modes
from lightlib.core.run.user_objects import Owner, owners_of
from lightlib.core.run.user_snapshot import Snapshot, as_before, changed_since, context_of, owners_within, snapshot
from lightlib.core.values.attributes import ABSENT, COPIED, LARGEST, TooLarge, Unsaveable, dict_of, has_protocol
from lightlib.core.values.class_source import updated
from lightlib.core.values.encoding import advances_unseen, encode
from lightlib.core.values.restoring import restored
from lightlib.data.seed import isolate_rng, rng_state, set_rng_state

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_FIXES = {
    "module": "write it in on_save_checkpoint(checkpoint) and read it in on_load_checkpoint(checkpoint)",
    "callback": "return it from state_dict() and load it in load_state_dict(state)",
    "data module": "return it from state_dict() and load it in load_state_dict(state)",
    "data set": "compute it from the index or in set_epoch(epoch), or give the data set state_dict and "
    "load_state_dict and read it with torchdata's StatefulDataLoader",
    "loader": "give the object state_dict and load_state_dict",
    "optimizer": "keep it in self.state or in a group of self.param_groups, which state_dict() holds",
    "schedule": "return it from state_dict() and load it in load_state_dict(state)",
    "logger": "return it from state_dict() and load it in load_state_dict(state)",
    "class": "keep it in an attribute of the object, or save it in on_save_checkpoint(checkpoint)",
}
_LARGE = {"large": True}
_SLOW = 1.0  # seconds of a save that are announced
_DAMAGED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, OverflowError)
Values = dict[str, dict[str, Any]]  # plain values, by object and attribute


@dataclass(frozen=True)
class Missing:
    """Something that a checkpoint does not hold.

    Attributes:
        where: ``"module.counter"``.
        what: Why it is missing.
        fix: How to have it saved.
    """

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n      {self.fix[0].upper()}{self.fix[1:]}."


class UserState:
    """Changes in the user's objects while a run trains.

    When training begins, after `on_train_start`, a digest of each attribute is taken. A checkpoint holds the attributes
    that have changed since, as plain values. A resumed run restores them at the same moment, replacing the values from
    its `on_fit_start` and `on_train_start`. Attributes that the user saves (`state_dict`, `on_save_checkpoint`,
    `get_extra_state`) are left to the user.

    Args:
        saves: Whether changes are saved and reported: ``Trainer(save_user_state=…)``.
        start: The snapshot of the fit that this one continues in the same process: changes count from its beginning.

    Attributes:
        missing: Changes that cannot be saved, as of the last capture.
        start: The snapshot from the start of training.
    """

    def __init__(self, run: Run, saves: bool = True, start: Snapshot | None = None) -> None:
        self.run, self.saves, self.start = run, saves, start
        self.missing: list[Missing] = []
        self.pending: Mapping[str, Any] | None = None  # from the checkpoint, until training begins
        self._before_check: list[Snapshot] = []  # of the sanity check, and again once it has its loaders
        self._checked: Snapshot | None = None  # values that the sanity check has changed, as they were before
        self._epoch: tuple[int, Values] | None = None  # an epoch, and the state of what loaders read when it began
        self._resumed: Mapping[str, Any] | None = None  # until the saved epoch is read again
        self._kept: dict[str, Any] | None = None  # while a validation runs
        self._digests_kept: tuple[Any, Any] | None = None  # used instead if the state is too large to copy
        self._modes: dict[str, bool] | None = None  # of the submodules before a validation, while it runs
        self._reported_cost, self._size = False, 0
        self._sticky: set[tuple[str, str]] = set()
        self._reported: set[str] = set()

    def restore_at_start(self, state: Mapping[str, Any] | None) -> None:
        self.pending = state

    # moments
    def before_check(self) -> None:
        """Note the objects as the sanity check begins, and again when it has its loaders."""
        if self.saves and self.start is None:
            self._before_check.append(snapshot(self.run, next(iter(self._before_check), None)))

    def after_check(self) -> None:
        """Let checkpoints hold the changes by the sanity check, for a resumed run leaves it out."""
        before, self._before_check = self._before_check, []
        if before:
            self._checked = changed_since(before, snapshot(self.run, before[0]))
            self._sticky |= self._checked.digests.keys()

    def begin(self) -> None:
        """Take digests when training begins, then restore the state from the checkpoint."""
        if not self.saves:
            return
        self.start = self.start or as_before(snapshot(self.run, None), self._checked)
        pending, self.pending = self.pending, None
        if pending is not None:
            self._stick(pending["values"])
            self._stick(pending["epoch"] or {})
            within_epoch = pending["epoch"] is not None
            # objects that loaders read are first restored to their state at the start of the epoch
            _restore_state(self.run, self.start, pending, but_read=within_epoch)
            self._resumed = pending if within_epoch else None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Surround the start of an epoch's reading, which a resumed run repeats exactly."""
        resumed, self._resumed = self._resumed, None
        if self.start is None:
            yield
            return
        began = self._changed(only_read=True) if resumed is None else resumed["epoch"]
        self._epoch = self.run.progress.epoch, began
        if resumed is not None:
            _restore_values(self.run, self.start, _completed(resumed["epoch"], resumed["values"]))
        yield
        if resumed is not None:
            _restore_state(self.run, self.start, resumed)

    def hold(self) -> None:
        """Keep the state at the start of a validation for the checkpoints written within it."""
        if self.start is None:
            return
        now = snapshot(self.run, self.start)
        self._modes = now.training
        values = self._encoded(now, COPIED)
        if _completed(values, {}) == values:
            self._kept = copy.deepcopy(self._state(now, values))
        else:
            self._digests_kept = now.digests, now.metrics

    @property
    def may_be_left(self) -> bool:
        """Whether a checkpoint can be written within the validation: values too large to copy have not changed."""
        if self._digests_kept is None or self.start is None:
            return True
        now = snapshot(self.run, self.start)
        return (now.digests, now.metrics) == self._digests_kept

    def use_present(self) -> None:
        """Save the present state, although a validation still runs: all its batches are done."""
        self._kept = self._digests_kept = None

    def release(self) -> None:
        """Save the present state, and the present modes of the submodules, when a validation has ended."""
        self.use_present()
        self._modes = None

    def loading(self) -> dict[str, Any]:
        """Return the state that `train_dataloader` may depend on: random numbers and the user's objects."""
        values = self._changed() if self.start is not None else {}
        return {"rng": rng_state(), "values": values, "epoch": self.run.progress.epoch}

    @contextmanager
    def as_loading(self, then: Mapping[str, Any] | None) -> Iterator[None]:
        """Set the state that `loading` returned while `train_dataloader` is called again; undo it afterwards."""
        if then is None:
            yield
            return
        before, objects = None, {owner.place: owner.held for owner in owners_of(self.run)}
        if self.start is not None:
            self._stick(then["values"])
            before = self._changed()
            _restore_values(self.run, self.start, _completed(then["values"], before))
        with isolate_rng():
            set_rng_state(then["rng"])
            with self.run.progress.at_epoch(then["epoch"]):
                yield
        if before is not None:
            same = {owner.place for owner in owners_of(self.run) if objects.get(owner.place) is owner.held}
            kept = {place: values for place, values in before.items() if place in same}  # not those just loaded
            _restore_values(self.run, self.start, _completed(kept, {}))

    @contextmanager
    def unsaved(self, moment: str) -> Iterator[None]:
        """Surround a hook that is called after the checkpoint is written, and warn about changes it makes."""
        before = snapshot(self.run, self.start) if self.start is not None else None
        with isolate_rng():
            yield
        if before is None:
            return
        after = snapshot(self.run, self.start)
        changed = [key for key, digest in after.digests.items() if before.digests.get(key, ABSENT) != digest]
        self.missing += [
            Missing(
                f"{place}.{name}",
                f"{moment} changes it, after the checkpoint was written",
                "change it in on_save_checkpoint, which is called before",
            )
            for place, name in changed
        ]
        self.warn_of_missing()

    # saving
    def capture(self) -> dict[str, Any]:
        """Return the changes since training began, as tensors and plain values."""
        waiting = self.pending if self._resumed is None else self._resumed
        if waiting is not None:  # nothing has been trained since it was saved
            return dict(waiting)
        if self._kept is not None:
            return self._kept
        if self.start is None:
            return {}
        begun = time.perf_counter()
        now, self.missing = snapshot(self.run, self.start), []
        values = self._encoded(now)
        self._report_cost(time.perf_counter() - begun, values)
        self.missing += [*_in_workers(now.owners), *_replaced(self.start, now), *self._without_attribute()]
        return self._state(now, values)

    def _state(self, now: Snapshot, values: Values) -> dict[str, Any]:
        assert self.start is not None
        start, present = self.start, {place for place, _ in now.digests}
        epoch, began = self._epoch or (-1, None)
        gone = [[*key] for key in start.digests if key[0] in present and key not in now.digests]
        return {
            "training": _differing(start.training, self._modes or now.training),
            "requires_grad": _differing(start.requires_grad, _frozen_flags(now.requires_grad, start.requires_grad)),
            "metrics": self._metrics(now),
            "values": {"module": {}, **values},  # readers of the file find the module, changed or not
            "gone": gone,
            "epoch": began if epoch == self.run.progress.epoch else None,
        }

    def names(self) -> list[str]:
        """Return the names of the changes that a checkpoint written now would hold: ``"module.level"``."""
        state = self.capture()
        flags = [f"{kind} of {len(state[kind])} parts" for kind in ("training", "requires_grad") if state.get(kind)]
        saved = state.get("values") or {}
        values = [f"{place}.{name}" for place, attributes in saved.items() for name in attributes]
        return [*flags, *(f"module.{name}" for name in state.get("metrics") or ()), *values]

    def note_missing(self, missing: Missing) -> None:
        """Note something else that the checkpoint to be written does not hold."""
        self.missing.append(missing)

    def warn_of_missing(self) -> None:
        """Warn once about each thing that a checkpoint cannot hold."""
        new = [missing for missing in self.missing if missing.where not in self._reported]
        self._reported |= {missing.where for missing in new}
        if new:
            lines = "".join(f"\n    {missing}" for missing in new)
            report.warn(
                f"A run resumed from its checkpoints will differ, because they do not hold{lines}\n"
                "  If a resumed run does not need one of these, name it in the class attribute "
                "`not_in_checkpoint = (…,)`.",
                report.PossibleUserWarning,
            )

    def _changed(self, only_read: bool = False) -> Values:
        """Return copies of the values that have changed."""
        owners = [owner for owner in owners_of(self.run) if owner.read or not only_read]
        return copy.deepcopy(self._encoded(snapshot(self.run, self.start, owners), COPIED))

    def _encoded(self, now: Snapshot, room: int = LARGEST) -> Values:
        """Return the changed values as plain values.

        Args:
            now: The user's objects.
            room: How many bytes the values may take. With less than for a checkpoint, larger values are only marked,
                and values that cannot be saved are not noted as missing: a checkpoint does that.
        """
        assert self.start is not None
        start, context = self.start, now.known.again(room, self.start.known)
        encoded: Values = {}
        for owner in now.owners:
            for name, value in owner.attributes():
                key, path = (owner.place, name), f"{owner.place}.{name}"
                if key not in now.digests:
                    continue
                is_new = start.digests.get(key, ABSENT) != now.digests[key]
                if not (is_new or key in self._sticky or advances_unseen(value)):
                    continue
                self._sticky.add(key)  # a resumed run saves it as well, even if it has its first value again
                left = context.room
                try:
                    same = start.ids.get(key) == id(value)
                    entry = {"value": encode(value, context, path), "same": same}
                    encoded.setdefault(owner.place, {})[name] = entry
                except Unsaveable as error:
                    context.reset_room(left)
                    if room == LARGEST:
                        self.missing.append(Missing(path, str(error), error.fix or _FIXES[owner.kind]))
                    elif isinstance(error, TooLarge):
                        encoded.setdefault(owner.place, {})[name] = {"value": _LARGE, "same": False}
                except Exception as error:  # noqa: BLE001  errors in the user's code must not make a save fail
                    context.reset_room(left)
                    if room == LARGEST:
                        self.missing.append(Missing(path, f"reading it failed: {error!r}", _FIXES[owner.kind]))
        self._size = LARGEST - context.room if room == LARGEST else 0
        return encoded

    def _report_cost(self, seconds: float, values: Values) -> None:
        """Print once that the automatic part of checkpoints is large or slow: it may be a cache."""
        if (self._size > COPIED or seconds > _SLOW) and not self._reported_cost:
            self._reported_cost = True
            names = ", ".join(f"{place}.{name}" for place, attributes in values.items() for name in attributes)
            report.info(
                f"Each checkpoint holds {self._size >> 20} MiB that changed in your objects since training began, "
                f"which takes {seconds:.1f} s: {names}. "
                "If a resumed run does not need one of these (a cache), name it in the class attribute "
                "`not_in_checkpoint = (…,)`."
            )

    def _metrics(self, now: Snapshot) -> dict[str, Any]:
        assert self.start is not None
        changed = [name for name, digest in now.metrics.items() if self.start.metrics.get(name) != digest]
        return {name: metric_state(now.known.parts[name]) for name in changed}

    def _without_attribute(self) -> Iterator[Missing]:
        """Yield the metrics that a resumed run could not find."""
        for slot in self.run.results.train.slots.values():
            if slot.metric is not None and slot.attribute is None:
                yield Missing(
                    f"the metric logged as {slot.name!r}", "it is no attribute of the module", f"self.{slot.name} = …"
                )

    def _stick(self, values: Values) -> None:
        self._sticky |= {(place, name) for place, attributes in values.items() for name in attributes}


def _frozen_flags(flags: dict[str, bool], start: dict[str, bool]) -> dict[str, bool]:
    """Return flags without those of parameters that were made since and have the usual one, True."""
    return {name: flag for name, flag in flags.items() if name in start or not flag}


def _completed(values: Values, others: Values) -> Values:
    """Return `values`, with values that were too large to copy taken from `others`."""
    completed: Values = {}
    for place, attributes in values.items():
        for name, entry in attributes.items():
            filled = others.get(place, {}).get(name) if entry["value"] == _LARGE else entry
            if filled is not None:
                completed.setdefault(place, {})[name] = filled
    return completed


def _differing(before: Mapping[str, bool], now: Mapping[str, bool]) -> dict[str, bool]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _in_workers(owners: list[Owner]) -> Iterator[Missing]:
    """Yield the attributes that worker processes change in their copies of a data set, read from its source."""
    for owner in owners:
        if not owner.in_workers:
            continue
        if has_protocol(owner.held):
            reason = "it has a state_dict, which a plain DataLoader does not ask its workers for"
            yield Missing(owner.place, reason, "read it with torchdata's StatefulDataLoader")
            continue
        kind: type = type(owner.held)
        for name in updated(kind) & {name for name, _ in owner.attributes()}:
            reason = "its methods change it as they are called, in worker processes"
            yield Missing(f"{owner.place}.{name}", reason, _FIXES["data set"])


def _replaced(start: Snapshot, now: Snapshot) -> Iterator[Missing]:
    """Yield the parts of the module that were replaced, or added without parameters, and hooks registered since."""
    for name, kind in now.kinds.items():
        parent, part = name.rpartition(".")[0], now.known.parts[name]
        before = start.kinds.get(name)
        added = before is None and parent in start.kinds and next(part.parameters(), None) is None
        if (before is not None and before is not kind) or (added and not is_metric(part)):
            change = f"it became a {kind.__name__}" if before is not None else f"a {kind.__name__} was added"
            fix = "create it in __init__ or configure_model, and switch it on and off by an attribute"
            yield Missing(f"module.{name}", f"{change} since training began", fix)
    for name in start.kinds.keys() - now.kinds.keys():
        if name.rpartition(".")[0] in now.kinds and not is_metric(start.known.parts[name]):
            yield Missing(f"module.{name}", "it was removed since training began", "switch it off by an attribute")
    for name in sorted(now.hooks.keys() | start.hooks.keys()):
        before_, after = start.hooks.get(name, []), now.hooks.get(name, [])
        if before_ != after:
            hook = next(
                (hook_before for hook_before in after if after.count(hook_before) != before_.count(hook_before)),
                before_ and before_[0],
            )
            change = "was registered" if len(after) >= len(before_) else "was removed"
            fix = "register it in __init__, setup or on_fit_start, and let it ask an attribute for what to do"
            yield Missing(f"module.{name}" if name else "module", f"the hook {hook} {change} since training began", fix)


def _restore_state(run: Run, start: Snapshot | None, saved: Mapping[str, Any], but_read: bool = False) -> None:
    """Restore everything in the user state of a checkpoint.

    Args:
        but_read: Leave out the objects that training loaders read.
    """
    parts = dict(run.module.named_modules())
    set_modes({parts[name]: mode for name, mode in saved["training"].items() if name in parts})
    for name, parameter in run.module.named_parameters():
        if name in saved["requires_grad"]:
            parameter.requires_grad_(saved["requires_grad"][name])
    for name, state in saved["metrics"].items():
        if is_metric(parts.get(name)):
            load_metric_state(parts[name], state)
    everything = owners_within(run, start)
    owners = {owner.place: owner for owner in everything if not (but_read and owner.read)}
    left_out = {owner.place for owner in everything} - owners.keys()
    _restore_values(run, start, {place: values for place, values in saved["values"].items() if place not in left_out})
    for place, name in saved["gone"]:
        if place in owners:
            dict_of(owners[place].held).pop(name, None)


def _restore_values(run: Run, start: Snapshot | None, values: Values) -> None:
    """Restore attributes of the user's objects, and warn about those that cannot be restored."""
    context, lost = context_of(run, owners_of(run)), []
    owners = {owner.place: owner for owner in owners_within(run, start)}
    for place, attributes in values.items():
        if place not in owners:
            lost.append(f"{place}: there is no such object")
            continue
        current = owners[place].current()
        for name, entry in attributes.items():
            try:
                value = restored(entry["value"], current.get(name, ABSENT), context, entry["same"])
                if value is not current.get(name):
                    owners[place].assign(name, value)
            except Unsaveable as error:
                lost.append(f"{place}.{name}: {error}")
            except _DAMAGED as error:
                lost.append(f"{place}.{name}: {type(error).__name__}: {error}")
    if lost:
        report.warn(
            "The checkpoint holds changes to objects that this run cannot restore:"
            + "".join(f"\n    {line}" for line in lost)
            + "\n  The program has changed since it was written."
        )
