"""The arguments of the Trainer for compilation and activations: from YAML, and bad input."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightlib.cli import LightningCLI
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.strategies import (
    ActivationCheckpoint,
    ActivationOffload,
    Compile,
    DDPStrategy,
    DeepSpeedStrategy,
    MeshStrategy,
    Pipeline,
    SingleDeviceStrategy,
)
from tests.runs.modules import Regression
from tests.runs.plain import quiet_trainer, same_weights
from tests.strategies.axes.transforms.residual import Block, data, network

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's compiler raises some
BACKEND = {"backend": "aot_eager"}


def fit(module, **arguments):
    quiet_trainer(**arguments).fit(module, data())


# YAML
YAML = """
trainer:
  accelerator: cpu
  max_epochs: 1
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
"""


@pytest.mark.parametrize(
    ("lines", "kinds", "blocks"),
    [
        (["compile: true"], [Compile], [True]),
        (["compile: blocks", "activation_checkpointing: true"], [ActivationCheckpoint, Compile], [True, "blocks"]),
        (["compile: [net.1, 'net.*']"], [Compile], [["net.1", "net.*"]]),
        (["compile: {target: blocks, backend: eager, mode: default}"], [Compile], ["blocks"]),
        (["compile: {backend: eager}"], [Compile], [True]),
        (["activation_checkpointing: {every: 2, save: [linear]}"], [ActivationCheckpoint], [True]),
        (["activation_offload: {pin_memory: false}"], [ActivationOffload], [True]),
        (["compile: false"], [], []),
    ],
)
def test_from_yaml(lines, kinds, blocks, tmp_path):
    (tmp_path / "run.yaml").write_text(YAML + "".join(f"  {line}\n" for line in lines))
    cli = LightningCLI(Regression, run=False, args=["--config", str(tmp_path / "run.yaml")])
    found = cli.trainer.strategy.transforms
    assert [type(one) for one in found] == kinds
    assert [one.blocks for one in found] == blocks


def test_from_an_environment_variable(monkeypatch):
    monkeypatch.setenv("LIGHTLIB_ACTIVATION_CHECKPOINTING", "{'every': 3}")
    (found,) = quiet_trainer().strategy.transforms
    assert found.every == 3


# bad input
SINGLES = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.mark.parametrize(
    ("arguments", "module", "text"),
    [
        ({"compile": "net.7"}, None, r"(?s)compile: blocks='net\.7' matches no module of Regression.*'net\.\d"),
        ({"activation_checkpointing": ["nett.*"]}, None, r"(?s)blocks='nett\.\*' matches no module.*for instance 'net"),
        ({"activation_offload": "nets"}, None, r"(?s)activation_offload: blocks='nets' matches.*for instance 'net'"),
        (
            {"compile": "blocks"},
            SINGLES,
            r'(?s)compile found no blocks in Regression.*Compile\(blocks=\["net"\]\)',
        ),
        ({"activation_checkpointing": "blocks"}, SINGLES, "activation_checkpointing found no blocks in Regression"),
        ({"activation_offload": "blocks"}, nn.Linear(8, 1), "activation_offload found no blocks in Regression"),
        ({"compile": {"backend": "induktor"}}, None, r"(?s)Unknown backend of torch.compile 'induktor'.*'inductor'"),
        ({"compile": {"target": "blocks", "backend": "induktor"}}, None, "Unknown backend of torch.compile 'induktor'"),
    ],
)
def test_layers_that_there_are_not(arguments, module, text):
    trained = Regression(module or network())
    before = copy.deepcopy(trained.net)
    with pytest.raises(MisconfigurationException, match=text):
        fit(trained, **arguments)
    assert same_weights(trained.net, before)


@pytest.mark.parametrize("name", ["compile", "activation_checkpointing", "activation_offload"])
def test_a_list_of_modules_is_never_called(name):
    module = Regression(nn.ModuleList([Block(0.0)]))
    with pytest.raises(MisconfigurationException, match=rf'(?s){name}: net is an nn.ModuleList.*Fix: .*\["net\.\*"\]'):
        fit(module, **{name: ["net"]})


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (
            lambda: quiet_trainer(compile={"mode": "default", "options": {"a": 1}}),
            MisconfigurationException,
            "one of the two",
        ),
        (lambda: quiet_trainer(activation_checkpointing={"every": -1}), MisconfigurationException, "every=-1"),
        (lambda: quiet_trainer(compile={"fullgraph": 1}), ArgumentTypeError, "fullgraph=1"),
        (lambda: quiet_trainer(activation_offload={"pin_memory": "a"}), ArgumentTypeError, "pin_memory='a'"),
        (
            lambda: quiet_trainer(activation_checkpointing={"save": ["linaer"]}),
            MisconfigurationException,
            r"(?s)no operation of this name.*save=\['linear'\]",
        ),
        (
            lambda: quiet_trainer(activation_checkpointing={"save": ["layer_norm"]}),
            MisconfigurationException,
            "'layer_norm'.*is made of other operations",
        ),
        (
            lambda: quiet_trainer(compile={"backend": "eager"}, activation_checkpointing=True),
            MisconfigurationException,
            "gradients of dropout would be wrong",
        ),
        (lambda: quiet_trainer(compile={"every": 2}), UnknownNameError, "Unknown option of compile 'every'"),
        (
            lambda: quiet_trainer(compile=ActivationCheckpoint()),
            ArgumentTypeError,
            "compile is an object of type ActivationCheckpoint",
        ),
        (
            lambda: quiet_trainer(compile=True, strategy=MeshStrategy(pipeline=Pipeline(1), compile=True)),
            MisconfigurationException,
            r"(?s)compile is given twice: to the Trainer and to MeshStrategy.*leave out MeshStrategy\(compile=…\)",
        ),
        (
            lambda: quiet_trainer(
                activation_checkpointing=True, strategy=SingleDeviceStrategy(activation_checkpointing=True)
            ),
            MisconfigurationException,
            "given twice: to the Trainer and to SingleDeviceStrategy",
        ),
        (
            lambda: quiet_trainer(activation_checkpointing=True, strategy=DDPStrategy(activation_checkpointing=True)),
            MisconfigurationException,
            "given twice: to the Trainer and to DDPStrategy",
        ),
        (
            lambda: quiet_trainer(compile=True, devices=2, strategy=MeshStrategy(pipeline=Pipeline(2, schedule="zbv"))),
            MisconfigurationException,
            "zero-bubble schedules refuse compiled stages",
        ),
        (
            lambda: quiet_trainer(activation_offload=True, strategy=DeepSpeedStrategy()),
            MisconfigurationException,
            r"Trainer\(activation_offload=…\) with DeepSpeedStrategy: this strategy runs the layers itself",
        ),
        (
            lambda: quiet_trainer(compile="blocks").fit(torch.compile(Regression(network()), **BACKEND), data()),
            MisconfigurationException,
            "(?s)compile is given twice: the module is compiled.*trainer.fit",
        ),
    ],
)
def test_refused_before_training(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def test_a_strategy_object_forgets_the_arguments_of_another_trainer():
    strategy = SingleDeviceStrategy()
    quiet_trainer(strategy=strategy, compile=True, activation_checkpointing=True)
    assert [one.argument for one in strategy.transforms] == ["activation_checkpointing", "compile"]
    quiet_trainer(strategy=strategy, activation_offload=True)
    assert [one.argument for one in strategy.transforms] == ["activation_offload"]
