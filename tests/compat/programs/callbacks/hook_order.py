"""The order of all hooks of a module, its data and a callback, in each of the four runs."""

import inspect
import json

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

called = []


def noting(cls, owner, hooks):
    """Let each of the hooks note its name, then run."""
    for name in hooks:
        inner = getattr(cls, name)

        def noted(self, *args, _inner=inner, _name=name, **kwargs):
            called.append(f"{owner}.{_name}")
            return _inner(self, *args, **kwargs)

        noted.__signature__ = inspect.signature(inner)
        setattr(cls, name, noted)
    return cls


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def step(self, batch):
        return self.layer(batch[0]).square().mean()

    def training_step(self, batch, batch_idx):
        return self.step(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch))

    def test_step(self, batch, batch_idx):
        return self.step(batch)

    def predict_step(self, batch, batch_idx):
        return self.layer(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Data(LightningDataModule):
    def loader(self):
        return DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


class Noting(Callback):
    pass


SHARED = """setup teardown on_fit_start on_fit_end on_sanity_check_start on_sanity_check_end on_train_start on_train_end
on_train_epoch_start on_train_epoch_end on_train_batch_start on_train_batch_end on_validation_start on_validation_end
on_validation_epoch_start on_validation_epoch_end on_validation_batch_start on_validation_batch_end on_test_start
on_test_end on_test_epoch_start on_test_epoch_end on_test_batch_start on_test_batch_end on_predict_start on_predict_end
on_predict_epoch_start on_predict_epoch_end on_predict_batch_start on_predict_batch_end on_before_backward
on_after_backward on_before_optimizer_step on_before_zero_grad on_save_checkpoint""".split()
OF_MODULE = """configure_model configure_optimizers configure_callbacks prepare_data forward training_step
validation_step test_step predict_step backward optimizer_step optimizer_zero_grad lr_scheduler_step
configure_gradient_clipping on_validation_model_eval on_validation_model_train on_validation_model_zero_grad
on_test_model_eval on_predict_model_eval transfer_batch_to_device on_before_batch_transfer
on_after_batch_transfer""".split()
OF_DATA = """prepare_data setup teardown train_dataloader val_dataloader test_dataloader predict_dataloader
transfer_batch_to_device on_before_batch_transfer on_after_batch_transfer on_exception""".split()

if __name__ == "__main__":
    module_hooks = [name for name in SHARED if "sanity" not in name] + OF_MODULE
    noting(Model, "module", module_hooks)
    noting(Data, "data", OF_DATA)
    noting(Noting, "callback", [*SHARED, "on_load_checkpoint", "on_exception"])
    seed_everything(1)
    model, data = Model(), Data()
    trainer = Trainer(
        max_epochs=2,
        gradient_clip_val=1.0,
        num_sanity_val_steps=1,
        limit_train_batches=2,
        limit_val_batches=1,
        accelerator="cpu",
        callbacks=[Noting()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    order = {}
    for verb in ("fit", "validate", "test", "predict"):
        called.clear()
        more = {"verbose": False} if verb in ("validate", "test") else {}
        getattr(trainer, verb)(model, datamodule=data, **more)
        order[verb] = list(called)
    print(json.dumps(order))
