"""User state: what has changed in the user's objects since training began, saved with each checkpoint."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from lightlib import report
from lightlib.core.metrics.errors import is_metric
from lightlib.core.metrics.results import load_metric_state, metric_state
from lightlib.core.run.user_objects import Owner, known_parts, owners_of, within
from lightlib.core.values.attributes import ABSENT, COPIED, LARGEST, Known, TooLarge, Unsaveable, has_protocol
from lightlib.core.values.digest import digest
from lightlib.core.values.encoding import encode, restored
from lightlib.core.values.source import LIBRARIES, root_of, updated
from lightlib.data.seed import isolate_rng, rng_state, set_rng_state

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

__all__ = ["Look", "Missing", "UserState"]

_FIXES = {
    "module": "write it in on_save_checkpoint(checkpoint) and read it in on_load_checkpoint(checkpoint)",
    "callback": "return it from state_dict() and load it in load_state_dict(state)",
    "data module": "return it from state_dict() and load it in load_state_dict(state)",
    "data set": "make it follow from the index or from set_epoch(epoch), or give the data set state_dict and "
    "load_state_dict and read it with torchdata's StatefulDataLoader",
    "loader": "give the object state_dict and load_state_dict",
}
_LARGE = {"large": True}
_DAMAGED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, OverflowError)
_Values = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Missing:
    """Something that a checkpoint does not hold.

    Attributes:
        where: ``"module.counter"``.
        what: What is known about it.
        fix: How to have it saved.
    """

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n      {self.fix[0].upper()}{self.fix[1:]}."


@dataclass
class Look:
    """The user's objects at one moment."""

    known: Known
    owners: list[Owner] = field(default_factory=list)
    digests: dict[tuple[str, str], Any] = field(default_factory=dict)
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    training: dict[str, bool] = field(default_factory=dict)
    requires_grad: dict[str, bool] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


