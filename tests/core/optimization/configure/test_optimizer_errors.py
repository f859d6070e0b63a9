"""Bad input: return values of configure_optimizers, and schedules that do not fit the run."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import Net, Validated, loader, refused, refuses_fit, trainer, with_methods

TYPE, WRONG = ArgumentTypeError, MisconfigurationException
AN_OPTIMIZER = "a torch.optim.Optimizer or a factory of one; in all, an Optimizer, a list of them, ***"
ADAM = "return torch.optim.Adam(self.parameters(), lr=1e-3)"
A_SCHEDULER = "an object with `step` and `state_dict`, or a factory that takes the optimizer."
STEP_LR = "torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)"
TWO_LISTS = "return [optimizer], [scheduler]"
GROUP = "keys among 'optimizer', 'lr_scheduler', 'monitor', 'frequency'."
A_GROUP = "return {'optimizer': optimizer, 'lr_scheduler': scheduler}"
KEYS = (
    "keys among 'scheduler', 'interval', 'frequency', 'monitor', 'strict', 'name', 'reduce_on_plateau', 'begin', "
    "'end', 'convert_to_iter_based'."
)
A_DICT = "{'scheduler': scheduler, 'interval': 'step', 'frequency': 1}"


def configured(returned, base=Net):
    """Return a module with a `configure_optimizers` that returns `returned(module, optimizer)`."""
    return with_methods(base, configure_optimizers=lambda self: returned(self, SGD(self.parameters(), lr=0.1)))


def scheduled(**entries):
    """Return a module with a StepLR and these entries in its dict."""
    return configured(lambda m, o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), **entries}})


RETURNED = [
    (lambda m, o: "sgd", TYPE, "configure_optimizers gave 'sgd' (str) where an optimizer belongs.", AN_OPTIMIZER, ADAM),
    (lambda m, o: [3], TYPE, "configure_optimizers gave 3 (int) where an optimizer belongs.", AN_OPTIMIZER, ADAM),
    (
        lambda m, o: lambda parameters: 3, TYPE, "configure_optimizers gave 3 (int) where an optimizer belongs.",
        AN_OPTIMIZER, ADAM,
    ),
    (
        lambda m, o: lambda parameters, rate: 3, TYPE,
        "configure_optimizers gave the function <lambda> where an optimizer belongs; called with the ***",
        "an optimizer, or a factory that needs nothing else (functools.partial binds the rest).",
        "torch.optim.Adam(self.parameters())",
    ),
    (
        lambda m, o: StepLR(o, 1), TYPE, "configure_optimizers gave a StepLR where an optimizer belongs.", AN_OPTIMIZER,
        TWO_LISTS,
    ),
    (
        lambda m, o: (o, StepLR(o, 1)), TYPE, "configure_optimizers gave a StepLR where an optimizer belongs.",
        AN_OPTIMIZER, TWO_LISTS,
    ),
    (
        lambda m, o: [o, {"optimizer": o}], TYPE, "configure_optimizers gave a dict of SGD where an optimizer belongs.",
        AN_OPTIMIZER, ADAM,
    ),
    (
        lambda m, o: ([o], [StepLR(o, 1)], [1]), TYPE,
        "configure_optimizers gave a list of SGD where an optimizer belongs.", AN_OPTIMIZER, ADAM,
    ),
    (
        lambda m, o: ([], [StepLR(o, 1)]), WRONG, "configure_optimizers returned schedulers, but no optimizers.",
        "the optimizer of each scheduler in the first list.", TWO_LISTS,
    ),
    (
        lambda m, o: [o, o], WRONG, "Given.configure_optimizers returned one optimizer twice.",
        "every optimizer once: each of them steps.", "return optimizer",
    ),
    (
        lambda m, o: ([o], [3]), TYPE, "configure_optimizers gave 3 (int) where a scheduler belongs.", A_SCHEDULER,
        STEP_LR,
    ),
    (
        lambda m, o: ([o], [None]), TYPE, "configure_optimizers gave None (NoneType) where a scheduler belongs.",
        A_SCHEDULER, STEP_LR,
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": [StepLR(o, 1)]}, TYPE,
        "configure_optimizers gave a list of StepLR where a scheduler belongs.", A_SCHEDULER, STEP_LR,
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": StepLR}, TYPE,
        "configure_optimizers gave the class StepLR where a scheduler belongs; called with the optimizer alone: ***",
        "a scheduler, or a factory that needs nothing else (functools.partial binds the rest).", STEP_LR,
    ),
    (
        lambda m, o: {"optimiser": o}, WRONG,
        "configure_optimizers returned a dict with the unknown key 'optimiser'. Did you mean 'optimizer'?", GROUP,
        A_GROUP,
    ),
    (
        lambda m, o: {"optimizer": o, "lr_schedulr": StepLR(o, 1)}, WRONG,
        "configure_optimizers returned a dict with the unknown key 'lr_schedulr'. Did you mean 'lr_scheduler'?", GROUP,
        A_GROUP,
    ),
    (
        lambda m, o: [{"optimizer": o}, {"optimizer": o, 3: 4}], WRONG,
        "configure_optimizers returned a dict with the unknown key 3.", GROUP, A_GROUP,
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": StepLR(o, 1), "interval": "step"}, WRONG,
        "configure_optimizers returned a dict with the unknown key 'interval'.", GROUP,
        "return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': scheduler, 'interval': 'step'}}",
    ),
    (lambda m, o: {}, WRONG, "configure_optimizers returned a dict with no key 'optimizer'.", GROUP, A_GROUP),
    (
        lambda m, o: {"lr_scheduler": StepLR(o, 1)}, WRONG,
        "configure_optimizers returned a dict with no key 'optimizer'.", GROUP, A_GROUP,
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), 3: 4}}, WRONG,
        "A scheduler's dict has the unknown key 3.", KEYS, A_DICT,
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": {"interval": "step"}}, WRONG,
        "A scheduler's dict has no key 'scheduler'.", KEYS, A_DICT,
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": ReduceLROnPlateau(o)}, WRONG,
        "The scheduler ReduceLROnPlateau has no metric to read.", "the name of a logged metric under 'monitor'.",
        "return {'optimizer': …, 'lr_scheduler': scheduler, 'monitor': 'val_loss'}",
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": ReduceLROnPlateau(o), "monitor": 3}, TYPE,
        "The scheduler ReduceLROnPlateau has monitor=3 (int).", "the name of a logged metric.",
        "{'scheduler': scheduler, 'monitor': 'val_loss'}",
    ),
    (
        lambda m, o: {"optimizer": o, "lr_scheduler": StepLR(SGD(m.parameters(), lr=1), 1)}, WRONG,
        "The scheduler StepLR belongs to an optimizer that configure_optimizers does not return.",
        "every scheduler's optimizer among the returned ones.",
        "build the scheduler with the optimizer that you return.",
    ),
    (
        lambda m, o: ([o], [{"scheduler": StepLR(o, 1), "name": "a"}, {"scheduler": StepLR(o, 1), "name": "a"}]), WRONG,
        "Two schedulers have the same name: 'a', 'a'.", "a different name for each.",
        "{'scheduler': scheduler, 'name': 'a_2'}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("returned", "kind", "what", "expected", "fix"), RETURNED)
def test_what_is_returned(returned, kind, what, expected, fix):
    refuses_fit(configured(returned), error=(kind, what, expected, fix))


@pytest.mark.parametrize(
    ("entries", "kind", "what", "expected", "fix"),
    [
        (
            {"intervall": "step"}, WRONG,
            "A scheduler's dict has the unknown key 'intervall'. Did you mean 'interval'?",
            KEYS, A_DICT,
        ),
        (
            {"interval": "steps"}, WRONG, "The scheduler StepLR has interval='steps'. Did you mean 'step'?",
            "'step' (optimizer steps), 'epoch', 'batch', 'manual', or a text as '1e6tok' or '100st'.",
            "{'scheduler': scheduler, 'interval': 'step'}",
        ),
        (
            {"interval": "week"}, WRONG, "The scheduler StepLR has interval='week'.",
            "'step' (optimizer steps), 'epoch', 'batch', 'manual', or a text as '1e6tok' or '100st'.",
            "{'scheduler': scheduler, 'interval': 'step'}",
        ),
        (
            {"interval": None}, WRONG, "The scheduler StepLR has interval=None.",
            "'step' (optimizer steps), 'epoch', 'batch', 'manual', or a text as '1e6tok' or '100st'.",
            "{'scheduler': scheduler, 'interval': 'step'}",
        ),
        (
            {"frequency": 0}, WRONG, "The scheduler StepLR has frequency=0.", "an int of at least 1.",
            "leave it out to step at every interval.",
        ),
        (
            {"frequency": 1.5}, WRONG, "The scheduler StepLR has frequency=1.5.", "an int of at least 1.",
            "leave it out to step at every interval.",
        ),
        (
            {"frequency": "2"}, WRONG, "The scheduler StepLR has frequency='2'.", "an int of at least 1.",
            "leave it out to step at every interval.",
        ),
        (
            {"frequency": True}, WRONG, "The scheduler StepLR has frequency=True.", "an int of at least 1.",
            "leave it out to step at every interval.",
        ),
        (
            {"strict": "no"}, TYPE, "The scheduler StepLR has strict='no' (str).", "True or False.",
            "{'scheduler': scheduler, 'strict': False}",
        ),
        (
            {"name": 3}, TYPE, "The scheduler StepLR has name=3 (int).", "a string.",
            "{'scheduler': scheduler, 'name': 'lr'}",
        ),
        (
            {"reduce_on_plateau": "yes"}, TYPE, "The scheduler StepLR has reduce_on_plateau='yes' (str).",
            "True or False.", "{'scheduler': scheduler, 'reduce_on_plateau': True}",
        ),
    ],
)  # fmt: skip
def test_the_dict_of_a_scheduler(entries, kind, what, expected, fix):
    refuses_fit(scheduled(**entries), error=(kind, what, expected, fix))


class TestFitting:
    """Schedules and the length of the run."""

    def test_too_short(self):
        error = (
            WRONG,
            "OneCycleLR is built for 2 steps (total_steps=2), but this run calls it 4 times: it would raise ***.",
            "total_steps=4 (it steps every step).",
            "'lr_scheduler': {'scheduler': lambda optimizer, total_steps: OneCycleLR(***), 'interval': 'step'}",
        )
        module = configured(
            lambda m, o: {"optimizer": o, "lr_scheduler": {"scheduler": OneCycleLR(o, 1, 2), "interval": "step"}}
        )
        refuses_fit(module, error=error)

    def test_an_unknown_number_of_steps(self):
        def cycle(optimizer, total_steps):
            return OneCycleLR(optimizer, 1, total_steps)

        error = (
            WRONG,
            "cycle needs `total_steps`, which is unknown in this run.",
            "a limit: max_steps, or max_epochs with loaders that have a length.",
            "Trainer(max_steps=…)",
        )
        module = configured(lambda m, o: {"optimizer": o, "lr_scheduler": cycle})
        refuses_fit(module, error=error, max_epochs=-1)

    def test_another_length(self):
        module = configured(lambda m, o: ([o], [CosineAnnealingLR(o, T_max=10)]))
        text = "CosineAnnealingLR is built for 10 steps (T_max=10), but this run calls it once: it stops"
        with pytest.warns(PossibleUserWarning, match=re.escape(text)):
            trainer().fit(module, loader())

    def test_epochs_that_never_end(self):
        text = "StepLR steps at the end of every epoch, but this run ends before its first epoch does"
        with pytest.warns(UserWarning, match=text):
            trainer(max_epochs=-1, max_steps=2).fit(scheduled(), loader())


class TestMonitor:
    """The metric of a plateau scheduler."""

    def plateau(self, base, **entries):
        return configured(
            lambda m, o: {
                "optimizer": o,
                "lr_scheduler": {"scheduler": ReduceLROnPlateau(o), "monitor": "val_los", **entries},
            },
            base,
        )

    @pytest.mark.filterwarnings("ignore:.*the sanity check logged no such metric")
    @pytest.mark.parametrize(
        ("base", "hint", "known"), [(Validated, " Did you mean 'val_loss'?", "'val_loss'"), (Net, "", "none")]
    )
    def test_never_logged(self, base, hint, known):
        module = self.plateau(base)
        with refused(
            WRONG,
            f"The scheduler ReduceLROnPlateau reads 'val_los', which was not logged.{hint}",
            f"a logged metric; logged so far: {known}.",
            'self.log("val_los", …) before the schedule steps, or "strict": False in its dict.',
        ):
            trainer().fit(module, loader(), *([loader()] if base is Validated else []))
        assert module.steps == 4

    @pytest.mark.filterwarnings("ignore:.*the sanity check logged no such metric")
    def test_not_strict(self):
        with pytest.warns(
            UserWarning,
            match=r"reads 'val_los', which was not logged; the learning rate does not change. Logged so far: 'val_",
        ):
            trainer().fit(self.plateau(Validated, strict=False), loader(), loader())


class TestWarnings:
    """Optimizers that change nothing."""

    @pytest.mark.parametrize("returned", [lambda m, o: None, lambda m, o: [], lambda m, o: ([], [])])
    def test_none(self, returned):
        text = "Given.configure_optimizers returned no optimizer: nothing will be trained."
        with pytest.warns(UserWarning, match=re.escape(text)):
            trainer().fit(configured(returned), loader())

    @pytest.mark.parametrize(
        ("more", "fix"),
        [
            ({}, "step the optimizers in turn in training_step, with self.automatic_optimization = False."),
            (
                {"lr_scheduler": "of the optimizer"},
                "return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': scheduler, 'frequency': 5}}",
            ),
        ],
    )
    def test_a_frequency_of_an_optimizer(self, more, fix):
        def returned(module, optimizer):
            schedules = {name: StepLR(optimizer, 1) for name in more}
            return [{"optimizer": optimizer, "frequency": 5, **schedules}]

        module = configured(returned)
        with pytest.warns(PossibleUserWarning) as seen:
            trainer().fit(module, loader())
        (warning,) = seen
        assert str(warning.message) == (
            "Given.configure_optimizers returned an optimizer with 'frequency': 5, which is ignored.\n"
            "  Expected: 'frequency' in the dict of a scheduler; Lightning 2.0 removed that of optimizers.\n"
            f"  Fix: {fix}"
        )
        assert module.steps == 4

    def test_of_other_parameters(self):
        text = "Adam of Given.configure_optimizers holds no parameter of Given, so it will not train it."
        with pytest.warns(PossibleUserWarning, match=re.escape(text)):
            trainer().fit(configured(lambda m, o: Adam(torch.nn.Linear(2, 1).parameters())), loader())


@pytest.mark.parametrize(
    "returned",
    [
        lambda m, o: SGD,
        lambda m, o: partial(SGD, lr=0.1),
        lambda m, o: ([o], partial(StepLR, step_size=1)),
        lambda m, o: {"optimizer": o, "lr_scheduler": {"scheduler": partial(StepLR, step_size=1), "frequency": 1}},
        lambda m, o: {"optimizer": o, "monitor": "val_loss"},
        lambda m, o: [{"optimizer": o, "frequency": 1}],
    ],
)
def test_what_may_be_returned(returned):
    module = configured(returned)
    trainer().fit(module, loader())
    assert module.steps == 4


class AsksFor:
    """A scheduler that needs an argument in `step`, like timm's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class AsksForEpoch(AsksFor):
    def step(self, epoch, metric=None):
        raise AssertionError


