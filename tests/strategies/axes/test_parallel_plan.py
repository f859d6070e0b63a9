"""The structure that a module declares, and the structure that is found without a plan."""

from __future__ import annotations

import pytest
from torch import nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.strategies.axes.mixture import MixtureOfExperts
from lightlib.strategies.axes.parallel_plan import ParallelPlan, blocks_of, container_of, matching, plan_of


class Two(nn.Module):
    """A small and a larger container."""

    def __init__(self, plan=None):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3))
        self.plan = plan

    def parallel_plan(self):
        return self.plan


class TestPlanOf:
    def test_nothing_is_an_empty_plan(self):
        assert plan_of(Two()) == plan_of(nn.Linear(1, 1)) == ParallelPlan()

    def test_a_dict_has_the_names_of_the_fields(self):
        assert plan_of(Two({"blocks": ["blocks.*"], "loss_parallel": True})) == ParallelPlan(["blocks.*"], {}, True)

    def test_a_name_that_is_no_field(self):
        with pytest.raises(
            MisconfigurationException,
            match=r"the dict that Two.parallel_plan\(\) returned, 'block'\. Did you mean 'blocks'",
        ):
            plan_of(Two({"block": []}))

    def test_something_else(self):
        with pytest.raises(ArgumentTypeError, match=r"Two.parallel_plan\(\) returned \[1\]"):
            plan_of(Two([1]))


class TestMatching:
    def test_a_star_is_one_part_of_a_name(self):
        assert list(matching(Two(), ["blocks.*"], "blocks")) == ["blocks.0", "blocks.1", "blocks.2"]
        assert list(matching(Two(), ["blocks.[01].0", "first"], "blocks")) == ["first", "blocks.0.0", "blocks.1.0"]

    def test_what_matches_nothing_shows_what_is_near(self):
        with pytest.raises(MisconfigurationException, match=r"blocks='block.\*' matches no module") as caught:
            matching(Two(), ["block.*"], "blocks")
        assert "for instance 'blocks." in str(caught.value)


class TestBlocks:
    def test_those_of_the_plan(self):
        assert list(blocks_of(Two(), ParallelPlan(blocks=["first.*"]))) == ["first.0", "first.1", "first.2"]

    def test_else_the_children_with_parameters_of_the_largest_container(self):
        module = Two()
        assert container_of(module) == ("blocks", module.blocks)
        assert list(blocks_of(module, ParallelPlan())) == ["blocks.0", "blocks.1", "blocks.2"]
        assert list(blocks_of(module.first, ParallelPlan())) == ["0", "2"]

    def test_one_child_makes_no_container(self):
        assert container_of(nn.Sequential(nn.Linear(1, 1), nn.ReLU())) is None
        assert blocks_of(nn.Linear(1, 1), ParallelPlan()) == {}

    def test_experts_are_no_blocks(self):
        experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(9))
        module = nn.ModuleDict({"moe": MixtureOfExperts(nn.Linear(2, 9), experts), "other": Two()})
        found = container_of(module)
        assert found is not None
        assert found[0] == "other.blocks"

    def test_nor_are_layers_within_experts(self):
        deep = nn.Sequential(nn.Linear(2, 2), nn.ModuleList(nn.Linear(2, 2) for _ in range(5)), nn.Linear(2, 2))
        mixture = MixtureOfExperts(nn.Linear(2, 4), [deep for _ in range(4)])
        assert container_of(nn.ModuleDict({"moe": mixture})) is None
        assert blocks_of(nn.ModuleDict({"moe": mixture}), ParallelPlan()) == {}
        small = nn.ModuleDict({"moe": mixture, "other": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
        assert list(blocks_of(small, ParallelPlan())) == ["other.0", "other.1"]
