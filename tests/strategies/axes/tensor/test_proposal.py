"""Plans that the tensor axis finds by tracing: the layers it splits, and its reasons for the rest."""

from __future__ import annotations

import gc
import logging
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.tensor import Tensor
from lightlib.strategies.axes.tensor.proposal import proposed
from lightlib.strategies.axes.tensor.trace import trace
from tests.distributed.runs import Decoder


class Gated(nn.Module):
    """Names that mean nothing, and a residual."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.norm = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x, scale=None):
        y = self.norm(x)
        return x + self.c(F.silu(self.a(y)) * self.b(y) * 2.0)


class Attention(nn.Module):
    """Heads from an attribute, with fewer for keys and values, and an optional mask."""

    def __init__(self, heads=4, groups=2):
        super().__init__()
        self.n_heads, self.n_kv_heads = heads, groups
        self.one, self.two, self.three, self.last = (nn.Linear(8, n) for n in (8, 2 * groups, 2 * groups, 8))

    def forward(self, x, mask=None):
        batch, tokens, _ = x.shape
        q = self.one(x).view(batch, tokens, self.n_heads, -1).transpose(1, 2)
        k, v = (y.view(batch, tokens, self.n_kv_heads, -1).transpose(1, 2) for y in (self.two(x), self.three(x)))
        k, v = (y.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for y in (k, v))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + mask
        return self.last((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, -1))


ATTENTION = {"one": "colwise", "two": "colwise", "three": "colwise", "last": "rowwise"}


def test_names_do_not_matter():
    found = proposed(Gated(), 2)
    assert found.styles == {"a": "colwise", "b": "colwise", "c": "rowwise"}
    assert found.left == {}


def test_attention_is_split_by_heads_if_a_trial_gives_the_same_results():
    found = proposed(Attention(), 2)
    assert found.styles == ATTENTION
    assert found.heads == [("", "n_heads", 4), ("", "n_kv_heads", 2)]
    assert proposed(Attention(4, 1), 2).left["one"] == "2 does not divide n_kv_heads=1 of Attention"


class Mixed(Attention):
    """Its heads are next to each other in the other order, so that a shard has a piece of each."""

    def forward(self, x):
        q = self.one(x).unflatten(-1, (-1, 4)).transpose(-1, -2)
        return self.last((q * q.softmax(-2)).flatten(-2))


class Normed(nn.Module):
    """A function between the layers that looks at all features."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(F.normalize(self.up(x), dim=-1))


class Returned(Normed):
    def forward(self, x):
        up = self.up(x)
        return self.down(up.relu()), up


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.down = nn.Linear(4, 16), nn.Linear(8, 4)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Twice(Normed):
    def forward(self, x):
        return self.down(self.up(x).relu()) + self.down(self.up(-x).relu())


class WithScale(Normed):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.down(self.up(x) * self.scale)


class TwoInputs(Normed):
    def forward(self, x, y):
        return self.down(self.up(x).softmax(-1) * y)


@pytest.mark.parametrize(
    ("make", "layer", "reason"),
    [
        (Mixed, "one", "the shards of the inputs of last were not those of the full layers"),
        (Mixed, "two", "no forward that can be traced calls it"),
        (Normed, "up", "the shards of the inputs of down were not those of the full layers"),
        (Returned, "up", "its outputs are results of Returned"),
        (Fused, "both", "the shards of the inputs of down were not those of the full layers"),
        (Twice, "up", "it is called several times"),
        (WithScale, "up", "a trial with the shard of one process failed"),
        (TwoInputs, "up", "TwoInputs.forward takes x, y, for which a trial has no values"),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)), "0", "go to 1 (LayerNorm)"),
    ],
)
def test_what_is_not_split_and_why(make, layer, reason):
    found = proposed(make(), 2)
    assert found.styles == {}
    assert reason in found.left[layer]


class Branches(nn.Module):
    """Cannot be traced: which branch it takes depends on values."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Gated(), Attention()

    def forward(self, x):
        return self.second.one(self.first(x)) if x.sum() > 0 else x


class UsualNames(Normed):
    def forward(self, x):
        return self.down(self.up(x).relu() if len(x) > 1 else self.up(x))


def test_children_are_traced_where_their_parent_cannot_be():
    assert proposed(Branches(), 2).styles == {
        **{f"first.{key}": style for key, style in {"a": "colwise", "b": "colwise", "c": "rowwise"}.items()},
        **{f"second.{key}": style for key, style in ATTENTION.items()},
    }
    assert proposed(UsualNames(), 2).styles == {"up": "colwise", "down": "rowwise"}


def test_a_plan_of_nothing_but_replicate_keeps_layers_in_full():
    site = SimpleNamespace(
        plan=ParallelPlan(tensor={"blocks.*.attention.o": "replicate"}),
        device=torch.device("cpu"),
        sizes={"pipeline": 1},
    )
    axis = Tensor(2)
    axis.check(Decoder(), site)
    assert set(axis._styles) == {f"blocks.{block}.network.{key}" for block in (0, 1) for key in ("gate", "up", "down")}
    assert axis._proposal.left["blocks.0.attention.q"] == "the plan keeps blocks.0.attention.o in full"


def test_shared_layers_are_not_split():
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    module[2].weight = module[0].weight
    assert proposed(module, 2).left["0"] == "0 shares a parameter with another layer"


class Remembers(Normed):
    def forward(self, x):
        self.seen = self.up(x).relu()
        return self.down(self.seen)


def test_neither_trace_nor_trial_change_the_module():
    module, attention = Remembers(), Attention()
    module.seen, before = None, torch.get_rng_state()
    assert proposed(module, 2).styles == {"up": "colwise", "down": "rowwise"}
    assert proposed(attention, 2).styles == ATTENTION
    assert (module.seen, module.training, attention.n_heads) == (None, True, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_message_shows_what_is_split_and_what_is_not_with_the_reason(caplog):
    module = Decoder()
    site = SimpleNamespace(plan=ParallelPlan(), device=torch.device("cpu"), sizes={"pipeline": 1})
    with caplog.at_level(logging.INFO, "lightlib"):
        Tensor(2).check(module, site)
    wanted = """\
tensor=2 splits, without a plan of Decoder:
  blocks.*.attention: q, k, v colwise, then o rowwise (num_heads 4 -> 2)
  blocks.*.network: gate, up colwise, then down rowwise
Linear layers that stay in full on every process:
  head: its outputs are results of Decoder
The first forward compares the outputs of the split layers with those of unsplit ones."""
    assert [record.getMessage() for record in caplog.records] == [wanted]


def test_a_trace_holds_no_parameters():
    gc.disable()
    try:
        part = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        held = weakref.ref(part[0].weight)
        assert trace(part) is not None
        del part
        assert held() is None
    finally:
        gc.enable()
