"""Modules that are built without memory, and get the values of an ordinary construction."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.materialize import Construction, fill, on_meta

CPU = torch.device("cpu")


def network():
    return nn.Sequential(
        nn.Embedding(5, 4),
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.LSTM(6, 3),
        nn.MultiheadAttention(4, 2),
        nn.Linear(3, 2),
    )


class TestFill:
    def test_values_are_those_of_an_ordinary_construction(self):
        torch.manual_seed(1)
        ordinary = network()
        after = torch.rand(3)
        torch.manual_seed(1)
        construction = Construction()
        with on_meta(construction):
            module = network()
        assert all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
        torch.rand(9)  # draws in between have no effect
        fill(module, CPU, construction)
        for name, value in ordinary.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name
        assert torch.equal(torch.rand(3), after)

    def test_what_has_memory_keeps_its_values(self):
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2, device="meta"))
        before = {name: value.clone() for name, value in module.state_dict().items() if not value.is_meta}
        fill(module, CPU, Construction())
        assert len(before) == 7
        for name, value in before.items():
            assert torch.equal(module.state_dict()[name], value), name
        assert not module[2].weight.is_meta

    def test_torchmetrics_keep_their_states(self):
        import torchmetrics

        module = nn.ModuleDict({"metric": torchmetrics.MeanMetric(), "layer": nn.Linear(1, 1, device="meta")})
        module["metric"].update(3.0)
        fill(module, CPU, Construction())
        assert module["metric"].compute() == 3.0

    def test_ties_stay(self):
        module = nn.ModuleDict({"in": nn.Linear(3, 3, device="meta"), "out": nn.Linear(3, 3, device="meta")})
        module["out"].weight = module["in"].weight
        fill(module, CPU, Construction())
        assert module["out"].weight is module["in"].weight

    def test_frozen_stays_frozen(self):
        module = nn.Linear(2, 2, device="meta").requires_grad_(False)
        fill(module, CPU, Construction())
        assert not module.weight.requires_grad


class Rescaled(nn.Module):
    """Sets values of its layers itself, at the end of its construction, and holds one of its own."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(3))
        self.layer, self.attention = nn.Linear(3, 3), nn.MultiheadAttention(4, 2)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.gain)
        nn.init.zeros_(self.layer.bias)
        nn.init.orthogonal_(self.layer.weight)


class TestContainers:
    def test_a_modules_own_reset_comes_after_those_of_its_layers(self):
        torch.manual_seed(1)
        ordinary, construction = nn.Sequential(Rescaled(), nn.Linear(2, 2)), Construction()
        torch.manual_seed(1)
        with on_meta(construction):
            module = nn.Sequential(Rescaled(), nn.Linear(2, 2))
        fill(module, CPU, construction)
        for name, value in ordinary.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name

    def test_copies_of_a_layer_draw_values_of_their_own(self):
        construction = Construction()
        with on_meta(construction):
            module = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False)
        fill(module, CPU, construction)
        for name, value in module.state_dict().items():
            assert value.isfinite().all(), name
        assert module.layers[0].linear1.weight.std() > 0
        assert module.layers[0].norm1.weight.unique().tolist() == [1.0]
        assert module.layers[0].self_attn.out_proj.bias.unique().tolist() == [0.0]


class Bare(nn.Module):
    def __init__(self, buffer=False):
        super().__init__()
        if buffer:
            self.register_buffer("table", torch.zeros(2))
        else:
            self.weight = nn.Parameter(torch.zeros(2))


class TestRefused:
    @pytest.mark.parametrize(("buffer", "name"), [(False, "weight"), (True, "table")])
    def test_no_reset(self, buffer, name):
        with torch.device("meta"):
            module = nn.Sequential(nn.Linear(1, 1), Bare(buffer))
        with pytest.raises(
            MisconfigurationException, match=rf"1 \(Bare\) was built.*holds '{name}', and has no `reset"
        ):
            fill(module, CPU, Construction())
        assert module[0].weight.is_meta  # nothing has changed yet

    def test_a_tensor_that_is_no_parameter(self):
        with torch.device("meta"):
            module = nn.Linear(1, 1)
            module.table = torch.zeros(2)
        with pytest.raises(MisconfigurationException, match=r"its attribute 'table' is a tensor that is no parameter"):
            fill(module, CPU, Construction())

    @pytest.mark.parametrize(
        "initialise", [nn.init.zeros_, nn.init.normal_, nn.init.xavier_uniform_, torch.Tensor.zero_]
    )
    def test_values_that_would_be_lost(self, initialise):
        text = r"test_materialize.py:\d+ sets the values of a parameter"
        with pytest.raises(MisconfigurationException, match=text), torch.no_grad(), on_meta(Construction()):
            initialise(nn.Linear(2, 2).weight)

    def test_own_reset_may_set_values(self):
        class Own(nn.Linear):
            def reset_parameters(self):
                nn.init.constant_(self.weight, 2.0)
                nn.init.zeros_(self.bias)

        with on_meta(Construction()):
            module = Own(2, 2)
        fill(module, CPU, Construction())
        assert module.weight.unique().tolist() == [2.0]
