"""OptimizerInBackward: the numbers of ordinary steps, no gradients left, refusals."""

from __future__ import annotations

import pytest
import torch

import lightlib as L
from lightlib.callbacks import GradientAccumulationScheduler, OptimizerInBackward
from lightlib.errors import MisconfigurationException
from lightlib.optim import Lion, MuonAdamW
from tests.runs.bad_input import with_methods
from tests.runs.modules import Manual
from tests.runs.plain import Net, loader, quiet_trainer, same_weights
from tests.runs.resumable import SaveAtStep


def adamw(parameters):
    """Two groups, and a schedule."""
    weight, *rest = parameters
    optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.05}, {"params": rest}], lr=0.01)
    return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


def several(parameters):
    weight, *rest = parameters
    return [torch.optim.SGD([weight], lr=0.1, momentum=0.9), Lion(rest)]


def fit(*callbacks, configure=adamw, **arguments):
    module = Net(configure, dropout=0.2)
    trainer = quiet_trainer(max_epochs=2, callbacks=list(callbacks), enable_checkpointing=False)
    torch.manual_seed(7)
    trainer.fit(module, loader(24), **arguments)
    return module


@pytest.mark.parametrize("configure", [adamw, several, lambda _: MuonAdamW])
def test_the_numbers_are_those_of_ordinary_steps(configure):
    assert same_weights(fit(OptimizerInBackward(), configure=configure), fit(configure=configure))


def test_each_gradient_is_freed_before_the_next():
    most = []

    class Counts(L.Callback):
        def on_before_backward(self, trainer, pl_module, loss):
            for parameter in pl_module.parameters():
                parameter.register_hook(lambda _: most.append(sum(p.grad is not None for p in pl_module.parameters())))

        def on_after_backward(self, trainer, pl_module):
            assert all(parameter.grad is None for parameter in pl_module.parameters())

    fit(OptimizerInBackward(), Counts())
    assert max(most) <= 1


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    complete = fit(OptimizerInBackward(), SaveAtStep(tmp_path / "a.ckpt", 4))
    assert same_weights(fit(OptimizerInBackward(), ckpt_path=tmp_path / "a.ckpt"), complete)


def test_the_hooks_are_removed():
    module = fit(OptimizerInBackward())
    module.net(torch.ones(1, 6)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


class Counting(torch.optim.SGD):
    """An optimizer of another package."""


@pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
@pytest.mark.parametrize(
    ("arguments", "module", "text"),
    [
        ({"gradient_clip_val": 1.0}, Net, "gradients are clipped"),
        ({"accumulate_grad_batches": 2}, Net, "accumulate_grad_batches=2"),
        ({"precision": "16-mixed"}, Net, "the loss is scaled"),
        ({}, Manual, "automatic_optimization=False"),
        ({}, lambda: Net(torch.optim.LBFGS), "LBFGS steps all parameters at once"),
        ({}, lambda: Net(lambda p: Counting(p, lr=0.1)), "Counting steps all parameters at once"),
        ({"callbacks": [GradientAccumulationScheduler({0: 2})]}, Net, "a GradientAccumulationScheduler"),
    ],
)
def test_what_needs_all_gradients_is_refused(arguments, module, text):
    callbacks = [OptimizerInBackward(), *arguments.pop("callbacks", [])]
    with pytest.raises(MisconfigurationException, match=text) as caught:
        quiet_trainer(callbacks=callbacks, **arguments).fit(module(), loader(8))
    assert "Expected: " in str(caught.value)
    assert "Fix: " in str(caught.value)


@pytest.mark.parametrize(
    "hook", ["on_after_backward", "on_before_optimizer_step", "optimizer_step", "optimizer_zero_grad"]
)
def test_a_hook_that_could_change_gradients_or_skip_the_step_is_refused(hook):
    module = with_methods(Net, **{hook: lambda self, *_: None})
    with pytest.raises(MisconfigurationException, match=rf"Given\.{hook} expects all gradients"):
        quiet_trainer(callbacks=[OptimizerInBackward()]).fit(module, loader(8))
