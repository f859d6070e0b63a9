"""Settings: the Trainer's plain arguments, checked one by one, then against each other."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, TypeVar

import torch

from lightlib import paths, report
from lightlib.callbacks import durations
from lightlib.callbacks.durations import Duration
from lightlib.core.progress.plan import Intervals
from lightlib.core.setup.durations import with_durations
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, nearest, owner, shown

T = TypeVar("T")
_TIMES = {"weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds"}  # arguments of timedelta


def _at_least(least: int) -> Callable[[str, Any], int]:
    return lambda name, value: integer(name, value, least)


def _or_none(check: Callable[[str, Any], T]) -> Callable[[str, Any], T | None]:
    return lambda name, value: None if value is None else check(name, value)


def _or_default(check: Callable[[str, Any], T], default: T) -> Callable[[str, Any], T]:
    return lambda name, value: default if value is None else check(name, value)


def integer(name: str, value: Any, least: int) -> int:
    """Return `value` if it is an int of at least `least`."""
    meaning = " (-1 is no limit)" if least == -1 else ', or "auto"' if name == "accumulate_grad_batches" else ""
    expected = f"an int of at least {least}{meaning}."
    if isinstance(value, bool) or not isinstance(value, int):
        number = _as_int(value, least)
        fix = f"{owner()}({name}={max(least, 1) if number is None else number})"
        if name == "accumulate_grad_batches" and isinstance(value, Mapping):
            fix = f"Trainer(callbacks=[GradientAccumulationScheduler({value!r})])"
        raise ArgumentTypeError(f"{name} is {shown(value)}.", expected=expected, fix=fix)
    if value < least:
        raise MisconfigurationException(
            f"{name} is {value}.", expected=expected, fix=f"{owner()}({name}={-1 if least == -1 else max(least, 1)})"
        )
    return value


def _epochs(name: str, value: Any) -> int | float:
    """Return a number of epochs, which may be a float above 0; 2.0 is 2."""
    if not isinstance(value, float) or value == -1:
        return integer(name, value, -1)
    if not 0 < value < math.inf:
        raise ArgumentTypeError(
            f"{name} is {value!r} (float).",
            expected="an int of at least -1 (-1 is no limit), or a float above 0.",
            fix=f"Trainer({name}=1.5)",
        )
    return int(value) if value.is_integer() else value


def _of_loaders(check: Callable[[str, Any], T]) -> Callable[[str, Any], T | dict[str, T]]:
    """Return a check of one value, or of a dict of them by the names of loaders."""

    def checked(name: str, value: Any) -> T | dict[str, T]:
        if not isinstance(value, Mapping):
            return check(name, value)
        odd = next((key for key in value if not isinstance(key, str) or not key), None)
        if not value or odd is not None:
            raise MisconfigurationException(
                f"{name} is {shown(value)}.",
                expected="one value, or values by the names of loaders, which are texts.",
                fix=f'Trainer({name}={{"clean": 1}})',
            )
        try:
            return {str(key): check(name, each) for key, each in value.items()}
        except MisconfigurationException as error:
            report.add_note(error, f"It is an entry of {name}={dict(value)!r}.")
            raise

    return checked


def _interval(name: str, value: Any) -> int | Intervals:
    return _intervals(name, value) if isinstance(value, (list, tuple)) else integer(name, value, 1)


def _intervals(name: str, value: Sequence[Any]) -> Intervals:
    """Return intervals that change: pairs of a start and an interval, in order."""
    pairs = tuple(tuple(pair) if isinstance(pair, (list, tuple)) else (pair,) for pair in value)
    whole = all(len(pair) == 2 and all(type(number) is int for number in pair) for pair in pairs)
    starts = [pair[0] for pair in pairs] if whole else []
    if not pairs or not whole or min(starts) < 0 or min(n for _, n in pairs) < 1 or starts != sorted(set(starts)):
        raise MisconfigurationException(
            f"{name} is {shown(value)}.",
            expected="pairs of ints (start, interval) with rising starts >= 0 and intervals >= 1: from each start on, "
            "validate at the multiples of its interval.",
            fix=f"Trainer({name}=[(0, 1), (10, 5)])",
        )
    return pairs


def root_folder(given: Any) -> str:
    """Return `default_root_dir` as an absolute path or an address."""
    if given is not None and not isinstance(given, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"default_root_dir is {shown(given)}.", expected="a path.", fix="Trainer(default_root_dir='runs')"
        )
    return paths.resolve(os.path.expanduser(os.fspath(given or os.getcwd())))


def refuse_intervals_within_epochs(interval: Intervals | Mapping[str, Any], across: bool) -> None:
    """Refuse intervals in batches that change, or differ between loaders, unless the entire run counts them."""
    if not across:
        shown_interval = dict(interval) if isinstance(interval, Mapping) else [*interval]
        raise MisconfigurationException(
            f"val_check_interval={shown_interval} with batches that are counted from the start of each epoch.",
            expected="intervals that change, or differ between loaders, to be counted over the entire run.",
            fix=f"Trainer(val_check_interval={shown_interval}, check_val_every_n_epoch=None)"
            + (", or intervals in epochs: check_val_every_n_epoch={…}" if isinstance(interval, Mapping) else ""),
        )


def _as_int(value: Any, least: int) -> int | None:
    """Return the int that a string or a float stands for, as a suggestion."""
    try:
        number = int(value) if isinstance(value, str) or (isinstance(value, float) and value.is_integer()) else None
    except ValueError:
        return None
    return number if number is not None and number >= least else None


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool):
        meant = bool(value) if value in (0, 1) else str(value).lower() not in ("no", "off", "false", "none")
        raise ArgumentTypeError(f"{name} is {shown(value)}.", expected="True or False.", fix=f"Trainer({name}={meant})")
    return value


def _number(name: str, value: Any, expected: str, most: float, fix: str) -> int | float:
    """Return `value` if it is a number of at least 0; a float of at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name} is {shown(value)}.", expected=expected, fix=f"Trainer({fix})")
    if not value >= 0 or (isinstance(value, float) and value > most):
        meant = int(value) if 1 < value < math.inf else 1.0
        raise MisconfigurationException(f"{name} is {value}.", expected=expected, fix=f"Trainer({name}={meant})")
    return value


