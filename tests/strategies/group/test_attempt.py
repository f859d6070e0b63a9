"""Attempts: after any processes are killed at any time, their replacements agree."""

from __future__ import annotations

import json
import random
import threading
import time
from datetime import timedelta

import pytest
from torch import distributed

from lightlib.errors import LightlibError
from lightlib.launch.environment.detect import Environment
from lightlib.launch.watch.board import Board
from lightlib.strategies.group import attempt
from lightlib.strategies.group.attempt import agree_on_attempt, ended_if_replaced
from lightlib.strategies.group.waiting import Waiting

LONG = timedelta(hours=1)
SHORT = timedelta(seconds=0.2)
ENOUGH = 20_000  # operations of the store: only ranks that wait for each other for ever need so many


def place(rank, size):
    return Environment("torchrun", rank=rank, world_size=size, local_rank=rank, local_size=size, launched=True)


def agree(store, rank, size, patience=LONG):
    return agree_on_attempt(store, place(rank, size), Waiting(place(rank, size), patience, 3600.0))


class KilledError(BaseException):
    """A SIGKILL, as a simulated process sees it."""


class Machine:
    """A store, and processes that take turns: the next operation is drawn at random, one at a time.

    A process that is killed in a `set` may have done it, or not, or the message arrives later.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.values = {}
        self.processes = []
        self.late = []
        self.operations = self.restarts = 0

    def start(self, rank, size):
        process = Process(self, rank, size)
        self.processes.append(process)
        process.thread.start()
        process.rested.acquire()
        return process

    def kill(self, process):
        """End a process where it is: before, in or after its next operation."""
        if process.alive:
            process.killed = True
            process.go()
        self.processes.remove(process)

    def turn(self):
        """Let one process do one operation."""
        self.operations += 1
        assert self.operations < ENOUGH, f"no agreement: {self.values}"
        if self.late and self.rng.random() < 0.1:
            key, value = self.late.pop(self.rng.randrange(len(self.late)))
            self.values[key] = value
        self.rng.choice([process for process in self.processes if process.alive]).go()

    def until_all_agree(self):
        """Run, and restart each process that its attempt ends, until all share a final attempt."""
        while True:
            for process in list(self.processes):
                if not process.alive:
                    assert process.error is None, process.error
                    self.processes.remove(process)
                    self.start(process.rank, process.size)
                    self.restarts += 1
            names = {process.name for process in self.processes}
            if len(names) == 1 and names != {None} and not self.ended(*names):
                return names.pop()
            self.turn()

    def ended(self, name):
        return f"lightlib/watch/{name}/failure" in self.values

    def close(self):
        for process in list(self.processes):
            self.kill(process)


class Process:
    """One rank, and its view of the store: agrees on an attempt and stays until it is replaced.

    Attributes:
        name: Of the attempt, once there is one.
    """

    def __init__(self, machine, rank, size):
        self.machine, self.rank, self.size = machine, rank, size
        self.name = self.error = None
        self.alive, self.killed = True, False
        self.may, self.rested = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            self.name = agree(self, self.rank, self.size)
            board = Board.of_watches(self, self.name)
            while board.read("failure") is None:
                pass
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001  shown by the test
            self.error = error
        finally:
            self.alive = False
            self.rested.release()

    def go(self):
        self.may.release()
        self.rested.acquire()
        if not self.alive:
            self.thread.join()

    def wait_for_turn(self):
        self.rested.release()
        self.may.acquire()
        if self.killed:
            raise KilledError

    def clone(self):
        return self

    def check(self, keys):
        self.wait_for_turn()
        return all(key in self.machine.values for key in keys)

    def get(self, key):
        self.wait_for_turn()
        return self.machine.values[key].encode()

    def set(self, key, value):
        try:
            self.wait_for_turn()
        except KilledError:
            arrives = self.machine.rng.choice(["", "now", "later"])
            if arrives == "now":
                self.machine.values[key] = value
            elif arrives:
                self.machine.late.append((key, value))
            raise
        self.machine.values[key] = value

    def compare_set(self, key, expected, desired):
        self.wait_for_turn()
        return self.machine.values.setdefault(key, desired).encode()

    def add(self, key, amount):
        self.wait_for_turn()
        self.machine.values[key] = str(int(self.machine.values.get(key, "0")) + amount)
        return int(self.machine.values[key])


@pytest.fixture
def machine(monkeypatch, request):
    """A machine; the processes on it, which are threads, share no memory of the attempts they were in."""
    monkeypatch.setattr(attempt, "_own", Forgetful())
    monkeypatch.setattr(Waiting, "pause", lambda self: None)
    found = Machine(request.param)
    yield found
    found.close()


class Forgetful(set):
    def add(self, name):
        pass


seeds = lambda number: pytest.mark.parametrize("machine", range(number), indirect=True)  # noqa: E731


def names_in(machine):
    return {key.split("/")[1] for key in machine.values if key.endswith("/members")}


@seeds(40)
def test_all_are_killed_and_started_again(machine):
    """One machine: the agent kills the rest of an attempt, then starts all, in any order and speed."""
    earlier = set()
    for _ in range(4):
        size = machine.rng.randint(1, 3)
        ranks = list(range(size))
        machine.rng.shuffle(ranks)
        for rank in ranks:
            machine.start(rank, size)
            for _ in range(machine.rng.choice([0, 0, 3, 30])):
                machine.turn()
        if machine.rng.random() < 0.7:  # killed on the way
            for _ in range(machine.rng.randrange(60)):
                machine.turn()
        else:
            machine.until_all_agree()
        earlier |= names_in(machine)
        for process in list(machine.processes):
            machine.kill(process)
    for rank in (1, 2, 0):
        machine.start(rank, 3)
    assert machine.until_all_agree() not in earlier
    assert machine.restarts == 0  # none was in an attempt that is over, even for a moment


@seeds(40)
def test_one_after_the_other_is_killed_and_started_again_while_the_others_stay(machine):
    """Several machines, static: an agent restarts only its own ranks; the attempt notifies the rest."""
    for rank in range(3):
        machine.start(rank, 3)
    for _ in range(6):
        for _ in range(machine.rng.randrange(60)):
            machine.turn()
        victim = machine.rng.choice(machine.processes)
        machine.kill(victim)
        machine.start(victim.rank, 3)
        for process in list(machine.processes):
            if not process.alive:
                machine.processes.remove(process)
                machine.start(process.rank, 3)
    name = machine.until_all_agree()
    assert len(json.loads(machine.values[f"lightlib/{name}/members"])) == 3


@pytest.mark.parametrize("machine", [0], indirect=True)
def test_a_rank_does_not_join_an_attempt_whose_rank_0_was_killed_in_the_meantime(machine):
    other, first = machine.start(1, 2), machine.start(0, 2)
    while not machine.values.get("lightlib/attempt"):
        first.go()
    while not any("/here/" in key for key in machine.values):
        other.go()
    while first.name is None:
        first.go()
    machine.kill(first)
    second = machine.start(0, 2)
    while machine.values["lightlib/attempt"].startswith(first.name):
        second.go()
    assert machine.until_all_agree() == second.name
    assert machine.restarts == 0


@seeds(20)
def test_ranks_and_the_number_of_processes_change(machine):
    """Elastic: a lost machine's processes live on for a while; the remaining processes change ranks."""
    old = [machine.start(rank, 2) for rank in range(2)]
    for _ in range(machine.rng.randrange(80)):
        machine.turn()
    machine.kill(old[0])
    lost = old[1]
    machine.processes.remove(lost)  # not restarted
    machine.start(0, 1)
    alone = machine.until_all_agree()
    for _ in range(20):
        if lost.alive:
            lost.go()
    assert lost.name != alone
    lost.killed = True
    while lost.alive:
        lost.go()
    for process in list(machine.processes):
        machine.kill(process)
    for rank in (1, 0):
        machine.start(rank, 2)
    assert machine.until_all_agree() not in (alone, lost.name)


