"""MuonAdamW: the numbers of torch's two optimizers, which parameters go where, files, bad arguments."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributed import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

import lightlib as L
from lightlib.cli import LightningCLI
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.losses import ReferenceModel
from lightlib.optim import MuonAdamW, param_groups
from lightlib.report import PossibleUserWarning
from tests.runs.modules import Validated
from tests.runs.plain import Net, batches, loader, network, quiet_trainer, same_weights
from tests.runs.resumable import SaveAtStep

RATES = {"lr": 0.003, "muon_lr": 0.03}


def layers():
    """The same weights at every call: an input layer, a norm, a hidden layer and an output layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


def factory(_, **options):
    """The result of configure_optimizers: the run calls it with the module."""
    return partial(MuonAdamW, **RATES, **options)


def torchs(net, **options):
    """Both optimizers of torch for `layers()`."""
    first, norm, _, hidden, _, head = net
    flat = [first.bias, norm.weight, norm.bias, hidden.bias, head.bias]
    of_both = {"weight_decay": 0.1}
    muon = torch.optim.Muon([first.weight, hidden.weight], lr=0.03, **of_both, **options)
    groups = [{"params": [head.weight]}, {"params": flat, "weight_decay": 0.0}]
    return muon, torch.optim.AdamW(groups, lr=0.003, **of_both)


def warm_cosine(step):
    return min(1.0, (step + 1) / 3) * (1 + math.cos(math.pi * step / 8)) / 2


class TestNumbers:
    @pytest.mark.parametrize("options", [{}, {"nesterov": False, "ns_steps": 3}, {"adjust_lr_fn": "match_rms_adamw"}])
    def test_are_those_of_both_optimizers(self, options):
        """With accumulation, clipping, and one schedule with a warmup for the rates of both."""
        net = layers()
        optimizers = torchs(net, **options)
        schedules = [LambdaLR(optimizer, warm_cosine) for optimizer in optimizers]
        data = batches(16)
        for i in range(0, 16, 2):
            for x, y in data[i : i + 2]:
                (cross_entropy(net(x), y) / 2).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            for part in (*optimizers, *schedules):
                part.step()
            net.zero_grad()

        schedule = {"scheduler": partial(LambdaLR, lr_lambda=warm_cosine), "interval": "step"}
        configured = {"optimizer": factory(None, **options), "lr_scheduler": schedule}
        module = Net(lambda _: configured, net=layers())
        quiet_trainer(accumulate_grad_batches=2, gradient_clip_val=0.5).fit(module, data)
        for name, value in net.state_dict().items():
            torch.testing.assert_close(module.net.state_dict()[name], value, rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("foreach", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_are_equal_bit_for_bit(self, foreach, dtype):
        net, ours = layers().to(dtype), layers().to(dtype)
        optimizers, together = torchs(net), MuonAdamW(ours, **RATES, foreach=foreach)
        for x, y in batches(6):
            for each, several in ((net, optimizers), (ours, [together])):
                each.zero_grad()
                cross_entropy(each(x.to(dtype)), y).backward()
                for optimizer in several:
                    optimizer.step()
        assert same_weights(net, ours)

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_with_a_loss_scaler(self):
        net, module = layers(), Net(factory, net=layers())
        optimizers, scaler = torchs(net), torch.amp.GradScaler("cpu")
        for x, y in batches(8):
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(net(x), y)
            net.zero_grad()
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        quiet_trainer(precision="16-mixed").fit(module, batches(8))
        assert same_weights(net, module.net)

    def test_a_sharded_matrix_steps_as_a_full_one(self, tmp_path):
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            full, other = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(3))
            sharded = nn.Parameter(distribute_tensor(full.detach().clone(), mesh, [Shard(0)]))
            for matrix in (full, sharded):
                groups = [{"params": [matrix], "use_muon": True}, {"params": [other], "use_muon": False}]
                optimizer = MuonAdamW(groups)
                for _ in range(3):
                    optimizer.zero_grad()
                    (matrix.pow(3).sum()).backward()
                    optimizer.step()
            assert torch.equal(sharded.full_tensor(), full)
        finally:
            torch.distributed.destroy_process_group()

    def test_a_closure_gives_its_loss(self):
        net = layers()
        optimizer = MuonAdamW(net)
        assert optimizer.step(lambda: cross_entropy(net(batches(1)[0][0]), batches(1)[0][1])).item() > 0


class TestState:
    def test_is_resumed_bit_for_bit(self, tmp_path):
        def fit(*callbacks, **arguments):
            module = Validated(factory, dropout=0.2, net=layers())
            trainer = quiet_trainer(max_epochs=2, callbacks=list(callbacks), enable_checkpointing=False)
            trainer.fit(module, loader(24), loader(8), **arguments)
            return module

        complete = fit(SaveAtStep(tmp_path / "a.ckpt", 4))
        assert same_weights(fit(ckpt_path=tmp_path / "a.ckpt"), complete)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
    def test_a_copy_takes_another_group(self, copied):
        optimizer = copied(MuonAdamW(layers(), **RATES))
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 2))], "use_muon": True})
        assert optimizer.param_groups[-1]["lr"] == 0.03
        assert "muon_lr" not in optimizer.param_groups[-1]


