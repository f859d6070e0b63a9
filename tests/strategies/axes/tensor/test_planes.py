"""Arguments of tensor parallelism in two dimensions, and the layers that it refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.strategies import TensorParallelStrategy
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.tensor import Tensor
from lightlib.strategies.axes.tensor.planes import dims_of
from tests.distributed.runs import Decoder


def check(module, size=4, plan=None, **options):
    axis = Tensor(size, mode="2d", **options)
    site = SimpleNamespace(plan=ParallelPlan(tensor=plan or {}), device=torch.device("cpu"), sizes={"pipeline": 1})
    axis.check(module, site)
    return axis


def test_rows_and_columns():
    assert [dims_of(size, None) for size in (4, 6, 8, 12, 16)] == [(2, 2), (3, 2), (4, 2), (4, 3), (4, 4)]
    assert dims_of(8, (2, 4)) == (2, 4)
    with pytest.raises(MisconfigurationException, match="5 processes make no rows and columns"):
        dims_of(5, None)
    with pytest.raises(MisconfigurationException, match=r"dims=\(2, 2\)\) makes 4 processes, but tensor=8"):
        dims_of(8, (2, 2))


def test_heads_are_divided_by_the_rows_only():
    assert check(Decoder(heads=2))._heads == [(f"blocks.{block}.attention", "num_heads", 2) for block in (0, 1)]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Tensor(4, mode="2.5d"), MisconfigurationException, r"the depth of 2\.5d splits (.|\n)*replicate=2"),
        (lambda: Tensor(8, mode="3d"), MisconfigurationException, r"the depth of 3d splits the batch(.|\n)*shard=2"),
        (lambda: Tensor(4, mode="4d"), UnknownNameError, "mode of Tensor '4d'"),
        (lambda: Tensor(4, dims=(2, 2)), MisconfigurationException, r"dims=\(2, 2\)\) with mode='1d'"),
        (lambda: Tensor(4, mode="2d", dims=4), ArgumentTypeError, r"dims=4 \(int\)"),
        (lambda: Tensor(4, mode="2d", dims=(4, 1)), ArgumentTypeError, r"two numbers of at least 2"),
        (lambda: TensorParallelStrategy(4, mode="2.5d"), MisconfigurationException, r"mode='2\.5d', depth=None"),
        (lambda: TensorParallelStrategy(4, mode="2d", depth=2), MisconfigurationException, "mode='2d', depth=2"),
        (lambda: TensorParallelStrategy(4, mode="5d"), UnknownNameError, "'5d'"),
    ],
)  # fmt: skip
def test_arguments_that_are_wrong(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


PAIR = {"0": "colwise", "2": "rowwise"}


@pytest.mark.parametrize(
    ("plan", "options", "widths", "text"),
    [
        ({**PAIR, "3": "vocab"}, {}, (4, 8, 4), "makes 3 'vocab', which has no form with mode='2d'"),
        ({**PAIR, "3": ColwiseParallel()}, {}, (4, 8, 4), "which has no form with mode='2d'"),
        (PAIR, {}, (3, 8, 4), "2 does not divide in_features=3 of 0"),
        (PAIR, {}, (4, 8, 5), "2 does not divide out_features=5 of 2"),
        ({}, {}, (4, 8, 5), "2 does not divide out_features=5 of 2"),
        (PAIR, {"sequence_parallel": True}, (4, 8, 4), r"mode='2d', sequence_parallel=True\)"),
        (PAIR, {"loss_parallel": True}, (4, 8, 4), r"mode='2d', loss_parallel=True\)"),
    ],
)
def test_layers_and_options_that_are_refused(plan, options, widths, text):
    module = nn.Sequential(nn.Linear(*widths[:2]), nn.ReLU(), nn.Linear(*widths[1:]), nn.Linear(widths[2], 8))
    with pytest.raises(MisconfigurationException, match=text):
        check(module, plan=plan, **options)
