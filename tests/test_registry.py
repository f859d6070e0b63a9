"""Names to classes: built in, from installed packages, unknown, and taken."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import sys
from collections import Counter
from importlib import metadata
from importlib.metadata import EntryPoint

import pytest
import torch

from lightlib import callbacks as callback_classes
from lightlib import evaluation, registry
from lightlib import schedulers as scheduler_classes
from lightlib.accelerators import CPUAccelerator
from lightlib.callbacks import Callback
from lightlib.cli import LightningCLI
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.precision import Precision
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy
from tests.processes import programs
from tests.runs.plain import QUIET, Net, batches, calling, quiet_trainer, same_weights


@pytest.fixture
def installed(monkeypatch):
    """Declare entry points as packages would: ``installed(strategies={"mine": "package:Class"})``."""
    declared = []

    def declare(**groups):
        declared.extend(
            EntryPoint(name, value, f"lightlib.{group}") for group, points in groups.items() for name, value in points
        )
        find = lambda group: [point for point in declared if point.group == group]  # noqa: E731  one place to patch
        monkeypatch.setattr(registry, "entry_points", find)

    return declare


class Distant(CPUAccelerator):
    """The CPU under another name."""

    @staticmethod
    def name():
        return "distant"

    def describe(self, device):
        return "a distant machine"


class Counting(Strategy):
    """A strategy of a third party: one device, and it counts the calls of its batches."""

    def __init__(self):
        self.inner = SingleDeviceStrategy()
        self.collectives = self.inner.collectives
        self.count = 0

    root_device = property(lambda self: self.inner.root_device)

    def use(self, accelerator, devices, precision, environment):
        super().use(accelerator, devices, precision, environment)
        self.inner.use(accelerator, devices, precision, environment)

    def setup_environment(self):
        self.inner.setup_environment()

    def place(self, module, steps):
        self.inner.place(module, steps)
        for name in steps:
            setattr(self, name, getattr(self.inner, name))

    def forward_backward(self, batch, batch_idx, backward, sync):
        self.count += 1
        return self.inner.forward_backward(batch, batch_idx, backward, sync)

    def init_context(self):
        return self.inner.init_context()

    def optimizer(self, optimizer):
        return self.inner.optimizer(optimizer)

    def batch_to_device(self, batch):
        return self.inner.batch_to_device(batch)

    def clip_gradients(self, optimizer, value, algorithm):
        return self.inner.clip_gradients(optimizer, value, algorithm)

    def module_state(self):
        return self.inner.module_state()

    def load_module_state(self, state, strict=True):
        self.inner.load_module_state(state, strict)

    def optimizer_state(self, optimizer):
        return self.inner.optimizer_state(optimizer)

    def load_optimizer_state(self, optimizer, state):
        self.inner.load_optimizer_state(optimizer, state)

    def teardown(self):
        self.inner.teardown()


def wide():
    """A precision of a third party."""
    return Precision("wide", torch.float64, torch.float64, torch.float64)


def callback():
    """A callback that a package adds to every Trainer."""
    from lightlib.callbacks import LambdaCallback

    return LambdaCallback(on_train_start=lambda trainer, module: module.greeted.append("one"))


def callbacks():
    return [callback(), callback()]


HERE = __name__


def own(group):
    """The names of a group that need no package."""
    places = registry.BUILT_IN[group]
    return [name for name, place in places.items() if place.partition(".")[0] in ("lightlib", "torch")]


@pytest.mark.parametrize("group", registry.BUILT_IN)
def test_every_built_in_name_can_be_imported(group):
    assert all(callable(registry.get(group, name)) for name in own(group))


def test_names_are_sorted_and_complete(installed):
    assert registry.names("accelerators") == ["cpu", "cuda", "mps"]
    installed(accelerators=[("distant", f"{HERE}:Distant"), ("another", f"{HERE}:Distant")])
    assert registry.names("accelerators") == ["another", "cpu", "cuda", "distant", "mps"]


def test_unknown_name(installed):
    installed(strategies=[("counting", f"{HERE}:Counting")])
    with pytest.raises(UnknownNameError, match=r"'countin'. Did you mean 'counting'") as caught:
        registry.get("strategies", "countin")
    assert "one of 'counting', 'ddp', " in str(caught.value)


@pytest.mark.parametrize(
    ("group", "word"),
    [("strategies", "strategy"), ("accelerators", "accelerator"), ("precision", "precision"), ("loggers", "logger")],
)
def test_the_error_says_what_is_unknown_in_the_singular(group, word):
    with pytest.raises(UnknownNameError, match=f"^Unknown {word} 'nothing'"):
        registry.get(group, "nothing")


def test_a_plugin_may_not_take_a_built_in_name(installed):
    installed(accelerators=[("cpu", f"{HERE}:Distant")])
    with pytest.raises(MisconfigurationException, match=r"'cpu' = .*Distant.* taken by 'lightlib.accelerators:CPU"):
        registry.get("accelerators", "cuda")


def test_two_plugins_may_not_share_a_name(installed):
    installed(strategies=[("mine", "one:Strategy"), ("mine", "other:Strategy")])
    with pytest.raises(MisconfigurationException, match=r"'mine' = 'other:Strategy'.*taken by 'one:Strategy'"):
        registry.names("strategies")


def test_the_same_plugin_found_twice_is_one(installed):
    installed(strategies=[("mine", f"{HERE}:Counting"), ("mine", f"{HERE}:Counting")])
    assert registry.get("strategies", "mine") is Counting


def test_a_plugin_that_cannot_be_loaded(installed):
    installed(loggers=[("lost", "no_such_package.here:Logger"), ("gone", f"{HERE}:Gone")])
    with pytest.raises(MisconfigurationException, match=r"'lost' = 'no_such_package.here:Logger' .* cannot be loaded"):
        registry.get("loggers", "lost")
    with pytest.raises(MisconfigurationException, match=r"AttributeError: .*'Gone'.*\n  Expected: .*\n  Fix: correct"):
        registry.get("loggers", "gone")


@pytest.mark.processes
def test_a_name_is_found_without_importing_anything():
    code = """
