"""Checks of the arguments of ModelCheckpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.checkpoint.checkpoint_names import check_template
from lightlib.callbacks.durations import Duration, parsed
from lightlib.callbacks.monitored import check_monitor
from lightlib.checkpoint import formats
from lightlib.checkpoint.formats import FORMATS
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException, check_flag, check_int, check_type, check_word, wrong_value

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check the arguments of a `ModelCheckpoint`, by their names.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: One has a value that does not exist, two exclude each other, or `filename` leads out
            of the folder.
    """
    monitor, save_top_k = given["monitor"], given["save_top_k"]
    if monitor is not None:
        check_monitor("ModelCheckpoint", monitor)
    check_int("ModelCheckpoint", "save_top_k", save_top_k, -1, meaning="; -1 keeps all, 0 keeps none")
    if monitor is None and save_top_k not in (-1, 0, 1):
        raise MisconfigurationException(
            f"ModelCheckpoint(save_top_k={save_top_k}, monitor=None): without a metric, no file is better than "
            "another.",
            expected="a metric to compare by, or save_top_k=1 (the latest), -1 (all) or 0 (none).",
            fix=f'ModelCheckpoint(save_top_k={save_top_k}, monitor="val_loss")',
        )
    if given["save_last"] not in (None, True, False, "link"):
        raise wrong_value("ModelCheckpoint", "save_last", given["save_last"], 'True, False, "link" or None', True)
    check_flag("ModelCheckpoint", "async_save", given["async_save"], fix="leave it out.")
    check_word("ModelCheckpoint", "save_errors", given["save_errors"], ("raise", "warn"))
    if given["format"] is not None:
        check_word("ModelCheckpoint", "format", given["format"], FORMATS)
    if given["filename"] is not None:
        check_template(given["filename"])
    _check_keep_last(given["keep_last"], monitor, save_top_k)
    _check_save_begin(given["save_begin"], given["every"] or given["train_time_interval"])
    _check_frozen(given["save"], given["frozen_source"])


def _check_frozen(save: str, source: str | os.PathLike[str] | None) -> None:
    check_word("ModelCheckpoint", "save", save, ("all", "trainable"))
    check_type("ModelCheckpoint", "frozen_source", source, str | os.PathLike | None, "a path", "'base.safetensors'")
    if source is None:
        return
    if save != "trainable":
        raise MisconfigurationException(
            f"ModelCheckpoint(save={save!r}, frozen_source={source!r}).",
            expected="a source of frozen weights only where the checkpoints leave them out.",
            fix=f"ModelCheckpoint(save='trainable', frozen_source={source!r})",
        )
    if not formats.exists(source):
        raise formats.missing(source)


def _check_keep_last(keep_last: object, monitor: str | None, save_top_k: int) -> None:
    if keep_last is None:
        return
    check_int("ModelCheckpoint", "keep_last", keep_last, 1, example=3)
    if monitor is not None or save_top_k != 1:
        other = f"monitor={monitor!r}" if monitor is not None else f"save_top_k={save_top_k}"
        raise MisconfigurationException(
            f"ModelCheckpoint(keep_last={keep_last}, {other}).",
            expected="one of them: the newest are kept by keep_last, the best by monitor and save_top_k.",
            fix=f"callbacks=[ModelCheckpoint(keep_last={keep_last}), ModelCheckpoint({other})]"
            if monitor is not None
            else f"ModelCheckpoint(keep_last={keep_last})",
        )


def _check_save_begin(save_begin: object, interval: timedelta | None) -> None:
    check_int("ModelCheckpoint", "save_begin", save_begin, 0, example=10)
    if save_begin and interval is not None:
        raise MisconfigurationException(
            f"ModelCheckpoint(save_begin={save_begin}, train_time_interval=…).",
            expected="save_begin with epochs or steps.",
            fix=f"ModelCheckpoint(save_begin={save_begin}, every_n_train_steps=…)",
        )


def triggers_of(
    every_n_train_steps: int | None,
    train_time_interval: timedelta | None,
    every_n_epochs: int | None,
    every: str | None,
) -> tuple[int, timedelta | None, int, Duration | None]:
    """Return the steps, the time and the epochs between two saves, 0 or None without them, and any other interval.

    Raises:
        ArgumentTypeError: One has the wrong type.
        MisconfigurationException: More than one is given, a number is negative, or the text is no duration.

    Example:
        >>> triggers_of(None, None, None, "500st"), triggers_of(None, None, None, "1e9tok")
        ((500, None, 0, None), (0, None, 0, '1000000000tok'))
    """
    for name, number in (("every_n_train_steps", every_n_train_steps), ("every_n_epochs", every_n_epochs)):
        check_int("ModelCheckpoint", name, number or 0, 0)
    expected, example = "a datetime.timedelta", "timedelta(minutes=30)"
    check_type("ModelCheckpoint", "train_time_interval", train_time_interval, timedelta | None, expected, example)
    triggers = {
        "every_n_train_steps": every_n_train_steps,
        "train_time_interval": train_time_interval,
        "every_n_epochs": every_n_epochs,
        "every": every,
    }
    active = [name for name, value in triggers.items() if value]
    if len(active) > 1:
        raise MisconfigurationException(
            f"ModelCheckpoint got {' and '.join(active)}.",
            expected="at most one of every_n_train_steps, train_time_interval, every_n_epochs and every.",
            fix="give each its own callback: callbacks=[ModelCheckpoint(…), ModelCheckpoint(…)].",
        )
    if every is None:
        no_trigger = all(value is None for value in triggers.values())
        return every_n_train_steps or 0, train_time_interval, 1 if no_trigger else every_n_epochs or 0, None
    return _by_text(parsed("ModelCheckpoint", "every", every), every)


def _by_text(every: Duration, text: str) -> tuple[int, timedelta | None, int, Duration | None]:
    if every.unit == "s":
        return 0, timedelta(seconds=every.number), 0, None
    if every.number != int(every.number):
        raise wrong_value("ModelCheckpoint", "every", text, "a whole number of epochs", '"1ep"')
    number = int(every.number)
    by_data = None if every.unit in ("st", "ep") else every
    return number if every.unit == "st" else 0, None, number if every.unit == "ep" else 0, by_data


def check_place(save_last: object, folder: str, save: str, trainer: Trainer) -> None:
    """Refuse links where there are none, and to leave out weights where each process cannot have them by name.

    Raises:
        MisconfigurationException: The folder is remote; the strategy is DeepSpeed's, or a plugin writes checkpoints.
    """
    if save_last == "link" and filesystem.is_remote(folder):
        raise MisconfigurationException(
            f"ModelCheckpoint(save_last='link') with the remote folder {folder!r}.",
            expected="a local folder: only there can a file be a link.",
            fix="ModelCheckpoint(save_last=True)",
        )
    if save == "all":
        return
    strategy = trainer.strategy
    by_name = strategy.world_size == 1 or strategy.reads_parts
    if not by_name or strategy.extension.store is not None:
        raise MisconfigurationException(
            f"ModelCheckpoint(save='trainable') with {type(strategy).__name__}"
            f"{' and a plugin for checkpoints' if by_name else ''}.",
            expected="one process, ddp, fsdp, tensor, pipeline or a combination, without such a plugin.",
            fix="leave out save='trainable', or take strategy='fsdp'.",
        )
