"""A worker that trains nothing: its trials count, report and leave checkpoints."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import optuna

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.beats import BeatFiles, BeatRows, Watch, this_process
from lightlib.experiment.ledger.ledger import Ledger, LostAttempt
from lightlib.experiment.ledger.queue import Queue
from lightlib.experiment.ledger.storage import Patience, is_database, open_storage
from lightlib.experiment.searchers.brackets import Bracket
from lightlib.experiment.searchers.halving import Halving
from lightlib.experiment.searchers.plain import Plain

LENGTHS, DIVISOR, UNIT = (2, 4, 8), 2, 0.02


def score(trial, step):
    """The metric of a trial after so many units: the same in every attempt."""
    return (trial * 37 % 101) / 101 + 1 / (1 + step)


def fails(trial, attempt):
    """Every seventh trial fails by itself, twice."""
    return trial % 7 == 3 and attempt < 2


def source_of(settings):
    new = lambda trial, snapshot: Entry(trial, more={"rung": 0})  # noqa: E731
    trials, concurrency = settings["trials"], settings["concurrency"]
    if settings["search"] == "plain":
        return Plain(trials, concurrency, new)
    halves = [trials - trials // 3, trials // 3]
    brackets = [
        Bracket(LENGTHS, halves[0], -(-concurrency // 2)),
        Bracket(LENGTHS[1:], halves[1], max(concurrency // 2, 1)),
    ]
    return Halving(brackets, DIVISOR, new, settings["search"])


class Worker:
    """Claims attempts until the experiment has ended, and runs them in its own process."""

    def __init__(self, folder, settings, storage):
        self.folder, self.settings = folder, settings
        self.ledger = Ledger(storage, "experiment", max_restarts=3, patience=Patience(120))
        database = is_database(settings["storage"])
        self.beats = BeatRows(self.ledger) if database else BeatFiles(folder)
        watch = Watch(self.beats, settings["grace"])
        self.source = source_of(settings)
        owner = this_process() if settings["same_machine"] else {}
        self.queue = Queue(self.ledger, watch, self.source, owner)

    def run(self):
        while True:
            attempt = self.queue.next()
            if attempt is not None:
                self.work(attempt)
            elif self.queue.is_done():
                return
            else:
                time.sleep(0.05)

    def work(self, attempt):
        stop, lost = threading.Event(), threading.Event()

        def beat():
            while not stop.wait(self.settings["grace"] / 5):
                try:
                    self.beats.send(attempt)
                except LostAttempt:
                    lost.set()
                if self.ledger.fresh(attempt).state != "running":
                    lost.set()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            self.train(attempt, lost)
        except LostAttempt:
            self.note("lost", attempt)
        finally:
            stop.set()
            thread.join()

    def train(self, attempt, lost):
        snapshot = self.ledger.snapshot()
        step = max((self.checkpoint(one.number) for one in snapshot.chains[attempt.trial]), default=0)
        self.note("begin", attempt, step)
        while True:
            action = self.action(attempt, step)
            if action != "train":
                reason = {"complete": "completed", "stop": "stopped", "pause": "paused"}[action]
                self.ledger.end(attempt, reason, score(attempt.trial, step) if action == "complete" else None)
                return self.note("end", attempt, reason)
            if lost.is_set():
                return self.note("lost", attempt)
            time.sleep(UNIT)
            step += 1
            if step == 3 and fails(attempt.trial, self.ledger.snapshot().failures(attempt.trial)):
                return self.ledger.end(attempt, "failed")
            path = self.folder / "checkpoints" / str(attempt.number)
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".new").write_text(str(step))
            path.with_suffix(".new").rename(path)
            self.note("unit", attempt, step)
            self.ledger.report(attempt, step, score(attempt.trial, step))

    def action(self, attempt, step):
        """Return the decision after so many units: train on, or end in one of three ways."""
        if isinstance(self.source, Plain):
            return "complete" if step >= LENGTHS[-1] else "train"
        course = self.source.course(self.ledger.snapshot(), attempt.trial)
        if course.action not in (None, "train"):
            return course.action
        if step < self.source.length(course):
            return "train"
        return self.source.decide(self.ledger, attempt, score(attempt.trial, step))

    def checkpoint(self, number):
        try:
            return int((self.folder / "checkpoints" / str(number)).read_text())
        except FileNotFoundError:
            return 0

    def note(self, what, attempt, value=None):
        line = json.dumps([what, attempt.number, attempt.trial, value, os.getpid(), time.time()]) + "\n"
        with (self.folder / "events").open("ab", buffering=0) as file:
            file.write(line.encode())


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    place = Path(sys.argv[1])
    read = json.loads((place / "settings.json").read_text())
    with open_storage(read["storage"], Patience(120)) as opened:
        Worker(place, read, opened).run()
