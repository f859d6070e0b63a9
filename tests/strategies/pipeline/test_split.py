"""The layers of each stage, and the error when there is nothing to cut."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.pipeline.split import balance, find_split
from lightlib.strategies.pipeline.stage import AbsentLayer, AbsentLayerError, keep
from tests.runs.modules import Holds


def cut(module: nn.Module, count: int, stages: object = (), **plan: object) -> list[list[str]]:
    split = find_split(module, ParallelPlan(**plan), stages, count)
    return [[unit.name for unit in split.of(stage)] for stage in range(count)]


def layers(*widths: int) -> list[nn.Module]:
    return [one for width in widths for one in (nn.Linear(width, width), nn.ReLU())]


class Loop(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(8, 4), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 8)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second, self.third = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("costs", "count", "first", "last", "expected"),
    [
        ([1, 1, 1, 1], 2, 0, 0, [0, 2]),
        ([1, 1, 1, 5], 2, 0, 0, [0, 3]),
        ([4, 1, 1, 1, 1], 2, 0, 0, [0, 1]),
        ([1, 1, 1, 1], 2, 2, 0, [0, 1]),
        ([1, 1, 1, 1], 2, 0, 3, [0, 3]),
        ([3, 1, 1, 3, 1, 1], 3, 0, 0, [0, 2, 4]),
        ([7], 1, 0, 0, [0]),
    ],
)
def test_the_largest_stage_is_as_small_as_can_be(costs, count, first, last, expected) -> None:
    found = balance(costs, count, first, last)
    sizes = [sum(costs[a:b]) for a, b in zip(found, [*found[1:], len(costs)], strict=True)]
    wanted = [sum(costs[a:b]) for a, b in zip(expected, [*expected[1:], len(costs)], strict=True)]
    for one in (sizes, wanted):
        one[0] += first
        one[-1] += last
    assert max(sizes) == max(wanted)
    assert all(sizes)


def test_a_sequential_is_cut_where_parameters_balance_and_what_has_none_stays_with_what_is_before() -> None:
    module = Holds(net=nn.Sequential(*layers(4, 4, 4, 4)))
    assert cut(module, 2) == [
        ["net.0", "net.1", "net.2", "net.3"],
        ["net.4", "net.5", "net.6", "net.7"],
    ]


def test_sequentials_in_a_sequential_are_opened() -> None:
    module = Holds(net=nn.Sequential(nn.Flatten(), nn.Sequential(*layers(4, 4)), nn.Linear(4, 4)))
    assert cut(module, 3) == [["net.0", "net.1.0", "net.1.1"], ["net.1.2", "net.1.3"], ["net.2"]]


def test_a_sequential_deep_inside_is_the_part() -> None:
    module = Holds(model=Holds(features=nn.Sequential(*layers(4, 4, 4)), classifier=nn.Linear(4, 2)))
    split = find_split(module, ParallelPlan(), (), 3)
    assert (split.name, split.kind) == ("model.features", "chain")


def test_a_modulelist_is_cut_between_its_layers_and_the_rest_goes_to_both_ends() -> None:
    assert cut(Holds(model=Loop()), 2) == [
        ["model.embed", "model.blocks.0", "model.blocks.1"],
        ["model.blocks.2", "model.blocks.3", "model.norm", "model.head"],
    ]
    assert find_split(Holds(model=Loop()), ParallelPlan(), (), 2).kind == "blocks"


def test_a_modulelist_of_the_module_itself_makes_that_the_part() -> None:
    module = Holds(embed=nn.Embedding(8, 4), blocks=nn.ModuleList(layers(4, 4)))
    split = find_split(module, ParallelPlan(), (), 2)
    assert (split.name, split.kind) == ("", "blocks")


def test_names_at_which_a_stage_begins() -> None:
    module = Holds(model=Loop())
    wanted = [
        ["model.embed", "model.blocks.0"],
        ["model.blocks.1", "model.blocks.2", "model.blocks.3", "model.norm", "model.head"],
    ]
    for stages in (["blocks.1"], ["model.blocks.1"], ["embed", "blocks.1"]):
        assert cut(module, 2, stages) == wanted
        assert cut(module, 2, pipelined="model", stages=stages) == wanted
    assert find_split(module, ParallelPlan(), ["head"], 2).kind == "named"
    net = Holds(net=nn.Sequential(*layers(4, 4)))
    assert cut(net, 2, ["net.1"]) == [["net.0"], ["net.1", "net.2", "net.3"]]


def test_lists_of_names_for_each_stage() -> None:
    module = Holds(body=Plain())
    stages = [["first", "act"], ["second", "third"]]
    assert cut(module, 2, pipelined="body", stages=stages) == [
        ["body.first", "body.act"],
        ["body.second", "body.third"],
    ]


@pytest.mark.parametrize(
    ("stages", "count", "text"),
    [
        (["second", "first"], 3, "are not in the order of the module"),
        (["sekond"], 2, "stages names 'body.sekond', which matches nothing"),
        (["second"], 3, "makes 2 stages, but the pipeline has 3"),
        ([["first"], ["second"]], 2, "'body.third' has parameters, but is in no stage"),
        ([["first", "second", "third"], ["act"]], 2, "Stage 1 has no parameters"),
    ],
)
def test_stages_that_do_not_fit(stages, count, text) -> None:
    with pytest.raises(MisconfigurationException, match=text):
        cut(Holds(body=Plain()), count, pipelined="body", stages=stages)


def test_stages_of_other_types() -> None:
    with pytest.raises(ArgumentTypeError, match=r"stages holds 3 \(int\)"):
        cut(Holds(body=Plain()), 2, [3], pipelined="body")


def test_too_few_layers() -> None:
    with pytest.raises(MisconfigurationException, match="net has 2 layers with parameters, too few for 3 stages"):
        cut(Holds(net=nn.Sequential(*layers(4, 4))), 3)
    with pytest.raises(MisconfigurationException, match=r"model\.blocks has 2 layers with parameters, too few for 4"):
        cut(Holds(model=Loop(2)), 4)


def test_a_part_that_is_not_there_or_cannot_be_called() -> None:
    with pytest.raises(MisconfigurationException, match=r"pipelined='modle' is no module of it(.|\n)*'model'"):
        cut(Holds(model=Loop()), 2, pipelined="modle")
    with pytest.raises(MisconfigurationException, match=r"is a ModuleList, which cannot be called"):
        cut(Holds(model=Loop()), 2, pipelined="model.blocks")


def test_a_module_without_a_list_of_layers_gets_the_plan_to_write() -> None:
    with pytest.raises(MisconfigurationException) as caught:
        cut(Holds(convolution=nn.Linear(4, 4), middle=nn.Linear(4, 4), classifier=nn.Linear(4, 2)), 2)
    text = str(caught.value)
    assert "Holds has no nn.Sequential and no nn.ModuleList of layers" in text
    assert "ParallelPlan(pipelined='', stages=[['convolution'], ['middle', 'classifier']])" in text
    assert "x = self.convolution(x) if self.convolution is not None else x" in text


def test_what_is_kept_has_its_old_names_and_the_rest_has_no_parameters() -> None:
    module = Holds(model=Loop(), loss=nn.Linear(2, 2))
    split = find_split(module, ParallelPlan(), (), 2)
    keep(module, split, [0], 2, torch.device("cpu"), None)
    assert [name for name, _ in module.named_parameters()] == [
        "model.embed.weight",
        *(f"model.blocks.{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")),
    ]
    assert isinstance(module.model.head, AbsentLayer)
    assert list(module.loss.parameters()) == []
    torch.optim.SGD([{"params": module.model.parameters()}, {"params": module.model.head.parameters()}], 0.1)
    with pytest.raises(AbsentLayerError, match=r"self\.model\.head is on another stage"):
        module.model.head(torch.zeros(1, 4))
    assert not hasattr(module.loss, "weight")
    last = Holds(model=Loop(), loss=nn.Linear(2, 2))
    keep(last, find_split(last, ParallelPlan(), (), 2), [1], 2, torch.device("cpu"), None)
    assert [name for name, _ in last.named_children()] == ["model", "loss"]
    assert "model.blocks.3.weight" in last.state_dict()
    assert "model.embed.weight" not in last.state_dict()


@pytest.mark.parametrize(
    ("make", "stages"),
    [
        (lambda: nn.Sequential(*layers(4, 4, 4, 4)), ()),
        (Loop, ()),
        (Plain, [["first", "act"], ["second", "third"]]),
    ],
    ids=["chain", "blocks", "named"],
)
@pytest.mark.parametrize("own", [0, 1])
def test_parameters_of_other_stages_leave_the_memory(make, stages, own) -> None:
    module = Holds(model=make(), loss=nn.Linear(2, 2))
    before = {name: weakref.ref(parameter) for name, parameter in module.named_parameters()}
    plan = ParallelPlan(pipelined="model") if stages else ParallelPlan()
    named = [[f"model.{name}" for name in stage] for stage in stages]
    kept = keep(module, find_split(module, plan, named, 2), [own], 2, torch.device("cpu"), None)
    gc.collect()
    alive = {name for name, parameter in before.items() if parameter() is not None}
    assert alive == {name for name, _ in module.named_parameters()} != {*before}
    assert kept.keys() == {own}


def test_a_stage_runs_its_layers_and_leaves_the_module_as_it_was() -> None:
    torch.manual_seed(0)

    class Summing(Loop):
        def forward(self, text, shift=0.0):
            x = self.drop(self.embed(text)) + shift
            for index in range(len(self.blocks)):
                x = self.blocks[index](x)
            return self.head(self.norm(x))

    whole = Holds(model=Summing()).eval()
    text = torch.arange(6).view(2, 3)
    expected = whole.model(text)
    parts = []
    for own in (0, 1):
        module = Holds(model=Summing())
        module.load_state_dict(whole.state_dict())
        module.eval()
        stages = keep(module, find_split(module, ParallelPlan(), (), 2), [own], 2, torch.device("cpu"), None)
        parts.append((module, stages[own]))
    value = parts[0][1](None, ((text,), {}))
    assert torch.equal(parts[1][1](value, ((text,), {})), expected)
    for module, _ in parts:
        assert len(module.model.blocks) == 2
        assert "forward" not in module.model.__dict__
