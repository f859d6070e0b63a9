"""Bad input: every argument of the Trainer with a wrong type and out of range, and in contradiction."""

from __future__ import annotations

import inspect
import math
import re

import pytest
import torch

from lightlib import registry
from lightlib.accelerators import CPUAccelerator
from lightlib.callbacks import (
    Callback,
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    ModelPruning,
    Timer,
    TQDMProgressBar,
)
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.loggers import CSVLogger
from lightlib.precision import Precision
from lightlib.profilers import SimpleProfiler
from lightlib.report import PossibleUserWarning
from lightlib.strategies import SingleDeviceStrategy
from tests.runs.bad_input import Net, loader, refused, trainer, with_methods

TYPE, RANGE, NAME = ArgumentTypeError, MisconfigurationException, UnknownNameError

KNOWN_LOGGERS = (
    "one of 'aim', 'clearml', 'comet', 'csv', 'dvclive', 'jsonl', 'mlflow', 'tensorboard', 'trackio', 'wandb'."
)
ACCELERATOR = "a name such as 'auto', 'cpu', 'gpu', 'cuda' or 'mps', or an Accelerator instance."
STRATEGY = "a name or an instance of lightlib.strategies.Strategy."
NEAREST = "Trainer(strategy='single_device')"
MODES = "one of 'default', 'max-autotune', 'max-autotune-no-cudagraphs', 'reduce-overhead'."
ONE_STRATEGY = f"one of {', '.join(map(repr, sorted(['auto', *registry.names('strategies')])))}."
PROCESSES = "a number of processes: an int >= 1 or a numeric string. CPUs have no indices, and there is no 'all'."
PRECISIONS = "one of '64-true', '32-true', '16-mixed', 'bf16-mixed', '16-true', 'bf16-true', or a Precision."
LOGGERS = "True, False, a logger's name, or instances of lightlib.loggers.Logger."
CALLBACKS = "instances of lightlib.Callback."
PROFILERS = "'simple', 'advanced', 'memory', 'pytorch' or a lightlib.profilers.Profiler."
TIME = '"2h" (or d, min, s), "DD:HH:MM:SS", a datetime.timedelta, or a dict of its arguments.'
DURATION = (
    '"10ep" (epochs), "100st" (optimizer steps), "500ba" (batches), "1e6sp" (samples), "1e9tok" (tokens) or "2h".'
)
LIMIT = "an int >= 0 (batches) or a float from 0.0 to 1.0 (a fraction of them)."
INTERVAL = "an int >= 1 (batches), a float above 0.0 up to 1.0 (fraction of an epoch), a time, or a text as '1e6tok'."
FLAG = "True or False."
OWN = "subclass lightlib.Callback, or use lightlib.callbacks.LambdaCallback."
DRY = "True, False, or an int of at least 0 (a number of batches)."
DETERMINISTIC = "True, False or 'warn'."
CLIP = "a number >= 0."
PLUGIN = "a lightlib.precision.Precision or a lightlib.launch.Environment."
NO_PLUGIN = "leave it out; other kinds of plugins are not part of this version."


class Junk:
    """A value that no argument accepts."""

    def __repr__(self):
        return "<junk>"


EPOCHS = "an int of at least -1 (-1 is no limit), or a float above 0."
PAIRS = (
    "pairs of ints (start, interval) with rising starts >= 0 and intervals >= 1: from each start on, validate at the "
    "multiples of its interval."
)


def number(name, least, fix=1):
    """The rows of an argument that is an int of at least `least`."""
    meaning = " (-1 is no limit)" if least == -1 else ', or "auto"' if name == "accumulate_grad_batches" else ""
    expected = f"an int of at least {least}{meaning}."
    rows = [
        ("3", TYPE, f"{name} is '3' (str).", expected, f"Trainer({name}=3)"),
        ("ten", TYPE, f"{name} is 'ten' (str).", expected, f"Trainer({name}={fix})"),
        (2.0, TYPE, f"{name} is 2.0 (float).", expected, f"Trainer({name}=2)"),
        (1.5, TYPE, f"{name} is 1.5 (float).", expected, f"Trainer({name}={fix})"),
        (True, TYPE, f"{name} is True (bool).", expected, f"Trainer({name}={fix})"),
        ([1], TYPE, f"{name} is [1] (list).", expected, f"Trainer({name}={fix})"),
        (int, TYPE, f"{name} is the class int.", expected, f"Trainer({name}={fix})"),
        (least - 1, RANGE, f"{name} is {least - 1}.", expected, f"Trainer({name}={-1 if least == -1 else fix})"),
    ]
    return [(name, *row) for row in rows]


