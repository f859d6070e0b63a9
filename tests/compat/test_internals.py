"""Private names of Lightning that real projects use, each as its project uses it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import lightlib
from lightlib import compat
from lightlib.callbacks import ModelCheckpoint
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import LightlibWarning
from lightlib_lightning import internals, objects
from tests.runs.quiet import QUIET

DATA = torch.arange(10.0).reshape(-1, 1)


@pytest.fixture(autouse=True)
def as_lightning():
    compat.install()
    yield
    compat.uninstall()


class Net(lightlib.Module):
    """One layer."""

    def __init__(self, width=1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer(batch).mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return batch.flatten().tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def loader(**options):
    return DataLoader(DATA, batch_size=4, **options)


def trainer(**arguments):
    return lightlib.Trainer(**{**QUIET, "max_epochs": 2, **arguments})


class TestAccelerators:
    def test_the_connector_of_a_trainer_says_whether_it_is_distributed(self):  # optuna, darts
        assert trainer(devices=1)._accelerator_connector.is_distributed is False

    def test_one_strategy_for_several_processes_is_distributed(self):
        from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

        assert _AcceleratorConnector(accelerator="cpu", devices=1, strategy="ddp").is_distributed is True

    @pytest.mark.parametrize(
        ("arguments", "flags"),  # as Lightning 2.6.6 gives them on a machine without a GPU
        [
            ({"accelerator": "cpu"}, ("cpu", 1)),
            ({"accelerator": "cpu", "devices": "auto"}, ("cpu", 1)),
            ({"accelerator": "cpu", "devices": 2}, ("cpu", 2)),
            ({"accelerator": "cpu", "devices": "3"}, ("cpu", 3)),
        ],
    )
    def test_a_connector_is_made_from_arguments(self, arguments, flags):  # scvi
        from pytorch_lightning.trainer.connectors.accelerator_connector import _AcceleratorConnector

        connector = _AcceleratorConnector(**arguments)
        assert (connector._accelerator_flag, connector._devices_flag) == flags
        assert connector._parallel_devices == [torch.device("cpu")] * flags[1]
        assert connector.strategy.root_device == torch.device("cpu")
        assert isinstance(trainer()._accelerator_connector, _AcceleratorConnector)

    def test_patching_what_lightlib_does_not_call_is_a_warning(self):  # nequip
        from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

        with pytest.warns(LightlibWarning, match="_init_strategy is replaced, but lightlib does not call it"):
            _AcceleratorConnector._init_strategy = lambda self: None
        type.__delattr__(_AcceleratorConnector, "_init_strategy")

    def test_the_checks_of_devices(self):  # nequip
        from lightning.fabric.utilities.device_parser import (
            _check_data_type,
            _check_unique,
            _normalize_parse_gpu_string_input,
        )

        assert [_normalize_parse_gpu_string_input(each) for each in ("1", "0,", "0,1", "-1", 2)] == [
            1,
            [0],
            [0, 1],
            -1,
            2,
        ]
        _check_data_type("0,1")
        _check_data_type([0, 1])
        with pytest.raises(TypeError, match="devices is None"):
            _check_data_type(None)
        with pytest.raises(ArgumentTypeError, match=r"devices is \['a'\]"):
            _check_data_type(["a"])
        _check_unique([0, 1])
        with pytest.raises(MisconfigurationException, match="lists a device twice"):
            _check_unique([0, 0])


class TestLoops:
    def test_whether_there_is_validation_data(self):  # gluonts
        asked = []

        class Asks(lightlib.Callback):
            def on_train_start(self, trainer, pl_module):
                asked.append(trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined())

        trainer(callbacks=[Asks()]).fit(Net(), loader(), loader())
        trainer(callbacks=[Asks()], limit_val_batches=0).fit(Net(), loader())
        assert asked == [True, False]

    def test_limits_are_read_and_set(self):
        this = trainer()
        this.fit_loop.max_epochs = 3
        assert this.max_epochs == this.fit_loop.max_epochs == 3
        this.fit_loop.epoch_loop.max_steps = 2
        this.fit(Net(), loader(), loader())
        assert this.global_step == this.fit_loop.epoch_loop.global_step == 2
        assert repr(this.fit_loop.max_batches) == repr(this.num_training_batches)  # an int, as in Lightning

    def test_counters_in_the_hooks_are_lightnings(self):
        """The numbers were recorded with this callback and Lightning 2.6.6."""
        seen = []

        class Notes(lightlib.Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                loop = trainer.fit_loop
                batches = loop.epoch_loop.batch_progress.current
                seen.append((loop.total_batch_idx, loop.batch_idx, loop.epoch_loop._batches_that_stepped))
                seen[-1] += loop.epoch_progress.current.completed, batches.ready

            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                self.on_train_batch_start(trainer, pl_module, batch, batch_idx)

            def on_train_epoch_end(self, trainer, pl_module):
                epochs = trainer.fit_loop.epoch_progress.current
                seen.append(("end", trainer.fit_loop.total_batch_idx, trainer.fit_loop.batch_idx))
                seen[-1] += trainer.fit_loop.epoch_loop._batches_that_stepped, epochs.completed, epochs.processed

        trainer(callbacks=[Notes()], limit_val_batches=0).fit(Net(), loader())
        twice = [(0, 0, 0, 0, 1), (1, 1, 1, 0, 2), (2, 2, 2, 0, 3)], [(3, 0, 3, 1, 1), (4, 1, 4, 1, 2), (5, 2, 5, 1, 3)]
        first, second = ([each for each in batches for _ in range(2)] for batches in twice)
        assert seen == [*first, ("end", 2, 2, 3, 0, 1), *second, ("end", 5, 2, 6, 1, 2)]

    def test_setup_data_makes_the_loaders_known_to_configure_optimizers(self):
        """The rows are those of Lightning 2.6.6: requested by the call, and not again by fit."""
        seen = []

        class Scheduled(Net):
            def train_dataloader(self):
                seen.append("requested")
                return loader()

            def configure_optimizers(self):
                self.trainer.fit_loop.setup_data()
                seen.append(self.trainer.num_training_batches)
                self.trainer.fit_loop.setup_data()
                seen.append(len(self.trainer.train_dataloader))
                return super().configure_optimizers()

            def on_train_start(self):
                seen.append("starts")

        this = trainer(limit_val_batches=0)
        this.fit(Scheduled())
        assert seen == ["requested", 3, 3, "starts"]
        assert this.global_step == 6

    def test_setup_data_before_fit_is_an_error(self):
        with pytest.raises(MisconfigurationException, match=r"setup_data\(\) was called before fit") as raised:
            trainer().fit_loop.setup_data()
        assert "Fix: move it into configure_optimizers." in str(raised.value)

    def test_a_test_prints_by_the_users_loop(self, capsys):  # torch-uncertainty
        from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
        from lightning.pytorch.trainer.states import RunningStage, TrainerFn

        class Table(_EvaluationLoop):
            @staticmethod
            def _print_results(results, stage):
                print(f"table of {stage}: {sorted(results[0])}")  # noqa: T201  the table

        this = trainer()
        this.test_loop = Table(this, TrainerFn.TESTING, RunningStage.TESTING, inference_mode=True)
        assert isinstance(this.test_loop, Table)
        this.test(Net(), loader())
        this.validate(Net(), loader())
        out = capsys.readouterr().out
        assert "table of test: ['val']" in out
        assert out.count("table of") == 1

    def test_a_printer_gets_tensors_and_can_be_exchanged_later(self, capsys):  # torch-uncertainty, lightning-ir
        from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop

        seen = []

        class Table(_EvaluationLoop):
            @staticmethod
            def _print_results(results, stage):
                seen.append((stage, type(results[0]["val"]), results[0]["val"].item()))
                _EvaluationLoop._print_results(results, stage)

        class Assigns(lightlib.Callback):
            def on_test_start(self, trainer, pl_module):
                trainer._evaluation_loop._print_results = lambda results, stage: seen.append((stage, *results[0]))
                assert trainer._evaluation_loop is trainer.test_loop

        this = trainer()
        this.test_loop = Table(this, "test", "test")
        (given,) = this.test(Net(), loader())
        assert seen == [("test", torch.Tensor, pytest.approx(given["val"]))]
        assert "val" in capsys.readouterr().out
        seen.clear()
        this.callbacks.append(Assigns())
        this.test(Net(), loader())
        assert seen == [("test", "val")]

    @pytest.mark.parametrize("fn", ["validate", "test"])
    def test_a_printer_of_the_view_is_used(self, fn, capsys):
        seen = []

        class Assigns(lightlib.Callback):
            def setup(self, trainer, pl_module, stage):
                trainer._evaluation_loop._print_results = lambda results, stage: seen.append((stage, *results[0]))

        getattr(trainer(callbacks=[Assigns()]), fn)(Net(), loader())
        assert seen == [(fn, "val")]
        assert capsys.readouterr().out == ""

    def test_whether_the_metrics_are_printed(self, capsys):
        """The values were recorded with this callback and Lightning 2.6.6."""
        seen = []

        class Reads(lightlib.Callback):
            def on_validation_end(self, trainer, pl_module):
                loop = trainer._evaluation_loop
                seen.append((loop.verbose, loop.num_dataloaders, trainer.fit_loop.epoch_loop.val_loop.verbose))

        class Silences(lightlib.Callback):
            def on_test_start(self, trainer, pl_module):
                trainer._evaluation_loop.verbose = False

        this = trainer(callbacks=[Reads()], max_epochs=1, num_sanity_val_steps=1)
        assert this.validate_loop.verbose is True
        this.fit(Net(), loader(), loader())
        assert seen == [(False, 1, False)] * 2
        this.validate(Net(), loader(), verbose=False)
        assert seen[-1] == (False, 1, False)
        assert this.validate_loop.verbose is False
        this.validate(Net(), loader())
        assert seen[-1] == (True, 1, False)
        assert capsys.readouterr().out.count("validate metric") == 1
        trainer(callbacks=[Silences()]).test(Net(), loader())
        assert capsys.readouterr().out == ""

    def test_assignments_without_effect_are_warnings(self):
        this = trainer(limit_val_batches=0)
        this.fit(Net(), loader())
        with pytest.warns(LightlibWarning, match="verbose was set during fit"):
            this._evaluation_loop.verbose = True
        with pytest.warns(LightlibWarning, match="_print_results was set during fit"):
            this._evaluation_loop._print_results = print
        with pytest.warns(LightlibWarning, match="CheckpointConnector.dump_checkpoint of a Trainer is assigned"):
            this._checkpoint_connector.dump_checkpoint = print
        with pytest.warns(LightlibWarning, match="FitLoop.done of a Trainer is assigned"):
            this.fit_loop.done = True

    def test_a_loop_that_replaces_more_is_refused(self):
        from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop

        class Mine(_EvaluationLoop):
            def run(self):
                return []

        this = trainer()
        with pytest.raises(MisconfigurationException, match="overrides 'run'"):
            this.test_loop = Mine(this, "test", "test")
        with pytest.raises(AttributeError, match="fit_loop = "):
            this.fit_loop = object()

    def test_the_samples_of_predicted_batches(self):  # pytorch-forecasting, careamics
        seen = []

        class Writes(lightlib.Callback):
            def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
                seen.append(trainer.predict_loop.current_batch_indices)

            def on_predict_epoch_end(self, trainer, pl_module):
                seen.append(trainer.predict_loop.epoch_batch_indices)
                seen.append(trainer.predict_loop.predictions)

        predicted = trainer(callbacks=[Writes()]).predict(Net(), loader())
        batches = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert seen == [*batches, [batches], predicted]
        assert predicted == [[float(i) for i in batch] for batch in batches]

    def test_the_samples_of_an_order_that_is_drawn_again(self):
        seen = []

        class Reads(lightlib.Callback):
            def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
                assert trainer.predict_loop.current_batch_indices == outputs
                seen.append(outputs)

            def on_predict_epoch_end(self, trainer, pl_module):
                assert trainer.predict_loop.epoch_batch_indices == [seen]

        drawn = loader(sampler=WeightedRandomSampler([1.0] * 10, 10))
        trainer(callbacks=[Reads()]).predict(Net(), drawn)
        assert sum(map(len, seen)) == 10


class TestCheckpoints:
    def test_the_content_of_a_checkpoint(self):  # mlflow, NeMo
        this = trainer(limit_val_batches=0)
        net = Net()
        this.fit(net, loader())
        content = this._checkpoint_connector.dump_checkpoint()
        assert content["global_step"] == this.global_step == 6
        assert content["epoch"] == this.current_epoch == 2
        assert torch.equal(content["state_dict"]["layer.weight"], net.layer.weight)
        assert len(content["optimizer_states"]) == 1
        assert "optimizer_states" not in this._checkpoint_connector.dump_checkpoint(weights_only=True)

    def test_a_module_is_built_from_a_file_and_from_its_content(self, tmp_path):  # rl4co
        from lightning.fabric.utilities.cloud_io import _load
        from lightning.pytorch.core.saving import _load_from_checkpoint, _load_state

        this = trainer(limit_val_batches=0)
        net = Net()
        this.fit(net, loader())
        this.save_checkpoint(tmp_path / "a.ckpt")
        content = _load(tmp_path / "a.ckpt")
        for built in (_load_from_checkpoint(Net, tmp_path / "a.ckpt"), _load_state(Net, content)):
            assert torch.equal(built.layer.weight, net.layer.weight)
            assert built.hparams.width == 1

    def test_the_files_of_a_checkpoint_callback(self, tmp_path):  # dvclive
        from lightning.pytorch.loggers.utilities import _scan_checkpoints

        callback = ModelCheckpoint(tmp_path, save_last=True, monitor="val")
        trainer(callbacks=[callback], enable_checkpointing=True).fit(Net(), loader(), loader())
        found = _scan_checkpoints(callback, {})
        assert {path for _, path, _, _ in found} == {callback.best_model_path, callback.last_model_path}
        assert all(tag in ("latest", "best", "best_k") for *_, tag in found)
        assert _scan_checkpoints(callback, {path: time for time, path, *_ in found}) == []


def test_overriding_a_private_method_that_nothing_calls_is_a_warning():  # schnetpack, nequip, scvi override some
    class Mine(ModelCheckpoint):
        def _should_remove_checkpoint(self, trainer, previous, current):
            return True

        def _save_checkpoint(self, trainer, filepath):
            super()._save_checkpoint(trainer, filepath)

    with pytest.warns(LightlibWarning, match="overrides a private method") as seen:
        trainer(callbacks=[Mine()], enable_checkpointing=True, limit_val_batches=0).fit(Net(), loader())
    told = [str(each.message) for each in seen if "overrides a private method" in str(each.message)]
    assert len(told) == 1
    assert told[0].startswith("Mine._should_remove_checkpoint overrides a private method of Lightning's")


def test_functions_of_loggers():  # dvclive; the values are Lightning's
    from argparse import Namespace

    from lightning.fabric.utilities.logger import _add_prefix, _convert_params, _sanitize_callable_params

    class Fails:
        def __call__(self):
            raise ValueError

    assert _convert_params(None) == {}
    assert _convert_params(Namespace(a=1)) == {"a": 1}
    assert _add_prefix({"a": 1}, "p", "-") == {"p-a": 1}
    assert _add_prefix({"a": 1}, "", "-") == {"a": 1}
    params = {"a": lambda: "v", "b": Fails(), "c": lambda: len, "d": 3, "e": len}
    assert _sanitize_callable_params(params) == {"a": "v", "b": None, "c": None, "d": 3, "e": "len"}


def test_hyperparameter_files_come_back(tmp_path):
    from lightning.pytorch.core import saving

    given = {"lr": 0.1, "name": "net", "deep": True}
    saving.save_hparams_to_tags_csv(tmp_path / "a.csv", given)
    saving.save_hparams_to_yaml(tmp_path / "a.yaml", given)
    assert saving.load_hparams_from_tags_csv(tmp_path / "a.csv") == given
    assert saving.load_hparams_from_yaml(tmp_path / "a.yaml") == given
    saving.update_hparams(given, {"lr": 0.2})
    assert given["lr"] == 0.2


def test_the_rank_of_lightning_utilities_follows():  # nequip, the hydra template
    from lightning.pytorch.utilities import rank_zero_only
    from lightning_utilities.core.rank_zero import rank_zero_only as theirs

    assert rank_zero_only is theirs
    trainer()
    assert theirs.rank == 0


def test_callbacks_logged_values_and_sources_by_their_connectors():
    this = trainer()
    this.fit(Net(), loader(), loader())
    assert this._logger_connector.callback_metrics == this.callback_metrics
    assert this._callback_connector._reorder_callbacks([ModelCheckpoint(), lightlib.Callback()])[0].__class__ is (
        lightlib.Callback
    )
    assert this._data_connector._train_dataloader_source.is_defined()
    assert not this._data_connector._predict_dataloader_source.is_defined()


def test_the_check_knows_the_internals_that_are_served():
    assert set(internals._OF_TRAINER) == objects.INTERNALS
