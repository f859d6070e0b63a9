"""The bottleneck of a training run: the category to shorten, with the reason and the fix."""

from __future__ import annotations

import math
from collections.abc import Callable

from lightlib.profilers.profiler import RunFacts
from lightlib.profilers.step_times import CATEGORIES, StepTimes

# From this share of the time on, a category is worth a change. Those that compute are missing.
_WORTH = {
    "data": 0.15, "transfer": 0.1, "optimizer": 0.4, "hooks": 0.15, "logging": 0.1, "checkpoints": 0.15,
    "validation": 0.5, "the rest": 0.3,
}  # fmt: skip


def table(times: StepTimes, facts: RunFacts) -> list[str]:
    """Return the lines that show where the time of training went; none if it was at most one batch."""
    if not times.batches or not times.total:
        return []
    each = 1000 * times.total / times.batches
    measured = f"{times.total:.4g} s, {times.batches} batches, {each:.4g} ms each"
    lines = [f"Where the time of training went: {measured} (without the first one: {times.first:.4g} s)"]
    for category, seconds in times.by_category().items():
        if seconds:
            share = 100 * seconds / times.total
            lines.append(f"  {category:11} {seconds:9.3f} s {share:5.1f} %  {CATEGORIES[category]}")
    return [*lines, *recommendation(times, facts)]


def recommendation(times: StepTimes, facts: RunFacts) -> list[str]:
    """Return the bottleneck with its fix, or that there is none.

    The category is the one that exceeds most what a run may spend on it, by its share of the time.
    """
    shares = {name: seconds / times.total for name, seconds in times.by_category().items()}
    over = {name: shares[name] / least for name, least in _WORTH.items() if shares[name] >= least}
    if not over:
        computing = sum(shares[name] for name in ("forward", "backward", "optimizer"))
        return [f"No bottleneck: {computing:.0%} of the time is spent on forward, backward and optimizer."]
    worst = max(over, key=lambda name: over[name])
    reason, fix = _ADVICE[worst](times, facts)
    return [f"Bottleneck: {shares[worst]:.0%} {CATEGORIES[worst]}{reason}", f"  Fix: {fix}"]


def _data(_: StepTimes, facts: RunFacts) -> tuple[str, str]:
    if facts.num_workers is None:
        return ".", "read ahead in processes: wrap the data in a DataLoader with num_workers=1 or more."
    if facts.num_workers == 0:
        num_workers = max(1, min(facts.cores - 1, 8))
        reason = ": num_workers=0, so batches are read between the steps."
        return reason, f"DataLoader(…, num_workers={num_workers}, persistent_workers=True) reads ahead in processes."
    if facts.num_workers < facts.cores:
        reason = f": num_workers={facts.num_workers}, with {facts.cores} cores."
        return reason, f"DataLoader(…, num_workers={facts.cores})."
    reason = f": num_workers={facts.num_workers}, and every core has one."
    return reason, "do less for each sample: decode and resize once and store that, or use fewer, larger files."


def _transfer(_: StepTimes, facts: RunFacts) -> tuple[str, str]:
    if facts.device == "cuda" and facts.pin_memory is False:
        reason = ": pin_memory=False, so the copy waits for the GPU."
        return reason, "DataLoader(…, pin_memory=True, num_workers=1)."
    return ".", "send less: smaller dtypes, or transforms on the device (on_after_batch_transfer)."


def _optimizer(_: StepTimes, facts: RunFacts) -> tuple[str, str]:
    if facts.fused is False:
        return ", without a fused kernel.", "pass fused=True to the optimizer."
    return ".", "step less often: accumulate_grad_batches, or larger batches."


def _hooks(times: StepTimes, _: RunFacts) -> tuple[str, str]:
    return f", most in {times.longest('hooks')}.", "do there only what is due, for instance every 50 batches."


def _logging(times: StepTimes, facts: RunFacts) -> tuple[str, str]:
    steps = 10 ** math.ceil(math.log10(max(1, facts.log_every_n_steps) * 2))
    reason = f", most in {times.longest('logging')}: log_every_n_steps={facts.log_every_n_steps}."
    return reason, f"Trainer(log_every_n_steps={steps})."


def _checkpoints(_: StepTimes, facts: RunFacts) -> tuple[str, str]:
    less = "save less often: ModelCheckpoint(every_n_train_steps=…) with a larger number, or train_time_interval."
    return ".", less if facts.async_save else f"ModelCheckpoint(async_save=True) writes in the background, or {less}"


def _validation(_: StepTimes, __: RunFacts) -> tuple[str, str]:
    return ".", "validate less: Trainer(check_val_every_n_epoch=2), a larger val_check_interval, or limit_val_batches."


def _rest(_: StepTimes, facts: RunFacts) -> tuple[str, str]:
    size = "" if facts.batch_size is None else f": batches of {facts.batch_size} are small for this model."
    return size or ".", "train with larger batches, so that each step computes more."


_ADVICE: dict[str, Callable[[StepTimes, RunFacts], tuple[str, str]]] = {
    "data": _data, "transfer": _transfer, "optimizer": _optimizer, "hooks": _hooks, "logging": _logging,
    "checkpoints": _checkpoints, "validation": _validation, "the rest": _rest,
}  # fmt: skip
