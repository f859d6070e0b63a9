"""Bad input: load_from_checkpoint and save_hyperparameters."""

from __future__ import annotations

import re

import pytest
import torch

from lightlib.core.module.datamodule import DataModule
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException
from tests.runs.bad_input import Net, loader, refused, trainer

BROKEN = CheckpointError


def test_weights_of_another_shape_are_a_runtime_error_as_in_torch():
    run = trainer()
    run.fit(Net(), loader())
    run.save_checkpoint("net.ckpt")

    class Other(Net):
        def __init__(self):
            super().__init__()
            self.more = torch.nn.Linear(1, 1)

    with pytest.raises(RuntimeError, match="Other") as raised:
        Other.load_from_checkpoint("net.ckpt")
    assert isinstance(raised.value, CheckpointError)


class Wide(Net):
    """Has arguments, and does not save them."""

    def __init__(self, width, *, depth=1):
        super().__init__()


class TestBuilding:
    """load_from_checkpoint and the arguments of `__init__`."""

    @pytest.fixture(autouse=True)
    def _wide(self):
        run = trainer()
        run.fit(Wide(3), loader())
        run.save_checkpoint("wide.ckpt")

    @pytest.mark.parametrize("kind", [Net, DataModule])
    def test_on_an_instance(self, kind):
        with refused(
            ArgumentTypeError,
            f"{kind.__name__}.load_from_checkpoint was called on an instance.",
            "a call on the class; it builds and returns a new object.",
            f"module = {kind.__name__}.load_from_checkpoint(path)",
        ):
            kind().load_from_checkpoint("wide.ckpt")

    def test_arguments_that_were_not_saved(self):
        with refused(
            BROKEN,
            "Wide cannot be built from the checkpoint: missing a required argument: 'width'. It holds no ***.",
            "the arguments of Wide(width, *, depth=1).",
            "Wide.load_from_checkpoint(path, width=…), or call self.save_hyperparameters() in __init__ ***.",
        ):
            Wide.load_from_checkpoint("wide.ckpt")
        assert isinstance(Wide.load_from_checkpoint("wide.ckpt", width=3), Wide)

    def test_an_argument_that_is_not_known(self):
        with refused(
            BROKEN,
            "Wide has no argument 'widht'. Did you mean 'width'?",
            "the arguments of Wide(width, *, depth=1).",
            "Wide.load_from_checkpoint(path) with arguments of Wide only.",
        ):
            Wide.load_from_checkpoint("wide.ckpt", width=3, widht=4)

    def test_no_path(self):
        with refused(
            ArgumentTypeError,
            "The path of a checkpoint is 3 (int).",
            "a path, a URL, or an open file.",
            "load_from_checkpoint('model.ckpt')",
        ):
            Wide.load_from_checkpoint(3)

    @pytest.mark.parametrize(
        ("text", "what", "fix"),
        [
            (
                None, "hparams_file='other.yaml' cannot be read: [Errno 2] No such file or directory: 'other.yaml'",
                "load_from_checkpoint(path, hparams_file='hparams.yaml'), or leave it out.",
            ),
            (
                "[1, 2", "hparams_file='other.yaml' cannot be read: ***",
                "load_from_checkpoint(path, hparams_file='hparams.yaml'), or leave it out.",
            ),
            (
                "[1, 2]", "hparams_file='other.yaml' holds [1, 2] (list).",
                "write one line per argument, for instance `lr: 0.1`.",
            ),
        ],
    )  # fmt: skip
    def test_a_file_of_hyperparameters(self, tmp_path, text, what, fix):
        if text is not None:
            (tmp_path / "other.yaml").write_text(text)
        with refused(BROKEN, what, "a YAML file of names and values.", fix):
            Wide.load_from_checkpoint("wide.ckpt", hparams_file="other.yaml")

    @pytest.mark.parametrize(
        ("names", "kind", "what", "expected", "fix"),
        [
            (
                ("widht",), MisconfigurationException,
                "save_hyperparameters got 'widht', which is no argument of Given.__init__.", "one of 'width'.",
                "correct the name, or call save_hyperparameters() without names to keep all.",
            ),
            (
                (3,), ArgumentTypeError, "save_hyperparameters got int.",
                "names of arguments, or one dictionary, argparse.Namespace or dataclass.",
                "save_hyperparameters() keeps all arguments of __init__.",
            ),
        ],
    )  # fmt: skip
    def test_what_is_saved(self, names, kind, what, expected, fix):
        class Given(Net):
            def __init__(self, width):
                super().__init__()
                self.save_hyperparameters(*names)

        with refused(kind, what, expected, fix):
            Given(3)

    def test_a_module_among_them(self):
        class Given(Net):
            def __init__(self, net):
                super().__init__()
                self.save_hyperparameters()

        text = (
            "The hyperparameter 'net' is a torch.nn.Module: its weights are in the checkpoint already and it cannot be "
            "stored as a plain value. Leave it out: save_hyperparameters(ignore='net')."
        )
        with pytest.warns(UserWarning, match=re.escape(text)):
            Given(torch.nn.Linear(1, 1))