def test_the_same_processes_may_meet_a_second_time():
    """A program may take its process group apart and make another one."""
    store = distributed.HashStore()
    first = agree(store, 0, 1)
    second = agree(store, 0, 1)
    assert first != second
    assert Board.of_watches(store, first).read("failure") is None


def test_who_has_not_come_is_named():
    store = distributed.HashStore()
    with pytest.raises(LightlibError, match=r"Rank 0 has waited 0\.2 s for 2 of the 3 processes at .*: rank 1, 2\."):
        agree(store, 0, 3, SHORT)
    with pytest.raises(LightlibError, match=r"Rank 2 has waited 0\.2 s for 1 of the 3 processes at .*: rank 1\."):
        agree(store, 2, 3, SHORT)  # rank 0's name is there, so rank 0 may be alive
    with pytest.raises(LightlibError, match=r"Rank 1 has waited 0\.2 s for rank 0 at "):
        agree(distributed.HashStore(), 1, 3, SHORT)


def test_a_process_within_torch_is_ended_when_another_of_its_attempt_was_restarted(monkeypatch):
    store, ended = distributed.HashStore(), []
    monkeypatch.setattr(attempt, "end_process", ended.append)
    monkeypatch.setattr(attempt, "_SECONDS_BETWEEN_LOOKS", 0.001)
    monkeypatch.setattr(attempt, "_own", Forgetful())
    name = agree(store, 0, 1)
    with ended_if_replaced(store, name, 0):
        agree(store, 0, 1)
        while not ended:
            time.sleep(0.001)
    assert ended[0] == "Rank 0 was restarted, so its process in this attempt is gone."
