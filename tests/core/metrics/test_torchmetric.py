"""torchmetrics in `self.log`: computed once per epoch, reset, equal to results computed by hand."""

from __future__ import annotations

import torch
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from tests.runs.logs import Base, Several, logged, run
from tests.runs.plain import calling, quiet_trainer, with_methods


class TestTorchmetrics:
    def test_by_hand(self):
        generator = torch.Generator().manual_seed(3)
        data = [
            (torch.randn(n, 3, generator=generator), torch.randint(0, 3, (n,), generator=generator)) for n in (5, 2)
        ]
        seen = {"computed": 0, "reset": 0, "epochs": []}

        class Counted(MulticlassAccuracy):
            def compute(self):
                seen["computed"] += 1
                return super().compute()

            def reset(self):
                seen["reset"] += 1
                super().reset()

        def training_step(self, batch, batch_idx):
            self.accuracy.update(*batch)
            self.log("v", self.accuracy, on_step=False, on_epoch=True)

        def on_train_epoch_end(self):
            seen["epochs"].append(self.trainer.callback_metrics["v"].item())

        module = calling(with_methods(Base, train_dataloader=lambda self: data), training_step, on_train_epoch_end)
        module.accuracy = Counted(3, average="micro")
        rows, _ = run(module, max_epochs=2, limit_val_batches=0)
        logits, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
        by_hand = (logits.argmax(1) == labels).float().mean().item()
        assert logged(rows) == [(2, "v", by_hand), (4, "v", by_hand)]
        assert seen["epochs"] == [by_hand] * 2
        assert seen["computed"] == 2
        assert seen["reset"] == 2

    def test_the_value_of_a_step_is_that_of_its_batch(self):
        def training_step(self, batch, batch_idx):
            self.mean(batch)
            self.log("v", self.mean, on_step=True, on_epoch=True)

        module = calling(Base, training_step)
        module.mean = MeanMetric()
        rows, _ = run(module, limit_val_batches=0)
        assert logged(rows) == [(1, "v_step", 1), (2, "v_step", 3), (2, "v_epoch", 2)]

    def test_a_collection(self):
        def validation_step(self, batch, batch_idx):
            self.metrics(torch.eye(3), torch.tensor([0, 1, batch_idx]))
            self.log_dict(self.metrics)

        module = with_methods(Base, validation_step)
        module.metrics = MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)], prefix="v_")
        _, trainer = run(module, max_epochs=2)
        expected = MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)], prefix="v_")
        for i in range(2):
            expected.update(torch.eye(3), torch.tensor([0, 1, i]))
        assert trainer.callback_metrics == expected.compute()

    def test_one_metric_per_loader(self):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.means[dataloader_idx].update(batch)
            self.log("v", self.means[dataloader_idx])

        module = with_methods(Several, validation_step)
        module.means = torch.nn.ModuleList([MeanMetric(), MeanMetric()])
        assert quiet_trainer().validate(module, verbose=False) == [
            {"v/a": 3, "all": 1},
            {"v/b": 10, "all": 1},
        ]

    def test_a_metric_without_a_value_is_left_out(self):
        class Empty(MeanMetric):
            def compute(self):
                return None if self.update_count < 2 else super().compute()

        def training_step(self, batch, batch_idx):
            self.mean.update(batch_idx)
            self.log("v", self.mean, on_step=False, on_epoch=True)
            if batch_idx == 0:
                self.other.update(1.0)
                self.log("other", self.other, on_step=True, on_epoch=True)

        module = calling(Base, training_step)
        module.mean, module.other = Empty(), Empty()
        rows, trainer = run(module, limit_val_batches=0)
        assert logged(rows) == [(2, "v", 0.5)]
        assert not {"other", "other_step", "other_epoch"} & trainer.callback_metrics.keys()
