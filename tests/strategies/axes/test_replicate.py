"""Replicas with averaged gradients: errors, and averaging by hand."""

from __future__ import annotations

from inspect import signature

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from lightlib.accelerators import CPUAccelerator
from lightlib.errors import MisconfigurationException
from lightlib.precision.precision import named
from lightlib.strategies.axes import replicate
from lightlib.strategies.axes.axis import AxisContext
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.group.collectives import SingleProcess
from tests.processes.ranks import ranks


def test_nothing_to_train():
    with pytest.raises(
        MisconfigurationException, match=r"Linear has no parameter that requires a gradient.*\n.*\n.*unfr"
    ):
        Replicate(2).check(nn.Linear(1, 1).requires_grad_(False), None)


def test_buckets_have_one_dtype_and_a_size():
    given = [torch.zeros(4), torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(9), torch.zeros(1)]
    found = replicate._buckets(given, limit=30)
    assert [[len(one) for one in bucket] for bucket in found] == [[4, 3], [2], [9], [1]]


def test_options_of_ddp_go_through():
    options = Replicate(2, broadcast_buffers=False, bucket_cap_mb=3, mixed_precision="own")._options
    name = max({"broadcast_buffers", "forward_sync_buffers"} & {*signature(DistributedDataParallel).parameters})
    assert (options[name], options["bucket_cap_mb"]) == (False, 3)
    assert options["mixed_precision"] == "own"
    assert options["gradient_as_bucket_view"] is True


def site_of(mesh, automatic):
    return AxisContext(
        mesh=mesh, device=torch.device("cpu"), accelerator=CPUAccelerator(), precision=named("32-true"),
        plan=ParallelPlan(), names=[], collectives=SingleProcess(), sizes={"replicate": 2, "context": 1},
        splits_batch=("replicate",), splits_samples=("context",), automatic=automatic,
    )  # fmt: skip


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.some, self.never = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)


def averaged(rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",))
    torch.manual_seed(1)
    net, axis = Net(), Replicate(2)
    axis.apply(net, site_of(mesh, False))
    optimizer = torch.optim.SGD([p for name, p in net.named_parameters() if name != "used.bias"])
    x = torch.ones(1, 2) * (rank + 1)
    loss = net.used(x).sum() + (net.some(x).sum() if rank == 1 else 0)
    loss.backward()
    step = lambda *args: None  # noqa: E731
    assert axis.enter("training_step", step) is step  # no wrapper: any number of backward passes
    assert axis.around(step) is step
    axis.sync_gradients(optimizer)
    return {name: None if p.grad is None else p.grad.tolist() for name, p in net.named_parameters()}


@pytest.mark.processes
def test_gradients_of_manual_optimization():
    for rank, found in enumerate(ranks(2, averaged)):
        assert found["used.weight"] == [[1.5, 1.5]]
        assert found["used.bias"] == [1.0]  # of no optimizer: its own
        assert found["some.weight"] == [[1.0, 1.0]]  # one process has none: it counts as 0
        assert found["some.bias"] == [0.5]
        assert found["never.weight"] is None
        assert rank in (0, 1)


def automatic(rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",))
    torch.manual_seed(1)
    net, axis = nn.Linear(2, 1), Replicate(2, static_graph=rank == 5)
    axis.apply(net, site_of(mesh, True))
    axis.sync_gradients(torch.optim.SGD(net.parameters()))  # nothing: DistributedDataParallel does it
    step = axis.enter("training_step", lambda x: net(x).sum())
    assert axis.enter("validation_step", len) is len
    seen = []

    def run(batch, batch_idx, backward, sync):
        step(batch).backward()
        seen.append(net.weight.grad.tolist())

    around = axis.around(run)
    around(torch.ones(1, 2) * (rank + 1), 0, None, False)
    around(torch.ones(1, 2) * (rank + 1), 1, None, True)
    return seen, list(net.state_dict())


@pytest.mark.processes
def test_gradients_are_sent_at_the_end_of_a_window():
    for rank, (seen, names) in enumerate(ranks(2, automatic)):
        assert seen == [[[rank + 1.0] * 2], [[3.0, 3.0]]]  # own; then the mean of the sums
        assert names == ["weight", "bias"]


def test_an_option_that_torch_does_not_have():
    with pytest.raises(
        MisconfigurationException,
        match=r"option of DistributedDataParallel 'find_unused_parameter'\. Did you mean 'find_unused_parameters'\?",
    ):
        Replicate(2, find_unused_parameter=True)
