"""The Trainer's plain arguments: checked one by one, then against each other."""

from __future__ import annotations

import ast
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from lightlib import report
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, nearest

__all__ = ["REMOVED", "Settings", "checked_call", "seconds"]

T = TypeVar("T")
REMOVED = {
    "gpus": "accelerator='gpu', devices=…",
    "tpu_cores": "accelerator='tpu', devices=…",
    "num_processes": "accelerator='cpu', devices=…",
    "ipus": "another accelerator; IPUs are no longer supported",
    "resume_from_checkpoint": "trainer.fit(module, ckpt_path=…)",
    "auto_lr_find": "the learning-rate finder",
    "auto_scale_batch_size": "the batch-size finder",
    "auto_select_gpus": "devices='auto'",
    "checkpoint_callback": "enable_checkpointing=…",
    "weights_summary": "enable_model_summary=…",
    "progress_bar_refresh_rate": "callbacks=[RichProgressBar(refresh_rate=…)]",
    "process_position": "callbacks=[TQDMProgressBar(process_position=…)]",
    "flush_logs_every_n_steps": "CSVLogger(flush_logs_every_n_steps=…)",
    "weights_save_path": "default_root_dir=…",
    "terminate_on_nan": "callbacks=[TerminateOnNaN()]",
    "track_grad_norm": "self.log('grad_norm', self.trainer.gradient_norm)",
    "prepare_data_per_node": "`prepare_data_per_node` on the data module",
    "stochastic_weight_avg": "a callback",
    "amp_backend": "precision=…",
    "amp_level": "precision=…",
    "replace_sampler_ddp": "use_distributed_sampler=…",
    "multiple_trainloader_mode": "CombinedLoader(loaders, mode=…)",
    "move_metrics_to_cpu": "nothing: logged CPU values are plain floats already",
    "truncated_bptt_steps": "manual optimization",
    "reload_dataloaders_every_epoch": "reload_dataloaders_every_n_epochs=1",
}