def limit(name: str, value: Any) -> int | float:
    """Return a limit: an int is a number of batches, a float a fraction of them."""
    expected = "an int >= 0 (batches) or a float from 0.0 to 1.0 (a fraction of them)."
    return _number(name, value, expected, 1.0, f"{name}=10) or Trainer({name}=0.1")


def seconds(name: str, value: Any) -> float:
    """Return a time in seconds, in one of the forms of `lightlib.callbacks.durations.seconds`."""
    named = name == "val_check_interval" and isinstance(value, Mapping) and value and not set(value) & _TIMES
    more = "; with check_val_every_n_epoch=None also batches by the names of loaders" if named else ""
    return durations.seconds(owner(), name, value, more)


def _val_check_interval(
    value: Any, across: bool
) -> tuple[int | float | Intervals | Mapping[str, int | Intervals], float | None]:
    name = "val_check_interval"
    expected = (
        "an int >= 1 (batches), a float above 0.0 up to 1.0 (fraction of an epoch), a time, or a text as '1e6tok'."
    )
    if value is None:
        return 1.0, None
    if isinstance(value, Mapping) and across and not set(value) & _TIMES:
        return _of_loaders(_interval)(name, value), None
    if isinstance(value, (str, timedelta, Mapping)):
        return 1.0, seconds(name, value)
    if isinstance(value, (list, tuple)):
        return _intervals(name, value), None
    if value == 0 and not isinstance(value, bool):
        raise MisconfigurationException(f"{name} is {value}.", expected=expected, fix=f"Trainer({name}=1.0)")
    return _number(name, value, expected, 1.0, f"{name}=0.25"), None


def _fast_dev_run(name: str, value: Any) -> int | bool:
    if value in (0, 1) and isinstance(value, int):
        return bool(value)
    if not isinstance(value, int) or value < 0:
        error_class = MisconfigurationException if isinstance(value, int) else ArgumentTypeError
        raise error_class(
            f"{name} is {shown(value)}.",
            expected="True, False, or an int of at least 0 (a number of batches).",
            fix=f"Trainer({name}=True)",
        )
    return value


def _sanity(name: str, value: Any) -> float:
    if value == math.inf:
        return math.inf
    steps = integer(name, value, -1)
    return math.inf if steps == -1 else steps


def _clip_value(name: str, value: Any) -> float:
    return _number(name, value, "a number >= 0.", math.inf, f"{name}=1.0")


def _algorithm(name: str, value: Any) -> str:
    if not isinstance(value, str) or value.lower() not in ("norm", "value"):
        raise UnknownNameError(name, value, ("norm", "value"), fix=f"Trainer({name}='norm')")
    return value.lower()


def _deterministic(name: str, value: Any) -> bool | str:
    if isinstance(value, bool) or value == "warn":
        return value  # type: ignore[no-any-return]
    error_class = MisconfigurationException if isinstance(value, str) else ArgumentTypeError
    raise error_class(
        f"{name} is {shown(value)}.{nearest(str(value), ['warn'])}",
        expected="True, False or 'warn'.",
        fix=f"Trainer({name}='warn')" if isinstance(value, str) else f"Trainer({name}={bool(value)})",
    )


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} is {shown(value)}.", expected="a string.", fix="leave it out: it is not used.")
    return value


