"""Plain models, models of other libraries, and dicts of losses, against plain loops."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightlib.callbacks import LambdaCallback, MetricPrinter, ModelCheckpoint
from lightlib.callbacks.callback import Callback
from lightlib.core.module.module import ModelModule, Module
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.evaluation import Metric, MetricCallback
from tests.runs.plain import Rows, batches, network, quiet_trainer, same_weights, with_methods

SGD = partial(torch.optim.SGD, lr=0.1)


class ToyModel(nn.Module):
    """MMEngine's model of two losses, as in its documentation of gradient accumulation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, img, label, mode):
        feat = self.linear(img)
        loss1 = (feat - label).pow(2)
        loss2 = (feat - label).abs()
        if mode == "predict":
            return feat
        return dict(loss1=loss1, loss2=loss2)  # noqa: C408  as printed there


class NumSamples(Metric):
    def process(self, batch, outputs):
        self.results += [1] * len(outputs["preds"])

    def compute_metrics(self, results):
        return {"samples": len(results)}


def by_hand(loss_of, net, data, epochs=1, accumulate=1):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(epochs):
        for at in range(0, len(data), accumulate):
            window = data[at : at + accumulate]
            optimizer.zero_grad()
            for batch in window:
                (loss_of(net, batch) / len(window)).backward()
            optimizer.step()
    return net


