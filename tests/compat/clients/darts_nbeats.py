"""darts: N-BEATS on a sine with validation, saved and loaded again, then a forecast."""

import json
import logging
import warnings

import numpy as np
import torch
from darts import TimeSeries
from darts.models import NBEATSModel
from lightning.pytorch.callbacks import Callback


class Losses(Callback):
    def __init__(self):
        self.train, self.val = [], []

    def on_train_epoch_end(self, trainer, pl_module):
        self.train.append(trainer.callback_metrics["train_loss"].item())

    def on_validation_epoch_end(self, trainer, pl_module):
        self.val.append(trainer.callback_metrics["val_loss"].item())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    values = np.sin(np.arange(200) / 6) + np.random.default_rng(0).normal(0, 0.05, 200)
    series = TimeSeries.from_values(values.astype(np.float32))
    train, val = series[:160], series[160:]
    losses = Losses()
    model = NBEATSModel(
        input_chunk_length=24,
        output_chunk_length=6,
        num_stacks=2,
        num_blocks=1,
        num_layers=2,
        layer_widths=16,
        n_epochs=3,
        batch_size=16,
        random_state=42,
        save_checkpoints=True,
        force_reset=True,
        model_name="nbeats",
        pl_trainer_kwargs={"accelerator": "cpu", "callbacks": [losses], "enable_progress_bar": False},
    )
    model.fit(train, val_series=val, verbose=False)
    best = NBEATSModel.load_from_checkpoint("nbeats", best=True, trusted=True)
    forecast = best.predict(6, series=train, verbose=False)
    print(json.dumps({"loss": losses.train[-1], "validation": losses.val, "predicted": float(forecast.values().sum())}))
