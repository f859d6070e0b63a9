"""One process, one device: placing, steps in their context, clipping, moving, and state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

from lightlib.accelerators import CPUAccelerator
from lightlib.errors import MisconfigurationException
from lightlib.launch.environment.detect import Environment
from lightlib.precision.precision import named
from lightlib.strategies.single import SingleDeviceStrategy, in_context
from lightlib.strategies.strategy import Strategy
from lightlib.tree import to_device

CPU, META = torch.device("cpu"), torch.device("meta")


class Pair(NamedTuple):
    x: torch.Tensor
    y: object


@dataclass
class Sample:
    x: torch.Tensor
    name: str = "a"


class MetaAccelerator(CPUAccelerator):
    """Stands for a device that is not the CPU, on every machine."""

    def setup_device(self, device):
        self.device = device


def strategy(precision="32-true", device=None):
    made = SingleDeviceStrategy(device)
    made.use(MetaAccelerator(), [CPU], named(precision), Environment("local"))
    made.setup_environment()
    return made


class TestPlacing:
    def test_the_device_is_the_trainers_or_ones_own(self):
        assert strategy().root_device == CPU
        assert strategy(device="meta").root_device == META

    def test_several_devices_are_refused(self):
        with pytest.raises(
            MisconfigurationException, match=r"single_device got 2 devices.*\n.*\n.*Trainer\(devices=1\)"
        ):
            SingleDeviceStrategy().use(CPUAccelerator(), [CPU, CPU], named(32), Environment("local"))

    def test_setup_moves_the_module_and_binds_the_steps(self):
        made, module = strategy(device="meta"), nn.Linear(2, 2)
        made.place(
            module, {"training_step": lambda batch: ("train", batch), "test_step": lambda batch: ("test", batch)}
        )
        assert module.weight.device == META
        assert made.module is module
        assert made.training_step(1) == ("train", 1)
        assert made.test_step(2) == ("test", 2)

    def test_setup_casts_what_the_precision_wants(self):
        made, module = strategy("64-true"), nn.Linear(2, 2)
        made.place(module, {})
        assert module.weight.dtype is torch.float64

    def test_init_context_is_device_and_dtype(self):
        with strategy("bf16-true", device="meta").init_context():
            layer = nn.Linear(2, 2)
        assert (layer.weight.device, layer.weight.dtype) == (META, torch.bfloat16)
        assert torch.get_default_dtype() is torch.float32

    def test_steps_run_under_autocast(self):
        made, module = strategy("bf16-mixed"), nn.Linear(2, 2)
        made.place(module, {"training_step": module})
        assert made.training_step(torch.ones(1, 2)).dtype is torch.bfloat16

    def test_without_autocast_the_step_is_the_step_itself(self):
        made, module = strategy(), nn.Linear(2, 2)
        step = lambda batch: batch  # noqa: E731
        made.place(module, {"training_step": step})
        assert made.training_step is step

    def test_state_before_setup_is_a_mistake_of_ours(self):
        with pytest.raises(AssertionError, match="place"):
            strategy().module_state()


class TestBatch:
    def test_forward_backward(self):
        made, calls = strategy(), []
        made.training_step = lambda batch, i: calls.append((batch, i)) or "output"
        assert made.forward_backward("batch", 3, calls.append, True) == "output"
        assert calls == [("batch", 3), "output"]

    def test_every_container_keeps_its_type(self):
        one = torch.ones(1)
        batch = {"a": [one, (one, "text")], "b": Pair(one, 3), "c": Sample(one), "d": None}
        moved = to_device(batch, META)
        assert type(moved["a"]) is list
        assert type(moved["a"][1]) is tuple
        assert isinstance(moved["b"], Pair)
        assert isinstance(moved["c"], Sample)
        assert {moved["a"][0].device, moved["a"][1][0].device, moved["b"].x.device, moved["c"].x.device} == {META}
        assert (moved["a"][1][1], moved["b"].y, moved["c"].name, moved["d"]) == ("text", 3, "a", None)
        assert batch["c"].x.device == CPU  # nothing is changed in place

    def test_anything_with_a_method_to(self):
        class Graph:
            def to(self, device):
                return f"graph on {device}"

        assert to_device([Graph()], META) == ["graph on meta"]

    def test_a_mapping_of_ones_own(self):
        from collections import OrderedDict, UserDict

        assert type(to_device(OrderedDict(a=torch.ones(1)), META)) is OrderedDict
        assert type(to_device(UserDict(a=torch.ones(1)), META)) is UserDict

    def test_the_strategy_uses_its_device(self):
        assert strategy(device="meta").batch_to_device([torch.ones(1)])[0].device == META


class TestClipping:
    @pytest.mark.parametrize("algorithm", ["norm", "value"])
    def test_is_that_of_torch(self, algorithm):
        ours, theirs = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        ours.grad, theirs.grad = torch.tensor([3.0, -4.0, 0.0]), torch.tensor([3.0, -4.0, 0.0])
        norm = strategy().clip_gradients(torch.optim.SGD([ours], lr=1), 2.0, algorithm)
        if algorithm == "norm":
            assert norm == torch.nn.utils.clip_grad_norm_([theirs], 2.0) == 5.0
        else:
            torch.nn.utils.clip_grad_value_([theirs], 2.0)
            assert norm is None
        assert ours.grad.equal(theirs.grad)

    def test_all_groups_together(self):
        one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        one.grad, other.grad = torch.tensor([3.0]), torch.tensor([4.0])
        optimizer = torch.optim.SGD([{"params": [one]}, {"params": [other], "lr": 0.1}], lr=1)
        assert strategy().clip_gradients(optimizer, 1.0, "norm") == 5.0
        assert one.grad.item() == pytest.approx(0.6)


class TestState:
    def test_module_and_optimizer(self):
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        one, other = strategy(), strategy()
        one.place(first, {})
        other.place(second, {})
        optimizer = one.optimizer(torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9))
        first(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        other.load_module_state(one.module_state())
        assert second.weight.equal(first.weight)
        again = torch.optim.SGD(second.parameters(), lr=0.5, momentum=0.9)
        other.load_optimizer_state(again, one.optimizer_state(optimizer))
        assert again.param_groups[0]["lr"] == 0.1
        assert again.state[second.weight]["momentum_buffer"].equal(optimizer.state[first.weight]["momentum_buffer"])

    def test_strict(self):
        made = strategy()
        made.place(nn.Linear(2, 2), {})
        with pytest.raises(RuntimeError, match="Missing key"):
            made.load_module_state({"weight": torch.zeros(2, 2)})
        made.load_module_state({"weight": torch.zeros(2, 2)}, strict=False)
        assert made.module.weight.sum() == 0

    def test_teardown_on_the_cpu_moves_nothing(self):
        made, module = strategy(), nn.Linear(2, 2)
        made.place(module, {})
        weight = module.weight.data_ptr()
        made.teardown()
        assert module.weight.data_ptr() == weight


class TestProcesses:
    def test_ranks(self):
        made = strategy()
        assert (made.global_rank, made.local_rank, made.node_rank, made.world_size) == (0, 0, 0, 1)
        assert (made.data_rank, made.data_size, made.is_global_zero) == (0, 1, True)

    def test_one_process_has_nobody_to_ask(self):
        made, value = strategy(), torch.ones(2)
        assert made.broadcast("x") == "x"
        assert made.barrier("here") is None
        assert made.reduce(value, reduce_op="sum") is value
        assert made.all_gather(value) is value
        assert made.reduce_boolean_decision(True) is True
        assert made.reduce_boolean_decision(False, all=False) is False


def test_in_context_enters_anew_for_each_call():
    entered = []

    class Context:
        def __enter__(self):
            entered.append(True)

        def __exit__(self, *error):
            entered.append(False)

    step = in_context(lambda x: x + 1, Context)
    assert (step(1), step(2)) == (2, 3)
    assert entered == [True, False, True, False]


def test_the_interface_cannot_be_used_itself():
    with pytest.raises(TypeError, match="abstract"):
        Strategy()


def test_the_accelerator_is_told_about_its_device():
    assert strategy(device="meta").accelerator.device == META