class UserState:
    """What changes in the user's objects while a run trains.

    When training begins, after `on_train_start`, a digest of each attribute is taken. A checkpoint holds those that
    have changed since, as plain values; a resumed run gives them back at the same moment, so that what its
    `on_fit_start` and `on_train_start` did is undone where the saved run had gone on. Attributes that a state protocol
    of the user's covers (`state_dict`, `on_save_checkpoint`, `get_extra_state`) are left to it.

    Args:
        run: The run.
        saves: Whether changes are saved and reported: ``Trainer(save_user_state=…)``.
        start: That of the fit that this one continues in the same process: changes count from its beginning.

    Attributes:
        missing: What has changed and cannot be saved, as far as the last look found.
        start: What there was when training began.
    """

    def __init__(self, run: Run, saves: bool = True, start: Look | None = None) -> None:
        self.run, self.saves, self.start = run, saves, start
        self.missing: list[Missing] = []
        self.pending: Mapping[str, Any] | None = None  # of the checkpoint, until training begins
        self._epoch: tuple[int, _Values] | None = None  # of what loaders read, as the epoch began that is given first
        self._resumed: Mapping[str, Any] | None = None  # until the epoch that was saved is read again
        self._held: dict[str, Any] | None = None  # while a validation runs
        self._digests_held: tuple[Any, Any] | None = None  # in its place, when that is too large
        self._told_size = False
        self._sticky: set[tuple[str, str]] = set()
        self._reported: set[str] = set()

    def restore_at_start(self, state: Mapping[str, Any] | None) -> None:
        """Give back what a checkpoint holds when training begins."""
        self.pending = state

    # moments
    def begin(self) -> None:
        """Training begins: take digests, then give back what a checkpoint holds."""
        if not self.saves:
            return
        self.start = self.start or self._look(None)
        pending, self.pending = self.pending, None
        if pending is not None:
            self._stick(pending["values"])
            self._stick(pending["epoch"] or {})
            within_epoch = pending["epoch"] is not None
            self._apply(pending, but_read=within_epoch)  # what loaders read is given to them as the epoch began
            self._resumed = pending if within_epoch else None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around the start of an epoch's reading, which a resumed run does again as it was done."""
        resumed, self._resumed = self._resumed, None
        if self.start is None:
            yield
            return
        began = self._changed(only_read=True) if resumed is None else resumed["epoch"]
        self._epoch = self.run.progress.epoch, began
        if resumed is not None:
            self._give(_completed(resumed["epoch"], resumed["values"]))
        yield
        if resumed is not None:
            self._apply(resumed)

    def hold(self) -> None:
        """A validation begins: a checkpoint that is written within it holds what there is now."""
        if self.start is None:
            return
        now = self._look(self.start)
        values = self._encoded(now, COPIED)
        if _completed(values, {}) == values:
            self._held = copy.deepcopy(self._state(now, values))
        else:
            self._digests_held = now.digests, now.metrics

    @property
    def may_be_left(self) -> bool:
        """Whether a checkpoint can be written within the validation: what is too large to be copied has not changed."""
        if self._digests_held is None or self.start is None:
            return True
        now = self._look(self.start)
        return (now.digests, now.metrics) == self._digests_held

    def release(self) -> None:
        """The validation has ended."""
        self._held = self._digests_held = None

    def loading(self) -> dict[str, Any]:
        """Return what `train_dataloader` may depend on, as it is called: random numbers and the user's objects."""
        values = self._changed() if self.start is not None else {}
        return {"rng": rng_state(), "values": values, "epoch": self.run.progress.epoch}

    @contextmanager
    def as_loading(self, then: Mapping[str, Any] | None) -> Iterator[None]:
        """Let `train_dataloader` be called again with what `loading` returned; everything is put back afterwards."""
        if then is None:
            yield
            return
        progress = self.run.progress
        epoch, before = progress.epoch, None
        if self.start is not None:
            self._stick(then["values"])
            before = self._changed()
            self._give(_completed(then["values"], before))
        with isolate_rng():
            set_rng_state(then["rng"])
            progress.epoch = then["epoch"]
            try:
                yield
            finally:
                progress.epoch = epoch
        if before is not None:
            self._give(_completed(before, {}))

    @contextmanager
    def unsaved(self, moment: str) -> Iterator[None]:
        """Around a hook that is called after the checkpoint was written: what changes in it is not in the file."""
        before = self._look(self.start) if self.start is not None else None
        with isolate_rng():
            yield
        if before is None:
            return
        after = self._look(self.start)
        changed = [key for key, one in after.digests.items() if before.digests.get(key, ABSENT) != one]
        self.missing += [
            Missing(
                f"{place}.{name}",
                f"{moment} changes it, after the checkpoint was written",
                "change it in on_save_checkpoint, which is called before",
            )
            for place, name in changed
        ]
        self.say()

    # saving
    def capture(self) -> dict[str, Any]:
        """Return what has changed since training began, as tensors and plain values."""
        waiting = self.pending if self._resumed is None else self._resumed
        if waiting is not None:  # nothing has been trained since it was saved
            return dict(waiting)
        if self._held is not None:
            return self._held
        if self.start is None:
            return {}
        now, self.missing = self._look(self.start), []
        values = self._encoded(now)
        self.missing += [*_in_workers(now.owners), *self._without_attribute()]
        return self._state(now, values)

    def _state(self, now: Look, values: _Values) -> dict[str, Any]:
        assert self.start is not None
        start, present = self.start, {place for place, _ in now.digests}
        at, began = self._epoch or (-1, None)
        gone = [[*key] for key in start.digests if key[0] in present and key not in now.digests]
        return {
            "training": _differing(start.training, now.training),
            "requires_grad": _differing(start.requires_grad, now.requires_grad),
            "metrics": self._metrics(now),
            "values": values,
            "gone": gone,
            "epoch": began if at == self.run.progress.epoch else None,
        }

    def look(self) -> list[Missing]:
        """Return what a checkpoint that was written now could not hold."""
        self.capture()
        return list(self.missing)

    def names(self) -> list[str]:
        """Return what a checkpoint that was written now would hold: ``"module.level"``."""
        state = self.capture()
        flags = [f"{kind} of {len(state[kind])} parts" for kind in ("training", "requires_grad") if state.get(kind)]
        values = [f"{place}.{name}" for place, own in (state.get("values") or {}).items() for name in own]
        return [*flags, *(f"module.{name}" for name in state.get("metrics") or ()), *values]

    def say(self) -> None:
        """Warn once of each thing that a checkpoint cannot hold."""
        new = [one for one in self.missing if one.where not in self._reported]
        self._reported |= {one.where for one in new}
        if new:
            lines = "".join(f"\n    {one}" for one in new)
            report.warn(
                f"A run that is resumed from its checkpoints will differ: they do not hold{lines}\n"
                "  What a resumed run does not need: name it in the class attribute `not_in_checkpoint = (…,)`.",
                report.PossibleUserWarning,
            )

    def _changed(self, only_read: bool = False) -> _Values:
        """Return copies of the values that have changed."""
        owners = [owner for owner in self._owners() if owner.read or not only_read]
        return copy.deepcopy(self._encoded(self._look(self.start, owners), COPIED))

    def _encoded(self, now: Look, room: int = LARGEST) -> _Values:
        """Return the values that have changed, as plain values.

        Args:
            now: The user's objects.
            room: How many bytes the values may take. Of less than for a checkpoint what is larger is marked, and what
                cannot be saved is not noted as missing: a checkpoint does so.
        """
        assert self.start is not None
        start, known = self.start, now.known.again(room)
        found: _Values = {}
        known.types = start.known.types
        for owner in now.owners:
            for name, value in owner.attributes():
                key, path = (owner.place, name), f"{owner.place}.{name}"
                if key not in now.digests:
                    continue
                is_new = start.digests.get(key, ABSENT) != now.digests[key]
                if not (is_new or key in self._sticky or _has_a_position(value)):
                    continue
                self._sticky.add(key)  # a resumed run saves it as well, also where it is again what it was
                left = known.room
                try:
                    same = start.ids.get(key) == id(value)
                    one = {"value": encode(value, known, path), "same": same}
                    found.setdefault(owner.place, {})[name] = one
                except Unsaveable as error:
                    known.room = left
                    if room == LARGEST:
                        self.missing.append(Missing(path, str(error), error.fix or _FIXES[owner.kind]))
                    elif isinstance(error, TooLarge):
                        found.setdefault(owner.place, {})[name] = {"value": _LARGE, "same": False}
                except Exception as error:  # noqa: BLE001  the user's code that runs must not make a save fail
                    known.room = left
                    if room == LARGEST:
                        self.missing.append(Missing(path, f"to look at it failed: {error!r}", _FIXES[owner.kind]))
        if room == LARGEST:
            self._tell_size(LARGEST - known.room, found)
        return found

    def _tell_size(self, size: int, values: _Values) -> None:
        """Tell once that the automatic part of checkpoints is large: it may be a cache."""
        if size > COPIED and not self._told_size:
            self._told_size = True
            names = ", ".join(f"{place}.{name}" for place, own in values.items() for name in own)
            report.info(
                f"Each checkpoint holds {size >> 20} MiB that changed in your objects since training began: {names}. "
                "What a resumed run does not need (a cache): name it in the class attribute `not_in_checkpoint = (…,)`."
            )

    def _metrics(self, now: Look) -> dict[str, Any]:
        assert self.start is not None
        changed = [name for name, one in now.metrics.items() if self.start.metrics.get(name) != one]
        return {name: metric_state(now.known.parts[name]) for name in changed}

    def _without_attribute(self) -> Iterator[Missing]:
        """Yield the metrics that a resumed run cannot find again."""
        for slot in self.run.results.train.slots.values():
            if slot.metric is not None and slot.attribute is None:
                yield Missing(
                    f"the metric logged as {slot.name!r}", "it is no attribute of the module", f"self.{slot.name} = …"
                )

    # restoring
    def _apply(self, saved: Mapping[str, Any], but_read: bool = False) -> None:
        module: nn.Module = self.run.module
        parts = dict(module.named_modules())
        for name, mode in saved["training"].items():
            if name in parts:
                parts[name].training = mode
        for name, parameter in module.named_parameters():
            if name in saved["requires_grad"]:
                parameter.requires_grad_(saved["requires_grad"][name])
        for name, state in saved["metrics"].items():
            if is_metric(parts.get(name)):
                load_metric_state(parts[name], state)
        found = self._within()
        owners = {owner.place: owner for owner in found if not (but_read and owner.read)}
        left = {owner.place for owner in found} - owners.keys()
        self._give({place: own for place, own in saved["values"].items() if place not in left})
        for place, name in saved["gone"]:
            if place in owners:
                owners[place].drop(name)

    def _give(self, values: _Values) -> None:
        known, lost = self._known(self._owners()), []
        owners = {owner.place: owner for owner in self._within()}
        for place, attributes in values.items():
            if place not in owners:
                lost.append(f"{place}: there is no such object")
                continue
            there = dict(owners[place].attributes())
            for name, one in attributes.items():
                try:
                    owners[place].take(name, restored(one["value"], there.get(name, ABSENT), known, one["same"]))
                except Unsaveable as error:
                    lost.append(f"{place}.{name}: {error}")
                except _DAMAGED as error:
                    lost.append(f"{place}.{name}: {type(error).__name__}: {error}")
        if lost:
            report.warn(
                "The checkpoint holds changes of objects that this run cannot take:"
                + "".join(f"\n    {line}" for line in lost)
                + "\n  The program is another one than that which wrote it."
            )

    # looking
    def _known(self, owners: list[Owner]) -> Known:
        roots = {root_of(kind) for owner in owners for kind in type(owner.held).__mro__} - LIBRARIES
        return known_parts(self.run.module, self.run.strategy.root_device, roots)

    def _owners(self) -> list[Owner]:
        return owners_of(self.run)

    def _within(self) -> list[Owner]:
        types, owners = None if self.start is None else self.start.known.types, self._owners()
        return list(within(owners, self._known(owners), types))

    def _look(self, start: Look | None, owners: list[Owner] | None = None) -> Look:
        owners = self._owners() if owners is None else owners
        look, elsewhere = Look(self._known(owners)), self._saved_elsewhere()
        if start is not None:
            look.known.ids = start.known.ids
        types = None if start is None else start.known.types
        look.owners = list(within(owners, look.known, types))
        elsewhere |= {id(owner.held) for owner in look.owners}
        for owner in look.owners:
            look.known.types[owner.place] = type(owner.held)
            for name, value in owner.attributes():
                if id(value) in elsewhere and value is not owner.held:
                    continue
                look.known.left = Known.left
                look.digests[owner.place, name] = _digest(value, look.known, f"{owner.place}.{name}")
                look.ids[owner.place, name] = id(value)
        if start is None:
            look.known.ids = set(look.known.seen)
        for name, part in self.run.module.named_modules():
            look.training[name] = part.training
            if is_metric(part) and id(part) not in elsewhere:
                look.metrics[name] = _digest_of_metric(part, look.known)
        for name, parameter in self.run.module.named_parameters():
            look.requires_grad[name] = parameter.requires_grad
        return look

    def _saved_elsewhere(self) -> set[int]:
        """Return what other parts of a checkpoint hold, by `id`: the loaders' generators and logged metrics."""
        run, found = self.run, set()
        for source in run.train_data.sources if run.train_data is not None else ():
            found |= set(map(id, source.generators))
        for data in run.evaluations.loaded.values():
            found |= {id(one) for own in data.generators for one in own}
        return found | {id(slot.metric) for slot in run.results.train.slots.values() if slot.metric is not None}

    def _stick(self, values: _Values) -> None:
        self._sticky |= {(place, name) for place, attributes in values.items() for name in attributes}


