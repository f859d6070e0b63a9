"""Checks of the user's objects before the first batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import monitors_of, of_validation
from lightlib.conventions import inspect_callback, leniency
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import ModelModule, Module
from lightlib.core.module.overrides import fixed_parameters, overrides
from lightlib.core.run.misspelt import warn_for_misspelt_hooks
from lightlib.core.setup.signatures import check_signatures
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.translations import fix_for, foreign


def compiler_of(model: Any) -> Callable[..., Any] | None:
    """Return the function that compiles as torch.compile compiled `model`; None if it is not compiled."""
    return getattr(model, "dynamo_ctx", None) if type(model).__name__ == "OptimizedModule" else None


def check_compiled_once(compiler: Callable[..., Any] | None, transforms: Iterable[Any]) -> None:
    """Refuse a compiled module together with a strategy that compiles."""
    if compiler is not None and any(transform.argument == "compile" for transform in transforms):
        raise MisconfigurationException(
            "compile is given twice: the module is compiled, and the Trainer or its strategy has compile=….",
            expected="one of the two.",
            fix="trainer.fit(module), with the options in Trainer(compile={…}).",
        )


def check_module(model: Any, verb: str) -> Module:
    """Return the user's module, unwrapped from torch.compile; `verb` is the method of the Trainer that got it."""
    if model is None:
        raise ArgumentTypeError(
            f"trainer.{verb}() got no model.",
            expected="an instance of lightlib.Module.",
            fix=f"trainer.{verb}(module)",
        )
    compiled = getattr(model, "_orig_mod", None)  # torch.compile keeps the module under this name
    if compiled is not None and type(model).__name__ == "OptimizedModule":
        return check_module(compiled, verb)
    if isinstance(model, Module):
        if "_modules" not in model.__dict__:
            raise MisconfigurationException(
                f"{type(model).__name__}.__init__ did not initialise its base class.",
                expected="super().__init__() before anything else.",
                fix=f"write `super().__init__()` as the first line of {type(model).__name__}.__init__.",
            )
        return model
    if isinstance(model, type):
        description, fix = f"the class {model.__name__}", f"trainer.fit({model.__name__}())"
    elif other := foreign(model):
        description, fix = f"a {other.kind} of `{other.package}` ({type(model).__name__})", other.fix
    elif isinstance(model, nn.Module):
        description, fix = (
            f"a torch.nn.Module ({type(model).__name__})",
            "lightlib.Module.from_model(model, loss, optimizer), or subclass lightlib.Module.",
        )
    else:
        description, fix = shown(model), "trainer.fit(module, train_dataloaders=loader)"
    raise ArgumentTypeError(f"`model` is {description}.", expected="an instance of lightlib.Module.", fix=fix)