class Tied(nn.Module):
    """Its output layer is its embedding."""

    def __init__(self, tied=True):
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.conv, self.head = nn.Conv2d(4, 4, 3), nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


class TestSplit:
    @staticmethod
    def names(module, **options):
        groups = MuonAdamW(module, **options).param_groups
        found = {id(p) for group in groups if group["use_muon"] for p in group["params"]}
        assert sum(len(group["params"]) for group in groups) == len(list(module.parameters()))
        return [name for name, p in module.named_parameters() if id(p) in found]

    @pytest.mark.parametrize("tied", [True, False])
    def test_embeddings_convolutions_and_the_output_layer_use_adamw(self, tied):
        assert self.names(Tied(tied)) == ["hidden.weight"]

    def test_a_frozen_model_at_the_end_has_not_the_output_layer(self):
        module = nn.ModuleDict({"model": layers(), "reference": ReferenceModel(layers())})
        found = [id(p) for group in MuonAdamW(module).param_groups if group["use_muon"] for p in group["params"]]
        assert found == [id(module["model"][index].weight) for index in (0, 3)]

    def test_rules_take_precedence(self):
        rules = {"net.0": {"use_muon": False}, "net.5.weight": {"use_muon": True, "lr_mult": 2}}
        module = Net(net=layers())
        assert self.names(module, rules=rules) == ["net.3.weight", "net.5.weight"]
        groups = MuonAdamW(module, **RATES, rules=rules).param_groups
        assert sorted(group["lr"] for group in groups for _ in group["params"]) == [0.003] * 6 + [0.03, 0.06]

    def test_groups_of_param_groups_are_taken(self):
        net = layers()
        groups = param_groups(net, 0.1, layers=["0", "3", "5"], layer_decay=0.5, muon_lr=0.4)
        rates = [(group["lr"], group["use_muon"]) for group in MuonAdamW(groups).param_groups]
        assert (0.1, True) in rates  # a fourth of 0.4
        assert (0.025, False) in rates

    @pytest.mark.parametrize("named", [True, False])
    def test_of_parameters_each_matrix_uses_muon(self, named):
        net = Tied()
        with pytest.warns(PossibleUserWarning, match="got 2 matrices without their module"):
            optimizer = MuonAdamW(net.named_parameters() if named else net.parameters())
        assert [len(group["params"]) for group in optimizer.param_groups] == [2, 3]
        assert [group["lr"] for group in optimizer.param_groups] == [0.02, 3e-4]
        if named:
            assert optimizer.param_groups[0]["param_names"] == ["embedding.weight", "hidden.weight"]


