"""Compares the code with the list of Lightning's names in lightlib_lightning/statuses.json."""

from __future__ import annotations

import inspect
import json
from importlib import resources
from importlib.util import find_spec

import pytest
import torch

import lightlib
from lightlib import callbacks, cli, loggers, precision, registry, strategies
from lightlib.errors import MisconfigurationException
from lightlib_lightning import absent, objects
from lightlib_lightning.finder import served
from lightlib_lightning.plugins import precision as compat_precision
from lightlib_lightning.plugins import registries, strategy_precision
from lightlib_lightning.plugins import strategies as compat_strategies
from tests.runs.modules import Regression

LIST = json.loads(resources.files("lightlib_lightning").joinpath("statuses.json").read_text("utf-8"))
STATUSES = {"same", "different", "ignored", "later", "absent"}
# Sections of names by Lightning's package, each name with the module that has it.
BY_PACKAGE = ("pytorch.utilities", "pytorch.plugins", "fabric.utilities", "fabric.plugins", "fabric")
# Ours in addition to Lightning's: each additional hook and argument needs a decision record.
OUR_ARGUMENTS = {
    "activation_checkpointing", "activation_offload", "compile", "global_batch_size", "max_duration",
    "save_user_state", "val_check_at_end",
}  # fmt: skip
OUR_HOOKS = {
    "on_accumulation_end", "on_checkpoint_uploaded", "on_checkpoint_written", "on_fit_epoch_end", "on_log",
    "on_substep_end",
}  # fmt: skip


@pytest.fixture
def trainer():
    """A Trainer after a short fit: some properties are those of a run."""
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    made = lightlib.Trainer(accelerator="cpu", max_epochs=1, **off)
    made.fit(Regression(), [torch.ones(1, 1)])
    return made


class Both:
    """The names of lightlib's module, and those that only the modules of compat have."""

    def __init__(self, *modules):
        self.modules = modules

    def __getattr__(self, name):
        name = {"StrategyRegistry": "STRATEGY_REGISTRY"}.get(name, name)
        found = [getattr(module, name) for module in self.modules if hasattr(module, name)]
        if not found:
            raise AttributeError(name)
        return found[0]


def owner_of(section, trainer):
    """Return the object that has the names of a section as attributes."""
    return {
        "Trainer methods": lightlib.Trainer,
        "Trainer properties": trainer,
        "Module methods": lightlib.Module,
        "Module properties": trainer.lightning_module,
        "DataModule": lightlib.DataModule,
        "Callback": lightlib.Callback,
        "callbacks": callbacks,
        "ModelCheckpoint members": callbacks.ModelCheckpoint("folder"),
        "EarlyStopping members": callbacks.EarlyStopping("loss"),
        "Timer members": callbacks.Timer(),
        "ProgressBar members": callbacks.ProgressBar,
        "loggers": loggers,
        "Logger members": loggers.Logger,
        "WandbLogger members": loggers.WandbLogger,
        "strategies": Both(strategies, compat_strategies, registries),
        "Strategy members": compat_strategies.DDPStrategy,
        "precision": Both(precision, strategy_precision),
        "Precision members": compat_precision.Precision,
        "cli": cli,
        "LightningCLI members": cli.LightningCLI,
        "LightningArgumentParser members": cli.LightningArgumentParser,
        "SaveConfigCallback members": cli.SaveConfigCallback,
        "Fabric members": lightlib.Fabric(accelerator="cpu", devices=1, loggers=loggers.DummyLogger()),
    }[section]


SECTIONS_OF_NAMES = [
    section
    for section, content in LIST.items()
    if isinstance(content, dict)
    and section not in {"statuses", "Trainer arguments", "Fabric arguments", "strategy names", "precision names"}
    and section not in {*BY_PACKAGE, "elsewhere"}
]


def test_every_entry_has_a_status_and_all_but_the_same_a_reason():
    assert set(LIST["statuses"]) == STATUSES
    for section, content in LIST.items():
        if section in {"about", "lightning", "statuses"}:
            continue
        for name, entry in content.items():
            for what in (entry, *entry.get("arguments", {}).values()):
                status = what.get("status", "same")
                assert status in STATUSES, (section, name)
                assert bool(what.get("why")) == (status != "same"), (section, name)


@pytest.mark.parametrize("section", SECTIONS_OF_NAMES)
def test_names_are_there_or_absent_as_listed(section, trainer):
    owner = owner_of(section, trainer)
    wrong = [
        f"{name} is listed as {entry['status']}"
        for name, entry in LIST[section].items()
        if has(owner, name) == (entry["status"] in {"absent", "later"})
    ]
    assert not wrong


def has(owner, name):
    found = getattr(owner, name, absent.Absent)
    return not is_absent(found) or name in getattr(owner, "__annotations__", {}) or name in objects.INTERNALS


def is_absent(value):
    return isinstance(value, type) and issubclass(value, absent.Absent)


def listed_by_package():
    return [(section, name, entry) for section in BY_PACKAGE for name, entry in LIST[section].items()]


