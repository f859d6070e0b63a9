"""The expert axis in several processes: sharded experts, one device's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.strategies.axes.expert import MixtureOfExperts
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.runs import WIDTH, Decoder, assert_same, seeded, texts, trained
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes


class Stack(nn.Module):
    """Experts as stacked parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(4, WIDTH, 8) / 4), nn.Parameter(torch.randn(4, 8, WIDTH) / 3)

    def forward(self, tokens, counts):
        parts = zip(tokens.split(counts), self.up, self.down, strict=True)
        return torch.cat([(part @ up).relu() @ down for part, up, down in parts])


def network():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH))


class Mixtures(Decoder):
    """A decoder with experts in place of its networks: a list in the first block, a stack in the second."""

    def __init__(self, optimizer="SGD", **options):
        super().__init__()
        self.blocks[0].network = MixtureOfExperts(nn.Linear(WIDTH, 4), [network() for _ in range(4)], top_k=2)
        self.blocks[1].network = MixtureOfExperts(nn.Linear(WIDTH, 4), Stack(), top_k=1)
        self.optimizer, self.options = optimizer, options

    def configure_optimizers(self):
        if self.optimizer == "SGD":
            return super().configure_optimizers()
        return torch.optim.AdamW(self.parameters(), 1e-3, eps=1e-4, **self.options)


class Deep(Decoder):
    """Its only containers are in the experts, and have more layers than it has itself."""

    def __init__(self):
        super().__init__()
        del self.blocks
        experts = [nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, WIDTH)) for _ in "1234"]
        self.mixture = MixtureOfExperts(nn.Linear(WIDTH, 4), experts, top_k=2)

    def forward(self, text):
        return self.head(self.norm(self.mixture(self.words(text))))


OPTIONS = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}


def run(rank, sizes, options, optimizer="SGD", more=None):
    module = seeded(Mixtures, optimizer, **(more or {}))
    devices = max(1, sizes.get("replicate", 1)) * max(1, sizes.get("shard", 1))
    result = trained(module, MeshStrategy(**sizes), devices, **options)
    result["experts"] = list(module.blocks[0].network.experts._modules)
    result["local"] = sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in module.parameters())
    return result


@pytest.mark.parametrize("sizes", [{"shard": 2, "expert": 2}, {"replicate": 2, "expert": -1}])
def test_two_processes_compute_what_one_does(sizes):
    alone = trained(seeded(Mixtures), **OPTIONS)
    both = ranks(2, run, sizes, OPTIONS)
    assert_same(alone, both[0])
    assert [one["experts"] for one in both] == [["0", "1"], ["2", "3"]]
    assert both[0]["kinds"] == {"DTensor"}


def run_deep(rank, sizes):
    devices = max(1, sizes.get("replicate", 1)) * max(1, sizes.get("shard", 1))
    return trained(seeded(Deep), MeshStrategy(**sizes), devices, **OPTIONS)


@pytest.mark.parametrize(
    "sizes",
    [
        {"shard": 2, "expert": 2},
        {"replicate": 2, "expert": 2},
        {"shard": 2},
        {"replicate": 2, "shard": 2, "expert": 2},
        {"shard": 4, "expert": 4},
    ],
)
def test_experts_that_are_the_only_containers(sizes):
    alone = trained(seeded(Deep), **OPTIONS)
    processes = max(1, sizes.get("replicate", 1)) * max(1, sizes.get("shard", 1))
    assert_same(alone, ranks(processes, run_deep, sizes)[0])


def test_copies_of_shared_out_experts():
    alone = trained(seeded(Mixtures), **OPTIONS)
    four = ranks(4, run, {"replicate": 2, "shard": 2, "expert": 2}, OPTIONS)
    assert_same(alone, four[0])


@pytest.mark.parametrize("more", [{"fused": True}, {"foreach": True}])
def test_optimizers_over_all_parameters_at_once(more):
    alone = trained(seeded(Mixtures, "AdamW"))
    assert_same(alone, ranks(2, run, {"shard": 2, "expert": 2}, {}, "AdamW", more)[0], 1e-4)


def test_reduced_precision():
    options = OPTIONS | {"precision": "bf16-mixed"}
    both = ranks(2, run, {"shard": 2, "expert": 2}, options)
    assert_same(trained(seeded(Mixtures), **options), both[0], 5e-2)  # a token near a tie may change its expert


def test_activations_are_computed_again():
    alone = trained(seeded(Mixtures), **OPTIONS)
    sizes = {"shard": 2, "expert": 2, "activation_checkpointing": True}
    assert_same(alone, ranks(2, run, sizes, OPTIONS)[0])


def run_and_resume(rank, folder):
    loader = DataLoader(texts(), 4 if rank is not None else 8)
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "num_sanity_val_steps": 0}
    options |= {"accelerator": "cpu", "enable_model_summary": False}
    spread = {"strategy": MeshStrategy(shard=2, expert=2), "devices": 2}
    first = L.Trainer(max_epochs=1, **options, **(spread if rank is not None else {}))
    first.fit(seeded(Mixtures), loader, loader)
    first.save_checkpoint(f"{folder}/half.ckpt")
    if rank is not None:
        spread = {"strategy": MeshStrategy(shard=2, expert=2), "devices": 2}
    second = L.Trainer(max_epochs=2, **options, **(spread if rank is not None else {}))
    second.fit(Mixtures(), loader, loader, ckpt_path=f"{folder}/half.ckpt")
    return {name: value.clone() for name, value in second.strategy.module_state().items()}


def test_checkpoints_have_all_experts_and_are_read_by_both(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone = run_and_resume(None, tmp_path / "one")
    both = ranks(2, run_and_resume, str(tmp_path / "two"))[0]
    half = [torch.load(tmp_path / name / "half.ckpt", weights_only=True)["state_dict"] for name in ("one", "two")]
    assert list(half[0]) == list(half[1])
    for name, value in alone.items():
        torch.testing.assert_close(
            both[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