class AsksForTwo(AsksFor):
    def step(self, metric, *, loss):
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "entries", "what", "call"),
    [
        (AsksForEpoch, {}, r"AsksForEpoch\.step cannot be called with nothing: missing a required argument: 'epoch'\.",
         "scheduler.step(self.current_epoch + 1)"),
        (AsksForTwo, {"reduce_on_plateau": True, "monitor": "x"},
         r"AsksForTwo\.step cannot be called with the metric alone: missing a required.* argument: 'loss'\.",
         "scheduler.step(loss=…)"),
    ],
)  # fmt: skip
def test_a_scheduler_that_needs_an_argument_is_refused_before_training(kind, entries, what, call):
    module = configured(lambda m, o: {"optimizer": o, "lr_scheduler": {"scheduler": kind(o), **entries}})
    with pytest.raises(WRONG) as caught:
        trainer().fit(module, loader())
    lines = str(caught.value).splitlines()
    assert re.fullmatch(what, lines[0])
    assert lines[-2:] == ["    def lr_scheduler_step(self, scheduler, metric):", f"        {call}"]
    assert module.steps == 0


def test_a_scheduler_that_needs_an_argument_is_stepped_by_the_module_itself():
    epochs = []

    class Steps(AsksFor):
        def step(self, epoch):
            epochs.append(epoch)

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [Steps(optimizer)]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(self.current_epoch + 1)

    trainer(max_epochs=2).fit(with_methods(Net, configure_optimizers, lr_scheduler_step), loader())
    assert epochs == [1, 2]
