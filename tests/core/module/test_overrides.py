"""`setup` and `teardown` receive the stage, by whichever kind of parameter they take it."""

from __future__ import annotations

import pytest

import lightlib
from lightlib.testing import BoringModule

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def definitions(calls, what):
    """Return the two methods for each kind of parameter."""

    def by_position(self, *given):
        calls.append((what, given[-1]))

    def of_module_by_name(self, *, stage):
        by_position(self, stage)

    def of_module_in_kwargs(self, **kwargs):
        by_position(self, kwargs["stage"])

    def of_module_plain(self, mode):
        by_position(self, mode)

    def of_module_with_more(self, mode=None, **kwargs):
        by_position(self, mode)

    def of_callback_by_name(self, trainer, pl_module, *, stage=None):
        by_position(self, stage)

    def of_callback_plain(self, trainer, pl_module, stage):
        by_position(self, stage)

    return locals()


@pytest.mark.parametrize("kind", ["by_name", "in_kwargs", "plain", "with_more"])
@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_every_owner_gets_it(kind, verb):
    calls = []
    of_callback = f"of_callback_{kind if kind == 'by_name' else 'plain'}"

    def methods(what, name):
        return {hook: definitions(calls, f"{what} {hook}")[name] for hook in ("setup", "teardown")}

    class Data(lightlib.LightningDataModule):
        def train_dataloader(self):
            return BoringModule().train_dataloader()

        def val_dataloader(self):
            return BoringModule().val_dataloader()

    module = type("Net", (BoringModule,), methods("module", f"of_module_{kind}"))()
    datamodule = type("Mine", (Data,), methods("data", f"of_module_{kind}"))()
    callback = type("Told", (lightlib.Callback,), methods("callback", of_callback))()
    trainer = lightlib.Trainer(**QUIET, accelerator="cpu", max_epochs=1, callbacks=callback)
    getattr(trainer, verb)(module, datamodule=datamodule)
    owners = ("data", "callback", "module")
    assert calls == [(f"{owner} {hook}", verb) for hook in ("setup", "teardown") for owner in owners]
