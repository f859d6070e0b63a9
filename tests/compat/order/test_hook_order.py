"""The order of hooks with compat on: the calls of Lightning 2.6.6, recorded by hook_programs.py."""

from __future__ import annotations

import json
import logging

import pytest

from lightlib import compat
from lightlib.conventions import LIGHTLIB, chosen
from tests.compat.hook_programs import PROGRAMS, STORED

LIGHTNING = json.loads(STORED.read_text("utf-8"))
# Programs in which a call sees other counters, with the calls (docs/compat.md gives the reasons).
OTHER_COUNTERS = {
    # The position is restored before on_fit_start.
    "resume": ("on_fit_start",),
    "resume with a data module": ("on_fit_start",),
}
# Programs in which a call comes at another place.
OTHER_PLACE = {
    # Files are written after the module's on_train_batch_end and the validation that is due, so that a resumed run
    # continues exactly.
    "checkpoint every two steps": ("state_dict", "on_save_checkpoint"),
}


@pytest.fixture(autouse=True)
def as_lightning():
    """Switch compat on for one test, without its messages."""
    compat.install()
    level = logging.getLogger("lightlib").level
    logging.getLogger("lightlib").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("lightlib").setLevel(level)
    compat.uninstall()
    assert chosen() is LIGHTLIB


def hook_of(call):
    return call.split("(")[0].rpartition(".")[2]


def compared(calls, counters, places):
    """Return the calls without the counters and the places that may differ."""
    kept = [call for call in calls if hook_of(call) not in places]
    return [call.split(" @")[0] if hook_of(call) in counters else call for call in kept]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_are_those_of_lightning(name, capsys):
    counters, places = OTHER_COUNTERS.get(name, ()), OTHER_PLACE.get(name, ())
    called = PROGRAMS[name]()
    assert compared(called, counters, places) == compared(LIGHTNING[name], counters, places)
    assert sorted(map(hook_of, called)) == sorted(map(hook_of, LIGHTNING[name]))


def test_the_record_has_every_hook():
    from tests.compat.hook_programs import LOADERS, OF_CALLBACK, OF_MODULE, OF_STEP

    seen = {hook_of(call) for calls in LIGHTNING.values() for call in calls}
    assert {*OF_CALLBACK, *OF_MODULE, *OF_STEP, *LOADERS} <= seen


@pytest.mark.filterwarnings("ignore")
def test_without_compat_gradients_are_cleared_before_the_step(capsys):
    from lightlib import conventions

    conventions.use(LIGHTLIB)
    called = list(map(hook_of, PROGRAMS["limits"]()))
    assert called.index("on_before_zero_grad") < called.index("training_step")
    assert called.index("train_dataloader") < called.index("configure_optimizers")
