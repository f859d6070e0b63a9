"""Runs the user's own searcher in one worker, and brings the trials of every worker to its requests."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightlib.errors import MisconfigurationException, shown
from lightlib.experiment.custom import Action, Continue, Create, Pause, Searcher, SearchTrial, Shutdown, Stop
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.attempt import Attempt, Ending, Entry
from lightlib.experiment.ledger.beats import Beats
from lightlib.experiment.ledger.ledger import Ledger, LostAttempt
from lightlib.experiment.ledger.queue import Queue
from lightlib.experiment.ledger.snapshot import ENDED, Snapshot
from lightlib.experiment.searchers.custom import SEARCHER, TrialRequest, Turn, ending, reach, reached
from lightlib.experiment.space import Space
from lightlib.experiment.trial.classes import imported
from lightlib.experiment.trial.modules import first_on_path
from lightlib.experiment.work.trial import TrialHere


class Calls:
    """Calls of the user's searcher, and the turns that follow from them.

    Args:
        config: The experiment, with its seed.
        context: The folder of the user's code.
        space: Of the hyperparameters.

    Raises:
        MisconfigurationException: By each method, too: the searcher fails, or returns what cannot be done.
    """

    def __init__(self, config: ExperimentConfig, context: Path, space: Space) -> None:
        self._config, self._context, self._space = config, context, space
        self._searcher = self._built()

    def load(self, turn: Turn) -> None:
        """Restore the state of the searcher from a turn."""
        self._call("load_state_dict", turn.state)

    def first(self) -> Turn:
        """Return the first turn."""
        turn = Turn()
        self._act(turn, Snapshot([], 0), "initial_trials")
        if not turn.trials:
            raise self._wrong("initial_trials() created no trial.", "at least one Create.", "return [Create()]")
        return self._closed(turn)

    def next(self, turn: Turn, snapshot: Snapshot) -> bool:
        """Hand over the events that a turn has not handled, and change it; return whether it has changed.

        Trials are in the order of their numbers, and validations in that of their steps.

        Args:
            turn: The last one.
            snapshot: Of the ledger.
        """
        handled, changed = list(snapshot.chains)[: len(turn.trials)], False
        while sum(self._hand_over(turn, snapshot, trial) for trial in handled):  # actions may lead to events
            changed = True
        if not turn.over and turn.rests(snapshot):
            turn.end()
            changed = True
        if changed:
            self._closed(turn)
        return changed

    def _hand_over(self, turn: Turn, snapshot: Snapshot, number: int) -> bool:
        """Hand over the events of one trial; return whether there were any."""
        request, chain, state = turn.trials[number], snapshot.chains[number], snapshot.state_of(number)
        if state == "paused" and request.order == "stop":
            state = "stopped"
        if request.ended and state in (*ENDED, "paused"):
            return False
        steps = {step: metrics for attempt in chain for step, metrics in attempt.metrics.items()}
        new = sorted(step for step in steps if request.step is None or step > request.step)
        was_new, ends = not request.created, state in ENDED and not request.ended
        request.handle(new[-1] if new else request.step, state in ENDED or state == "stopped")  # it may be retried
        trial = SearchTrial(number, self._space.values(chain[0].params))
        if was_new:
            self._act(turn, snapshot, "trial_created", trial)
        for step in new:
            named = dict(zip(self._config.searcher.metrics, steps[step], strict=True))
            self._act(turn, snapshot, "validated", trial, step, named)
        if ends and state in ("completed", "stopped"):
            self._act(turn, snapshot, "ended", trial)
        elif ends:
            self._act(turn, snapshot, "ended_early", trial, state)
        return was_new or bool(new) or ends

    # actions
    def _act(self, turn: Turn, snapshot: Snapshot, method: str, *args: Any) -> None:
        if turn.over:
            return
        for action in self._call(method, *args, read=lambda actions: list(actions or ())):
            if isinstance(action, Create):
                turn.trials.append(self._new(action, len(turn.trials)))
            elif isinstance(action, Shutdown):
                turn.end(stops=True)
            elif isinstance(action, (Stop, Pause, Continue)):
                self._change(turn, snapshot, action)
            else:
                raise self._wrong(
                    f"{method}() returned {shown(action)}, which is no action.",
                    "a list of Create, Stop, Pause, Continue and Shutdown.",
                    "return [Stop(trial)]",
                )

    def _new(self, action: Create, number: int) -> TrialRequest:
        seed = self._config.reproducibility.experiment_seed
        assert seed is not None, "the stored experiment has one"
        try:
            params = self._space.numbers(action.hparams, self._space.draw_trial(seed, number))
        except MisconfigurationException as error:
            error.args = (f"The searcher {self._name} returned {action}. {error}",)
            raise
        return TrialRequest(params, until=self._until(action, action.until))

    def _change(self, turn: Turn, snapshot: Snapshot, action: Stop | Pause | Continue) -> None:
        number = action.trial.number if isinstance(action.trial, SearchTrial) else action.trial
        if type(number) is not int or not 0 <= number < len(turn.trials):
            last = len(turn.trials) - 1
            raise self._wrong(f"{action} names no trial.", f"a trial, or its number from 0 to {last}.", "Stop(trial)")
        if not isinstance(action, Continue):
            turn.trials[number].change("stop" if isinstance(action, Stop) else "pause", None)
            return
        until, there = self._until(action, action.until), reached(snapshot, number)
        if until is not None and until <= there:
            problem = f"{action} pauses the trial at a length that it has reached."
            raise self._wrong(problem, f"until above {there}, or without it.", f"Continue({number})")
        turn.trials[number].change("run", until)

    def _until(self, action: Action, until: object) -> int | None:
        length = self._config.searcher.max_length
        if until is None:
            return None
        if length is None:
            raise self._wrong(
                f"{action} has `until`, and trials have no length.",
                "searcher.max_length, in the unit of which `until` is.",
                "searcher.max_length: {epochs: 16}",
            )
        if type(until) is not int or not 1 <= until <= length.amount:
            problem = f"{action} has until={shown(until)}."
            raise self._wrong(problem, f"an int from 1 to {length.amount}, the max_length.", "Create(until=1)")
        return until if until < length.amount else None

    # the user's code
    def _built(self) -> Searcher:
        searcher, place = self._config.searcher, self._config.places.below("searcher.class_path")
        kind = imported(self._name, self._context)
        if not isinstance(kind, type) or not issubclass(kind, Searcher):
            expected = "a class that derives from lightlib.experiment.Searcher."
            place.refuse(f"is {self._name!r}, which is no Searcher.", expected, "class MySearcher(Searcher): …")
        try:
            with first_on_path(self._context):
                return kind(**searcher.init_args)
        except Exception as error:
            raise self._failed("__init__", error) from error

    def _call(self, method: str, *args: Any, read: Callable[[Any], Any] = lambda found: found) -> Any:
        try:
            with first_on_path(self._context):
                return read(getattr(self._searcher, method)(*args))
        except Exception as error:
            raise self._failed(method, error) from error

    def _closed(self, turn: Turn) -> Turn:
        """Put the state of the searcher into a turn."""
        state = self._call("state_dict")
        try:
            again = json.loads(json.dumps(state))
            wrong = [key for key in state.keys() | again.keys() if key not in again or state.get(key) != again[key]]
        except (TypeError, ValueError, AttributeError) as error:
            again, wrong = None, [str(error)]
        if wrong:
            raise self._wrong(
                f"state_dict() returned what JSON does not keep: {', '.join(map(str, wrong))} in {shown(state)}.",
                "dicts with strings as keys, lists, strings, numbers, bools and None.",
                "write `state_dict` and `load_state_dict`, which convert the rest.",
            )
        turn.keep(again, self._call("progress", read=float))
        return turn

    @property
    def _name(self) -> str:
        return str(self._config.searcher.class_path)

    def _wrong(self, problem: str, expected: str, fix: str) -> MisconfigurationException:
        return MisconfigurationException(f"The searcher {self._name}: {problem}", expected=expected, fix=fix)

    def _failed(self, method: str, error: Exception) -> MisconfigurationException:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return self._wrong(
            f"{method} raised {type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno}).",
            "a searcher that handles every event.",
            f"correct it in {self._context}; the same command then continues the search.",
        )


def check_searcher(config: ExperimentConfig, context: Path, space: Space) -> None:
    """Refuse a searcher of the user's that cannot be built, or cannot begin; the rest pass.

    Args:
        config: The experiment, with its seed.
        context: The folder of the user's code.
        space: Of the hyperparameters.

    Raises:
        MisconfigurationException: The searcher fails, or returns what cannot be done.
    """
    if config.searcher.class_path is not None:
        Calls(config, context, space).first()


class CustomDecisions:
    """The requests of the user's own searcher for the trials of a worker; one worker runs the searcher.

    The searcher is a trial of its own in the ledger (`SEARCHER`), of which its worker owns the running attempt. A
    turn is an attribute of this attempt: a worker that was taken for dead cannot write one any more. What the workers
    do follows from the last turn alone, so there is nothing to repeat or to lose when the searcher's worker dies.

    Args:
        new_calls: Returns a new searcher.
        ledger: Of the experiment.
        beats: Signs of life of the searcher's worker.
        queue: Gives the attempt to run the searcher; its source is a `SearcherSource`.
    """

    def __init__(self, new_calls: Callable[[], Calls], ledger: Ledger, beats: Beats, queue: Queue) -> None:
        self._new_calls, self._ledger, self._beats, self._queue = new_calls, ledger, beats, queue
        self._here: tuple[Attempt, Calls] | None = None  # if this worker runs the searcher
        self._turn: Turn | None = None

    def look(self) -> None:
        """Run the searcher unless another worker does, and read its last turn."""
        if self._here is None:
            self._turn = Turn.last(self._ledger)
            attempt = self._queue.next()
            if attempt is not None:
                calls = self._new_calls()
                self._turn = Turn.last(self._ledger)
                if self._turn is not None:
                    calls.load(self._turn)
                self._here = attempt, calls
        if self._here is not None:
            try:
                self._take_turn(*self._here)
            except LostAttempt:
                self._here, self._turn = None, Turn.last(self._ledger)

    def _take_turn(self, attempt: Attempt, calls: Calls) -> None:
        if self._turn is None:
            first = calls.first()
            first.write(self._ledger, attempt)
            self._turn = first
        snapshot = self._ledger.snapshot()
        if self._ledger.fresh(attempt.id).state == "ended":  # the snapshot may be the work of another worker's turn
            self._here, self._turn = None, Turn.last(self._ledger)
        elif calls.next(self._turn, snapshot):
            self._turn.write(self._ledger, attempt)

    def beat(self) -> None:
        """Leave a sign of life, if the searcher runs here."""
        here = self._here
        if here is not None:
            with suppress(LostAttempt, OSError):
                self._beats.send(here[0])

    def close(self) -> None:
        """Let another worker run the searcher."""
        here, self._here = self._here, None
        if here is not None:
            with suppress(LostAttempt):
                over = self._turn is not None and self._turn.over
                self._ledger.of_searcher().end(here[0], "stopped" if over else "interrupted")

    def request(self, trial: int) -> Ending | None:
        """Return how a trial is to end by the request of the searcher, wherever it is; None if it is to train."""
        return ending(self._turn, trial)

    def ended(self, one: TrialHere, reason: Ending, best: float | None) -> Ending:
        """Return how a trial ends that has completed or was interrupted."""
        if reason != "interrupted":
            return reason
        return ending(self._turn, one.attempt.trial) or ("paused" if one.decided else reason)

    def answer(self, one: TrialHere, message: dict[str, Any]) -> None:
        """Let a trial pause that has reached its length, or end.

        Args:
            one: The trial.
            message: With the number of the length of those of its job.

        Raises:
            LostAttempt: The attempt has ended.
        """
        if message["rung"] == len(one.job.rungs) - 1:
            one.answer(message["rung"], "complete")
        else:
            reach(self._ledger, one.attempt)
            one.pause()


class SearcherSource:
    """The source of the searcher's own trial."""

    def next_entry(self, snapshot: Snapshot) -> Entry | None:
        return None if snapshot.chains else Entry(SEARCHER)

    def is_done(self, snapshot: Snapshot) -> bool:
        return True