def checked_call(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``Trainer.__init__``: defaults from the environment, and an explanation for unknown arguments.

    Every argument can be defaulted by ``LIGHTLIB_<ARGUMENT>`` or ``PL_TRAINER_<ARGUMENT>``, read as a Python literal.
    """
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise ArgumentTypeError(
                f"Trainer got {len(args)} positional arguments: {', '.join(f'{arg!r:.40}' for arg in args)}.",
                expected="keyword arguments only.",
                fix="Trainer(max_epochs=10)",
            )
        for name in kwargs:
            if name in REMOVED:
                raise ArgumentTypeError(
                    f"Trainer got `{name}`, which left Lightning in 2.0.",
                    expected=REMOVED[name] + ".",
                    fix="write that.",
                )
            if name not in known:
                raise ArgumentTypeError(
                    f"Trainer got an unknown argument `{name}`.{nearest(name, known)}",
                    expected=f"arguments among {', '.join(known)}.",
                    fix="correct the name or leave it out.",
                )
        for name in known:
            for variable in (f"LIGHTLIB_{name.upper()}", f"PL_TRAINER_{name.upper()}"):
                if name not in kwargs and variable in os.environ:
                    kwargs[name] = _literal(os.environ[variable])
        init(self, **kwargs)

    return checked


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


@dataclass
class Settings:
    """The Trainer's plain arguments, in one form: every limit resolved, nothing None that means a default."""

    max_epochs: int | None
    min_epochs: int | None
    max_steps: int
    min_steps: int | None
    max_time: float | None
    limit_train_batches: int | float
    limit_val_batches: int | float
    limit_test_batches: int | float
    limit_predict_batches: int | float
    overfit_batches: int | float
    val_check_interval: int | float
    val_check_seconds: float | None
    check_val_every_n_epoch: int | None
    num_sanity_val_steps: float
    log_every_n_steps: int
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: str | None
    reload_dataloaders_every_n_epochs: int
    fast_dev_run: int
    inference_mode: bool
    detect_anomaly: bool
    barebones: bool
    enable_checkpointing: bool
    enable_progress_bar: bool
    enable_model_summary: bool
    enable_autolog_hparams: bool
    use_distributed_sampler: bool
    sync_batchnorm: bool
    deterministic: bool | str | None
    benchmark: bool | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        """Check every argument and return the settings.

        Raises:
            ArgumentTypeError, MisconfigurationException: By the name of the argument, with what it may be.
        """
        quiet = _barebones(arguments)
        checked = {name: check(name, arguments[name]) for name, check in _CHECKS.items()}
        interval, interval_seconds = _val_check_interval(arguments["val_check_interval"])
        every = checked["check_val_every_n_epoch"]
        if every is None and interval_seconds is None and not isinstance(interval, int):
            raise MisconfigurationException(
                f"check_val_every_n_epoch=None with val_check_interval={arguments['val_check_interval']!r}.",
                expected="an int (batches, counted across epochs) or a time as val_check_interval.",
                fix="Trainer(val_check_interval=1000, check_val_every_n_epoch=None)",
            )
        settings = cls(**checked, val_check_interval=interval, val_check_seconds=interval_seconds)
        settings._settle(quiet)
        return settings

    def _settle(self, quiet: bool) -> None:
        if self.overfit_batches:
            self.limit_train_batches = self.limit_val_batches = self.overfit_batches
        if self.fast_dev_run:
            for stage in ("train", "val", "test", "predict"):
                setattr(self, f"limit_{stage}_batches", self.fast_dev_run)
            self.max_epochs, self.max_steps, self.max_time = 1, self.fast_dev_run, None
            self.min_epochs = self.min_steps = None
            self.val_check_interval, self.val_check_seconds, self.check_val_every_n_epoch = 1.0, None, 1
            self.num_sanity_val_steps, self.enable_checkpointing = 0, False
        if quiet:
            self.num_sanity_val_steps = self.log_every_n_steps = 0
            self.enable_checkpointing = self.enable_progress_bar = False
            self.enable_model_summary = self.enable_autolog_hparams = False
        if self.min_steps and self.min_epochs is None:
            self.min_epochs = 1
        for low, high, unlimited in (("min_epochs", "max_epochs", -1), ("min_steps", "max_steps", -1)):
            least, most = getattr(self, low), getattr(self, high)
            if least and most is not None and most != unlimited and least > most:
                raise MisconfigurationException(
                    f"{low}={least} is more than {high}={most}.",
                    expected=f"{low} <= {high}.",
                    fix="change one of them.",
                )
        if self.gradient_clip_algorithm is not None and self.gradient_clip_val is None:
            report.warn(
                f"gradient_clip_algorithm={self.gradient_clip_algorithm!r} does nothing without gradient_clip_val."
            )

    def limit_epochs(self, has_timer: bool) -> None:
        """Settle `max_epochs` when neither it nor `max_steps` was given."""
        if self.max_epochs is None:
            if self.max_steps == -1 and not has_timer:
                report.warn(
                    "Neither max_epochs nor max_steps was given: training runs for 1000 epochs. "
                    "Trainer(max_epochs=-1) has no limit.",
                    report.PossibleUserWarning,
                )
                self.max_epochs = 1000
            else:
                self.max_epochs = -1


def _or(value: Any, default: T) -> Any | T:
    return default if value is None else value


def whole(name: str, value: Any, least: int) -> int:
    """Return `value` when it is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, float) and value.is_integer():
            raise ArgumentTypeError(
                f"{name} is {value!r} (float).", expected="an int.", fix=f"Trainer({name}={int(value)})"
            )
        raise ArgumentTypeError(
            f"{name} is {value!r} ({type(value).__name__}).",
            expected=f"an int of at least {least}.",
            fix=f"Trainer({name}={max(least, 1)})",
        )
    if value < least:
        meaning = " (-1 is no limit)" if least == -1 else ""
        raise MisconfigurationException(
            f"{name} is {value}.",
            expected=f"an int of at least {least}{meaning}.",
            fix=f"Trainer({name}={max(least, 1)})",
        )
    return value


def flag(name: str, value: Any) -> bool:
    """Return `value` when it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(
            f"{name} is {value!r} ({type(value).__name__}).", expected="True or False.", fix=f"Trainer({name}=True)"
        )
    return value


def limit(name: str, value: Any, default: float) -> int | float:
    """Return a limit: an int is a number of batches, a float a fraction of them."""
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(
            f"{name} is {value!r} ({type(value).__name__}).",
            expected="an int (batches) or a float from 0.0 to 1.0 (a fraction of them).",
            fix=f"Trainer({name}=10) or Trainer({name}=0.1)",
        )
    if value < 0 or (isinstance(value, float) and value > 1.0):
        raise MisconfigurationException(
            f"{name} is {value}.",
            expected="an int >= 0 (batches) or a float from 0.0 to 1.0 (a fraction of them).",
            fix=f"Trainer({name}={int(value)})" if value > 1 else f"Trainer({name}=1.0)",
        )
    return value


def seconds(name: str, value: Any) -> float:
    """Return a duration in seconds: ``"DD:HH:MM:SS"``, a timedelta, or a dict of its arguments."""
    try:
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, Mapping):
            return timedelta(**value).total_seconds()
        if isinstance(value, str):
            days, hours, minutes, rest = (int(part) for part in value.split(":"))
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=rest).total_seconds()
    except (TypeError, ValueError):
        pass
    raise MisconfigurationException(
        f"{name} is {value!r} ({type(value).__name__}).",
        expected='a time: "DD:HH:MM:SS", a datetime.timedelta, or a dict of its arguments.',
        fix=f'Trainer({name}="00:12:00:00") or Trainer({name}={{"hours": 12}})',
    )


