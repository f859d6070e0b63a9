"""check_callback: the tests that every callback has to pass."""

from __future__ import annotations

import copy
import io
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from lightlib.callbacks.progress.base import ProgressBar
from lightlib.callbacks.summary.model_summary import ModelSummary
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.testing.kit import SavesOnce, check_class, equal, failure, selected
from lightlib.testing.module import BATCH, EVALUATED, QUIET, BoringModule, samples

_EPOCHS = 4


def check_callback(make_callback: Callable[[], Callback], *, without: Iterable[str] = ()) -> None:
    """Fail unless a callback works in every call of a Trainer, resumes exactly, and leaves the run as it is.

    The checks, by name, each with a new callback. The module logs ``train_loss`` per step and epoch, ``val_loss`` and
    ``test_loss``, and has two loaders to validate, test and predict:

    - ``"runs"``: `fit` with a sanity check, `validate`, `test` and `predict` raise no exception.
    - ``"random"``: no hook changes the global random numbers of torch, Python or NumPy.
    - ``"mode"``: no hook changes the training mode of the module or of a part of it.
    - ``"state"``: a checkpoint file holds `state_dict`, and `load_state_dict` of a new callback restores it.
    - ``"resumes"``: a run that resumes within its second epoch ends with the steps, weights and callback state of an
      uninterrupted one. Leave it out for a state that depends on the time, such as that of `Timer`.
    - ``"copies"``: a Trainer with the callback can be deep-copied and pickled before and after a run, and the copy can
      train.

    Args:
        make_callback: Returns a new callback.
        without: Names of checks to leave out.

    Raises:
        AssertionError: It names the check and the difference, what was expected, and how to fix it.
        UnknownNameError: No check has a name in `without`.

    Example:
        >>> from lightlib.callbacks import EarlyStopping
        >>> check_callback(lambda: EarlyStopping("val_loss", patience=1))
    """
    for name in selected("a callback", CALLBACK_CHECKS, without):
        with tempfile.TemporaryDirectory(prefix="lightlib-", ignore_cleanup_errors=True) as folder:
            CALLBACK_CHECKS[name](_Kit(name, make_callback, Path(folder)))


class _Several(BoringModule):
    """Validates, tests and predicts on two loaders; the names of its metrics have no index."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluated("val_loss", batch, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluated("test_loss", batch, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return super().predict_step(batch, batch_idx)

    def _evaluated(self, name: str, batch: Any, index: int) -> None:
        self.log(name if index == 0 else f"{name}_{index}", self.loss(batch), add_dataloader_idx=False)

    def val_dataloader(self) -> Any:
        return [DataLoader(samples(EVALUATED), BATCH), DataLoader(samples(BATCH), BATCH)]

    test_dataloader = predict_dataloader = val_dataloader


def _seeded() -> _Several:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return _Several()


# The Trainer refuses such a callback next to a False for its flag.
_FLAGS: dict[str, type[Callback]] = {
    "enable_checkpointing": ModelCheckpoint,
    "enable_progress_bar": ProgressBar,
    "enable_model_summary": ModelSummary,
}


@dataclass(frozen=True)
class _Kit:
    """Makes callbacks and Trainers for one check, and reports its failures."""

    check: str
    make_callback: Callable[[], Callback]
    folder: Path

    def new(self) -> Callback:
        callback = self.make_callback()
        check_class("callback", self.check, callback, Callback)
        return callback

    def trainer(self, *callbacks: Callback, **options: Any) -> Trainer:
        flags = {flag: any(isinstance(one, kind) for one in callbacks) for flag, kind in _FLAGS.items()}
        given = {
            **flags,
            "default_root_dir": str(self.folder),
            "log_every_n_steps": 1,
            "max_epochs": _EPOCHS,
            **options,
        }
        return Trainer(**{**QUIET, "accelerator": "cpu", "devices": 1, "callbacks": list(callbacks), **given})

    def call(self, kind: str, what: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function; an exception is a failure of the check."""
        try:
            return function(*arguments, **options)
        except AssertionError:
            raise  # the failure of a probe
        except Exception as error:
            raise self.failure(
                f"{what} with {kind} raised {type(error).__name__}: {error}",
                "no exception.",
                f"correct the method of {kind} that the traceback shows.",
            ) from error

    def failure(self, what: str, expected: str, fix: str) -> AssertionError:
        """Return the error of a failed check, in three parts."""
        return failure("callback", self.check, what, expected, fix)


