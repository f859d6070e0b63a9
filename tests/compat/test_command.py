"""`lightlib compat check`: a project's use of Lightning, file by file, without importing it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from lightlib.command import main
from lightlib_lightning import objects, statuses
from lightlib_lightning.command import project as check

ROOT = Path(__file__).resolve().parents[2]
PATH = "lightning.pytorch.trainer.connectors.accelerator_connector._AcceleratorConnector"


@pytest.fixture
def scanned(tmp_path):
    """Return a function that writes the files of a project and scans them: line, status and name of a finding."""

    def scan(code, name="train.py", **others):
        for file, text in {name: code, **others}.items():
            (tmp_path / file).write_text(textwrap.dedent(text), encoding="utf-8")
        found = check.scan(tmp_path)
        return [(one.line, one.status, one.name) for one in found if one.status != "unchanged"]

    return scan


def test_a_usual_program_runs_unchanged(scanned, tmp_path):
    code = """
        import lightning as L
        import pytorch_lightning as pl
        from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
        from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
        from lightning.pytorch.utilities.types import STEP_OUTPUT, _PATH
        from lightning.pytorch.cli import *

        class Net(L.LightningModule):
            def training_step(self, batch, batch_idx): ...
            def configure_optimizers(self): ...
            def _mine(self): return self.trainer.max_epochs

        print(pl.__version__)
        trainer = L.Trainer(max_epochs=3, logger=False, strategy="ddp", callbacks=[EarlyStopping("x")])
        trainer.fit(Net(), ckpt_path="best")
        trainer.fit(Net(), ckpt_path=found)
    """
    assert scanned(code) == []
    assert {one.name for one in check.scan(tmp_path)} >= {
        "lightning",
        "lightning.pytorch.callbacks.EarlyStopping",
        "lightning.pytorch.utilities.types._PATH",
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("trainer = L.Trainer(logger=True)", ("differs", "Trainer(logger=)")),
        ("trainer = L.Trainer(precision='16-mixed')", ("differs", "Trainer(precision=)")),
        ("trainer = L.Trainer(model_registry='mine')", ("differs", "Trainer(model_registry=)")),
        ("trainer.fit(net, ckpt_path='hpc')", ("differs", "Trainer.fit(ckpt_path=)")),
        ("run = L.Trainer(); run.test(net, ckpt_path='registry:a')", ("differs", "Trainer.test(ckpt_path=)")),
        ("trainer.fit(net, ckpt_path='last')", None),
        ("n = self.trainer.estimated_stepping_batches + self.trainer.global_step", None),
        ("trainer.save_checkpoint('a.ckpt')", None),
        ("def on_train_epoch_end(self): self.trainer.save_checkpoint('a')", None),
        ("x = self.trainer.model.parameters()", None),
        ("x = self.trainer.model.module", ("differs", "Trainer.model")),
        ("x = trainer.callbacks[0]", None),
        ("trainer.callbacks.append(x)", ("differs", "Trainer.callbacks")),
        ("x = self.trainer._run_stage()", ("private", "Trainer._run_stage")),
        ("fabric = L.Fabric(strategy='xla')", ("differs", "Fabric(strategy=)")),
        ("fabric = L.Fabric(); fabric.all_reduce(x)", ("differs", "Fabric.all_reduce")),
        ("fabric = L.Fabric(); y = fabric.all_reduce(x)", None),
        ("fabric = L.Fabric(); fabric._strategy", ("private", "Fabric._strategy")),
        ("L.pytorch.tuner.Nothing", ("unknown", "lightning.pytorch.tuner.Nothing")),
        ("L.pytorch.callbacks.Timer", None),
        ("from lightning.pytorch.tuner import Tuner", None),
        ("from lightning.pytorch.loggers import LitLogger", ("absent", "lightning.pytorch.loggers.LitLogger")),
        ("from lightning.pytorch.loops import _Loop9", ("private", "lightning.pytorch.loops._Loop9")),
        ("import lightning.app", ("unknown", "lightning.app")),
        ("from pytorch_lightning.metrics import Accuracy", ("unknown", "pytorch_lightning.metrics.Accuracy")),
        ("mock.patch('lightning.pytorch.trainer.call._call9')", ("private", "lightning.pytorch.trainer.call._call9")),
        ("L.pytorch.callbacks.ModelCheckpoint(monitor='x')", None),
        ("L.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=5)", ("differs", "ModelCheckpoint")),
        ("L.pytorch.callbacks.ModelCheckpoint(save_last=True, monitor='x')", ("differs", "ModelCheckpoint")),
        ("from lightning.pytorch.strategies import SingleDeviceXLAStrategy",
         ("absent", "lightning.pytorch.strategies.SingleDeviceXLAStrategy")),
        ("from lightning.pytorch.plugins import CheckpointIO", None),
    ],
)  # fmt: skip
def test_one_line(scanned, line, found):
    assert [one[1:] for one in scanned(f"import lightning as L\n{line}\n")] == ([found] if found else [])


def test_each_finding_says_what_to_do(scanned, tmp_path):
    scanned("""
        from lightning.pytorch.callbacks import Callback, ModelCheckpoint
        from lightning.pytorch.loggers import LitLogger

        class Mine(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): print(outputs["loss"])
            def teardown(self, trainer, pl_module, stage): ...
    """)
    by_name = {one.name: one for one in check.scan(tmp_path)}
    assert by_name["lightning.pytorch.callbacks.Callback"].status == "unchanged"
    assert "Callback.teardown" not in by_name
    assert by_name["Callback.on_train_batch_end"].reason.startswith('outputs["loss"] is the loss as returned')
    assert by_name["Callback.on_train_batch_end"].see == "names.md#different-callback-on-train-batch-end"
    assert by_name["lightning.pytorch.loggers.LitLogger"].reason.startswith("use TensorBoardLogger")


def test_a_name_that_another_module_has(scanned, tmp_path):
    scanned("""
        from lightning.pytorch import ModelCheckpoint, StopTraining
        from lightning.pytorch.callbacks import EarlyStoping
    """)
    reasons = {one.name.rpartition(".")[2]: one.reason for one in check.scan(tmp_path)}
    assert reasons == {
        "ModelCheckpoint": "Lightning 2.6 has it in lightning.pytorch.callbacks",
        "StopTraining": "lightlib has it in lightlib",
        "EarlyStoping": "Lightning 2.6 does not have it, either",
    }


def test_every_difference_has_its_place_in_the_documentation():
    page = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    marks = set(re.findall(r'<a id="([^"]+)">', page))
    for status, name, why in statuses.entries():
        assert statuses.anchor(status, why) in marks, name


@pytest.mark.parametrize("name", sorted(objects.INTERNALS))
def test_internals_that_compat_provides_run_unchanged(scanned, name):
    assert scanned(f"import lightning\ntrainer.{name}\n") == []


def test_what_a_project_expects_to_fail_is_no_finding(scanned):
    code = """
        import pytorch_lightning as pl
        try:
            from pytorch_lightning.metrics import Accuracy
            from pytorch_lightning.loops import _Loop9
        except ImportError:
            from torchmetrics import Accuracy
        if pl.__version__ < "1.5":
            from pytorch_lightning.plugins import DDPPlugin
    """
    assert scanned(code) == []


def test_a_configuration_is_no_trainer_and_another_version_is_no_finding(scanned):  # the hydra template, ray
    code = """
        import lightning as L
        trainer = hydra.utils.instantiate(cfg.trainer)
        log(cfg.trainer._target_, self.config.trainer._private, trainer._target_)
        if NEW:
            strategy = L.pytorch.strategies.FSDPStrategy
        else:
            strategy = L.pytorch.strategies.DDPFullyShardedStrategy
        trainer._private
        L.pytorch.strategies.DDPFullyShardedStrategy
    """
    assert scanned(code) == [
        (6, "differs", "lightning.pytorch.strategies.FSDPStrategy"),
        (9, "private", "Trainer._private"),
        (10, "unknown", "lightning.pytorch.strategies.DDPFullyShardedStrategy"),
    ]


ONLY_HERE = "from lightning.pytorch.loops import _Loop9 as Loop"
ONLY_OTHER = "from pytorch_lightning.metrics import Accuracy"


@pytest.mark.parametrize(
    ("test", "runs"),
    [
        ("Version(L.__version__) >= Version('2.0')", True),
        ("version.parse(L.__version__) < version.parse('1.9.0')", False),
        ("L.__version__ >= '2'", True),
        ("'1.5' < L.__version__", True),
        ("'2.6.7' <= L.__version__", False),
        ("not Version(L.__version__) < Version('2.6')", True),
        ("Version(L.__version__) == Version('2.6.6')", True),
        ("_LIGHTNING_GREATER_EQUAL_2_0", True),
        ("imports._PL_GREATER_EQUAL_1_8_0", True),
        ("_LIGHTNING_LESS_2_1", False),
        ("RequirementCache('lightning>=2.0')", True),
        ("RequirementCache('pytorch-lightning<2.0')", False),
        ("compare_version('lightning', operator.ge, '2.0')", True),
        ("compare_version('lightning', operator.eq, '2.6.6')", True),
        ("compare_version('lightning', operator.ne, '2.6.6')", False),
        ("sys.platform and Version(L.__version__) < Version('2.0')", False),
        ("sys.platform or Version(L.__version__) > Version('2.0')", True),
        ("NEW", True),
        ("not NEW or OLD", False),
    ],
)
def test_only_the_branch_for_lightning_2_6_is_read(scanned, test, runs):
    live, dead = "from lightning.pytorch.trainer.call import _call9", f"{ONLY_HERE}; trainer._old9; L.no.such"
    code = (
        "import lightning as L, sys\nNEW = Version(L.__version__) >= Version('2.0')\nOLD = not NEW\n"
        f"if {test}:\n    {live if runs else dead}\nelse:\n    {dead if runs else live}\n"
    )
    assert [one[2] for one in scanned(code)] == ["lightning.pytorch.trainer.call._call9"]


def test_a_test_of_something_else_keeps_both_branches(scanned):
    code = f"""
        import lightning as L
        if Version(torch.__version__) >= Version("2.0"):
            trainer._old9
        else:
            {ONLY_HERE}
        x = trainer._a9 if Version(L.__version__) < Version("2") else trainer._b9
    """
    found = [one[2] for one in scanned(code)]
    assert found == ["Trainer._old9", "lightning.pytorch.loops._Loop9", "Trainer._b9"]


def test_fallbacks_of_imports(scanned):  # dvclive
    code = f"""
        try:
            from lightning.pytorch.loggers.utilities import _scan_checkpoints
        except ImportError:
            {ONLY_HERE}
        try:
            {ONLY_OTHER}
        except ImportError:
            from torchmetrics import Accuracy
        try:
            trainer._old9
        except AttributeError:
            trainer.global_step
        if hasattr(trainer, "_older9"):
            trainer._older9
    """
    assert scanned(code) == []
    both = f"try:\n    {ONLY_OTHER}\nexcept ImportError:\n    {ONLY_HERE}\n"
    assert scanned(both) == [(4, "private", "lightning.pytorch.loops._Loop9")]


def test_hydra_makes_a_trainer_of_a_configuration(scanned):
    code = """
        import hydra
        from lightning import Trainer
        trainer: Trainer = hydra.utils.instantiate(cfg.trainer, callbacks=[])
        other: "Trainer" = hydra.utils.instantiate(self.hparams.trainer)
        log(cfg.trainer._target_, cfg["trainer"], hparams.trainer._partial_)
        other._private
        trainer._private
        def f(mine: Trainer): mine._private
    """
    assert [one[0] for one in scanned(code)] == [7, 8, 9]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x = trainer._evaluation_loop.verbose", None),
        ("trainer._evaluation_loop.verbose = False", None),
        ("trainer._evaluation_loop._print_results = print", None),
        ("x = trainer._evaluation_loop._print_results", None),
        ("trainer.fit_loop.max_epochs = 3", None),
        ("x = self.trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined()", None),
        ("x = trainer.fit_loop.epoch_loop.batch_loop", ("private", "Trainer.fit_loop.epoch_loop.batch_loop")),
        ("trainer.fit_loop.epoch_progress = 3", ("private", "Trainer.fit_loop.epoch_progress")),
        ("trainer.fit_loop.global_step = 3", ("private", "Trainer.fit_loop.global_step")),
        ("trainer._checkpoint_connector.restore_model()", ("private", "Trainer._checkpoint_connector.restore_model")),
        ("trainer.validate_loop._stage9", ("private", "Trainer.validate_loop._stage9")),
        ("try:\n    trainer.fit_loop.old\nexcept AttributeError:\n    pass", None),
        ("x = _AcceleratorConnector._init_strategy9", ("private", f"{PATH}._init_strategy9")),
        ("_AcceleratorConnector._check_and_init_precision = f", ("private", f"{PATH}._check_and_init_precision")),
        ("_AcceleratorConnector.is_distributed = f", ("private", f"{PATH}.is_distributed")),
        ("x = _AcceleratorConnector.is_distributed", None),
        (f"mock.patch('{PATH}._check_and_init_precision')", ("private", f"{PATH}._check_and_init_precision")),
        (f"mock.patch('{PATH}.is_distributed')", None),
    ],
)
def test_attributes_of_loops_and_connectors(scanned, line, found):  # nequip, lightning-ir, finetuning-scheduler
    head = "from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector\n"
    assert [one[1:] for one in scanned(f"{head}{line}\n")] == ([found] if found else [])


def test_private_attributes_of_a_base_class(scanned):  # finetuning-scheduler, torch-uncertainty, lightning-ir
    code = """
        from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
        from lightning.pytorch.cli import LightningCLI

        class Stops(EarlyStopping):
            def setup(self, trainer, pl_module, stage):
                self._mine = self._check_on_train_epoch_end or self._should_skip_check(trainer)
            def _evaluate_stopping_criteria(self, current):
                return super()._evaluate_stopping_criteria(current)
            def _log_info(self, *args): ...

        class Saves(ModelCheckpoint):
            def on_train_end(self, trainer, pl_module):
                self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))
                print(self._last_time_checked, self._mine, other._fs)

        class Late(Saves):
            def _should_remove_checkpoint(self, *args):
                return super()._should_remove_checkpoint(*args)

        class Bar(TQDMProgressBar):
            BAR_FORMAT = "{bar}"
            def __init__(self):
                super().__init__()
                self._refresh_rate = 3

        class Cli(LightningCLI):
            def make(self):
                return self._dump_config
            def _add_configure_optimizers_method_to_model(self, subcommand):
                super()._add_configure_optimizers_method_to_model(subcommand)
                return self._parser(subcommand), self._model_class, self._instantiate_trainer({}, [])
    """
    assert scanned(code) == [
        (10, "differs", "EarlyStopping._log_info"),
        (15, "private", "ModelCheckpoint._last_time_checked"),
        (18, "differs", "ModelCheckpoint._should_remove_checkpoint"),
        (19, "private", "super()._should_remove_checkpoint"),
        (22, "differs", "TQDMProgressBar.BAR_FORMAT"),
        (25, "differs", "TQDMProgressBar._refresh_rate"),
        (29, "private", "LightningCLI._dump_config"),
    ]


def test_names_that_lightning_assigns_are_unchanged(scanned):  # lightning-uq-box, finetuning-scheduler
    code = """
        from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
        from lightning.fabric.utilities.distributed import ReduceOp, _distributed_is_initialized
        from lightning.pytorch.callbacks.early_stopping import log
    """
    assert scanned(code) == []


def test_a_private_name_that_the_project_defines_is_its_own(scanned):
    code = "import lightning\n\nclass Mine(lightning.Trainer):\n    def __init__(self):\n        self._model = None\n"
    assert scanned(code, **{"use.py": "import lightning\ntrainer._model\ntrainer._theirs\n"}) == [
        (3, "private", "Trainer._theirs")
    ]


def test_yaml_by_class_path_and_by_target(scanned):
    text = """
        # class_path: lightning.pytorch.nothing.Comment
        trainer:
          callbacks:
            - class_path: lightning.pytorch.callbacks.EarlyStopping
            - class_path: lightning.pytorch.loggers.LitLogger
            - _target_: pytorch_lightning.callbacks.ErlyStopping
          docs: https://lightning.ai/docs, lightning.ai
    """
    assert scanned(text, "config.yaml") == [
        (6, "absent", "lightning.pytorch.loggers.LitLogger"),
        (7, "unknown", "pytorch_lightning.callbacks.ErlyStopping"),
    ]


def test_files_without_lightning_and_unreadable_ones(scanned):
    assert scanned("trainer._private\n") == []
    assert scanned("import lightning\nprint 'two'\n") == [(2, "unknown", "train.py")]


def test_nothing_of_the_project_is_run(scanned):
    assert scanned("import lightning\nraise SystemExit(3)\n") == []


def run(*words):
    return main.main(["compat", "check", *map(str, words)])


def test_the_command_lists_by_file_and_fails_for_what_is_absent(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import lightning as L\nt = L.Trainer(logger=True)\nu = L.Trainer(logger=True)\n")
    assert run(tmp_path) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("a.py\n   2, 3  differs    Trainer(logger=): also takes the name of a logger;")
    assert "(names.md#different-trainer-logger)" in shown
    assert "1 file with " in shown
    assert shown.endswith("All of them run here: lightlib compat run PROGRAM.\n")

    (tmp_path / "b.py").write_text("from lightning.pytorch.loggers import LitLogger\n")
    assert run(tmp_path) == 1
    shown = capsys.readouterr().out
    assert "Change the lines above that are later, absent, private or unknown. If they are not yours to" in shown
    assert shown.endswith("run the program with Lightning: leave compat off.\n")


def test_the_command_lists_what_runs_unchanged_if_asked(tmp_path, capsys):
    (tmp_path / "a.py").write_text("from lightning import Trainer\n")
    assert run(tmp_path) == 0
    assert "lightning.Trainer" not in capsys.readouterr().out
    assert run("--all", tmp_path) == 0
    assert "      1  unchanged  lightning.Trainer\n" in capsys.readouterr().out


def test_the_command_without_anything_to_list(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import torch\n")
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == f"No file of {tmp_path} uses Lightning.\n"
