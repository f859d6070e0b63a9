"""linear_cross_entropy against all scores at once, its memory, and strategies against one device."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
import torch
import tqdm
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lightlib.core.module.module import Module
from lightlib.errors import ArgumentTypeError, LightlibError, MisconfigurationException, UnknownNameError
from lightlib.losses import linear_cross_entropy
from lightlib.simulation.fit import simulate
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.single import SingleDeviceStrategy
from tests.distributed.runs import Decoder, assert_same, seeded, trained
from tests.processes.ranks import ranks
from tests.runs.plain import sgd

WIDTH, CLASSES = 12, 50
FULL = {
    "words": "vocab", "head": "vocab", "blocks.*.attention.[qkv]": "colwise", "blocks.*.attention.o": "rowwise",
    "blocks.*.network.gate": "colwise", "blocks.*.network.up": "colwise", "blocks.*.network.down": "rowwise",
}  # fmt: skip


def tensors(dtype=torch.float32):
    """Hidden states, weight, bias, targets of which some are ignored, and weights of tokens."""
    draw = torch.Generator().manual_seed(0)
    shapes = (4, 9, WIDTH), (CLASSES, WIDTH), (CLASSES,)
    parts = [torch.randn(shape, generator=draw).to(dtype).requires_grad_() for shape in shapes]
    target = torch.randint(CLASSES, (4, 9), generator=draw)
    target[1, 2:6] = target[3, 0] = -100
    return *parts, target, torch.rand(4, 9, generator=draw)


def plain(hidden, weight, target, *, bias=None, reduction="mean", token_weights=None, **options):
    """The two functions of torch, and the weights of tokens by hand."""
    scores, target = F.linear(hidden, weight, bias).flatten(0, -2), target.flatten()
    if token_weights is None:
        loss = F.cross_entropy(scores, target, reduction=reduction, **options)
        return loss.view(hidden.shape[:-1]) if reduction == "none" else loss
    losses = F.cross_entropy(scores, target, reduction="none", **options) * token_weights.flatten()
    kept = token_weights.flatten()[target != options.get("ignore_index", -100)]
    return {"none": losses.view(hidden.shape[:-1]), "sum": losses.sum(), "mean": losses.sum() / kept.sum()}[reduction]


def gradients(function, parts, factor=None, **options):
    loss = function(*parts, **options)
    return loss, *torch.autograd.grad(loss, [part for part in (*parts[:2], options.get("bias")) if part is not None],
                                      torch.ones_like(loss) if factor is None else factor)  # fmt: skip


def close(found, expected, **tolerance):
    torch.testing.assert_close(found, expected, **{"rtol": 1e-6, "atol": 1e-6, **tolerance})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("chunk_size", [1, 7, 36])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"ignore_index": 3}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradients_are_those_of_the_two_functions(reduction, chunk_size, options, weighted):
    hidden, weight, bias, target, token_weights = tensors()
    target = target.masked_fill(target == -100, options.get("ignore_index", -100))
    options = {**options, "bias": bias, "reduction": reduction, "token_weights": token_weights if weighted else None}
    factor = torch.randn(target.shape) if reduction == "none" else None
    expected = gradients(plain, (hidden, weight, target), factor, **options)
    found = gradients(linear_cross_entropy, (hidden, weight, target), factor, **options, chunk_size=chunk_size)
    close(found, expected, atol=1e-5 if reduction == "sum" else 1e-6)


def test_it_is_taken_apart_without_gradients_and_where_all_is_ignored():
    hidden, weight, _, target, token_weights = tensors()
    with torch.no_grad():
        close(linear_cross_entropy(hidden, weight, target, chunk_size=5), plain(hidden, weight, target))
    assert linear_cross_entropy(hidden, weight, torch.full_like(target, -100)).isnan()  # as torch's mean of nothing
    loss = linear_cross_entropy(hidden[0, 0], weight, target[0, 0])  # a single token
    close(loss, F.cross_entropy(weight @ hidden[0, 0], target[0, 0]))
    counted = linear_cross_entropy(hidden, weight, target, token_weights=token_weights.requires_grad_(), chunk_size=5)
    assert torch.autograd.grad(counted, token_weights)[0].abs().sum() > 0


def test_autocast_and_16_bits():
    hidden, weight, bias, target, _ = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(plain, (hidden, weight, target), bias=bias)
        found = gradients(linear_cross_entropy, (hidden, weight, target), bias=bias, chunk_size=5)
    assert found[0].dtype is torch.float32
    close(found, expected, rtol=2e-2, atol=1e-3)
    hidden, weight, bias, target, _ = tensors(torch.bfloat16)
    exact = plain(hidden.float(), weight.float(), target, bias=bias.float())
    close(linear_cross_entropy(hidden, weight, target, bias=bias, chunk_size=5), exact, rtol=1e-3, atol=0)


def test_it_compiles_into_one_graph(monkeypatch):
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # the compiler's bar would leave a thread
    hidden, weight, bias, target, token_weights = tensors()
    options = {"bias": bias, "token_weights": token_weights}
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    found = gradients(compiled, (hidden, weight, target), **options, chunk_size=13)
    close(found, gradients(plain, (hidden, weight, target), **options))


class Largest(TorchDispatchMode):
    """The largest number of elements of a tensor that an operation returned."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        sizes = [one.numel() for one in torch.utils._pytree.tree_leaves(output) if isinstance(one, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return output


