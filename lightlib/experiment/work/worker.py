"""Worker: claims attempts of an experiment, runs them on its slots, and records how they end."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.job import Job
from lightlib.experiment.ledger.attempt import Attempt, Ending
from lightlib.experiment.ledger.beats import Beats
from lightlib.experiment.ledger.ledger import Ledger, LostAttempt
from lightlib.experiment.ledger.orders import Orders, give_order, orders_of
from lightlib.experiment.ledger.queue import Queue
from lightlib.experiment.ledger.snapshot import ENDED, Snapshot
from lightlib.experiment.machine import processes
from lightlib.experiment.machine.profiling import Measured, Profiling
from lightlib.experiment.machine.slots import Slot, Slots
from lightlib.experiment.messages import Messages
from lightlib.experiment.searchers.values import value_of
from lightlib.experiment.work.checkpoints import collect
from lightlib.experiment.work.custom import CustomDecisions
from lightlib.experiment.work.decisions import Decisions
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.logs import LogFile
from lightlib.experiment.work.results import described
from lightlib.experiment.work.trial import End, TrialHere

PRIORITY = 42  # of an experiment that has none
_MOST_INVALID = 100  # so many trials with hyperparameters that do not fit, and none that do, end an experiment
EXCLUDED, LABELS = "excluded", "labels"
Show = Callable[[str], None]
NewJob = Callable[[Attempt, Snapshot, Sequence[Slot]], Job]


class Worker:
    """Runs the trials of one experiment on this machine, as `Scheduler` asks it to.

    Any number of workers share the same ledger.

    Args:
        config: The experiment.
        folder: Of the experiment.
        ledger: Of the experiment.
        queue: Gives the next attempt.
        beats: Signs of life of this worker's attempts.
        slots: Of this machine.
        decisions: At the rungs of trials, or of the user's own searcher.
        new_job: Returns what the process of an attempt needs, given the ledger and the number of its slots.
        show: Gets a line for each event.
        grace: Seconds after which other workers take this one for dead; it shows a sign of life six times as often.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        folder: ExperimentFolder,
        ledger: Ledger,
        queue: Queue,
        beats: Beats,
        slots: Slots,
        decisions: Decisions | CustomDecisions,
        new_job: NewJob,
        show: Show,
        grace: float = 60.0,
    ) -> None:
        self._config, self._folder, self._ledger, self._queue = config, folder, ledger, queue
        self._beats, self._slots, self._decisions = beats, slots, decisions
        self._searcher = decisions if isinstance(decisions, CustomDecisions) else None  # that of the user
        self._new_job, self._show, self._interval = new_job, show, grace / 6
        self._here: list[TrialHere] = []
        self._orders = Orders()  # at the last look
        self._idle = False  # whether it was shown that nothing runs
        self._warned = set[str]()  # warnings of trials that were shown
        self._stopping = 0  # how often the user has asked to stop
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="lightlib beats", daemon=True)

    @property
    def turn(self) -> tuple[int, float]:
        """Its place among the workers with the same slots, the smallest first: the priority, and its share of slots."""
        resources = self._config.resources
        used = sum(max(len(trial.slots), 1) for trial in self._here)
        return resources.priority or PRIORITY, used / resources.weight

    @property
    def runs(self) -> bool:
        """Whether a trial runs here."""
        return bool(self._here)

    @property
    def handles(self) -> list[Any]:
        """An object for each process of a trial, which is ready once it has ended."""
        return [trial.running.ended for trial in self._here if trial.running.ended is not None]

    def stop(self) -> None:
        """Claim nothing more and interrupt the trials; called again, kill them. May be called by a signal handler."""
        self._stopping += 1

    def begin(self) -> None:
        """Prepare the start of trials, and leave signs of life from now on."""
        warm_up(self._config)
        self._heart.start()
        if self._config.profiling.enabled:
            Profiling(self._measured, self._ended, self._show).start()

    def close(self) -> None:
        """Kill the trials that still run, and leave no more signs of life."""
        self._ended.set()
        for trial in self._here:
            trial.kill()
        self._heart.join()

    # claims
    def read_ledger(self) -> bool:
        """Read the orders of the user, and let a custom searcher act; return whether attempts may be claimed."""
        self._orders = orders_of(self._ledger)
        if self._searcher is not None and not self._orders.is_over:
            self._searcher.look()
        return self._orders.experiment == "run"

    def claim(self) -> bool:
        """Claim an attempt, if there are slots for it, and start it; return whether there was one."""
        count = self._config.resources.slots_per_trial
        full = count == 0 and len(self._here) >= self._slots.total
        if self._stopping or full:
            return False
        slots = self._slots.take(count)
        if slots is None:
            return False
        attempt = self._queue.next(patient=not self._here)
        if attempt is None or self._is_over(attempt):
            self._slots.give_back(slots)
        else:
            self._begin(attempt, slots)
        return attempt is not None

    def is_done(self) -> bool:
        """Whether there is nothing left to do, given the ledger and that nothing can be claimed."""
        if self._stopping:
            return not self._here
        return not self._here and (self._orders.is_over or self._queue.is_done())

    def show_idle(self) -> None:
        """Show once, until another trial begins, why nothing runs here."""
        if not self._idle:
            paused = "paused: `lightlib experiment resume` continues it"
            rest = "nothing to do here: the remaining trials run on other workers, or wait for another machine"
            self._show(paused if self._orders.experiment == "pause" else rest)
        self._idle = True

    def leave(self) -> None:
        """Leave the rest to other workers."""
        if self._searcher is not None:
            self._searcher.close()

    def _is_over(self, attempt: Attempt) -> bool:
        """Whether there is nothing to train in a claimed attempt; such a one is ended."""
        try:
            self._catch_up(attempt)
            ordered = self._orders.of(attempt.trial) != "run"
            decided = "canceled" if ordered else self._request(attempt.trial)
            if decided is not None:  # by the user, or by a worker that died before the trial ended
                self._ledger.end(attempt, decided)
        except LostAttempt:  # this worker was taken for dead since the claim
            return True
        return decided is not None

    def _request(self, trial: int) -> Ending | None:
        return None if self._searcher is None else self._searcher.request(trial)

    def _begin(self, attempt: Attempt, slots: Sequence[Slot]) -> None:
        job = self._new_job(attempt, self._ledger.snapshot(), slots)
        where = ", ".join(f"{slot.kind} {slot.number}" for slot in slots)
        Messages(Path(job.folder)).send(
            "slots", names=where
        )  # before its process, which alone writes there from now on
        running = processes.start(job, max(len(slots), 1))
        log = LogFile(running.output, Path(job.folder) / "log.txt", self._config.log_policies)
        log.start()
        here = TrialHere(attempt, job, running, slots, log)
        self._here.append(here)
        self._idle = False
        values = described(job.hparams)
        self._show(f"{here.name}: running{f' on {where}' if where else ''}{f' with {values}' if values else ''}")

    def _catch_up(self, attempt: Attempt) -> None:
        """Report the validations of earlier attempts that a dead worker has not read; they are not repeated."""
        snapshot = self._ledger.snapshot()
        steps = {step for earlier in snapshot.chains[attempt.trial] for step in earlier.reports}
        for folder in self._folder.attempts(attempt.trial):
            for step, values in self._validations(Messages(folder).new()):
                if step not in steps:
                    self._ledger.report(attempt, step, *values)
                    steps.add(step)

    def _validations(self, messages: Iterable[dict[str, Any]]) -> Iterator[tuple[int, list[float]]]:
        """Yield step and values of the searcher's metrics, as storages keep them."""
        names, directions = self._config.searcher.metrics, self._config.searcher.directions
        for message in messages:
            values = message["metrics"] if message["kind"] == "validated" else {}
            if all(name in values for name in names):
                stored = [_stored(values[name], smaller) for name, smaller in zip(names, directions, strict=True)]
                yield message["step"], stored

    # events
    def look(self) -> bool:
        """Read the messages of the trials, and end those that are over; return whether there were any."""
        ended = False
        for trial in list(self._here):
            trial.messages(self._take)
            order = self._orders.of(trial.attempt.trial)
            if trial.is_lost or self._stopping > 1 or order == "kill" or self._is_late(trial):
                trial.kill()
            elif self._stopping or order != "run" or self._request(trial.attempt.trial) is not None:
                trial.interrupt()
            ended |= self._end_if_over(trial)
        return ended

    def _is_late(self, trial: TrialHere) -> bool:
        limit = self._config.preemption_timeout
        return trial.stopped_at is not None and time.monotonic() - trial.stopped_at > limit

    def _take(self, trial: TrialHere, message: dict[str, Any]) -> None:
        try:
            for step, values in self._validations([message]):
                self._show(f"{trial.name}: {self._named(values)} after {step:,} batches")
                self._ledger.report(trial.attempt, step, *values)
            if message["kind"] == "warned" and message["text"] not in self._warned:
                self._warned.add(message["text"])
                self._show(f"{trial.name}: {message['text']}")
            if message["kind"] == "rung":
                self._decisions.answer(trial, message)
        except LostAttempt:
            trial.lose()

    def _end_if_over(self, trial: TrialHere) -> bool:
        end = trial.end()
        if end is None:
            return False
        trial.messages(self._take)
        self._here.remove(trial)
        self._slots.give_back(trial.slots)
        if trial.is_lost:
            self._show(f"{trial.name}: was continued by another worker, which took this one for dead")
            return True
        value = self._value(trial.attempt)
        if end.reason == "completed" and value is None:
            trial.miss_metric()
            end = End("canceled")
        try:
            self._end(trial, end.reason, end.text, value)
            self._collect(trial.attempt.trial)
        except LostAttempt:
            self._show(f"{trial.name}: was continued by another worker, which took this one for dead")
        error = trial.unlogged or (self._only_invalid(end.text) if end.reason == "invalid" else None)
        if error is not None:
            give_order(self._ledger, "cancel", text=error["what"])
            raise MisconfigurationException(**error)
        return True

    def _only_invalid(self, last: str) -> dict[str, str] | None:
        """Return an error once many trials have ended, and all of them because their hyperparameters do not fit."""
        snapshot = self._ledger.snapshot()
        states = Counter(map(snapshot.state_of, snapshot.chains))
        if states["invalid"] < _MOST_INVALID or states.keys() - {"invalid", "waiting", "running"}:
            return None
        return {
            "what": f"All {states['invalid']} trials that ended raised InvalidHP, the last: {last or 'no reason'}.",
            "expected": "hyperparameters of which some fit together.",
            "fix": "a smaller space in the section hyperparameters, or a check in the model that is right.",
        }

    def _value(self, attempt: Attempt) -> list[float] | None:
        """Return the value of a trial for each metric; None without a report."""
        value = value_of(self._ledger.snapshot().chains[attempt.trial], self._config.searcher.directions)
        return value and [*value.metrics]

    def _named(self, values: Sequence[float]) -> str:
        names = self._config.searcher.metrics
        return ", ".join(f"{name} {value:.6g}" for name, value in zip(names, values, strict=True))

    def _end(self, trial: TrialHere, reason: Ending, text: str, value: list[float] | None) -> None:
        again = self._follow_policies(trial)
        if reason == "interrupted" and self._orders.of(trial.attempt.trial) in ("cancel", "kill"):
            reason = "canceled"
        if reason in ("completed", "interrupted"):
            reason = self._decisions.ended(trial, reason, value[0] if value else None)
        if reason == "completed" and value is not None:
            self._ledger.end(trial.attempt, "completed", value)
            self._show(f"{trial.name}: completed, {'best' if len(value) == 1 else 'last'} {self._named(value)}")
            return
        self._ledger.end(trial.attempt, reason, again=again)
        if reason != "failed":
            state = "paused" if reason == "interrupted" else reason
            self._show(f"{trial.name}: {state}{f': {text}' if text and reason == 'invalid' else ''}")
            return
        failures = self._ledger.snapshot().failures(trial.attempt.trial)
        limit = self._config.max_restarts
        then = f"restart {failures} of {limit}" if again and failures <= limit else "no restart"
        self._show(f"{trial.name}: {text}; {then}")

    def _collect(self, trial: int) -> None:
        """Delete the checkpoints of a trial that is not to continue, except those that the experiment keeps."""
        if self._ledger.snapshot().state_of(trial) in ENDED:
            try:
                collect(self._folder, self._config, [trial], at_end=False)
            except LightlibError as error:  # they are deleted when the experiment ends
                self._show(str(error))

    def _follow_policies(self, trial: TrialHere) -> bool:
        """Label the trial with the log policies that its output matched; return whether it may restart."""
        matched = trial.log.matched()
        names = [each.name for each in matched if each.name]
        if names:
            self._ledger.write(trial.attempt, LABELS, names)
            self._show(f"{trial.name}: its output matches {', '.join(names)}")
        if any(each.action == "exclude_node" for each in matched):
            self._ledger.write(trial.attempt, EXCLUDED, socket.gethostname())
        return not any(each.action == "cancel_retries" for each in matched)

    def _measured(self) -> list[Measured]:
        """Return the trials to measure: processes in containers are not children of this one."""
        here = list(self._here)
        return [Measured(trial.running.pid, trial.folder, trial.slots) for trial in here if not trial.job.container]

    # signs of life
    def _beat(self) -> None:
        while not self._ended.wait(self._interval):
            if self._searcher is not None:
                self._searcher.beat()
            for trial in list(self._here):
                try:
                    self._beats.send(trial.attempt)
                    lost = self._ledger.fresh(trial.attempt.id).state != "running"
                except LostAttempt:
                    lost = True
                except OSError:  # the storage does not answer: training continues
                    continue
                if lost and trial in self._here:
                    trial.lose()


def warm_up(config: ExperimentConfig) -> None:
    """Start the process from which trials are forked, if they are; it imports torch meanwhile."""
    if config.environment.preload and not config.environment.image:
        processes.warm_up()


def _stored(value: float, smaller_is_better: bool) -> float:
    """Return a value as storages keep it: NaN is the worst one."""
    if not math.isnan(value):
        return value
    return math.inf if smaller_is_better else -math.inf
