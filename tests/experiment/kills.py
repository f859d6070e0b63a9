"""Starts workers, kills and freezes them at random instants, and checks the ledger at the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.storage import open_storage
from lightlib.experiment.searchers import promoting
from lightlib.experiment.searchers.halving import Halving
from tests.experiment.search_program import DIVISOR, LENGTHS, score, source_of

ROOT = Path(__file__).parents[2]


class Runs:
    """Workers of one experiment.

    Args:
        folder: Of the experiment.
        settings: What the program reads.
        workers: How many.
        seed: Of the instants and the victims.
    """

    def __init__(self, folder, settings, workers, seed):
        self.folder, self.settings, self.workers = folder, settings, workers
        self.random, self.killed, self.frozen, self.failed = random.Random(seed), 0, 0, []
        (folder / "settings.json").write_text(json.dumps(settings))

    def start(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.experiment.search_program", str(self.folder)]
        with (self.folder / "errors").open("ab") as errors:
            return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=errors, start_new_session=True)

    def run(self, kills, every, limit, also=()):
        """Kill `kills` times, about every `every` seconds of work; return once all workers have ended by themselves.

        Args:
            also: Pairs of a number of kills and a function that is called once there were so many.
        """
        processes, also = [self.start() for _ in range(self.workers)], list(also)
        thaw, due, began = [], time.monotonic() + every, time.monotonic()
        try:
            while any(one.poll() != 0 for one in processes):
                assert time.monotonic() - began < limit, f"not done after {limit} s: {self.report()}"
                if self.killed < kills and time.monotonic() > due and (self.folder / "events").exists():
                    due = time.monotonic() + every * self.random.uniform(0.2, 1.8)
                    thaw += self.hurt([one for one in processes if one.poll() is None])
                while also and self.killed >= also[0][0]:
                    also.pop(0)[1]()
                for one, moment in [pair for pair in thaw if time.monotonic() > pair[1]]:
                    thaw.remove((one, moment))
                    one.send_signal(signal.SIGCONT)
                for number, one in enumerate(processes):
                    if one.poll() not in (None, 0):
                        if one.returncode != -signal.SIGKILL:
                            self.failed.append(one.returncode)
                            assert len(self.failed) < 5, self.report()
                        processes[number] = self.start()
                time.sleep(0.02)
        finally:
            for one in processes:
                if one.poll() is None:
                    one.kill()
                one.wait(60)

    def hurt(self, living):
        """Freeze one worker, kill one, or kill all; return the frozen one and the instant to thaw it."""
        if not living:
            return []
        choice, victim = self.random.random(), self.random.choice(living)
        if choice < 0.2:
            victim.send_signal(signal.SIGSTOP)
            self.frozen += 1
            return [(victim, time.monotonic() + self.settings["grace"] * self.random.uniform(0.5, 2.5))]
        for one in living if choice > 0.9 else [victim]:
            one.send_signal(signal.SIGKILL)
        self.killed += 1
        return []

    def report(self):
        return (self.folder / "errors").read_text()[-3000:] if (self.folder / "errors").exists() else ""

    # at the end
    def problems(self):
        """Return the faults, one text each, and the figures of the run."""
        settings, source = self.settings, source_of(self.settings)
        with open_storage(settings["storage"]) as storage:
            snapshot = Ledger(storage, "experiment").snapshot()
        states = {trial: snapshot.state_of(trial) for trial in snapshot.chains}
        wrong = [f"a worker ended with status {status}" for status in self.failed]
        if len(states) != settings["trials"]:
            wrong.append(f"{len(states)} trials")
        allowed = {
            "plain": {"completed"},
            "stopping": {"completed", "stopped"},
            "promoting": {"completed", "paused"},
            "synchronous": {"completed", "paused"},
        }
        wrong += [
            f"trial {trial} is {state}" for trial, state in states.items() if state not in allowed[settings["search"]]
        ]
        wrong += [f"attempt {one.number} is {one.state}" for one in snapshot.attempts if one.state != "ended"]
        for trial, chain in snapshot.chains.items():
            finals = [one.ended_as for one in chain if one.ended_as in ("completed", "stopped")]
            if len(finals) > 1:
                wrong.append(f"trial {trial} ended twice: {finals}")
            for one in chain:
                wrong += [
                    f"trial {trial} reported {value} at {step}"
                    for step, value in one.reports.items()
                    if value != score(trial, step)
                ]
                if one.ended_as == "completed" and one.value != score(trial, LENGTHS[-1]):
                    wrong.append(f"trial {trial} completed with {one.value}")
        if isinstance(source, Halving):
            wrong += rung_problems(snapshot, source)
        wrong += self.crowds(settings["concurrency"])
        attempts = Counter(one.ended_as for one in snapshot.attempts)
        return wrong, {
            "kills": self.killed,
            "frozen": self.frozen,
            "attempts": dict(attempts),
            **Counter(states.values()),
        }

    def crowds(self, most):
        """Return the first moment at which more attempts ran than may, by the lines that they wrote."""
        path = self.folder / "events"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        running, wrong = {}, []
        for what, number, _, _, process, _ in events:
            running = {one: owner for one, owner in running.items() if owner != process}
            if what in ("begin", "unit"):
                running[number] = process
            if len(running) > most + self.killed + self.frozen:
                wrong.append(f"{len(running)} at once")
        return wrong[:1]


def rung_problems(snapshot, source):
    """Return the faults of rungs: scores that differ from the trial's, and promotions that are owed."""
    wrong = []
    courses = {trial: source.course(snapshot, trial) for trial in snapshot.chains}
    for trial, course in courses.items():
        lengths = source.brackets[course.bracket].lengths
        for rung in range(course.rung + 1):
            found = snapshot.attribute(trial, f"score:{rung}")
            if found != score(trial, lengths[rung]):
                wrong.append(f"trial {trial} has {found} in rung {rung}")
    for number, bracket in enumerate(source.brackets):
        own = {trial: course for trial, course in courses.items() if course.bracket == number}
        if len(own) != bracket.trials:
            wrong.append(f"bracket {number} has {len(own)} trials")
        rungs = [
            {trial: snapshot.attribute(trial, f"score:{rung}") for trial, course in own.items() if course.rung >= rung}
            for rung in range(len(bracket.lengths))
        ]
        if snapshot.chains and any(snapshot.state_of(trial) == "paused" for trial in own):
            reaching = {trial: course.rung for trial, course in own.items()}
            wrong += [
                f"trial {trial} is owed rung {rung}" for trial, rung in promoting.due(rungs, reaching, (), DIVISOR)
            ]
    return wrong
