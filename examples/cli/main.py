"""The same program with its own script, for facts that the command `lightlib` cannot know.

Run it:

    python main.py fit --config config.yaml
    python main.py fit --config config.yaml --data.classes 5
    python main.py fit --help
"""

from __future__ import annotations

from data import Digits
from model import Classifier

from lightlib.cli import LightningArgumentParser, LightningCLI


class CLI(LightningCLI):
    """Sets the model's number of classes to that of the data, and prints the test accuracy."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.init_args.classes", "model.init_args.classes")

    def after_fit(self) -> None:
        """Test the best checkpoint."""
        if not self.trainer.fast_dev_run:
            metrics = self.trainer.test(ckpt_path="best", datamodule=self.datamodule)[0]
            print(f"test accuracy {metrics['test_accuracy']:.4f}")


if __name__ == "__main__":
    CLI(Classifier, Digits, subclass_mode_model=True, subclass_mode_data=True)
