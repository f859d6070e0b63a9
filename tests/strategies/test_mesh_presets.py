"""Presets are names for settings of MeshStrategy: each is compared with the spelled-out one."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from torch import nn

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.strategies import mesh_presets
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.axes.transforms import ActivationCheckpoint
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.mesh_presets import (
    DDPStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    PipelineStrategy,
    TensorParallelStrategy,
)


def settings(strategy):
    """Return all settings of a strategy, as plain values."""

    def plain(value):
        if type(value).__module__.startswith("lightlib."):
            return type(value).__name__, {name: plain(one) for name, one in vars(value).items()}
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        if isinstance(value, tuple):
            return [plain(one) for one in value]
        return value

    return {name: plain(value) for name, value in vars(strategy).items()}


SAME = {
    "ddp": (
        DDPStrategy(find_unused_parameters=True, timeout=60, ddp_comm_hook="bf16", start_method="spawn"),
        MeshStrategy(
            replicate=Replicate(-1, find_unused_parameters=True, comm_hook="bf16"),
            timeout=timedelta(minutes=1),
            launcher="spawn",
        ),
    ),
    "zero": (DDPStrategy(zero=True), MeshStrategy(replicate=Replicate(-1, zero=True))),
    "fsdp": (FSDPStrategy(), MeshStrategy(shard=-1)),
    "in parts": (
        FSDPStrategy(state_dict_type="sharded"),
        MeshStrategy(shard=-1, checkpoint_format="directory"),
    ),
    "grads": (
        FSDPStrategy(sharding_strategy="SHARD_GRAD_OP", cpu_offload=True, auto_wrap_policy=["blocks.*"]),
        MeshStrategy(shard=Shard(-1, reshard_after_forward=False, cpu_offload=True, blocks=["blocks.*"])),
    ),
    "hybrid": (
        FSDPStrategy(
            sharding_strategy="HYBRID_SHARD", device_mesh=(3, 4), mixed_precision=(torch.bfloat16, torch.float32)
        ),
        MeshStrategy(replicate=3, shard=Shard(4, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)),
    ),
    "hybrid by default": (FSDPStrategy(sharding_strategy="HYBRID_SHARD"), MeshStrategy(replicate=2, shard=-1)),
    "checkpointing": (
        FSDPStrategy(activation_checkpointing=True, meta=True),
        MeshStrategy(shard=Shard(-1, meta=True), activation_checkpointing=ActivationCheckpoint()),
    ),
    "tensor": (
        TensorParallelStrategy(2, loss_parallel=True),
        MeshStrategy(tensor=mesh_presets.Tensor(2, loss_parallel=True)),
    ),
    "pipeline": (
        PipelineStrategy(schedule="gpipe", microbatches=4),
        MeshStrategy(pipeline=mesh_presets.Pipeline(-1, schedule="gpipe", microbatches=4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_preset_is_a_setting(name):
    preset, spelled_out = SAME[name]
    assert settings(preset) == settings(spelled_out)


def test_a_preset_defines_its_construction_alone():
    for name in mesh_presets.__all__:
        own = {key for key in vars(getattr(mesh_presets, name)) if not key.startswith("_")}
        assert own == set(), name


@pytest.mark.parametrize(
    ("given", "sizes", "per_machine"),
    [
        (("auto", "auto"), {"shard": 1, "tensor": -1}, True),
        ((2, "auto"), {"shard": 2, "tensor": -1}, False),
        (("auto", 2), {"shard": -1, "tensor": 2}, False),
        ((2, 4), {"shard": 2, "tensor": 4}, False),
    ],
)
def test_model_parallel(given, sizes, per_machine):
    strategy = ModelParallelStrategy(*given)
    assert {name: strategy.sizes[name] for name in sizes} == sizes
    assert strategy.per_machine is per_machine
    assert list(strategy.names_for_user) == ["data_parallel", "tensor_parallel"]


def test_sets_of_classes_become_a_choice():
    strategy = FSDPStrategy(auto_wrap_policy={nn.Linear}, activation_checkpointing_policy={nn.ReLU})
    checkpointing = next(axis for axis in strategy._given if isinstance(axis, ActivationCheckpoint))
    for chosen, kind in ((strategy._shard.blocks, nn.Linear), (checkpointing.blocks, nn.ReLU)):
        assert chosen("any", nn.Linear(1, 1)) is (kind is nn.Linear)
        assert chosen("any", nn.ReLU()) is (kind is nn.ReLU)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"sharding_strategy": "FULL"},
            r"sharding_strategy 'FULL'.*\n.*'FULL_SHARD'.*\n.*'NO_SHARD' use strategy='ddp'",
        ),
        ({"device_mesh": (2, 2)}, r"device_mesh=\(2, 2\).*\n.*\n.*sharding_strategy='HYBRID_SHARD'"),
    ],
)
def test_what_fsdp_refuses(arguments, text):
    with pytest.raises(MisconfigurationException, match=text):
        FSDPStrategy(**arguments)


@pytest.mark.parametrize(
    ("name", "launcher", "unused"),
    [
        ("ddp", "subprocess", False),
        ("ddp_spawn", "spawn", False),
        ("ddp_notebook", "fork", False),
        ("ddp_fork_find_unused_parameters_true", "fork", True),
        ("ddp_find_unused_parameters_false", "subprocess", False),
    ],
)
def test_names_of_ddp(name, launcher, unused):
    strategy = mesh_presets.named(name)
    assert strategy.launcher == launcher
    assert strategy._replicate._options["find_unused_parameters"] is unused


def test_who_writes_directories():
    assert MeshStrategy().checkpoint_format == "file"
    assert FSDPStrategy().checkpoint_format == "file"
    assert mesh_presets.ModelParallelStrategy().checkpoint_format == "directory"
    assert mesh_presets.ModelParallelStrategy(save_distributed_checkpoint=False).checkpoint_format == "file"
    with pytest.raises(UnknownNameError, match="state_dict_type of FSDPStrategy 'local'"):
        FSDPStrategy(state_dict_type="local")
    with pytest.raises(UnknownNameError, match="checkpoint_format of MeshStrategy 'folder'"):
        MeshStrategy(checkpoint_format="folder")