import sys
from lightlib import evaluation, registry
assert registry.path("optimizers", "Adam") == "torch.optim:Adam"
assert "bnb_Adam" in registry.names("optimizers")
print(*(name for name in ("torch", "bitsandbytes", "dadaptation") if name in sys.modules))
"""
    run = programs.interpreter("-c", code)
    assert (run.returncode, run.stdout, run.stderr) == (0, "\n", "")


class TestOptimizersAndSchedulers:
    def test_all_of_torch_are_known(self):
        """A name that a newer torch brings has to be written into the table."""
        public = {
            name for name in torch.optim.__all__ if isinstance(getattr(torch.optim, name), type) and name != "Optimizer"
        }
        assert {name for name, place in registry.BUILT_IN["optimizers"].items() if "torch.optim:" in place} == public
        schedulers = set(torch.optim.lr_scheduler.__all__) - {"LRScheduler"}
        ours = {name for name in scheduler_classes.__all__ if name.endswith("LR") and name != "ClosedFormLR"}
        assert set(registry.BUILT_IN["schedulers"]) == schedulers | ours
        for group, base in (
            ("optimizers", torch.optim.Optimizer),
            ("schedulers", torch.optim.lr_scheduler.LRScheduler),
        ):
            assert all(issubclass(registry.get(group, name), base) for name in own(group))

    def test_ours_have_the_plain_names(self):
        assert registry.get("optimizers", "Lion").__module__ == "lightlib.optim.lion"
        assert registry.get("optimizers", "LAMB").__module__ == "lightlib.optim.lamb"
        assert registry.get("schedulers", "ReduceLROnPlateau") is not torch.optim.lr_scheduler.ReduceLROnPlateau

    def test_all_callbacks_are_known(self):
        bases = {"BaseFinetuning", "BasePredictionWriter", "Callback", "Checkpoint", "ProgressBar"}
        bases |= {"RichProgressBarTheme", "TimedProgressBar"}
        public = {name for name in callback_classes.__all__ if isinstance(getattr(callback_classes, name), type)}
        of_evaluation = {n for n in evaluation.__all__ if Callback in getattr(getattr(evaluation, n), "__mro__", ())}
        assert set(registry.BUILT_IN["callbacks"]) == (public - bases) | of_evaluation

    def test_those_of_packages(self):
        """D-Adaptation 3, Lion 1, schedulefree 3, Sophia 4, bitsandbytes 11 and its clashing names, Ascend 9."""
        counted = Counter(place.partition(":")[0] for place in registry.BUILT_IN["optimizers"].values())
        assert {module: counted[module] for module in counted if not module.startswith(("torch.", "lightlib."))} == {
            "dadaptation": 3,
            "lion_pytorch": 1,
            "schedulefree": 3,
            "sophia|Sophia": 4,
            "bitsandbytes.optim": 11 + 8,
            "torch_npu.optim": 9,
        }
        prefixed = {name for name in registry.BUILT_IN["optimizers"] if name.startswith("bnb_")}
        assert all(name.removeprefix("bnb_") in registry.BUILT_IN["optimizers"] for name in prefixed)

    @pytest.mark.parametrize(
        ("name", "package", "versions"),
        [
            ("DAdaptAdam", "dadaptation", ""),
            ("LionPytorch", "lion-pytorch", ""),
            ("SGDScheduleFree", "schedulefree", ">=1.4"),
            ("SophiaG", "Sophia-Optimizer", "!=0.2.5"),
            ("Adam8bit", "bitsandbytes", ">=0.46"),
            ("bnb_Adam", "bitsandbytes", ">=0.46"),
            ("NpuFusedSGD", "torch-npu", ""),
        ],
    )
    def test_a_package_that_is_not_installed_is_named(self, name, package, versions, monkeypatch):
        for place in registry.BUILT_IN["optimizers"][name].partition(":")[0].split("|"):
            monkeypatch.setitem(sys.modules, place.partition(".")[0], None)
        with pytest.raises(MisconfigurationException) as caught:
            registry.get("optimizers", name)
        assert str(caught.value) == (
            f"{name!r} needs the package {package}, which is not installed.\n"
            f"  Expected: {package}{versions} in this environment.\n"
            f"  Fix: pip install {shlex.quote(package + versions)}"
        )


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Write packages that can be imported, and forget them afterwards."""
    written = []

    def write(files):
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            written.append(name.partition("/")[0].removesuffix(".py"))
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in written]:
        del sys.modules[name]