def flag(name):
    """The rows of an argument that is True or False."""
    return [
        (name, "yes", TYPE, f"{name} is 'yes' (str).", FLAG, f"Trainer({name}=True)"),
        (name, "no", TYPE, f"{name} is 'no' (str).", FLAG, f"Trainer({name}=False)"),
        (name, 1, TYPE, f"{name} is 1 (int).", FLAG, f"Trainer({name}=True)"),
        (name, 0, TYPE, f"{name} is 0 (int).", FLAG, f"Trainer({name}=False)"),
    ]


def transform(name, given, shown):
    """The row of an argument that names layers or has options."""
    expected = 'True, False, "blocks", the name of a module or a list of names with wildcards, ***'
    return [(name, given, TYPE, f"{name} is {shown}.", expected, f'Trainer({name}="blocks")')]


def limit(name):
    """The rows of an argument that is a number of batches or a fraction of them."""
    one = f"Trainer({name}=1.0)"
    return [
        (name, "all", TYPE, f"{name} is 'all' (str).", LIMIT, f"Trainer({name}=10) or Trainer({name}=0.1)"),
        (name, True, TYPE, f"{name} is True (bool).", LIMIT, f"Trainer({name}=10) or Trainer({name}=0.1)"),
        (name, -1, RANGE, f"{name} is -1.", LIMIT, one),
        (name, -0.5, RANGE, f"{name} is -0.5.", LIMIT, one),
        (name, 2.5, RANGE, f"{name} is 2.5.", LIMIT, f"Trainer({name}=2)"),
        (name, math.nan, RANGE, f"{name} is nan.", LIMIT, one),
        (name, math.inf, RANGE, f"{name} is inf.", LIMIT, one),
    ]


def time(name, with_type=True):
    """The rows of an argument that may be a time."""
    fix, expected = f'Trainer({name}="12h")', f"a time that is not negative: {TIME}"
    wrong = ["1:2", "a:b:c:d", "00:00:00:-5", {"hours": -1}, {"hours": math.inf}, {}]
    rows = [(name, value, RANGE, f"Trainer({name}={value!r}).", expected, fix) for value in wrong]
    loaders = "; with check_val_every_n_epoch=None also batches by the names of loaders."
    with_names = expected[:-1] + loaders if name == "val_check_interval" else expected
    rows.append((name, {"fortnights": 2}, RANGE, f"Trainer({name}={{'fortnights': 2}}).", with_names, fix))
    if with_type:
        rows.append((name, 5, TYPE, f"Trainer({name}=5 (int)).", TIME, fix))
    return rows


def durations(name, fix, forms):
    """The rows of an argument that may be a duration as text."""
    example = f'Trainer({name}="{fix}")'
    return [
        (name, "", RANGE, f"Trainer({name}='').", f"a number and a unit: {forms}", example),
        (
            name,
            "3tik",
            RANGE,
            f"Trainer({name}='3tik') has the unknown unit 'tik'. Did you mean 'tok'?",
            forms,
            example,
        ),
        (
            name,
            "0tok",
            RANGE,
            f"Trainer({name}='0tok').",
            "a whole number of tokens, of at least 1.",
            f'Trainer({name}="1tok")',
        ),
        (
            name,
            "1.5st",
            RANGE,
            f"Trainer({name}='1.5st').",
            "a whole number of steps, of at least 1.",
            f'Trainer({name}="2st")',
        ),
    ]


