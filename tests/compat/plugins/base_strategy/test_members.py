"""Members of strategies and precisions of Lightning's kind that no recorded program covers."""

from __future__ import annotations

import contextlib

import pytest
import torch

import lightlib
from lightlib.errors import MisconfigurationException
from tests.processes.ranks import ranks

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
QUIET |= {"accelerator": "cpu", "max_epochs": 1}
DATA = [torch.full((2, 1), value) for value in (1.0, 2.0, 3.0)]


class Net(lightlib.Module):
    """One weight; its gradient is the mean of a batch."""

    def __init__(self):
        super().__init__()
        self.layer = None
        self.dtype_of_new = None

    def configure_model(self):
        if self.layer is None:
            self.layer = torch.nn.Linear(1, 1, bias=False)
            self.dtype_of_new = self.layer.weight.dtype
            torch.nn.init.ones_(self.layer.weight)

    def training_step(self, batch, batch_idx):
        return self.layer(batch.to(self.layer.weight.dtype)).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


@contextlib.contextmanager
def default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_the_contexts_around_configure_model():
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import Precision
    from lightning.pytorch.strategies import SingleDeviceStrategy

    entered = []

    class Sharded(SingleDeviceStrategy):
        @contextlib.contextmanager
        def model_sharded_context(self):
            entered.append("model_sharded_context")
            yield

        @contextlib.contextmanager
        def tensor_init_context(self, empty_init=None):
            entered.append("tensor_init_context")
            with super().tensor_init_context(empty_init):
                yield

    class Wide(Precision):
        def module_init_context(self):
            return default(torch.float64)

    module = Net()
    pl.Trainer(strategy=Sharded(), plugins=[Wide()], **QUIET).fit(module, DATA)
    assert entered == ["tensor_init_context", "model_sharded_context"]
    assert module.dtype_of_new == torch.float64


def test_a_precision_is_connected_and_may_replace_nothing():
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import Precision

    class Noting(Precision):
        def connect(self, model, optimizers, lr_schedulers):
            self.given = model, list(optimizers), list(lr_schedulers)
            return super().connect(model, optimizers, lr_schedulers)

    class Replacing(Precision):
        def connect(self, model, optimizers, lr_schedulers):
            return model, [], lr_schedulers

    module, noting = Net(), Noting()
    trainer = pl.Trainer(plugins=[noting], **QUIET)
    trainer.fit(module, DATA)
    assert noting.given == (module, trainer.strategy.optimizers, [])
    with pytest.raises(MisconfigurationException, match=r"Replacing\.connect"):
        pl.Trainer(plugins=[Replacing()], **QUIET).fit(Net(), DATA)


def test_a_step_that_is_left_out_is_none():
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Skipping(SingleDeviceStrategy):
        seen = 0

        def optimizer_step(self, optimizer, closure, model=None, **kwargs):
            self.seen += 1
            if self.seen == 2:
                return closure()  # forward and backward, without a step
            return super().optimizer_step(optimizer, closure, model, **kwargs)

    module = Net()
    trainer = pl.Trainer(strategy=Skipping(), **QUIET)
    trainer.fit(module, DATA)
    # the gradients are 1, 2 (left out) and 3
    assert module.layer.weight.item() == 1 - 0.5 * 1 - 0.5 * 3
    assert trainer.global_step == 2


def test_main_params_are_those_that_are_clipped():
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import Precision

    other = torch.nn.Parameter(torch.zeros(1))
    other.grad = torch.full((1,), 5.0)

    class Another(Precision):
        def main_params(self, optimizer):
            return iter([other])

    module = Net()
    pl.Trainer(plugins=[Another()], gradient_clip_val=0.1, gradient_clip_algorithm="value", **QUIET).fit(module, DATA)
    assert (module.layer.weight.item(), other.grad.item()) == (1 - 0.5 * (1 + 2 + 3), pytest.approx(0.1))
    clipped = Net()
    pl.Trainer(gradient_clip_val=0.1, gradient_clip_algorithm="value", **QUIET).fit(clipped, DATA)
    assert clipped.layer.weight.item() == pytest.approx(1 - 0.5 * 0.3)


