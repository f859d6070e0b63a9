"""staging: the copy does not change when the state does, and the memory for it is used again."""

from __future__ import annotations

import io
from collections import OrderedDict

import pytest
import torch
from torch import nn

from lightlib.checkpoint.staging import Buffers, staged


@pytest.fixture
def buffers():
    return Buffers()


class Mine:
    """An object of a user's callback."""

    def __init__(self):
        self.seen = [1, 2]


def state():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return {"state_dict": module.state_dict(), "optimizer_states": [optimizer.state_dict()], "epoch": 3, "mine": Mine()}


def saved(content):
    out = io.BytesIO()
    torch.save({**content, "mine": 0}, out)
    return out.getvalue()


class TestCopy:
    def test_it_is_saved_as_the_original(self, buffers):
        content = state()
        copied = staged(content, buffers)
        one, other = (torch.load(io.BytesIO(saved(part)), weights_only=True) for part in (content, copied))
        for name, value in one["state_dict"].items():
            assert other["state_dict"][name].equal(value)
            assert other["state_dict"][name].shape == value.shape
        assert list(one["state_dict"]._metadata) == list(other["state_dict"]._metadata)
        assert len(saved(content)) == len(saved(copied))
        assert repr(one["optimizer_states"]) == repr(other["optimizer_states"])

    def test_it_does_not_change(self, buffers):
        content = state()
        copied = staged(content, buffers)
        before = saved(copied)
        for value in content["state_dict"].values():
            value.zero_()
        content["optimizer_states"][0]["param_groups"][0]["lr"] = 9
        content["mine"].seen.append(3)
        assert saved(copied) == before
        assert copied["mine"].seen == [1, 2]

    def test_what_shares_memory_does_so_in_the_copy(self, buffers):
        base = torch.arange(10.0)
        content = {"base": base, "view": base[2:8:2], "same": base, "turned": base.view(2, 5).t(), "list": [base, base]}
        copied = staged(content, buffers)
        assert copied["same"] is copied["base"]
        assert copied["list"][0] is copied["list"][1]
        assert copied["view"].data_ptr() == copied["base"].data_ptr() + 8
        assert copied["turned"].stride() == (1, 5)
        assert all(copied[name].equal(content[name]) for name in ("base", "view", "turned"))
        assert buffers.size == 64

    def test_a_large_storage_of_which_little_is_seen(self, buffers):
        copied = staged([torch.zeros(1000)[:2]], buffers)
        assert copied[0].untyped_storage().nbytes() == 4000

    def test_kinds_of_tensors(self, buffers):
        content = [
            nn.Parameter(torch.ones(2)),
            nn.Parameter(torch.ones(2), requires_grad=False),
            torch.ones(2, requires_grad=True) * 2,
            torch.empty(0, 3),
            torch.tensor(3),
            torch.ones(2, dtype=torch.bfloat16),
            torch.tensor([1 + 2j]).conj(),
            torch.eye(2).to_sparse(),
            torch.empty(2, device="meta"),
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        ]
        copied = staged(content, buffers)
        for one, other in zip(content[:7], copied[:7], strict=True):
            assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
            assert other.equal(one)
        assert [part.requires_grad for part in copied[:3]] == [True, False, False]
        assert copied[7].to_dense().equal(torch.eye(2))
        assert copied[8].is_meta
        assert copied[9].values().equal(content[9].values())

    def test_kinds_of_containers(self, buffers):
        itself = OrderedDict(a=torch.ones(1), b=(1, {2}, [torch.zeros(2)]))
        itself["loop"] = [itself]
        copied = staged(itself, buffers)
        assert type(copied) is OrderedDict
        assert copied["loop"][0] is copied
        assert copied["b"][:2] == (1, {2})
        assert copied["b"][2][0].equal(torch.zeros(2))

    def test_nothing_to_copy(self, buffers):
        assert staged({"a": [1, None, "text"]}, buffers) == {"a": [1, None, "text"]}
        assert buffers.size == 0


class TestBuffers:
    def test_they_are_used_again(self, buffers):
        one = staged({"a": torch.ones(1000)}, buffers)["a"]
        place = one.data_ptr()
        other = staged({"a": torch.zeros(900), "b": torch.ones(20)}, buffers)["a"]
        assert other.data_ptr() == place
        assert buffers.size == 4032

    def test_they_grow(self, buffers):
        staged({"a": torch.ones(10)}, buffers)
        copied = staged({"a": torch.arange(100.0), "b": torch.arange(3)}, buffers)
        assert copied["a"].equal(torch.arange(100.0))
        assert copied["b"].equal(torch.arange(3))
        assert buffers.size == 448 + 64

    def test_a_copy_outlives_them(self):
        copied = staged({"a": torch.arange(1e5)}, Buffers())
        assert copied["a"].equal(torch.arange(1e5))

    def test_they_hold_one_state(self, buffers):
        content = state()
        staged(content, buffers)
        tensors = [*content["state_dict"].values()]
        tensors += [part for one in content["optimizer_states"][0]["state"].values() for part in one.values()]
        assert buffers.size == sum(-(-tensor.nbytes // 64) * 64 for tensor in tensors)

    def test_reserved_before(self, buffers):
        buffers.reserve(10_000)
        staged({"a": torch.ones(10)}, buffers)
        assert buffers.size == 10_000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_from_a_gpu():
    buffers = Buffers()
    content = {
        "a": torch.arange(1e6, device="cuda"),
        "b": torch.ones(3),
        "c": nn.Parameter(torch.ones(2, device="cuda")),
    }
    for _ in range(3):
        copied = staged(content, buffers)
        assert [part.device.type for part in copied.values()] == ["cpu"] * 3
        assert copied["a"].equal(torch.arange(1e6))
        assert copied["a"].is_pinned()