def pairs(name):
    """The rows of an argument that may be intervals that change."""
    wrong = [[], [1], [(0, 1), 5], [(0, 1, 2)], [(0, 1.5)], [(-1, 2)], [(0, 0)], [(5, 1), (0, 2)], [(0, 1), (0, 2)]]
    return [
        (name, value, RANGE, f"{name} is {value!r} (list).", PAIRS, f"Trainer({name}=[(0, 1), (10, 5)])")
        for value in wrong
    ]


ROWS = [
    ("accelerator", 3, TYPE, "accelerator is 3 (int).", ACCELERATOR, "Trainer(accelerator='auto')"),
    ("accelerator", None, TYPE, "accelerator is None (NoneType).", ACCELERATOR, "Trainer(accelerator='auto')"),
    (
        "accelerator", CPUAccelerator, TYPE, "accelerator is the class CPUAccelerator, not an instance.", ACCELERATOR,
        "Trainer(accelerator=CPUAccelerator())",
    ),
    (
        "accelerator", "gpuu", NAME, "Unknown accelerator 'gpuu'. Did you mean 'gpu'?",
        "one of 'auto', 'cpu', 'cuda', 'gpu', 'mps'.", "Trainer(accelerator='gpu')",
    ),
    (
        "accelerator", "tpu", RANGE, "accelerator='tpu' is not supported: ***",
        "'auto', 'cpu', 'gpu', 'cuda' or 'mps', or the name of an installed package's accelerator.",
        "use one of these, or write an Accelerator and pass an instance or an entry point for it.",
    ),
    ("strategy", 3, TYPE, "strategy is 3 (int).", STRATEGY, "Trainer(strategy='auto')"),
    (
        "strategy", SingleDeviceStrategy, TYPE, "strategy is the class SingleDeviceStrategy.", STRATEGY,
        "Trainer(strategy=SingleDeviceStrategy())",
    ),
    ("strategy", "dpp", NAME, "Unknown strategy 'dpp'. Did you mean 'ddp'?", ONE_STRATEGY, "Trainer(strategy='ddp')"),
    (
        "strategy", "single-device", NAME, "Unknown strategy 'single-device'. Did you mean 'single_device'?",
        ONE_STRATEGY, NEAREST,
    ),
    ("devices", None, TYPE, "devices=None was given for the CPU.", PROCESSES, "Trainer(accelerator='cpu', devices=1)"),
    ("devices", 1.5, TYPE, "devices=1.5 was given for the CPU.", PROCESSES, "Trainer(accelerator='cpu', devices=1)"),
    ("devices", 0, RANGE, "devices=0 was given for the CPU.", PROCESSES, "Trainer(accelerator='cpu', devices=1)"),
    ("devices", [0], RANGE, "devices=[0] was given for the CPU.", PROCESSES, "Trainer(accelerator='cpu', devices=1)"),
    ("devices", "x", RANGE, "devices='x' was given for the CPU.", PROCESSES, "Trainer(accelerator='cpu', devices=1)"),
    *number("num_nodes", 1),
    ("precision", 1.5, TYPE, "Trainer(precision=1.5 (float)).", PRECISIONS, "Trainer(precision='bf16-mixed')"),
    ("precision", True, TYPE, "Trainer(precision=True (bool)).", PRECISIONS, "Trainer(precision='bf16-mixed')"),
    (
        "precision", "bf16_mixed", NAME, "Unknown precision 'bf16_mixed'. Did you mean 'bf16-mixed'?",
        (
            "one of '16', '16-mixed', '16-true', '32', '32-true', '64', '64-true', 'bf16', 'bf16-mixed', 'bf16-true', "
            "'fp8-mixed', 'fp8-true', 'transformer-engine', 'transformer-engine-float16'."
        ),
        "Trainer(precision='bf16-mixed')",
    ),
    ("precision", 8, NAME, "Unknown precision 8.", "one of '16', ***", "Trainer(precision='32-true')"),
    ("logger", 3, TYPE, "logger is 3 (int).", LOGGERS, "Trainer(logger=CSVLogger('logs'))"),
    ("logger", CSVLogger, TYPE, "logger is the class CSVLogger.", LOGGERS, "Trainer(logger=CSVLogger('logs'))"),
    ("logger", [True], TYPE, "logger is True (bool).", LOGGERS, "Trainer(logger=CSVLogger('logs'))"),
    (
        "logger", "tensorbord", NAME, "Unknown logger 'tensorbord'. Did you mean 'tensorboard'?",
        KNOWN_LOGGERS,
        "Trainer(logger='tensorboard')",
    ),
    (
        "logger", "xyz", NAME, "Unknown logger 'xyz'.", KNOWN_LOGGERS,
        "use one of these names, or pass an instance.",
    ),
    (
        "callbacks", "early", NAME, "Unknown preset of callbacks 'early'.", "one of 'job', 'minimal'.",
        "Trainer(callbacks='minimal')",
    ),
    ("callbacks", [Junk()], TYPE, "callbacks holds <junk> (Junk).", CALLBACKS, OWN),
    (
        "callbacks", EarlyStopping, TYPE, "callbacks holds the class EarlyStopping, which needs 'monitor'.",
        "an object, or a class that can be made without arguments.", "callbacks=[EarlyStopping(monitor=…)]",
    ),
    ("fast_dev_run", "yes", TYPE, "fast_dev_run is 'yes' (str).", DRY, "Trainer(fast_dev_run=True)"),
    ("fast_dev_run", 1.5, TYPE, "fast_dev_run is 1.5 (float).", DRY, "Trainer(fast_dev_run=True)"),
    ("fast_dev_run", -1, RANGE, "fast_dev_run is -1 (int).", DRY, "Trainer(fast_dev_run=True)"),
    *(row for row in number("max_epochs", -1) if not isinstance(row[1], float)),  # parts of epochs are allowed
    *(
        ("max_epochs", value, TYPE, f"max_epochs is {value} (float).", EPOCHS, "Trainer(max_epochs=1.5)")
        for value in (-0.5, math.inf, math.nan)
    ),
    *number("min_epochs", 0),
    *number("max_steps", -1),
    *number("min_steps", 0),
    *time("max_time"),
    *limit("limit_train_batches"),
    *limit("limit_val_batches"),
    *limit("limit_test_batches"),
    *limit("limit_predict_batches"),
    *limit("overfit_batches"),
    *time("val_check_interval", with_type=False),
    *durations("val_check_interval", "1e6tok", f'"2ep", "100st", "500ba", "1e6sp", "1e6tok" or a time: {TIME}'),
    *durations("max_duration", "10ep", DURATION),
    ("max_duration", 5, TYPE, "Trainer(max_duration=5 (int)).", DURATION, 'Trainer(max_duration="10ep")'),
    (
        "val_check_interval", {1}, TYPE, "val_check_interval is {1} (set).",
        INTERVAL, "Trainer(val_check_interval=0.25)",
    ),
    (
        "val_check_interval", True, TYPE, "val_check_interval is True (bool).",
        INTERVAL, "Trainer(val_check_interval=0.25)",
    ),
    ("val_check_interval", 0, RANGE, "val_check_interval is 0.", INTERVAL, "Trainer(val_check_interval=1.0)"),
    ("val_check_interval", 2.5, RANGE, "val_check_interval is 2.5.", INTERVAL, "Trainer(val_check_interval=2)"),
    ("val_check_interval", math.nan, RANGE, "val_check_interval is nan.", INTERVAL, "Trainer(val_check_interval=1.0)"),
    *(row for row in number("check_val_every_n_epoch", 1) if not isinstance(row[1], list)),
    *pairs("val_check_interval"),
    *pairs("check_val_every_n_epoch"),
    *flag("val_check_at_end"),
    (
        "check_val_every_n_epoch", None, RANGE, "check_val_every_n_epoch=None with val_check_interval=None.",
        "an int (batches, counted across epochs) or a time as val_check_interval.",
        "Trainer(val_check_interval=1000, check_val_every_n_epoch=None)",
    ),
    *number("num_sanity_val_steps", -1),
    *number("log_every_n_steps", 0),
    *flag("enable_checkpointing"),
    *flag("enable_progress_bar"),
    *flag("enable_model_summary"),
    *number("accumulate_grad_batches", 1),
    *number("global_batch_size", 1),
    (
        "accumulate_grad_batches", {0: 2}, TYPE, "accumulate_grad_batches is {0: 2} (dict).",
        'an int of at least 1, or "auto".',
        "Trainer(callbacks=[GradientAccumulationScheduler({0: 2})])",
    ),
    ("gradient_clip_val", "1", TYPE, "gradient_clip_val is '1' (str).", CLIP, "Trainer(gradient_clip_val=1.0)"),
    ("gradient_clip_val", True, TYPE, "gradient_clip_val is True (bool).", CLIP, "Trainer(gradient_clip_val=1.0)"),
    ("gradient_clip_val", -1, RANGE, "gradient_clip_val is -1.", CLIP, "Trainer(gradient_clip_val=1.0)"),
    ("gradient_clip_val", math.nan, RANGE, "gradient_clip_val is nan.", CLIP, "Trainer(gradient_clip_val=1.0)"),
    (
        "gradient_clip_algorithm", "nrm", NAME, "Unknown gradient_clip_algorithm 'nrm'. Did you mean 'norm'?",
        "one of 'norm', 'value'.", "Trainer(gradient_clip_algorithm='norm')",
    ),
    (
        "gradient_clip_algorithm", 3, NAME, "Unknown gradient_clip_algorithm 3.", "one of 'norm', 'value'.",
        "Trainer(gradient_clip_algorithm='norm')",
    ),
    ("deterministic", 1, TYPE, "deterministic is 1 (int).", DETERMINISTIC, "Trainer(deterministic=True)"),
    ("deterministic", [1], TYPE, "deterministic is [1] (list).", DETERMINISTIC, "Trainer(deterministic=True)"),
    (
        "deterministic", "wran", RANGE, "deterministic is 'wran' (str). Did you mean 'warn'?", DETERMINISTIC,
        "Trainer(deterministic='warn')",
    ),
    *flag("benchmark"),
    *flag("inference_mode"),
    *flag("use_distributed_sampler"),
    ("profiler", 3, TYPE, "profiler is 3 (int).", PROFILERS, "Trainer(profiler='simple')"),
    (
        "profiler", SimpleProfiler, TYPE, "profiler is the class SimpleProfiler.",
        PROFILERS, "Trainer(profiler=SimpleProfiler())",
    ),
    (
        "profiler", "simpel", NAME, "Unknown profiler 'simpel'. Did you mean 'simple'?",
        "one of 'advanced', 'memory', 'pytorch', 'simple'.", "Trainer(profiler='simple')",
    ),
    *flag("detect_anomaly"),
    *flag("barebones"),
    ("plugins", 3, TYPE, "plugins holds 3 (int).", PLUGIN, NO_PLUGIN),
    ("plugins", [Junk()], TYPE, "plugins holds <junk> (Junk).", PLUGIN, NO_PLUGIN),
    (
        "plugins", Precision, TYPE, "plugins holds the class Precision.", PLUGIN,
        "Trainer(plugins=Precision())",
    ),
    *flag("sync_batchnorm"),
    *transform("compile", 3, "3 (int)"),
    ("compile", {"mode": "fast"}, NAME, "Unknown mode of Compile 'fast'.", MODES, "Compile(mode='default')"),
    ("compile", {"mod": 1}, NAME, "Unknown option of compile 'mod'. Did you mean 'mode'?", "***", "***"),
    *transform("activation_checkpointing", [], "[] (list)"),
    (
        "activation_checkpointing", {"every": 0}, RANGE, "ActivationCheckpoint(every=0).", "an int >= 1.",
        "ActivationCheckpoint(every=2)",
    ),
    *transform("activation_offload", {"target": [1]}, "{'target': [1]} (dict)"),
    (
        "activation_offload", {"pin": True}, NAME,
        "Unknown option of activation_offload 'pin'.", "one of 'pin_memory', 'target'.",
        "Trainer(activation_offload={'pin_memory': …})",
    ),
    *number("reload_dataloaders_every_n_epochs", 0),
    ("default_root_dir", 3, TYPE, "default_root_dir is 3 (int).", "a path.", "Trainer(default_root_dir='runs')"),
    (
        "default_root_dir", b"runs", TYPE, "default_root_dir is b'runs' (bytes).", "a path.",
        "Trainer(default_root_dir='runs')",
    ),
    *flag("enable_autolog_hparams"),
    *flag("save_user_state"),
    ("model_registry", 3, TYPE, "model_registry is 3 (int).", "a string.", "leave it out: it is not used."),
    *flag("suggest_integrations"),
]  # fmt: skip
# All their values of the right type have a meaning.
WITHOUT_A_RANGE = {"val_check_at_end", "plugins", "default_root_dir", "model_registry"} | {
    row[0] for row in ROWS if row[4] == FLAG
}


