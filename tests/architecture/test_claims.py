"""Statements about lightlib in pages and messages: absent features, and replacements of old names."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import sys
from functools import cache
from importlib.metadata import requires

import pytest
import torch

import lightlib
from lightlib.callbacks.callback import Callback
from lightlib.core.run import misspelt
from lightlib.core.setup import attributes, trainer_call
from tests.architecture.rules import ROOT, package_files

PUBLIC = (
    "lightlib", "lightlib.callbacks", "lightlib.loggers", "lightlib.strategies", "lightlib.tuner", "lightlib.data",
    "lightlib.samplers", "lightlib.evaluation", "lightlib.optim", "lightlib.schedulers", "lightlib.profilers",
)  # fmt: skip
SHORT_FORMS = {"lr": "learning rate", "avg": "average", "grad": "gradient", "auto": ""}
COMES_WITH = {
    "lightning-utilities": "torchmetrics",
    "PyYAML": "jsonargparse",
    "numpy": "torchmetrics",
    "typing-extensions": "torch",
    "sqlalchemy": "optuna",
}
DISTRIBUTIONS = {
    "lightning_utilities": "lightning-utilities",
    "yaml": "PyYAML",
    "typing_extensions": "typing-extensions",
    "comet_ml": "comet-ml",
    "optuna_dashboard": "optuna-dashboard",
    "liger_kernel": "liger-kernel",
    "transformer_engine": "transformer-engine",
}
# Used where they happen to be installed; a message or another way serves where they are not.
WITHOUT_EXTRA = {"PIL", "psutil", "torch_tensorrt", "litmodels"}
VALUES = {"num_processes": 1, "process_position": 1, "weights_save_path": "weights"}  # default: True


def served_by(words: str) -> list[str]:
    """Return the public names that share two words with `words`, or the only one that it has."""
    wanted = stems(words)
    return sorted(name for name in public_names() if len(wanted & stems(name)) >= min(2, len(wanted)))


@cache
def public_names() -> frozenset[str]:
    """Names that a user imports, and those of the classes that a user derives from."""
    names = {name for module in PUBLIC for name in dir(importlib.import_module(module)) if not name.startswith("_")}
    owners = (lightlib.Trainer, lightlib.Module, lightlib.DataModule, Callback)
    names |= {name for owner in owners for name in dir(owner) if not name.startswith("_")}
    return frozenset(names | set(inspect.signature(lightlib.Trainer.__init__).parameters)) - set(dir(torch.nn.Module))


@cache
def stems(words: str) -> frozenset[str]:
    """The first five letters of each word of a phrase, of ``CamelCase`` or of ``snake_case``."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", re.sub(r"(?<=[A-Z])s\b", "", words))
    long = " ".join(SHORT_FORMS.get(part.lower(), part.lower()) for part in parts).split()
    return frozenset(word.removesuffix("s")[:5] for word in long if len(word) > 2)


