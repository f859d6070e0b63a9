"""Private functions of Lightning that projects import, each with the values of Lightning 2.6.6."""

from __future__ import annotations

import fsspec
import pytest
import torch
from torch import nn

from lightlib import compat
from lightlib.errors import ArgumentTypeError


@pytest.fixture(autouse=True)
def as_lightning():
    compat.install()
    yield
    compat.uninstall()


def test_one_process_has_no_group():  # nequip, litgpt
    from lightning.fabric.utilities.distributed import (
        _distributed_is_initialized,
        _get_default_process_group_backend_for_device,
        _sync_ddp_if_available,
    )

    value = torch.ones(2)
    assert not _distributed_is_initialized()
    assert _sync_ddp_if_available(value, reduce_op="mean") is value
    assert _get_default_process_group_backend_for_device(torch.device("cpu")) == "gloo"


def test_the_rank_is_that_of_the_launcher(monkeypatch):  # finetuning-scheduler
    from lightning.fabric.utilities.rank_zero import _get_rank

    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert _get_rank() is None
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert _get_rank() == 1


def test_a_folder_of_a_disk_and_of_a_store(tmp_path):  # sheeprl
    from lightning.fabric.utilities.cloud_io import _is_dir

    local = fsspec.filesystem("file")
    assert _is_dir(local, tmp_path)
    assert not _is_dir(local, tmp_path / "nothing")

    class Store:
        protocol = ("s3", "s3a")

        def isfile(self, path):
            return path == "file"

        def isdir(self, path):
            return path == "folder"

    assert [_is_dir(Store(), path) for path in ("file", "folder", "new")] == [False, True, True]
    assert not _is_dir(Store(), "new", strict=True)


def test_files_are_read_when_they_are_used(tmp_path):  # litgpt
    from lightning.fabric.utilities.load import _lazy_load, _NotYetLoadedTensor

    torch.save({"weight": torch.arange(3.0)}, tmp_path / "a.pt")
    weight = _lazy_load(tmp_path / "a.pt")["weight"]
    assert not isinstance(weight, _NotYetLoadedTensor)
    assert weight.tolist() == [0, 1, 2]
    with pytest.raises(FileNotFoundError, match="does not exist or is not a file"):
        _lazy_load(tmp_path / "b.pt")


def test_states_are_moved_into_objects():
    from lightning.fabric.utilities.load import _move_state_into
    from lightning.fabric.utilities.types import _Stateful

    layer = nn.Linear(1, 1)
    assert isinstance(layer, _Stateful)
    state = {name: torch.full_like(value, 2.0) for name, value in layer.state_dict().items()}
    source, destination = {"layer": state, "epoch": 3, "other": 1}, {"layer": layer}
    _move_state_into(source, destination, {"layer", "epoch"})
    assert layer.weight.item() == 2.0
    assert destination == {"layer": layer, "epoch": 3}
    assert source == {"other": 1}


def test_filters_and_strict_keys():
    from lightning.fabric.strategies.strategy import _apply_filter, _validate_keys_for_strict_loading

    target = {}
    _apply_filter("model", {"model": lambda name, value: name == "a"}, {"a": 1, "b": 2}, target)
    _apply_filter("step", {}, 3, target)
    assert target == {"model": {"a": 1}, "step": 3}
    _validate_keys_for_strict_loading(["a"], ["a"], strict=True)
    _validate_keys_for_strict_loading(["a"], [], strict=False)
    with pytest.raises(KeyError, match="contains a key 'a' that does not exist"):
        _validate_keys_for_strict_loading(["a"], ["b"], strict=True)


def test_modules_on_the_meta_device_are_initialized():  # litgpt
    from lightning.fabric.utilities.init import _materialize_meta_tensors

    with torch.device("meta"):
        net = nn.Sequential(nn.BatchNorm1d(2), nn.ReLU())
    _materialize_meta_tensors(net, "cpu")
    assert net[0].weight.tolist() == [1, 1]
    with torch.device("meta"):
        bare = nn.Module()
        bare.weight = nn.Parameter(torch.zeros(1))
    with pytest.raises(ArgumentTypeError, match="no reset_parameters"):
        _materialize_meta_tensors(bare, "cpu")