@pytest.mark.parametrize(
    ("argument", "value", "kind", "what", "expected", "fix"), ROWS, ids=lambda value: repr(value)[:30]
)
def test_an_argument(argument, value, kind, what, expected, fix):
    with refused(kind, what, expected, fix):
        trainer(**{argument: value})


def test_every_argument_is_in_the_table():
    arguments = set(inspect.signature(Trainer).parameters) - {"self"}
    rows = {
        (row[0], "type" if issubclass(row[2], TypeError) or row[0] == "gradient_clip_algorithm" else "range")
        for row in ROWS
    }
    rows |= {(row[0], "range") for row in ROWS if row[2] is NAME}
    assert {name for name, which in rows if which == "type"} == arguments
    assert {name for name, which in rows if which == "range"} == arguments - WITHOUT_A_RANGE


@pytest.mark.parametrize("value", [math.inf, 0, 0.5])
def test_a_clipping_value_that_is_none(value):
    assert trainer(gradient_clip_val=value).gradient_clip_val == value


class TestLater:
    """An argument that is set on the Trainer is checked like one that is given to it."""

    @pytest.mark.parametrize(
        ("name", "value", "kind", "what"),
        [
            ("max_epochs", "ten", TYPE, "max_epochs is 'ten' (str)."),
            ("max_steps", -2, RANGE, "max_steps is -2."),
            ("limit_val_batches", 1.5, RANGE, "limit_val_batches is 1.5."),
            ("val_check_interval", 0, RANGE, "val_check_interval is 0."),
            ("accumulate_grad_batches", 0, RANGE, "accumulate_grad_batches is 0."),
        ],
    )
    def test_a_wrong_value(self, name, value, kind, what):
        run = trainer()
        before = getattr(run, name)
        with refused(kind, what, "***", f"Trainer({name}=***)"):
            setattr(run, name, value)
        assert getattr(run, name) == before

    def test_a_right_one(self):
        run = trainer()
        run.max_epochs, run.limit_val_batches, run.val_check_interval = 3, None, "00:00:00:10"
        assert (run.max_epochs, run.limit_val_batches, run.settings.val_check_seconds) == (3, 1.0, 10.0)


