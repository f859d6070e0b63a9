"""Lightning's public paths and names below `lightlib`, for programs that replace their imports."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib
from lightlib import lazy
from lightlib_lightning.direct import lightning_path
from lightlib_lightning.objects import names
from tests.processes import programs

# A program of Lightning's kind; the test replaces its imports, as `sed s/lightning.pytorch/lightlib/` does.
PROGRAM = """
import torch
import lightning.pytorch as pl
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LambdaCallback, TQDMProgressBar
from lightning.pytorch.callbacks.early_stopping import EarlyStopping
from lightning.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from lightning.pytorch.loggers.csv_logs import CSVLogger
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import grad_norm, rank_zero_only
from lightning.pytorch.utilities.model_summary import ModelSummary
from lightning.pytorch.utilities.types import STEP_OUTPUT


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx) -> STEP_OUTPUT:
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def on_before_optimizer_step(self, optimizer):
        norms.append(grad_norm(self, 2)["grad_2.0_norm_total"].item())
        stages.append(self.trainer.state.stage)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


norms, stages, calls = [], [], []
rank_zero_only(calls.append)("once")
pl.seed_everything(1, verbose=False)
model = Net()
size = ModelSummary(model).total_parameters
trainer = Trainer(
    accelerator="cpu", max_epochs=1, logger=CSVLogger("."), enable_progress_bar=False, enable_model_summary=False,
    callbacks=[ModelCheckpoint("files"), EarlyStopping("loss", strict=False)],
)
trainer.fit(model, loader)
training = RunningStage.TRAINING
"""


def data():
    x = torch.arange(24.0).reshape(8, 3) / 24
    return TensorDataset(x, x.sum(1, keepdim=True))


@pytest.mark.filterwarnings("ignore:.*EarlyStopping.*", "ignore:.*'loss'.*")
def test_a_program_after_sed_trains_as_a_plain_loop():
    bound = {"loader": DataLoader(data(), batch_size=2), "__name__": "program"}
    exec(compile(PROGRAM.replace("lightning.pytorch", "lightlib"), "program.py", "exec"), bound)

    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    norms = []
    for x, y in DataLoader(data(), batch_size=2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(layer(x), y).backward()
        norms.append(torch.stack([p.grad.norm(2.0) for p in layer.parameters()]).norm(2.0).item())
        optimizer.step()
    assert torch.equal(bound["model"].layer.weight, layer.weight)
    assert bound["norms"] == norms
    assert bound["stages"] == [bound["training"]] * 4
    assert (bound["size"], bound["calls"]) == (4, ["once"])


def paths():
    """Yield each path of Lightning and its name below lightlib."""
    for path in names():
        if path.partition(".")[0] == "pytorch":
            yield path, f"lightlib{path.removeprefix('pytorch')}"
        elif path:
            yield path, f"lightlib.{path}"


def test_every_module_of_lightning_is_below_lightlib():
    for path, name in paths():
        assert importlib.import_module(name).__name__ == name
        assert lightning_path(name) == path


def test_every_public_name_is_reachable_where_lightning_defines_it():
    # Files of ours have Lightning's names, too, unless Lightning's file only imports them from its other files.
    missing = {}
    for path, name in paths():
        module = importlib.import_module(name)
        # `log` is a logger by the name of Lightning's module, which is for programs under compat.
        absent = [one for one in names()[path].split() if one != "log" and not hasattr(module, one)]
        if absent:
            missing[name] = absent
    assert {name for name, absent in missing.items() if not IMPORTED_BY[name].issuperset(absent)} == set()


IMPORTED_BY = {
    "lightlib.callbacks.callback": {"STEP_OUTPUT"},
    "lightlib.callbacks.early_stopping": {"MisconfigurationException", "rank_prefixed_message", "rank_zero_warn"},
    "lightlib.callbacks.finetuning": {"Callback", "MisconfigurationException", "rank_zero_warn"},
    "lightlib.callbacks.pruning": {*names()["pytorch.callbacks.pruning"].split()} - {"ModelPruning"},
    "lightlib.callbacks.gradient_accumulation_scheduler": {"is_overridden", "rank_zero_warn"},
    "lightlib.callbacks.prediction_writer": {
        "LightningEnum",
        "MisconfigurationException",
        "is_param_in_hook_signature",
    },
    "lightlib.callbacks.lr_monitor": {"LRSchedulerConfig", "rank_zero_warn"},
    "lightlib.fabric.fabric": {*names()["fabric.fabric"].split()} - {"Fabric"},
    "lightlib.loggers.tensorboard": {*names()["pytorch.loggers.tensorboard"].split()} - {"TensorBoardLogger"},
    "lightlib.loggers.wandb": {"ModelCheckpoint", "RequirementCache", "rank_zero_warn"},
    "lightlib.profilers.advanced": {"get_filesystem", "rank_zero_only"},
    "lightlib.profilers.profiler": {"get_filesystem"},
    "lightlib.tuner.tuning": {"Callback", "EVAL_DATALOADERS", "TRAIN_DATALOADERS"},
    "lightlib.strategies.strategy": {*names()["pytorch.strategies.strategy"].split()} - {"Strategy"},
}


def test_the_objects_are_those_of_lightlib():
    from lightlib.callbacks.model_checkpoint import ModelCheckpoint
    from lightlib.core.module import LightningModule
    from lightlib.fabric.plugins.environments import SLURMEnvironment
    from lightlib.trainer import Trainer

    assert ModelCheckpoint is lightlib.callbacks.ModelCheckpoint
    assert (LightningModule, Trainer) == (lightlib.Module, lightlib.Trainer)
    assert SLURMEnvironment is lightlib.launch.SLURMEnvironment


def test_modules_are_attributes_without_an_import():
    assert lightlib.utilities.rank_zero is importlib.import_module("lightlib.utilities.rank_zero")
    assert lightlib.callbacks.model_checkpoint.ModelCheckpoint is lightlib.callbacks.ModelCheckpoint


@pytest.mark.parametrize("name", ["lightlib.nothing", "lightlib.utilities.nothing", "lightlib.callbacks.nothing"])
def test_a_module_that_neither_has(name):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        importlib.import_module(name)


@pytest.mark.parametrize("module", ["lightlib.callbacks", "lightlib.core.module", "lightlib.utilities"])
def test_a_name_that_neither_has(module):
    loaded = importlib.import_module(module)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        _ = loaded.Nothing
    with pytest.raises(AttributeError, match="has no attribute 'EarlyStoping'"):
        _ = loaded.EarlyStoping


def test_a_name_of_another_module_is_no_attribute():
    assert not hasattr(lightlib.callbacks, "Trainer")
    assert not hasattr(lightlib.utilities, "EarlyStopping")


def test_a_name_that_is_not_provided_is_one_class_everywhere():
    from lightlib.accelerators import XLAAccelerator, xla

    assert XLAAccelerator is xla.XLAAccelerator


def test_the_finder_is_entered_once():
    importlib.reload(lightlib)
    assert sys.meta_path.count(lazy.TranslatedPaths) == 1


@pytest.mark.processes
def test_import_lightlib_imports_nothing_of_compat():
    code = (
        "import sys, lightlib, lightlib.callbacks, importlib.util\n"
        "importlib.util.find_spec('not_installed')\n"
        "print([name for name in sys.modules if 'compat' in name or name == 'json'])\n"
    )
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.processes
def test_a_folder_on_the_path_is_enough(tmp_path):  # without the metadata of an installation
    code = """
import importlib.metadata
importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints(())
import lightlib.compat
from lightlib.utilities import rank_zero_only
from lightlib.command.main import main
print(lightlib.compat.__name__, rank_zero_only.__name__, main(["compat", "status"]))
"""
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "lightlib_lightning rank_zero_only 0"), done.stderr


def test_a_module_that_the_package_has_not_is_not_found():
    assert importlib.util.find_spec("lightlib.compat.finder") is not None
    assert importlib.util.find_spec("lightlib.compat.nothing") is None
    with pytest.raises(ModuleNotFoundError, match=r"'lightlib\.compat\.nothing'"):
        importlib.import_module("lightlib.compat.nothing")
