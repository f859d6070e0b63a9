"""Collects the state of a run into the content of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from lightlib import report
from lightlib.callbacks.summary.training_memory import local_part
from lightlib.checkpoint.file.archive import not_plain
from lightlib.checkpoint.storage.content import FORMAT, OURS, Content, LightlibState, RankState
from lightlib.checkpoint.storage.label import Label
from lightlib.conventions import leniency
from lightlib.core.resume.callback_tensors import call_if_defined, callback_tensors
from lightlib.core.resume.extra import add_extra
from lightlib.core.resume.fingerprint import setting
from lightlib.core.values.hparams import plain_hparams, secrets_among, with_objects
from lightlib.errors import CheckpointWriteError
from lightlib.loggers.hyperparameters import is_config
from lightlib.tree import map_tensors

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

LIGHTNING_VERSION = "2.6.0"
_HPARAMS = ("['hyper_parameters']", "['datamodule_hyper_parameters']")


def dump(
    run: Run, label: Label, weights_only: bool = False, sharded: bool = False, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the full state of `run` as tensors and plain values.

    Args:
        weights_only: Leave out optimizers, schedules, callbacks and everything else that only a resume needs.
        sharded: Leave weights and optimizer states where they are, for a directory. False: full, on rank zero.
        extra: Entries that the user adds.
    """
    progress, strategy, module, datamodule = run.progress, run.strategy, run.module, run.datamodule
    ended = progress.epoch_batch == 0 and progress.epoch > 0
    typed: Content = {
        "epoch": progress.epoch - ended,
        "global_step": progress.step + progress.more,
        "pytorch-lightning_version": LIGHTNING_VERSION,
        "state_dict": {},
        "loops": _lightning_loops(progress, run.exhausted),
    }
    content = cast("dict[str, Any]", typed)  # users and data modules add keys of their own
    weights = strategy.sharded_module_state if sharded else strategy.module_state
    content |= _weights(run, weights, weights_only)
    _add_hparams(content, module)
    if datamodule is not None:
        _add_hparams(content, datamodule)
    names: list[list[list[str]]] = []
    if not weights_only:
        typed["optimizer_states"], names = _optimizer_states(run, sharded)
        typed["lr_schedulers"] = run.optimization.schedules.state_dict()
        if run.optimization.scaler is not None:
            typed["MixedPrecision"] = run.optimization.scaler.state_dict()
        typed["callbacks"] = {
            callback.state_key: state
            for callback in run.callbacks
            if (state := call_if_defined(callback, "state_dict"))
        }
        if datamodule is not None and (state := datamodule.state_dict()):
            content[type(datamodule).__qualname__] = state
    for callback in run.callbacks:
        call_if_defined(callback, "on_save_checkpoint", run.trainer, module, content)
    module.on_save_checkpoint(content)
    add_extra(content, extra or {})
    if strategy.extension.written is not None and not weights_only:
        strategy.extension.written(content)
    typed[OURS] = {
        "format": FORMAT,
        "torch": str(torch.__version__),
        "progress": progress.state_dict(),
        "world_size": strategy.world_size,
        "label": label.as_dict(),
    }
    if not weights_only:
        typed[OURS] |= {"optimizer_names": names, **_only_to_resume(run)}
        if tensors := callback_tensors(run.trainer, module, strategy, run.callbacks, sharded):
            typed[OURS]["callback_tensors"] = tensors
        loaders = [source.get("loader") for source in (typed[OURS]["data"] or {}).get("sources", ())]
        # Not at the end of an epoch: Lightning would read that the next one has no batch.
        within = progress.epoch_batch > 0 and not run.exhausted
        if within and any(state is not None for state in loaders):  # for Lightning
            typed["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [s for s in loaders if s is not None]
    _refuse_objects(run, content, weights_only)
    return content


def _refuse_objects(run: Run, content: Mapping[str, Any], weights_only: bool) -> None:
    """Refuse content that a resume could not read, on all processes; all of them call this.

    Raises:
        CheckpointWriteError: It holds an object, and the run does not read such checkpoints.
    """
    place, strategy = not_plain(content), run.strategy
    if strategy.world_size > 1:  # the content of a file is rank zero's, that of a directory differs
        place = next(filter(None, strategy.collectives.all_gather_object(place)), None)
    if place is None or (leniency().keeps_objects and place.startswith(_HPARAMS)):
        return
    text = f"The checkpoint holds an object that is no plain value at {place}"
    if not (weights_only or leniency().keeps_objects or run.trainer.trusts_checkpoints or strategy.extension.store):
        raise CheckpointWriteError(
            f"{text}: no run could be resumed from it.",
            expected="tensors, numbers, strings, and lists, dicts, sets, deques and SimpleNamespaces of them.",
            fix="return such values from state_dict(), or write them in on_save_checkpoint; or let this program trust "
            "its files, which may run any code when they are read: fit(…, weights_only=False).",
        )
    if not run.trainer.trusts_checkpoints:
        report.warn(
            f"{text}: it can only be read with weights_only=False. Write tensors, numbers, strings, lists and dicts of "
            "them into a checkpoint."
        )


def _weights(run: Run, collect: Callable[[], dict[str, Any]], weights_only: bool) -> dict[str, dict[str, Any]]:
    """Return the module's state by the checkpoint's key: its own, or those that a callback puts into its place."""
    for callback in run.callbacks:
        weights = {}
        for key, put in (call_if_defined(callback, "checkpoint_weights", run.trainer, run.module) or {}).items():
            if key == "state_dict" or not weights_only:
                with put():
                    weights[key] = _apart(collect(), run.module)
        if weights:
            return weights
    return {"state_dict": collect()}


def _apart(state: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return a state with copies of the tensors that share memory with the module's."""
    shared = {_memory(tensor) for tensor in (*module.parameters(), *module.buffers())}
    copied: dict[str, Any] = map_tensors(lambda t: t.detach().clone() if _memory(t) in shared else t, state)
    return copied


def _memory(tensor: Any) -> int:
    return int(local_part(tensor).untyped_storage().data_ptr())


def _optimizer_states(run: Run, sharded: bool) -> tuple[list[dict[str, Any]], list[list[list[str]]]]:
    states, names, strategy = [], [], run.strategy
    for optimizer in run.optimization.optimizers:
        state = strategy.sharded_optimizer_state(optimizer) if sharded else strategy.optimizer_state(optimizer)
        parameter_names = strategy.parameter_names(optimizer)
        groups = state.get("param_groups", [])
        names.append(
            [
                group.pop("param_names", names_of_group)
                for group, names_of_group in zip(groups, parameter_names, strict=False)
            ]
        )
        states.append(state)
    return states, names


def _only_to_resume(run: Run) -> LightlibState:
    """Return everything else that an exact resume needs; each rank has sums and random numbers of its own."""
    strategy, train_data, norm = run.strategy, run.train_data, run.optimization.gradient_norm
    data = (
        train_data.state_dict(run.progress.epoch_batch, run.unfinished.batch is not None)
        if train_data is not None
        else None
    )
    rank_state: RankState = {"results": run.results.state_dict(), "rng": run.rng_state(), "place": strategy.data_place}
    if (validation := run.validation_state()) is not None:
        rank_state["validation"] = validation
    if user := run.user_state.capture():
        rank_state["user"] = user
    if unfinished := run.unfinished.capture():
        rank_state["unfinished"] = unfinished
    if buffers := strategy.own_buffers():
        rank_state["buffers"] = buffers
    if strategy.world_size > 1 and train_data is not None and data is not None:
        drawn = data["ahead"] is not None or any(source["generators"] for source in data["sources"])
        if drawn or not train_data.loaded.is_sharded:
            rank_state["data"] = data  # each process reads what its own sampler and data set draw
    lightlib_content: dict[str, Any] = {
        "data": data,
        "begun": run.begun,
        "stop_asked": run.stop.is_requested,
        "requests": run.stop.state_dict(),
        "validating": run.evaluations.rng is not None,
        "limits": run.limits.state_dict(run),
        "val_loaded_at": run.evaluations.loaded["val"].loaded_at if "val" in run.evaluations.loaded else None,
        "gradient_norm": None if norm is None else norm.detach().cpu(),
        "epoch_stepped": run.optimization.schedules.epoch_stepped,
        "schedules_waiting": list(run.optimization.schedules.waiting),
        "loggers": run.loggers.state_dict(),
        "setting": setting(run),
        **rank_state,
    }
    if state := strategy.state_dict():
        lightlib_content["strategy"] = state
    if strategy.world_size > 1:
        lightlib_content["ranks"] = strategy.collectives.all_gather_object(rank_state)
    return cast("LightlibState", lightlib_content)


def _add_hparams(content: dict[str, Any], owner: Any) -> None:
    if not owner.hparams:
        return
    class_name = type(owner).__name__
    stored: Any
    stored, left = plain_hparams(owner.hparams)
    if leniency().keeps_objects:
        stored, kept = with_objects(owner.hparams, stored, left)
        left = [name for name in left if name not in kept]
        if kept:
            report.warn_once(
                ("objects", class_name, *kept),
                f"The hyperparameters {', '.join(map(repr, kept))} of {class_name} are no plain values.\n"
                "  Expected: numbers, strings, lists and dicts; without compat they are left out, so that a "
                "checkpoint can be read without running code.\n"
                "  Fix: as in Lightning they are stored, and the checkpoint is read with weights_only=False; "
                f"save_hyperparameters(ignore={kept!r}) leaves them out.",
            )
    secret = secrets_among(owner.hparams, map(str, left))
    for names, why in (
        ([name for name in left if name not in secret], "are no plain values"),
        (secret, "look like secrets"),
    ):
        if names:
            report.warn(
                f"The hyperparameters {', '.join(map(repr, names))} of {class_name} {why}, and are not stored in the "
                f"checkpoint; pass them again: {class_name}.load_from_checkpoint(path, {names[0]}=…)."
            )
    content[owner.CHECKPOINT_HYPER_PARAMS_NAME] = owner._hparams_name or "kwargs"  # noqa: SLF001  set by save_hyperparameters
    content[owner.CHECKPOINT_HYPER_PARAMS_KEY] = stored
    if is_config(stored):
        content[owner.CHECKPOINT_HYPER_PARAMS_TYPE] = type(stored)


def _lightning_loops(progress: Any, exhausted: bool) -> dict[str, Any]:
    """Return where the run is in the layout that Lightning's loops read."""

    def counts(total: int, current: int, *names: str) -> dict[str, Any]:
        return {"total": dict.fromkeys(names, total), "current": dict.fromkeys(names, current)}

    all_four = ("ready", "completed", "started", "processed")
    steps = progress.step + progress.more
    stepped = counts(steps, steps, "ready", "completed")
    zeroed = counts(steps, steps, "ready", "completed", "started")
    batches = counts(progress.batch, progress.epoch_batch, *all_four)
    epoch_loop = {
        "epoch_loop.state_dict": {"_batches_that_stepped": progress.step},
        "epoch_loop.batch_progress": {**batches, "is_last_batch": exhausted},
        "epoch_loop.scheduler_progress": stepped,
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {"step": stepped, "zero_grad": zeroed}},
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": stepped,
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {**counts(0, 0, *all_four), "is_last_batch": False},
    }
    begun = progress.epoch + (progress.epoch_batch > 0)
    epochs = {"ready": begun, "completed": progress.epoch, "started": begun, "processed": progress.epoch}
    idle = {"state_dict": {}, "batch_progress": {**counts(0, 0, *all_four), "is_last_batch": False}}
    return {
        "fit_loop": {
            "state_dict": {},
            **epoch_loop,
            "epoch_progress": {"total": epochs, "current": dict(epochs)},
        },
        "validate_loop": idle,
        "test_loop": idle,
        "predict_loop": {"state_dict": {}, "batch_progress": counts(0, 0, *all_four)},
    }
