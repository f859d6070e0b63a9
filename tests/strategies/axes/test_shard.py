"""Units that are gathered at once, the layout of shards, and errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lightlib.accelerators import CPUAccelerator
from lightlib.errors import MisconfigurationException
from lightlib.precision.precision import named
from lightlib.strategies.axes import shard
from lightlib.strategies.axes.axis import AxisContext
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.group.collectives import SingleProcess
from tests.processes.ranks import ranks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x) + self.heads["b"](x)


def site_of(mesh=None, automatic=True, **plan):
    sizes = dict.fromkeys(("pipeline", "replicate", "shard", "context", "tensor"), 1)
    return AxisContext(
        mesh=mesh, device=torch.device("cpu"), accelerator=CPUAccelerator(), precision=named("32-true"),
        plan=ParallelPlan(**plan), names=[], collectives=SingleProcess(), sizes=sizes,
        splits_batch=("replicate", "shard"), splits_samples=("context",), automatic=automatic,
    )  # fmt: skip


def units(axis, site, module=None):
    module = module or Net()
    names = {id(part): name for name, part in module.named_modules()}
    return [names[id(part)] for part in axis._units(module, site)]


def chain(layers):
    return nn.Sequential(*(nn.Linear(*layer) for layer in layers))


def sizes(module):
    return [sum(p.numel() for p in part.parameters()) for part in module]


class TestUnits:
    def test_the_blocks_are_found(self):
        assert units(Shard(2), site_of()) == ["blocks.2", "blocks.1", "blocks.0"]

    def test_those_of_the_plan(self):
        assert units(Shard(2), site_of(blocks=["blocks.[12]"])) == ["blocks.2", "blocks.1"]

    def test_names_and_functions_take_the_place_of_the_plan(self):
        assert units(Shard(2, blocks=["embed"]), site_of(blocks=["blocks.*"])) == ["embed"]
        assert units(Shard(2, blocks=lambda name, part: "heads" in name), site_of()) == ["heads.b", "heads.a"]

    def test_in_manual_optimization_every_layer(self):
        assert units(Shard(2), site_of(automatic=False)) == [
            "heads.b", "heads.a", "blocks.2", "blocks.1", "blocks.0", "embed",
        ]  # fmt: skip

    def test_the_smallest_children_stay_with_the_root(self):
        """At most half of the largest one together: 20 and 40 of 132, but not 72 more."""
        module = chain([(4, 4), (4, 8), (8, 8), (8, 12), (12, 10)])
        assert sizes(module) == [20, 40, 72, 108, 130]
        assert units(Shard(2), site_of(), module) == ["4", "3", "2"]
        module = chain([(4, 4), (4, 8), (8, 8), (8, 8), (8, 13)])
        assert sizes(module) == [20, 40, 72, 72, 117]
        assert units(Shard(2), site_of(), module) == ["4", "3", "2", "1"]

    def test_children_of_the_same_size_are_units(self):
        assert units(Shard(2), site_of(), chain([(4, 4), (4, 4)])) == ["1", "0"]

    @pytest.mark.parametrize("axis", [Shard(2, blocks=["?"]), Shard(2, blocks=lambda name, part: bool(name))])
    def test_chosen_units_may_be_small(self, axis):
        assert units(axis, site_of(), chain([(4, 1), (4, 4)])) == ["1", "0"]
        assert units(Shard(2), site_of(blocks=["?"]), chain([(4, 1), (4, 4)])) == ["1", "0"]

    def test_a_list_that_is_never_called_is_no_measure(self):
        lists = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.ModuleList([nn.Linear(8, 80)])])
        assert units(Shard(2), site_of(), nn.ModuleDict({"lists": lists})) == ["lists.1", "lists.0"]

    def test_a_tied_parameter_stays_with_the_root(self):
        module = chain([(8, 8)] * 4)
        module[3].weight = module[0].weight
        assert units(Shard(2), site_of(), module) == ["2", "1"]
        within = chain([(8, 8)] * 2)
        within.append(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
        within[2][1].weight = within[2][0].weight
        assert units(Shard(2), site_of(), within) == ["2", "1", "0"]

    def test_experts_that_are_sharded_separately_do_not_count(self):
        module = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 40)) for _ in range(2)), nn.Linear(4, 12))
        site = site_of()
        assert units(Shard(2), site, module) == ["1", "0"]
        site.sharded_separately.append(([block[1] for block in module[:2]], None))
        assert units(Shard(2), site, module) == ["2", "1"]  # 20, 20 and 60

    def test_in_manual_optimization_small_ones_stay_with_the_child_that_is_called(self):
        inner = chain([(4, 1), (4, 4), (4, 4)])
        module = nn.ModuleDict({"model": inner, "head": nn.Linear(4, 1)})
        assert units(Shard(2), site_of(automatic=False), module) == ["head", "model.2", "model.1", "model"]
        assert units(Shard(2), site_of(automatic=False), inner) == ["2", "1", "0"]  # each is called by the step

    def test_a_name_that_matches_nothing(self):
        with pytest.raises(MisconfigurationException, match=r"blocks='block.\*' matches no module"):
            units(Shard(2, blocks=["block.*"]), site_of())


def test_no_parameters():
    with pytest.raises(MisconfigurationException, match="ReLU has no parameters to shard"):
        Shard(2).check(nn.ReLU(), site_of())


class TestRootsInStages:
    def test_the_part_and_the_layers_outside(self):
        module = nn.ModuleDict({"model": nn.Sequential(nn.Linear(1, 1)), "head": nn.Linear(1, 1), "loss": nn.MSELoss()})
        assert shard._roots_in_stages(module, module["model"]) == [module["model"], module["head"]]
        assert shard._roots_in_stages(module, module) == [module]
        assert shard._roots_in_stages(module, None) == [module]

    def test_a_part_further_inside(self):
        inner = nn.Sequential(nn.Linear(1, 1))
        module = nn.ModuleDict({"outer": nn.ModuleDict({"embed": nn.Linear(1, 1), "layers": inner})})
        assert shard._roots_in_stages(module, inner) == [module["outer"]["embed"], inner]

    def test_a_parameter_of_its_own(self):
        module = nn.ModuleDict({"model": nn.Sequential(nn.Linear(1, 1))})
        module.scale = nn.Parameter(torch.ones(1))
        with pytest.raises(MisconfigurationException, match=r"holds the parameter 'scale' itself.*\n.*\n.*self.scale"):
            shard._roots_in_stages(module, module["model"])


def placed(rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    site = site_of(mesh)
    site.sizes["shard"] = 2
    piped = site_of(mesh)
    piped.cut_at(nn.Linear(1, 1))
    with pytest.raises(MisconfigurationException, match="reshard_after_forward=True within a pipeline"):
        Shard(2, reshard_after_forward=True).apply(Net(), piped)
    torch.manual_seed(1)
    module, axis = Net(), Shard(2, reshard_after_forward=False)
    axis.apply(module, site)
    x = torch.ones(2, 4)
    steps = {name: axis.enter(name, module.__call__) for name in ("training_step", "validation_step")}
    kinds = []
    with torch.no_grad():
        for step in steps.values():
            step(x)
            kinds.append({isinstance(p, DTensor) for p in module.parameters()})
    axis.teardown()
    kinds.append({isinstance(p, DTensor) for p in module.parameters()})
    seen = []

    def run(batch, batch_idx, backward, sync):
        steps["training_step"](batch).sum().backward()
        seen.append(module.embed.weight.grad is not None)

    around = axis.around(run)
    around(x, 0, None, False)
    around(x, 1, None, True)
    sharded = [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]
    return kinds, seen, sharded, sum(p.to_local().numel() for p in module.parameters()), list(module.state_dict())


@pytest.mark.processes
def test_parts_and_when_gradients_are_reduced():
    total = 0
    for kinds, seen, sharded, held, names in ranks(2, placed):
        assert kinds == [
            {False, True},
            {True},
            {True},
        ]  # gathered after a step of training, not after one of evaluation
        assert seen == [False, True]
        assert sharded == ["", "blocks.0", "blocks.1", "blocks.2"]
        assert names == list(Net().state_dict())
        total += held
    assert total == sum(p.numel() for p in Net().parameters())
