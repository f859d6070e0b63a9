"""Packing: no token is lost, the gradients of single documents, positions in streams, bad input."""

from __future__ import annotations

import random
from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, default_collate

from lightlib import report
from lightlib.data import MixtureDataset, document_mask, pack, padding_free_collate
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.data.datasets.loaders import Positioned, Stream, documents
from tests.runs.bad_input import refused

MODES = [
    {"mode": "wrap"},
    {"mode": "best_fit", "longer": "cut"},
    {"mode": "wrap", "window": 4},
    {"mode": "best_fit", "window": 5},
]


def random_documents(seed, most, n=60):
    rng = random.Random(seed)
    return [[rng.randrange(1, 50) for _ in range(rng.randint(0, most))] for _ in range(n)]


def pieces(rows):
    """The pieces of documents in rows, with a check of each column."""
    found = []
    for row in rows:
        for number in range(int(row["document_ids"].max()) + 1):
            here = row["document_ids"] == number
            ids = row["input_ids"][here].tolist()
            assert row["position_ids"][here].tolist() == list(range(len(ids)))
            assert row["labels"][here].tolist() == [-100, *ids[1:]]
            found.append(ids)
        padding = row["document_ids"] == -1
        assert row["input_ids"][padding].tolist() == [0] * int(padding.sum())
        assert (row["labels"][padding] == -100).all()
    return found


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("length", [1, 5, 8, 64])
def test_no_token_is_lost(options, length):
    given = random_documents(length, length if "window" in options else 3 * length)
    rows = list(pack(given, length, **options))
    assert {len(row["input_ids"]) for row in rows} == {length}
    if options["mode"] == "wrap":
        assert list(chain(*pieces(rows))) == list(chain(*given))
        assert len(rows) == -(-sum(map(len, given)) // length)
    else:
        cut = [one[at : at + length] for one in given for at in range(0, len(one), length)]
        assert sorted(pieces(rows)) == sorted(cut), "complete documents, unless they are longer than a row"
    as_stream = list(pack(Stream(given), length, **options))
    order = Stream(given).order()
    by_index = list(pack([given[i] for i in order], length, **options))
    assert [row["input_ids"].tolist() for row in as_stream] == [row["input_ids"].tolist() for row in by_index]
    known = pack(given, length, lengths=list(map(len, given)), **options)
    assert all(one["labels"].equal(other["labels"]) for one, other in zip(known, rows, strict=True))


def test_best_fit_leaves_little_padding():
    given = random_documents(0, 16, 500)
    total = sum(map(len, given))
    assert len(pack(given, 16, mode="best_fit")) < 1.1 * total / 16


def test_labels_of_ones_own_are_kept():
    rows = pack(
        [{"input_ids": [1, 2, 3], "labels": [-100, -100, 3], "text": "…"}, {"input_ids": torch.tensor([4, 5])}], 6
    )
    assert rows[0]["labels"].tolist() == [-100, -100, 3, -100, 5, -100]


class Attention(nn.Module):
    """Two layers of attention over tokens with positions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.head = nn.Embedding(50, 8), nn.Embedding(64, 8), nn.Linear(8, 50)
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))

    def forward(self, ids, positions, mask):
        x = self.tokens(ids) + self.positions(positions)
        for layer in self.layers:
            q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in layer(x).chunk(3, -1))
            x = x + scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return self.head(x)


def loss_of(model, batch):
    mask = document_mask(batch["document_ids"])
    scores = model(batch["input_ids"], batch["position_ids"], mask)[:, :-1]
    return cross_entropy(scores.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")


def one_by_one(model, given):
    total = 0
    for one in given:
        ids = torch.tensor([one])
        causal = torch.ones(len(one), len(one), dtype=torch.bool).tril()
        scores = model(ids, torch.arange(len(one))[None], causal)[:, :-1]
        total = total + cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    return total


@pytest.mark.parametrize("how", ["wrap", "best_fit", "padding-free"])
def test_the_loss_and_gradients_are_those_of_single_documents(how):
    given = [one for one in random_documents(3, 16) if one]
    if how == "padding-free":
        batch = padding_free_collate(given)
    else:
        rows = list(pack(given, 16, mode=how))
        batch, given = default_collate(rows), pieces(rows)
    ours, plain = Attention(), Attention()
    loss, expected = loss_of(ours, batch), one_by_one(plain, given)
    (loss / 100).backward()
    (expected / 100).backward()
    torch.testing.assert_close(loss, expected)
    for parameter, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, atol=1e-6, rtol=1e-5)


def test_a_loss_without_the_mask_differs():
    batch = padding_free_collate([[1, 2, 3, 4], [5, 6, 7]])
    model = Attention()
    without = {**batch, "document_ids": torch.zeros_like(batch["document_ids"])}
    assert loss_of(model, batch) != loss_of(model, without)


def test_padding_free_batches_are_those_of_transformers():
    transformers = pytest.importorskip("transformers", reason="an optional library")
    given = [{"input_ids": one} for one in documents(1)]
    theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)(given)
    ours = next(iter(DataLoader(given, len(given), collate_fn=padding_free_collate)))
    for name, value in theirs.items():
        assert torch.as_tensor(ours[name]).equal(torch.as_tensor(value)), name


@pytest.mark.parametrize("kind", [Stream, Positioned])
@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_stream_continues_at_its_position(kind, options):
    def make():
        return pack(
            MixtureDataset([kind(documents(0)), kind(documents(1000, 9))], stopping="all_exhausted"), 7, **options
        )

    stream, states, complete = make(), [], []
    for row in stream:
        complete.append(row["input_ids"].tolist())
        states.append(stream.state_dict())
    for number, state in enumerate(states, 1):
        again = make()
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert [row["input_ids"].tolist() for row in again] == complete[number:], number
        assert [row["input_ids"].tolist() for row in again] == complete


def test_longer_documents_are_left_out_with_a_warning():
    report.once.clear()
    given = [[1] * 9, [2, 2], [3] * 5]
    with pytest.warns(
        UserWarning, match="leaves out every document of more than 4 tokens; the first is document 0, of 9"
    ):
        rows = list(pack(given, 4, longer="drop"))
    assert [row["input_ids"].tolist() for row in rows] == [[2, 2, 0, 0]]


@pytest.mark.parametrize(
    ("given", "options", "kind", "what", "fix"),
    [
        ([[1] * 9], {"mode": "best_fit"}, MisconfigurationException,
         "pack: document 0 has 9 tokens.", "pack(…, length=9)***"),
        ([[1] * 9], {"longer": "error"}, MisconfigurationException, "pack: document 0 has 9 tokens.", "***"),
        ([[1]], {"length": 0}, MisconfigurationException, "pack(length=0).", "pack(length=1)"),
        ([[1]], {"mode": "wrapped"}, UnknownNameError, "Unknown mode of pack 'wrapped'. Did you mean 'wrap'?", "***"),
        ([[1]], {"longer": "truncate"}, UnknownNameError, "***'truncate'.***", "***"),
        ([[1]], {"window": 0}, MisconfigurationException, "pack(window=0).", "***"),
        ([], {}, MisconfigurationException, "pack got a list of length 0.", "***"),
        ([[], []], {}, MisconfigurationException, "pack: none of 2 documents has a token that is kept.", "***"),
        (["text"], {}, ArgumentTypeError, "pack: document 0 is 'text' (str).", "***"),
        ([[1], 5], {}, ArgumentTypeError, "pack: document 1 is 5 (int).", "***"),
        ([[0.5]], {}, ArgumentTypeError, "pack: document 0 is of the shape (1,) and the dtype torch.float32.", "***"),
        ([torch.ones(1, 3).long()], {}, ArgumentTypeError, "***of the shape (1, 3)***", "***"),
        ([{"text": "a"}], {}, MisconfigurationException, "pack: document 0 has the keys ['text'].", "***"),
        ([{"input_ids": [1, 2], "labels": [1]}], {}, MisconfigurationException, "***2 input_ids and 1 labels.", "***"),
        ([[1], [2]], {"lengths": [1]}, MisconfigurationException, "pack got 1 lengths for 2 documents.", "***"),
        (iter([[1]]), {}, ArgumentTypeError, "pack(***", "***"),
        (Stream([[1]]), {"lengths": [1]}, ArgumentTypeError, "pack(***, lengths=…).", "***"),
    ],
)  # fmt: skip
def test_bad_input(given, options, kind, what, fix):
    with refused(kind, what, "***", fix):
        pack(given, **{"length": 4, **options})


def test_documents_of_a_stream_are_checked_as_they_are_read():
    with refused(MisconfigurationException, "pack: document 0 has the keys ['text'].", "***", "***"):
        list(pack(Stream([{"text": "a"}]), 4))


def test_documents_that_change_are_refused():
    rows = pack(MixtureDataset({"a": [[1], [2, 3], [5, 6, 7]], "b": [[4]]}), 2)
    rows.dataset.set_epoch(1)
    with refused(
        MisconfigurationException, "pack: document 0 has 3 tokens now, and had 1 before.", "***", "a mixture of***"
    ):
        list(rows)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: padding_free_collate([[], []]), "padding_free_collate got 2 documents without a token."),
        (lambda: padding_free_collate(["ab"]), "padding_free_collate: document 0 is 'ab' (str)."),
        (lambda: document_mask(torch.zeros(3)), "document_mask got document_ids of the shape (3,)."),
        (lambda: document_mask([0, 1]), "document_mask(document_ids=[0, 1] (list))."),
    ],
)
def test_bad_input_of_masks_and_batches(call, what):
    with refused(
        *(
            (ArgumentTypeError if " (" in what and "shape" not in what else MisconfigurationException),
            what,
            "***",
            "***",
        )
    ):
        call()
