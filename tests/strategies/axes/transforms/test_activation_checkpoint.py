"""Activation checkpointing: the same numbers, bit for bit, from fewer kept tensors."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.transforms import ActivationCheckpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 8))

    def forward(self, x, *, scale=1.0):
        return x + scale * self.layers(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x


def site(**plan):
    return SimpleNamespace(plan=ParallelPlan(**plan), around=(), pipelined=None)


def place(axis, net, where):
    axis.check(net, where)
    axis.apply(net, where)


def run(net):
    """Return the loss, all gradients, and the bytes that are kept for backward."""
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(1)
    x = torch.randn(64, 8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = net(x).square().mean()
    bytes_kept = sum(kept.values())
    loss.backward()
    return loss.detach(), [p.grad for p in net.parameters()], bytes_kept


@pytest.mark.parametrize(("every", "share"), [(1, 0.3), (2, 0.7)])
def test_the_same_bits_from_fewer_kept_tensors(every, share):
    plain = Net()
    other = copy.deepcopy(plain)
    names = list(other.state_dict())
    place(ActivationCheckpoint(every=every), other, site())
    loss, gradients, kept = run(plain)
    again, others, fewer = run(other)
    assert torch.equal(loss, again)
    assert all(torch.equal(one, two) for one, two in zip(gradients, others, strict=True))
    assert fewer < share * kept
    assert list(other.state_dict()) == names


def test_named_blocks():
    net = Net()
    place(ActivationCheckpoint(blocks=["blocks.1.layers"]), net, site())
    assert ["forward" in vars(net.blocks[i].layers) for i in (0, 1)] == [False, True]
    net = Net()
    place(ActivationCheckpoint(), net, site(blocks=["blocks.[23]"]))
    assert ["forward" in vars(block) for block in net.blocks] == [False, False, True, True]


def test_a_copy_of_the_module_has_its_own_parameters():
    net = Net()
    place(ActivationCheckpoint(), net, site())
    twin = copy.deepcopy(net)
    twin(torch.ones(1, 8)).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    assert all(p.grad is not None for p in twin.parameters())


def test_evaluation_draws_and_keeps_nothing():
    net = Net().eval()
    expected = net(torch.ones(2, 8))
    place(ActivationCheckpoint(), net, site())
    with torch.no_grad():
        assert torch.equal(net(torch.ones(2, 8)), expected)
    with torch.inference_mode():
        assert torch.equal(net(torch.ones(2, 8)), expected)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"every": 0}, MisconfigurationException, r"ActivationCheckpoint\(every=0\)"),
        ({"every": 1.5}, ArgumentTypeError, r"every=1.5 \(float\)"),
        ({"every": True}, ArgumentTypeError, r"every=True \(bool\)"),
    ],
)
def test_bad_arguments(options, kind, text):
    with pytest.raises(kind, match=text):
        ActivationCheckpoint(**options)


def test_names_that_match_nothing_and_modules_without_blocks():
    with pytest.raises(MisconfigurationException, match="blocks='layers' matches no module"):
        ActivationCheckpoint(blocks="layers").check(Net(), site())
    with pytest.raises(MisconfigurationException, match="activation_checkpointing found no blocks in Block"):
        ActivationCheckpoint().check(_one(), site())


def _one():
    block = Block()
    block.layers = nn.Linear(8, 8)
    return block


def test_blocks_of_single_layers_are_warned_of():
    with pytest.warns(PossibleUserWarning, match=r"the blocks are single layers \(0, 2, …\)"):
        ActivationCheckpoint().check(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), site())
