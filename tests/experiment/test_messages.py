"""Messages of a trial in a file: torn lines, and those of a copy in another process."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.messages import Messages


def test_messages_in_a_file(tmp_path):
    there, here = Messages(tmp_path), Messages(tmp_path)
    assert here.new() == []
    there.send("validated", step=1)
    path = tmp_path / "messages.jsonl"
    with path.open("a") as file:
        file.write('no message\n[1]\n{"kind": "torn')
    assert here.new() == [{"kind": "validated", "step": 1}]
    assert here.new() == []
    with path.open("a") as file:
        file.write('"}\n')
    assert here.new() == [{"kind": "torn"}]


def test_messages_of_a_copy_are_in_their_own_file(tmp_path):
    """As with `ddp_spawn`: the callbacks are pickled after an initial validation was sent."""
    there = Messages(tmp_path)
    there.send("validated", step=0)
    copy = pickle.loads(pickle.dumps(there))
    del there  # closes the file; the next one that is opened has its number
    with (tmp_path / "other").open("wb"):
        copy.send("validated", step=1)
    assert (tmp_path / "other").read_bytes() == b""
    assert [one["step"] for one in Messages(tmp_path).new()] == [0, 1]
