"""The budget of a batch with clipping: calls of lightlib, counted."""

from __future__ import annotations

import sys

from lightlib.errors import FOLDERS
from tests.runs.plain import Net, batches, quiet_trainer

BUDGET = 22


def calls_of_a_fit(num_batches):
    """Return how many functions of lightlib a fit calls; expressions within functions are left out."""
    calls = 0

    def profile(frame, event, _):
        nonlocal calls
        name = frame.f_code.co_name
        calls += event == "call" and name[0] != "<" and frame.f_code.co_filename.startswith(FOLDERS)

    trainer, data = quiet_trainer(gradient_clip_val=1.0, log_every_n_steps=0), batches(1, size=4) * num_batches
    sys.setprofile(profile)
    try:
        trainer.fit(Net(), data)
    finally:
        sys.setprofile(None)
    return calls


def test_a_clipped_batch_makes_few_calls():
    calls_of_a_fit(2)  # imports
    assert (calls_of_a_fit(60) - calls_of_a_fit(30)) / 30 <= BUDGET
