"""Lion, LAMB and LARS: the formulas of their papers, and the requirements on every optimizer."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.distributed import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lightlib.callbacks import Callback
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.optim import LAMB, LARS, Lion
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights

KINDS = (Lion, LAMB, LARS)
every = pytest.mark.parametrize("kind", KINDS)


def norm(values):
    return math.sqrt(sum(value * value for value in values))


def lion(w, gradients, lr, betas, weight_decay):
    """The algorithm in plain Python, on lists of floats."""
    m = [0.0] * len(w)
    for g in gradients:
        c = [betas[0] * a + (1 - betas[0]) * b for a, b in zip(m, g, strict=True)]
        w = [x - lr * (math.copysign(1, a) * (a != 0) + weight_decay * x) for x, a in zip(w, c, strict=True)]
        m = [betas[1] * a + (1 - betas[1]) * b for a, b in zip(m, g, strict=True)]
    return w


def lamb(w, gradients, lr, betas, eps, weight_decay):
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, g in enumerate(gradients, 1):
        m = [betas[0] * a + (1 - betas[0]) * b for a, b in zip(m, g, strict=True)]
        v = [betas[1] * a + (1 - betas[1]) * b * b for a, b in zip(v, g, strict=True)]
        r = [
            (a / (1 - betas[0] ** t)) / (math.sqrt(b / (1 - betas[1] ** t)) + eps) + weight_decay * x
            for a, b, x in zip(m, v, w, strict=True)
        ]
        ratio = norm(w) / norm(r) if norm(w) and norm(r) else 1.0
        w = [x - lr * ratio * a for x, a in zip(w, r, strict=True)]
    return w


def lars(w, gradients, lr, momentum, weight_decay, trust_coefficient):
    v = [0.0] * len(w)
    for g in gradients:
        trust = 1.0
        if norm(w) and norm(g):
            trust = trust_coefficient * norm(w) / (norm(g) + weight_decay * norm(w))
        v = [momentum * a + lr * trust * (b + weight_decay * x) for a, b, x in zip(v, g, w, strict=True)]
        w = [x - a for x, a in zip(w, v, strict=True)]
    return w


CASES = [
    (Lion, lion, {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.0}),
    (Lion, lion, {"lr": 0.02, "betas": (0.9, 0.99), "weight_decay": 0.3}),
    (LAMB, lamb, {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}),
    (LAMB, lamb, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    (LARS, lars, {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.0, "trust_coefficient": 0.01}),
    (LARS, lars, {"lr": 1.0, "momentum": 0.0, "weight_decay": 5e-2, "trust_coefficient": 0.02}),
]


@pytest.mark.parametrize(("kind", "plain", "options"), CASES)
@pytest.mark.parametrize("start", [[1.0, -2.0, 0.5], [30.0, 40.0, 0.0], [0.0, 0.0, 0.0]])
def test_the_formula(kind, plain, options, start):
    gradients = [[math.sin(3 * t + i) for i in range(3)] for t in range(12)]
    weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = kind([weight], **options)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    assert weight.tolist() == pytest.approx(plain(start, gradients, **options), rel=1e-12)


def test_lamb_does_not_clip_the_norm_of_the_weights():
    """A step has the length lr * norm(weights), however large the weights are."""
    weight = nn.Parameter(torch.full((4,), 1e4))
    optimizer = LAMB([weight], lr=0.1)
    weight.grad = torch.ones(4)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4,), 9e3))


@every
def test_nothing_moves_without_a_gradient(kind):
    weight, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = kind([weight, other], lr=0.1, weight_decay=0.5)
    weight.grad = torch.ones(3)
    optimizer.step()
    assert other.tolist() == [1.0, 1.0, 1.0]
    assert other not in optimizer.state
    assert weight.tolist() != [1.0, 1.0, 1.0]


@every
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_gradient_of_zero_gives_finite_weights(kind, value):
    weight = nn.Parameter(torch.full((3,), value))
    optimizer = kind([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.zeros(3)
        optimizer.step()
    assert weight.tolist() == [value] * 3


@every
def test_maximize_is_the_gradient_turned_around(kind):
    up, down = nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([1.0, -2.0]))
    climber, other = kind([up], lr=0.1, weight_decay=0.1, maximize=True), kind([down], lr=0.1, weight_decay=0.1)
    for gradient in (torch.tensor([0.3, 0.2]), torch.tensor([-0.1, 0.4])):
        up.grad, down.grad = gradient, -gradient
        climber.step()
        other.step()
    assert torch.equal(up, down)
    assert up.grad.tolist() == pytest.approx([-0.1, 0.4])  # is left as it was


@every
def test_groups_have_their_own_options(kind):
    one, two = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([1.0, 2.0]))
    together = kind([{"params": [one], "weight_decay": 0.5}, {"params": [two], "lr": 0.0}], lr=0.1)
    alone = nn.Parameter(torch.tensor([1.0, 2.0]))
    separate = kind([alone], lr=0.1, weight_decay=0.5)
    one.grad = two.grad = alone.grad = torch.tensor([0.5, -0.5])
    together.step()
    separate.step()
    assert torch.equal(one, alone)
    assert two.tolist() == [1.0, 2.0]


def trained(kind, batches, module=None, optimizer=None):
    module = module or network()
    optimizer = optimizer or kind(module.parameters(), lr=0.01, weight_decay=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module, optimizer


@every
def test_the_state_survives(kind, tmp_path):
    """Saved to disk, copied or pickled, the state continues training as if it had never stopped."""
    data = batches(8)
    whole, _ = trained(kind, data)
    module, optimizer = trained(kind, data[:4])
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    resumed = copy.deepcopy(module)
    loaded = kind(resumed.parameters(), lr=0.5)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    both = copy.deepcopy((module, optimizer))
    pickled = pickle.loads(pickle.dumps((module, optimizer)))
    for one, stepping in ((resumed, loaded), both, pickled):
        trained(kind, data[4:], one, stepping)
        assert same_weights(one, whole)


@every
def test_the_loss_falls_and_schedules_take_effect(kind):
    module = network()
    optimizer = kind(module.parameters(), lr={Lion: 0.01, LAMB: 0.05, LARS: 5.0}[kind])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5)
    x, y = batches(1, size=32)[0]
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert optimizer.param_groups[0]["lr"] == {Lion: 0.01, LAMB: 0.05, LARS: 5.0}[kind] / 8


@every
def test_a_closure_is_called_with_gradients_on(kind):
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = kind([weight], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert weight.item() < 2.0


@every
def test_complex_parameters_step_as_their_two_parts(kind):
    parts = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
    weight = nn.Parameter(torch.view_as_complex(parts.detach().clone()))
    first, second = kind([parts], lr=0.1, weight_decay=0.1), kind([weight], lr=0.1, weight_decay=0.1)
    for scale in (1.0, -0.3):
        parts.grad = torch.tensor([[0.1, 0.2], [-0.3, 0.4]]) * scale
        weight.grad = torch.view_as_complex(parts.grad.clone())
        first.step()
        second.step()
    torch.testing.assert_close(torch.view_as_real(weight), parts)


@every
def test_the_same_steps_in_a_trainer(kind):
    module = Net(lambda parameters: kind(parameters, lr=0.01, weight_decay=0.1))
    quiet_trainer(callbacks=[Callback()], max_epochs=1).fit(module, batches(6))
    assert same_weights(module.net, trained(kind, batches(6))[0])


@every
def test_shards_of_a_tensor_know_the_norm_of_the_whole(kind, tmp_path):
    """One process stands for many: the norms are DTensors all the same."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        start, gradient = torch.randn(6, 3), torch.randn(6, 3)
        plain, shared = nn.Parameter(start.clone()), nn.Parameter(distribute_tensor(start, mesh, [Shard(0)]))
        optimizers = kind([plain], lr=0.1, weight_decay=0.1), kind([shared], lr=0.1, weight_decay=0.1)
        for scale in (1.0, -0.5):
            plain.grad, shared.grad = gradient * scale, distribute_tensor(gradient * scale, mesh, [Shard(0)])
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(shared.full_tensor(), plain, rtol=1.5e-5, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


@every
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"lr": "fast"}, ArgumentTypeError, "lr='fast' (str)).\n  Expected: a number >= 0.\n  Fix: {name}(lr=0.001)"),
        ({"lr": True}, ArgumentTypeError, "lr=True (bool)"),
        ({"lr": -1}, MisconfigurationException, "lr=-1).\n  Expected: a number >= 0."),
        ({"lr": math.nan}, MisconfigurationException, "lr=nan"),
        ({"lr": math.inf}, MisconfigurationException, "lr=inf"),
        ({"weight_decay": -0.1}, MisconfigurationException, "weight_decay=-0.1"),
        ({"weight_decay": None}, ArgumentTypeError, "weight_decay=None"),
        ({"maximize": 1}, ArgumentTypeError, "maximize=1 (int)).\n  Expected: a bool."),
    ],
)
def test_bad_options(kind, options, error, words):
    with pytest.raises(error) as caught:
        kind([nn.Parameter(torch.ones(1))], **options)
    assert str(caught.value).startswith(f"{kind.__name__}({words.format(name=kind.__name__)}")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        (Lion, {"betas": 0.9}, ArgumentTypeError, "Lion(betas=0.9 (float)).\n  Expected: two numbers in [0, 1)."),
        (LAMB, {"betas": (0.9, 0.99, 0.999)}, ArgumentTypeError, "LAMB(betas=(0.9, 0.99, 0.999) (tuple))."),
        (LAMB, {"betas": (0.9, 1.0)}, MisconfigurationException, "LAMB(betas=(0.9, 1.0))."),
        (LAMB, {"eps": -1e-6}, MisconfigurationException, "LAMB(eps=-1e-06"),
        (
            LARS,
            {"momentum": 1.0},
            MisconfigurationException,
            "LARS(momentum=1.0).\n  Expected: a number in [",
        ),
        (LARS, {"trust_coefficient": -1}, MisconfigurationException, "LARS(trust_coefficient=-1)."),
    ],
)
def test_bad_options_of_one(kind, options, error, words):
    with pytest.raises(error) as caught:
        kind([nn.Parameter(torch.ones(1))], **options)
    assert str(caught.value).startswith(words)
    assert type(caught.value) is error


@every
def test_the_options_of_a_group_are_checked_too(kind):
    with pytest.raises(MisconfigurationException, match="lr=-2"):
        kind([{"params": [nn.Parameter(torch.ones(1))], "lr": -2}])
    optimizer = kind([nn.Parameter(torch.ones(1))])
    with pytest.raises(ArgumentTypeError, match=r"weight_decay='0\.1'"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "weight_decay": "0.1"})
    assert len(optimizer.param_groups) == 1


@every
def test_sparse_gradients_are_refused(kind):
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(MisconfigurationException, match=f"{kind.__name__} got a sparse gradient"):
        kind(table.parameters()).step()
