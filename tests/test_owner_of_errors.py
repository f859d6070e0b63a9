"""Owner: shared code names the Trainer or Fabric in its errors, whichever object a user calls."""

import re
import threading

import pytest
from torch.utils.data import DataLoader, DistributedSampler

import lightlib as L
from lightlib.data.sharding import DataShard, is_sharded_by_user
from lightlib.errors import TRAINER, owned_by, owner
from lightlib.fabric import refusals
from lightlib.strategies import MeshStrategy


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ({"accelerator": "tpux"}, "(accelerator='auto')"),
        ({"accelerator": "cuda:1"}, "(accelerator='cuda', devices=[1])"),
        ({"devices": "two"}, "(accelerator='cpu', devices=1)"),
        ({"strategy": "dpp"}, "(strategy='ddp')"),
        ({"precision": "16-mixd"}, "(precision='16-mixed')"),
        ({"num_nodes": 0}, "(num_nodes=1)"),
        ({"device": 2}, "(devices=2)"),
        ({"gpus": 2}, "(accelerator='gpu', devices=2)"),
        ({"strategy": MeshStrategy(shard=3), "accelerator": "cpu", "devices": 1}, "(devices=3), or -1 in place"),
    ],
)
def test_the_same_mistake_has_the_same_fix_by_another_name(arguments, fix):
    with pytest.raises(ValueError, match=re.escape(f"Fix: Trainer{fix}")):
        L.Trainer(**arguments)
    with pytest.raises(ValueError, match=re.escape(f"Fix: Fabric{fix}")) as raised:
        L.Fabric(**arguments)
    assert "Trainer" not in str(raised.value)


def test_loggers_are_an_argument_of_another_name():
    with pytest.raises(TypeError, match=r"^loggers is 3 \(int\)(.|\n)*Fix: Fabric\(loggers=CSVLogger\('logs'\)\)"):
        L.Fabric(accelerator="cpu", loggers=[3])
    with pytest.raises(TypeError, match=r"^logger is 3 \(int\)(.|\n)*Fix: Trainer\(logger=CSVLogger\('logs'\)\)"):
        L.Trainer(accelerator="cpu", logger=[3])


def test_the_argument_that_leaves_data_unsharded():
    loader = DataLoader(range(4), sampler=DistributedSampler(range(4), num_replicas=2, rank=0))
    share = DataShard(1, 2, lambda value: value, lambda value: [value, value])
    with pytest.raises(ValueError, match=r"or use Trainer\(use_distributed_sampler=False\)\."):
        is_sharded_by_user(loader, share, "training")
    with (
        owned_by(refusals.OWNER),
        pytest.raises(ValueError, match=r"fabric\.setup_dataloaders\(loader, use_distributed_sampler=False\)\."),
    ):
        is_sharded_by_user(loader, share, "training")


def test_the_owner_is_that_of_the_block_and_of_the_thread():
    seen = []
    with owned_by(refusals.OWNER):
        thread = threading.Thread(target=lambda: seen.append(owner()))
        thread.start()
        thread.join()
        assert owner() is refusals.OWNER
        with pytest.raises(ZeroDivisionError), owned_by(TRAINER):
            seen.append(1 / 0)
        assert owner() is refusals.OWNER
    assert seen == [TRAINER]
    assert owner() is TRAINER
