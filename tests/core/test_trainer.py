"""The Trainer's verbs: return values, final state, and attributes readable in between."""

from __future__ import annotations

import copy
import os
import signal
import threading
import weakref

import numpy as np
import pytest
import torch

from lightlib.callbacks import ModelCheckpoint
from lightlib.core.progress.states import RunningStage, TrainerFn, TrainerStatus
from lightlib.core.trainer import Trainer
from lightlib.report import PossibleUserWarning
from tests.runs.plain import QUIET, Net, batches, calling, loader, quiet_trainer, raising, same_weights, with_methods
from tests.runs.steps import Data, Steps, on


def mean(data):
    return sum(x.mean().item() for x, _ in data) / len(data)


class TestFit:
    def test_returns_nothing_and_says_where_it_is(self):
        trainer = quiet_trainer(max_epochs=2)
        assert trainer.fit(Net(), batches(3)) is None
        assert (trainer.current_epoch, trainer.global_step, trainer.num_training_batches) == (2, 6, 3)
        assert (trainer.state.fn, trainer.state.stage, trainer.state.status) == ("fit", None, "finished")
        assert trainer.state.finished
        assert not trainer.interrupted

    def test_again_goes_on_counting(self):
        module, whole, trainer = Net(), Net(), quiet_trainer()
        trainer.fit(module, batches(2))
        trainer.max_epochs = 3
        trainer.fit(module, batches(2))
        quiet_trainer(max_epochs=3).fit(whole, batches(2))
        assert (trainer.current_epoch, trainer.global_step) == (3, 6)
        assert same_weights(module, whole)

    def test_again_without_a_further_epoch_trains_nothing(self):
        module, trainer = Net(), quiet_trainer()
        trainer.fit(module, batches(2))
        before = copy.deepcopy(module)
        trainer.fit(module, batches(2))
        assert same_weights(module, before)
        assert trainer.global_step == 2

    def test_another_module_starts_from_nothing(self):
        trainer, one, other = quiet_trainer(), Net(), Net()
        trainer.fit(one, batches(2))
        trainer.fit(other, batches(2))
        assert trainer.global_step == 2
        assert same_weights(one, other)

    def test_an_evaluation_of_another_module_in_between_changes_nothing(self):
        trainer, module = quiet_trainer(), Steps()
        trainer.fit(module, batches(2), batches(1))
        trainer.test(Steps(), batches(1), verbose=False)
        trainer.max_epochs = 2
        trainer.fit(module, batches(2), batches(1))
        assert (trainer.current_epoch, trainer.global_step) == (2, 4)

    def test_a_data_module_by_name_or_in_second_place(self):
        for call in (lambda t, m, d: t.fit(m, d), lambda t, m, d: t.fit(m, datamodule=d)):
            data, trainer = Data(), quiet_trainer()
            call(trainer, Steps(), data)
            assert data.stages == ["fit"]
            assert trainer.datamodule is data
            assert data.trainer is trainer

    def test_zero_epochs(self):
        calls = []
        module, trainer = Net(), quiet_trainer(max_epochs=0, callbacks=[
            on(on_fit_start=lambda *_: calls.append("fit"), on_train_start=lambda *_: calls.append("train"))
        ])  # fmt: skip
        trainer.fit(module, batches(2))
        assert calls == ["fit"]
        assert same_weights(module, Net())

    def test_in_another_thread(self):
        module, whole, errors = Net(), Net(), []

        def fit():
            try:
                quiet_trainer().fit(module, batches(3))
            except BaseException as error:  # noqa: BLE001  handed to the test
                errors.append(error)

        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()
        quiet_trainer().fit(whole, batches(3))
        assert not errors
        assert same_weights(module, whole)

    def test_the_state_within_hooks(self):
        seen = {}

        def setup(self, stage):
            seen["setup"] = (self.trainer.state.fn, self.trainer.state.stage, self.trainer.training)

        def training_step(self, batch, batch_idx):
            seen["train"] = self.now()
            return Steps.training_step(self, batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            seen["sanity" if self.trainer.sanity_checking else "validate"] = self.now()

        def now(self):
            t = self.trainer
            flags = (t.training, t.validating, t.sanity_checking, t.testing, t.predicting, t.evaluating)
            return t.state.fn.value, t.state.stage.value, "".join("yn"[not flag] for flag in flags)

        trainer = quiet_trainer(num_sanity_val_steps=1)
        trainer.fit(with_methods(Steps, setup, training_step, validation_step, now), batches(1), batches(1))
        assert seen.pop("setup")[0] is TrainerFn.FITTING
        assert seen == {
            "sanity": ("fit", "sanity_check", "nnynny"),
            "train": ("fit", "train", "ynnnnn"),
            "validate": ("fit", "validate", "nynnny"),
        }
        assert RunningStage.TRAINING == "train"
        assert TrainerStatus.FINISHED == "finished"

    @pytest.mark.parametrize(("call", "stage"), [("fit", "train"), ("validate",) * 2, ("test",) * 2, ("predict",) * 2])
    def test_set_up_and_teardown_have_the_stage_of_the_call(self, call, stage):
        """As in Lightning 2.6.6."""
        seen = []

        def note(self, *_):
            trainer = self.trainer
            flags = (trainer.training, trainer.validating, trainer.testing, trainer.predicting, trainer.evaluating)
            seen.append((trainer.state.stage, flags.count(True)))

        trainer = quiet_trainer()
        module = with_methods(Steps, prepare_data=note, setup=note, configure_model=note, teardown=note)
        getattr(trainer, call)(module, *[batches(1)] * (2 if call == "fit" else 1))
        assert seen == [(stage, 2 if stage in ("validate", "test") else 1)] * 4
        assert (trainer.state.stage, trainer.training, trainer.evaluating) == (None, False, False)

    def test_what_a_stage_says_of_itself(self):
        assert {stage.value: (stage.dataloader_prefix, stage.evaluating) for stage in RunningStage} == {
            "train": ("train", False),
            "sanity_check": ("val", True),
            "validate": ("val", True),
            "test": ("test", True),
            "predict": ("predict", False),
        }


def test_the_stage_that_hooks_are_told_is_a_member_and_a_word():
    class Told(Data):
        def setup(self, stage):
            stages.append(stage)

        def teardown(self, stage):
            stages.append(stage)

    stages = []
    told = {name: lambda trainer, module, stage: stages.append(stage) for name in ("setup", "teardown")}
    trainer, module = quiet_trainer(limit_val_batches=0, callbacks=[on(**told)]), Steps()
    module.setup = module.teardown = stages.append
    trainer.fit(module, datamodule=Told())
    trainer.predict(module, datamodule=Told())
    assert stages == ["fit"] * 6 + ["predict"] * 6
    assert all(isinstance(stage, TrainerFn) for stage in stages)
    assert {"fit": 1, "predict": 2}[stages[-1]] == 2
    assert f"{stages[0]} {stages[-1]!s}" == "fit predict"


class TestEvaluation:
    @pytest.mark.parametrize("verb", ["validate", "test"])
    def test_one_dict_per_loader(self, verb):
        one, other = loader(8), loader(4)
        call = getattr(quiet_trainer(), verb)
        assert call(Steps(), one, verbose=False) == [{"x": pytest.approx(mean(one))}]
        assert call(Steps(), [one, other], verbose=False) == [
            {"x/dataloader_idx_0": pytest.approx(mean(one))},
            {"x/dataloader_idx_1": pytest.approx(mean(other))},
        ]

    def test_nothing_logged(self):
        silent = with_methods(Steps, validation_step=lambda self, batch, batch_idx: None)
        assert quiet_trainer().validate(silent, batches(1), verbose=False) == [{}]

    def test_values_are_floats(self):
        (metrics,) = quiet_trainer().validate(Steps(), batches(1), verbose=False)
        assert [type(value) for value in metrics.values()] == [float]

    @pytest.mark.parametrize("verbose", [True, False])
    def test_prints_a_table(self, capsys, verbose):
        quiet_trainer().test(Steps(), [loader(4), loader(4)], verbose=verbose)
        out = capsys.readouterr().out
        assert all((words in out) == verbose for words in ("test metric", "loader 0", "loader 1", " x "))

    def test_weights_modes_and_gradients_stay(self):
        module = Steps()
        module.net[2].train(False)
        quiet_trainer().validate(module, batches(2), verbose=False)
        assert [part.training for part in module.net] == [True, True, False, True]
        assert same_weights(module, Steps())
        assert torch.is_grad_enabled()

    @pytest.mark.parametrize(("inference", "kind"), [(True, (True, False)), (False, (False, False))])
    def test_inference_mode(self, inference, kind):
        seen = {}

        def validation_step(self, batch, batch_idx):
            seen[self.trainer.state.fn.value] = (torch.ones(1).is_inference(), torch.is_grad_enabled())

        module = with_methods(Steps, validation_step, test_step=validation_step, predict_step=validation_step)
        trainer = quiet_trainer(inference_mode=inference)
        trainer.fit(module, batches(1), batches(1))
        trainer.validate(module, batches(1))
        trainer.test(module, batches(1))
        trainer.predict(module, batches(1))
        assert seen.pop("fit") == (False, False)  # a tensor made there may be used in training
        assert seen == dict.fromkeys(("validate", "test", "predict"), kind)

    def test_the_data_module_of_the_last_fit(self):
        trainer, module, data = quiet_trainer(), Steps(), Data()
        trainer.fit(module, datamodule=data)
        assert trainer.validate(verbose=False) == [{"x": pytest.approx(mean(data.val_dataloader()))}]
        assert trainer.test(verbose=False) == [{"x": pytest.approx(mean(data.test_dataloader()))}]
        assert len(trainer.predict()) == 3
        assert data.stages == ["fit", "validate", "test", "predict"]

    def test_a_data_module_in_second_place(self):
        trainer, module, data = quiet_trainer(), Steps(), Data()
        assert trainer.validate(module, data, verbose=False) == [{"x": pytest.approx(mean(data.val_dataloader()))}]
        assert trainer.test(module, data, verbose=False) == [{"x": pytest.approx(mean(data.test_dataloader()))}]
        assert len(trainer.predict(module, data)) == 3

    def test_not_when_loaders_are_given(self):
        trainer, module = quiet_trainer(), Steps()
        trainer.fit(module, datamodule=Data())
        assert trainer.test(module, batches(2, seed=9), verbose=False) == [
            {"x": pytest.approx(mean(batches(2, seed=9)))}
        ]


class TestBestWeights:
    def trained(self, tmp_path):
        """Return a trainer that has its best weights from the first epoch."""
        log = {"validation_step": lambda self, *_: self.log("x", float(self.current_epoch))}
        module, first = with_methods(Steps, **log), with_methods(Steps, **log)
        callback = ModelCheckpoint(tmp_path, monitor="x")
        trainer = quiet_trainer(max_epochs=2, enable_checkpointing=True, callbacks=[callback])
        trainer.fit(module, batches(2), batches(1))
        quiet_trainer(max_epochs=1).fit(first, batches(2), batches(1))
        return trainer, module, first

    @pytest.mark.parametrize("verb", ["validate", "test", "predict"])
    def test_are_taken_when_no_module_is_given(self, tmp_path, verb):
        trainer, module, first = self.trained(tmp_path)
        with pytest.warns(
            PossibleUserWarning, match=rf"trainer\.{verb}\(\) got neither a model nor a ckpt_path: the best"
        ):
            getattr(trainer, verb)(dataloaders=batches(1))
        assert same_weights(module, first)

    def test_not_when_it_is_given(self, tmp_path):
        trainer, module, first = self.trained(tmp_path)
        trainer.test(module, batches(1), verbose=False)
        assert not same_weights(module, first)

    def test_by_name(self, tmp_path):
        trainer, module, first = self.trained(tmp_path)
        trainer.test(module, batches(1), ckpt_path="best", verbose=False)
        assert same_weights(module, first)

    def test_the_path_that_was_loaded_can_be_read(self, tmp_path):
        trainer, module, _ = self.trained(tmp_path)
        assert trainer.ckpt_path is None
        best = trainer.checkpoint_callback.best_model_path
        trainer.test(module, batches(1), ckpt_path="best", verbose=False)
        assert trainer.ckpt_path == best
        trainer.test(module, batches(1), verbose=False)
        assert trainer.ckpt_path is None
        trainer.ckpt_path = best
        assert trainer.ckpt_path == best
        for _ in range(2):
            trainer.test(module, batches(1), verbose=False)
            assert trainer.ckpt_path == best
        trainer.ckpt_path = None
        trainer.test(module, batches(1), verbose=False)
        assert trainer.ckpt_path is None

    def test_without_checkpoints_the_last_weights(self):
        trainer, module = quiet_trainer(), Steps()
        trainer.fit(module, batches(2), batches(1))
        before = copy.deepcopy(module)
        trainer.test(dataloaders=batches(1), verbose=False)
        assert same_weights(module, before)


class TestABareTensor:
    """Each verb takes one: its rows are the samples, and a batch is a list of one tensor."""

    def test_of_fit(self):
        def training_step(self, batch, batch_idx):
            seen.append(batch[0])
            return self.net(batch[0]).square().mean()

        seen, x = [], torch.randn(70, 6)
        quiet_trainer(max_epochs=2, limit_val_batches=0).fit(with_methods(Net, training_step), x)
        assert [len(batch) for batch in seen] == [32, 32, 6] * 2
        for epoch in (seen[:3], seen[3:]):
            assert sorted(map(tuple, torch.cat(epoch).tolist())) == sorted(map(tuple, x.tolist()))

    @pytest.mark.parametrize("verb", ["validate", "test"])
    def test_of_an_evaluation(self, verb):
        def step(self, batch, batch_idx):
            self.log("x", batch[0].mean())

        x = torch.randn(70, 6)
        module = with_methods(Net, validation_step=step, test_step=step)
        ((_, found),) = getattr(quiet_trainer(), verb)(module, x)[0].items()
        assert found == pytest.approx(x.mean().item(), rel=1e-5)  # the last batch has 6 rows


class TestPredict:
    def test_a_method_that_is_named_like_the_hooks_of_other_stages_is_not_called(self):
        module = with_methods(Steps, on_predict_model_train=raising(AssertionError))
        assert len(quiet_trainer().predict(module, batches(2))) == 2
        assert module.training

    def test_one_loader(self):
        module, data = Steps(), batches(3)
        outputs = quiet_trainer().predict(module, data)
        assert len(outputs) == 3
        module.eval()
        assert all(torch.equal(output, module.net(x)) for output, (x, _) in zip(outputs, data, strict=True))

    @pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
    def test_a_bare_tensor_or_array(self, kind):
        def predict_step(self, batch, batch_idx):
            (rows,) = batch
            return self.net(rows)

        module, x = with_methods(Net, predict_step).eval(), torch.randn(70, 6)
        outputs = quiet_trainer().predict(module, x if kind is torch.Tensor else x.numpy())
        assert [len(output) for output in outputs] == [32, 32, 6]
        expected = [module.net(rows).detach() for rows in x.split(32)]  # in their order
        assert all(torch.equal(output, rows) for output, rows in zip(outputs, expected, strict=True))

    def test_several_loaders(self):
        outputs = quiet_trainer().predict(Steps(), [loader(12), loader(4)])
        assert [len(one) for one in outputs] == [3, 1]
        assert outputs[1][0].shape == (4, 3)

    def test_a_list_of_one_loader_is_one_loader(self):
        assert len(quiet_trainer().predict(Steps(), [loader(12)])) == 3

    def test_may_return_anything_and_be_dropped(self):
        dicts = with_methods(Steps, predict_step=lambda self, batch: {"n": len(batch[0])})
        assert quiet_trainer().predict(dicts, batches(2)) == [{"n": 4}, {"n": 4}]
        assert quiet_trainer().predict(dicts, batches(2), return_predictions=False) is None

    def test_callbacks_see_every_output(self):
        seen = []
        callback = on(on_predict_batch_end=lambda t, m, output, batch, i: seen.append((i, output.shape)))
        quiet_trainer(callbacks=[callback]).predict(Steps(), batches(2), return_predictions=False)
        assert seen == [(0, (4, 3)), (1, (4, 3))]


def test_a_trainer_needs_no_argument():
    trainer = Trainer(**QUIET)
    assert trainer.max_epochs == 1000


# Regressions
@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestTheNextRun:
    def test_estimated_steps_are_those_of_the_fit_that_is_being_built(self):
        estimates = []

        net = calling(configure_optimizers=lambda self: estimates.append(self.trainer.estimated_stepping_batches))
        trainer = quiet_trainer()
        trainer.fit(net, loader(8))
        trainer.max_epochs = 3
        trainer.fit(net, loader(16))
        assert estimates == [2, 12]

    def test_means_of_an_epoch_that_a_second_fit_finishes(self):
        net = calling(
            training_step=lambda self, batch, batch_idx: self.log("i", float(batch_idx), on_step=False, on_epoch=True)
        )
        trainer = quiet_trainer(max_steps=3)
        trainer.fit(net, batches(10))
        trainer.max_steps = -1
        trainer.fit(net, batches(10))
        assert trainer.callback_metrics["i"] == 4.5

    def test_a_state_that_cannot_be_saved_does_not_keep_teardown_away(self, tmp_path):
        called = []

        def training_step(self, batch, batch_idx):
            os.kill(os.getpid(), signal.SIGINT)
            return Net.training_step(self, batch, batch_idx)

        def on_save_checkpoint(self, checkpoint):
            raise ValueError("no")

        def teardown(self, stage):
            called.append(stage)

        trainer = Trainer(**{**QUIET, "enable_checkpointing": True}, max_epochs=1, default_root_dir=tmp_path)
        with pytest.raises(SystemExit):
            trainer.fit(with_methods(Net, training_step, on_save_checkpoint, teardown), batches(2))
        assert called == ["fit"]

    def test_the_last_batch_is_let_go(self):
        references = []

        def training_step(self, batch, batch_idx):
            references.append(weakref.ref(batch[0]))
            self.log("x", 1.0, on_epoch=True)

        net, trainer = calling(Net, training_step), quiet_trainer()
        trainer.fit(net, loader(4))
        assert [reference() for reference in references] == [None]


def test_a_subclass_may_set_a_limit_before_the_arguments_are_taken():  # tensorneko
    class Own(Trainer):
        def __init__(self, log_every_n_steps: int) -> None:
            self.log_every_n_steps = log_every_n_steps
            super().__init__(**{**QUIET, "log_every_n_steps": 2 * log_every_n_steps})

    assert Own(3).log_every_n_steps == 6
