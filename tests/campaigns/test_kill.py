"""A handful of the kills of the kill campaign, on one device and with two processes."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.campaigns.campaign_kill import ALL, drawn
from tests.campaigns.outcome import differences, kinds
from tests.campaigns.phases import EVENTS
from tests.campaigns.program import Configuration
from tests.processes import programs


def campaign(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Run a campaign as its command does; in a process of its own, for it forks."""
    return programs.run("-m", f"tests.campaigns.campaign_{name}", *map(str, options))


@pytest.mark.processes
def test_a_killed_run_that_is_started_again_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    names = ["one-workers2-accumulate3-fp16-async", "ddp-workers0-accumulate1-fp32-sync"]
    ended = campaign("kill", "--kills", 4, "--once", "--only", *names, "--folder", tmp_path / "runs")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ", 0 not equal" in ended.stdout


def test_every_configuration_has_a_name_that_leads_back_to_it() -> None:
    assert len(ALL) == 155
    for how in [*ALL, Configuration(format="directory", epochs=1, plain=True), Configuration(accelerator="cuda")]:
        assert Configuration.named(how.name) == how


def test_a_seed_draws_the_same_kills_again() -> None:
    from tests.campaigns.campaign_kill import Reference

    known = Reference(Path(), 2.0, dict.fromkeys(EVENTS, 9))
    one, other = ([drawn(ALL[16], known, random.Random(seed)) for _ in range(9)] for seed in (3, 3))
    assert one == other


def test_what_differs_is_named() -> None:
    one = {"result": {"weights": {"a": 1.0}}, "names": {"x": ""}, "csv": [{"loss": "1"}]}
    other = {"result": {"weights": {"a": 2.0}}, "names": {"y": ""}, "csv": [{"loss": "1"}, {"loss": "2"}]}
    found = list(differences(one, other))
    assert kinds(found) == ["weights", "names", "csv"]
    assert found[:2] == ["['result']['weights']['a']: 1.0 became 2.0", "['names']['x'] is missing"]
    assert not list(differences(one, one))
