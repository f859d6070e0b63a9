"""neuralprophet: trend, seasons and lags of a daily series, then a forecast."""

import json
import logging
import warnings

import numpy as np
import pandas as pd
from neuralprophet import NeuralProphet, set_log_level, set_random_seed

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    set_log_level("ERROR")
    set_random_seed(4)
    day = np.arange(300)
    value = 10 + 0.01 * day + np.sin(day * 2 * np.pi / 7) + np.random.default_rng(3).normal(0, 0.1, 300)
    frame = pd.DataFrame({"ds": pd.date_range("2022-01-01", periods=300), "y": value})
    model = NeuralProphet(n_lags=7, n_forecasts=2, epochs=4, batch_size=32, learning_rate=0.05, accelerator="cpu")
    history = model.fit(frame[:260], freq="D", validation_df=frame[260:], progress=None, minimal=False)
    future = model.make_future_dataframe(frame, periods=2)
    forecast = model.predict(future)
    last = history.iloc[-1]
    print(
        json.dumps(
            {
                "loss": float(last["Loss"]),
                "validation": float(last["Loss_val"]),
                "losses": history["Loss"].astype(float).tolist(),
                "predicted": float(forecast["yhat1"].astype(float).sum()),
            }
        )
    )