OPTIMIZER = "import torch\nclass {}(torch.optim.SGD):\n    'From another package.'\n"


class TestPackagesOfOptimizers:
    def test_it_is_imported_when_its_name_is_used(self, packages):
        packages({"dadaptation.py": OPTIMIZER.format("DAdaptSGD")})
        registry.get("optimizers", "SGD")
        assert "dadaptation" not in sys.modules
        assert registry.get("optimizers", "DAdaptSGD").__doc__ == "From another package."

    def test_a_clashing_name_has_a_prefix(self, packages):
        both = OPTIMIZER.format("Adam") + OPTIMIZER.format("Adam8bit")
        packages({"bitsandbytes/__init__.py": "", "bitsandbytes/optim.py": both})
        assert registry.get("optimizers", "bnb_Adam").__module__ == "bitsandbytes.optim"
        assert registry.get("optimizers", "Adam8bit").__module__ == "bitsandbytes.optim"
        assert registry.get("optimizers", "Adam") is torch.optim.Adam

    @pytest.mark.parametrize("module", ["sophia", "Sophia"])
    def test_the_old_and_the_new_module_of_sophia(self, packages, module):
        packages({f"{module}.py": OPTIMIZER.format("SophiaG")})
        assert registry.path("optimizers", "SophiaG") == f"{module}:SophiaG"
        assert registry.get("optimizers", "SophiaG").__module__ == module

    def test_one_that_the_installed_version_has_not(self, packages):
        packages({"sophia.py": OPTIMIZER.format("SophiaG")})
        with pytest.raises(MisconfigurationException) as caught:
            registry.get("optimizers", "Sophia2")
        assert "'Sophia2' is not in the Sophia-Optimizer that is installed: sophia has no Sophia2." in str(caught.value)

    def test_one_that_the_installed_torch_has_not(self, monkeypatch):
        monkeypatch.delattr(torch.optim, "Muon")
        with pytest.raises(MisconfigurationException, match=r"'Muon' is not in the torch 2[^ ]* that is installed"):
            registry.get("optimizers", "Muon")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("import not_there_either", "ModuleNotFoundError: No module named 'not_there_either'"),
            ("raise RuntimeError('no device')", "RuntimeError: no device"),
        ],
    )
    def test_one_that_is_installed_and_broken(self, packages, monkeypatch, text, words):
        packages({"dadaptation.py": text})
        with pytest.raises(MisconfigurationException) as caught:
            registry.get("optimizers", "DAdaptAdam")
        assert f"dadaptation, which is installed but cannot be imported: {words}" in str(caught.value)
        assert "or install another version: pip install --upgrade dadaptation" in str(caught.value)
        monkeypatch.setattr(registry, "version", lambda package: "3.2")
        with pytest.raises(
            MisconfigurationException, match=r"of dadaptation 3\.2, which(.|\n)*install 'dadaptation!=3\.2'"
        ):
            registry.get("optimizers", "DAdaptAdam")

    def test_plugins_join_them(self, installed):
        installed(optimizers=[("Mine", "torch.optim:SGD")], schedulers=[("Slow", "torch.optim.lr_scheduler:StepLR")])
        assert registry.get("optimizers", "Mine") is torch.optim.SGD
        assert registry.path("schedulers", "Slow") == "torch.optim.lr_scheduler:StepLR"
        installed(optimizers=[("Adam", "elsewhere:Adam")])
        with pytest.raises(MisconfigurationException, match=r"taken by 'torch.optim:Adam'"):
            registry.names("optimizers")

    @pytest.mark.parametrize(
        ("group", "word"), [("optimizers", "Adamm"), ("schedulers", "StepLr"), ("callbacks", "Timr")]
    )
    def test_the_nearest_name(self, group, word):
        with pytest.raises(UnknownNameError) as caught:
            registry.get(group, word)
        near = {"Adamm": "Adam", "StepLr": "StepLR", "Timr": "Timer"}[word]
        assert f"Unknown {group[:-1]} {word!r}. Did you mean {near!r}?" in str(caught.value)
        assert "Trainer(" not in str(caught.value)


