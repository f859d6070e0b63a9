"""Hardware of another package: one class and an entry point; lightlib queries its capabilities."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import lightlib as L
from lightlib import registry
from lightlib.accelerators import Accelerator, CPUAccelerator, choose, lookup
from lightlib.accelerators.resolve import unused
from lightlib.core.module.loading import _present_device
from lightlib.data.prefetch import END, Prefetch
from lightlib.errors import MisconfigurationException
from lightlib.strategies import Context, DDPStrategy, FSDPStrategy, MeshStrategy, PipelineStrategy
from tests.processes.ranks import ranks
from tests.runs.modules import Regression

CPU = torch.device("cpu")
ABILITIES = {
    "priority": 40, "is_gpu": True, "has_streams": True, "pins_memory": False, "has_collectives": True,
    "has_float64": True, "has_ring_attention": False,
}  # fmt: skip


class Pretend(Accelerator):
    """Pretends to be an HPU, computes on the CPU, and records each query."""

    device_type = "hpu"

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.generator = torch.Generator().manual_seed(1)

    def __getattribute__(self, name: str) -> Any:
        if name in ABILITIES:
            self.asked.add(name)
            return ABILITIES[name]
        return super().__getattribute__(name)

    @staticmethod
    def parse_devices(devices):
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [CPU] * devices

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "hpu"

    def rng_state(self):
        return {"hpu": self.generator.get_state()}

    def set_rng_state(self, state):
        if "hpu" in state:
            self.generator.set_state(state["hpu"])

    def manual_seed(self, seed):
        self.asked.add("manual_seed")
        self.generator.manual_seed(seed)

    def fork_rng(self, device):
        self.asked.add("fork_rng")
        return super().fork_rng(device)

    def device_ids(self, device):
        self.asked.add("device_ids")
        return super().device_ids(device)

    def group_device(self, device):
        self.asked.add("group_device")
        return super().group_device(device)


class Modest(CPUAccelerator):
    """An accelerator without a priority, so it is used only by its name."""

    priority = 0

    @staticmethod
    def name():
        return "modest"


@pytest.fixture
def installed(monkeypatch):
    """Install a package with the accelerators `hpu` and `modest`."""
    kinds = {"hpu": Pretend, "modest": Modest}
    points = [EntryPoint(name, f"{__name__}:{kind.__name__}", "lightlib.accelerators") for name, kind in kinds.items()]
    find = lambda group: [point for point in points if point.group == group]  # noqa: E731  one place to patch
    monkeypatch.setattr(registry, "entry_points", find)
    monkeypatch.setattr(lookup, "_cache", {})


class Net(Regression):
    def __init__(self) -> None:
        first = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.Dropout(0.1)
        super().__init__(nn.Sequential(*first, nn.Linear(8, 2)))

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss


def trained(accelerator: Any, strategy: Any = "auto", devices: int = 1) -> list[torch.Tensor]:
    trainer = L.Trainer(
        accelerator=accelerator, strategy=strategy, devices=devices, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    L.seed_everything(0)
    trainer.fit(Net(), DataLoader(torch.randn(16, 4, generator=torch.Generator().manual_seed(2)), 4))
    return [value.clone() for value in trainer.strategy.module_state().values()]


@pytest.mark.usefixtures("installed")
class TestByName:
    def test_a_plugin_may_be_called_hpu_and_trains(self):
        accelerator = choose("hpu", 1)[0]
        assert isinstance(accelerator, Pretend)
        for found, wanted in zip(trained(accelerator), trained("cpu"), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert {"has_streams"} <= accelerator.asked
        assert [value.shape for value in trained("hpu")] == [value.shape for value in trained("cpu")]

    @pytest.mark.parametrize("accelerator", ["auto", "gpu"])
    def test_it_takes_part_by_its_priority(self, accelerator, monkeypatch):
        assert isinstance(choose(accelerator)[0], Pretend)
        assert unused(CPUAccelerator()) == "hpu"
        monkeypatch.setitem(ABILITIES, "priority", 0)
        assert not isinstance(choose("auto")[0], Pretend)

    def test_of_a_device(self, monkeypatch):
        device = torch.device("hpu", 0)
        assert isinstance(lookup.of(device), Pretend)
        assert lookup.of(device) is lookup.of(device)
        assert _present_device("storage", "hpu:0") is None
        assert _present_device("storage", "hpu:1") == "storage"
        assert _present_device("storage", "xpu:0") is None


def test_without_a_plugin_it_is_no_accelerator():
    with pytest.raises(MisconfigurationException, match="accelerator='hpu' is not supported"):
        choose("hpu")


def test_a_device_that_none_knows():
    unknown = lookup.of(torch.device("meta"))
    assert not unknown.has_streams
    assert not unknown.pins_memory
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with unknown.fork_rng(torch.device("meta")):
        torch.rand(1)
    assert torch.equal(before, torch.get_rng_state())


def test_generators_are_restored():
    accelerator = Pretend()
    before = accelerator.generator.get_state(), torch.get_rng_state()
    with accelerator.fork_rng(CPU):
        torch.rand(3)
        accelerator.manual_seed(5)
    assert torch.equal(before[0], accelerator.generator.get_state())
    assert torch.equal(before[1], torch.get_rng_state())


def test_prefetching_takes_the_streams_of_any_device():
    moved = []
    prefetch = Prefetch(CPU, lambda batch, loader: moved.append(batch) or batch + 1)
    prefetch.start(iter([1, 2]))
    assert moved == [1]
    assert prefetch.take() == 2
    assert moved == [1, 2]
    assert prefetch.take() == 3
    assert prefetch._next is END


def asked_in_two_processes(rank: int) -> dict[str, set[str]]:
    asked = {}
    strategies = {
        "ddp": DDPStrategy,
        "fsdp": lambda: FSDPStrategy(cpu_offload=True),
        "pipeline": PipelineStrategy,
    }
    for name, make in strategies.items():
        accelerator = Pretend()
        mine, wanted = trained(accelerator, make(), 2), trained("cpu", make(), 2)
        for one, other in zip(mine, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        asked[name] = accelerator.asked
    accelerator = Pretend()
    try:
        trained(accelerator, MeshStrategy(context=Context(2, method="ring")), 2)
    except Exception:  # noqa: BLE001  a rank that failed later reports the first one's error
        asked["ring"] = accelerator.asked
    return asked


@pytest.mark.processes
def test_what_is_asked_of_it_in_two_processes():
    for asked in ranks(2, asked_in_two_processes):
        common = {"has_collectives", "has_streams", "group_device"}
        assert common | {"device_ids"} <= asked["ddp"]
        assert common | {"pins_memory"} <= asked["fsdp"]
        assert common | {"fork_rng", "manual_seed"} <= asked["pipeline"]
        assert "has_ring_attention" in asked["ring"]
