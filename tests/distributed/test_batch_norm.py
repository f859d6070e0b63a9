"""Synchronized batch norms on the CPU: several processes give the results of one with all samples."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.strategies.batch_norm import SyncedBatchNorm
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.user import CLASSES, data
from tests.processes.ranks import ranks
from tests.runs.modules import Validated
from tests.runs.plain import momentum
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


class Normed(Validated):
    def __init__(self) -> None:
        shared = nn.BatchNorm1d(8)
        first = nn.Linear(4, 8), shared, nn.Linear(8, 8), nn.ReLU()
        super().__init__(momentum, net=nn.Sequential(*first, nn.Linear(8, 8), shared, nn.Linear(8, CLASSES)))


def made() -> Normed:
    torch.manual_seed(5)
    return Normed()


def fitted(rank: int, strategy: Any, devices: int = 2, **options: Any) -> Any:
    module = made()
    keys = list(module.state_dict())
    options = {"sync_batchnorm": True} | options
    trainer = L.Trainer(**QUIET, strategy=strategy, devices=devices, max_epochs=2, **options)
    readers = trainer.strategy.sizes if isinstance(strategy, MeshStrategy) else {"replicate": 2}
    size = 8 // max(1, readers.get("replicate", 1) * readers.get("shard", 1))
    trainer.fit(module, DataLoader(data(), size), DataLoader(data(), size))
    state = trainer.strategy.module_state()
    assert list(state) == keys or (rank > 0 and not state)  # shards are gathered on the first process
    kinds = {type(part).__name__ for part in module.net.modules()}
    return state, float(trainer.callback_metrics["val_loss"]), kinds


def plain(dtype: torch.dtype | None = None) -> tuple[dict[str, torch.Tensor], float]:
    """Train on one device with full batches, within autocast to `dtype`."""
    module = made()
    optimizer = module.configure_optimizers()
    for _ in range(2):
        for x, y in DataLoader(data(), 8):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = F.cross_entropy(module.net(x), y)
            loss.backward()
            optimizer.step()
    module.eval()
    with torch.no_grad():
        x, y = data().tensors
        return module.state_dict(), float(F.cross_entropy(module.net(x), y))


STRATEGIES = {
    "ddp": "ddp",
    "fsdp": "fsdp",
    "replicas next to tensor": MeshStrategy(replicate=2, tensor=2),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_processes_train_as_one_device_with_the_full_batch(name):
    wanted, loss = plain()
    size = 4 if name == "replicas next to tensor" else 2
    for state, found, kinds in ranks(size, fitted_named, name):
        assert {kind.removeprefix("FSDP") for kind in kinds} == {"Sequential", "Linear", "ReLU", "SyncedBatchNorm"}
        assert abs(found - loss) < 1e-5
        for key, value in wanted.items() if state else ():
            torch.testing.assert_close(state[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.filterwarnings("ignore:.*computes in float16 on the CPU")
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_mixed_precision_keeps_statistics_and_their_layers_in_float32(precision, dtype, sync):
    wanted, _ = plain(dtype)
    state, _, _ = ranks(2, fitted_mixed, precision, sync)[0]
    assert {value.dtype for value in state.values()} == {torch.float32, torch.int64}
    for key, value in wanted.items() if sync and dtype is torch.bfloat16 else ():  # the plain loop scales no loss
        torch.testing.assert_close(state[key], value, rtol=0, atol=0.1, msg=lambda m, k=key: f"{k}: {m}")


def fitted_mixed(rank: int, precision: Any, sync: bool) -> Any:
    return fitted(rank, "fsdp", precision=precision, sync_batchnorm=sync)


def fitted_named(rank: int, name: str) -> Any:
    return fitted(rank, STRATEGIES[name], 4 if name == "replicas next to tensor" else 2)


SHARES = {"equal": (4, 4), "uneven": (7, 1), "one has none": (8, 0)}
LAYERS = {
    "1d": (nn.BatchNorm1d(3), ()),
    "2d": (nn.BatchNorm2d(3), (4, 5)),
    "3d without weights": (nn.BatchNorm3d(3, affine=False), (2, 1, 2)),
    "cumulative average": (nn.BatchNorm1d(3, momentum=None, eps=1e-3), (2,)),
    "no running statistics": (nn.BatchNorm1d(3, track_running_stats=False), ()),
    "double": (nn.BatchNorm1d(3, dtype=torch.float64), ()),
    "16 bits": (nn.BatchNorm2d(3), (2, 2)),
}


def passes(layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, rows: slice) -> dict[str, Any]:
    """Return the results of two batches in training and one in evaluation."""
    random = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {"outputs": [], "gradients": []}
    for _ in range(2):
        full = (3.0 + 100 * torch.randn(8, 3, *shape, generator=random, dtype=torch.float64)).to(dtype)
        weights = torch.randn(8, 3, *shape, generator=random, dtype=torch.float64).to(dtype)
        x = full[rows].clone().requires_grad_()
        output = layer(x)
        (output * weights[rows]).sum().backward()
        found["outputs"].append(output.detach())
        found["gradients"].append(x.grad)
    layer.eval()
    if rows.stop != rows.start:
        found["evaluated"] = layer(full[rows]).detach()
    found["state"] = layer.state_dict()
    found["parameters"] = [parameter.grad for parameter in layer.parameters()]
    return found


def layers(rank: int) -> Any:
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    results = {}
    for name, (layer, shape) in LAYERS.items():
        for share, (first, second) in SHARES.items():
            if name == "no running statistics" and share != "equal":
                continue
            dtype = {"double": torch.float64, "16 bits": torch.bfloat16}.get(name, torch.float32)
            synced = SyncedBatchNorm.of(copy.deepcopy(layer), None)
            rows = slice(0, first) if rank == 0 else slice(first, first + second)
            results[name, share] = passes(synced, shape, dtype, rows)
            loaded = pickle.loads(pickle.dumps(copy.deepcopy(synced)))
            assert loaded.processes.size == 1
            assert copy.deepcopy(synced).processes.size == 2
    return results


def test_outputs_gradients_and_statistics_are_those_of_all_samples():
    both = ranks(2, layers)
    for name, share in both[0]:
        layer, shape = LAYERS[name]
        dtype = {"double": torch.float64, "16 bits": torch.bfloat16}.get(name, torch.float32)
        wanted = passes(copy.deepcopy(layer), shape, dtype, slice(0, 8))
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
        mine = [found[name, share] for found in both]
        for kind in ("outputs", "gradients"):
            for step in range(2):
                joined = torch.cat([found[kind][step] for found in mine])
                torch.testing.assert_close(joined, wanted[kind][step], **close, msg=lambda m, n=name: f"{n}: {m}")
        if name != "no running statistics":
            joined = torch.cat([found["evaluated"] for found in mine if "evaluated" in found])
            torch.testing.assert_close(joined, wanted["evaluated"], **close)
        for found in mine:
            assert found["state"].keys() == wanted["state"].keys()
            for key, value in wanted["state"].items():
                torch.testing.assert_close(found["state"][key], value, **close)
        for number, gradient in enumerate(wanted["parameters"]):
            summed = mine[0]["parameters"][number] + mine[1]["parameters"][number]
            torch.testing.assert_close(summed, gradient, rtol=1e-3, atol=5e-2 if dtype is torch.bfloat16 else 1e-4)


def refused(rank: int) -> list[str]:
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    texts = []
    layer = SyncedBatchNorm.of(nn.BatchNorm1d(3), None)
    for x in (torch.zeros(3), torch.zeros(1 - rank, 3)):
        with pytest.raises((TypeError, ValueError)) as caught:
            layer(x)
        texts.append(str(caught.value))
    return texts


def test_inputs_that_cannot_be_normalized():
    for texts in ranks(2, refused):
        assert "A batch norm got an input of 1 dimensions" in texts[0]
        assert texts[1] == "A batch norm in training got one value per channel on all 2 processes."


def test_one_process_keeps_the_layers():
    module = made()
    trainer = L.Trainer(**QUIET, devices=1, sync_batchnorm=True, max_steps=1, limit_val_batches=0)
    trainer.fit(module, DataLoader(data(), 8))
    assert {type(part).__name__ for part in module.net.modules()} >= {"BatchNorm1d"}
