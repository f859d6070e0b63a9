"""Simulated steps against real ones, on one device and on four processes: the same peak."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lightlib
from lightlib.errors import LightlibError
from lightlib.precision.precision import Precision
from lightlib.simulation.fit import SimulationError, measure, simulate
from lightlib.simulation.mailbox import Mailbox, NotSentError
from lightlib.strategies.single import SingleDeviceStrategy
from tests.processes.ranks import ranks
from tests.runs.modules import Holds
from tests.runs.plain import with_methods
from tests.simulation.counted import STRATEGIES, count, set_up
from tests.simulation.models import MODELS, decoder, mlp

PRECISIONS = ("32-true", "bf16-mixed")
EXACT = ("single_device", "ddp", "zero1", "fsdp", "fsdp + checkpointing", "hsdp", "tensor", "tensor 2, shard 2")
STATISTICS = 1e-4  # torch simulates those of a batch norm in bfloat16, and keeps them in float32
OF_MICROBATCHES = 2**11  # the same in bytes, of all micro-batches in flight
TOLERANCE = 0.02  # in pipelines, as docs/plan.md promises
MESSAGE = 2**16  # the bytes of a message between two stages here, which a real stage may keep longer


def simulated(model, name, precision, processes):
    """Return the results of `count`, for each rank."""
    mailbox, found, waiting = Mailbox(), {}, list(range(processes))
    while waiting:
        rank = waiting.pop(0)
        module, batch = MODELS[model]()
        make = SingleDeviceStrategy if name == "single_device" else STRATEGIES[name]
        try:
            one = simulate(
                module, batch, make(), processes, precision=Precision.named(precision), rank=rank, mailbox=mailbox
            )
            found[rank] = one.peak, one.after
        except NotSentError:
            waiting.append(rank)
        except LightlibError as error:
            found[rank] = str(error).partition("\n")[0]
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_device_is_exact(model, precision):
    found, real = simulated(model, "single_device", precision, 1)[0], count(0, [(model, "single_device", precision)])[0]
    assert found == (pytest.approx(real, rel=STATISTICS) if model == "convolutions" else real)


QUICK = ("ddp", "fsdp", "tensor", "pipeline")  # all strategies with all models and precisions take eight minutes


@pytest.mark.processes
def test_four_processes_are_exact_or_within_two_percent():
    compare("mlp", "32-true", QUICK)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*batch normalisation within a pipeline")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_strategy_on_four_processes(model, precision):
    compare(model, precision, STRATEGIES)


def compare(model, precision, names):
    cases = [(model, name, precision) for name in names]
    real = ranks(4, count, cases)
    for index, case in enumerate(cases):
        for rank, expected in simulated(*case, 4).items():
            found = real[rank][index]
            if isinstance(found, str):
                assert expected == found, (case, rank)
                continue
            if case[1] in EXACT:
                assert expected == (pytest.approx(found, rel=STATISTICS) if model == "convolutions" else found), case
                continue
            more = OF_MICROBATCHES if model == "convolutions" else 0
            assert expected[0] == pytest.approx(found[0], rel=TOLERANCE, abs=MESSAGE + more), (case, rank)
            assert expected[0] <= found[0], (case, rank)  # so "does not fit" is never wrong


@settings(max_examples=6, deadline=None)
@given(width=st.integers(1, 80), depth=st.integers(1, 5), samples=st.integers(1, 40))
def test_any_width_depth_and_batch_is_exact(width, depth, samples):
    module, batch = mlp(width, depth, samples)
    found = simulate(module, batch, SingleDeviceStrategy())
    torch.manual_seed(1)
    real = measure(*mlp(width, depth, samples), set_up(SingleDeviceStrategy(), "32-true"))
    assert (found.peak, found.after, found.amounts) == (real.peak, real.after, real.amounts)


def test_the_amounts_are_those_of_the_tensors():
    module, batch = mlp(64, 2, 8)
    stored = sum(p.numel() * 4 for p in module.parameters())
    found = simulate(module, batch, SingleDeviceStrategy())
    assert (found.amounts.parameters, found.amounts.gradients) == (stored, stored)
    assert found.amounts.optimizer_state == 2 * stored + 4 * len(list(module.parameters()))  # AdamW's steps
    assert found.peak == sum(vars(found.amounts).values())
    assert found.where == "optimizer step"
    assert found.flops == 2 * 3 * 2 * 8 * 64 * 64 - 2 * 8 * 64 * 64  # no gradient of the batch


def test_bytes_that_are_sent():
    stored = sum(p.numel() * 4 for p in mlp(64, 2, 8)[0].parameters())
    ddp = simulate(*mlp(64, 2, 8), STRATEGIES["ddp"](), 2, 2)
    assert ddp.sent == {"all-reduce": 2 * 3 * stored // 4}  # a ring: 2 (n - 1) / n of all
    assert ddp.between == ddp.sent["all-reduce"]
    fsdp = simulate(*mlp(64, 2, 8), STRATEGIES["fsdp"](), 4)
    assert set(fsdp.sent) == {"all-gather", "reduce-scatter"}
    assert fsdp.sent["reduce-scatter"] == 3 * stored // 4
    assert fsdp.between == 0


def test_a_module_stays_as_it_is_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, batch = decoder(32, 2, 8, 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes, methods = torch.get_default_dtype(), nn.Module._apply
    for name in ("ddp", "fsdp", "tensor", "pipeline"):
        for rank in (0, 1):
            try:
                simulate(module, batch, STRATEGIES[name](), 2, rank=rank)
            except NotSentError:
                assert (name, rank) == ("pipeline", 1)  # the first stage has not sent anything in its mailbox
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(type(p) is nn.Parameter and p.grad is None for p in module.parameters())
    assert not torch.distributed.is_initialized()
    assert (torch.get_default_dtype(), nn.Module._apply) == (modes, methods)
    assert torch.ones(2).sum().item() == 2.0
    assert not list(tmp_path.iterdir())


def test_a_module_on_the_meta_device():
    with torch.device("meta"):
        module = decoder(32, 2, 8, 2)[0]
    real, batch = decoder(32, 2, 8, 2)
    assert simulate(module, batch, SingleDeviceStrategy()) == simulate(real, batch, SingleDeviceStrategy())


def plain():
    """One layer of 264 bytes."""
    return Holds(lambda self, batch: self.layer(batch).sum(), layer=nn.Linear(32, 2))


def test_a_module_that_builds_itself_late():
    def configure_model(self):
        if self.layer is None:
            self.layer = nn.Linear(32, 2)

    late = with_methods(Holds(lambda self, batch: self.layer(batch).sum(), layer=None), configure_model)
    assert simulate(late, torch.ones(4, 32), SingleDeviceStrategy()).amounts.parameters == 264


def test_a_step_that_reads_a_value_is_named_with_its_line():
    def training_step(self, batch, batch_idx):
        if self.layer(batch).mean() > 0:  # this line
            return self.layer(batch).sum()
        return self.layer(batch).mean()

    with pytest.raises(SimulationError, match=r"test_fit\.py:\d+ needs a value") as caught:
        simulate(with_methods(plain(), training_step), torch.ones(4, 32), SingleDeviceStrategy())
    line = int(str(caught.value).partition("test_fit.py:")[2].partition(" ")[0])
    with open(__file__, encoding="utf-8") as file:
        assert "# this line" in file.readlines()[line - 1]
    assert torch.ones(2).sum().item() == 2.0


class ByHand(Holds):
    """Two optimizers, stepped by the module, one at a time."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer, layer in zip(self.optimizers(), (self.layer, self.other), strict=True):
            with self.toggled_optimizer(optimizer):
                optimizer.zero_grad()
                self.manual_backward(layer(batch).sum())
                optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(layer.parameters()) for layer in (self.layer, self.other)]


@pytest.mark.parametrize(("name", "sent"), [("single_device", {}), ("ddp", {"all-reduce": 528})])
def test_manual_optimization(name, sent):
    strategy = SingleDeviceStrategy() if name == "single_device" else STRATEGIES[name]()
    module = ByHand(layer=nn.Linear(32, 2), other=nn.Linear(32, 2))
    found = simulate(module, torch.ones(4, 32), strategy, 1 if name == "single_device" else 2)
    assert found.amounts.optimizer_state == 2 * 528 + 4 * 4
    assert found.sent == sent


def test_a_process_of_a_group_is_refused():
    torch.distributed.init_process_group("fake", store=torch.distributed.HashStore(), rank=0, world_size=2)
    try:
        with pytest.raises(lightlib.errors.MisconfigurationException, match="a run of 2 processes"):
            simulate(plain(), torch.ones(4, 32), STRATEGIES["ddp"](), 2)
    finally:
        torch.distributed.destroy_process_group()
