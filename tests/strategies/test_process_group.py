"""The meeting of the processes: who does not come is named."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from torch import distributed

from lightlib.errors import LightlibError
from lightlib.launch.environment import Environment, free_port
from lightlib.strategies.process_group import _meeting_place, wait_for_all

SHORT = timedelta(seconds=0.2)


def place(rank, size=3):
    return Environment(
        "mine", rank=rank, world_size=size, local_size=size, address="10.0.0.7", port=29500, launched=True
    )


def test_all_have_come():
    store = distributed.HashStore()
    late = threading.Timer(0.1, lambda: wait_for_all(store, place(1, 2), SHORT))
    late.start()
    begun = time.monotonic()
    wait_for_all(store, place(0, 2), timedelta(seconds=20))
    late.join()
    assert 0.05 < time.monotonic() - begun < 5


def test_who_has_not_come_is_named():
    store = distributed.HashStore()
    store.set("lightlib/here/1", "")
    with pytest.raises(LightlibError) as caught:
        wait_for_all(store, place(0, 4), SHORT)
    message = str(caught.value)
    assert "Rank 0 has waited 0.2 s for 2 of the 4 processes at 10.0.0.7:29500: rank 2, 3." in message
    assert "WORLD_SIZE" in message
    assert "timeout" in message


def test_the_store_itself_waits_for_nobody(monkeypatch):
    """Within torch a process would not hear Ctrl-C."""
    here = replace(place(0, 2), address="127.0.0.1", port=free_port())
    for name, value in here.export().items():
        monkeypatch.setenv(name, value)
    begun = time.monotonic()
    store = _meeting_place(here, timedelta(seconds=3))
    assert time.monotonic() - begun < 2
    with pytest.raises(LightlibError, match="rank 1"):
        wait_for_all(store, here, SHORT)
