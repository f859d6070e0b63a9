"""Module: properties and helpers, detached and attached; building, copying, exporting."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple

import pytest
import torch
from torch import nn

from lightlib.callbacks import Callback, EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightlib.core.module.module import Module
from lightlib.errors import MisconfigurationException
from lightlib.loggers import CSVLogger
from tests.runs.plain import Net, batches, calling, network, quiet_trainer, same_weights, subclass, with_methods
from tests.runs.steps import Data, Steps

META = torch.device("meta")


class Small(Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

    def forward(self, x, scale=1.0):
        return self.layers(x) * scale


class TestDetached:
    def test_numbers_and_loggers(self):
        module = Net()
        assert (module.current_epoch, module.global_step, module.global_rank, module.local_rank) == (0, 0, 0, 0)
        assert module.logger is None
        assert module.loggers == []
        assert module.example_input_array is None
        assert module.device_mesh is None
        assert module.strict_loading is True
        assert module.automatic_optimization is True
        assert module.hparams == {}

    def test_there_is_no_trainer(self):
        with pytest.raises(
            RuntimeError, match=r"^Net is not attached to a Trainer\.\n  Expected.*\n  Fix: call trainer\.fit"
        ):
            Net().trainer  # noqa: B018  the property raises

    def test_before_the_run_began(self):
        module = Net()
        module.trainer = quiet_trainer()
        with pytest.raises(RuntimeError, match="There is no run yet"):
            module.optimizers()

    def test_print(self, capsys):
        Net().print("a", 1, sep="-")
        assert capsys.readouterr().out == "a-1\n"

    def test_manual_backward_in_automatic_optimization(self):
        with pytest.raises(
            MisconfigurationException, match="called manual_backward, but its automatic_optimization is True"
        ):
            Net().manual_backward(torch.ones(1))

    @pytest.mark.parametrize("step", ["training_step", "validation_step", "test_step", "configure_optimizers"])
    def test_what_is_not_defined(self, step):
        with pytest.raises(NotImplementedError):
            getattr(Module(), step)()


class TestPlace:
    def test_device_follows_every_way_to_move(self):
        module = Net()
        assert module.device == torch.device("cpu")
        assert module.to("meta").device == META
        assert module.to_empty(device="cpu").device == torch.device("cpu")
        assert module.on_gpu is False

    def test_without_parameters(self):
        class Buffer(Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("one", torch.ones(1, device="meta"))

        assert Module().device == torch.device("cpu")
        assert Buffer().device == META

    def test_layers_added_later(self):
        module = Module()
        assert module.device == torch.device("cpu")
        module.layer = nn.Linear(1, 1, device="meta")
        assert module.device == META

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
    def test_dtype(self, dtype):
        module = Net()
        assert module.dtype is torch.float32
        assert module.to(dtype).dtype is dtype

    def test_dtype_without_floating_parameters(self):
        assert Module().dtype is torch.get_default_dtype()

    def test_freeze_and_unfreeze_return_the_module(self):
        module = Net()
        assert module.freeze() is module
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())
        assert module.unfreeze() is module
        assert module.training
        assert all(p.requires_grad for p in module.parameters())


class TestAttached:
    def test_properties_during_and_after_a_run(self, tmp_path):
        seen = []

        def training_step(self, batch, batch_idx):
            seen.append((self.current_epoch, self.global_step, self.global_rank, self.local_rank))
            assert self.trainer is trainer
            assert self.logger is logger
            assert self.loggers == [logger]
            assert self.trainer.lightning_module is self

        logger, module = CSVLogger(tmp_path), calling(Net, training_step)
        trainer = quiet_trainer(max_epochs=2, logger=logger)
        trainer.fit(module, batches(2))
        assert seen == [(0, 0, 0, 0), (0, 1, 0, 0), (1, 2, 0, 0), (1, 3, 0, 0)]
        assert (module.current_epoch, module.global_step) == (2, 4)

    def test_predict_step_calls_forward(self):
        module, data = with_methods(forward=lambda self, batch: self.net(batch[0])), batches(2)
        outputs = quiet_trainer().predict(module, data)
        assert torch.equal(outputs[1], module.net(data[1][0]))

    def test_all_gather_in_nestings(self):
        module, pair = Net(), namedtuple("Pair", "x y")  # noqa: PYI024  a named tuple of the user
        module.trainer = quiet_trainer()
        one = torch.ones(2)
        data = {"a": [one, (2, 0.5)], "b": pair(one, "text"), "c": None}
        found = module.all_gather(data)
        assert found["a"][0] is one
        assert [type(found["a"]), type(found["a"][1])] == [list, tuple]
        assert [value.item() for value in found["a"][1]] == [2, 0.5]
        assert isinstance(found["b"], pair)
        assert (found["b"].y, found["c"]) == ("text", None)

    def test_print_goes_above_the_bar(self, capsys):
        class Bar(TQDMProgressBar):
            def print(self, *args, **kwargs):
                printed.append((args, kwargs))

        prints = subclass(Net, on_train_start=lambda self: self.print("hello", 1, sep=","))
        printed = []
        trainer = quiet_trainer(enable_progress_bar=True, callbacks=[Bar()])
        trainer.fit(prints(), batches(1))
        assert printed == [(("hello", 1), {"sep": ","})]
        module = prints()
        quiet_trainer().fit(module, batches(1))
        assert capsys.readouterr().out.endswith("hello,1\n")

    def test_several_modules_one_trainer(self):
        trainer, one, other = quiet_trainer(max_epochs=2), Steps(), Steps()
        trainer.fit(one, batches(2), batches(1))
        trainer.fit(other, batches(2), batches(1))
        assert trainer.global_step == 4
        assert trainer.current_epoch == 2
        assert same_weights(one, other)
        assert trainer.lightning_module is other
        trainer.validate(one, batches(1), verbose=False)
        assert trainer.lightning_module is one


class TestConfigureCallbacks:
    def test_take_the_place_of_the_same_class_and_join_the_others(self):
        class Mine(Callback):
            pass

        configures = with_methods(
            Steps,
            configure_callbacks=lambda self: [own_stop, Mine()],
            on_train_start=lambda self: seen.extend(self.trainer.callbacks),
            validation_step=lambda self, batch, batch_idx: self.log("x", 1.0),
        )
        seen = []
        stop, own_stop, other = EarlyStopping("x"), EarlyStopping("x", patience=9), Callback()
        trainer = quiet_trainer(callbacks=[stop, other])
        trainer.fit(configures, batches(1), batches(1))
        assert stop not in seen
        assert own_stop in seen
        assert other in seen
        assert sum(isinstance(callback, Mine) for callback in seen) == 1

    def test_one_without_a_list(self):
        class Counts(Callback):
            count = 0

            def on_train_start(self, trainer, pl_module):
                Counts.count += 1

        trainer, module = quiet_trainer(), with_methods(configure_callbacks=lambda self: Counts())
        trainer.fit(module, batches(1))
        trainer.max_epochs = 2
        trainer.fit(module, batches(1))
        assert Counts.count == 2

    def test_its_checkpoint_is_the_best_one_afterwards(self, tmp_path):
        module = with_methods(Steps, configure_callbacks=lambda self: ModelCheckpoint(tmp_path))
        trainer = quiet_trainer(enable_checkpointing=True)
        trainer.fit(module, batches(2), batches(1))
        assert trainer.checkpoint_callback.best_model_path == str(tmp_path / "epoch=0-step=2.ckpt")
        trained = copy.deepcopy(module.state_dict())
        for parameter in module.parameters():
            parameter.data.zero_()
        trainer.test(dataloaders=batches(1), verbose=False, ckpt_path="best")
        assert module.net[0].weight.equal(trained["net.0.weight"])

    def test_another_module_does_not_inherit_them(self, tmp_path):
        configures = with_methods(Steps, configure_callbacks=lambda self: ModelCheckpoint(tmp_path / "of_module"))
        own = ModelCheckpoint(tmp_path / "own")
        trainer = quiet_trainer(enable_checkpointing=True, callbacks=[own])
        trainer.fit(configures, batches(2), batches(1))
        assert trainer.checkpoint_callback is not own
        trainer.fit(Steps(), batches(2), batches(1))
        assert trainer.checkpoint_callbacks == [own]
        assert (tmp_path / "own" / "epoch=0-step=2.ckpt").exists()


class Late(Steps):
    """Builds its layers in configure_model."""

    def __init__(self):
        super().__init__()
        self.net = None
        self.calls = []

    def configure_model(self):
        self.calls.append(torch.get_default_dtype())
        if self.net is None:
            self.net = network()


class TestConfigureModel:
    def test_for_every_entry_point(self):
        module, trainer, data = Late(), quiet_trainer(), batches(1)
        trainer.fit(module, data, data)
        trainer.validate(module, data, verbose=False)
        trainer.test(module, data, verbose=False)
        trainer.predict(module, data)
        assert len(module.calls) == 4

    def test_layers_have_the_dtype_of_the_run(self):
        module = Late()
        quiet_trainer(precision="64-true").fit(module, batches(2), batches(1))
        assert module.calls == [torch.float64]
        assert module.net[0].weight.dtype is torch.float64
        reference = network().double()
        assert not module.net[0].weight.equal(reference[0].weight)  # it was trained

    def test_layers_are_trained(self):
        module, plain = Late(), Steps()
        quiet_trainer().fit(module, batches(3), batches(1))
        quiet_trainer().fit(plain, batches(3), batches(1))
        assert same_weights(module, plain)


class TestCopies:
    @pytest.mark.parametrize(
        "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))], ids=["deepcopy", "pickle"]
    )
    def test_during_and_after_a_run(self, copied):
        made = []

        class Copies(Callback):
            def on_train_batch_end(self, trainer, pl_module, *_):
                made.append(copied(pl_module))

        module = Net()
        quiet_trainer(callbacks=[Copies()]).fit(module, batches(2))
        made.append(copied(module))
        assert same_weights(made[1], module)
        assert same_weights(made[2], module)
        assert not same_weights(made[0], module)
        for one in made:
            assert one._trainer is None
            assert one._results is None
        assert module.trainer.global_step == 2  # the original is still attached
        quiet_trainer().fit(made[2], batches(1))

    def test_a_pickle_holds_the_weights_and_not_the_trainer(self):
        module = Net()
        quiet_trainer().fit(module, batches(1))
        assert len(pickle.dumps(module)) < 2 * len(pickle.dumps(Net()))

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
    def test_a_data_module_does_not_drag_the_trainer_either(self, copied):
        data, trainer = Data(), quiet_trainer()
        trainer.fit(Steps(), datamodule=data)
        made = copied(data)
        assert made.stages == ["fit"]
        assert made.trainer is None
        assert data.trainer is trainer

    def test_its_methods_can_be_handed_to_the_workers_of_a_loader(self):
        data, module = Data(), Net()
        quiet_trainer().fit(module, batches(1))
        data.trainer = module.trainer
        for method in (data.setup, module.training_step):
            assert pickle.loads(pickle.dumps(method)).__self__ is not None


class TestExport:
    @pytest.fixture(autouse=True)
    def no_thread(self, monkeypatch):
        """Turn off tqdm's monitor: the exporter draws bars with tqdm, and its thread would stay."""
        monkeypatch.setattr(pytest.importorskip("tqdm").tqdm, "monitor_interval", 0)

    @pytest.fixture
    def module(self):
        module = Small()
        module.layers[2].train(False)  # modes of its own, which an export must leave
        return module

    def same(self, module, run):
        assert [part.training for part in module.modules()] == [True, True, True, True, False]
        module.eval()
        x = torch.randn(2, 4)
        torch.testing.assert_close(torch.as_tensor(run(x)), module(x).detach())

    @pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch.export.load before torch 2.13
    def test_to_torch_export(self, module, tmp_path):
        program = module.to_torch_export(tmp_path / "model.pt2", input_sample=torch.randn(2, 4))
        loaded = torch.export.load(tmp_path / "model.pt2")
        self.same(module, loaded.module())
        assert type(program) is type(loaded)

    def test_dynamic_shapes_and_the_example_of_the_module(self, module, tmp_path):
        module.example_input_array = torch.randn(2, 4)
        module.to_torch_export(tmp_path / "model.pt2", dynamic_shapes=({0: torch.export.Dim("n")},))
        loaded = torch.export.load(tmp_path / "model.pt2").module()
        assert loaded(torch.randn(7, 4)).shape == (7, 3)
        with pytest.raises(Exception, match=r"(?i)guard|constrain|expected"):
            loaded(torch.randn(7, 5))

    @pytest.mark.parametrize(
        "sample", [(torch.ones(2, 4), 2.0), {"x": torch.ones(2, 4), "scale": 2.0}], ids=["tuple", "dict"]
    )
    def test_several_inputs(self, module, sample):
        program = module.to_torch_export(input_sample=sample)
        found = program.module()(**sample) if isinstance(sample, dict) else program.module()(*sample)
        module.eval()
        torch.testing.assert_close(found, module(torch.ones(2, 4), 2.0))

    @pytest.mark.parametrize("name", ["to_torch_export", "to_onnx"])
    def test_without_an_input(self, name, tmp_path):
        with pytest.raises(
            MisconfigurationException, match=rf"Small.{name} has no input to trace with[\s\S]*input_sample="
        ):
            getattr(Small(), name)(tmp_path / "model")

    def test_onnx_without_a_path(self):
        with pytest.raises(MisconfigurationException, match="to_onnx got no file_path"):
            Small().to_onnx(input_sample=torch.ones(1, 4))

    def test_modes_come_back_after_an_error(self, module):
        with pytest.raises(Exception, match=r"."):
            module.to_torch_export(input_sample="not a tensor")
        assert [part.training for part in module.modules()] == [True, True, True, True, False]

    @pytest.mark.filterwarnings("ignore")  # warnings from inside torch and onnxscript
    @pytest.mark.parametrize("as_path", [str, lambda path: path], ids=["string", "path"])
    def test_to_onnx(self, module, tmp_path, as_path):
        onnx = pytest.importorskip("onnx", reason="onnx is not installed")
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
        reference = pytest.importorskip("onnx.reference", reason="onnx has no evaluator")
        module.to_onnx(as_path(tmp_path / "model.onnx"), input_sample=torch.randn(2, 4))
        onnx.checker.check_model(str(tmp_path / "model.onnx"))
        model = onnx.load(tmp_path / "model.onnx")
        session = reference.ReferenceEvaluator(model)
        self.same(module, lambda x: session.run(None, {model.graph.input[0].name: x.numpy()})[0])

    @pytest.mark.filterwarnings("ignore")
    def test_to_onnx_returns_a_program(self, module):
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
        module.example_input_array = torch.randn(2, 4)
        program = module.to_onnx(dynamo=True)
        self.same(module, lambda x: program.model_proto.graph and module.eval()(x).detach())
        assert [one.name for one in program.model_proto.graph.output]
