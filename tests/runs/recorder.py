"""Records the hooks that a run calls, in order: one line per hook, with the objects that have it."""

from __future__ import annotations

from itertools import groupby

from torch.utils.data import DataLoader, TensorDataset

from lightlib.callbacks.callback import Callback
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.run.hooks import HOOKS
from tests.runs.plain import Net, samples

TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
STEPS = ("training_step", "validation_step", "test_step", "predict_step")
MODES = tuple(
    f"on_{name}" for name in (
        "validation_model_eval", "validation_model_train", "validation_model_zero_grad", "test_model_eval",
        "test_model_train", "predict_model_eval",
    )
)  # fmt: skip
CALLBACK = (*HOOKS, "state_dict", "load_state_dict")
LOADERS = tuple(f"{stage}_dataloader" for stage in ("train", "val", "test", "predict"))
DATAMODULE = (
    "prepare_data", "setup", *LOADERS, *TRANSFER, "state_dict", "load_state_dict", "on_exception", "teardown",
)  # fmt: skip
MODULE = (
    *HOOKS, *STEPS, *MODES, "configure_callbacks", "configure_model", "configure_optimizers", "prepare_data",
    "backward", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step",
)  # fmt: skip


class Recorder:
    """Makes objects that record the calls of their hooks.

    Args:
        ignored: Hooks that are not recorded.
    """

    def __init__(self, ignored=()):
        self.calls = []
        self.ignored = set(ignored)

    def subclass(self, base, letter, names):
        """A subclass of `base` in which each of `names` is written down under `letter`."""

        def recorded(name):
            def hook(self_, *args, **kwargs):
                stage = f"({args[-1]})" if name in ("setup", "teardown") else ""
                self.calls.append((name + stage, letter))
                return getattr(super(kind, self_), name)(*args, **kwargs)

            return hook

        def has(name):
            own = getattr(base, name, None)
            return own is not None and (name not in STEPS or own is not getattr(Module, name))

        methods = {name: recorded(name) for name in names if name not in self.ignored and has(name)}
        kind = type(f"{letter}{base.__name__}", (base,), methods)
        return kind

    def module(self, base, *arguments, **more):
        return self.subclass(base, "M", MODULE)(*arguments, **more)

    def datamodule(self, batches=1):
        return self.subclass(Data, "D", DATAMODULE)(batches)

    def callbacks(self, base=Callback):
        return [self.subclass(base, letter, CALLBACK)() for letter in "AB"]

    def lines(self):
        """The calls so far: ``"A B M on_train_start"`` when three were called one after the other."""
        groups = ((name, list(calls)) for name, calls in groupby(self.calls, key=lambda call: call[0]))
        return [f"{' '.join(letter for _, letter in calls)} {name}" for name, calls in groups]


def lines_of(text):
    """The lines of a test's text, without comments and indentation."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


class Data(DataModule):
    """The same few batches for every stage."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def loader(self):
        return DataLoader(TensorDataset(*samples(2 * self.batches)), batch_size=2)

    def train_dataloader(self):
        return self.loader()

    def val_dataloader(self):
        return self.loader()

    def test_dataloader(self):
        return self.loader()

    def predict_dataloader(self):
        return self.loader()

    def state_dict(self):
        return {"batches": self.batches}


class Evaluates(Net):
    """A module with all four steps."""

    def validation_step(self, batch, batch_idx):
        self.net(batch[0])

    def test_step(self, batch, batch_idx):
        self.net(batch[0])

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])
