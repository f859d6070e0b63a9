"""Plans of the tensor axis: those found without a plan, and errors, by names and numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.nn import functional as F

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.report import PossibleUserWarning
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.tensor import Tensor, transformer_plan
from lightlib.strategies.axes.tensor.proposal import proposed
from tests.distributed.runs import Decoder


def check(module, size=2, plan=None, **options):
    """Check a module with the axis, as MeshStrategy does; return the styles that it will apply."""
    axis = Tensor(size, **options)
    given = ParallelPlan(tensor=plan or {}, loss_parallel=False)
    axis.check(module, SimpleNamespace(plan=given, device=torch.device("cpu"), sizes={"pipeline": 1}))
    return axis._styles


class Network(nn.Module):
    """Two layers of the usual names, with a given function in between."""

    def __init__(self, between):
        super().__init__()
        self.fc1, self.fc2, self.between = nn.Linear(6, 8), nn.Linear(8, 6), between

    def forward(self, x):
        return self.fc2(self.between(self.fc1(x)))


def normalized(x):
    return F.normalize(x, dim=-1)


def test_pairs_with_elementwise_functions_between_are_found():
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.0), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    assert proposed(module, 2).styles == {"0": "colwise", "3": "rowwise"}
    assert proposed(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)), 2).styles == {}
    assert proposed(nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 4)), 2).styles == {}


def test_usual_names_are_taken_only_when_a_trial_confirms_them():
    assert proposed(Network(F.gelu), 2).styles == {"fc1": "colwise", "fc2": "rowwise"}
    assert proposed(Network(nn.GELU()), 2).styles == {"fc1": "colwise", "fc2": "rowwise"}
    assert proposed(Network(normalized), 2).styles == {}
    assert proposed(Network(nn.LayerNorm(8)), 2).styles == {}
    with torch.device("meta"):
        without_memory = Network(F.relu)
    assert proposed(without_memory, 2).styles == {"fc1": "colwise", "fc2": "rowwise"}


def test_the_trial_changes_nothing():
    module, before = Network(nn.Dropout(0.5)), torch.get_rng_state()
    values = {name: value.clone() for name, value in module.state_dict().items()}
    assert proposed(module, 2).styles
    assert torch.equal(torch.get_rng_state(), before)
    assert module.between.training
    assert all(torch.equal(value, values[name]) for name, value in module.state_dict().items())


def test_layers_that_do_not_divide_are_left_whole():
    module = nn.Sequential(Network(F.relu), nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6)))
    found = proposed(module, 4)
    assert found.styles == {"0.fc1": "colwise", "0.fc2": "rowwise"}
    assert found.left == dict.fromkeys(["1.0", "1.2"], "4 does not divide out_features=9 of 1.0")


def test_the_plan_for_transformer_blocks():
    assert transformer_plan(Decoder()) == {
        "blocks.*.attention.q": "colwise",
        "blocks.*.attention.k": "colwise",
        "blocks.*.attention.v": "colwise",
        "blocks.*.attention.o": "rowwise",
        "blocks.*.network.gate": "colwise",
        "blocks.*.network.up": "colwise",
        "blocks.*.network.down": "rowwise",
    }
    assert check(Decoder(), plan=transformer_plan(Decoder()))["blocks.1.attention.o"] == "rowwise"


@pytest.mark.parametrize(
    "names", ["q_proj k_proj v_proj o_proj", "wq wk wv wo", "query key value out", "to_q to_k to_v to_out"]
)
def test_usual_names_of_attention(names):
    attention = nn.ModuleDict({name: nn.Linear(8, 8) for name in names.split()})
    *projections, out = names.split()
    assert transformer_plan(attention) == {**dict.fromkeys(projections, "colwise"), out: "rowwise"}


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.last = nn.Linear(8, 8)


def test_nothing_found_shows_the_plan_to_write_for_this_module():
    with pytest.raises(MisconfigurationException) as caught:
        check(Unknown())
    assert "nothing in Unknown can surely be split without a plan" in str(caught.value)
    assert 'ParallelPlan(tensor={\n            "first.*": "colwise",\n            "last": "rowwise",' in str(
        caught.value
    )


def test_nothing_that_divides_says_so():
    with pytest.raises(MisconfigurationException, match=r"0, 2: 2 does not divide out_features=9 of 0\."):
        check(nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 4)))


def test_a_module_without_linear_layers():
    with pytest.raises(MisconfigurationException, match="It has no Linear layer"):
        check(nn.Sequential(nn.Conv2d(3, 3, 1)))


PAIR = {"0": "colwise", "2": "rowwise"}


@pytest.mark.parametrize(
    ("plan", "size", "kind", "text"),
    [
        ({"1.fc": "colwise"}, 2, MisconfigurationException, "tensor='1.fc' matches no module"),
        ({"0": "columnwise"}, 2, UnknownNameError, "Unknown style of the tensor axis 'columnwise'"),
        ({"0": 3}, 2, ArgumentTypeError, r"The tensor plan has '0': 3 \(int\)"),
        ({"1": "colwise"}, 2, MisconfigurationException, "makes 1 colwise, but it is ReLU"),
        (
            PAIR,
            3,
            MisconfigurationException,
            r"0 \(Linear, out_features=8\) cannot be split colwise over tensor=3: 8 / 3",
        ),
        (PAIR, 3, MisconfigurationException, r"a size that divides 8: 1, 2, 4, 8"),
        ({"0": "colwise"}, 2, MisconfigurationException, "0 as colwise, and nothing rowwise in Sequential"),
        ({"2": "rowwise"}, 2, MisconfigurationException, "no layer gives it split inputs"),
    ],
)
def test_plans_that_do_not_fit(plan, size, kind, text):
    with pytest.raises(kind, match=text):
        check(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), size, plan)


def test_a_style_of_torch_is_taken_as_it_is():
    style = ColwiseParallel()
    assert check(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), plan={"0": style})["0"] is style


def test_partners_are_looked_for_in_the_same_block():
    plan = {"blocks.*.attention.q": "colwise", "head": "vocab"}
    with pytest.raises(
        MisconfigurationException, match=r"blocks.0.attention.q as colwise, and nothing rowwise in blocks.0"
    ):
        check(Decoder(), plan=plan)


def test_heads_that_do_not_divide():
    with pytest.raises(
        MisconfigurationException, match=r"blocks\.0\.attention has num_heads=1, which tensor=2 cannot split"
    ):
        check(Decoder(heads=1), plan=transformer_plan(Decoder()))


def test_fused_projections_are_refused():
    module = nn.ModuleDict({"qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8)})
    with pytest.raises(MisconfigurationException, match="qkv computes query, key and value at once"):
        check(module, plan={"qkv": "colwise", "out": "rowwise"})


def test_tied_parameters_are_split_alike():
    with pytest.raises(MisconfigurationException, match="words and head share one parameter"):
        check(Decoder(tied=True), plan={"words": "vocab"})


def test_loss_parallel_needs_scores():
    with pytest.raises(MisconfigurationException, match="the tensor plan splits no scores"):
        check(Decoder(), plan={"words": "vocab"}, loss_parallel=True)


def test_sequence_parallel_needs_blocks_and_all_their_layers():
    with pytest.raises(MisconfigurationException, match="has no blocks, between which"):
        check(Network(F.relu), sequence_parallel=True)
    plan = {"blocks.*.network.gate": "colwise", "blocks.*.network.up": "colwise", "blocks.*.network.down": "rowwise"}
    with pytest.raises(
        MisconfigurationException, match=r"blocks\.0\.attention\.q \(Linear\) is not in the tensor plan"
    ):
        check(Decoder(), plan=plan, sequence_parallel=True)


def test_dropout_on_parts_is_warned_of():
    with pytest.warns(PossibleUserWarning, match=r"1 \(Dropout\) works on parts of activations"):
        check(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 4)))
