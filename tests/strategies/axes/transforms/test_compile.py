"""torch.compile per block: identical blocks are compiled once, and results stay the same."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.transforms import ActivationCheckpoint, Compile

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"  # torch asks for it while it compiles
)
SITE = SimpleNamespace(plan=ParallelPlan(), around=(), pipelined=None)


@pytest.fixture
def counters(monkeypatch):
    """Torch's counters of compilations, from zero."""
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # torch's bar would leave a thread behind
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()
    counters.clear()


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def place(axis, net):
    axis.check(net, SITE)
    axis.apply(net, SITE)


def gradients(net):
    net(torch.ones(4, 8, requires_grad=True)).square().mean().backward()
    return [p.grad for p in net.parameters()]


def same(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_blocks_that_are_alike_are_compiled_once(counters, backend, checkpointed):
    plain = Net(Block() for _ in range(12))
    net = copy.deepcopy(plain)
    if checkpointed:
        place(ActivationCheckpoint(), net)
    place(Compile(backend=backend), net)
    same(gradients(plain), gradients(net))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert list(net.state_dict()) == list(plain.state_dict())


def test_blocks_that_differ_are_all_compiled(counters):
    net = Net(Block(width) for width in range(1, 15))  # more than torch compiles of one function
    place(Compile(backend="eager", fullgraph=True), net)
    gradients(net)
    assert counters["stats"]["unique_graphs"] == 14


def test_containers_are_compiled(counters):
    net = nn.Module()
    net.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    place(Compile(backend="eager"), net)
    net.layers(torch.ones(4, 8))
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["stats"]["calls_captured"] == 3


def test_children_are_compiled_where_there_are_no_blocks(counters):
    net = nn.Module()
    net.one, net.other, net.metric = Block(), Block(3), nn.Identity()
    place(Compile(backend="eager"), net)
    assert ["forward" in vars(child) for child in net.children()] == [True, True, False]
    net.other(net.one(torch.ones(4, 8)))
    assert counters["stats"]["unique_graphs"] == 2


def test_named_blocks(counters):
    net = Net(Block() for _ in range(3))
    place(Compile(blocks=["blocks.1"], backend="eager"), net)
    assert ["forward" in vars(block) for block in net.blocks] == [False, True, False]


def test_nothing_to_compile():
    with pytest.raises(MisconfigurationException, match="ReLU has no child module with parameters"):
        Compile().check(nn.ReLU(), SITE)
    with pytest.raises(MisconfigurationException, match=r"blocks='layers\.\*' matches no module"):
        Compile(blocks="layers.*").check(Net([Block()]), SITE)
