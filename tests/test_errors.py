"""Every error states the problem, the expected value and the fix, for the Trainer or for Fabric."""

from __future__ import annotations

import math
import os
import pickle
import re
import threading
from collections.abc import Callable

import pytest
from torch.utils.data import DataLoader, DistributedSampler

import lightlib as L
from lightlib import errors
from lightlib.data.sharding import DataShard, is_sharded_by_user
from lightlib.errors import (
    TRAINER,
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
    check_flag,
    check_int,
    check_number,
    check_type,
    check_word,
    nearest,
    owned_by,
    owner,
    wrong_type,
    wrong_value,
)
from lightlib.fabric import refusals
from lightlib.strategies import MeshStrategy


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


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ({"accelerator": "tpux"}, "(accelerator='auto')"),
        ({"accelerator": "cuda:1"}, "(accelerator='cuda', devices=[1])"),
        ({"devices": "two"}, "(accelerator='cpu', devices=1)"),
        ({"strategy": "dpp"}, "(strategy='ddp')"),
        ({"precision": "16-mixd"}, "(precision='16-mixed')"),
        ({"num_nodes": 0}, "(num_nodes=1)"),
        ({"device": 2}, "(devices=2)"),
        ({"gpus": 2}, "(accelerator='gpu', devices=2)"),
        ({"strategy": MeshStrategy(shard=3), "accelerator": "cpu", "devices": 1}, "(devices=3), or -1 in place"),
    ],
)
def test_the_same_mistake_has_the_same_fix_by_another_name(arguments, fix):
    with pytest.raises(ValueError, match=re.escape(f"Fix: Trainer{fix}")):
        L.Trainer(**arguments)
    with pytest.raises(ValueError, match=re.escape(f"Fix: Fabric{fix}")) as raised:
        L.Fabric(**arguments)
    assert "Trainer" not in str(raised.value)


def test_loggers_are_an_argument_of_another_name():
    with pytest.raises(TypeError, match=r"^loggers is 3 \(int\)(.|\n)*Fix: Fabric\(loggers=CSVLogger\('logs'\)\)"):
        L.Fabric(accelerator="cpu", loggers=[3])
    with pytest.raises(TypeError, match=r"^logger is 3 \(int\)(.|\n)*Fix: Trainer\(logger=CSVLogger\('logs'\)\)"):
        L.Trainer(accelerator="cpu", logger=[3])


def test_the_argument_that_leaves_data_unsharded():
    loader = DataLoader(range(4), sampler=DistributedSampler(range(4), num_replicas=2, rank=0))
    share = DataShard(1, 2, lambda value: value, lambda value: [value, value])
    with pytest.raises(ValueError, match=r"or use Trainer\(use_distributed_sampler=False\)\."):
        is_sharded_by_user(loader, share, "training")
    with (
        owned_by(refusals.OWNER),
        pytest.raises(ValueError, match=r"fabric\.setup_dataloaders\(loader, use_distributed_sampler=False\)\."),
    ):
        is_sharded_by_user(loader, share, "training")


def test_the_owner_is_that_of_the_block_and_of_the_thread():
    seen = []
    with owned_by(refusals.OWNER):
        thread = threading.Thread(target=lambda: seen.append(owner()))
        thread.start()
        thread.join()
        assert owner() is refusals.OWNER
        with pytest.raises(ZeroDivisionError), owned_by(TRAINER):
            seen.append(1 / 0)
        assert owner() is refusals.OWNER
    assert seen == [TRAINER]
    assert owner() is TRAINER


def refusal(check, *arguments, **options):
    """The type and the three parts of the error of a check."""
    with pytest.raises(MisconfigurationException) as raised:
        check("Owner", "name", *arguments, **options)
    what, expected, fix = str(raised.value).splitlines()
    return type(raised.value), what, expected.removeprefix("  Expected: "), fix.removeprefix("  Fix: ")


@pytest.mark.parametrize(
    ("make", "kind", "what"),
    [
        (wrong_type, ArgumentTypeError, "Owner(name=5 (int))."),
        (wrong_value, MisconfigurationException, "Owner(name=5)."),
    ],
)
def test_made_errors_have_three_parts(make, kind, what):
    error = make("Owner", "name", 5, "a string", "'text'")
    assert type(error) is kind
    assert str(error).splitlines() == [what, "  Expected: a string.", "  Fix: Owner(name='text')"]
    assert str(make("Owner", "name", 5, "a string", fix="leave it out.")).endswith("Fix: leave it out.")


