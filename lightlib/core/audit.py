"""The audit: what a checkpoint of a run would hold, and what the user holds that it would not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from lightlib.callbacks.callback import Callback
from lightlib.core.datamodule import DataModule
from lightlib.core.generators import generators_in, is_generator
from lightlib.core.held import (
    Owner,
    changed,
    fingerprints,
    has_saver,
    is_iterator,
    is_open_file,
    modules_in,
    saves,
    stored,
    updated,
)
from lightlib.core.logged import is_metric
from lightlib.core.module import Module
from lightlib.core.workers import users_own

__all__ = ["Audit", "Missing", "attributes", "audit"]

_FIXES = {
    "module": "write it in on_save_checkpoint(checkpoint) and read it in on_load_checkpoint(checkpoint)",
    "callback": "return it from state_dict() and take it back in load_state_dict(state)",
    "data module": "return it from state_dict() and take it back in load_state_dict(state)",
    "data set": "make it follow from the index or from set_epoch(epoch), or give the data set state_dict and "
    "load_state_dict and read it with torchdata's StatefulDataLoader",
    "loader": "give the loader state_dict and load_state_dict",
}


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
class Audit:
    """What is in a checkpoint, and what is not. ``print(audit)`` shows both.

    Attributes:
        captured: What a checkpoint holds, by part.
        missing: What it does not hold and a resumed run would have otherwise.
    """

    captured: dict[str, str] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.missing

    def __str__(self) -> str:
        width = max(map(len, self.captured), default=0)
        lines = ["A checkpoint of this run holds:"]
        lines += [f"  {name.ljust(width)}  {what}" for name, what in self.captured.items()]
        if not self.missing:
            return "\n".join([*lines, "Nothing is known that it would not hold."])
        lines.append("It does not hold:")
        return "\n".join([*lines, *(f"  {one}" for one in self.missing)])


def audit(trainer: Any, before: Mapping[tuple[str, str], Any] | None = None, module: Any = None) -> Audit:
    """Return what a checkpoint of this run holds, and what the user's objects hold that it does not.

    Attributes that have changed since `before` are known to change. Without it, before a run, the classes' source is
    read for attributes that their methods count up or add to.

    Args:
        trainer: Whose run it is.
        before: What `attributes` returned when the run began.
        module: Looked at in place of the run's, when there has been none.
    """
    module = trainer.lightning_module if module is None else module
    missing = [one for owner in _owners(trainer, module) for one in _missing_in(owner, before or {})]
    return Audit(_captured(trainer, module), missing + list(_unsaved_metrics(trainer, module)))


def attributes(trainer: Any) -> dict[tuple[str, str], Any]:
    """Return a fingerprint of each attribute of the user's objects, to find later what has changed."""
    return fingerprints(_owners(trainer, trainer.lightning_module))