def names_in(code: str) -> set[str]:
    """Return the classes that a line of Python calls."""
    calls = (node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    return {node.id for node in calls if isinstance(node, ast.Name)}


class TestWhatIsNotAvailable:
    @pytest.mark.parametrize(
        ("words", "name"),
        [
            ("learning-rate finders", "LearningRateFinder"),
            ("batch-size finders", "BatchSizeFinder"),
            ("weight averaging", "WeightAveraging"),
            ("stochastic_weight_avg", "StochasticWeightAveraging"),
            ("auto_lr_find", "LearningRateFinder"),
            ("auto_scale_batch_size", "BatchSizeFinder"),
            ("prepare_data_per_node", "prepare_data_per_node"),
            ("DDPs", "DDPStrategy"),
        ],
    )
    def test_the_search_finds_what_is_there(self, words: str, name: str) -> None:
        assert name in served_by(words)

    def test_the_readme(self) -> None:
        (stated,) = re.findall(r"Not available: ([^.]*)\.", (ROOT / "README.md").read_text("utf-8"))
        found = {words: served_by(words) for words in re.split(r", | and ", stated)}
        assert not any(found.values()), f"the README lists these as not available: {found}"

    def test_no_page_has_a_table_without_rows(self) -> None:
        for page in (ROOT / "docs").rglob("*.md"):
            empty = re.findall(r"^\|[-| ]+\|\n(?!\|)", page.read_text("utf-8"), re.MULTILINE)
            assert not empty, f"{page.name}: a table has no rows"


class TestArgumentsOfLightning1:
    def test_those_without_a_replacement(self) -> None:
        without = {name for name, (place, _) in trainer_call.REMOVED.items() if place == "no replacement"}
        assert without == {"ipus", "move_metrics_to_cpu"}
        assert {name: served_by(name) for name in without} == {name: [] for name in without}

    @pytest.mark.parametrize("name", sorted(trainer_call.REMOVED))
    def test_the_fix_is_python_that_runs(self, name: str) -> None:
        place, fix = trainer_call.REMOVED[name]
        code = fix.replace("{value}", repr(VALUES.get(name, True))).rstrip(".")
        code = code.replace("{owner}", "Trainer").replace("{loaders}", "Trainer(")
        calls = re.findall(r"Trainer\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", code)
        if place == "no replacement":
            assert fix.startswith("leave it out: ")
        for call in calls:
            if "…" in call or "gpu" in call:
                assert names_in(call.replace("…", "None")) == {"Trainer"}
                continue
            known = {one: importlib.import_module(one) for one in PUBLIC}
            classes = {one: next(getattr(m, one) for m in known.values() if hasattr(m, one)) for one in names_in(call)}
            eval(call, {}, classes)

    @pytest.mark.parametrize("text", [place for place, _ in trainer_call.REMOVED.values()])
    def test_the_places_exist(self, text: str) -> None:
        for name in re.findall(r"`([^`]+)`", text):
            known = {*inspect.signature(lightlib.Trainer.__init__).parameters, "fit", "dirpath", "ckpt_path"}
            known |= {"prepare_data", "lightlib.tuner.Tuner"}
            assert name in known


@pytest.mark.parametrize("text", [*attributes.INTERNALS.values(), *attributes.REMOVED.values()])
def test_what_the_trainer_names_in_place_of_lightnings_attributes_exists(text: str) -> None:
    trainer = lightlib.Trainer(accelerator="cpu", logger=False)
    owners = {"trainer": trainer, "module": lightlib.Module, "lightlib": importlib.import_module("lightlib.tuner")}
    for path in re.findall(r"`([^`]+)`", text):
        owner, *_, name = re.sub(r"\(.*", "", path if "." in path else f"trainer.{path}").split(".")
        assert hasattr(owners[owner], name)


@pytest.mark.parametrize(("old", "new"), sorted(misspelt._REMOVED.items()))
def test_hooks_that_lightning_removed_have_the_replacement_that_is_named(old: str, new: str) -> None:
    owners = (lightlib.Module, Callback)
    assert any(hasattr(owner, new) for owner in owners)
    assert not any(hasattr(owner, old) for owner in owners)


class TestPrivateNamesOfTorch:
    """They are imported in torch_private.py only, as its first line states."""

    @pytest.mark.parametrize(
        ("line", "number"),
        [
            ("from torch.nn.modules.batchnorm import _BatchNorm", 1),
            ("import torch.utils._pytree as tree", 1),
            ("import torch.distributed as dist; dist.distributed_c10d._pg_map", 1),
            ("from torch import nn; nn.Module()._call_impl", 0),  # of an object
            ("import torch; torch.__version__", 0),
        ],
    )
    def test_they_are_found(self, line: str, number: int) -> None:
        assert len(private_names(line)) == number

    def test_no_other_file_has_one(self) -> None:
        found = {file.name: private_names(file.text) for file in package_files()}
        assert found.pop("lightlib/torch_private.py")
        assert not {name: names for name, names in found.items() if names}


def private_names(code: str) -> list[str]:
    """Return the private names of torch, also of its modules, that a file imports or reads from a module."""
    found, modules = [], {"torch"}
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found += [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.partition(".")[0] == "torch"]
            found += [alias.name for alias in ours]
            modules |= {alias.asname for alias in ours if alias.asname}
    for node in ast.walk(tree):
        path = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if re.fullmatch(r"[\w.]+", path) and path.partition(".")[0] in modules:
            found.append(path)
    return [path for path in found if re.search(r"(^|\.)_(?!_)", path)]


class TestDependencies:
    """Every package that lightlib imports is declared, comes with a declared one, or is optional without an extra."""

    def test_they_are_declared(self) -> None:
        declared = set(re.findall(r'^    "([\w-]+)|\["([\w-]+)|, "([\w-]+)', project(), re.MULTILINE))
        declared = {name for names in declared for name in names if name}
        imported = {found.target.partition(".")[0] for file in package_files() for found in file.imports}
        packages = (
            imported - set(sys.stdlib_module_names) - {"lightlib", "lightlib_lightning", "torch", ""} - WITHOUT_EXTRA
        )
        names = {DISTRIBUTIONS.get(package, package) for package in packages}
        assert names - declared == set(COMES_WITH)
        assert declared.isdisjoint(COMES_WITH)

    @pytest.mark.parametrize(("name", "of"), COMES_WITH.items())
    def test_they_come_with_the_package_that_record_2_names(self, name: str, of: str) -> None:
        assert re.search(rf"^{of}\b", "\n".join(re.findall(r'"([\w-]+)', project())), re.MULTILINE)
        required = {re.split(r"[^\w-]", line.replace("_", "-"))[0].lower() for line in requires(of) or ()}
        assert name.lower() in required
        record = " ".join((ROOT / "docs/decisions/0002-dependencies.md").read_text("utf-8").split())
        assert f"**{name}**" in record
        assert of in record

    def test_no_message_or_page_installs_lightlib_from_an_index(self) -> None:
        """There is no release yet: the name lightlib is free on the index, and anyone could publish code under it."""
        files = [path for path in ROOT.glob("lightlib*/**/*") if path.suffix in (".py", ".md-tpl")]
        files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md")]
        texts = {path: path.read_text("utf-8") for path in files}
        assert [path for path, text in texts.items() if re.search(r"pip install ['\"\\]*lightlib\b", text)] == []

    def test_only_compat_and_the_rank_of_messages_need_lightning_utilities(self) -> None:
        users = {
            file.name for file in package_files() for found in file.imports if "lightning_utilities" in found.target
        }
        assert {name for name in users if not name.startswith("lightlib_lightning/")} == {"lightlib/report.py"}


def project() -> str:
    """Return the dependencies in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    return text[text.index("\ndependencies = [") : text.index("\n[project.scripts]")]


@pytest.mark.parametrize("page", ["docs/architecture.md"])
def test_every_name_of_the_page_exists(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    code = "\n".join(
        path.read_text("utf-8")
        for top in ("lightlib", "lightlib_lightning", "tests", "scripts")
        for path in (ROOT / top).rglob("*.py")
    )
    known = set(re.findall(r"\w+", code)) | {path.stem for path in ROOT.glob("*/**/*.py")}
    words = {word for quoted in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[A-Za-z_]\w+", quoted)}
    classes = set(re.findall(r"^ *class (\w+)", code, re.MULTILINE))
    kinds = {word for word in words if re.fullmatch(r"(?:[A-Z][a-z0-9]+)+", word)}
    assert sorted(words - known) == []
    assert sorted(kinds - classes - set(dir(builtins)) - {"DataLoader"}) == []