def _kind(callback: Callback) -> str:
    return type(callback).__name__


def _runs(kit: _Kit) -> None:
    callback = kit.new()
    _run_all(kit, callback, kit.trainer(callback, max_epochs=2, num_sanity_val_steps=1))


def _run_all(kit: _Kit, callback: Callback, trainer: Trainer) -> None:
    module, kind = _seeded(), _kind(callback)
    kit.call(kind, "Trainer.fit", trainer.fit, module)
    kit.call(kind, "Trainer.validate", trainer.validate, module, verbose=False)
    kit.call(kind, "Trainer.test", trainer.test, module, verbose=False)
    kit.call(kind, "Trainer.predict", trainer.predict, module)


class _Probe(Callback):
    """One of two callbacks around the callback under test, next to it in the order of calls.

    Args:
        at: Called at each hook with its name and the module.
        callback: The callback under test.
    """

    def __init__(self, at: Callable[[str, Module], None], callback: Callback) -> None:
        self.at = at
        self.priority, self.after_module = callback.priority, callback.after_module


def _probing(name: str) -> Callable[..., None]:
    def hook(self: _Probe, trainer: Trainer, pl_module: Module, *_: Any, **__: Any) -> None:  # noqa: ARG001  a hook
        self.at(name, pl_module)

    return hook


_HOOKS = [name for name in vars(Callback) if name.startswith("on_") or name in ("setup", "teardown")]
_AroundHooks = type("_AroundHooks", (_Probe,), {name: _probing(name) for name in _HOOKS})


def _check_around(kit: _Kit, read: Callable[[Module], Any], describe: Callable[[str, str, Any, Any], None]) -> None:
    """Run everything, and call `describe` for each hook around which `read` returns different values."""
    callback = kit.new()
    before: dict[str, Any] = {}

    def first(hook: str, module: Module) -> None:
        before[hook] = read(module)

    def second(hook: str, module: Module) -> None:
        value = read(module)
        if not equal(before[hook], value):
            describe(_kind(callback), hook, before[hook], value)

    probes = [_AroundHooks(at, callback) for at in (first, second)]
    _run_all(kit, callback, kit.trainer(probes[0], callback, probes[1], max_epochs=2, num_sanity_val_steps=1))


def _generators(module: Module) -> dict[str, Any]:  # noqa: ARG001  what a probe reads from
    states = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state(legacy=False)
    return states


def _random(kit: _Kit) -> None:
    def describe(kind: str, hook: str, before: Any, after: Any) -> None:
        changed = [name for name in before if not equal(before[name], after.get(name))]
        raise kit.failure(
            f"{kind}.{hook} changed the global random numbers of {' and '.join(changed)}.",
            "unchanged ones: the callback must not change the data and dropout of the run.",
            "draw from a generator of your own, such as torch.Generator() or random.Random(0).",
        )

    _check_around(kit, _generators, describe)


def _mode(kit: _Kit) -> None:
    def describe(kind: str, hook: str, before: Any, after: Any) -> None:
        name = next(name for name in before if before[name] != after.get(name))
        raise kit.failure(
            f"{kind}.{hook} left {name or 'the module'} in training={after.get(name)}, and it was {before[name]}.",
            "the training mode from before: the rest of the run depends on it.",
            "restore it in a `finally`.",
        )

    _check_around(kit, lambda module: {name: one.training for name, one in module.named_modules()}, describe)


