"""Our strategies and a third party's pass the conformance tests, and wrong ones fail them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import distributed, nn

from lightlib.errors import UnknownNameError
from lightlib.strategies import mesh_presets
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.group.process_group import join
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.mesh_presets import DDPStrategy, FSDPStrategy, ModelParallelStrategy, PipelineStrategy
from lightlib.strategies.single import SingleDeviceStrategy, in_context
from lightlib.strategies.strategy import Strategy
from lightlib.testing import check_strategy
from lightlib.tree import to_device
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes

OURS: dict[str, tuple[int, Callable[[], Strategy]]] = {
    "ddp": (2, lambda: mesh_presets.named("ddp")),
    "ddp unused": (2, lambda: DDPStrategy(find_unused_parameters=True)),
    "zero1": (2, lambda: mesh_presets.named("zero1")),
    "fsdp": (2, lambda: mesh_presets.named("fsdp")),
    "fsdp offload": (2, lambda: FSDPStrategy(cpu_offload=True, sharding_strategy="SHARD_GRAD_OP")),
    "hsdp": (4, lambda: mesh_presets.named("hsdp")),
    "model_parallel": (4, lambda: ModelParallelStrategy(2, 2)),
    "tensor": (2, lambda: mesh_presets.named("tensor")),
    "pipeline": (2, lambda: mesh_presets.named("pipeline")),
    "interleaved": (2, lambda: PipelineStrategy(schedule="interleaved")),
    "zero bubble": (2, lambda: PipelineStrategy(schedule="zbv")),
    "pipeline+shard": (4, lambda: MeshStrategy(pipeline=2, shard=2)),
    "pipeline+replicate": (4, lambda: MeshStrategy(pipeline=2, replicate=Replicate(2))),
    "pipeline+tensor": (4, lambda: MeshStrategy(pipeline=2, tensor=2)),
    "replicate+tensor": (4, lambda: MeshStrategy(replicate=2, tensor=2)),
    "shard+checkpointing": (2, lambda: MeshStrategy(shard=Shard(2), activation_checkpointing=True)),
    "context": (2, lambda: MeshStrategy(context=2)),
}


def check(rank: int, name: str) -> None:
    check_strategy(OURS[name][1])


SLOW = (  # four processes, or similar to a faster one
    *("pipeline+replicate", "pipeline+tensor", "replicate+tensor", "hsdp", "model_parallel"),
    *("interleaved", "zero bubble", "shard+checkpointing"),
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in OURS])
def test_ours(name: str):
    ranks(OURS[name][0], check, name)


class Averaging(Strategy):
    """A third party's strategy: averages the gradients of replicas by hand, once per window."""

    launcher = "subprocess"

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    @property
    def root_device(self) -> torch.device:
        return self.devices[0]

    def setup_environment(self) -> None:
        self.collectives = self.data = join(self.environment, self.accelerator, self.root_device)
        self.data_rank = self.data_place = self.global_rank
        self.data_size = self.world_size

    def init_context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def place(self, module: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> None:
        self.module = module
        for name, step in steps.items():
            setattr(self, name, in_context(step, self.precision.step_context("cpu")))

    def optimizer(self, optimizer: Any) -> Any:
        return optimizer

    def forward_backward(self, batch: Any, batch_idx: int, backward: Any, sync: bool) -> Any:
        output = self.training_step(batch, batch_idx)
        backward(output)
        if sync and self.wrong != "no average":
            for parameter in self.module.parameters():
                distributed.all_reduce(parameter.grad)
                parameter.grad /= self.world_size
        return output

    def batch_to_device(self, batch: Any) -> Any:
        return to_device(batch, self.root_device)

    def clip_gradients(self, optimizer: Any, value: float, algorithm: str) -> Any:
        norm = SingleDeviceStrategy.clip_gradients(self, optimizer, value, algorithm)
        return norm * 2 if self.wrong == "norm" and norm is not None else norm

    def module_state(self) -> dict[str, Any]:
        return dict(self.module.state_dict())

    def load_module_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        self.module.load_state_dict(state, strict=strict)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        if self.wrong != "forgets":
            optimizer.load_state_dict(state)


def wrong(what: str) -> Strategy:
    return Averaging(what)


def failures(rank: int) -> list[str]:
    """Return the conformance errors of strategies that are each wrong in one respect."""
    found = []
    for what, check in (("no average", "trains"), ("norm", "clips_norm"), ("forgets", "loads")):
        with pytest.raises(AssertionError) as caught:
            check_strategy(lambda what=what: wrong(what), without=[name for name in NAMES if name != check])
        found.append(str(caught.value))
    return found


NAMES = (
    "trains", "accumulates", "clips_norm", "clips_value", "evaluates", "predicts", "saves", "loads", "fits_twice",
    "raises", "ends",
)  # fmt: skip


def test_somebody_elses_in_processes_of_its_own():
    check_strategy(Averaging, 2, method="fork")


def test_wrong_ones_fail_on_every_process():
    first, second = ranks(2, failures)
    assert first == second
    for text in ("the loss of batch 1 is", "the weight 'model.", "train_loss_epoch is"):
        assert f"The strategy Averaging fails the check 'trains': {text}" in first[0]
    assert first[1].startswith(
        "The strategy Averaging fails the check 'clips_norm': the norm of the gradients of step 0 is"
    )
    assert first[2].startswith("The strategy Averaging fails the check 'loads': the weight 'model.")
    assert "after resuming from a checkpoint of one device" in first[2]


def test_a_failure_comes_out_of_the_launched_processes():
    with pytest.raises(AssertionError, match="fails the check 'evaluates'") as caught:
        check_strategy(NoReduction, 2, method="fork", without=[name for name in NAMES if name != "evaluates"])
    assert "on one device" in str(caught.value)


class NoReduction(Averaging):
    def setup_environment(self) -> None:
        super().setup_environment()
        self.data_rank = 0


def test_unknown_checks():
    with pytest.raises(UnknownNameError, match="trains"):
        check_strategy(Averaging, without=["train"])
