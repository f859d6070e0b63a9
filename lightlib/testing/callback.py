"""check_callback: the tests that every callback has to pass."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator
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
from lightlib.testing.kit import Kit, SavesOnce, equal
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
    CallbackKit.run(make_callback, without)


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


def _generators(module: Module) -> dict[str, Any]:  # noqa: ARG001  what a probe reads from
    states = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state(legacy=False)
    return states


def _modes(module: Module) -> dict[str, bool]:
    return {name: each.training for name, each in module.named_modules()}


class CallbackKit(Kit):
    """The checks of `check_callback`."""

    kind, base = "callback", Callback

    def trainer(self, *callbacks: Callback, **options: Any) -> Trainer:
        flags = {flag: any(isinstance(callback, kind) for callback in callbacks) for flag, kind in _FLAGS.items()}
        fixed = {"accelerator": "cpu", "devices": 1, "default_root_dir": str(self.folder), "log_every_n_steps": 1}
        return Trainer(**{**QUIET, **flags, **fixed, "callbacks": [*callbacks], "max_epochs": _EPOCHS, **options})

    def perform(self, what: str, callback: Callback, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function that must succeed with the callback."""
        kind = type(callback).__name__
        with self.succeeds(f"{what} with {kind}", f"correct the method of {kind} that the traceback shows."):
            return function(*args, **options)

    def run_all(self, callback: Callback, *around: Callback) -> None:
        """Train, validate, test and predict with a callback between those of `around`."""
        module, callbacks = _seeded(), [*around[:1], callback, *around[1:]]
        trainer = self.trainer(*callbacks, max_epochs=2, num_sanity_val_steps=1)
        self.perform("Trainer.fit", callback, trainer.fit, module)
        self.perform("Trainer.validate", callback, trainer.validate, module, verbose=False)
        self.perform("Trainer.test", callback, trainer.test, module, verbose=False)
        self.perform("Trainer.predict", callback, trainer.predict, module)

    def changes(self, read: Callable[[Module], dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Run everything; yield each hook that changes values of `read`, and both values by name."""
        callback, before, found = self.made(), {}, []

        def note(hook: str, module: Module) -> None:
            before[hook] = read(module)

        def compare(hook: str, module: Module) -> None:
            now = read(module)
            pairs = {name: (value, now.get(name)) for name, value in before[hook].items()}
            changed = {name: pair for name, pair in pairs.items() if not equal(*pair)}
            found.append((f"{type(callback).__name__}.{hook}", changed))

        self.run_all(callback, _AroundHooks(note, callback), _AroundHooks(compare, callback))
        yield from found

    def test_runs(self) -> None:
        self.run_all(self.made())

    def test_random(self) -> None:
        for what, changed in self.changes(_generators):
            assert not changed, self.unmet(
                f"{what} changed the global random numbers of {' and '.join(changed)}.",
                "unchanged ones: the callback must not change the data and dropout of the run.",
                "draw from a generator of your own, such as torch.Generator() or random.Random(0).",
            )

    def test_mode(self) -> None:
        for what, changed in self.changes(_modes):
            name, (before, after) = next(iter(changed.items()), ("", (None, None)))
            assert not changed, self.unmet(
                f"{what} left {name or 'the module'} in training={after}, and it was {before}.",
                "the training mode from before: the rest of the run depends on it.",
                "restore it in a `finally`.",
            )

    def test_state(self) -> None:
        callback, path = self.made(), self.folder / "state.ckpt"
        kind, trainer = type(callback).__name__, self.trainer(callback)
        self.perform("Trainer.fit", callback, trainer.fit, _seeded())
        state = copy.deepcopy(self.perform("state_dict", callback, callback.state_dict))
        fix = "return plain values from which load_state_dict restores the rest."
        self.through_file(f"{kind}.state_dict()", state, "a dictionary of tensors and plain Python values.", fix)
        self.perform("Trainer.save_checkpoint", callback, trainer.save_checkpoint, path)
        saved = torch.load(path, weights_only=True)["callbacks"].get(callback.state_key, {})
        now = self.perform("state_dict", callback, callback.state_dict)
        assert equal([saved, now], [state, state]), self.unmet(
            f"{kind}.state_dict() was {state!r} before a checkpoint was saved and is {now!r} now; the file has "
            f"{saved!r}.",
            "the same: saving a checkpoint must not change the state.",
            "change nothing in on_save_checkpoint and state_dict.",
        )
        again = self.made()
        if saved:
            self.perform("load_state_dict", again, again.load_state_dict, saved)
        restored = self.perform("state_dict", again, again.state_dict)
        assert not saved or equal(restored, state), self.unmet(
            f"{kind}.state_dict() is {restored!r} after load_state_dict({state!r}).",
            "the state that was loaded.",
            "restore every entry of state_dict in load_state_dict.",
        )

    def test_resumes(self) -> None:
        kind, path, ends = type(self.made()).__name__, self.folder / "within.ckpt", []
        for resumed in (False, True):
            callback, module = self.made(), _seeded()
            trainer = self.trainer(callback) if resumed else self.trainer(callback, SavesOnce(path))
            source = path if resumed and path.exists() else None
            self.perform("Trainer.fit", callback, trainer.fit, module, ckpt_path=source)
            ends.append((trainer.global_step, dict(module.state_dict()), copy.deepcopy(callback.state_dict())))
        for what, wanted, value in zip(("global_step", "the weights", "state_dict()"), *ends, strict=True):
            shown = "differ" if what == "the weights" else f"is {value!r}, not {wanted!r},"
            assert equal(wanted, value), self.unmet(
                f"{what} {shown} after a run with {kind} that was resumed.",
                "the end of an uninterrupted run.",
                "keep in state_dict all that the callback needs to continue.",
            )

    def test_copies(self) -> None:
        callback = self.made()
        trainer = self.trainer(callback, max_epochs=1)
        ways = {"copy.deepcopy": copy.deepcopy, "pickle": lambda one: pickle.loads(pickle.dumps(one))}  # noqa: S301  ours
        for when in ("before", "after"):
            for name, copied in ways.items():
                again = self.perform(f"{name} of a Trainer {when} a run", callback, copied, trainer)
                found = [one for one in again.callbacks if type(one) is type(callback)]
                same = equal([one.state_dict() for one in found if one is not callback], [callback.state_dict()])
                assert same, self.unmet(
                    f"the {name} of a Trainer {when} a run has {found!r} for {callback!r}.",
                    "a copy of the callback with the same state.",
                    "keep the state in attributes that can be copied, and define no __reduce__ that loses it.",
                )
                again.max_epochs = 2
                self.perform(f"Trainer.fit of its {name} {when} a run", callback, again.fit, _seeded())
            if when == "before":
                self.perform("Trainer.fit", callback, trainer.fit, _seeded())
