"""Clipping of gradients that are sharded in several ways uses the norm of the full gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from lightlib.strategies.axes.axis import LocalParameters
from lightlib.strategies.clip import clip
from tests.processes.ranks import ranks


def gradients():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in ((4, 3), (5,), (2, 2), (3,))]


def parameters(values):
    made = []
    for value in values:
        parameter = nn.Parameter(torch.zeros_like(value))
        parameter.grad = value.clone()
        made.append(parameter)
    return made


def optimizer(given):
    return torch.optim.SGD([{"params": given[:1]}, {"params": given[1:], "lr": 0.1}], lr=1.0)


@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_plain_tensors_are_clipped_as_torch_does(limit, algorithm):
    ours, theirs = parameters(gradients()), parameters(gradients())
    norm = clip(optimizer(ours), limit, algorithm)
    if algorithm == "norm":
        assert norm == pytest.approx(nn.utils.clip_grad_norm_(theirs, limit))
    else:
        nn.utils.clip_grad_value_(theirs, limit)
        assert norm is None
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_no_gradient_is_none_to_clip():
    bare = nn.Parameter(torch.ones(2))
    assert clip(torch.optim.SGD([bare], lr=1.0), 1.0, "norm") == 0
    assert clip(torch.optim.SGD([bare], lr=1.0), 1.0, "value") is None
    assert bare.grad is None


def spread(rank, algorithm):
    """Clip shards on two meshes and a plain tensor; then as stages of a pipeline, then with experts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    first, second, plain, last = gradients()
    values = [
        distribute_tensor(first, mesh, [Shard(0), Shard(1)]),
        distribute_tensor(second, mesh["shard"], [Shard(0)]),
        plain,
        distribute_tensor(last, mesh["tensor"], [Replicate()]),
    ]
    given = parameters(values)
    norm = clip(optimizer(given), 0.5, algorithm)
    whole = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in given]
    if algorithm == "value":
        return whole, norm
    stage = mesh["shard"].get_local_rank()
    own = parameters(gradients()[2 * stage : 2 * stage + 2])
    staged = clip(optimizer(own), 0.5, algorithm, [LocalParameters(mesh["shard"].get_group())])
    experts = parameters([gradients()[0], gradients()[1 + stage]])
    ids = {id(experts[1])}
    of_experts = clip(optimizer(experts), 100.0, algorithm, [LocalParameters(mesh["shard"].get_group(), ids)])
    return whole, norm, staged, [p.grad for p in own], of_experts


@pytest.mark.processes
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_what_is_spread(algorithm):
    wanted = parameters(gradients())
    if algorithm == "value":
        nn.utils.clip_grad_value_(wanted, 0.5)
    norm = None if algorithm == "value" else nn.utils.clip_grad_norm_(wanted, 0.5)
    for rank, (whole, found, *stages) in enumerate(ranks(4, spread, algorithm)):
        for mine, other in zip(whole, wanted, strict=True):
            torch.testing.assert_close(mine, other.grad)
        if norm is None:
            assert found is None
            continue
        assert found == pytest.approx(norm)
        staged, own, of_experts = stages
        assert staged == pytest.approx(norm)
        for mine, other in zip(own, wanted[2 * (rank // 2) :], strict=False):
            torch.testing.assert_close(mine, other.grad)
        assert of_experts == pytest.approx(nn.utils.get_total_norm(gradients()[:3]))