def refuse_inference_mode() -> None:
    """Refuse to train in `torch.inference_mode`: tensors that are made in it get no gradients, also later."""
    if torch.is_inference_mode_enabled():
        raise MisconfigurationException(
            "trainer.fit() was called within torch.inference_mode().",
            expected="a call outside of it; torch.no_grad() is no problem.",
            fix="call fit after the `with torch.inference_mode()` block; within a hook of trainer.validate, test or "
            "predict, give that Trainer inference_mode=False.",
        )


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse objects that are not callbacks, and two stateful callbacks under one name."""
    for callback in callbacks:
        if isinstance(callback, type):
            raise ArgumentTypeError(
                f"callbacks holds the class {callback.__name__}.",
                expected="an instance of it.",
                fix=f"callbacks=[{callback.__name__}(…)]",
            )
        if not isinstance(callback, Callback):
            raise ArgumentTypeError(
                f"callbacks holds {shown(callback)}.",
                expected="instances of lightlib.Callback.",
                fix=fix_for(callback) or "subclass lightlib.Callback, or use lightlib.callbacks.LambdaCallback.",
            )
        if sum(other is callback for other in callbacks) > 1:
            twice = MisconfigurationException(
                f"callbacks holds one {type(callback).__name__} object twice.",
                expected="every callback once; otherwise its hooks are called twice.",
                fix="leave one out.",
            )
            leniency().tolerate(twice, "its hooks are called twice")
        warn_for_misspelt_hooks(callback, Callback)
        check_signatures(callback, Callback)
        inspect_callback(callback)
    stateful = [c for c in callbacks if overrides(c, Callback, "state_dict") or overrides(c, Callback, "sharded_state")]
    keys = [c.state_key for c in stateful]
    for callback, key in zip(stateful, keys, strict=True):
        if keys.count(key) > 1:
            by_arguments = type(callback).state_key is not Callback.state_key
            instead = ", or give them different values of an argument that is part of the key." if by_arguments else "."
            raise MisconfigurationException(
                f"Two callbacks would save their state under the key {key!r}.",
                expected="a different state_key for every stateful callback.",
                fix=f"override `state_key` in one of them{instead}",
            )


def check_datamodule(datamodule: DataModule) -> None:
    """Refuse hooks with other arguments than they get, and warn about misspelt ones."""
    warn_for_misspelt_hooks(datamodule, DataModule)
    check_signatures(datamodule, DataModule)


def check_steps(module: Module, stage: str, has_val: bool, val_wanted: bool, callbacks: Sequence[Any]) -> bool:
    """Refuse a module without a method that `stage` calls. Return whether a fit may validate."""
    warn_for_misspelt_hooks(module, Module)
    name, call = type(module).__name__, f"Trainer.{stage}"
    steps = {"fit": "training_step", "validate": "validation_step", "test": "test_step", "predict": "predict_step"}
    has_step = overrides(module, Module, steps[stage])
    if not has_step and (stage != "predict" or type(module).forward is nn.Module.forward):
        raise _lacks(name, steps[stage], call, " (or `forward`, which it calls)" if stage == "predict" else "")
    _refuse_unknown_arguments(module, steps[stage])
    check_signatures(module, Module)
    if stage != "fit":
        return True
    if not overrides(module, Module, "configure_optimizers"):
        raise _lacks(name, "configure_optimizers", call)
    defined = overrides(module, Module, "validation_step")
    if not val_wanted or not (defined or has_val):
        return True
    if not defined:
        leniency().tolerate(
            MisconfigurationException(
                f"There are validation loaders, but {name} has no validation_step.",
                expected="both or neither.",
                fix=f"define {name}.validation_step(self, batch, batch_idx), or leave out the loaders.",
            ),
            "nothing is validated",
        )
        return False
    if not has_val:
        refuse_unvalidated(module, monitors_of(callbacks, ()))
        if not isinstance(module, ModelModule):
            report.warn(
                f"{name} has a validation_step, but there are no validation loaders: nothing is validated.\n"
                "  Expected: both or neither.\n"
                "  Fix: pass val_dataloaders (or define val_dataloader), or Trainer(limit_val_batches=0).",
                report.PossibleUserWarning,
            )
    _refuse_unknown_arguments(module, "validation_step")
    return True


def refuse_unvalidated(module: Module, monitors: Iterable[tuple[str, str]]) -> None:
    """Refuse monitors of validation metrics in a fit that has a validation_step, but no validation data.

    Args:
        module: The module.
        monitors: The result of `monitors_of`.
    """
    for owner, monitor in monitors:
        if of_validation(monitor):
            leniency().tolerate(
                MisconfigurationException(
                    f"{owner}(monitor={monitor!r}): {type(module).__name__} has a validation_step, but there are no "
                    "validation loaders, so nothing logs this metric.",
                    expected="validation loaders, or a monitored metric of training.",
                    fix="pass val_dataloaders (or define val_dataloader), or change `monitor`.",
                ),
                "nothing is validated",
            )


def _lacks(name: str, needed: str, call: str, more: str = "") -> MisconfigurationException:
    arguments = "self" if needed.startswith("configure") else "self, batch, batch_idx"
    return MisconfigurationException(
        f"{name} has no `{needed}`, which {call} calls.",
        expected=f"a method `{needed}({arguments})`{more}.",
        fix=f"define it in {name}.",
    )


def check_optimization(module: Module, settings: Any) -> None:
    """Refuse Trainer arguments that manual optimization leaves to the user."""
    automatic: Any = module.automatic_optimization
    if not isinstance(automatic, bool):
        raise ArgumentTypeError(
            f"{type(module).__name__}.automatic_optimization is {shown(automatic)}.",
            expected="True or False.",
            fix="self.automatic_optimization = False",
        )
    if automatic:
        return
    for argument, off, hand in (
        ("gradient_clip_val", None, "self.clip_gradients(optimizer, …)"),
        ("global_batch_size", None, "optimizer.step() every n batches"),
        ("accumulate_grad_batches", 1, "optimizer.step() every n batches"),
    ):
        value = getattr(settings, argument)
        if value not in (off, 0):
            raise MisconfigurationException(
                f"Trainer({argument}={value}) with manual optimization: {type(module).__name__} sets "
                "automatic_optimization = False.",
                expected=f"{argument} left at its default: in manual optimization you control the steps.",
                fix=f"call {hand} in training_step.",
            )


def check_schedulers(module: Module, configs: Iterable[Any]) -> None:
    """Refuse a scheduler with a `step` that needs more arguments than it gets, unless the module calls it."""
    if not module.automatic_optimization or overrides(module, Module, "lr_scheduler_step"):
        return
    for config in configs:
        if config.counts or config.interval == "manual":
            continue
        name, step = type(config.scheduler).__name__, config.scheduler.step
        try:
            inspect.signature(step).bind(*([0.0] if config.reduce_on_plateau else []))
        except ValueError:  # a method without a signature
            continue
        except TypeError as error:
            needed = str(error).rpartition("argument: '")[2].rstrip("'")
            argument = {"epoch": "self.current_epoch + 1"}.get(needed, f"{needed}=…" if needed.isidentifier() else "…")
            raise MisconfigurationException(
                f"{name}.step cannot be called with {'the metric alone' if config.reduce_on_plateau else 'nothing'}: "
                f"{error}.",
                expected="a `step` without required arguments, or with 'reduce_on_plateau': True the metric alone.",
                fix=f"in {type(module).__name__} write\n"
                f"    def lr_scheduler_step(self, scheduler, metric):\n        scheduler.step({argument})",
            ) from None


def step_with_loader(method: Callable[..., Any], num_loaders: int, owner: str) -> Callable[..., Any]:
    """Adapt `method` to calls with (batch, batch_idx[, dataloader_idx]), whichever of these it takes."""
    parameters = fixed_parameters(method)
    if parameters is None:
        return method
    takes = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if num_loaders > 1 and not any(p.name == "dataloader_idx" for p in parameters):
        raise MisconfigurationException(
            f"{owner}.{method.__name__} takes no `dataloader_idx`, but there are {num_loaders} loaders.",
            expected="an argument of exactly this name.",
            fix=f"def {method.__name__}(self, batch, batch_idx, dataloader_idx=0):",
        )
    if takes == 0:
        raise MisconfigurationException(
            f"{owner}.{method.__name__} takes no batch.",
            expected="the arguments (self, batch, batch_idx).",
            fix=f"def {method.__name__}(self, batch, batch_idx):",
        )
    if takes == 1:
        return lambda batch, *where: method(batch)
    if num_loaders == 1 and any(p.name == "dataloader_idx" and p.default is p.empty for p in parameters):
        return lambda batch, i: method(batch, i, dataloader_idx=0) if takes > 2 else method(batch, dataloader_idx=0)
    if takes == 2 and num_loaders > 1:
        return lambda batch, i, dataloader_idx: method(batch, dataloader_idx=dataloader_idx)
    return method


def step_of_any_loaders(method: Callable[..., Any], owner: str) -> Callable[..., Any]:
    """Adapt `method` as :func:`step_with_loader` does, at its first call: only then the number of loaders is known."""
    adapted: list[Callable[..., Any]] = []

    def step(batch: Any, *where: int) -> Any:
        if not adapted:
            adapted.append(step_with_loader(method, len(where), owner))
        return adapted[0](batch, *where)

    return step


def check_hooks_of_several_loaders(owners: Iterable[tuple[Any, type, int]], stage: str, loaders: int) -> None:
    """Refuse batch hooks that do not take the index of the loader.

    Args:
        owners: The module and the callbacks, each with its base class and the number of arguments before the batch.
    """
    for owner, base, before in owners:
        for name, number in ((f"on_{stage}_batch_start", 3), (f"on_{stage}_batch_end", 4)):
            if overrides(owner, base, name) and not _takes(getattr(owner, name), before + number):
                raise MisconfigurationException(
                    f"{type(owner).__name__}.{name} takes no `dataloader_idx`, but there are {loaders} loaders.",
                    expected="`dataloader_idx` as the last argument.",
                    fix=f"def {name}(self, …, batch_idx, dataloader_idx=0):",
                )


def _takes(call: Callable[..., Any], number: int) -> bool:
    parameters = fixed_parameters(call)
    return (
        parameters is None
        or any(p.name == "dataloader_idx" for p in parameters)
        or sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) >= number
    )


def _refuse_unknown_arguments(module: Module, name: str) -> None:
    """Refuse arguments that a step never gets: those of Lightning 1.x, and unknown ones without a default."""
    owner = type(module).__name__
    parameters = [p for p in fixed_parameters(getattr(module, name)) or () if p.name != "dataloader_idx"]
    further = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][2:]
    further += [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    needed = [p.name for p in further if p.default is p.empty]
    needed += [p.name for p in parameters if p.name in ("dataloader_iter", "optimizer_idx", "hiddens")]
    if not needed:
        return
    fixes = {
        "optimizer_idx": "with several optimizers set self.automatic_optimization = False and step each of them in "
        "training_step.",
        "hiddens": "set self.automatic_optimization = False, and keep the hidden states on self.",
        "dataloader_iter": f"def {name}(self, batch, batch_idx): each call gets one batch.",
    }
    fixable = next((argument for argument in needed if argument in fixes), None)
    raise MisconfigurationException(
        f"{owner}.{name} has the argument `{fixable or needed[0]}`, which it is not called with.",
        expected="the arguments (self, batch, batch_idx)"
        + ("." if name == "training_step" else " and, with several loaders, dataloader_idx."),
        fix=fixes[fixable] if fixable else f"def {name}(self, batch, batch_idx):",
    )
