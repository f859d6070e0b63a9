"""`lightlib.plan`: rows, the recommendation, the largest batch, the smallest change, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import lightlib
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.simulation.candidates import candidates
from lightlib.simulation.fit import simulate
from lightlib.strategies import MeshStrategy
from lightlib.strategies.single import SingleDeviceStrategy
from tests.runs.plain import with_methods
from tests.simulation.models import decoder, mlp, recurrent


def plan(*args, **options):
    return lightlib.plan(*args, **options)


def row_of(found, label):
    return next(row for row in found.rows if row.candidate.label == label)


class TestCandidates:
    def test_each_is_a_strategy_whose_sizes_multiply_to_the_processes(self):
        for devices, nodes in ((1, 1), (2, 1), (4, 1), (8, 4)):
            found = candidates(devices, nodes)
            assert len({one.label for one in found}) == len(found)
            for one in found:
                made = one.make()
                if isinstance(made, MeshStrategy):
                    sizes = [size for size in made.sizes.values() if size != -1]
                    assert devices * nodes % torch.tensor(sizes).prod().item() == 0
                assert len(one.ranks) == one.stages

    def test_tensor_parallelism_stays_within_a_machine(self):
        labels = [one.label for one in candidates(8, 4, ["tensor"])]
        assert labels == ["tensor 8, shard 4", "tensor 4, shard 8"]

    @pytest.mark.parametrize("devices", [1, 2, 4])
    def test_the_line_of_yaml_makes_the_same_strategy(self, devices):
        yaml = pytest.importorskip("yaml")
        for one in candidates(devices, 1):
            strategy = yaml.safe_load(one.yaml)["trainer"]["strategy"]
            if isinstance(strategy, str):
                continue
            kind = getattr(lightlib.strategies, strategy["class_path"].rpartition(".")[2])
            again, made = kind(**strategy["init_args"]), one.make()
            assert type(again) is type(made)
            assert getattr(again, "sizes", None) == getattr(made, "sizes", None)


class TestPlan:
    def test_the_first_that_fits_is_recommended(self):
        module, batch = mlp(64, 4, 8)
        peak = simulate(module, batch, SingleDeviceStrategy(), foreach=True).peak
        found = plan(module, batch, memory=round(peak / 0.9) + 1)
        assert found.recommended.candidate.label == "single_device"
        assert found.rows[0].counted.peak == peak
        assert found.largest == 8
        assert found.yaml == "trainer: {strategy: single_device}"
        assert plan(module, batch, memory=round(peak / 0.9) - 2).rows[0].fits is False

    def test_headroom(self):
        module, batch = mlp(64, 4, 8)
        peak = simulate(module, batch, SingleDeviceStrategy(), foreach=True).peak
        assert plan(module, batch, memory=peak, headroom=0).rows[0].fits is True
        assert plan(module, batch, memory=peak, headroom=0.01).rows[0].fits is False

    @pytest.mark.parametrize("share", [0.5, 0.8])
    def test_the_largest_batch_fits_and_the_next_one_does_not(self, share):
        module, batch = mlp(64, 4, 8)
        memory = round(simulate(module, batch, SingleDeviceStrategy(), samples=200, foreach=True).peak * share / 0.9)
        found = plan(module, batch, memory=memory)
        peaks = [
            simulate(module, batch, SingleDeviceStrategy(), samples=found.largest + more, foreach=True).peak
            for more in (0, 1)
        ]
        assert peaks[0] <= memory * 0.9 < peaks[1]

    def test_a_sharded_strategy_where_replicas_do_not_fit(self):
        module, batch = mlp(256, 8, 4)
        replicas = row_of(plan(module, batch, devices=4, strategies=["ddp"]), "ddp").counted.peak
        found = plan(module, batch, devices=4, memory=replicas, strategies=["ddp", "zero1"])
        assert row_of(found, "ddp").fits is False
        assert found.recommended.candidate.label == "zero1"
        assert "ddp would need" in found.reason

    def test_without_memory_nothing_is_recommended(self):
        found = plan(*mlp(32, 2, 4), devices=2)
        assert found.recommended is None
        assert {row.fits for row in found.rows} == {None}
        assert "pass the memory" in str(found)

    def test_several_batch_sizes(self):
        found = plan(*mlp(32, 2, 4), devices=2, strategies=["ddp"], batch_sizes=[2, 4, 8])
        assert [(row.candidate.label, row.samples, row.global_batch) for row in found.rows[:3]] == [
            ("ddp", 2, 4), ("ddp", 4, 8), ("ddp", 8, 16),
        ]  # fmt: skip
        peaks = [row.counted.peak for row in found.rows[:3]]
        assert peaks == sorted(peaks)

    def test_time_is_estimated_from_given_speeds_only(self):
        module, batch = mlp(64, 4, 8)
        assert plan(module, batch, devices=2, flops=1e12).rows[0].seconds is None
        found = plan(module, batch, devices=2, strategies=["ddp"], flops=1e12, link=1e9, memory=10**9)
        counted = found.rows[0].counted
        assert found.rows[0].seconds == pytest.approx(counted.flops / 1e12 + counted.sent["all-reduce"] / 1e9)
        assert found.recommended.rate == max(row.rate for row in found.rows)

    def test_stages_wait(self):
        found = plan(*mlp(64, 4, 8), devices=2, strategies=["pipeline"])
        assert found.rows[0].bubble == pytest.approx(1 / (4 + 1))  # 4 micro-batches, 2 stages

    def test_the_smallest_change(self):
        module, batch = mlp(64, 4, 256)
        memory = round(simulate(module, batch, SingleDeviceStrategy(), samples=64, foreach=True).peak / 0.9) + 1
        found = plan(module, batch, memory=memory)
        assert (found.recommended, found.largest) == (None, None)
        assert found.change == "With a batch of 64 in place of 256 samples it fits"
        assert "Nothing fits" in str(found)

    def test_more_devices_where_fewer_samples_do_not_help(self):
        module, batch = mlp(256, 8, 1)
        states = sum(p.numel() * 16 for p in module.parameters())
        found = plan(module, batch, devices=2, memory=states // 4, strategies=["ddp"])
        assert found.change.endswith("it fits: fsdp + checkpointing")
        assert row_of(found, "ddp").source == "formula"
        assert "> " in str(found)

    def test_values_for_programs(self):
        found = plan(*decoder(32, 2, 8, 4), devices=2, memory=10**8)
        read = json.loads(json.dumps(found.as_dict()))
        assert read["recommended"]["strategy"] == "ddp"
        assert read["rows"][0]["amounts"]["parameters"] == found.rows[0].counted.amounts.parameters
        assert read["yaml"] == "trainer: {strategy: ddp}"

    def test_a_strategy_that_refuses_the_module_says_why(self):
        found = plan(*recurrent(), devices=2, strategies=["pipeline", "ddp"], memory=10**9)
        assert "no nn.Sequential" in row_of(found, "pipeline 2").refused
        assert "pipeline 2: " in str(found)
        assert found.recommended.candidate.label == "ddp"
        assert "Recurrent layers" in str(found)


def test_the_page_shows_what_is_printed(capsys):
    page = (Path(__file__).parents[2] / "docs/plan.md").read_text(encoding="utf-8")
    code, shown = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "text"))
    exec(code, {})
    assert capsys.readouterr().out == shown


class Reads(lightlib.Module):
    """Reads the loss in the step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 2)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.last = loss.item()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Wrong(Reads):
    """Fails in the step."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def training_step(self, batch, batch_idx):
        if self.how == "a shape":
            return self.layer(batch[:, :3]).sum()
        if self.how == "a batch of another size":
            return self.layer(batch.view(4, 32)).sum()
        return self.missing if self.how == "a name" else self.trainer.missing


CONSTANT = torch.ones(2)


def test_constants_and_dropout():
    def training_step(self, batch, batch_idx):
        return (nn.functional.dropout(self.layer(batch)) * CONSTANT).sum()

    found = plan(
        with_methods(Reads, training_step), torch.ones(4, 32), devices=2, memory=10**9, strategies=["ddp", "fsdp"]
    )
    assert not found.obstacle
    assert {row.refused for row in found.rows[:2]} == {""}


def test_a_step_for_one_number_of_samples():
    found = plan(Wrong("a batch of another size"), torch.ones(4, 32), memory=10**9, batch_sizes=[4, 8])
    assert (found.obstacle, found.recommended.samples, found.largest) == ("", 4, 4)
    assert "failed in a simulation" in found.rows[1].refused


def test_random_numbers_go_on_as_before():
    module, batch = mlp(32, 4, 8)
    states = []
    for planned in (False, True):
        torch.manual_seed(3)
        if planned:
            plan(module, batch, devices=2)
        states.append(torch.rand(3))
    assert torch.equal(*states)


class TestWithoutSimulation:
    def test_the_line_and_the_formula(self):
        found = plan(Reads(), torch.ones(4, 32), devices=2, memory=10**9)
        assert "test_plan.py" in found.obstacle
        assert found.recommended is None
        assert {row.source for row in found.rows} == {"formula"}
        assert {row.fits for row in found.rows} == {None}  # activations come on top
        assert row_of(found, "ddp").counted.peak == 4 * 264
        assert row_of(found, "fsdp").counted.peak == 2 * 264
        assert "Not simulated" in str(found)

    def test_measured(self):
        module = Reads()
        before = module.layer.weight.clone()
        found = plan(module, torch.ones(4, 32), memory=10**9, measured=True)
        assert (found.rows[0].source, found.rows[0].candidate.label) == ("measured", "single_device")
        assert found.rows[0].counted.amounts.parameters == 264
        assert found.recommended is found.rows[0]
        assert torch.equal(module.layer.weight, before)
        assert not hasattr(module, "last")

    @pytest.mark.parametrize("name", ["a shape", "a name", "the trainer"])
    def test_an_error_of_the_step_is_its_own(self, name):
        module = Wrong(name)
        found = plan(module, torch.ones(4, 32), devices=2, memory=10**9)
        assert "failed in a simulation" in found.obstacle
        assert "test_plan.py:" in found.obstacle
        assert {row.source for row in found.rows} == {"formula"}


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"devices": 0}, "devices"),
            ({"nodes": -1}, "nodes"),
            ({"memory": 0}, "memory"),
            ({"headroom": 1}, "headroom"),
            ({"batch_sizes": [0]}, "batch_sizes"),
            ({"flops": -1.0}, "flops"),
            ({"link": float("nan")}, "link"),
        ],
    )
    def test_numbers(self, options, match):
        with pytest.raises(MisconfigurationException, match=match):
            plan(*mlp(8, 1, 2), **options)

    def test_types(self):
        with pytest.raises(ArgumentTypeError, match="memory"):
            plan(*mlp(8, 1, 2), memory="80GB")
        with pytest.raises(ArgumentTypeError, match=r"lightlib\.Module"):
            plan(nn.Linear(2, 2), torch.ones(2, 2))

    def test_an_unknown_strategy(self):
        with pytest.raises(UnknownNameError, match="fsdp"):
            plan(*mlp(8, 1, 2), devices=2, strategies=["fsdpp"])

    def test_a_module_without_a_step(self):
        with pytest.raises(MisconfigurationException, match="training_step"):
            plan(lightlib.Module(), torch.ones(2, 2))