def _digest(value: Any, known: Known, path: str) -> Any:
    try:
        return digest(value, known, path)
    except Exception:  # noqa: BLE001  it is the user's code that runs: `__len__`, `__iter__`, `__eq__`
        return type(value).__name__, id(value)


def _digest_of_metric(metric: Any, known: Known) -> Any:
    states = {name: digest(one, known.again(), name) for name, one in metric.metric_state.items()}
    return metric.update_count, states


def _completed(values: _Values, others: _Values) -> _Values:
    """Return values with those of `others` in place of what was too large to be copied."""
    found: _Values = {}
    for place, own in values.items():
        for name, one in own.items():
            filled = others.get(place, {}).get(name) if one["value"] == _LARGE else one
            if filled is not None:
                found.setdefault(place, {})[name] = filled
    return found


def _differing(before: Mapping[str, bool], now: Mapping[str, bool]) -> dict[str, bool]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _has_a_position(value: Any) -> bool:
    """Whether a value moves on as it is used, which its digest does not show."""
    return isinstance(value, Iterator) and not (isinstance(value, io.IOBase) and not value.writable())


def _in_workers(owners: list[Owner]) -> Iterator[Missing]:
    """Yield what worker processes change in their copies of a data set, as far as its source tells."""
    for owner in owners:
        if not owner.in_workers:
            continue
        if has_protocol(owner.held):
            what = "it has a state_dict, which a plain DataLoader does not ask its workers for"
            yield Missing(owner.place, what, "read it with torchdata's StatefulDataLoader")
            continue
        kind: type = type(owner.held)
        for name in updated(kind) & {name for name, _ in owner.attributes()}:
            what = "its methods change it as they are called, in worker processes"
            yield Missing(f"{owner.place}.{name}", what, _FIXES["data set"])