def _val_check_interval(value: Any) -> tuple[int | float, float | None]:
    if value is None:
        return 1.0, None
    if isinstance(value, (str, timedelta, Mapping)):
        return 1.0, seconds("val_check_interval", value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(
            f"val_check_interval is {value!r} ({type(value).__name__}).",
            expected="an int (batches), a float (fraction of an epoch) or a time.",
            fix="Trainer(val_check_interval=0.25)",
        )
    if value <= 0 or (isinstance(value, float) and value > 1.0):
        raise MisconfigurationException(
            f"val_check_interval is {value}.",
            expected="an int >= 1 (batches), a float above 0.0 up to 1.0 (fraction of an epoch), or a time.",
            fix=f"Trainer(val_check_interval={max(1, int(value))})",
        )
    return value, None


def _sanity(name: str, value: Any) -> float:
    steps = whole(name, _or(value, 2), -1)
    return float("inf") if steps == -1 else steps


def _clip_value(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(
            f"{name} is {value!r} ({type(value).__name__}).", expected="a number.", fix=f"Trainer({name}=1.0)"
        )
    if value < 0:
        raise MisconfigurationException(f"{name} is {value}.", expected="a number >= 0.", fix=f"Trainer({name}=1.0)")
    return value


def _algorithm(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in ("norm", "value"):
        raise UnknownNameError(name, value, ("norm", "value"))
    return value.lower()


def _deterministic(name: str, value: Any) -> bool | str | None:
    if value in (None, True, False, "warn"):
        return value  # type: ignore[no-any-return]
    raise ArgumentTypeError(
        f"{name} is {value!r}.", expected="True, False or 'warn'.", fix="Trainer(deterministic=True)"
    )


def _barebones(given: Mapping[str, Any]) -> bool:
    if not flag("barebones", given["barebones"]):
        return False
    wants = [
        name
        for name in ("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger")
        if given[name] not in (None, False)
    ]
    wants += [name for name in ("fast_dev_run", "detect_anomaly", "profiler") if given[name]]
    wants += [name for name in ("num_sanity_val_steps", "log_every_n_steps") if given[name]]
    if wants:
        raise MisconfigurationException(
            f"barebones=True together with {', '.join(f'{name}={given[name]!r}' for name in wants)}.",
            expected="barebones alone: it switches all of these off, to measure the loop.",
            fix="leave out barebones, or the others.",
        )
    return True


def _fast(name: str, value: Any) -> int:
    return whole(name, int(value) if isinstance(value, bool) else value, 0)


def _at_least(least: int, default: int | None = None) -> Callable[[str, Any], Any]:
    """Return the check of an int; None is `default`, and stays None without one."""

    def check(name: str, value: Any) -> Any:
        value = default if value is None else value
        return value if value is None else whole(name, value, least)

    return check


def _needed(least: int) -> Callable[[str, Any], int]:
    return lambda name, value: whole(name, value, least)


def _on(name: str, value: Any) -> bool:
    return flag(name, True if value is None else value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "max_epochs": _at_least(-1),
    "min_epochs": _at_least(0),
    "max_steps": _needed(-1),
    "min_steps": _at_least(0),
    "max_time": lambda name, value: None if value is None else seconds(name, value),
    **{
        f"limit_{stage}_batches": lambda name, value: limit(name, value, 1.0)
        for stage in ("train", "val", "test", "predict")
    },
    "overfit_batches": lambda name, value: limit(name, value, 0.0),
    "check_val_every_n_epoch": _at_least(1),
    "num_sanity_val_steps": _sanity,
    "log_every_n_steps": _at_least(0, default=50),
    "accumulate_grad_batches": _needed(1),
    "gradient_clip_val": lambda name, value: None if value is None else _clip_value(name, value),
    "gradient_clip_algorithm": _algorithm,
    "reload_dataloaders_every_n_epochs": _needed(0),
    "fast_dev_run": _fast,
    "detect_anomaly": flag,
    "sync_batchnorm": flag,
    "barebones": flag,
    "inference_mode": _on,
    "use_distributed_sampler": _on,
    "enable_checkpointing": _on,
    "enable_progress_bar": _on,
    "enable_model_summary": _on,
    "enable_autolog_hparams": _on,
    "deterministic": _deterministic,
    "benchmark": lambda name, value: None if value is None else flag(name, value),
}
