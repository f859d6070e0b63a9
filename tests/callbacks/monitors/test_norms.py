"""NormMonitor: the norms of a plain loop, at the steps that are due only."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightlib.callbacks import NormMonitor
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.callbacks.monitors.test_activations import Recording
from tests.core.run.loop.test_overhead import data, per_batch
from tests.runs.modules import Manual
from tests.runs.plain import QUIET, Net, Rows, batches, quiet_trainer, with_methods

CLIP = 0.05


def two_groups(parameters):
    weights = [*parameters]
    return torch.optim.SGD([{"params": weights[:2], "name": "first"}, {"params": weights[2:]}], lr=0.1)


def logged(monitor, module, batches, **arguments):
    rows = Rows()
    Trainer(**QUIET | {"logger": rows}, max_epochs=1, callbacks=[monitor], **arguments).fit(module, batches)
    return {step: {name: value for name, value in row.items() if "norm" in name} for step, row in rows.rows}


def norm(tensors):
    return torch.nn.utils.get_total_norm([*tensors]).item()


def plain(accumulate=1, clip=None):
    """Train a plain loop; return the norms before each step."""
    net, found = Net(), []
    optimizer = two_groups(net.parameters())
    for window in zip(*[iter(batches(8))] * accumulate, strict=True):
        optimizer.zero_grad()
        for x, y in window:
            (cross_entropy(net.net(x), y) / accumulate).backward()
        groups = [group["params"] for group in optimizer.param_groups]
        row = {}
        for name, pick in (("grad_norm", lambda p: p.grad), ("param_norm", lambda p: p.detach())):
            row[name] = norm(pick(p) for group in groups for p in group)
            row |= {
                f"{name}/{key}": norm(map(pick, group)) for key, group in zip(("first", "pg2"), groups, strict=True)
            }
        found.append(row)
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return found


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, CLIP)])
def test_the_norms_are_those_of_a_plain_loop_before_clipping(accumulate, clip):
    settings = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    found = logged(NormMonitor(every_n_steps=1), Net(two_groups), batches(8), **settings)
    assert [found[step] for step in sorted(found)] == plain(accumulate, clip)
    assert clip is None or all(row["grad_norm"] > clip for row in found.values())


def test_only_steps_that_are_due_and_only_the_kind_that_is_on():
    every = plain()
    found = logged(NormMonitor(parameters=False, every_n_steps=3), Net(), batches(8))
    assert found == {step: {"grad_norm": pytest.approx(every[step - 1]["grad_norm"])} for step in (3, 6)}
    found = logged(NormMonitor(gradients=False), Net(), batches(8), log_every_n_steps=4)
    assert found == {step: {"param_norm": pytest.approx(every[step - 1]["param_norm"])} for step in (4, 8)}
    assert logged(NormMonitor(), Net(), batches(2), log_every_n_steps=0) == {}


@pytest.mark.filterwarnings("ignore:precision='16-mixed' computes")
def test_the_scale_of_a_loss_in_float16_is_taken_off():
    scaled = logged(NormMonitor(every_n_steps=1), Net(), batches(2), precision="16-mixed")
    expected = logged(NormMonitor(every_n_steps=1), Net(), batches(2))
    assert scaled[1]["grad_norm"] == pytest.approx(expected[1]["grad_norm"], rel=1e-2)


def test_each_optimizer_has_its_names_and_callbacks_can_monitor_them():
    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[3])]

    made = Trainer(**QUIET, max_epochs=1, callbacks=[NormMonitor(every_n_steps=1)])
    made.fit(with_methods(Manual, configure_optimizers), batches(1))
    net = Manual()
    x, y = batches(1)[0]
    expected = {}
    for suffix, layer in (("", net.net[0]), ("-1", net.net[3])):
        net.zero_grad()
        cross_entropy(net.net(x), y).backward()
        expected[f"grad_norm{suffix}"] = norm(p.grad for p in layer.parameters())
        expected[f"param_norm{suffix}"] = norm(p.detach() for p in layer.parameters())
        with torch.no_grad():
            for p in layer.parameters():
                p.sub_(0.1 * p.grad)
    assert {name: float(value) for name, value in made.callback_metrics.items()} == pytest.approx(expected)


def test_frozen_parameters_and_those_without_a_gradient_do_not_count():
    partly = Net(two_groups)
    partly.net[0].requires_grad_(False)
    found = logged(NormMonitor(every_n_steps=1), partly, batches(1))[1]
    assert found["grad_norm/first"] == found["param_norm/first"] == 0.0
    assert found["grad_norm"] == found["grad_norm/pg2"] > 0


def test_other_steps_cost_one_call():
    def cost(*callbacks):
        run = lambda n: quiet_trainer(limit_val_batches=0, callbacks=[*callbacks]).fit(Net(), data(n))  # noqa: E731
        return per_batch(run)

    assert cost(NormMonitor(every_n_steps=10**6)) - cost() <= 4  # the hook, its wrapper, and what it reads


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"gradients": 1}, ArgumentTypeError, r"gradients=1 \(int\)\)"),
        ({"parameters": "no"}, ArgumentTypeError, r"parameters='no' \(str\)\)"),
        ({"gradients": False, "parameters": False}, MisconfigurationException, "nothing to log"),
        ({"every_n_steps": 0}, MisconfigurationException, r"every_n_steps=0\)"),
        ({"every_n_steps": 1.5}, ArgumentTypeError, r"every_n_steps=1\.5 \(float\)\)"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        NormMonitor(**arguments)


def test_a_strategy_that_keeps_its_gradients_is_refused(monkeypatch):
    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[NormMonitor()])
    monkeypatch.setattr(type(trainer.strategy), "steps_parameters", False)
    with pytest.raises(MisconfigurationException, match="keeps gradients for itself"):
        trainer.fit(Net(), batches(1))


class TestLayers:
    def test_the_norms_of_layers_are_those_of_a_plain_loop(self):
        found = logged(NormMonitor(every_n_steps=2, layers=["net.*", "net"]), Net(), batches(4))
        net = Net()
        optimizer = net.configure_optimizers()
        for step, (x, y) in enumerate(batches(4), 1):
            optimizer.zero_grad()
            cross_entropy(net.net(x), y).backward()
            if step % 2 == 0:
                expected = {"grad_norm": norm(p.grad for p in net.parameters()), "param_norm": norm(net.parameters())}
                for name in ("net", "net.0", "net.3"):
                    weights = [*net.get_submodule(name).parameters()]
                    expected[f"grad_norm/{name}"] = norm(p.grad for p in weights)
                    expected[f"param_norm/{name}"] = norm(weights)
                assert found[step] == pytest.approx(expected, rel=1e-6)
            optimizer.step()
        assert sorted(found) == [2, 4]

    def test_histograms_go_to_the_loggers(self):
        logger = Recording()
        monitor = NormMonitor(every_n_steps=2, layers="net.0", histograms=True)
        Trainer(**QUIET | {"logger": logger}, max_epochs=1, callbacks=[monitor]).fit(Net(), batches(2))
        assert logger.media == [("gradients/net.0", 2, 56), ("parameters/net.0", 2, 56)]

    @pytest.mark.parametrize(
        ("layers", "error", "message"),
        [
            ("nets.*", MisconfigurationException, r"layers='nets.\*'\) matches no layer of Net(.|\n)*'net.0'"),
            (3, ArgumentTypeError, "names of layers"),
        ],
    )
    def test_refused(self, layers, error, message):
        with pytest.raises(error, match=message):
            logged(NormMonitor(layers=layers), Net(), batches(1))
