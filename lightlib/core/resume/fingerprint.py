"""Fingerprint of a run's settings and data, saved in checkpoints and compared on resume."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.checkpoint.storage.content import lightlib_state
from lightlib.core.resume.options import Resume
from lightlib.core.resume.step_sizes import StepSizes
from lightlib.core.values.hparams import plain_hparams
from lightlib.core.values.restoring import same
from lightlib.data.seed import SEED_VARIABLE, seed_was_chosen
from lightlib.errors import CheckpointError

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_WORDS = {
    "seed": "the seed (seed_everything)",
    "torch": "the version of torch",
    "threads": "torch's number of threads, which changes the order of sums",
}


def setting(run: Run) -> dict[str, Any]:
    """Return all settings that the numbers of a run depend on, as plain values."""
    settings, trainer = run.trainer.settings, run.trainer
    return {
        "seed": os.environ.get(SEED_VARIABLE),
        "accumulate_grad_batches": [list(change) for change in run.plan.accumulate_changes] or run.plan.accumulate,
        "gradient_clip_val": settings.gradient_clip_val,
        "gradient_clip_algorithm": settings.gradient_clip_algorithm,
        "precision": trainer.precision,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


def compare(run: Run, content: Mapping[str, Any], hparams: Mapping[str, Any], parts: Resume) -> None:
    """Report differences from the run that wrote the checkpoint, in all entries that both have.

    Args:
        hparams: The module's hyperparameters, as a checkpoint would hold them now.
        parts: The parts to restore, and the reaction to a difference. Only a full resume has to be the same run.
    """
    lightlib_content = lightlib_state(content)
    saved = lightlib_content.get("setting")
    if parts.changes == "ignore" or not parts.progress or not isinstance(saved, Mapping):
        return
    data = lightlib_content.get("data")
    steps = StepSizes.of(run, saved, data)
    if steps is not None and run.trainer.settings.global_batch_size is not None:
        steps.refuse_changed(run)
    differences = [] if steps is None else list(steps.differences())
    differences += _differences(saved, setting(run), hparams, content, left_out=steps is not None)
    if data and run.train_data is not None:
        differences += run.train_data.differences(data)
    if not differences:
        return
    lines = "".join(f"\n    {line}" for line in differences)
    if parts.changes == "refuse":
        raise CheckpointError(
            f"The run is not the one that wrote the checkpoint:{lines}",
            expected="the same data, seed, settings and hyperparameters (resume={'changes': 'refuse'}).",
            fix="put them back, or resume={'changes': 'warn'} to continue.",
        )
    report.warn(
        f"The run is not the one that wrote the checkpoint, so it will not end as that one would have:{lines}\n"
        "  Training continues. resume={'changes': 'refuse'} makes this an error, 'ignore' is silent."
    )


def _differences(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    hparams: Mapping[str, Any],
    content: Mapping[str, Any],
    left_out: bool,
) -> Iterator[str]:
    limits = lightlib_state(content).get("limits") or {}
    for name, value in now.items():
        if left_out and name == "accumulate_grad_batches":  # the samples per step are compared instead
            continue
        changed_by_hook = name in limits and limits[name][0] == value  # and restored
        if changed_by_hook or (name == "seed" and seed_was_chosen()):
            continue
        if name in saved and saved[name] != value:
            yield f"{_WORDS.get(name, name)}: {saved[name]!r} then, {value!r} now"
    changed = ((lightlib_state(content).get("user") or {}).get("values") or {}).get("module") or {}
    before = content.get("hyper_parameters")
    before = plain_hparams(before)[0] if isinstance(before, Mapping) else {}
    for name in sorted(hparams):
        if name in before and f"hparams.{name}" not in changed and not same(before[name], hparams[name]):
            yield f"hyperparameter {name}: {before[name]!r:.60} then, {hparams[name]!r:.60} now"