def _checked(check: Callable[[str, Any], Any]) -> Any:
    """Return a field with the function that checks the user's value and returns the setting."""
    return field(metadata={"check": check})


@dataclass(kw_only=True)
class Settings:
    """The Trainer's plain arguments in one form: limits are resolved, and None never means a default."""

    max_epochs: int | float | None = _checked(_or_none(_epochs))
    min_epochs: int | None = _checked(_or_none(_at_least(0)))
    max_steps: int = _checked(_at_least(-1))
    min_steps: int | None = _checked(_or_none(_at_least(0)))
    max_time: float | None = _checked(_or_none(seconds))
    max_duration: Duration | None  # in batches, samples or tokens; other units set a limit above
    validate_each: Duration | None  # in optimizer steps, samples or tokens; other units set an interval below
    limit_train_batches: int | float = _checked(_or_default(limit, 1.0))
    limit_val_batches: int | float | Mapping[str, int | float] = _checked(_or_default(_of_loaders(limit), 1.0))
    limit_test_batches: int | float | Mapping[str, int | float] = _checked(_or_default(_of_loaders(limit), 1.0))
    limit_predict_batches: int | float | Mapping[str, int | float] = _checked(_or_default(_of_loaders(limit), 1.0))
    overfit_batches: int | float = _checked(_or_default(limit, 0.0))
    val_check_interval: int | float | Intervals | Mapping[str, int | Intervals]
    val_check_seconds: float | None
    check_val_every_n_epoch: int | tuple[tuple[int, int], ...] | Mapping[str, Any] | None = _checked(
        _or_none(_of_loaders(_interval))
    )
    val_check_at_end: bool = _checked(flag)
    num_sanity_val_steps: float = _checked(_or_default(_sanity, 2))
    log_every_n_steps: int = _checked(_or_default(_at_least(0), 50))
    accumulate_grad_batches: int = _checked(_at_least(1))
    global_batch_size: int | None = _checked(_or_none(_at_least(1)))
    gradient_clip_val: float | None = _checked(_or_none(_clip_value))
    gradient_clip_algorithm: str | None = _checked(_or_none(_algorithm))
    reload_dataloaders_every_n_epochs: int = _checked(_at_least(0))
    fast_dev_run: int | bool = _checked(_fast_dev_run)
    inference_mode: bool = _checked(flag)
    detect_anomaly: bool = _checked(flag)
    barebones: bool = _checked(flag)
    enable_checkpointing: bool = _checked(_or_default(flag, True))
    enable_progress_bar: bool = _checked(_or_default(flag, True))
    enable_model_summary: bool = _checked(_or_default(flag, True))
    enable_autolog_hparams: bool = _checked(flag)
    save_user_state: bool = _checked(flag)
    use_distributed_sampler: bool = _checked(flag)
    sync_batchnorm: bool = _checked(flag)
    deterministic: bool | str | None = _checked(_or_none(_deterministic))
    benchmark: bool | None = _checked(_or_none(flag))
    limit_is_a_guess: bool = field(default=False, init=False)
    halves_batches: bool = field(default=False, init=False)  # accumulate_grad_batches="auto"
    last_batch: float = field(default=math.inf, init=False)  # with which `max_duration` was reached
    given_accumulation: int | None = field(default=None, init=False)  # given together with a global batch size

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        """Check every argument and return the settings."""
        expanded = with_durations(arguments)
        _refuse_with_barebones(expanded)
        _or_none(_text)("model_registry", expanded["model_registry"])
        flag("suggest_integrations", expanded["suggest_integrations"])
        data = {name: expanded[name] for name in ("max_duration", "validate_each")}
        halves = expanded["accumulate_grad_batches"] == "auto"
        expanded |= {"accumulate_grad_batches": 1} if halves else {}
        values = {name: check(name, expanded[name]) for name, check in _checks().items()}
        across = values["check_val_every_n_epoch"] is None
        interval, interval_seconds = _val_check_interval(expanded["val_check_interval"], across)
        settings = cls(**values, **data, val_check_interval=interval, val_check_seconds=interval_seconds)
        settings.halves_batches = halves
        if isinstance(interval, (tuple, Mapping)):
            refuse_intervals_within_epochs(interval, across)
        elif across and not (interval_seconds or settings.validate_each or isinstance(interval, int)):
            raise MisconfigurationException(
                f"check_val_every_n_epoch=None with val_check_interval={expanded['val_check_interval']!r}.",
                expected="an int (batches, counted across epochs) or a time as val_check_interval.",
                fix="Trainer(val_check_interval=1000, check_val_every_n_epoch=None)",
            )
        settings._settle(expanded)
        if settings.global_batch_size is not None and settings.accumulate_grad_batches > 1:
            settings.given_accumulation = settings.accumulate_grad_batches
        return settings

    def change(self, name: str, value: Any) -> None:
        """Change one setting, with the same checks as in ``Trainer(…)``."""
        if name == "val_check_interval":
            across = self.check_val_every_n_epoch is None
            self.val_check_interval, self.val_check_seconds = _val_check_interval(value, across)
        else:
            setattr(self, name, _checks()[name](name, value))
        self.limit_is_a_guess &= name not in ("max_epochs", "max_steps")

    def restore(self, name: str, value: Any) -> None:
        """Put back a value that was checked when it was set."""
        setattr(self, name, value)

    def end_at(self, batch: float) -> None:
        """Set the batch after which the run ends, when samples or tokens have reached their limit."""
        self.last_batch = batch

    def _settle(self, arguments: Mapping[str, Any]) -> None:
        if self.overfit_batches:
            self._overfit(arguments)
        if self.fast_dev_run:
            for stage in ("train", "val", "test", "predict"):
                setattr(self, f"limit_{stage}_batches", int(self.fast_dev_run))
            self.max_epochs, self.max_steps, self.max_time = 1, int(self.fast_dev_run), None
            self.max_duration = self.validate_each = None
            self.min_epochs = self.min_steps = None
            self.val_check_interval, self.val_check_seconds, self.check_val_every_n_epoch = 1.0, None, 1
            self.num_sanity_val_steps, self.enable_checkpointing = 0, False
        if self.barebones:
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
                    fix=f"Trainer({low}={most}, {high}={most}) or Trainer({low}={least}, {high}={least})",
                )
        if self.gradient_clip_algorithm is not None and self.gradient_clip_val is None:
            report.warn(
                f"gradient_clip_algorithm={self.gradient_clip_algorithm!r} does nothing without gradient_clip_val.\n"
                "  Expected: both, or neither.\n  Fix: Trainer(gradient_clip_val=1.0, …)"
            )

    def _overfit(self, arguments: Mapping[str, Any]) -> None:
        for name in ("limit_train_batches", "limit_val_batches"):
            if name == "limit_val_batches" and arguments[name] == 0:
                continue
            if arguments[name] not in (None, self.overfit_batches):
                report.info(
                    f"overfit_batches={self.overfit_batches} replaces {name}={arguments[name]}.\n"
                    f"  Expected: one of the two.\n  Fix: leave out {name} or overfit_batches."
                )
            setattr(self, name, self.overfit_batches)

    def limit_epochs(self, has_timer: bool) -> None:
        if self.max_epochs is None:
            self.limit_is_a_guess = self.max_steps == -1 and self.max_duration is None and not has_timer
            self.max_epochs = 1000 if self.limit_is_a_guess else -1

    def warn_if_unlimited(self) -> None:
        if self.limit_is_a_guess:
            report.warn(
                "Neither max_epochs nor max_steps was given: training runs for 1000 epochs. "
                "Trainer(max_epochs=-1) has no limit.",
                report.PossibleUserWarning,
            )

    def set_torch_flags(self) -> None:
        """Set the global flags of torch for which the user gave a value."""
        if self.deterministic is not None:
            if self.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(bool(self.deterministic), warn_only=self.deterministic == "warn")
            if self.deterministic and self.benchmark:
                report.warn(
                    "benchmark=True may choose different kernels in every run; deterministic=True requires the same "
                    "ones."
                )
        if self.benchmark is not None or self.deterministic:
            torch.backends.cudnn.benchmark = bool(self.benchmark)


def replace_settings(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return a copy of `settings` with other values, which are not checked again."""
    other = copy.copy(settings)
    vars(other).update(values)
    return other


def _checks() -> dict[str, Callable[[str, Any], Any]]:
    return {each.name: each.metadata["check"] for each in fields(Settings) if "check" in each.metadata}


def _refuse_with_barebones(arguments: Mapping[str, Any]) -> None:
    if not flag("barebones", arguments["barebones"]):
        return
    wants = [
        name
        for name in ("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger")
        if arguments[name] not in (None, False)
    ]
    wants += [name for name in ("fast_dev_run", "detect_anomaly", "profiler") if arguments[name]]
    wants += [name for name in ("num_sanity_val_steps", "log_every_n_steps") if arguments[name]]
    if wants:
        raise MisconfigurationException(
            f"barebones=True together with {', '.join(f'{name}={arguments[name]!r}' for name in wants)}.",
            expected="barebones alone: it turns all of these off, to measure the loop.",
            fix=f"leave out barebones, or {' and '.join(wants)}.",
        )
