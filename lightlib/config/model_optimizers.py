"""The optimizer and scheduler of a configuration, in place of the module's `configure_optimizers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

from lightlib import report
from lightlib.config.errors.places import Places
from lightlib.config.optimizers import Classes, instantiate_class, with_class_path
from lightlib.config.parser import LightningArgumentParser
from lightlib.config.placeholders import with_placeholders
from lightlib.conventions import leniency
from lightlib.core.module.module import Module
from lightlib.core.optimization.optimizers import parameters_for
from lightlib.errors import MisconfigurationException


def configured_method(
    module: Module,
    parser: LightningArgumentParser,
    config: Any,
    program: str,
    combine: Callable[..., Any],
    combines_itself: bool,
) -> Callable[[], Any] | None:
    """Return the `configure_optimizers` that returns the configured optimizer and scheduler; None without an optimizer.

    Args:
        module: The model.
        parser: Of the sub-command.
        config: The configuration with objects.
        program: The name of the class of the command line, for errors.
        combine: Its `configure_optimizers`.
        combines_itself: Whether that is an override.

    Raises:
        MisconfigurationException: Parts of the configuration would not be used.
    """
    groups = (parser.optimizers, parser.lr_schedulers)
    chosen = [_automatic(group, config, program) for group in groups]
    (_, optimizer), (key, lr_scheduler) = chosen
    options = config[f"{key}_config"].changed() if key else {}
    if options:
        _reject_unused(options, bool(lr_scheduler), program if combines_itself else None)
    if not optimizer:
        if lr_scheduler:
            reject_scheduler_alone(program if combines_itself else None)
        return None
    if type(module).configure_optimizers is not Module.configure_optimizers:
        report.warn(
            f"The configuration's `optimizer` takes the place of {type(module).__name__}.configure_optimizers.",
            report.PossibleUserWarning,
        )
    places = [
        parser.places_of(init["class_path"], f"{key}.init_args", init.get("init_args") or {})
        for key, init in chosen
        if init
    ]
    return partial(_configured_optimizers, module, optimizer, lr_scheduler, combine, places, options)


def _automatic(group: Mapping[str, tuple[Classes, str]], config: Any, program: str) -> tuple[str, Any]:
    """Return the key and the configuration of the optimizer, or the scheduler, that the model gets without a link."""
    keys = [key for key, (_, target) in group.items() if target == "AUTOMATIC"]
    if len(keys) > 1:
        raise MisconfigurationException(
            f"{program} has several optimizers or schedulers with link_to='AUTOMATIC': {', '.join(keys)}.",
            expected="one of each, or arguments of the model that they are linked to.",
            fix=f'parser.add_optimizer_args(…, "{keys[0]}", link_to="model.{keys[0]}_init"), and '
            "configure_optimizers in the model.",
        )
    if not keys:
        return "", None
    kind, value = group[keys[0]][0], config.get(keys[0])
    if not isinstance(kind, tuple):
        return keys[0], with_class_path(kind, value)
    return keys[0], value.as_dict() if hasattr(value, "as_dict") else value


def reject_scheduler_alone(program: str | None) -> None:
    """Reject a scheduler without an optimizer; a `program` that combines them itself gets a warning."""
    problem = "The configuration has an `lr_scheduler`, but no `optimizer`"
    if program is not None:
        report.warn(
            f"{problem}: {program}.configure_optimizers is not called, and the model's own is.",
            report.PossibleUserWarning,
        )
        return
    error = MisconfigurationException(
        f"{problem}: it would not be used.",
        expected="both, or neither and the module's configure_optimizers.",
        fix="--optimizer AdamW --optimizer.lr 1e-3",
    )
    leniency().tolerate(error, "it is ignored")


def _reject_unused(options: Mapping[str, Any], has_scheduler: bool, program: str | None) -> None:
    """Reject options of a scheduler that does not exist, or that a `program` combines with the optimizer itself."""
    problem = f"The configuration has `lr_scheduler_config` ({', '.join(options)})"
    if not has_scheduler:
        raise MisconfigurationException(
            f"{problem}, but no `lr_scheduler`.",
            expected="a scheduler that steps at this interval.",
            fix="--lr_scheduler CosineAnnealingLR --lr_scheduler.T_max 10",
        )
    if program is not None:
        raise MisconfigurationException(
            f"{problem}, and {program}.configure_optimizers returns the scheduler's dict itself.",
            expected="one of the two.",
            fix=f"leave out lr_scheduler_config, or {program}.configure_optimizers.",
        )


def _configured_optimizers(
    module: Module,
    optimizer: Any,
    lr_scheduler: Any,
    combine: Callable[..., Any],
    places: Sequence[Places],
    options: Mapping[str, Any],
) -> Any:
    """Build the configured optimizer and scheduler when the Trainer requests them, and combine them.

    The strategy may have replaced the module's parameters by then. `combine` is ``LightningCLI.configure_optimizers``,
    `places` are those of the optimizer and of the scheduler, for errors, and `options` set when the scheduler steps.
    """
    if next(module.parameters(), None) is None:
        raise MisconfigurationException(
            f"The configuration has an optimizer, but {type(module).__name__} has no parameters.",
            expected="layers, made in __init__ or configure_model.",
            fix="leave out `optimizer:`.",
        )
    built = _built(module, optimizer, places[0])
    scheduler, monitor = _scheduler(built, lr_scheduler, places, options) if lr_scheduler else (None, None)
    if not options:
        return combine(module, optimizer=built, lr_scheduler=scheduler)
    if monitor and options.get("monitor", monitor) != monitor:
        raise MisconfigurationException(
            f"`lr_scheduler` reads {monitor!r}, and `lr_scheduler_config` has monitor={options['monitor']!r}.",
            expected="one metric.",
            fix="leave out `monitor` in lr_scheduler_config.",
        )
    return {"optimizer": built, "lr_scheduler": {"monitor": monitor, **options, "scheduler": scheduler}}


def _scheduler(
    optimizer: Any, init: Mapping[str, Any], places: Sequence[Places], options: Mapping[str, Any]
) -> tuple[Any, str | None]:
    """Return the scheduler and its metric; a factory if the run puts numbers into its arguments."""
    arguments = {**(init.get("init_args") or {}), **(init.get("dict_kwargs") or {})}
    late = with_placeholders(arguments)
    if late is arguments and not options.get("convert_to_iter_based"):
        scheduler = _built(optimizer, init, places[1])
        return scheduler, getattr(scheduler, "monitor", None)
    return partial(resolve_name(init["class_path"]), **late), arguments.get("monitor")


def _built(first: Any, init: Mapping[str, Any], places: Places) -> Any:
    try:
        if isinstance(first, Module):
            first = parameters_for(resolve_name(init["class_path"]), first)
        return instantiate_class(first, init)
    except Exception as error:
        places.add_to(error)
        raise
