"""The context axis: the tensors that it cuts, and its errors, by names and numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from lightlib.accelerators import CPUAccelerator
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.report import PossibleUserWarning
from lightlib.strategies.axes.context import Context, offset, positions
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from tests.distributed.runs import Decoder


class Pair(NamedTuple):
    text: torch.Tensor
    following: torch.Tensor


def placed(plan=None, module=None, size=2, rank=1, sizes=None, **options):
    """Return the axis of one process, after its check of the module."""
    axis = Context(size, **options)
    site = SimpleNamespace(
        plan=ParallelPlan(**(plan or {})),
        sizes={"shard": 1, **(sizes or {})},
        device=torch.device("cpu"),
        accelerator=CPUAccelerator(),
        casts=False,
        coordinate=lambda name: rank,
    )
    module = module or Decoder()
    axis.check(module, site)
    axis._site, axis._module, axis._attention = site, module, SimpleNamespace(expect=lambda lengths: None)
    return axis


TEXT = torch.arange(16).view(2, 8)


def test_a_tensor_a_tuple_a_dict_and_what_is_within():
    cut = placed()._cut
    assert cut(TEXT)[0].tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
    part, lengths = cut((TEXT, TEXT + 1))
    assert isinstance(part, tuple)
    assert part[1].tolist() == [[5, 6, 7, 8], [13, 14, 15, 16]]
    assert lengths == [4]
    assert isinstance(cut(Pair(TEXT, TEXT))[0], Pair)
    batch = {"text": [TEXT], "name": "a"}
    part, _ = cut(batch)
    assert part["text"][0].shape == (2, 4)
    assert part["name"] == "a"
    assert batch["text"][0] is TEXT


def test_an_overlap_gives_each_part_the_next_token():
    axis = placed(rank=0, overlap=2)
    assert axis._cut(torch.arange(10)[None])[0].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert placed({"sequence_overlap": 1})._cut(torch.arange(9)[None])[0].tolist() == [[4, 5, 6, 7, 8]]


def test_another_dimension():
    assert placed({"sequence_dim": 0})._cut(TEXT.T)[0].shape == (4, 2)


def test_named_entries_may_have_other_lengths_and_dimensions():
    batch = {"text": TEXT, "image": torch.zeros(2, 3, 6), "label": torch.zeros(2, 5)}
    part, lengths = placed({"context_buffers": ["text", "image:2"]})._cut(batch)
    assert {name: tuple(value.shape) for name, value in part.items()} == {
        "text": (2, 4),
        "image": (2, 3, 3),
        "label": (2, 5),
    }
    assert lengths == [4, 3]


def test_tables_are_cut_while_a_step_runs():
    module = Decoder()
    axis = placed({"context_buffers": ["places.weight"]}, module)
    (cut,) = axis._cut_tables([3])
    with cut:
        assert torch.equal(module.places.weight, dict(module.named_parameters())["places.weight"][3:])
    assert module.places.weight is dict(module.named_parameters())["places.weight"]
    with pytest.raises(
        MisconfigurationException, match=r"places.weight has 8 places \(dimension 0\), but the sequences have 10"
    ):
        list(axis._cut_tables([5]))


def test_positions_without_a_strategy():
    assert positions(3).tolist() == [0, 1, 2]
    assert offset(3) == 0


@pytest.mark.parametrize(
    ("plan", "batch", "text"),
    [
        (
            {},
            torch.zeros(2, 7),
            r"The batch has 7 tokens \(dimension 1 of shape \(2, 7\)\).*cannot be cut in 2 equal parts",
        ),
        ({}, {"text": torch.zeros(2, 7)}, "The entry 'text' of the batch has 7 tokens"),
        ({}, {"text": TEXT, "label": torch.zeros(2, 5)}, r"Which entries .* 'text': \(2, 8\), 'label': \(2, 5\)"),
        ({}, ["a", "b"], "It has no tensors"),
        ({"context_buffers": ["txt"]}, {"text": TEXT}, r"context_buffers names 'txt' .* \('text': \(2, 8\)\)"),
        ({"context_buffers": ["0:2"]}, (TEXT,), "context_buffers names '0' .dimension 2."),
    ],
)
def test_batches_that_cannot_be_cut(plan, batch, text):
    with pytest.raises(MisconfigurationException, match=f"(?s){text}"):
        placed(plan)._cut(batch)


def test_entries_that_are_no_sequence_are_warned_of():
    with pytest.warns(PossibleUserWarning, match=r"The entry '1' of shape \(2,\) of the batch is no sequence"):
        placed()._cut((TEXT, torch.zeros(2)))


def test_modules_that_mix_tokens():
    with pytest.raises(MisconfigurationException, match=r"0 \(LSTM\) mixes the tokens of a sequence"):
        placed(module=nn.Sequential(nn.LSTM(4, 4)))
    with pytest.raises(MisconfigurationException, match=r"Conv1d \(Conv1d\) mixes|0 \(Conv1d\) mixes"):
        placed(module=nn.Sequential(nn.Conv1d(4, 4, 3)))


def test_parameters_within_sharded_blocks_are_no_tables():
    with pytest.raises(
        MisconfigurationException, match=r"blocks.0.first.weight, a parameter of blocks.0, which shard gathers"
    ):
        placed({"context_buffers": ["blocks.0.first.weight"]}, sizes={"shard": 2})


def test_bad_methods():
    with pytest.raises(UnknownNameError, match=r"Unknown method of Context 'rign'\. Did you mean 'ring'"):
        Context(2, method="rign")
    with pytest.raises(
        MisconfigurationException, match=r'Context\(method="ring"\) on cpu: torch has no ring attention'
    ):
        placed(method="ring")
