"""Bad input: objects that are no modules, modules that lack something, and misspelt hooks."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from lightlib.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import Net, Validated, loader, refused, refuses_fit, trainer, with_methods

TYPE, WRONG = ArgumentTypeError, MisconfigurationException
MODULE = "an instance of lightlib.Module."
ARGUMENTS = "the arguments (self, batch, batch_idx)."
MONITORED = (
    "validation loaders, or a monitored metric of training.",
    "pass val_dataloaders (or define val_dataloader), or change `monitor`.",
)
EVAL_ARGUMENTS = "the arguments (self, batch, batch_idx) and, with several loaders, dataloader_idx."


def of_lightning(name, root, base=nn.Module):
    """Return an object of a class of this name from another package."""
    return type("Theirs", (type(name, (base,), {"__module__": f"{root}.core"}),), {"__module__": "project"})()


@pytest.mark.parametrize(
    ("model", "what", "fix"),
    [
        (Net, "`model` is the class Net.", "trainer.fit(Net())"),
        (
            nn.Linear(2, 1),
            "`model` is a torch.nn.Module (Linear).",
            "lightlib.Module.from_model(model, loss, optimizer), or subclass lightlib.Module.",
        ),
        (nn.Linear, "`model` is the class Linear.", "trainer.fit(Linear())"),
        (3, "`model` is 3 (int).", "trainer.fit(module, train_dataloaders=loader)"),
        ("Net", "`model` is 'Net' (str).", "trainer.fit(module, train_dataloaders=loader)"),
        (None, "trainer.fit() got no model.", "trainer.fit(module)"),
        (
            of_lightning("LightningModule", "lightning"),
            "`model` is a LightningModule of `lightning` (Theirs).",
            (
                "start the program by `lightlib compat run …`, or import it from lightlib: "
                "`import lightlib as L` instead of `import lightning as L`."
            ),
        ),
        (
            of_lightning("LightningModule", "pytorch_lightning"),
            "`model` is a LightningModule of `pytorch_lightning` (Theirs).",
            (
                "start the program by `lightlib compat run …`, or import it from lightlib: "
                "`import lightlib as L` instead of `import pytorch_lightning as L`."
            ),
        ),
    ],
)
def test_what_is_no_module(model, what, fix):
    with refused(TYPE, what, MODULE, fix):
        trainer().fit(model, loader())


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_no_model_for_the_first_call(call):
    with refused(TYPE, f"trainer.{call}() got no model.", MODULE, f"trainer.{call}(module)"):
        getattr(trainer(), call)()


class TestBaseClass:
    """`super().__init__()` was forgotten."""

    def test_before_a_layer(self):
        class Forgot(Net):
            def __init__(self):
                self.layer = nn.Linear(2, 1)

        with refused(
            WRONG,
            "Forgot.__init__ assigned `layer` before the base class was initialised.",
            "super().__init__() before the first layer.",
            "write `super().__init__()` as the first line of Forgot.__init__.",
        ):
            Forgot()

    def test_without_a_layer(self):
        class Forgot(Net):
            def __init__(self):
                self.width = 3

        with refused(
            WRONG,
            "Forgot.__init__ did not initialise its base class.",
            "super().__init__() before anything else.",
            "write `super().__init__()` as the first line of Forgot.__init__.",
        ):
            trainer().fit(Forgot(), loader())


class TestSteps:
    """A module without the methods that a stage calls."""

    @pytest.mark.parametrize(
        ("call", "needed", "arguments"),
        [
            ("fit", "training_step", "self, batch, batch_idx"),
            ("fit", "configure_optimizers", "self"),
            ("validate", "validation_step", "self, batch, batch_idx"),
            ("test", "test_step", "self, batch, batch_idx"),
            ("predict", "predict_step", "self, batch, batch_idx"),
        ],
    )
    def test_a_missing_method(self, call, needed, arguments):
        methods = {"configure_optimizers": Net.configure_optimizers, "training_step": Net.training_step}
        methods.pop(needed, None)
        module = with_methods(Module, steps=0, **methods)
        or_forward = " (or `forward`, which it calls)" if call == "predict" else ""
        with refused(
            WRONG,
            f"Given has no `{needed}`, which Trainer.{call} calls.",
            f"a method `{needed}({arguments})`{or_forward}.",
            "define it in Given.",
        ):
            getattr(trainer(), call)(module, loader())
        assert module.steps == 0

    def test_loaders_without_a_step(self):
        error = (
            WRONG,
            "There are validation loaders, but Net has no validation_step.",
            "both or neither.",
            "define Net.validation_step(self, batch, batch_idx), or leave out the loaders.",
        )
        refuses_fit(Net(), loader(), loader(), error=error)

    def test_a_step_without_loaders_is_a_warning(self):
        module = Validated()
        with pytest.warns(PossibleUserWarning) as seen:
            trainer().fit(module, loader())
        assert module.steps == 4
        assert [str(each.message) for each in seen] == [
            (
                "Validated has a validation_step, but there are no validation loaders: nothing is validated.\n"
                "  Expected: both or neither.\n"
                "  Fix: pass val_dataloaders (or define val_dataloader), or Trainer(limit_val_batches=0)."
            )
        ]

    @pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
    @pytest.mark.parametrize("monitor", ["val_loss", "valid/acc", "Validation.f1"])
    def test_a_step_without_loaders_is_an_error_for_its_monitors(self, kind, monitor):
        error = (
            WRONG,
            (
                f"{kind.__name__}(monitor={monitor!r}): Validated has a validation_step, but there are no validation "
                "loaders, so nothing logs this metric."
            ),
            *MONITORED,
        )
        refuses_fit(Validated(), error=error, callbacks=kind(monitor=monitor), enable_checkpointing=True)

    def test_and_for_a_schedule_that_reads_it(self):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

        error = (
            WRONG,
            (
                "ReduceLROnPlateau(monitor='val_loss'): Given has a validation_step, but there are no validation "
                "loaders, so nothing logs this metric."
            ),
            *MONITORED,
        )
        module = with_methods(Validated, configure_optimizers=configure_optimizers)
        with pytest.warns(PossibleUserWarning, match="nothing is validated"):
            refuses_fit(module, error=error)

    def test_a_monitor_of_training_needs_none(self):
        def training_step(self, batch, batch_idx):
            self.steps += 1
            self.log("loss", loss := self.loss(batch))
            return loss

        module = with_methods(Validated, training_step=training_step)
        with pytest.warns(PossibleUserWarning, match="nothing is validated"):
            trainer(callbacks=EarlyStopping("loss")).fit(module, loader())
        assert module.steps == 4

    def test_a_plain_model_without_loaders_gets_no_warning(self):
        model = Module.from_model(nn.Linear(2, 1), nn.functional.mse_loss, torch.optim.SGD)
        trainer().fit(model, loader())
        with refused(WRONG, "EarlyStopping(monitor='val_loss'): ModelModule has a validation_step***", *MONITORED):
            trainer(callbacks=EarlyStopping("val_loss")).fit(model, loader())

    @pytest.mark.parametrize("data", [(loader(), loader()), (loader(),)])
    def test_the_way_out(self, data):
        module = Net() if len(data) == 2 else Validated()
        trainer(limit_val_batches=0).fit(module, *data)
        assert module.steps == 4

    @pytest.mark.parametrize(
        ("step", "argument", "fix"),
        [
            (
                lambda self, batch, batch_idx, optimizer_idx: None,
                "optimizer_idx",
                "with several optimizers set self.automatic_optimization = False and step each of them in ***",
            ),
            (
                lambda self, batch, batch_idx, hiddens=None: None,
                "hiddens",
                "set self.automatic_optimization = False, and keep the hidden states on self.",
            ),
            (
                lambda self, dataloader_iter: None,
                "dataloader_iter",
                "def training_step(self, batch, batch_idx): each call gets one batch.",
            ),
            (lambda self, batch, batch_idx, more: None, "more", "def training_step(self, batch, batch_idx):"),
            (lambda self, batch, *, scale: None, "scale", "def training_step(self, batch, batch_idx):"),
        ],
    )
    def test_arguments_that_nobody_hands_over(self, step, argument, fix):
        error = (
            WRONG,
            f"Given.training_step has the argument `{argument}`, which it is not called with.",
            ARGUMENTS,
            fix,
        )
        refuses_fit(with_methods(training_step=step), error=error)

    @pytest.mark.parametrize("call", ["validate", "test", "predict"])
    def test_likewise_in_evaluation(self, call):
        name = {"validate": "validation_step"}.get(call, f"{call}_step")
        module = with_methods(**{name: lambda self, batch, batch_idx, more: None})
        with refused(
            WRONG,
            f"Given.{name} has the argument `more`, which it is not called with.",
            EVAL_ARGUMENTS,
            f"def {name}(self, batch, batch_idx):",
        ):
            getattr(trainer(), call)(module, loader())

    def test_a_step_that_this_call_does_not_need(self):
        module = with_methods(predict_step=lambda self, batch, batch_idx, temperature: None)
        trainer().fit(module, loader())
        assert module.steps == 4

    def test_no_batch(self):
        def training_step(self):
            pass

        error = (WRONG, "Given.training_step takes no batch.", ARGUMENTS, "def training_step(self, batch, batch_idx):")
        refuses_fit(with_methods(Net, training_step), error=error)

    def test_several_loaders_and_no_index(self):
        error = (
            WRONG,
            "Validated.validation_step takes no `dataloader_idx`, but there are 2 loaders.",
            "an argument of exactly this name.",
            "def validation_step(self, batch, batch_idx, dataloader_idx=0):",
        )
        refuses_fit(Validated(), loader(), [loader(), loader()], error=error)

    @pytest.mark.parametrize("given", [1, 2])
    def test_an_index_without_a_default(self, given):
        seen = []

        trainer().validate(
            with_methods(validation_step=lambda self, batch, batch_idx, dataloader_idx: seen.append(dataloader_idx)),
            [loader(1)] * given if given > 1 else loader(1),
        )
        assert seen == list(range(given))


class TestHooksAroundABatch:
    """The loader that a batch comes from."""

    @pytest.mark.parametrize("given", [1, 2])
    def test_an_index_without_a_default(self, given):
        seen = []

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            pass

        def on_validation_batch_start(self, batch, batch_idx, dataloader_idx):
            seen.append(("module", dataloader_idx))

        class Called(Callback):
            def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx):
                seen.append(("callback", dataloader_idx))

        module = with_methods(Validated, validation_step, on_validation_batch_start)
        trainer(callbacks=[Called()]).validate(module, [loader(1)] * given if given > 1 else loader(1))
        assert seen == [(owner, place) for place in range(given) for owner in ("module", "callback")]

    def test_several_loaders_and_no_index(self):
        class Given(Validated):
            def validation_step(self, batch, batch_idx, dataloader_idx=0):
                pass

        of_module = with_methods(Given, on_validation_batch_start=lambda self, batch, batch_idx: None)

        class OfCallback(Callback):
            def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                pass

        def error(name, hook):
            what = f"{name}.{hook} takes no `dataloader_idx`, but there are 2 loaders."
            return (
                WRONG,
                what,
                "`dataloader_idx` as the last argument.",
                f"def {hook}(self, …, batch_idx, dataloader_idx=0):",
            )

        data = loader(), [loader(), loader()]
        refuses_fit(of_module, *data, error=error("Given", "on_validation_batch_start"))
        with refused(*error("OfCallback", "on_validation_batch_end")):
            trainer(callbacks=[OfCallback()]).fit(Given(), *data)

    def test_any_name_will_do_for_the_last_argument(self):
        seen = []
        note = LambdaCallback(on_test_batch_start=lambda t, m, batch, i, which: seen.append(which))
        module = with_methods(test_step=lambda self, batch, batch_idx, dataloader_idx: None)
        trainer(callbacks=[note]).test(module, [loader(1), loader(1)], verbose=False)
        assert seen == [0, 1]


class TestEvalMode:
    """Models of other libraries come in eval mode."""

    TEXT = "in eval mode, although their parameters are trained"

    def test_a_part_that_is_trained(self):
        module = Net()
        module.backbone = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
        module.frozen = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval().requires_grad_(False)
        with pytest.warns(
            PossibleUserWarning, match=rf"Training begins with 'backbone' {self.TEXT}.*self\.backbone\.t"
        ):
            trainer().fit(module, loader())

    def test_all_of_it(self):
        with pytest.warns(PossibleUserWarning, match=rf"Training begins with Net {self.TEXT}.*self\.train\(\)"):
            trainer().fit(Net().eval(), loader())

    def test_not_when_a_hook_puts_it_right(self):
        module = with_methods(on_fit_start=lambda self: self.train())
        trainer().fit(module.eval(), loader())
        assert module.training


class TestAutomaticOptimization:
    """Manual optimization, and the arguments that need the automatic one."""

    @pytest.mark.parametrize(
        ("argument", "value", "fix"),
        [
            ("gradient_clip_val", 1.0, "call self.clip_gradients(optimizer, …) in training_step."),
            ("accumulate_grad_batches", 2, "call optimizer.step() every n batches in training_step."),
        ],
    )
    def test_arguments_for_the_automatic_one(self, argument, value, fix):
        error = (
            WRONG,
            f"Trainer({argument}={value}) with manual optimization: Given sets automatic_optimization = False.",
            f"{argument} left at its default: in manual optimization you control the steps.",
            fix,
        )
        refuses_fit(with_methods(automatic_optimization=False), error=error, **{argument: value})

    def test_neither_on_nor_off(self):
        error = (
            TYPE,
            "Given.automatic_optimization is 'no' (str).",
            "True or False.",
            "self.automatic_optimization = False",
        )
        refuses_fit(with_methods(automatic_optimization="no"), error=error)

    def test_backward_by_hand_without_it(self):
        module = with_methods(training_step=lambda self, batch, batch_idx: self.manual_backward(self.loss(batch)))
        error = (
            WRONG,
            "Given called manual_backward, but its automatic_optimization is True.",
            "manual optimization.",
            "set self.automatic_optimization = False in __init__.",
        )
        refuses_fit(module, error=error)


class TestOutsideOfARun:
    """Methods of a module that work only in a run."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda net: net.trainer,
            lambda net: net.optimizers(),
            lambda net: net.lr_schedulers(),
            lambda net: net.clip_gradients(None, 1.0),
            lambda net: net.all_gather(torch.ones(1)),
        ],
    )
    def test_the_trainer(self, read):
        with refused(
            RuntimeError,
            "Net is not attached to a Trainer.",
            "`self.trainer` to be read during a run.",
            "call trainer.fit(module) first, or move this into a hook.",
        ):
            read(Net())

    def test_logging(self):
        with pytest.warns(UserWarning, match=r"self\.log\('a', …\) was called outside a Trainer's run; nothing is"):
            Net().log("a", 1)

    def test_saving(self):
        with refused(
            WRONG,
            "save_checkpoint was called before any run.",
            "a Trainer with a module attached.",
            "call trainer.fit(module) first.",
        ):
            trainer().save_checkpoint("a.ckpt")

    def test_the_inside_of_lightning(self):
        with pytest.raises(AttributeError, match=r"no attribute 'fit_loop'\. `fit_loop` is internal to Lightning"):
            _ = trainer().fit_loop


