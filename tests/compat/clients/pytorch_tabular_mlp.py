"""pytorch-tabular: an embedding network on the iris data, evaluated, saved and loaded."""

import json
import logging
import warnings

from pytorch_tabular import TabularModel
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from pytorch_tabular.models import CategoryEmbeddingModelConfig
from sklearn.datasets import load_iris

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    frame = load_iris(as_frame=True).frame.sample(frac=1, random_state=0)
    columns = [f"x{index}" for index in range(4)]
    frame.columns = [*columns, "target"]
    frame["size"] = (frame["x0"] > 5.8).map({True: "large", False: "small"})
    model = TabularModel(
        data_config=DataConfig(target=["target"], continuous_cols=columns, categorical_cols=["size"]),
        model_config=CategoryEmbeddingModelConfig(task="classification", layers="16-8", learning_rate=1e-2),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(
            max_epochs=4,
            batch_size=16,
            accelerator="cpu",
            progress_bar="none",
            seed=9,
            trainer_kwargs={"enable_model_summary": False},
            load_best=True,
        ),
        verbose=False,
    )
    model.fit(train=frame[:110], validation=frame[110:130])
    metrics = {name: float(value) for name, value in model.trainer.callback_metrics.items()}
    tested = model.evaluate(frame[130:], verbose=False)
    model.save_model("saved")
    again = TabularModel.load_model("saved").predict(frame[130:])
    print(
        json.dumps(
            {
                "loss": metrics["train_loss"],
                "validation": metrics["valid_loss"],
                "tested": tested,
                "predicted": float(again.iloc[:, 0].sum()),
            }
        )
    )
