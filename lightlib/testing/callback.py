"""check_callback: the tests that every callback has to pass."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
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
from lightlib.profilers.profiler import Profiler
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


class _Probe(Profiler):
    """Notes which values the hooks of callbacks change.

    Args:
        read: Returns the values by name.

    Attributes:
        changes: The name of each hook that was called, and the values before and after it that differ.
    """

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.read = read
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self._before: dict[str, dict[str, Any]] = {}

    def start(self, action_name: str) -> None:
        self._before[action_name] = self.read()

    def stop(self, action_name: str) -> None:
        before, now = self._before.pop(action_name), self.read()
        changed = {name: (value, now.get(name)) for name, value in before.items() if not equal(value, now.get(name))}
        if changed and action_name.startswith("[Callback]"):
            self.changes.append((action_name.removeprefix("[Callback]"), changed))


def _generators() -> dict[str, Any]:
    states = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state(legacy=False)
    return states


def _modes(module: Module) -> dict[str, bool]:
    return {name: each.training for name, each in module.named_modules()}


class CallbackKit(Kit):
    """The checks of `check_callback`."""

    kind, base, documentation = "callback", Callback, check_callback.__doc__

    def trainer(self, *callbacks: Callback, **options: Any) -> Trainer:
        flags = {flag: any(isinstance(callback, kind) for callback in callbacks) for flag, kind in _FLAGS.items()}
        fixed = {"accelerator": "cpu", "devices": 1, "default_root_dir": str(self.folder), "log_every_n_steps": 1}
        return Trainer(**{**QUIET, **flags, **fixed, "callbacks": [*callbacks], "max_epochs": _EPOCHS, **options})

    def perform(self, what: str, callback: Callback, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function that must succeed with the callback."""
        kind = type(callback).__name__
        with self.succeeds(f"{what} with {kind}", f"correct the method of {kind} that the traceback shows."):
            return function(*args, **options)

    def run_all(self, module: Module, read: Callable[[], dict[str, Any]] = dict) -> list[tuple[str, dict[str, Any]]]:
        """Train, validate, test and predict with a callback; return its hooks that change values of `read`."""
        callback, probe = self.made(), _Probe(read)
        trainer = self.trainer(callback, max_epochs=2, num_sanity_val_steps=1, profiler=probe)
        self.perform("Trainer.fit", callback, trainer.fit, module)
        self.perform("Trainer.validate", callback, trainer.validate, module, verbose=False)
        self.perform("Trainer.test", callback, trainer.test, module, verbose=False)
        self.perform("Trainer.predict", callback, trainer.predict, module)
        return probe.changes

    def test_runs(self) -> None:
        self.run_all(_seeded())

    def test_random(self) -> None:
        for hook, changed in self.run_all(_seeded(), _generators):
            problem = f"{hook} changed the global random numbers of {' and '.join(changed)}."
            fix = "draw from a generator of your own, such as torch.Generator() or random.Random(0)."
            raise AssertionError(self.unmet(problem, fix))

    def test_mode(self) -> None:
        module = _seeded()
        for hook, changed in self.run_all(module, partial(_modes, module)):
            name, (before, after) = next(iter(changed.items()))
            problem = f"{hook} left {name or 'the module'} in training={after}, and it was {before}."
            raise AssertionError(self.unmet(problem, "restore it in a `finally`."))

    def test_state(self) -> None:
        callback, path = self.made(), self.folder / "state.ckpt"
        call, trainer = f"{type(callback).__name__}.state_dict()", self.trainer(callback)
        self.perform("Trainer.fit", callback, trainer.fit, _seeded())
        state = copy.deepcopy(self.perform("state_dict", callback, callback.state_dict))
        self.through_file(call, state, "return plain values from which load_state_dict restores the rest.")
        self.perform("Trainer.save_checkpoint", callback, trainer.save_checkpoint, path)
        saved = torch.load(path, weights_only=True)["callbacks"].get(callback.state_key, {})
        now = self.perform("state_dict", callback, callback.state_dict)
        assert equal([saved, now], [state, state]), self.unmet(
            f"{call} was {state!r} before a checkpoint was saved and is {now!r} now; the file has {saved!r}.",
            "change nothing in on_save_checkpoint and state_dict.",
        )
        again = self.made()
        if saved:
            self.perform("load_state_dict", again, again.load_state_dict, saved)
        restored = self.perform("state_dict", again, again.state_dict)
        text = f"{call} is {restored!r} after load_state_dict({state!r})."
        assert not saved or equal(restored, state), self.unmet(text, "restore every entry of it in load_state_dict.")

    def test_resumes(self) -> None:
        kind, path, ends = type(self.made()).__name__, self.folder / "within.ckpt", []
        for more in ([SavesOnce(path)], []):
            callback, module = self.made(), _seeded()
            trainer, source = self.trainer(callback, *more), path if path.exists() else None
            self.perform("Trainer.fit", callback, trainer.fit, module, ckpt_path=source)
            ends.append((trainer.global_step, dict(module.state_dict()), copy.deepcopy(callback.state_dict())))
        for label, expected, value in zip(("global_step", "the weights", "state_dict()"), *ends, strict=True):
            shown = "differ" if label == "the weights" else f"is {value!r}, not {expected!r},"
            text = f"{label} {shown} after a run with {kind} that was resumed."
            assert equal(expected, value), self.unmet(
                text, "keep in state_dict all that the callback needs to continue."
            )

    def test_copies(self) -> None:
        callback = self.made()
        trainer = self.trainer(callback, max_epochs=1)
        ways = {"copy.deepcopy": copy.deepcopy, "pickle": lambda original: pickle.loads(pickle.dumps(original))}  # noqa: S301  ours
        for when in ("before", "after"):
            for name, copied in ways.items():
                again = self.perform(f"{name} of a Trainer {when} a run", callback, copied, trainer)
                copies = [candidate for candidate in again.callbacks if type(candidate) is type(callback)]
                same = equal(
                    [candidate.state_dict() for candidate in copies if candidate is not callback],
                    [callback.state_dict()],
                )
                problem = f"the {name} of a Trainer {when} a run has {copies!r} for {callback!r}."
                fix = "keep the state in attributes that can be copied, and define no __reduce__ that loses it."
                assert same, self.unmet(problem, fix)
                again.max_epochs = 2
                self.perform(f"Trainer.fit of its {name} {when} a run", callback, again.fit, _seeded())
            if when == "before":
                self.perform("Trainer.fit", callback, trainer.fit, _seeded())