def test_activations_are_checkpointed_once():  # finetuning-scheduler
    from lightning.fabric.strategies.fsdp import _setup_activation_checkpointing

    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    _setup_activation_checkpointing(net, {"check_fn": lambda layer: isinstance(layer, nn.Linear)})
    assert type(net[0]).__name__ == "CheckpointWrapper"
    _setup_activation_checkpointing(net, {})
    with pytest.warns(UserWarning, match="already contains checkpointed layers"):
        _setup_activation_checkpointing(net, {"check_fn": lambda layer: isinstance(layer, nn.Linear)})


def test_an_optimizer_that_does_nothing():  # finetuning-scheduler tries schedules on it
    from lightning.pytorch.core.optimizer import _MockOptimizer

    optimizer = _MockOptimizer()
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    assert (optimizer.state_dict(), optimizer.step(lambda: 3), repr(optimizer)) == ({}, 3, "No Optimizer")


def test_flags_tell_what_is_installed():  # nequip, finetuning-scheduler, litgpt
    from lightning.fabric.utilities.imports import (
        _IS_INTERACTIVE,
        _IS_WINDOWS,
        _NUMPY_AVAILABLE,
        _TORCH_GREATER_EQUAL_2_3,
    )
    from lightning.pytorch.loggers.mlflow import _MLFLOW_AVAILABLE
    from lightning.pytorch.profilers.pytorch import _KINETO_AVAILABLE
    from lightning.pytorch.utilities.imports import _TORCH_EQUAL_2_8, _TORCHVISION_AVAILABLE

    assert _TORCH_GREATER_EQUAL_2_3 is True
    assert _IS_INTERACTIVE is False
    assert bool(_NUMPY_AVAILABLE)
    assert torch.__version__.startswith("2.8") is bool(_TORCH_EQUAL_2_8)
    assert isinstance(_KINETO_AVAILABLE, bool)
    assert isinstance(_IS_WINDOWS, bool)
    assert "mlflow" in str(_MLFLOW_AVAILABLE).lower()
    assert "torchvision" in str(_TORCHVISION_AVAILABLE).lower()


def test_reasons_to_skip_a_test(monkeypatch):  # litgpt
    from lightning.fabric.utilities.testing import _runif_reasons

    monkeypatch.delenv("PL_RUN_STANDALONE_TESTS", raising=False)
    assert _runif_reasons(min_torch="1.0", min_python="3.8") == ([], {})
    reasons, marks = _runif_reasons(min_cuda_gpus=99, max_torch="1.0", tpu=True, standalone=True)
    assert reasons == ["GPUs>=99", f"torch<1.0, {torch.__version__} installed", "TPU", "Standalone execution"]
    assert marks == {"min_cuda_gpus": True, "tpu": True, "standalone": True}


@pytest.mark.parametrize("name", ["_NotYetLoadedTensor", "_ResultMetric", "_SubprocessScriptLauncher"])
def test_classes_that_nothing_is_an_instance_of(name):
    from lightlib_lightning import objects

    place, _, ours = objects.PRIVATE[name].partition(":")
    kind = getattr(__import__(place, fromlist=[ours]), ours)
    assert not isinstance(torch.zeros(1), kind)


def test_a_path_on_a_disk():  # eva, NeMo
    from lightning.fabric.utilities.cloud_io import _is_local_file_protocol

    paths = ("a/b.ckpt", "file://a", "s3://bucket/a", "memory://a")
    assert [_is_local_file_protocol(path) for path in paths] == [True, True, False, False]


def test_arguments_from_variables(monkeypatch):  # eva, ptlflow
    from lightning.pytorch.plugins import _PLUGIN_INPUT
    from lightning.pytorch.trainer.connectors.accelerator_connector import _LITERAL_WARN, _PRECISION_INPUT
    from lightning.pytorch.utilities.argparse import _defaults_from_env_vars

    class Mine:
        @_defaults_from_env_vars
        def __init__(
            self,
            devices: int = 1,
            precision: _PRECISION_INPUT = None,
            plugins: _PLUGIN_INPUT = None,
            deterministic: bool | _LITERAL_WARN = False,
        ) -> None:
            self.given = (devices, precision, plugins, deterministic)

    assert Mine(2).given == (2, None, None, False)
    monkeypatch.setenv("PL_MINE_DEVICES", "4")
    monkeypatch.setenv("PL_MINE_PRECISION", "bf16-mixed")
    monkeypatch.setenv("PL_MINE_OTHER", "1")
    assert Mine(deterministic="warn").given == (4, "bf16-mixed", None, "warn")
    assert Mine(2).given == (2, "bf16-mixed", None, False)