class TestConfiguration:
    YAML = """
optimizer:
  class_path: {name}
  init_args:
    lr: 0.003
    muon_lr: 0.03
    rules: {{net.0: {{use_muon: false}}}}
lr_scheduler: {{class_path: CosineAnnealingWarmupLR, init_args: {{warmup_steps: 2, total_steps: 10}}}}
"""

    @pytest.mark.parametrize("name", ["MuonAdamW", "lightlib.optim.MuonAdamW"])
    def test_the_module_is_given_to_it(self, name, tmp_path):
        class Model(L.Module):
            def __init__(self):
                super().__init__()
                self.net = layers()

        (tmp_path / "config.yaml").write_text(self.YAML.format(name=name))
        cli = LightningCLI(Model, run=False, args=[f"--config={tmp_path}/config.yaml"])
        (optimizer,), (scheduler,) = cli.model.configure_optimizers()
        assert [len(group["params"]) for group in optimizer.param_groups if group["use_muon"]] == [1]
        firsts = [group["initial_lr"] for group in optimizer.param_groups]
        assert sorted(set(firsts)) == [0.003, 0.03]
        for _ in range(2):
            optimizer.step()
            scheduler.step()
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(firsts)


def test_a_matrix_that_an_engine_has_flattened_is_refused():
    optimizer = MuonAdamW(layers())
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(parameter.detach().flatten()) for parameter in group["params"]]
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    with pytest.raises(MisconfigurationException, match=r"of shape \(48,\) .*[\s\S]* with DeepSpeed, strategy='fsdp'"):
        optimizer.step()


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("make", "error", "text"),
        [
            (lambda: MuonAdamW(nn.LayerNorm(3)), MisconfigurationException, "got 2 parameters, but no matrix"),
            (lambda: MuonAdamW([torch.ones(3)]), MisconfigurationException, "got 1 parameters, but no matrix"),
            (
                lambda: MuonAdamW([{"params": [torch.ones(3, 3)], "use_muon": True}]),
                MisconfigurationException,
                "got matrices only",
            ),
            (
                lambda: MuonAdamW([{"params": [torch.ones(3)], "use_muon": True}]),
                MisconfigurationException,
                r"of shape \(3,\) with use_muon=True",
            ),
            (
                lambda: MuonAdamW(layers(), rules={"0.bias": {"use_muon": True}}),
                MisconfigurationException,
                r"of shape \(8,\) with use_muon=True",
            ),
            (
                lambda: MuonAdamW(layers(), rules={"6": {"use_muon": True}}),
                MisconfigurationException,
                "matches no parameter",
            ),
            (
                lambda: MuonAdamW(network().parameters(), rules={"0": {"use_muon": True}}),
                MisconfigurationException,
                "without a module",
            ),
            (lambda: MuonAdamW(layers(), muon_lr=-1), MisconfigurationException, r"MuonAdamW\(muon_lr=-1\)"),
            (lambda: MuonAdamW(layers(), lr="fast"), ArgumentTypeError, "lr='fast'"),
            (lambda: MuonAdamW(layers(), momentum=1.0), MisconfigurationException, r"momentum=1.0"),
            (lambda: MuonAdamW(layers(), rules={"0.weight": {"use_muon": "no"}}), ArgumentTypeError, "use_muon='no'"),
            (lambda: MuonAdamW(layers(), ns_steps=0), MisconfigurationException, "ns_steps=0"),
            (lambda: MuonAdamW(layers(), nesterov=1), ArgumentTypeError, "nesterov=1"),
            (lambda: MuonAdamW(layers(), adjust_lr_fn="match"), MisconfigurationException, "'match_rms_adamw'"),
        ],
    )
    def test_are_refused(self, make, error, text):
        with pytest.raises(error, match=text) as caught:
            make()
        assert "Expected: " in str(caught.value)
        assert "Fix: " in str(caught.value)


def test_a_pipeline_with_groups_is_planned():
    sizes = [6, 8, 8, 8, 3]
    net = nn.Sequential(*(nn.Linear(size, after) for size, after in pairwise(sizes)))
    module = Net(factory, net=net)
    found = L.plan(module, batches(1)[0], devices=2, memory=10**9, strategies=["pipeline"])
    (cost,) = found.rows
    assert (cost.source, cost.fits) == ("simulated", True)