def _loaders(trainer: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the user's loaders by name, and whether one's own state is saved."""
    run = trainer.run
    if run is None:
        return
    if run.train_data is not None:
        for number, (loader, source) in enumerate(zip(run.train_data.given, run.train_data.sources, strict=True)):
            yield f"training loader{f' {number}' if number else ''}", loader, source.has_state
    if "val" in run.evaluations:
        for number, loader in enumerate(run.evaluations["val"].given):
            yield f"validation loader{f' {number}' if number else ''}", loader, False


def _owners(trainer: Any, module: Any) -> list[Owner]:
    found = []
    if module is not None:
        for name, part in module.named_modules():
            if not is_metric(part) and type(part).__module__.split(".")[0] != "torch":
                base = Module() if isinstance(part, Module) else nn.Module()
                found.append(Owner(f"module.{name}" if name else "module", part, vars(base), "module"))
    if trainer.datamodule is not None:
        found.append(Owner("datamodule", trainer.datamodule, vars(DataModule()), "data module"))
    for callback in trainer.callbacks:
        if type(callback).__module__.split(".")[0] != "lightlib":
            ours = vars(callback).keys() - stored(type(callback)) if isinstance(callback, Callback) else ()
            found.append(Owner(type(callback).__name__, callback, ours, "callback"))
    seen: set[int] = set()
    for name, loader, has_state in _loaders(trainer):
        held = users_own(loader.dataset) if isinstance(loader, DataLoader) else loader
        while type(held) is Subset:
            held = held.dataset
        if id(held) in seen or type(held).__module__.split(".")[0] in ("torch", "builtins", "lightlib"):
            continue
        seen.add(id(held))
        is_own = not isinstance(loader, DataLoader)
        saved = has_state and (is_own or hasattr(held, "state_dict"))
        place, kind = (name, "loader") if is_own else (f"data set of the {name}", "data set")
        found.append(Owner(place, held, (), kind, saved, bool(getattr(loader, "num_workers", 0))))
    return found


def _missing_in(owner: Owner, before: Mapping[tuple[str, str], Any]) -> Iterator[Missing]:
    counted = updated(type(owner.held))
    for name, value in owner.attributes():
        where, fix = f"{owner.place}.{name}", _FIXES[owner.kind]
        if saves(owner, name):
            continue
        if is_generator(value):
            if owner.kind not in ("data set", "loader"):
                yield Missing(where, f"a {_full_name(value)}, whose state is not saved", fix)
        elif is_iterator(value):
            yield Missing(where, f"an iterator ({type(value).__name__}), whose place cannot be saved", _again(fix))
        elif is_open_file(value):
            yield Missing(where, "an open file, which a resumed run opens anew", "open it in setup, to append to it")
        elif owner.kind == "module" and isinstance(value, torch.Tensor):
            yield Missing(
                where,
                "a tensor that is no buffer: it is not in the state_dict and does not move with the module",
                f"self.register_buffer({name!r}, …)",
            )
        elif owner.kind == "module" and modules_in(value):
            yield Missing(
                where,
                f"modules in a plain {type(value).__name__}: their parameters are neither saved nor trained",
                "use nn.ModuleList or nn.ModuleDict",
            )
        else:
            known = before.get((owner.place, name), _ABSENT)
            if known is _ABSENT or owner.elsewhere:
                if name in counted and (not before or owner.elsewhere):
                    yield Missing(where, "its methods change it as they are called", fix)
                elif before and not owner.elsewhere and _holds_something(value):
                    yield Missing(where, f"new since the run began: {_shown(value)}", fix)
            elif changed(known, value):
                yield Missing(where, f"changed since the run began: {_shown(value)}", fix)
    if owner.kind == "data set" and hasattr(owner.held, "state_dict") and not owner.saved and has_saver(owner):
        yield Missing(
            owner.place,
            "it has a state_dict, which a plain DataLoader does not ask for",
            "read it with torchdata's StatefulDataLoader",
        )


_ABSENT = object()


def _holds_something(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, str, list, tuple, set, dict, torch.Tensor))


def _again(fix: str) -> str:
    return f"keep the number of items that were taken, and {fix}"


def _full_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__.split('.')[0].lstrip('_')}.{kind.__name__}"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple, set, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 50 else f"{text[:49]}…"


def _unsaved_metrics(trainer: Any, module: Any) -> Iterator[Missing]:
    """Metrics that were updated in training, and not given to `self.log`: their sums are lost."""
    run = trainer.run
    if run is None or module is None or run.stage != "train":
        return
    logged = {id(slot.metric) for slot in run.results.train.slots.values() if slot.metric is not None}
    for slot in run.results.train.slots.values():
        if slot.metric is not None and slot.attribute is None:
            yield Missing(
                f"the metric logged as {slot.name!r}", "it is no attribute of the module", f"self.{slot.name} = …"
            )
    for name, part in module.named_modules():
        is_lost = is_metric(part) and id(part) not in logged and getattr(part, "update_count", None)
        if is_lost and not any(getattr(part, "_persistent", {}).values()):
            yield Missing(
                f"module.{name}",
                f"a {type(part).__name__} that was updated {part.update_count} times and is not logged",
                f"self.log({name!r}, self.{name}), or self.{name}.persistent(True)",
            )


def _captured(trainer: Any, module: Any) -> dict[str, str]:
    run = trainer.run
    found: dict[str, str] = {}
    if module is not None:
        state = module.state_dict()
        numbers = sum(one.numel() for one in state.values() if isinstance(one, torch.Tensor))
        found["module"] = f"{len(state)} tensors of {type(module).__name__}, {numbers:,} numbers"
        if module.hparams:
            found["hyperparameters"] = ", ".join(sorted(map(str, module.hparams)))
    if run is not None and run.optimizers:
        found["optimizers"] = ", ".join(type(one).__name__ for one in run.optimizers)
        names = [type(one.scheduler).__name__ for one in run.schedules.configs]
        found |= {"schedules": ", ".join(names)} if names else {}
        found |= {"loss scaler": "scale and growth"} if run.scaler is not None else {}
    at = trainer.progress
    found["position"] = f"epoch {at.epoch}, batch {at.epoch_batch} of it, step {at.step}"
    if run is not None and run.train_data is not None:
        found["training data"] = _data(run.train_data.given)
    if run is not None and "val" in run.evaluations:
        found["validation data"] = _data(run.evaluations["val"].given)
    if run is not None and run.results.train.slots:
        names = sorted({name for _, name, _ in run.results.train.slots})
        found["logged this epoch"] = ", ".join(names)
    states = [one for one in trainer.callbacks if getattr(one, "state_dict", dict)()]
    if states:
        found["callbacks"] = ", ".join(type(one).__name__ for one in states)
    if trainer.datamodule is not None and trainer.datamodule.state_dict():
        found["data module"] = type(trainer.datamodule).__name__
    if trainer.loggers:
        found["loggers"] = ", ".join(type(one).__name__ for one in trainer.loggers)
    found["random numbers"] = "Python, NumPy, torch, " + (
        "and of its device, of every process" if trainer.strategy.root_device.type != "cpu" else "of every process"
    )
    return found


def _data(given: list[Any]) -> str:
    texts = []
    for loader in given:
        sampler = getattr(loader, "sampler", None)
        how = "" if sampler is None else f" with {type(sampler).__name__}"
        own = len(generators_in({"loader": loader}))
        texts.append(f"{type(loader).__name__}{how}" + (f", {own} generators of its own" if own else ""))
    return "; ".join(texts)
