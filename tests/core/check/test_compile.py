"""Modules from torch.compile: the same weights, few graph breaks, and the module stays the user's."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import cross_entropy

from lightlib.callbacks import Callback
from tests.runs.plain import Net, batches, quiet_trainer, same_weights
from tests.runs.steps import Steps

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # importing torch's compiler raises some
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # raised and suppressed by torch's compiler
]


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    monkeypatch.setattr(pytest.importorskip("tqdm").tqdm, "monitor_interval", 0)  # torch's bars would leave a thread
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Plain(Net):
    """Its step is written out, without super()."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self.net(x), y)


class Logs(Plain):
    """Logs once per step."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("x", cross_entropy(self.net(batch[0]), batch[1]))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "arguments", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}], ids=["plain", "more"]
)
def test_equal_weights(backend, arguments):
    module, plain = Plain(), Plain()
    quiet_trainer(max_epochs=2, **arguments).fit(torch.compile(module, backend=backend), batches(5))
    quiet_trainer(max_epochs=2, **arguments).fit(plain, batches(5))
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_the_step_is_compiled_once():
    counter = CompileCounterWithBackend("eager")
    quiet_trainer(max_epochs=2).fit(torch.compile(Plain(), backend=counter), batches(5))
    assert counter.frame_count == 1


def test_logging_breaks_the_graph_once_at_most():
    counter = CompileCounterWithBackend("eager")
    module, plain = Logs(), Logs()
    trainer = quiet_trainer(max_epochs=2, limit_val_batches=0)
    trainer.fit(torch.compile(module, backend=counter), batches(5))
    assert counter.frame_count <= 2
    assert set(torch._dynamo.utils.counters["frames"]) == {"total", "ok"}  # none was given up
    reference = quiet_trainer(max_epochs=2, limit_val_batches=0)
    reference.fit(plain, batches(5))
    assert same_weights(module, plain)
    assert trainer.callback_metrics == reference.callback_metrics


def test_dynamic_and_fullgraph_are_handed_on():
    counter = CompileCounterWithBackend("eager")
    module = Plain()
    quiet_trainer().fit(
        torch.compile(module, backend=counter, fullgraph=True, dynamic=True), [*batches(2), *batches(1, 3)]
    )
    assert counter.frame_count == 1


def test_the_module_itself_is_what_the_user_meets():
    seen = []

    class Sees(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            seen.append(pl_module)

    module = Plain()
    trainer = quiet_trainer(callbacks=[Sees()])
    trainer.fit(torch.compile(module, backend="eager"), batches(1))
    assert seen == [module]
    assert trainer.lightning_module is module
    assert "training_step" not in vars(module)
    assert list(module.state_dict()) == list(Plain().state_dict())


def test_evaluation_and_prediction():
    counter = CompileCounterWithBackend("eager")
    module = Logs()
    module.predict_step = lambda batch: module.net(batch[0])
    compiled, data = torch.compile(module, backend=counter), batches(2)
    trainer = quiet_trainer()
    (metrics,) = trainer.validate(compiled, data, verbose=False)
    assert counter.frame_count >= 1
    assert metrics == quiet_trainer().validate(module, data, verbose=False)[0]
    outputs = trainer.predict(compiled, data)
    assert [output.shape for output in outputs] == [(4, 3)] * 2


def test_without_compile_afterwards_it_runs_as_it_is():
    counter = CompileCounterWithBackend("eager")
    module, trainer = Plain(), quiet_trainer()
    trainer.fit(torch.compile(module, backend=counter), batches(1))
    count = counter.frame_count
    trainer.max_epochs = 2
    trainer.fit(module, batches(1))
    assert counter.frame_count == count


def test_checkpoints_have_the_names_of_the_module(tmp_path):
    module, trainer = Plain(), quiet_trainer()
    trainer.fit(torch.compile(module, backend="eager"), batches(1))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert same_weights(Plain.load_from_checkpoint(tmp_path / "a.ckpt"), module)


def test_parts_that_the_user_compiled():
    module, plain = Steps(), Steps()
    module.net = torch.compile(module.net, backend="eager")
    quiet_trainer().fit(module, batches(3), batches(1))
    quiet_trainer().fit(plain, batches(3), batches(1))
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
