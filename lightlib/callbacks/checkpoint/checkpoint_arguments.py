"""Checks of the arguments of ModelCheckpoint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from lightlib.callbacks.checkpoint.checkpoint_names import check_template
from lightlib.callbacks.monitored import check_monitor
from lightlib.checkpoint.formats import FORMATS
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException, check_flag, check_int, check_type, check_word, wrong_value


def check_arguments(
    monitor: str | None,
    save_top_k: int,
    triggers: Mapping[str, object],
    filename: str | None,
    save_last: object,
    async_save: object,
    save_errors: object,
    kind: object,
) -> None:
    """Check the arguments of a `ModelCheckpoint`; `triggers` are those that decide when it saves.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: One has a value that does not exist, two exclude each other, or `filename` leads out
            of the folder.
    """
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
    _check_triggers(triggers)
    if save_last not in (None, True, False, "link"):
        raise wrong_value("ModelCheckpoint", "save_last", save_last, 'True, False, "link" or None', True)
    check_flag("ModelCheckpoint", "async_save", async_save, fix="leave it out.")
    check_word("ModelCheckpoint", "save_errors", save_errors, ("raise", "warn"))
    if kind is not None:
        check_word("ModelCheckpoint", "format", kind, FORMATS)
    if filename is not None:
        check_template(filename)


def check_keep_last(keep_last: object, monitor: str | None, save_top_k: int) -> None:
    """Check `keep_last`, which is an alternative to `monitor` and `save_top_k`.

    Raises:
        ArgumentTypeError: It is no int.
        MisconfigurationException: It is less than 1, or given together with one of the two.
    """
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


def check_save_begin(save_begin: object, interval: timedelta | None) -> None:
    """Check `save_begin`, which counts epochs or steps.

    Raises:
        ArgumentTypeError: It is no int.
        MisconfigurationException: It is negative, or given together with an interval of time.
    """
    check_int("ModelCheckpoint", "save_begin", save_begin, 0, example=10)
    if save_begin and interval is not None:
        raise MisconfigurationException(
            f"ModelCheckpoint(save_begin={save_begin}, train_time_interval=…).",
            expected="save_begin with epochs or steps.",
            fix=f"ModelCheckpoint(save_begin={save_begin}, every_n_train_steps=…)",
        )


def _check_triggers(triggers: Mapping[str, object]) -> None:
    for name in ("every_n_train_steps", "every_n_epochs"):
        check_int("ModelCheckpoint", name, triggers[name], 0)
    interval = triggers["train_time_interval"]
    expected, example = "a datetime.timedelta", "timedelta(minutes=30)"
    check_type("ModelCheckpoint", "train_time_interval", interval, timedelta | None, expected, example)
    given = [name for name, value in triggers.items() if value]
    if len(given) > 1:
        raise MisconfigurationException(
            f"ModelCheckpoint got {' and '.join(given)}.",
            expected="at most one of every_n_train_steps, train_time_interval and every_n_epochs.",
            fix="give each its own callback: callbacks=[ModelCheckpoint(…), ModelCheckpoint(…)].",
        )


def check_link(save_last: object, folder: str) -> None:
    """Refuse ``save_last="link"`` where there are no links.

    Raises:
        MisconfigurationException: The folder is remote.
    """
    if save_last == "link" and filesystem.is_remote(folder):
        raise MisconfigurationException(
            f"ModelCheckpoint(save_last='link') with the remote folder {folder!r}.",
            expected="a local folder: only there can a file be a link.",
            fix="ModelCheckpoint(save_last=True)",
        )