CONFLICTS = [
    (
        {"min_epochs": 3, "max_epochs": 2}, "min_epochs=3 is more than max_epochs=2.", "min_epochs <= max_epochs.",
        "Trainer(min_epochs=2, max_epochs=2) or Trainer(min_epochs=3, max_epochs=3)",
    ),
    (
        {"min_steps": 3, "max_steps": 2}, "min_steps=3 is more than max_steps=2.", "min_steps <= max_steps.",
        "Trainer(min_steps=2, max_steps=2) or Trainer(min_steps=3, max_steps=3)",
    ),
    (
        {"callbacks": ModelCheckpoint()}, "enable_checkpointing=False, but callbacks holds a ModelCheckpoint.",
        "one of the two.", "leave out enable_checkpointing=False or the ModelCheckpoint.",
    ),
    (
        {"callbacks": TQDMProgressBar()}, "enable_progress_bar=False, but callbacks holds a TQDMProgressBar.",
        "one of the two.", "leave out enable_progress_bar=False or the TQDMProgressBar.",
    ),
    (
        {"enable_progress_bar": True, "callbacks": [TQDMProgressBar(), TQDMProgressBar()]},
        "callbacks holds 2 progress bars: TQDMProgressBar, TQDMProgressBar.", "one progress bar.",
        "leave out TQDMProgressBar().",
    ),
    (
        {"max_time": {"hours": 1}, "callbacks": [Timer("00:02:00:00")]},
        "max_time={'hours': 1}, but callbacks holds a Timer.", "one of the two.",
        "leave out max_time={'hours': 1} or the Timer.",
    ),
    (
        {"precision": "16-mixed", "plugins": [Precision.named("bf16-mixed")]},
        "Two precisions were given: '16-mixed', Precision(***", "one of them.", "Trainer(precision='16-mixed')",
    ),
    (
        {"barebones": True, "logger": True, "fast_dev_run": True},
        "barebones=True together with logger=True, fast_dev_run=True.",
        "barebones alone: it turns all of these off, to measure the loop.",
        "leave out barebones, or logger and fast_dev_run.",
    ),
    (
        {"strategy": "single_device", "devices": 2}, "The strategy single_device got 2 devices.", "one device.",
        "Trainer(devices=1)***",
    ),
    (
        {"callbacks": [LambdaCallback(on_fit_start=print)] * 2}, "callbacks holds one LambdaCallback object twice.",
        "every callback once; otherwise its hooks are called twice.", "leave one out.",
    ),
    (
        {"enable_checkpointing": True, "callbacks": [ModelCheckpoint(), ModelCheckpoint()]},
        "Two callbacks would save their state under the key ***ModelCheckpoint***",
        "a different state_key for every stateful callback.",
        "override `state_key` in one of them, or give them different values of an argument that is part of the key.",
    ),
    (
        {"callbacks": [ModelPruning("l1_unstructured", amount=0.1), ModelPruning("l1_unstructured", amount=0.3)]},
        "Two callbacks would save their state under the key ***'pruning_fn': 'l1_unstructured', 'parameters': (***",
        "a different state_key for every stateful callback.",
        "override `state_key` in one of them, or give them different values of an argument that is part of the key.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "what", "expected", "fix"), CONFLICTS)
def test_two_arguments_that_contradict_each_other(arguments, what, expected, fix):
    with refused(RANGE, what, expected, fix):
        trainer(**arguments)


def test_overfitting_without_validation():
    run = trainer(overfit_batches=2, limit_val_batches=0)
    assert (run.limit_train_batches, run.limit_val_batches) == (2, 0)


class TestWarnings:
    """Arguments that may be intended cause a warning."""

    def test_no_limit(self):
        text = "Neither max_epochs nor max_steps was given: training runs for 1000 epochs."
        run = trainer(
            max_epochs=None, callbacks=[LambdaCallback(on_train_start=lambda t, m: setattr(t, "should_stop", True))]
        )
        with pytest.warns(PossibleUserWarning, match=re.escape(text)):
            run.fit(Net(), loader())

    def test_an_algorithm_for_nothing(self):
        with pytest.warns(UserWarning, match="gradient_clip_algorithm='norm' does nothing without gradient_clip_val"):
            trainer(gradient_clip_algorithm="norm")

    def test_deterministic_and_benchmark(self, monkeypatch):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        with pytest.warns(UserWarning, match="benchmark=True may choose different kernels in every run"):
            trainer(deterministic="warn", benchmark=True)


def test_a_callback_without_its_base_class():
    class Similar:
        def on_fit_start(self, trainer, module):
            pass

    with refused(TYPE, "callbacks holds an object of type Similar.", CALLBACKS, OWN):
        trainer(callbacks=[Similar()])


def test_callbacks_that_the_module_returns_are_checked():
    module = with_methods(configure_callbacks=lambda self: [Callback])
    with refused(TYPE, "callbacks holds the class Callback.", "an instance of it.", "callbacks=[Callback(…)]"):
        trainer().fit(module, loader())
    assert module.steps == 0