def _state(kit: _Kit) -> None:
    callback = kit.new()
    kind, path = _kind(callback), kit.folder / "state.ckpt"
    trainer = kit.trainer(callback)
    kit.call(kind, "Trainer.fit", trainer.fit, _seeded())
    state = copy.deepcopy(kit.call(kind, "state_dict", callback.state_dict))
    try:
        torch.save(state, file := io.BytesIO())
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        raise kit.failure(
            f"{kind}.state_dict() returned {state!r}, which torch.load(weights_only=True) does not read: {error}",
            "a dictionary of tensors and plain Python values.",
            "return plain values from which load_state_dict restores the rest.",
        ) from error
    kit.call(kind, "Trainer.save_checkpoint", trainer.save_checkpoint, path)
    saved = torch.load(path, weights_only=True)["callbacks"].get(callback.state_key, {})
    now = kit.call(kind, "state_dict", callback.state_dict)
    if not (equal(saved, state) and equal(now, state)):
        raise kit.failure(
            f"{kind}.state_dict() was {state!r} before a checkpoint was saved and is {now!r} now; the file has "
            f"{saved!r}.",
            "the same: saving a checkpoint must not change the state.",
            "change nothing in on_save_checkpoint and state_dict.",
        )
    again = kit.new()
    if saved:
        kit.call(kind, "load_state_dict", again.load_state_dict, saved)
    restored = kit.call(kind, "state_dict", again.state_dict)
    if saved and not equal(restored, state):
        raise kit.failure(
            f"{kind}.state_dict() is {restored!r} after load_state_dict({state!r}).",
            "the state that was loaded.",
            "restore every entry of state_dict in load_state_dict.",
        )


def _resumes(kit: _Kit) -> None:
    kind, path = _kind(kit.new()), kit.folder / "within.ckpt"
    ends = []
    for resumed in (False, True):
        callback, module = kit.new(), _seeded()
        trainer = kit.trainer(callback) if resumed else kit.trainer(callback, SavesOnce(path))
        kit.call(kind, "Trainer.fit", trainer.fit, module, ckpt_path=path if resumed and path.exists() else None)
        ends.append((trainer.global_step, dict(module.state_dict()), copy.deepcopy(callback.state_dict())))
    for what, wanted, value in zip(("global_step", "the weights", "state_dict()"), *ends, strict=True):
        if not equal(wanted, value):
            shown = "differ" if what == "the weights" else f"is {value!r}, not {wanted!r},"
            raise kit.failure(
                f"{what} {shown} after a run with {kind} that was resumed.",
                "the end of an uninterrupted run.",
                "keep in state_dict all that the callback needs to continue.",
            )


def _copies(kit: _Kit) -> None:
    callback = kit.new()
    kind, trainer = _kind(callback), kit.trainer(callback, max_epochs=1)
    ways = {"copy.deepcopy": copy.deepcopy, "pickle": lambda one: pickle.loads(pickle.dumps(one))}  # noqa: S301  ours
    for when in ("before", "after"):
        for name, copied in ways.items():
            again = kit.call(kind, f"{name} of a Trainer {when} a run", copied, trainer)
            found = [one for one in again.callbacks if type(one) is type(callback)]
            if len(found) != 1 or found[0] is callback or not equal(found[0].state_dict(), callback.state_dict()):
                raise kit.failure(
                    f"the {name} of a Trainer {when} a run has {found!r} for {callback!r}.",
                    "a copy of the callback with the same state.",
                    "keep the state in attributes that can be copied, and define no __reduce__ that loses it.",
                )
            again.max_epochs = 2
            kit.call(kind, f"Trainer.fit of its {name} {when} a run", again.fit, _seeded())
        if when == "before":
            kit.call(kind, "Trainer.fit", trainer.fit, _seeded())


CALLBACK_CHECKS: dict[str, Callable[[_Kit], None]] = {
    "runs": _runs,
    "random": _random,
    "mode": _mode,
    "state": _state,
    "resumes": _resumes,
    "copies": _copies,
}