def test_no_tensor_holds_the_scores_of_more_than_a_chunk():
    hidden, weight = torch.randn(2, 100, 4, requires_grad=True), torch.randn(300, 4, requires_grad=True)
    target = torch.randint(300, (2, 100))
    for function, options, elements in (
        (plain, {}, 200 * 300),
        (linear_cross_entropy, {"chunk_size": 16}, 16 * 300),
    ):
        with Largest() as largest:
            function(hidden, weight, target, **options).backward()
        assert largest.elements == elements


def test_the_peak_of_a_fit_falls():
    def peak(loss, **options):
        def step(module, batch):
            return loss(batch[0], module.model.weight, batch[1], **options)

        module = Module.from_model(nn.Linear(16, 4096, bias=False), optimizer=sgd, step=step)
        return simulate(module, (torch.randn(8, 64, 16), torch.randint(4096, (8, 64))), SingleDeviceStrategy()).peak

    scores = 8 * 64 * 4096 * 4  # bytes
    assert peak(plain) >= 2 * scores
    assert peak(linear_cross_entropy, chunk_size=32) <= scores / 3  # an eighth are two chunks, and four weights


class Language(Decoder):
    """The decoder, with a loss of its hidden states and the weight of its head, and options of that loss."""

    def __init__(self, plan=None, tied=False, compute=linear_cross_entropy, **options):
        super().__init__(plan, tied=tied)
        self.compute, self.options = compute, options

    def forward(self, text):
        return self.hidden(text)

    def loss(self, name, batch):
        loss = self.compute(self(batch[0]), self.head.weight, batch[1], **self.options)
        self.log(name, loss, on_step=False, on_epoch=True)
        self.losses.append(float(loss.detach()))
        return loss

    def training_step(self, batch, batch_idx):
        return self.loss("loss", batch)

    def validation_step(self, batch, batch_idx):
        self.loss("val_loss", batch)


def alone(precision="32-true", **options):
    return trained(seeded(Language, compute=plain, **options), gradient_clip_val=0.5, precision=precision)


def run(rank, plan, sizes, precision, options):
    module = seeded(Language, plan, **options, chunk_size=3)
    return trained(module, MeshStrategy(**sizes), math.prod(sizes.values()), gradient_clip_val=0.5, precision=precision)


TWO = [{"replicate": 2}, {"shard": 2}, {"tensor": 2}]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("sizes", "tied"),
    [(one, tied) for one in TWO for tied in (False, True)]
    + [({"pipeline": 2}, False), ({"shard": 2, "tensor": 2}, True)],
    ids=str,
)
def test_processes_compute_what_one_does_with_all_scores(sizes, tied):
    plan = {"tensor": FULL, "loss_parallel": tied} if "tensor" in sizes else None
    found = ranks(math.prod(sizes.values()), run, plan, sizes, "32-true", {"tied": tied})
    assert_same(alone(tied=tied), found[0])
    if "tensor" in sizes:
        assert found[0]["losses"] == found[1]["losses"]


