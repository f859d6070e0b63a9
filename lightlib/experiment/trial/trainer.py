"""The Trainer's arguments that follow from an experiment: length, validation, optimizations and slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lightlib.core.setup.length import training_length
from lightlib.errors import MisconfigurationException, shown
from lightlib.experiment.file.config import BATCH_SIZE, ExperimentConfig
from lightlib.experiment.file.units import Length

_UNITS = {  # of a time metric → of a length
    "batch": "batches", "batches": "batches", "epoch": "epochs", "epochs": "epochs",
    "record": "records", "records": "records", "step": "steps", "steps": "steps",
}  # fmt: skip
_DDP = "lightlib.strategies.DDPStrategy"


def named(config: ExperimentConfig, key: str, shown_as: str = "") -> str:
    """Return a key with its file and line, as errors name it."""
    where = config.where(key)
    return f"{(shown_as or key)!r} ({where})" if where else repr(shown_as or key)


def apply_keys(trainer: dict[str, Any], config: ExperimentConfig, hparams: Mapping[str, Any]) -> None:
    """Set the arguments for `optimizations` and `min_validation_period`.

    Args:
        trainer: The Trainer's arguments, which are changed.
        config: The experiment.
        hparams: The hyperparameters; a period in records needs `global_batch_size`, and so does one in epochs with
            `records_per_epoch`.

    Raises:
        MisconfigurationException: The period is in records, and there is no batch size.
    """
    if config.optimizations.aggregation_frequency > 1:
        trainer["accumulate_grad_batches"] = config.optimizations.aggregation_frequency
    if config.optimizations.mixed_precision == "O1":
        trainer["precision"] = "16-mixed"
    if config.min_validation_period is None:
        return
    period = _in_records(config.min_validation_period, config)
    if period.unit == "epochs":
        trainer["val_check_interval"], trainer["check_val_every_n_epoch"] = None, period.amount
        return
    batches = period.amount
    if period.unit == "records":
        batches = max(1, batches // _batch_size(config, hparams, "min_validation_period", config.min_validation_period))
    trainer["val_check_interval"], trainer["check_val_every_n_epoch"] = batches, None


def trial_length(config: ExperimentConfig) -> Length | None:
    """Return the length of a trial in epochs, batches, records or steps; None if the fit decides.

    It is `max_length`, or `max_time` with a `time_metric` that is named after a unit.

    Raises:
        MisconfigurationException: It is in the units of a program, which a fit does not have.

    Example:
        >>> from lightlib.experiment.file import read
        >>> searcher = {"name": "halving", "metric": "loss", "max_trials": 4, "num_rungs": 2}
        >>> searcher |= {"time_metric": "epochs", "max_time": 8}
        >>> trial_length(read({"name": "a", "fit": {"trainer": {}}, "searcher": searcher}))
        Length(unit='epochs', amount=8)
    """
    searcher = config.searcher
    if searcher.max_length is not None:
        if searcher.max_length.unit == "units":
            amount = searcher.max_length.amount
            raise MisconfigurationException(
                f"{named(config, 'searcher.max_length')} is {amount}, without a unit, and the trials are fits.",
                expected="a mapping of one unit, batches, records or epochs, to an int.",
                fix=f"searcher.max_length: {{batches: {amount}}}",
            )
        return searcher.max_length
    prefix, time_metric, max_time = "searcher", searcher.time_metric, searcher.max_time
    if max_time is None and searcher.stopping is not None:
        prefix, time_metric, max_time = "searcher.stopping", searcher.stopping.time_metric, searcher.stopping.max_time
    if max_time is None:
        return None
    unit = _UNITS.get(str(time_metric))
    if unit is None:
        raise MisconfigurationException(
            f"{named(config, f'{prefix}.time_metric')} is {time_metric!r}, which is no unit of a fit.",
            expected="batches, epochs, records or steps.",
            fix=f"{prefix}.time_metric: batches",
        )
    if max_time < 1 or max_time != int(max_time):
        raise MisconfigurationException(
            f"{named(config, f'{prefix}.max_time')} is {max_time}, in {unit}.",
            expected="an int of at least 1.",
            fix=f"{prefix}.max_time: {max(1, round(max_time))}",
        )
    return Length(unit, int(max_time))


def apply_length(
    trainer: dict[str, Any], length: Length | None, config: ExperimentConfig, hparams: Mapping[str, Any]
) -> None:
    """Replace the limits of the Trainer by the length of the trial, and set how often it logs.

    Args:
        trainer: The Trainer's arguments, which are changed.
        length: That of `trial_length`; None leaves the limits as they are.
        config: The experiment.
        hparams: The hyperparameters; a length in records needs `global_batch_size`, and so does one in epochs with
            `records_per_epoch`.

    Raises:
        MisconfigurationException: The length is in records, and there is no batch size.
    """
    if trainer.get("log_every_n_steps") is None:
        trainer["log_every_n_steps"] = max(1, config.scheduling_unit // _accumulated(trainer))
    if length is None:
        return
    for name in ("max_epochs", "max_steps", *(("min_epochs", "min_steps") if config.searcher.has_rungs else ())):
        trainer.pop(name, None)
    trainer |= _limit(length, trainer, config, hparams, _length_key(config))


def checkpoint_period(
    trainer: Mapping[str, Any], config: ExperimentConfig, hparams: Mapping[str, Any]
) -> dict[str, int] | None:
    """Return `min_checkpoint_period` in the unit of a fit, ``{"steps": n}`` or ``{"epochs": n}``; None without one.

    Args:
        trainer: The Trainer's arguments.
        config: The experiment.
        hparams: The hyperparameters; a period in records needs `global_batch_size`, and so does one in epochs with
            `records_per_epoch`.

    Raises:
        MisconfigurationException: The period is in records, and there is no batch size.
    """
    if config.min_checkpoint_period is None:
        return None
    limit = _limit(config.min_checkpoint_period, trainer, config, hparams, "min_checkpoint_period")
    ((name, number),) = limit.items()
    return {name.removeprefix("max_"): number}


def rungs_of_fit(
    amounts: Iterable[int], trainer: Mapping[str, Any], config: ExperimentConfig, hparams: Mapping[str, Any]
) -> tuple[str, tuple[int, ...]]:
    """Return the unit of a trial's rungs, ``"steps"`` or ``"epochs"``, and the rungs in it.

    Args:
        amounts: The rungs in the unit of the trial's length.
        trainer: The Trainer's arguments.
        config: The experiment.
        hparams: The hyperparameters; a length in records needs `global_batch_size`, and so does one in epochs with
            `records_per_epoch`.

    Raises:
        MisconfigurationException: The length is in records, and there is no batch size.
    """
    length = trial_length(config)
    assert length is not None, "a search with rungs has a length"
    key = _length_key(config)
    limits = [_limit(Length(length.unit, amount), trainer, config, hparams, key) for amount in amounts]
    unit = "epochs" if _in_records(length, config).unit == "epochs" else "steps"
    return unit, tuple(next(iter(limit.values())) for limit in limits)


def _in_records(length: Length, config: ExperimentConfig) -> Length:
    """Return a length in epochs in records, if `records_per_epoch` defines an epoch; any other as it is."""
    if length.unit != "epochs" or config.records_per_epoch is None:
        return length
    return Length("records", length.amount * config.records_per_epoch)


def _limit(
    length: Length, trainer: Mapping[str, Any], config: ExperimentConfig, hparams: Mapping[str, Any], key: str
) -> dict[str, int]:
    """Return a length, the value of `key`, as `max_epochs` or `max_steps`."""
    if length.unit == "steps":
        return {"max_steps": length.amount}
    unit, amount = _in_records(length, config)
    size = _batch_size(config, hparams, key, length) if unit == "records" else None
    return training_length(**{unit: amount}, batch_size=size, accumulate_grad_batches=_accumulated(trainer))


def _accumulated(trainer: Mapping[str, Any]) -> int:
    argument = trainer.get("accumulate_grad_batches")
    return argument if type(argument) is int and argument >= 1 else 1  # the Trainer refuses any other value


def apply_slots(trainer: dict[str, Any], config: ExperimentConfig, devices: int, accelerator: str) -> None:
    """Set the devices, the accelerator, and the strategy for `gradient_compression`.

    Args:
        trainer: The Trainer's arguments, which are changed.
        config: The experiment.
        devices: The slots of the trial.
        accelerator: Used unless the Trainer has one.

    Raises:
        MisconfigurationException: The strategy is not DDP, and gradients are to be compressed.
    """
    trainer["devices"] = devices
    if trainer.get("accelerator") in (None, "auto"):
        trainer["accelerator"] = accelerator
    if not config.optimizations.gradient_compression or devices <= 1:
        return
    strategy = trainer.get("strategy")
    if isinstance(strategy, dict) and str(strategy.get("class_path")).rpartition(".")[2] == "DDPStrategy":
        arguments = {"ddp_comm_hook": "fp16", **(strategy.get("init_args") or {})}
        trainer["strategy"] = {**strategy, "init_args": arguments}
    elif strategy in (None, "auto", "ddp"):
        trainer["strategy"] = {"class_path": _DDP, "init_args": {"ddp_comm_hook": "fp16"}}
    else:
        raise MisconfigurationException(
            f"{named(config, 'optimizations.gradient_compression')} is true, and trainer.strategy is "
            f"{shown(strategy)}: only DDP compresses gradients.",
            expected="ddp, auto, or the class DDPStrategy.",
            fix=f"fit: {{trainer: {{strategy: {{class_path: {_DDP}, init_args: {{ddp_comm_hook: fp16}}}}}}}}",
        )


def _batch_size(config: ExperimentConfig, hparams: Mapping[str, Any], key: str, length: Length) -> int:
    value = hparams.get(BATCH_SIZE)
    if type(value) is int and value >= 1:
        return value
    problem = f"is {shown(value)}" if BATCH_SIZE in hparams else "is missing"
    unit, instead = "records", f"write {key} in batches or epochs."
    if length.unit == "epochs":
        unit = f"epochs of {config.records_per_epoch} records, as {named(config, 'records_per_epoch')} has it"
        instead = "delete records_per_epoch: then an epoch is a pass over the dataset."
    raise MisconfigurationException(
        f"{named(config, key)} is in {unit}, and the hyperparameter {BATCH_SIZE!r} {problem}.",
        expected="the samples of a batch over all slots of the trial, an int of at least 1.",
        fix=f"hyperparameters: {{{BATCH_SIZE}: 64}}, or {instead}",
    )


def _length_key(config: ExperimentConfig) -> str:
    if config.searcher.max_length is not None:
        return "searcher.max_length"
    return "searcher.max_time" if config.searcher.max_time is not None else "searcher.stopping.max_time"
