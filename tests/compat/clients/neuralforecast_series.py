"""neuralforecast: NHITS and an LSTM, cross-validation, and a forecast of the saved models."""

import csv
import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from lightning.pytorch.loggers import CSVLogger
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE, DistributionLoss
from neuralforecast.models import LSTM, NHITS


def series():
    days, random = pd.date_range("2024-01-01", periods=120, freq="D"), np.random.default_rng(6)
    frames = []
    for number, name in enumerate(("first", "second")):
        values = 5 + np.sin(np.arange(120) / 3.5 + number) * (number + 1) + random.normal(0, 0.1, 120)
        frames.append(pd.DataFrame({"unique_id": name, "ds": days, "y": values}))
    return pd.concat(frames)


def options(name, steps):
    return {
        "h": 7,
        "input_size": 21,
        "max_steps": steps,
        "val_check_steps": 5,
        "early_stop_patience_steps": 3,
        "batch_size": 2,
        "windows_batch_size": 16,
        "learning_rate": 5e-3,
        "scaler_type": "standard",
        "random_seed": 11,
        "accelerator": "cpu",
        "devices": 1,
        "log_every_n_steps": 5,
        "logger": CSVLogger("logs", name=name, version=""),
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def charts(name):
    with Path("logs", name, "metrics.csv").open() as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    hits = NHITS(**options("hits", 40), loss=MAE(), mlp_units=[[16, 16]] * 3, dropout_prob_theta=0.1)
    distribution = DistributionLoss("Normal", level=[80], num_samples=50)
    recurrent = LSTM(**options("recurrent", 20), loss=distribution, encoder_hidden_size=8, decoder_hidden_size=8)
    forecaster = NeuralForecast([hits, recurrent], freq="D")
    forecaster.fit(series(), val_size=14)
    trained = {name: charts(name) for name in ("hits", "recurrent")}
    forecaster.save("models", overwrite=True, save_dataset=False)
    again = NeuralForecast.load("models")
    forecast = again.predict(series()).drop(columns=["unique_id", "ds"])
    crossed = forecaster.cross_validation(series(), n_windows=2, step_size=7, val_size=14)
    losses = [row["train_loss_step"] for row in trained["hits"] if "train_loss_step" in row]
    print(
        json.dumps(
            {
                "loss": losses[-1],
                "charts": trained,
                "forecast": {name: forecast[name].astype(float).tolist() for name in forecast},
                "crossed": {name: crossed[name].astype(float).tolist() for name in ("y", "NHITS", "LSTM")},
            }
        )
    )
