"""State by name: numbered as on one device, gathered in full, and sharded again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from lightlib.errors import CheckpointError, MisconfigurationException
from lightlib.strategies import state_by_name
from tests.processes.ranks import ranks


def layers():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))


def names_of(module, *groups):
    return [[name for name, _ in module.named_parameters() if name[0] in group] for group in groups]


def stepped(module, names, **options):
    """Return an optimizer with state and with the parameter groups of `names`."""
    by_name = dict(module.named_parameters())
    optimizer = torch.optim.SGD(
        [{"params": [by_name[n] for n in group]} for group in names], lr=0.1, momentum=0.9, **options
    )
    for index, parameter in enumerate(by_name.values()):
        parameter.grad = torch.full_like(parameter, index + 1.0)
    optimizer.step()
    return optimizer


def buffers(optimizer, module):
    return {name: optimizer.state[p]["momentum_buffer"] for name, p in module.named_parameters()}


class TestLoading:
    def test_by_name_whatever_the_order(self):
        module = layers()
        names = names_of(module, "0", "1")
        saved = stepped(module, names).state_dict()
        for group, own in zip(saved["param_groups"], names, strict=True):
            group["param_names"] = own
        other = layers()
        turned = [list(reversed(group)) for group in names]
        optimizer = stepped(other, turned)
        for buffer in buffers(optimizer, other).values():
            buffer.zero_()
        state_by_name.load_optimizer_state(optimizer, saved, turned, [])
        for index, buffer in enumerate(buffers(optimizer, other).values()):
            assert buffer.unique().tolist() == [index + 1.0]
        assert "param_names" not in optimizer.param_groups[0]

    def test_without_names_the_order_is_the_modules(self):
        module = layers()
        order = [name for name, _ in module.named_parameters()]
        saved = stepped(module, [order]).state_dict()
        other = layers()
        optimizer = stepped(other, [order[2:]])
        state_by_name.load_optimizer_state(optimizer, saved, [order[2:]], order)
        assert [len(group["params"]) for group in optimizer.param_groups] == [2]
        assert optimizer.state[other[1].bias]["momentum_buffer"].unique().tolist() == [4.0]

    def test_other_groups(self):
        module = layers()
        saved = stepped(module, names_of(module, "01")).state_dict()
        with pytest.raises(CheckpointError, match=r"optimizer has 1 groups, this one has 2.*\n.*same order"):
            state_by_name.load_optimizer_state(stepped(module, names_of(module, "0", "1")), saved, [], [])

    def test_what_another_process_holds_is_not_unexpected(self):
        module = layers()
        whole = {name: torch.ones_like(value) for name, value in module.state_dict().items()}
        known = list(whole)
        del module[1]
        state_by_name.load_module_state(module, whole, True, known)
        assert module[0].weight.unique().tolist() == [1.0]
        with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: '1.bias'"):
            state_by_name.load_module_state(module, {n: v for n, v in whole.items() if n != "1.bias"}, True, known)
        with pytest.raises(RuntimeError, match="Unexpected key"):
            state_by_name.load_module_state(module, {**whole, "2.weight": torch.ones(1)}, True, known)
        state_by_name.load_module_state(module, {"0.bias": torch.zeros(5)}, False, known)
        assert module[0].bias.unique().tolist() == [0.0]


def spread(rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    module = layers()
    names = names_of(module, "0", "1")
    whole = {name: value.clone() for name, value in module.state_dict().items()}
    for part in module:
        for key, parameter in list(part.named_parameters()):
            part.register_parameter(key, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
    optimizer = stepped(module, names)
    order = [name for name, _ in module.named_parameters()]
    gathered = state_by_name.module_state(module, False)
    of_optimizer = state_by_name.optimizer_state(optimizer, names, False, order)
    box = [gathered, of_optimizer]
    torch.distributed.broadcast_object_list(box, 0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    state_by_name.load_module_state(module, box[0], True, order)
    state_by_name.load_optimizer_state(optimizer, box[1], names, order)
    again = {name: p.full_tensor() for name, p in module.named_parameters()}
    kept = all(isinstance(value, DTensor) for value in buffers(optimizer, module).values())
    momentum = [value.full_tensor().unique().tolist() for value in buffers(optimizer, module).values()]
    state_by_name.mark_placed(module, object())
    with pytest.raises(
        MisconfigurationException, match="Sequential is sharded over processes by the strategy of another"
    ):
        state_by_name.refuse_placed(module)
    return list(gathered), of_optimizer, again, kept, momentum, whole


@pytest.mark.processes
def test_parts_are_gathered_and_cut_again():
    first, second = ranks(2, spread)
    assert first[0] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert second[0] == []
    assert second[1] == {}
    assert [group["params"] for group in first[1]["param_groups"]] == [[0, 1], [2, 3]]
    assert [group["param_names"] for group in first[1]["param_groups"]] == names_of(layers(), "0", "1")
    plain = layers()
    stepped(plain, names_of(plain, "0", "1"))
    for _, _, again, kept, momentum, _ in (first, second):
        assert kept
        assert momentum == [[1.0], [2.0], [3.0], [4.0]]
        for name, value in plain.state_dict().items():
            assert torch.equal(again[name], value), name


def staged(rank):
    """Each process has one of the two layers."""
    torch.distributed.init_process_group("gloo")
    module = layers()
    order = list(module.state_dict())
    del module[1 - rank]  # a Sequential renumbers its layers:
    module = nn.ModuleDict({str(rank): module[0]})
    names = [list(dict(module.named_parameters()))]
    optimizer = stepped(module, names)
    return state_by_name.module_state(module, True, order), state_by_name.optimizer_state(optimizer, names, True, order)


@pytest.mark.processes
def test_stages_are_put_together():
    (weights, optimizer), (nothing, none) = ranks(2, staged)
    assert list(weights) == list(layers().state_dict())
    assert (nothing, none) == ({}, {})
    (group,) = optimizer["param_groups"]
    assert group["param_names"] == list(weights)
    assert group["params"] == sorted(optimizer["state"]) == [0, 1, 2, 3]
    assert [optimizer["state"][i]["momentum_buffer"].shape for i in range(4)] == [v.shape for v in weights.values()]
