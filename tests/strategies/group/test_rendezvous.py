"""The rendezvous of the processes: the error names a missing rank."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from torch import distributed

from lightlib.errors import LightlibError
from lightlib.launch.environment.environment import Environment, free_port
from lightlib.strategies.group import rendezvous
from lightlib.strategies.group.rendezvous import meeting_place, prefix_of_attempt, wait_for_all

SHORT = timedelta(seconds=0.2)
LONG = timedelta(hours=1)  # never reached: the test would time out first


def place(rank, size=3):
    return Environment(
        "mine", rank=rank, world_size=size, local_size=size, address="10.0.0.7", port=29500, launched=True
    )


def test_all_have_come():
    store = distributed.HashStore()

    def come_late():
        store.wait(["lightlib/here/0"], LONG)
        wait_for_all(store, place(1, 2), LONG)

    late = threading.Thread(target=come_late)
    late.start()
    wait_for_all(store, place(0, 2), LONG)
    assert store.check(["lightlib/here/1"])
    late.join()


def test_two_processes_of_one_rank_are_told_apart(monkeypatch):
    """Two runs at one port, or a process that was restarted while the other ranks stayed."""
    store = distributed.HashStore()
    for _ in range(2):  # the same process may come again
        with pytest.raises(LightlibError, match="rank 1"):
            wait_for_all(store, place(0, 2), SHORT)
    monkeypatch.setattr(rendezvous, "_MARK", "another")
    with pytest.raises(
        LightlibError, match=r"Rank 0 has come to 10\.0\.0\.7:29500 before: process \d+ of (.|\n)*MASTER_PORT"
    ):
        wait_for_all(store, place(0, 2), SHORT)


def test_who_has_not_come_is_named():
    store = distributed.HashStore()
    store.set("lightlib/here/1", "")
    with pytest.raises(LightlibError) as caught:
        wait_for_all(store, place(0, 4), SHORT)
    message = str(caught.value)
    assert "Rank 0 has waited 0.2 s for 2 of the 4 processes at 10.0.0.7:29500: rank 2, 3." in message
    assert "WORLD_SIZE" in message
    assert "timeout" in message


class Counted:
    """A store, and the number of requests to it."""

    def __init__(self, store):
        self.store, self.requests = store, 0

    def __getattr__(self, name):
        self.requests += 1
        return getattr(self.store, name)


@pytest.mark.parametrize("size", [10, 100])
def test_the_requests_of_a_rank_do_not_grow_with_the_ranks(size):
    store = distributed.HashStore()
    for rank in range(1, size):
        with pytest.raises(LightlibError, match="processes at"):
            wait_for_all(Counted(store), place(rank, size), timedelta(0))
    first = Counted(store)
    wait_for_all(first, place(0, size), LONG)
    assert size < first.requests <= size + 2
    for rank in range(1, size):
        other = Counted(store)
        wait_for_all(other, place(rank, size), LONG)
        assert other.requests == 2


def test_a_rank_0_that_came_and_went_is_named():
    store = distributed.HashStore()
    for rank in range(3):
        store.set(f"lightlib/here/{rank}", "")
    with pytest.raises(LightlibError, match=r"Rank 1 has waited 0\.2 s for 1 of the 3 processes .*: rank 0\."):
        wait_for_all(store, place(1), SHORT)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_thousand_clients_of_one_store():
    port, size = free_port(), 1000
    connect = partial(distributed.TCPStore, "127.0.0.1", port, size, timeout=LONG, wait_for_workers=False)
    stores = [Counted(connect(is_master=True)), *(Counted(connect(is_master=False)) for _ in range(1, size))]
    threads = [
        threading.Thread(target=wait_for_all, args=(store, place(i, size), LONG)) for i, store in enumerate(stores)
    ]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].requests < 2 * size
    assert max(store.requests for store in stores[1:]) < 100  # two, and a look now and then while it waits
    assert time.monotonic() - begun < 30


@pytest.mark.processes
def test_the_store_itself_waits_for_nobody(monkeypatch):
    """Inside torch, a process would not react to Ctrl-C."""
    here = replace(place(0, 2), address="127.0.0.1", port=free_port())
    for name, value in here.export().items():
        monkeypatch.setenv(name, value)
    store = meeting_place(here, LONG)
    with pytest.raises(LightlibError, match="rank 1"):
        wait_for_all(store, here, SHORT)


@pytest.mark.processes
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_nobody_but_this_machine_reaches_a_store_at_the_loopback(monkeypatch, address):
    here = replace(given(monkeypatch, 0), address=address)
    store = meeting_place(here, LONG)
    with socket.socket() as another:  # which could not be, if the store listened everywhere
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        another.bind(("127.0.0.2", here.port))
        another.listen()
    there = meeting_place(replace(here, rank=1), LONG)
    there.set("key", "value")
    assert store.get("key") == b"value"
    again = meeting_place(here, LONG)  # by the same process, as after destroy_process_group
    assert again.get("key") == b"value"


def test_a_process_that_is_alone_listens_nowhere():
    alone = Environment()
    store = meeting_place(alone, SHORT)
    wait_for_all(store, alone, SHORT)
    assert isinstance(store, distributed.HashStore)


def given(monkeypatch, rank):
    here = replace(place(rank, 2), address="127.0.0.1", port=free_port())
    for name, value in here.export().items():
        monkeypatch.setenv(name, value)
    return here


@pytest.mark.processes
@pytest.mark.parametrize("name", ["torchrun", "TorchElasticEnvironment"])
def test_the_store_of_torchrun_is_used_by_whichever_name_it_was_found(monkeypatch, name):
    agent = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    here = replace(place(0, 1), name=name, address="127.0.0.1", port=agent.port)
    told = {"TORCHELASTIC_RUN_ID": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for variable, value in {**here.export(), **told}.items():
        monkeypatch.setenv(variable, value)
    store = meeting_place(here, timedelta(seconds=60))
    assert prefix_of_attempt(store, here, LONG) != prefix_of_attempt(store, here, LONG)  # names of two attempts
    assert agent.check(["lightlib/attempt"])


@pytest.mark.processes
def test_a_port_that_is_in_use_is_named(monkeypatch):
    here = given(monkeypatch, 0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", here.port))
        other.listen()
        with pytest.raises(LightlibError, match=rf"Rank 0 cannot wait(.|\n)*{here.port}(.|\n)*MASTER_PORT"):
            meeting_place(here, timedelta(seconds=3))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("listens", "why"), [(False, " (Connection refused)"), (True, ", where something else seems to listen")]
)
def test_a_rank_0_that_does_not_answer_is_named(monkeypatch, caplog, listens, why):
    """Another server at the port would block torch forever; an unused port, for the full timeout."""
    here = given(monkeypatch, 1)
    monkeypatch.setattr("lightlib.report.log.propagate", True)
    monkeypatch.setattr("lightlib.report.log.handlers", [])  # pytest adds its own where nothing is propagated
    caplog.set_level(logging.INFO, "lightlib")
    with socket.socket() as other:
        if listens:
            other.bind(("127.0.0.1", here.port))
            other.listen()
        with pytest.raises(
            LightlibError, match=rf"Rank 1 has waited 0\.[5-9]\d* s for rank 0 at 127\.0\.0\.1:{here.port}"
        ):
            meeting_place(here, timedelta(seconds=0.5), word_after=0.1)
    assert [record.getMessage() for record in caplog.records] == [
        f"Rank 1 waits for rank 0 at 127.0.0.1:{here.port}{why}."
    ]


@pytest.mark.processes
def test_ctrl_c_is_heard_by_one_that_looks_for_rank_0(monkeypatch):
    here = given(monkeypatch, 1)

    def look():
        threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
        meeting_place(here, LONG)

    with pytest.raises(KeyboardInterrupt):
        look()
