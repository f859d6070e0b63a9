"""Checks of the Trainer's call: environment defaults, and help for unknown or removed arguments."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from lightlib import report
from lightlib.errors import ArgumentTypeError, LightlibError, closest, nearest, owner

Init = TypeVar("Init", bound=Callable[..., None])
_NOTHING = "no replacement"
# Arguments of Lightning 1.x with their replacement and the fix; `{value}` is the user's value,
# `{owner}` and `{loaders}` are the words of the owner.
REMOVED: dict[str, tuple[str, str]] = {
    "gpus": ("`accelerator` and `devices`", "{owner}(accelerator='gpu', devices={value})"),
    "tpu_cores": (
        "`accelerator` and `devices`",
        "{owner}(accelerator=…, devices={value}), with a package's accelerator",
    ),
    "num_processes": ("`accelerator` and `devices`", "{owner}(accelerator='cpu', devices={value})"),
    "ipus": (_NOTHING, "leave it out: Lightning no longer supports IPUs."),
    "resume_from_checkpoint": ("`ckpt_path` of `fit`", "trainer.fit(module, ckpt_path={value})"),
    "auto_lr_find": ("a callback, or `lightlib.tuner.Tuner`", "Trainer(callbacks=[LearningRateFinder()])"),
    "auto_scale_batch_size": ("a callback, or `lightlib.tuner.Tuner`", "Trainer(callbacks=[BatchSizeFinder()])"),
    "auto_select_gpus": ("`devices`", "{owner}(devices='auto')"),
    "checkpoint_callback": ("`enable_checkpointing`", "Trainer(enable_checkpointing={value})"),
    "weights_summary": ("`enable_model_summary` or a callback", "Trainer(callbacks=[ModelSummary(max_depth=1)])"),
    "progress_bar_refresh_rate": ("a callback", "Trainer(callbacks=[RichProgressBar(refresh_rate={value})])"),
    "process_position": ("a callback", "Trainer(callbacks=[TQDMProgressBar(process_position={value})])"),
    "flush_logs_every_n_steps": (
        "an argument of the logger",
        "Trainer(logger=CSVLogger('logs', flush_logs_every_n_steps={value}))",
    ),
    "weights_save_path": ("`dirpath` of a callback", "Trainer(callbacks=[ModelCheckpoint(dirpath={value})])"),
    "terminate_on_nan": ("a callback", "Trainer(callbacks=[TerminateOnNaN()])"),
    "track_grad_norm": ("a callback, which logs the 2-norm", "Trainer(callbacks=[NormMonitor()])"),
    "prepare_data_per_node": (
        "an attribute of the module or data module that has `prepare_data`",
        "self.prepare_data_per_node = {value}",
    ),
    "stochastic_weight_avg": ("a callback", "Trainer(callbacks=[StochasticWeightAveraging(swa_lrs=0.01)])"),
    "amp_backend": ("`precision`", "{owner}(precision='16-mixed')"),
    "amp_level": ("`precision`", "{owner}(precision='16-mixed')"),
    "replace_sampler_ddp": ("`use_distributed_sampler`", "{loaders}use_distributed_sampler={value})"),
    "multiple_trainloader_mode": ("CombinedLoader", "trainer.fit(module, CombinedLoader(loaders, mode={value}))"),
    "move_metrics_to_cpu": (_NOTHING, "leave it out: logged values on the CPU are plain numbers already."),
    "truncated_bptt_steps": ("manual optimization", "self.automatic_optimization = False in the module's __init__."),
    "reload_dataloaders_every_epoch": (
        "`reload_dataloaders_every_n_epochs`",
        "Trainer(reload_dataloaders_every_n_epochs=1)",
    ),
}
_EPOCHS = dict.fromkeys(("epochs", "num_epochs", "n_epochs", "nb_epoch", "max_epoch"), "max_epochs")
_DATA = {
    **dict.fromkeys(("dataloaders", "dataloader", "loader", "train_dataset", "data", "x"), "train_dataloaders"),
    **dict.fromkeys(("val_dataset", "validation_data", "valid_dataloaders", "eval_dataset"), "val_dataloaders"),
}
_OF_DATA_MODULE = ("batch_size", "num_workers", "collate_fn", "validation_split")
_OF_LOSS = ("class_weight", "sample_weight")
_OF_LOADERS = ("shuffle", "sampler", "batch_sampler", "pin_memory", "drop_last")
_PREFIXES = ("LIGHTLIB_", "PL_TRAINER_")
# One variable for several arguments: it sets those that neither the call nor a variable of their own sets.
_TOGETHER = {"LIGHTLIB_LIMIT_BATCHES": tuple(f"limit_{each}_batches" for each in ("train", "val", "test", "predict"))}
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def checked_call(init: Init, prefixes: tuple[str, ...] = _PREFIXES) -> Init:
    """Decorate ``Trainer.__init__``: defaults from the environment, and an explanation for unknown arguments.

    Every argument can be defaulted by ``LIGHTLIB_<ARGUMENT>`` or ``PL_TRAINER_<ARGUMENT>``, read as a Python literal;
    ``LIGHTLIB_LIMIT_BATCHES`` sets the limits of all stages.

    Args:
        init: The constructor.
        prefixes: Of the variables.
    """
    names = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise ArgumentTypeError(
                f"{owner()} got {len(args)} positional argument{'s' * (len(args) > 1)}: "
                f"{', '.join(f'{arg!r:.40}' for arg in args)}.",
                expected="keyword arguments only.",
                fix=_as_keyword(names, args[0]),
            )
        for name, value in kwargs.items():
            if name not in names:
                raise _unknown_argument(name, value, names)
        variables = _variables(names, kwargs, prefixes)
        try:
            init(self, **kwargs, **{name: _literal(os.environ[variable]) for name, variable in variables.items()})
        except LightlibError as error:
            _note_variables(error, variables)
            raise

    return cast(Init, checked)  # for type checkers it has the arguments of `init`


def _as_keyword(names: list[str], value: Any) -> str:
    name, example = ("max_epochs", 10) if "max_epochs" in names else ("devices", 2)
    return f"{owner()}({name}={value if type(value) is int else example})"


def _written(fix: str, value: str) -> str:
    return fix.replace("{value}", value).replace("{owner}", owner().name).replace("{loaders}", owner().loaders)


def _unknown_argument(name: str, value: Any, names: list[str]) -> ArgumentTypeError:
    shown = f"{value!r:.60}"
    if name in REMOVED:
        replacement, fix = REMOVED[name]
        return ArgumentTypeError(
            f"{owner()} got `{name}={shown}`, an argument that was removed in Lightning 2.0.",
            expected=f"{replacement}.",
            fix=_written(fix, shown),
        )
    near = get_close_matches(name, names, n=1)
    return ArgumentTypeError(
        f"{owner()} got an unknown argument `{name}={shown}`.{nearest(name, names)}",
        expected=f"an argument of {owner().noun}." if near else f"an argument among {', '.join(names)}.",
        fix=f"{owner()}({near[0]}={shown})" if near else "correct the name or leave it out.",
    )


def refuse_unknown(given: Mapping[str, Any], method: Callable[..., Any], trainer: type) -> None:
    """Raise for arguments that a method of the Trainer does not have.

    Args:
        given: The unknown arguments.
        method: The method.
        trainer: The class, whose own arguments may be meant.
    """
    if not given:
        return
    (name, value), verb = next(iter(given.items())), method.__name__
    parameters = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    shown = " ".join(f"{value!r:.60}".split())
    written = shown if isinstance(value, (bool, int, float, str, type(None))) else "…"
    near = _DATA[name] if _DATA.get(name) in names else closest(name, names)
    trainer_name, trainers = _EPOCHS.get(name, name), inspect.signature(trainer).parameters
    call = f"trainer.{verb}(module, "
    if name in REMOVED:
        hint, fix = f" Its replacement: {REMOVED[name][0]}.", REMOVED[name][1].replace("{value}", written)
    elif trainer_name in trainers:
        hint, fix = f" It is an argument of {trainer.__name__}.", f"{trainer.__name__}({trainer_name}={written})"
    elif name in _OF_DATA_MODULE:
        stage = {"fit": "train", "validate": "val"}.get(verb, verb)
        hint = " It is an argument of a loader."
        rest = ", ".join(f"{each}={given[each]!r:.60}" for each in _OF_DATA_MODULE if each in given)
        fix = f"{call}datamodule=DataModule.from_datasets({stage}_dataset=(x, y), {rest}))"
    elif name in _OF_LOSS:
        hint = " It is an argument of the loss, or a third array of the data."
        fix = "torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0])), or fit(module, (x, y, sample_weights))"
    elif name in _OF_LOADERS:
        hint, fix = " It is an argument of a loader.", f"{call}DataLoader(dataset, {name}={written}))"
    else:
        hint, fix = f" Did you mean {near!r}?" * bool(near), f"{call}{near}={written})" if near else "leave it out."
    raise ArgumentTypeError(
        f"trainer.{verb}() got an unknown argument `{name}={shown}`.{hint}",
        expected=f"an argument among {', '.join(names)}.",
        fix=fix,
    )


def _variables(parameters: list[str], arguments: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the arguments that the environment sets, with the names of the variables."""
    variables = {
        name: prefix + name.upper()
        for name in parameters
        for prefix in reversed(prefixes)
        if name not in arguments and prefix + name.upper() in os.environ
    }
    for variable, names in _TOGETHER.items():
        if variable in os.environ:
            variables |= {
                name: variable for name in names if name in parameters and name not in {*arguments, *variables}
            }
    for variable in os.environ:
        if not variable.startswith(prefixes):
            continue
        prefix = next(prefix for prefix in prefixes if variable.startswith(prefix))
        name = variable[len(prefix) :].lower()
        if not name or name in parameters or variable in _TOGETHER:
            continue
        near = get_close_matches(name, parameters, n=1, cutoff=0.85)
        if name in REMOVED or near:
            hint = (
                f"its replacement: {REMOVED[name][0]}"
                if name in REMOVED
                else f"Did you mean {prefix}{near[0].upper()}?"
            )
            report.warn(
                f"The environment variable {variable}={os.environ[variable]!r} is not read: {owner().noun} has no "
                f"argument `{name}`; {hint}",
                report.PossibleUserWarning,
            )
    return variables


def _note_variables(error: LightlibError, variables: Mapping[str, str]) -> None:
    text = str(error)
    for name, variable in variables.items():
        if re.search(rf"\b{name}\b", text):
            text += (
                f"\n  Note: {name}={_literal(os.environ[variable])!r} comes from the environment variable {variable}; "
                "correct it or unset it."
            )
    error.args = (text,)


def _literal(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
