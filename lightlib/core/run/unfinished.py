"""Unfinished: the hook within which a checkpoint is saved, and its completion in a resumed run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.core.module.export import set_modes
from lightlib.core.run.parts import VALIDATION
from lightlib.core.run.user_objects import owners_of
from lightlib.core.run.user_snapshot import context_of
from lightlib.core.run.user_state import Missing
from lightlib.core.run.waiting_gradients import restore_gradients, waiting_gradients
from lightlib.core.values.attributes import ABSENT, Unsaveable
from lightlib.core.values.encoding import encode
from lightlib.core.values.restoring import restored

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

# The loop calls these again where a checkpoint was written within them; the rest it has passed.
_CALLED_AGAIN = ("on_train_epoch_start", "on_train_batch_start", "on_train_epoch_end")
_AFTER_A_BATCH = ("on_train_batch_end", "on_substep_end", "on_accumulation_end")
_VALIDATED = "on_validation_end"
_HOOKS = frozenset({*_CALLED_AGAIN, *_AFTER_A_BATCH, _VALIDATED, "on_fit_epoch_end"})
_FIX = "call trainer.save_checkpoint in on_train_batch_end, after an optimizer step, in the last callback"


class Unfinished:
    """The rest of a hook, the step within which a checkpoint was written, and the gradients that wait for one.

    A checkpoint that a hook saves stands for the moment of the call. The resumed run makes the calls of the same hook
    that were still to come: those of other callbacks and of the module.
    """

    __slots__ = ("_hook", "_missing", "_run", "_saved", "batch")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._saved: Mapping[str, Any] = {}
        self._hook: tuple[str, int, tuple[Any, ...]] | None = None  # while a checkpoint is collected
        self._missing: list[Missing] = []
        self.batch: Any = None  # the encoded batch that runs, while a checkpoint is collected

    # saving
    @contextmanager
    def position(self) -> Iterator[None]:
        """Surround the collection of a checkpoint, and give it the position of the hook that saves it."""
        run = self._run
        self._missing, hook = [], run.hooks.running(_HOOKS) if run.saver.deferring else None
        self._hook = hook
        if hook is not None and hook[0] == _VALIDATED and run.evaluations.rng is not None:
            run.pass_validation()
        counted, running = False, run.saver.deferring and run.batch_running
        if running and (hook is None or hook[0] != "on_train_batch_start"):
            counted = run.optimization.window.stepped
            self._miss(
                "the batch that is running",
                "a resumed run continues with the next one, without what follows in this batch"
                if counted
                else "a resumed run repeats it, with other random numbers",
            )
        self.batch = self._encoded_batch() if running and not counted else None
        with run.progress.counting_batch(stepped=True) if counted else nullcontext():
            yield
        self._hook = self.batch = None

    def _encoded_batch(self) -> Any:
        """Return the batch that runs, as plain values and tensors; None if reading it again gives the same one."""
        run = self._run
        if run.train_data is None or run.train_data.rereads_exactly:
            return None
        try:
            return encode(run.results.train.batch, context_of(run, owners_of(run)), "batch")
        except Unsaveable as error:
            self._miss("the batch that is running, which a resumed run reads again", str(error))
            return None

    def capture(self) -> dict[str, Any]:
        """Return the state of an unfinished hook and window, as plain values and tensors; empty if there is none."""
        run, state = self._run, dict[str, Any]()
        if run.train_data is None:
            return {}
        if gradients := waiting_gradients(run):
            state["gradients"] = gradients
        if run.window_open():
            state["window"] = run.optimization.window.state_dict()
            if not gradients and run.optimization.window.taken:
                strategy_name = type(run.strategy).__name__
                self._miss(
                    "the gradients of the accumulation window", f"{strategy_name} keeps them outside of the parameters",
                    "save after an optimizer step, and let val_check_interval be a multiple of accumulate_grad_batches",
                )  # fmt: skip
        if hook := self._state_of_hook():
            state["hook"] = hook
        if self.batch is not None:
            state["batch"] = self.batch
        for missing in self._missing:
            run.user_state.note_missing(missing)
        return state

    def _state_of_hook(self) -> dict[str, Any] | None:
        if self._hook is None:
            return None
        run, (name, begun, args) = self._run, self._hook
        rest = run.hooks.owners(name)[begun:]
        hook = {"name": name, "rest": rest, "stepped": run.optimization.window.stepped, "args": []}
        if name == _VALIDATED:
            hook["metrics"] = run.results.table.metrics_of_module()
        if name == "on_train_batch_end" and rest:
            context = context_of(run, owners_of(run))
            try:
                hook["args"] = [encode(value, context, name) for value in args]
            except Unsaveable as error:
                calls = ", ".join(f"{owner}.{name}" for owner in rest)
                self._miss(f"the arguments of {calls}, which is still to be called", str(error))
                return None
        return hook

    def _miss(self, place: str, why: str, fix: str = _FIX) -> None:
        self._missing.append(Missing(place, why, fix))

    # resuming
    def restore(self, rank: Mapping[str, Any], of_this_rank: bool) -> None:
        """Set the state to continue with when training begins.

        Args:
            rank: The state of a rank in a checkpoint.
            of_this_rank: Whether it is this rank's; else that of rank zero, of which only some is common to all.
        """
        self._saved = saved = rank.get("unfinished") or {}
        if of_this_rank or not saved:
            return
        hook = saved.get("hook")
        self._saved = {"hook": hook} if hook else {}
        if hook and hook["args"]:
            calls = ", ".join(f"{owner}.{hook['name']}" for owner in hook["rest"])
            report.warn(
                f"The checkpoint was written by other ranks, before {calls} was called: the call is made with the "
                "batch of the rank zero that wrote it."
            )
        if lost := sorted(saved.keys() - self._saved.keys() - {"batch"}):
            report.warn(
                "The checkpoint was written by other ranks within an accumulation window, so these are left out: "
                f"{', '.join(lost)}."
            )

    def begin(self) -> None:
        """Continue when training begins: all objects have their states, and no batch has been read."""
        run, saved = self._run, self._saved
        if "gradients" in saved:
            restore_gradients(run, saved["gradients"])
        if "batch" in saved and run.train_data is not None:
            run.train_data.keep(restored(saved["batch"], ABSENT, context_of(run, owners_of(run))))
        if "window" in saved:
            run.optimization.window.load_state_dict(saved["window"])
        hook, self._saved = saved.get("hook"), {}
        if hook is None:
            return
        name = hook["name"]
        if name in _CALLED_AGAIN:
            run.saver.hold()
            run.hooks.leave_out(name, self._begun(hook), run.saver.release)
        elif name in _HOOKS:
            self._saved = saved
            ends = run.plan.done(run.progress) or (run.stop.is_requested and run.plan.may_stop(run.progress))
            if ends or name == "on_fit_epoch_end":
                self.complete()

    def complete(self) -> None:
        """Complete the hook when the epoch has begun: the state at its start is no longer needed."""
        hook, self._saved = self._saved.get("hook"), {}
        if hook is not None:
            self._complete(hook["name"], hook)

    def _begun(self, hook: Mapping[str, Any]) -> int:
        """Return how many of the present calls of the hook come before those that are still to be made."""
        name, now = hook["name"], self._run.hooks.owners(hook["name"])
        rest = [owner for owner in hook["rest"] if owner in now]
        begun = len(now) - len(rest)
        if now[begun:] != rest:
            report.warn(
                f"The checkpoint was written within {name}, and {', '.join(rest)} had yet to be called. These "
                f"objects define it now: {', '.join(now)}. None of them is called.\n"
                "  Expected: the callbacks in the order that they had.\n"
                "  Fix: resume with the program that wrote the checkpoint."
            )
            return len(now)
        return begun

    def _complete(self, name: str, hook: Mapping[str, Any]) -> None:
        run = self._run
        rest = run.hooks.rest(name, self._begun(hook))
        if name == _VALIDATED:
            modes = {submodule: submodule.training for submodule in run.module.modules()}
            run.module.eval()
            with run.at_stage(VALIDATION), torch.no_grad():
                rest()
            set_modes(modes)
            metrics: list[Any] = [run.module.get_submodule(attribute) for attribute in hook.get("metrics", ())]
            for metric in metrics:
                metric.reset()
            run.end_validation()
        elif name in _AFTER_A_BATCH:
            context = context_of(run, owners_of(run))
            args = [restored(value, ABSENT, context) for value in hook["args"]]
            run.complete_batch(name, rest, args, bool(hook["stepped"]))
        else:
            rest()
