"""The context axis in several processes: sharded sequences, one device's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

import lightlib as L
from lightlib.strategies.axes.context import Context, positions
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.axes.transforms import Compile
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.runs import WORDS, Decoder, assert_same, seeded, texts, trained
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes

TABLE = {"context_buffers": ["places.weight"]}


class ByPositions(Decoder):
    """A decoder that uses positions of the full sequence under every strategy."""

    def forward(self, text):
        x = self.words(text) + self.places(positions(text.shape[1], text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def run(rank, kind, sizes, options, axis=None, plan=None):
    strategy = MeshStrategy(context=Context(2, **(axis or {})), **sizes)
    devices = 2
    for size in sizes.values():
        devices *= size if isinstance(size, int) and not isinstance(size, bool) else 1
    return trained(seeded(kind, plan), strategy, devices, **options)


def run_zero(rank):
    strategy = MeshStrategy(context=2, replicate=Replicate(1, zero=True))
    return trained(seeded(Decoder, TABLE), strategy, 2, **OPTIONS)


OPTIONS = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}


@pytest.mark.parametrize(("kind", "plan"), [(Decoder, TABLE), (ByPositions, None)])
def test_two_processes_compute_what_one_does(kind, plan):
    alone = trained(seeded(Decoder), **OPTIONS)
    both = ranks(2, run, kind, {}, OPTIONS, None, plan)
    assert_same(alone, both[0])
    means = torch.tensor([one["losses"] for one in both]).mean(0)
    torch.testing.assert_close(means, torch.tensor(alone["losses"]), rtol=1e-5, atol=1e-6)
    assert both[0]["losses"] != both[1]["losses"]


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"replicate": 2}, {"activation_checkpointing": True, "shard": 2}])
def test_it_composes_with_data_processes(sizes):
    plan = TABLE if "activation_checkpointing" not in sizes else None
    kind = Decoder if plan else ByPositions
    alone = trained(seeded(Decoder), **OPTIONS)
    four = ranks(4, run, kind, sizes, OPTIONS, None, plan)
    assert_same(alone, four[0])


def run_compiled(rank):
    from torch._dynamo.utils import counters

    result = trained(
        seeded(Decoder, TABLE), MeshStrategy(context=2, compile=Compile(backend="aot_eager")), 2, **OPTIONS
    )
    result["graphs"] = counters["stats"]["unique_graphs"]
    return result


def test_compiled_blocks():
    both = ranks(2, run_compiled)
    assert_same(trained(seeded(Decoder), **OPTIONS), both[0])
    assert both[0]["graphs"] > 0


def test_optimizer_state_that_is_shared_out():
    assert_same(trained(seeded(Decoder), **OPTIONS), ranks(2, run_zero)[0])


class Shifting(Decoder):
    """Shifts the targets itself, and weighs the loss by its number of tokens; two of them are left out."""

    def training_step(self, batch, batch_idx):
        window = batch["text"]
        targets = window[:, 1:].clone()
        targets[window[:, :-1] == 3] = -100
        scores = self(window[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(scores, targets.flatten(), reduction="sum", ignore_index=-100)
        return {"loss": loss, "weight": (targets != -100).sum()}

    def validation_step(self, batch, batch_idx):
        window = batch["text"]
        loss = F.cross_entropy(self(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        self.log("val_loss", loss, batch_size=len(window))


def windows():
    text, following = texts().tensors
    return [{"text": torch.cat([one, last[-1:]])} for one, last in zip(text, following, strict=True)]


def run_shifting(rank, overlap):
    axis = Context(2, overlap=overlap)
    return trained(seeded(Shifting, TABLE), MeshStrategy(context=axis), 2, data=windows(), **OPTIONS)


def test_targets_that_the_step_shifts_and_weighted_losses():
    alone = trained(seeded(Shifting), data=windows(), **OPTIONS)
    assert_same(alone, ranks(2, run_shifting, 1)[0])


def test_a_shift_without_overlap_is_refused():
    with pytest.raises(
        AssertionError, match=r"has 9 tokens .* cannot be cut in 2 equal parts(.|\n)*Context\(overlap=1\)"
    ):
        ranks(2, run_shifting, 0)


class DropsOne(Decoder):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


def test_a_step_that_drops_a_token_of_each_part_is_refused():
    with pytest.raises(AssertionError, match="An attention sees 3 tokens, but this process's part of the batch has 4"):
        ranks(2, run, DropsOne, {}, {}, None, TABLE)


class Torchs(L.Module):
    """Layers of torch, grouped heads, and a function that was imported by its name."""

    def __init__(self, plan=None):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.words, self.key = nn.Embedding(WORDS, 16), nn.Linear(16, 8)

    def training_step(self, batch, batch_idx):
        x = self.layer(self.words(batch[0]), src_key_padding_mask=batch[0] == 3)
        q = x.unflatten(-1, (4, 4)).transpose(1, 2)
        k = self.key(x).unflatten(-1, (2, 4)).transpose(1, 2)
        keys = (batch[0] != 5)[:, None, None, :]
        return scaled_dot_product_attention(q, k, k, attn_mask=keys, enable_gqa=True).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_torchs_layers_masks_of_keys_and_grouped_heads():
    assert_same(trained(seeded(Torchs)), ranks(2, run, Torchs, {}, {})[0])


class ByHand(Torchs):
    def training_step(self, batch, batch_idx):
        x = self.words(batch[0])
        return ((x @ x.mT).softmax(-1) @ x).square().mean()


class Weights(Torchs):
    def training_step(self, batch, batch_idx):
        x = self.words(batch[0])
        return self.layer.self_attn(x, x, x)[0].square().mean()


class Masked(Torchs):
    def training_step(self, batch, batch_idx):
        q = self.words(batch[0]).unflatten(-1, (4, 4)).transpose(1, 2)
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        return scaled_dot_product_attention(q, q, q, mask).square().mean()


class Odd(Torchs):
    def training_step(self, batch, batch_idx):
        q = self.words(batch[0]).unflatten(-1, (1, 16)).transpose(1, 2)
        return scaled_dot_product_attention(q, q, q).square().mean()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ByHand, "The training step of ByHand did not call F.scaled_dot_product_attention"),
        (Weights, "layer.self_attn .MultiheadAttention. is to return its weights"),
        (Masked, r"An attention mask has shape \(4, 4\): that of this process's 4 tokens alone"),
        (Odd, r"The query of an attention has 1 heads \(shape \(8, 1, 4, 16\)\), which context=2 cannot split"),
    ],
)
def test_what_cannot_be_right_is_refused(kind, text):
    with pytest.raises(AssertionError, match=text):
        ranks(2, run, kind, {}, {})


def run_predictions(rank):
    module, strategy = seeded(Decoder, TABLE), MeshStrategy(context=2)
    loader = torch.utils.data.DataLoader(texts(), 8)
    options = {"max_epochs": 1, "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = L.Trainer(
        accelerator="cpu",
        strategy=strategy if rank is not None else "auto",
        devices=2 if rank is not None else 1,
        **options,
    )
    return torch.cat(trainer.predict(module, loader))


def test_predictions_are_joined():
    alone = run_predictions(None)
    for one in ranks(2, run_predictions):
        torch.testing.assert_close(one, alone)