class TestPluginsInARun:
    def test_accelerator(self, installed):
        installed(accelerators=[("distant", f"{HERE}:Distant")])
        trainer = quiet_trainer(accelerator="distant")
        module = Net()
        trainer.fit(module, batches(3))
        assert type(trainer.accelerator) is Distant
        assert module.device == torch.device("cpu")

    def test_strategy(self, installed):
        installed(strategies=[("counting", f"{HERE}:Counting")])
        trainer = quiet_trainer(strategy="counting", max_epochs=2, gradient_clip_val=0.1, accumulate_grad_batches=2)
        module, plain = Net(), Net()
        trainer.fit(module, batches(3))
        quiet_trainer(max_epochs=2, gradient_clip_val=0.1, accumulate_grad_batches=2).fit(plain, batches(3))
        assert trainer.strategy.count == 6
        assert same_weights(module, plain)

    def test_checkpoints_of_the_strategy_are_read_by_another(self, installed, tmp_path):
        installed(strategies=[("counting", f"{HERE}:Counting")])
        first, trainer = Net(), quiet_trainer(strategy="counting")
        trainer.fit(first, batches(3))
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        resumed, whole = Net(), Net()
        quiet_trainer(max_epochs=2).fit(resumed, batches(3), ckpt_path=tmp_path / "a.ckpt")
        quiet_trainer(max_epochs=2).fit(whole, batches(3))
        assert same_weights(resumed, whole)

    def test_precision(self, installed):
        installed(precision=[("wide", f"{HERE}:wide")])
        trainer, module = quiet_trainer(precision="wide"), Net()
        trainer.fit(module, batches(2))
        assert module.dtype is torch.float64
        assert trainer.precision == "wide"

    def test_callbacks_join_every_trainer(self, installed):
        installed(callbacks_factory=[("greeter", f"{HERE}:callback"), ("greeters", f"{HERE}:callbacks")])
        module = Net()
        module.greeted = []
        Trainer(**QUIET, max_epochs=1).fit(module, batches(1))
        assert module.greeted == ["one"] * 3