def test_names_of_utilities_plugins_and_fabric_are_there_or_absent_as_listed():
    wrong = []
    for section, name, entry in listed_by_package():
        value = served(entry["in"], entry["in"], name)
        if is_absent(value) != (entry["status"] in {"absent", "later"}):
            wrong.append(f"{section}: {name} is listed as {entry['status']}")
        elif not is_absent(value) and "arguments" in entry:
            wrong += [f"{section}: {name}: {one}" for one in differences(entry["arguments"], value)]
    assert not wrong


def test_every_name_of_lightnings_utilities_plugins_and_fabric_is_listed():
    listed = {name for _, name, _ in listed_by_package()} | set(absent.INSTEAD)
    listed |= {"Trainer", "Callback", "LightningModule", "LightningDataModule"}  # sections of their own
    for path in ("pytorch.utilities", "pytorch.plugins", "fabric", "fabric.utilities", "fabric.plugins"):
        targets = {name: objects.target(path, name) or "" for name in objects.names()[path].split()}
        aliases = {name for name, target in targets.items() if target.startswith("lightning_utilities.")}
        aliases |= {name for name in targets if name.endswith("PrecisionPlugin")}
        assert set(targets) - aliases - listed == set(), path


def test_only_hardware_and_the_hosted_service_are_absent_for_good():
    for section, content in LIST.items():
        if isinstance(content, dict) and section != "statuses":
            for name, entry in content.items():
                if entry.get("status") == "absent":
                    assert "TPUs" in entry["why"] or "hosted service" in entry["why"], (section, name)


@pytest.mark.parametrize("section", SECTIONS_OF_NAMES)
def test_arguments_have_the_listed_names_order_and_defaults(section, trainer):
    owner = owner_of(section, trainer)
    wrong = []
    for name, entry in LIST[section].items():
        if "arguments" in entry and entry["status"] not in {"absent", "later"}:
            wrong += [f"{name}: {difference}" for difference in differences(entry["arguments"], getattr(owner, name))]
    assert not wrong


def test_the_trainer_has_the_listed_arguments_and_no_other():
    listed = LIST["Trainer arguments"]
    assert not list(differences(listed, lightlib.Trainer))
    ours = [name for name in inspect.signature(lightlib.Trainer).parameters if name not in OUR_ARGUMENTS]
    assert ours == list(listed)


def test_fabric_has_the_listed_arguments_and_no_other():
    listed = LIST["Fabric arguments"]
    assert not list(differences(listed, lightlib.Fabric))
    assert list(inspect.signature(lightlib.Fabric).parameters) == list(listed)


def differences(listed, function):
    """Return the differences between the listed arguments and a signature, as sentences."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in {"self", "cls"}]
    ours = {written(p): p for p in parameters}
    for position, (name, entry) in enumerate(listed.items()):
        if entry.get("status") == "absent":
            if name in ours:
                yield f"{name} is listed as absent"
            continue
        if name not in ours:
            if not name.startswith("*"):
                yield f"{name} is missing"
            continue
        default = entry.get("ours", entry.get("default", inspect.Parameter.empty))
        if default is not inspect.Parameter.empty and not equal(ours[name].default, default):
            yield f"{name}={ours[name].default!r}, and not {default!r}"
        if list(ours).index(name) != position and ours[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            yield f"{name} is number {list(ours).index(name)}, and not {position}"


def written(parameter):
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def equal(value, listed):
    return (value == listed and type(value) is type(listed)) or (isinstance(value, tuple) and list(value) == listed)


def test_the_module_and_the_callbacks_have_no_unlisted_hook():
    def hooks(cls):
        return {name for name in dir(cls) if name.startswith("on_") and callable(getattr(cls, name))}

    assert hooks(lightlib.Module) - set(LIST["Module methods"]) == OUR_HOOKS
    assert hooks(lightlib.Callback) - set(LIST["Callback"]) == OUR_HOOKS


def test_a_lambda_callback_takes_every_hook():
    for name in LIST["Callback"]:
        if name not in {"state_dict", "load_state_dict", "state_key"}:
            callbacks.LambdaCallback(**{name: print})


def test_the_names_of_strategies():
    for name, entry in LIST["strategy names"].items():
        if entry["status"] in {"absent", "later"}:
            assert name not in registry.names("strategies")
        elif name.startswith("deepspeed") and find_spec("deepspeed") is None:
            with pytest.raises(MisconfigurationException, match="needs the package deepspeed"):
                lightlib.Trainer(accelerator="cpu", strategy=name, max_epochs=1, logger=False)
        else:
            assert lightlib.Trainer(accelerator="cpu", strategy=name, max_epochs=1, logger=False).world_size == 1


def test_the_names_of_precisions():
    for name, entry in LIST["precision names"].items():
        if entry["status"] in {"absent", "later"}:
            with pytest.raises(MisconfigurationException):
                precision.named(name)
        elif name.startswith("transformer-engine") and find_spec("transformer_engine") is None:
            with pytest.raises(MisconfigurationException, match="needs the package transformer-engine"):
                precision.named(name)
        else:
            assert precision.named(name).name.startswith(name)


def test_names_elsewhere_are_in_the_table_or_absent_as_listed():
    for name, entry in LIST["elsewhere"].items():
        assert (objects.target("", name) is None) == (entry["status"] in {"absent", "later"}), name
