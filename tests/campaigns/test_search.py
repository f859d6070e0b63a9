"""The search campaign: a few of its kills, and that it finds faults."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("optuna")

from tests.campaigns.campaign_search import ALL, Configuration, Run, command, faults

SMALL = Configuration("folder", "random", workers=2)


def test_every_search_has_a_name_of_its_own():
    assert len({how.name for how in ALL}) == len(ALL)


@pytest.mark.processes
def test_a_search_that_is_killed_has_no_faults_and_a_changed_file_has(tmp_path, capsys):
    assert command(["--only", SMALL.name, "--kills", "2", "--each", "2", "--folder", str(tmp_path / "all")]) == 0
    assert "1 searches" in capsys.readouterr().out
    run = Run(SMALL, tmp_path / "one", None)
    run.start()
    run.wait()
    assert (run.problems, list(faults(run))) == ([], [])
    messages = run.project.attempts(2)[0] / "messages.jsonl"
    lines = [json.loads(line) for line in messages.read_text().splitlines()]
    first = next(one for one in lines if one["kind"] == "validated")
    with messages.open("a") as file:
        file.write(json.dumps({**first, "metrics": {"val_loss": 7.0}}) + "\n")
    assert list(faults(run)) == [f"trial 2: 2 metrics at {first['step']}"]
