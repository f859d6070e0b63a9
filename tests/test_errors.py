"""Every error states the problem, the expected value and the fix, for the Trainer or for Fabric."""

from __future__ import annotations

import pickle
import re
import threading

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
    nearest,
    owned_by,
    owner,
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
