"""Search a learning rate and a width: trials that fall behind stop early, and a kill loses nothing.

Run it, for a minute; after Ctrl-C the same command continues:

    python examples/search.py
    python examples/search.py --max_trials 30 --slots 4

Each trial trains in a process of its own and reports its accuracy after each epoch. `lightlib experiment report search`
writes a page of all trials.
"""

from __future__ import annotations

import argparse

from digits import Classifier, Digits

import lightlib as L
from lightlib import experiment

MAX_EPOCHS = 8


class Report(L.Callback):
    """Reports each validation to the search, and stops training if the trial is not worth more."""

    def __init__(self, trial: experiment.CurrentTrial) -> None:
        self.trial = trial

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        if not trainer.sanity_checking:
            accuracy = trainer.callback_metrics["val_accuracy"].item()
            self.trial.report(trainer.current_epoch + 1, val_accuracy=accuracy)
            trainer.should_stop = self.trial.should_stop


def train(trial: experiment.CurrentTrial) -> None:
    """Train with the hyperparameters of a trial."""
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=MAX_EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=Report(trial),
    )
    trainer.fit(Classifier(trial.hparams["width"], trial.hparams["lr"]), Digits())


def main() -> None:
    """Search, and print the best trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_trials", type=int, default=12)
    parser.add_argument("--slots", default="auto", help="how many trials run at once")
    args = parser.parse_args()

    found = experiment.search(
        train,
        {"lr": experiment.Log(-5, -1), "width": experiment.Int(2, 32)},
        metric="val_accuracy",
        smaller_is_better=False,
        searcher="adaptive_asha",
        max_trials=args.max_trials,
        max_length={"epochs": MAX_EPOCHS},
        seed=0,
        name="search",
        slots=args.slots,
    )
    best = found.best
    print(f"best of {len(found.trials)} trials: number {best.number}, accuracy {best.metric:.4f}")
    print(f"  learning rate {best.hparams['lr']:.2g}, width {best.hparams['width']}")


if __name__ == "__main__":
    main()
