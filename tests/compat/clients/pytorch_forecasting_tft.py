"""pytorch-forecasting: a TemporalFusionTransformer on four series, then predictions."""

import json
import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from lightning.pytorch.callbacks import EarlyStopping
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.metrics import QuantileLoss

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    pl.seed_everything(42)
    time = np.tile(np.arange(120), 4)
    group = np.repeat(list("abcd"), 120)
    noise = np.random.default_rng(0).normal(0, 0.1, len(time))
    value = np.sin(time / 8 + np.repeat(np.arange(4), 120)) + noise + 3
    frame = pd.DataFrame({"time_idx": time, "group": group, "value": value})
    training = TimeSeriesDataSet(
        frame[frame.time_idx < 100],
        time_idx="time_idx",
        target="value",
        group_ids=["group"],
        max_encoder_length=24,
        max_prediction_length=6,
        static_categoricals=["group"],
        time_varying_known_reals=["time_idx"],
        time_varying_unknown_reals=["value"],
    )
    validation = TimeSeriesDataSet.from_dataset(training, frame, predict=True, stop_randomization=True)
    train_loader = training.to_dataloader(train=True, batch_size=32, num_workers=0)
    val_loader = validation.to_dataloader(train=False, batch_size=32, num_workers=0)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        gradient_clip_val=0.1,
        limit_train_batches=8,
        callbacks=[EarlyStopping("val_loss", patience=5)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = TemporalFusionTransformer.from_dataset(
        training,
        learning_rate=0.03,
        hidden_size=8,
        attention_head_size=2,
        dropout=0.1,
        hidden_continuous_size=4,
        loss=QuantileLoss(),
        log_interval=-1,
    )
    trainer.fit(model, train_loader, val_loader)
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    guess = model.predict(val_loader, trainer_kwargs=quiet)
    metrics = trainer.callback_metrics
    print(
        json.dumps(
            {
                "loss": metrics["train_loss_epoch"].item(),
                "validation": metrics["val_loss"].item(),
                "predicted": guess.sum().item(),
            }
        )
    )