def test_the_value_in_a_made_error_is_short_and_on_one_line():
    first, *rest = str(wrong_value("Owner", "name", ["x" * 100, 2], "less", 1)).splitlines()
    assert first == f"Owner(name={str(['x' * 100])[:80]})."
    assert len(rest) == 2


@pytest.mark.parametrize("value", [0, 1, 2**70])
def test_an_int_within_bounds_is_returned(value):
    assert check_int("Owner", "name", value, 0) is value


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_no_int(value):
    kind, what, expected, fix = refusal(check_int, value, 1, meaning=", or None for all")
    assert (kind, expected, fix) == (ArgumentTypeError, "an int >= 1, or None for all.", "Owner(name=1)")
    assert what == f"Owner(name={value!r} ({type(value).__name__}))."


def test_an_int_out_of_bounds():
    assert refusal(check_int, 1, 2) == (MisconfigurationException, "Owner(name=1).", "an int >= 2.", "Owner(name=2)")
    assert refusal(check_int, -1, 0, example=10)[3] == "Owner(name=10)"
    assert refusal(check_int, -1, 0, fix="leave it out.")[3] == "leave it out."


@pytest.mark.parametrize(
    ("bounds", "within", "outside", "expected"),
    [
        ({"least": 0}, [0, 0.0, 3, math.inf], [-1, -1e-9, math.nan], "a number >= 0."),
        ({"above": 0}, [1e-9, 1, math.inf], [0, 0.0, -1, math.nan], "a number > 0."),
        ({"least": 0, "most": 1}, [0, 0.5, 1], [-0.1, 1.1, math.nan], "a number >= 0 and <= 1."),
        ({"least": 0, "below": 1}, [0, 0.999], [1, 1.0, -1], "a number >= 0 and < 1."),
        ({"above": 1, "below": math.inf}, [1.5, 4], [1, math.inf, math.nan], "a finite number > 1."),
    ],
)
def test_a_number_within_bounds(bounds, within, outside, expected):
    for value in within:
        assert check_number("Owner", "name", value, **bounds) is value
    for value in outside:
        kind, what, text, fix = refusal(check_number, value, **bounds, example=0.5)
        assert (kind, what, text, fix) == (
            MisconfigurationException,
            f"Owner(name={value!r}).",
            expected,
            "Owner(name=0.5)",
        )
    for value in (True, "0.5", None):
        assert refusal(check_number, value, **bounds)[::2] == (ArgumentTypeError, expected)


def test_a_flag_is_a_bool():
    assert check_flag("Owner", "name", False) is False
    assert refusal(check_flag, 1) == (ArgumentTypeError, "Owner(name=1 (int)).", "True or False.", "Owner(name=True)")


@pytest.mark.parametrize(
    ("types", "right", "wrong"),
    [
        (str | None, ["text", None], 5),
        ((str, os.PathLike), ["text", os.path.curdir], None),
        (Callable | None, [len, None], "len"),
    ],
)
def test_a_type_of_several(types, right, wrong):
    for value in right:
        assert check_type("Owner", "name", value, types, "one of them") is value
    kind, what, expected, fix = refusal(check_type, wrong, types, "one of them", "'text'")
    assert (kind, expected, fix) == (ArgumentTypeError, "one of them.", "Owner(name='text')")
    assert what == f"Owner(name={wrong!r} ({type(wrong).__name__}))."


def test_a_word_of_several():
    words = {"linear": 1, "cosine": 2}
    assert check_word("Owner", "name", "cosine", words) == "cosine"
    assert refusal(check_word, "cosin", words) == (
        UnknownNameError,
        "Unknown name of Owner 'cosin'. Did you mean 'cosine'?",
        "one of 'cosine', 'linear'.",
        "Owner(name='linear')",
    )
    assert refusal(check_word, "cosin", words, example="cosine")[3] == "Owner(name='cosine')"
    assert refusal(check_word, ["cosine"], words)[:3] == (
        ArgumentTypeError,
        "Owner(name=['cosine'] (list)).",
        "one of 'linear', 'cosine'.",
    )
