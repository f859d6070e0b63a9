"""Lightning's small functions and classes, by their direct paths, answer as Lightning 2.6.6 did."""

from __future__ import annotations

import json

import pytest

from tests.compat.recorded_programs import differences
from tests.compat.tools import record

RECORDED = json.loads(record.STORED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def answers():
    return json.loads(json.dumps(record.answers("lightlib", "lightlib.fabric")))


@pytest.mark.parametrize("subject", sorted(RECORDED))
def test_answers_are_those_of_lightning(subject, answers):
    assert not differences(RECORDED[subject], answers[subject])


def test_every_subject_was_recorded(answers):
    assert set(answers) == set(RECORDED)