PACKAGE = """
import torch
from lightlib.accelerators import CPUAccelerator
from lightlib.callbacks import Callback
from lightlib.cli import LightningCLI
from lightlib.loggers import Logger
from lightlib.precision import Precision
from lightlib.strategies import SingleDeviceStrategy

class Memory(Logger):
    name, version = "memory", 0
    def __init__(self): self.rows = []
    def log_metrics(self, metrics, step=None): self.rows.append(dict(metrics))
    def log_hyperparams(self, params, *args, **kwargs): pass

class Folder(Memory):
    def __init__(self, save_dir): super().__init__(); self.folder = save_dir

class Near(CPUAccelerator):
    @staticmethod
    def name(): return "near"

class Single(SingleDeviceStrategy): pass

def double(): return Precision("double", torch.float64, torch.float64, torch.float64)

class Counter(Callback):
    def __init__(self, start=0): self.count = start
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx): self.count += 1
"""
POINTS = """
[lightlib.loggers]
memory = mine:Memory
folder = mine:Folder
[lightlib.accelerators]
near = mine:Near
[lightlib.strategies]
own_single = mine:Single
[lightlib.precision]
own_double = mine:double
[lightlib.callbacks]
Counter = mine:Counter
"""


class TestAnInstalledPackage:
    """Objects are built from the entry points of a package's metadata, and used in a run."""

    @pytest.fixture(autouse=True)
    def package(self, tmp_path, monkeypatch):
        folder = tmp_path / "site"
        (folder / "mine-1.0.dist-info").mkdir(parents=True)
        (folder / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (folder / "mine-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
        (folder / "mine.py").write_text(PACKAGE)
        monkeypatch.syspath_prepend(str(folder))
        yield
        sys.modules.pop("mine", None)

    def test_by_the_names_of_the_trainer(self):
        names = {"accelerator": "near", "strategy": "own_single", "precision": "own_double", "logger": "memory"}
        trainer = Trainer(**{**QUIET, **names}, max_epochs=1, log_every_n_steps=1)
        module = calling(training_step=lambda self, batch, batch_idx: self.log("batch", float(batch_idx)))
        trainer.fit(module, batches(3))
        kinds = [type(trainer.accelerator), type(trainer.strategy), type(trainer.logger)]
        assert [f"{kind.__module__}.{kind.__name__}" for kind in kinds] == ["mine.Near", "mine.Single", "mine.Memory"]
        assert module.dtype is torch.float64
        assert [row["batch"] for row in trainer.logger.rows] == [0, 1, 2]

    def test_a_logger_with_a_folder_gets_the_root(self, tmp_path):
        trainer = Trainer(**{**QUIET, "logger": "folder"}, default_root_dir=tmp_path / "runs")
        assert str(trainer.logger.folder) == str(tmp_path / "runs")

    def test_a_callback_by_name_in_a_configuration(self, tmp_path):
        (tmp_path / "run.yaml").write_text(
            "trainer:\n  max_epochs: 1\n  accelerator: near\n  enable_checkpointing: false\n  logger: memory\n"
            "  callbacks:\n    - class_path: Counter\n      init_args: {start: 10}\n"
        )
        cli = LightningCLI(Net, run=False, args=["--config", str(tmp_path / "run.yaml")], save_config_callback=None)
        cli.trainer.fit(cli.model, batches(3))
        counter = next(one for one in cli.trainer.callbacks if type(one).__module__ == "mine")
        assert (type(counter).__name__, counter.count) == ("Counter", 13)


def test_a_package_that_is_installed_while_the_program_runs_is_found(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    assert registry.entry_points("lightlib.loggers") == ()
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lightlib.loggers]\nmine = mine:Logger\n")
    os.utime(folder, (1, 1))  # a clock of the file system that counts in seconds would not show it
    assert [point.value for point in registry.entry_points("lightlib.loggers")] == ["mine:Logger"]
    shutil.rmtree(info)
    os.utime(folder, (2, 2))
    assert registry.entry_points("lightlib.loggers") == ()


def test_all_groups_are_read_at_once(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    reads, read = [], metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda **groups: [reads.append(groups), read(**groups)][1])
    assert [registry.entry_points(f"lightlib.{group}") for group in ("loggers", "callbacks", "strategies")] == [()] * 3
    assert reads == [{}]
