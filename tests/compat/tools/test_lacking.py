"""Members of Lightning's classes: those that lightlib lacks, and those that compat serves.

private_classes_2_6.json has the members of Lightning 2.6.6's private classes: `dir` of each, and the attributes that
its methods set.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lightlib
from lightlib import compat
from lightlib.errors import MisconfigurationException
from lightlib.report import LightlibWarning
from lightlib_lightning import objects
from lightlib_lightning.command import members
from lightlib_lightning.internals import connectors, loops, served
from lightlib_lightning.tools.lacking import lacking, listed
from tests.runs.quiet import QUIET

RECORDED = json.loads((Path(__file__).parent / "private_classes_2_6.json").read_text("utf-8"))
VIEWS = {name: private for private, name in (
    (private, objects.PRIVATE[private].partition(":")[2]) for private in RECORDED
)}  # fmt: skip
# Of former versions of Lightning, or a public counterpart of a private attribute.
MORE = {
    "AcceleratorConnector": {"parallel_devices"},
    "DataConnector": {f"_{stage}_dataloader_source" for stage in ("predict", "test", "train", "val")},
    "PredictionLoop": {"_print_results", "verbose"},
}
PLACES = ("pytorch.callbacks", "pytorch.loggers", "pytorch.cli", "pytorch", "fabric")


def kind_of(name):
    return getattr(connectors, name, None) or getattr(loops, name)


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_only_names_of_lightnings_class_are_offered(name):
    assert set(served.public(kind_of(name))) - set(RECORDED[VIEWS[name]].split()) == MORE.get(name, set())


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_the_check_reads_the_members_that_the_class_has(name):
    found = members.view(name)
    named = {one for one in found.names if not one.startswith("__")}
    assert set(served.public(kind_of(name))) <= named
    for one in found.settable - {"_print_results"}:
        assert getattr(kind_of(name), one).fset is not None


@pytest.mark.parametrize("name", sorted(listed()))
def test_what_is_listed_as_lacking_is_not_there(name):
    place = next(path for path in PLACES if objects.target(path, name))
    module, _, attribute = objects.target(place, name).partition(":")
    kind = getattr(__import__(module, fromlist=[attribute]), attribute)
    assert not [one for one in lacking(name) if hasattr(kind, one)]


def test_messages_advise_the_user_of_a_package():
    compat.install()
    try:
        from lightning.pytorch.accelerators import XLAAccelerator
        from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
        from lightning.pytorch.loops.fit_loop import _FitLoop

        trainer = lightlib.Trainer(**QUIET)
        mine, texts = type("Mine", (_EvaluationLoop,), {"run": print}), []
        for wrong in (
            lambda: trainer._run_stage, lambda: trainer.fit_loop.nothing, lambda: _FitLoop._nothing,
            lambda: exec("from lightning.pytorch.loops.fit_loop import _Nothing"),
            lambda: exec("from lightning.pytorch.loops.fit_loop import nothing"),
            XLAAccelerator,
            lambda: setattr(trainer, "test_loop", mine(trainer, "test", "test")),
            lambda: setattr(trainer, "fit_loop", 3),
        ):  # fmt: skip
            with pytest.raises((AttributeError, ImportError, MisconfigurationException)) as raised:
                wrong()
            texts.append(str(raised.value))
        with pytest.warns(LightlibWarning, match="_anything is replaced") as seen:
            _FitLoop._anything = print
        with pytest.warns(LightlibWarning, match="anything of a Trainer is assigned") as assigned:
            trainer.fit_loop.anything = 3
        texts += [str(seen[0].message), str(assigned[0].message)]
        assert [text for text in texts if "run this program with Lightning: leave compat off" not in text] == [texts[4]]
        assert "install the version of the project that fits Lightning 2.6" in texts[4]
        for text in texts:
            assert "_note" not in text
            assert "_warn_of" not in text
        assert (XLAAccelerator.is_available(), XLAAccelerator.auto_device_count()) == (False, 0)
    finally:
        type.__delattr__(loops.FitLoop, "_anything")
        compat.uninstall()
