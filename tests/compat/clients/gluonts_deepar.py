"""gluonts: DeepAR on three series, then sampled forecasts."""

import json
import logging
import warnings

import lightning.pytorch as pl
import numpy as np
from gluonts.dataset.common import ListDataset
from gluonts.torch import DeepAREstimator
from lightning.pytorch.callbacks import Callback


class Losses(Callback):
    def __init__(self):
        self.train = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.train.append(trainer.callback_metrics["train_loss"].item())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    pl.seed_everything(7)
    random = np.random.default_rng(1)
    series = [np.sin(np.arange(150) / 5 + k) + random.normal(0, 0.1, 150) + 2 for k in range(3)]
    data = ListDataset([{"start": "2020-01-01", "target": one} for one in series], freq="D")
    losses = Losses()
    estimator = DeepAREstimator(
        freq="D",
        prediction_length=7,
        context_length=14,
        num_layers=1,
        hidden_size=12,
        num_batches_per_epoch=10,
        batch_size=16,
        trainer_kwargs={
            "max_epochs": 3,
            "accelerator": "cpu",
            "callbacks": [losses],
            "enable_progress_bar": False,
            "enable_model_summary": False,
        },
    )
    predictor = estimator.train(data)
    forecast = next(iter(predictor.predict(data)))
    print(json.dumps({"loss": losses.train[-1], "losses": losses.train, "predicted": float(forecast.mean.sum())}))