@pytest.mark.processes
@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-5), ("bf16-mixed", 3e-2)])
def test_options_and_lower_precision_on_classes_that_are_split(precision, tolerance):
    options = {"label_smoothing": 0.1, "ignore_index": 3}
    both = ranks(2, run, {"tensor": FULL}, {"tensor": 2}, precision, options)
    assert_same(alone(precision, **options), both[0], tolerance)


def refused(rank):
    module = seeded(Language, {"blocks": ["blocks.*", "head"]})
    with pytest.raises(LightlibError) as caught:
        trained(module, MeshStrategy(shard=2), 2)
    return str(caught.value)  # of one rank, which the other one names


@pytest.mark.processes
def test_a_weight_that_fsdp_has_not_gathered_is_refused():
    for error in ranks(2, refused):
        assert "the weight is a shard over ('shard',), placed (Shard(dim=0),)" in error
        assert "leave its layer out of the blocks" in error


HIDDEN, WEIGHT, TARGET = torch.randn(2, 3, 4), torch.randn(5, 4), torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"weight": nn.Linear(4, 5)}, ArgumentTypeError, r"weight=the class Linear(?s:.)*head\.weight"),
        ({"input": [1.0]}, ArgumentTypeError, r"input=\[1.0\] \(list\)"),
        ({"target": TARGET.float()}, ArgumentTypeError, r"target=torch.float32(?s:.)*following.long\(\)"),
        ({"target": TARGET[:, 1:]}, MisconfigurationException, r"target has the shape \(2, 2\)(?s:.)*of \(2, 3\)"),
        ({"weight": WEIGHT.T}, MisconfigurationException, r"weight has the shape \(4, 5\)(?s:.)*of \(4, 4\)"),
        ({"weight": WEIGHT[0]}, MisconfigurationException, r"weight has the shape \(4,\)(?s:.)*of \(classes, 4\)"),
        ({"bias": torch.ones(4)}, MisconfigurationException, r"bias has the shape \(4,\)(?s:.)*of \(5,\)"),
        ({"token_weights": torch.ones(6)}, MisconfigurationException, r"token_weights has the shape \(6,\)"),
        ({"target": TARGET + 7}, MisconfigurationException, r"Target 7 is out of bounds(?s:.)*from 0 to 4"),
        ({"reduction": "man"}, UnknownNameError, "'mean'"),
        ({"implementation": "ligr"}, UnknownNameError, "'liger'"),
        ({"label_smoothing": 1.5}, MisconfigurationException, "label_smoothing=1.5"),
        ({"chunk_size": 0}, MisconfigurationException, "chunk_size=0"),
    ],
)
def test_bad_input(changed, kind, message):
    with pytest.raises(kind, match=message):
        linear_cross_entropy(**{"input": HIDDEN, "weight": WEIGHT, "target": TARGET, **changed})


class TestLiger:
    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "liger_kernel", None)
        with pytest.raises(MisconfigurationException, match=r"liger-kernel(?s:.)*implementation='chunks'"):
            linear_cross_entropy(HIDDEN, WEIGHT, TARGET, implementation="liger")

    def test_a_stand_in_gets_the_arguments(self, monkeypatch):
        seen = []
        packages = {name: ModuleType(name) for name in ("liger_kernel", "liger_kernel.transformers")}
        functions = ModuleType("liger_kernel.transformers.functional")
        functions.liger_fused_linear_cross_entropy = lambda *args, **options: seen.append((args, options)) or args[0]
        for name, package in {**packages, functions.__name__: functions}.items():
            monkeypatch.setitem(sys.modules, name, package)
        hidden, weight, target = HIDDEN.to("meta"), WEIGHT.to("meta"), TARGET.to("meta")
        linear_cross_entropy(hidden, weight, target, reduction="sum", implementation="liger")
        ((args, options),) = seen
        assert [tuple(one.shape) for one in args] == [(6, 4), (5, 4), (6,)]
        assert options == {"bias": None, "ignore_index": -100, "label_smoothing": 0.0, "reduction": "sum"}
        for given, what in (
            ((HIDDEN, WEIGHT, TARGET, {}), "tensors on the CPU"),
            ((hidden, weight, target, {"reduction": "none"}), "reduction='none'"),
            ((hidden, weight, target, {"token_weights": target.float()}), "weights of tokens"),
        ):
            with pytest.raises(MisconfigurationException, match=what):
                linear_cross_entropy(*given[:3], **given[3], implementation="liger")