def test_teardown_of_a_precision_and_post_training_step():
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import Precision
    from lightning.pytorch.strategies import SingleDeviceStrategy

    calls = []

    class Ending(Precision):
        def teardown(self):
            calls.append("teardown")

    class Following(SingleDeviceStrategy):
        def post_training_step(self):
            calls.append("step")

    pl.Trainer(strategy=Following(), plugins=[Ending()], **QUIET).fit(Net(), DATA)
    assert calls == ["step"] * 3 + ["teardown"]


def test_a_trainer_can_be_copied_with_a_strategy_written_from_scratch():
    import copy
    import pickle

    import lightning.pytorch as pl

    trainer = pl.Trainer(strategy=Scratch(), **QUIET)
    for copied in (copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))):
        module = Net()
        copied.fit(module, DATA)
        assert isinstance(copied.strategy, Scratch)
        assert (copied.strategy.steps, module.layer.weight.item()) == (3, 1 - 0.5 * 6)


def _scratch():
    from lightlib_lightning.plugins.base_strategy import Strategy

    class Scratch(Strategy):
        steps = 0

        def optimizer_step(self, optimizer, closure, model=None, **kwargs):
            self.steps += 1
            return super().optimizer_step(optimizer, closure, model, **kwargs)

    Scratch.__qualname__, Scratch.__module__ = "Scratch", __name__
    return Scratch


Scratch = _scratch()


def _sampled(rank):
    from lightlib import compat

    compat.install()
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy

    class Everything(DDPStrategy):
        @property
        def distributed_sampler_kwargs(self):
            return {"num_replicas": 1, "rank": 0}

    class Own(ParallelStrategy):
        def barrier(self, name=None):
            self.waited = getattr(self, "waited", 0) + 1
            super().barrier(name)

    found = []
    for strategy in (Everything(), Own()):
        module, seen = Net(), []
        module.on_train_batch_start = lambda batch, i, seen=seen: seen.append(batch.tolist())
        trainer = pl.Trainer(strategy=strategy, devices=2, **QUIET)
        data = torch.utils.data.DataLoader(torch.arange(4.0).reshape(4, 1), batch_size=1)
        trainer.fit(module, data)
        found.append((seen, module.layer.weight.item(), getattr(strategy, "waited", 0) > 0, trainer.world_size))
    return found


def _drawn(rank, size):
    """Return the batches of Lightning's sampler, which shuffles training data."""
    sampler = torch.utils.data.DistributedSampler(range(4), num_replicas=size, rank=rank, shuffle=True, seed=0)
    return [[[float(index)]] for index in sampler]


@pytest.mark.processes
def test_two_processes_with_a_sampler_and_a_strategy_of_their_own():
    every, own = zip(*ranks(2, _sampled), strict=True)
    for seen, weight, _, size in every:  # both read all samples: 0 + 1 + 2 + 3
        assert (seen, weight, size) == (_drawn(rank=0, size=1), 1 - 0.5 * 6, 2)
    for rank, (seen, weight, waited, size) in enumerate(own):  # each reads half, and gradients are averaged
        assert seen == _drawn(rank, size=2)
        assert (weight, waited, size) == (1 - 0.5 * (0.5 + 2.5), True, 2)


@pytest.mark.parametrize("name", ["16-mixed", "bf16-mixed"])
def test_the_device_of_a_mixed_precision_is_that_of_the_run(name):
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import MixedPrecision

    assert pl.Trainer(precision=name, **QUIET).precision_plugin.device == "cpu"
    given = MixedPrecision(name, "cuda")
    assert (MixedPrecision(name).device, given.device) == (None, "cuda")
