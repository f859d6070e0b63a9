"""Draws and reports of the torchrun campaign; kills are in tests/distributed/test_restarts.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.campaigns.campaign_torchrun import Reference, drawn, summary
from tests.campaigns.torchrun_program import EVENTS, Kill, Killed, Store, as_argument


def test_a_seed_draws_the_same_kills_again() -> None:
    counts = dict.fromkeys(EVENTS, 3)
    known = Reference(Path(), [counts, {**counts, "rename": 0}], 2.0)
    one, other = ([drawn(known, random.Random(seed)) for _ in range(9)] for seed in (3, 3))
    assert one == other
    many = [kill for seed in range(200) for kill in drawn(known, random.Random(seed))]
    assert {kill.event for kill in many} == {*EVENTS, "instant"}
    assert {kill.rank for kill in many} == {0, 1}
    assert not any(kill.rank == 1 and kill.event == "rename" for kill in many)


def test_kills_reach_the_program_as_they_are() -> None:
    kills = [Kill(0, "agreement", 3), Kill(1, "instant", 700)]
    assert [Kill(**kill) for kill in json.loads(as_argument(kills))] == kills
    assert list(map(str, kills)) == ["rank 0 before agreement 3", "rank 1 after 700 ms"]


@pytest.mark.parametrize(("rank", "hits"), [(1, 1), (0, 0)])
def test_the_rank_is_killed_before_the_event_happens_for_the_nth_time(tmp_path, monkeypatch, rank, hits) -> None:
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append(number))
    killed = Killed(tmp_path, rank, 0, Kill(1, "agreement", 2))
    store = Store({"a": 1}, killed.event)
    assert store.get("a") == 1
    assert sent == []
    assert store.get("b", 2) == 2
    killed.event("batch")
    assert len(sent) == len(list(tmp_path.glob("killed0"))) == hits
    assert (killed.counts["agreement"], killed.counts["batch"]) == (2, 1)


def test_the_table_counts_kills_by_setup_and_rank() -> None:
    records = [
        {"setup": "static", "hits": ["rank 1 before validation batch 7"], "problem": "", "differing": []},
        {"setup": "c10d", "hits": ["rank 0 after 61 ms", "rank 1 before batch 2"], "problem": "hung", "differing": []},
    ]
    lines = list(summary(records))
    assert [line.split() for line in lines[1:5]] == [
        ["static", "1", "0", "1", "1", "0", "0"],
        ["standalone", "0", "0", "0", "0", "0", "0"],
        ["c10d", "2", "1", "1", "0", "0", "1"],
        ["all", "3", "1", "2", "1", "0", "1"],
    ]
    assert lines[5] == "before: validation batch 1, instant 1, batch 1"
