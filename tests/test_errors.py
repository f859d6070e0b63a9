"""Every error states the problem, the expected value and the fix."""

from __future__ import annotations

import pickle

import pytest

from lightlib import errors
from lightlib.errors import (
    ArgumentTypeError,
    CheckpointError,
    CheckpointWriteError,
    InvalidHP,
    LightlibError,
    LoggingError,
    MisconfigurationException,
    SIGTERMException,
    StopTraining,
    UnknownNameError,
    nearest,
)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "what"),
        ({"expected": "that."}, "what\n  Expected: that."),
        ({"fix": "this()"}, "what\n  Fix: this()"),
        ({"expected": "that.", "fix": "this()"}, "what\n  Expected: that.\n  Fix: this()"),
    ],
)
def test_three_parts(parts, text):
    assert str(LightlibError("what", **parts)) == text


def test_a_user_may_raise_one_without_a_message():
    with pytest.raises(MisconfigurationException) as raised:
        raise MisconfigurationException
    assert str(raised.value) == ""


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (MisconfigurationException, ValueError),
        (ArgumentTypeError, TypeError),
        (ArgumentTypeError, ValueError),
        (UnknownNameError, MisconfigurationException),
        (CheckpointError, MisconfigurationException),
        (LoggingError, MisconfigurationException),
        (CheckpointWriteError, OSError),
        (SIGTERMException, SystemExit),
    ],
)
def test_can_be_caught_as(error, also):
    assert issubclass(error, also)


def test_everything_but_the_control_of_a_run_is_a_lightlib_error():
    kinds = [getattr(errors, name) for name in errors.__all__]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert [kind for kind in kinds if not issubclass(kind, LightlibError)] == [
        InvalidHP,
        SIGTERMException,
        StopTraining,
    ]


def test_unknown_name_lists_and_suggests():
    error = UnknownNameError("strategy", "singel_device", ["single_device", "other"])
    assert str(error).splitlines() == [
        "Unknown strategy 'singel_device'. Did you mean 'single_device'?",
        "  Expected: one of 'other', 'single_device'.",
        "  Fix: use one of these names, or pass an instance.",
    ]
    assert str(UnknownNameError("mode", 3, ["min"], fix="mode='min'")).endswith("Fix: mode='min'")


@pytest.mark.parametrize(
    ("name", "text"),
    [("val_los", " Did you mean 'val_loss'?"), ("accuracy", ""), ("", "")],
)
def test_nearest(name, text):
    assert nearest(name, iter(["train_loss", "val_loss"])) == text


def test_sigterm_ends_the_process_with_128_plus_15():
    assert SIGTERMException().code == 143


@pytest.mark.parametrize("error", [MisconfigurationException("what", expected="that.", fix="this"), SIGTERMException()])
def test_errors_travel_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_the_tree_in_the_docstring_names_every_class():
    found = {name: getattr(errors, name) for name in errors.__all__}
    named = [name for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert [name for name in named if name not in errors.__doc__] == []
