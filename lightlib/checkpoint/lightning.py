"""Lightning's checkpoints: the position of the run that wrote one, in any hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def position(content: Mapping[str, Any], window: int = 1) -> dict[str, int]:
    """Return the position of the run: completed epochs, batches in this epoch and in total, steps, last validation.

    A batch counts when it is processed: a file written in on_train_batch_end does not count it as completed yet. With
    an epoch's last batch the schedules have been stepped, so the epoch has ended. The batches of an open accumulation
    window must be run again, because their gradients are not in the file.

    Args:
        content: The content of the file.
        window: Batches per optimizer step of the run that resumes from it.

    Example:
        >>> count = {"ready": 5, "started": 5, "processed": 5, "completed": 4}
        >>> fit = {"epoch_loop.batch_progress": {"total": count, "current": count, "is_last_batch": False}}
        >>> position({"epoch": 0, "global_step": 5, "loops": {"fit_loop": fit}})
        {'epoch': 0, 'epoch_batch': 5, 'batch': 5, 'step': 5, 'validated': 4}
    """
    fit = _fit_loop(content)
    batches = fit.get("epoch_loop.batch_progress", {})
    validation = fit.get("epoch_loop.val_loop.batch_progress", {})
    optimizers = max(len(content.get("optimizer_states", ())), 1)
    step = -(-int(content.get("global_step", 0)) // optimizers)  # Lightning adds up the steps of all optimizers
    done, total = (int(batches.get(span, {}).get("processed", 0)) for span in ("current", "total"))
    total = total if batches else step * window
    begun = int(fit.get("epoch_progress", {}).get("current", {}).get("started", content.get("epoch", 0) + 1))
    ended = batches.get("is_last_batch", True)
    validating = validation.get("current", {}).get("ready", 0) > 0 and not validation.get("is_last_batch", True)
    validated = not validating and batches.get("current", {}).get("completed", 0) == done
    again = 0 if ended else done % window
    return {
        "epoch": begun if ended else max(begun - 1, 0),
        "epoch_batch": 0 if ended else done - again,
        "batch": total - again,
        "step": step,
        "validated": total if ended or validated else total - 1,
    }


def loader_states(content: Mapping[str, Any]) -> list[Any]:
    """Return the states of stateful loaders; in a job of several processes those of rank 0."""
    return list(_fit_loop(content).get("state_dict", {}).get("combined_loader") or [])


def _fit_loop(content: Mapping[str, Any]) -> Mapping[str, Any]:
    state: Mapping[str, Any] = content.get("loops", {}).get("fit_loop", {})
    return state