HOOKS = [
    ("on_validaton_epoch_end", "no hook has this name. Did you mean 'on_validation_epoch_end'?"),
    ("training_stpe", "no hook has this name. Did you mean 'training_step'?"),
    ("on_trian_start", "no hook has this name. Did you mean 'on_train_start'?"),
    ("configure_optimisers", "no hook has this name. Did you mean 'configure_optimizers'?"),
    ("train_dataloder", "no hook has this name. Did you mean 'train_dataloader'?"),
    ("val_dataloaders", "no hook has this name. Did you mean 'val_dataloader'?"),
    ("validation_epoch_end", "it was removed in Lightning 2.0. Use `on_validation_epoch_end`."),
    ("training_epoch_end", "it was removed in Lightning 2.0. Use `on_train_epoch_end`."),
    ("training_step_end", "it was removed in Lightning 2.0. Use `training_step`."),
    ("on_epoch_end", "it was removed in Lightning 2.0. Use `on_train_epoch_end`."),
]


def rename(hint):
    meant = re.search(r"['`](\w+)['`]", hint).group(1)
    return (
        "  Expected: the name of a hook (docs/lifecycle.md), or a name that is unlike one.\n"
        f"  Fix: rename it to `{meant}`."
    )


class TestHooks:
    """Methods that are almost hooks cause a warning; training continues."""

    @pytest.mark.parametrize(("name", "hint"), HOOKS)
    def test_of_a_module(self, name, hint):
        module = with_methods(**{name: lambda self: None})
        with pytest.warns(PossibleUserWarning) as caught:
            trainer().fit(module, loader())
        assert [str(one.message) for one in caught] == [f"Given.{name} is never called: {hint}\n{rename(hint)}"]
        assert module.steps == 4

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("on_trian_start", "no hook has this name. Did you mean 'on_train_start'?"),
            ("on_batch_end", "it was removed in Lightning 2.0. Use `on_train_batch_end`."),
        ],
    )
    def test_of_a_callback(self, name, hint):
        callback = type("Given", (Callback,), {name: lambda self, *args: None})()
        with pytest.warns(PossibleUserWarning) as caught:
            trainer(callbacks=callback)
        assert {str(one.message) for one in caught} == {f"Given.{name} is never called: {hint}\n{rename(hint)}"}

    @pytest.mark.parametrize(
        ("name", "meant"), [("train_dataloaders", "train_dataloader"), ("prepare_date", "prepare_data")]
    )
    def test_of_a_data_module(self, name, meant):
        methods = {"train_dataloader": lambda self: loader(), name: lambda self: loader()}
        data = type("Given", (DataModule,), methods)()
        with pytest.warns(PossibleUserWarning) as caught:
            trainer().fit(Net(), datamodule=data)
        hint = f"no hook has this name. Did you mean {meant!r}?"
        assert [str(one.message) for one in caught] == [f"Given.{name} is never called: {hint}\n{rename(hint)}"]

    @pytest.mark.parametrize("name", ["step", "on_the_moon", "my_training_step", "loss_step", "_on_trian_start"])
    def test_other_names(self, name):
        module = with_methods(**{name: lambda self: None})
        trainer().fit(module, loader())
        assert module.steps == 4