class TestALossFunction:
    def test_it_trains_as_a_plain_loop(self):
        module = Module.from_model(network(), nn.CrossEntropyLoss(), SGD)
        quiet_trainer(max_epochs=2).fit(module, batches(3))
        assert same_weights(
            module.model, by_hand(lambda net, b: F.cross_entropy(net(b[0]), b[1]), network(), batches(3), 2)
        )

    def test_it_logs_and_validates_tests_and_predicts(self):
        rows, module, (x, y) = Rows(), Module.from_model(network(), F.cross_entropy, SGD), batches(1, seed=3)[0]
        trainer = quiet_trainer(logger=rows, log_every_n_steps=1)
        trainer.fit(module, batches(2), [(x, y)])
        expected = F.cross_entropy(module.model(x), y).item()
        assert trainer.callback_metrics["val_loss"].item() == pytest.approx(expected)
        assert [step for step, values in rows.rows if "loss" in values] == [1, 2]
        assert trainer.test(module, [(x, y)], verbose=False)[0]["test_loss"] == pytest.approx(expected)
        for data in ([(x, y)], [x], x):
            assert torch.equal(torch.cat(trainer.predict(module, data)), module.model(x))

    def test_weights_of_samples_reach_the_loss(self):
        def loss(predictions, targets, weights):
            return (F.cross_entropy(predictions, targets, reduction="none") * weights).mean()

        data = [(x, y, torch.arange(4.0)) for x, y in batches(3)]
        module = Module.from_model(network(), loss, SGD)
        quiet_trainer().fit(module, data)
        assert same_weights(module.model, by_hand(lambda net, b: loss(net(b[0]), b[1], b[2]), network(), data))

    @pytest.mark.parametrize("inputs", [lambda x: {"a": x, "b": x}, lambda x: (x, x), lambda x: [x, x]])
    def test_inputs_of_several_parts_are_arguments(self, inputs):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = network()

            def forward(self, a, b):
                return self.net(a + b)

        module = Module.from_model(Two(), F.cross_entropy, SGD)
        quiet_trainer().fit(module, [(inputs(x), y) for x, y in batches(2)])
        expected = by_hand(lambda net, b: F.cross_entropy(net(b[0] + b[0]), b[1]), network(), batches(2))
        assert same_weights(module.model.net, expected)

    def test_a_schedule_steps_at_its_interval(self):
        optimizer = []

        class Sees(Callback):
            def on_train_end(self, trainer, module):
                optimizer.append(trainer.optimizers[0].param_groups[0]["lr"])

        for interval, rate in (("epoch", 0.1 * 0.5**2), ("step", 0.1 * 0.5**6)):
            schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
            module = Module.from_model(network(), F.cross_entropy, SGD, schedule, interval=interval)
            quiet_trainer(max_epochs=2, callbacks=Sees()).fit(module, batches(3))
            assert optimizer.pop() == pytest.approx(rate)

    def test_an_optimizer_that_was_made_is_taken(self):
        net = network()
        module = Module.from_model(net, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
        quiet_trainer().fit(module, batches(2))
        assert same_weights(net, by_hand(lambda net, b: F.cross_entropy(net(b[0]), b[1]), network(), batches(2)))

    def test_it_resumes(self, tmp_path):
        whole, first, second = (
            Module.from_model(network(), F.cross_entropy, partial(torch.optim.Adam, lr=0.1)) for _ in range(3)
        )
        quiet_trainer(max_epochs=2).fit(whole, batches(3))
        trainer = quiet_trainer(max_steps=2, max_epochs=-1)
        trainer.fit(first, batches(3))
        trainer.save_checkpoint(tmp_path / "two.ckpt")
        quiet_trainer(max_epochs=2).fit(second, batches(3), ckpt_path=tmp_path / "two.ckpt")
        assert same_weights(whole, second)


class TestAModelWithAMode:
    def test_mmengines_model_of_two_losses_with_accumulation(self):
        torch.manual_seed(3)
        model, plain = ToyModel(), ToyModel()
        plain.load_state_dict(model.state_dict())
        data = DataLoader([(torch.ones(1), torch.ones(1))] * 50, batch_size=2)
        module = Module.from_model(model, optimizer=SGD)
        rows = Rows()
        trainer = quiet_trainer(accumulate_grad_batches=4, logger=rows, log_every_n_steps=1)
        trainer.fit(module, data)

        def loss(net, batch):
            losses = net(*batch, mode="loss")
            return losses["loss1"].mean() + losses["loss2"].mean()

        assert same_weights(model, by_hand(loss, plain, list(data), accumulate=4))
        assert trainer.global_step == 7  # of 25 batches
        for step, values in rows.rows:
            assert values["loss"] == pytest.approx(values["loss1"] + values["loss2"]), step
        assert len(rows.rows) == 7

    def test_it_is_evaluated_in_the_mode_predict(self):
        seen = []

        class Sees(Callback):
            def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
                seen.append(outputs)

        model, batch = ToyModel(), (torch.ones(3, 1), torch.zeros(3, 1))
        module = Module.from_model(model, optimizer=SGD)
        trainer = quiet_trainer(callbacks=Sees())
        trainer.fit(module, [batch], [batch])
        assert torch.equal(seen[0], model.linear(batch[0]))
        assert torch.equal(trainer.predict(module, [batch])[0], model.linear(batch[0]))

    def test_a_dict_becomes_keyword_arguments(self):
        model = ToyModel()
        quiet_trainer().fit(
            Module.from_model(model, optimizer=SGD), [{"label": torch.zeros(2, 1), "img": torch.ones(2, 1)}]
        )

    def test_a_string_is_refused(self):
        with pytest.raises(ArgumentTypeError, match=r"A batch is 'text' \(str\)"):
            quiet_trainer().fit(Module.from_model(ToyModel(), optimizer=SGD), ["text"])


class Scores(nn.Module):
    """Returns its loss and its scores, as models of transformers do if they get labels, in the form that is given."""

    def __init__(self, form):
        super().__init__()
        self.net, self.form = network(), form

    def forward(self, input_ids, labels=None):
        scores = self.net(input_ids)
        return self.form(None if labels is None else F.cross_entropy(scores, labels), scores)


class ModelOutput(OrderedDict):
    """That of transformers: a dict with its entries as attributes."""

    def __getattr__(self, name):
        return self[name]


class Pair(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


@dataclass
class Holder:
    loss: torch.Tensor
    logits: torch.Tensor


FORMS = {
    "dict": lambda loss, scores: {"loss": loss, "logits": scores},
    "ModelOutput": lambda loss, scores: ModelOutput(loss=loss, logits=scores),
    "tuple": lambda loss, scores: (loss, scores),
    "the loss last": lambda loss, scores: (scores, loss),
    "named tuple": Pair,
    "object": Holder,
    "loss alone": lambda loss, scores: loss,
}


def labelled(n, seed=2):
    return [{"input_ids": x, "labels": y} for x, y in batches(n, seed=seed)]


class TestAModelThatReturnsItsLoss:
    @pytest.mark.parametrize("accumulate", [1, 2])
    @pytest.mark.parametrize("form", FORMS)
    def test_it_is_trained_and_evaluated(self, form, accumulate):
        module, data, (one, other) = Module.from_model(Scores(FORMS[form]), optimizer=SGD), labelled(4), labelled(2, 3)
        uneven = {name: value[:1] for name, value in other.items()}
        trainer = quiet_trainer(max_epochs=2, accumulate_grad_batches=accumulate)
        trainer.fit(module, data, [one, uneven])
        loss_of = lambda net, batch: F.cross_entropy(net(batch["input_ids"]), batch["labels"])  # noqa: E731
        plain = by_hand(loss_of, network(), data, 2, accumulate)
        assert same_weights(module.model.net, plain)
        expected = (4 * loss_of(plain, one).item() + loss_of(plain, uneven).item()) / 5
        assert trainer.callback_metrics["val_loss"].item() == pytest.approx(expected)
        assert trainer.validate(module, [one, uneven], verbose=False) == [{"val_loss": pytest.approx(expected)}]
        assert trainer.test(module, [one, uneven], verbose=False) == [{"test_loss": pytest.approx(expected)}]

    def test_a_checkpoint_is_chosen_by_its_loss(self, tmp_path):
        checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss")
        trainer = quiet_trainer(max_epochs=3, callbacks=checkpoint, enable_checkpointing=True)
        trainer.fit(Module.from_model(Scores(FORMS["ModelOutput"]), optimizer=SGD), labelled(3), labelled(1, 3))
        assert checkpoint.best_model_score == trainer.callback_metrics["val_loss"]

    def test_without_labels_there_is_no_loss_and_the_output_stays(self):
        seen = []

        class Sees(Callback):
            def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
                seen.append(outputs)

        (batch,) = labelled(1)
        for form in ("ModelOutput", "tuple", "object"):
            module = Module.from_model(Scores(FORMS[form]))
            trainer = quiet_trainer(callbacks=Sees())
            assert trainer.validate(module, [{"input_ids": batch["input_ids"]}], verbose=False) == [{}]
            assert type(seen[-1]) is type(FORMS[form](None, None))
            assert trainer.validate(module, [batch], verbose=False)[0]["val_loss"] > 0
            assert type(seen[-1]) is type(FORMS[form](None, None))

    def test_predictions_that_look_like_no_loss_are_not_logged(self):
        class Predicts(nn.Module):
            def forward(self, x):
                return x.sum(1)

        trainer = quiet_trainer()
        assert trainer.validate(Module.from_model(Predicts()), [torch.ones(3, 2)], verbose=False) == [{}]

    def test_two_scalars_are_no_loss(self):
        class Two(Scores):
            def forward(self, input_ids, labels):
                return F.cross_entropy(self.net(input_ids), labels), torch.tensor(1.0)

        module = Module.from_model(Two(None), optimizer=SGD)
        assert quiet_trainer().validate(module, labelled(1), verbose=False) == [{}]
        with pytest.raises(MisconfigurationException, match=r"training_step returned \(tensor.*\(tuple\)"):
            quiet_trainer().fit(module, labelled(1))

    @pytest.mark.parametrize("form", ["dict", "ModelOutput", "tuple", "the loss last", "named tuple", "object"])
    def test_metrics_of_all_stages(self, form):
        torchmetrics = pytest.importorskip("torchmetrics")
        accuracy = partial(torchmetrics.Accuracy, task="multiclass", num_classes=3)
        metric = MetricCallback(accuracy(), stages=("train", "val"))
        data, module = labelled(3), Module.from_model(Scores(FORMS[form]), optimizer=partial(torch.optim.SGD, lr=0.0))
        trainer = quiet_trainer(callbacks=metric)
        trainer.fit(module, data, data)
        right = [(network()(b["input_ids"]).argmax(1) == b["labels"]).float() for b in data]
        for name in metric.stages:
            assert trainer.callback_metrics[f"{name}_accuracy"].item() == pytest.approx(torch.cat(right).mean().item())

    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_callbacks_of_training_get_predictions_and_targets(self, accumulate):
        seen, plain = [], []

        class Sees(Callback):
            def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
                seen.append({**outputs, "kept": any(value.requires_grad for value in outputs.values())})

        module = Module.from_model(network(), F.cross_entropy, SGD)
        quiet_trainer(callbacks=Sees(), accumulate_grad_batches=accumulate).fit(module, batches(4))

        def loss(net, batch):
            scores = net(batch[0])
            plain.append((scores.detach(), F.cross_entropy(scores, batch[1])))
            return plain[-1][1]

        assert same_weights(module.model, by_hand(loss, network(), batches(4), accumulate=accumulate))
        for outputs, (scores, value), (_, y) in zip(seen, plain, batches(4), strict=True):
            assert set(outputs) == {"loss", "preds", "target", "kept"}
            assert torch.equal(outputs["preds"], scores)
            assert torch.equal(outputs["target"], y)
            assert torch.equal(outputs["loss"], value.detach())
            assert not outputs["kept"]

    def test_a_metric_of_training_data(self):
        torchmetrics = pytest.importorskip("torchmetrics")
        metric = MetricCallback(torchmetrics.Accuracy(task="multiclass", num_classes=3), stages=("train", "val"))
        module = Module.from_model(network(), F.cross_entropy, SGD)
        trainer = quiet_trainer(callbacks=metric)
        trainer.fit(module, batches(3), batches(2, seed=3))
        right = []

        def loss(net, batch):
            scores = net(batch[0])
            right.append((scores.argmax(1) == batch[1]).float())
            return F.cross_entropy(scores, batch[1])

        plain = by_hand(loss, network(), batches(3))
        assert trainer.callback_metrics["train_accuracy"].item() == pytest.approx(torch.cat(right).mean().item())
        after = [(plain(x).argmax(1) == y).float() for x, y in batches(2, seed=3)]
        assert trainer.callback_metrics["val_accuracy"].item() == pytest.approx(torch.cat(after).mean().item())

    @pytest.mark.parametrize(
        ("callback", "returned"),
        [
            (None, torch.Tensor),
            (MetricPrinter(), torch.Tensor),
            (MetricCallback(NumSamples(), stages="val"), torch.Tensor),
            (MetricCallback(NumSamples(), stages="train"), dict),
            (LambdaCallback(on_train_batch_end=lambda *args: None), dict),
            (LambdaCallback(on_train_batch_start=lambda *args: None), torch.Tensor),
        ],
    )
    def test_nothing_is_kept_that_no_callback_reads(self, callback, returned):
        kinds, step = [], ModelModule.training_step

        class Notes(ModelModule):
            def training_step(self, batch, batch_idx):
                kinds.append(type(output := step(self, batch, batch_idx)))
                return output

        module = Module.from_model(network(), F.cross_entropy, SGD)
        module.__class__ = Notes
        quiet_trainer(callbacks=callback).fit(module, batches(1))
        assert kinds == [returned]


class TestADictOfLosses:
    def returns(self, output):
        return with_methods(training_step=lambda self, batch, batch_idx: output(self, self.loss(batch)))

    def test_the_entries_with_loss_in_their_names_are_summed(self):
        def output(module, loss):
            return {"cls_loss": loss, "losses": [loss * 2, torch.stack([loss, loss])], "acc": loss * 100, "logits": 3}

        module, seen = self.returns(output), []
        note = LambdaCallback(on_train_batch_end=lambda trainer, module, outputs, *_: seen.append(outputs))
        trainer = quiet_trainer(max_epochs=2, callbacks=[note])
        trainer.fit(module, batches(3))
        expected = by_hand(
            lambda net, b: (c := F.cross_entropy(net(b[0]), b[1])) + (c * 2 + torch.stack([c, c]).mean()),
            network(), batches(3), 2,
        )  # fmt: skip
        assert same_weights(module.net, expected)
        last = seen[-1]
        assert float(last["loss"]) == pytest.approx(4 * float(last["cls_loss"]))
        assert float(last["acc"]) == pytest.approx(100 * float(last["cls_loss"]))
        assert last["logits"] == 3
        assert not last["loss"].requires_grad
        names = {"loss", "cls_loss", "losses"}
        assert names <= trainer.callback_metrics.keys()
        assert "acc" not in trainer.callback_metrics
        assert trainer.callback_metrics["losses"] == pytest.approx(3 * trainer.callback_metrics["cls_loss"].item())

    def test_what_the_step_logs_itself_is_not_logged_twice(self):
        def output(module, loss):
            module.log("loss_a", 7.0, on_step=False, on_epoch=True)
            return {"loss_a": loss, "loss_b": loss}

        trainer = quiet_trainer()
        trainer.fit(self.returns(output), batches(3))
        assert trainer.callback_metrics["loss_a"] == 7
        assert trainer.callback_metrics["loss_b"] != 7

    def test_a_dict_with_loss_stays_as_it_was(self):
        module = self.returns(lambda module, loss: {"loss": loss, "other_loss": loss * 100})
        trainer = quiet_trainer()
        trainer.fit(module, batches(3))
        assert same_weights(module.net, by_hand(lambda net, b: F.cross_entropy(net(b[0]), b[1]), network(), batches(3)))
        assert not trainer.callback_metrics

    @pytest.mark.parametrize(
        ("output", "message"),
        [
            (lambda m, loss: {"a_loss": 3.0}, r"whose 'a_loss' is 3\.0 \(float\)"),
            (lambda m, loss: {"a_loss": [loss, 2]}, r"whose 'a_loss' is \["),
            (lambda m, loss: {"a_loss": []}, r"whose 'a_loss' is \[\]"),
            (lambda m, loss: {"accuracy": loss}, r"a dict with the keys \['accuracy'\]"),
            (lambda m, loss: {"a_loss": loss.detach()}, "a loss without a gradient"),
        ],
    )
    def test_what_cannot_be_summed_is_an_error(self, output, message):
        with pytest.raises(MisconfigurationException, match=message):
            quiet_trainer().fit(self.returns(output), batches(1))

    def test_a_model_that_returns_its_losses_is_taken(self):
        class Detector(nn.Module):
            """Returns losses in training and predictions otherwise, as torchvision's detectors do."""

            def __init__(self):
                super().__init__()
                self.net = network()

            def forward(self, images, targets=None):
                scores = self.net(images)
                return {"loss_class": F.cross_entropy(scores, targets)} if self.training else scores

        module = Module.from_model(Detector(), optimizer=SGD)
        trainer = quiet_trainer()
        trainer.fit(module, batches(3), batches(1))
        expected = by_hand(lambda net, b: F.cross_entropy(net(b[0]), b[1]), network(), batches(3))
        assert same_weights(module.model.net, expected)

    def test_a_batch_that_forward_takes_as_one_argument_stays_one(self):
        class OfDicts(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = network()

            def forward(self, items):
                return {"loss_all": sum(F.cross_entropy(self.net(i["x"]), i["y"]) for i in items)}

        data = [[{"x": x, "y": y} for x, y in batches(2)]] * 2
        module = Module.from_model(OfDicts(), optimizer=SGD)
        quiet_trainer().fit(module, data)
        loss = lambda net, items: sum(F.cross_entropy(net(i["x"]), i["y"]) for i in items)  # noqa: E731
        assert same_weights(module.model.net, by_hand(loss, network(), data))


class TestAFunctionAsStep:
    def test_it_trains(self):
        def step(module, batch):
            loss = F.cross_entropy(module.model(batch["x"]), batch["y"])
            module.log("mine", loss)
            return loss

        data = [{"x": x, "y": y} for x, y in batches(3)]
        module = Module.from_model(network(), optimizer=SGD, step=step)
        trainer = quiet_trainer()
        trainer.fit(module, data)
        expected = by_hand(lambda net, b: F.cross_entropy(net(b["x"]), b["y"]), network(), data)
        assert same_weights(module.model, expected)
        assert "mine" in trainer.callback_metrics


class Normalise(nn.Module):
    """Centres the inputs; adds one to them in training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))
        self.seen = []

    def forward(self, batch):
        self.seen.append((self.training, batch[0].dtype))
        return batch[0] - self.mean + self.training, batch[1]


class TestAPreprocessor:
    def test_it_is_called_in_the_mode_of_the_model(self):
        module = Module.from_model(network(), F.cross_entropy, SGD, preprocessor=Normalise())
        trainer = quiet_trainer(max_epochs=2)
        (x, y) = batches(1, seed=3)[0]
        trainer.fit(module, batches(2), [(x, y)])
        plain = by_hand(lambda net, b: F.cross_entropy(net(b[0] - 0.5 + 1), b[1]), network(), batches(2), 2)
        assert same_weights(module.model, plain)
        assert [training for training, _ in module.preprocessor.seen] == [True, True, False] * 2
        expected = F.cross_entropy(module.model(x - 0.5), y).item()
        assert trainer.callback_metrics["val_loss"].item() == pytest.approx(expected)

    def test_it_moves_with_the_model_and_is_saved(self):
        module = Module.from_model(network(), F.cross_entropy, SGD, preprocessor=Normalise())
        assert module.to(torch.float64).preprocessor.mean.dtype is torch.float64
        assert module.to("meta").preprocessor.mean.is_meta
        assert "preprocessor.mean" in module.state_dict()

    @pytest.mark.parametrize(
        ("given", "kind", "message"),
        [
            (3, ArgumentTypeError, r"`preprocessor` of Module.from_model is 3 \(int\)"),
            (Normalise, ArgumentTypeError, r"(?s)the class Normalise.*Normalise\(\)"),
            (nn.Linear(1, 1), MisconfigurationException, "has the trained parameters 'weight', 'bias'"),
        ],
    )
    def test_another_kind_is_refused(self, given, kind, message):
        with pytest.raises(kind, match=message):
            Module.from_model(network(), F.cross_entropy, SGD, preprocessor=given)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"model": 3}, ArgumentTypeError, r"`model` of Module.from_model is 3 \(int\)"),
        ({"model": ToyModel}, ArgumentTypeError, r"the class ToyModel.\n.*\n.*pass an instance: ToyModel\(…\)"),
        ({"loss": nn.MSELoss}, ArgumentTypeError, r"`loss` .* the class MSELoss.\n.*\n.*MSELoss\(\)"),
        ({"loss": "mse"}, ArgumentTypeError, r"`loss` of Module.from_model is 'mse'"),
        ({"optimizer": 0.1}, ArgumentTypeError, r"`optimizer` of Module.from_model is 0.1"),
        ({"scheduler": 1}, ArgumentTypeError, "`scheduler` of Module.from_model is 1"),
        ({"step": 1}, ArgumentTypeError, "`step` of Module.from_model is 1"),
        ({"interval": "batch"}, MisconfigurationException, "`interval` of Module.from_model is 'batch'"),
        ({"loss": F.mse_loss, "step": print}, MisconfigurationException, "both `loss` and `step`"),
    ],
)
def test_wrong_arguments_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        Module.from_model(**{"model": network(), **arguments})


def test_training_without_an_optimizer_is_refused():
    with pytest.raises(MisconfigurationException, match=r"(?s)got no optimizer.*Fix: Module.from_model\(model"):
        quiet_trainer().fit(Module.from_model(network(), F.cross_entropy), batches(1))


def test_a_batch_that_does_not_fit_the_loss_is_refused():
    with pytest.raises(MisconfigurationException, match=r"(?s)a batch is a dict of 1.*step=function"):
        quiet_trainer().fit(Module.from_model(network(), F.cross_entropy, SGD), [{"x": torch.ones(2, 6)}])
