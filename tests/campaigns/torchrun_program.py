"""The program of the torchrun campaign: in each attempt, one of its ranks kills itself."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lightlib.callbacks import Callback
from lightlib.strategies.group import attempt, rendezvous
from tests.campaigns import phases, program

EVENTS = ("agreement", "group", "setup", "save", *phases.EVENTS)


@dataclass(frozen=True)
class Kill:
    """The place where a rank kills itself.

    Attributes:
        rank: Which one.
        event: One of `EVENTS`, before it happens for the `count`-th time; or "instant".
        count: From 1; for "instant" milliseconds after the start.
    """

    rank: int
    event: str
    count: int

    def __str__(self) -> str:
        when = f"after {self.count} ms" if self.event == "instant" else f"before {self.event} {self.count}"
        return f"rank {self.rank} {when}"


class Killed:
    """Counts the events of this process, and kills it at one of them.

    Args:
        notes: Folder for the campaign's files: the number of times each event occurred, and the kill if it hit.
        rank: Rank of this process.
        number: Number of this attempt.
        kill: The kill of this attempt; None if it runs to its end.
    """

    def __init__(self, notes: Path, rank: int, number: int, kill: Kill | None) -> None:
        self.notes, self.rank, self.number = notes, rank, number
        self.kill = kill if kill is not None and kill.rank == rank else None
        self.counts = dict.fromkeys(EVENTS, 0)
        if self.kill is not None and self.kill.event == "instant":
            timer = threading.Timer(self.kill.count / 1000, self.now)
            timer.daemon = True
            timer.start()

    def event(self, name: str, after: bool = False) -> None:
        """Count an event that is about to happen."""
        if after:
            return
        self.counts[name] += 1
        if self.kill is not None and (self.kill.event, self.kill.count) == (name, self.counts[name]):
            self.now()

    def now(self) -> None:
        """Kill this process."""
        (self.notes / f"killed{self.number}").write_text(str(self.kill))
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self) -> None:
        """Write down how often each event has happened."""
        (self.notes / f"counts{self.rank}.json").write_text(json.dumps(self.counts))


class Store:
    """A store that counts each use by the agreement as an event.

    Args:
        store: The store.
        event: Called before each use.
    """

    def __init__(self, store: Any, event: Callable[[str], None]) -> None:
        self._store, self._event = store, event

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any) -> Any:
            self._event("agreement")
            return method(*args)

        return call


class TellsMore(Callback):
    """Reports events before and between batches on every rank."""

    def __init__(self, event: Callable[[str], None]) -> None:
        self.event = event

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.event("setup")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.event("setup")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.event("setup")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.event("save")


def tell_of_the_rendezvous(killed: Killed) -> None:
    """Count the events before there is a process group."""
    agree, join = attempt.agree_on_attempt, distributed.init_process_group

    def agreeing(store: Any, *args: Any) -> str:
        name = agree(Store(store, killed.event), *args)
        killed.event("agreement")
        return name

    def joining(*args: Any, **kwargs: Any) -> None:
        killed.event("group")
        join(*args, **kwargs)
        killed.event("group")

    rendezvous.agree_on_attempt = agreeing
    distributed.init_process_group = joining


def tell_of_the_run(killed: Killed, where: Path) -> None:
    """Count the events in the program of the campaigns."""
    phases.watch(phases.Board(killed.rank + 1), killed.rank, where, None)
    phases.event = killed.event
    before = program.callbacks
    program.callbacks = lambda how, folder: [TellsMore(killed.event), *before(how, folder)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", type=Path)
    parser.add_argument("name", help="of the configuration")
    parser.add_argument("kills", type=json.loads, help="one for each attempt")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rank, number = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    kills = [Kill(**kill) for kill in given.kills]
    notes = given.where.parent / f"{given.where.name}.notes"
    notes.mkdir(parents=True, exist_ok=True)
    killed = Killed(notes, rank, number, kills[number] if number < len(kills) else None)
    tell_of_the_rendezvous(killed)
    tell_of_the_run(killed, given.where)
    program.main(program.Configuration.named(given.name), given.where)
    killed.write()


def as_argument(kills: list[Kill]) -> str:
    """Return kills as `main` reads them."""
    return json.dumps(list(map(asdict, kills)))


if __name__ == "__main__":
    main()
