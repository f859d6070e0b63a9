"""Modules and data that a pipeline refuses, on each of its processes, and the errors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from tests.processes.ranks import ranks
from tests.runs.plain import raising, with_methods
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


class Layers(L.Module):
    """A step that keeps the rule; its children break it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.before, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        return self.head(self.layers(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def twice(self, batch, batch_idx):
    first = self.layers(batch)
    return self.layers(first).mean()


def nothing(self, batch, batch_idx):
    self.layers(batch)


def failing(self, batch, batch_idx):
    self.layers(batch)
    raise KeyError("the user's own")


STEPS = {
    "twice": twice,
    "never": lambda self, batch, batch_idx: batch.mean(),
    "before": lambda self, batch, batch_idx: self.layers(self.before(batch)).mean(),
    "before by weight": lambda self, batch, batch_idx: self.layers(F.linear(batch, self.before.weight)).mean(),
    "before inside": lambda self, batch, batch_idx: self.layers(self.layers[0](batch)[:, :4]).mean(),
    "nothing": nothing,
    "failing": failing,
    "failing before": raising(KeyError("the user's own")),
}


def stepping(name):
    return with_methods(Layers, training_step=STEPS[name])


def failing_inside():
    module = Layers()
    module.layers[0].forward = raising(KeyError("the user's own"))
    return module


class Loose(L.Module):
    """A loop over blocks that keeps an early value."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.kind = nn.Linear(4, 4), kind
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x):
        start = x = self.embed(x)
        if self.kind == "reversed":
            for block in reversed(self.blocks):
                x = block(x)
        elif self.kind == "again":
            for _ in range(2):
                for block in self.blocks:
                    x = block(x)
        else:
            outputs = []
            for block in self.blocks:
                x = block(x) + (start if self.kind == "skip" else 0)
                outputs.append(x)
            x = sum(outputs) if self.kind == "collect" else x
        return x

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def refused(rank: int, make: Any, args: tuple[Any, ...], pipeline: dict[str, Any], count: int, size: int) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    trainer = L.Trainer(
        **QUIET, devices=2, strategy=MeshStrategy(pipeline=Pipeline(2, **pipeline), timeout=60), max_epochs=1
    )
    trainer.fit(make(*args), DataLoader(torch.randn(count, 4), size))


def message(make: Any, *args: Any, count: int = 8, size: int = 8, **pipeline: Any) -> str:
    """Return the errors of all processes; one may repeat the other's, or be ended while it waits."""
    with pytest.raises(AssertionError) as caught:
        ranks(2, refused, make, args, pipeline, count, size)
    assert "hanging" not in str(caught.value)
    return str(caught.value)


RULE = "a step calls the pipelined part exactly once, and no parameter is used before that call."


def line_of(name: str, text: str) -> str:
    """Return where `text` stands in this file, in the step of this name."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    begin = next(
        index for index, line in enumerate(lines) if line.startswith((f"def {name}(", f'    "{name}": lambda'))
    )
    return f"test_pipeline_refused.py:{next(i for i in range(begin, len(lines)) if text in lines[i]) + 1}"


def test_two_calls_name_both_lines() -> None:
    last = message(stepping, "twice")
    assert "MisconfigurationException: The step calls self.layers twice" in last
    assert RULE in last
    assert line_of("twice", "first = ") in last
    assert line_of("twice", "self.layers(first)") in last


@pytest.mark.parametrize("name", ["before", "before by weight", "before inside"])
def test_a_parameter_before_the_call_names_the_line_on_every_process(name) -> None:
    text = message(stepping, name)
    assert "The step uses a parameter before it calls self.layers" in text
    assert RULE in text
    assert line_of(name, "self.layers(") in text


def test_a_step_that_never_calls_the_part() -> None:
    text = message(stepping, "never")
    assert "does not call self.layers(…), the part of Given that the pipeline cuts" in text
    assert RULE in text
    assert line_of("never", "lambda") in text


def test_a_step_that_returns_none() -> None:
    text = message(stepping, "nothing")
    assert "training_step returned None in a pipeline." in text


def test_errors_of_the_user_are_raised_as_they_are() -> None:
    for make, *name in ((stepping, "failing"), (stepping, "failing before"), (failing_inside,)):
        assert 'KeyError: "the user\'s own"' in message(make, *name)


def test_micro_batches_that_do_not_divide_the_batch() -> None:
    text = message(Layers, size=8, microbatches=3, schedule="gpipe")
    assert "A batch of 8 samples cannot be cut into 3 micro-batches for the schedule 'gpipe'" in text
    assert "1, 2, 4, 8" in text
    assert "microbatches=" in text
    text = message(Layers, count=1, size=1)
    assert "A batch of 1 samples cannot be cut into equal micro-batches for the schedule '1f1b'" in text
    assert "batch_size=2" in text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("reversed", "does not call the layers blocks.0 to blocks.4 one after the other"),
        ("again", "does not call the layers blocks.0 to blocks.4 one after the other"),
        ("skip", "uses a value that parameters of another stage make"),
        ("collect", "uses a value that parameters of another stage make"),
    ],
)
def test_loops_over_blocks_that_cannot_be_cut(kind, text) -> None:
    assert text in message(Loose, kind)


def test_manual_optimization_and_lbfgs() -> None:
    text = message(manual)
    assert "automatic_optimization=False, and the strategy is a pipeline" in text
    text = message(newton)
    assert "LBFGS in a pipeline" in text


def manual():
    return with_methods(Layers, automatic_optimization=False)


def newton():
    return with_methods(Layers, configure_optimizers=lambda self: torch.optim.LBFGS(self.parameters()))


def test_layers_that_share_a_parameter_over_processes() -> None:
    text = message(shared)
    assert "layers.0.weight and layers.4.weight are one parameter" in text
    assert "zbv" in text


def shared():
    module = Layers()
    module.layers[0].weight = nn.Parameter(torch.randn(8, 4))
    module.layers[4] = nn.Linear(4, 8)
    module.layers[4].weight = module.layers[0].weight
    return module


def test_nothing_has_been_changed_when_a_module_is_refused() -> None:
    module = Layers()
    pipeline = Pipeline(2, stages=["layers.9"])
    with pytest.raises(MisconfigurationException, match=r"stages names 'layers\.9', which matches nothing"):
        pipeline.check(module, _site(module))
    assert len(module.layers) == 5


def _site(module: nn.Module) -> Any:
    from lightlib.strategies.axes.parallel_plan import plan_of

    class AxisContext:
        plan, sizes, automatic = plan_of(module), {"pipeline": 2}, True

    return AxisContext()


def loaders(rank: int) -> None:
    warnings.simplefilter("ignore")
    trainer = L.Trainer(**QUIET, devices=2, strategy=MeshStrategy(pipeline=2), max_epochs=1)
    trainer.fit(Layers(), DataLoader([{"x": torch.zeros(4), "y": torch.zeros(4)}] * 8, 8, collate_fn=list))


def test_a_list_of_samples_that_may_be_batches_of_several_loaders() -> None:
    with pytest.raises(AssertionError) as caught:
        ranks(2, loaders)
    text = str(caught.value)
    assert "The batch is a list of 8 objects (dict), and each tensor in them has 4 rows." in text
    assert "define split_batch(self, batch, n)" in text


def by_two_trainers(rank: int) -> None:
    warnings.simplefilter("ignore")
    module, data = Layers(), DataLoader(torch.randn(8, 4), 8)
    for _ in range(2):
        strategy = MeshStrategy(pipeline=2, timeout=60)
        L.Trainer(**QUIET, devices=2, strategy=strategy, max_epochs=1).fit(module, data)


def test_a_module_that_another_trainer_has_cut() -> None:
    with pytest.raises(AssertionError, match="Layers is sharded over processes by the strategy of another Trainer"):
        ranks(2, by_two_trainers)
