"""The state of a run as a checkpoint: Lightning's keys, ours beside them, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lightlib import report
from lightlib.core import files
from lightlib.core.hparams import plain_hparams
from lightlib.core.seed import isolate_rng, part_random_numbers, rng_state
from lightlib.errors import CheckpointError, CheckpointWriteError, shown

__all__ = [
    "check",
    "dump",
    "other_weights",
    "restore",
    "restore_datamodule",
    "restore_weights",
    "write_checkpoint",
]

FORMAT = 1
LIGHTNING_VERSION = "2.6.0"
OURS = "lightlib"


def dump(run: Any, weights_only: bool = False) -> dict[str, Any]:
    """Return the whole state of `run` as tensors and plain values.

    Args:
        run: The run.
        weights_only: Leave out optimizers, schedules, callbacks and everything else that only a resume needs.
    """
    progress, strategy, module, datamodule = run.progress, run.strategy, run.module, run.datamodule
    ended = progress.epoch_batch == 0 and progress.epoch > 0
    several = strategy.world_size > 1
    content: dict[str, Any] = {
        "epoch": progress.epoch - ended,
        "global_step": progress.step,
        "pytorch-lightning_version": LIGHTNING_VERSION,
        "state_dict": strategy.module_state(),
        "loops": _lightning_loops(progress, run.exhausted),
    }
    _add_hparams(content, module)
    if datamodule is not None:
        _add_hparams(content, datamodule)
    names: list[list[list[str]]] = []
    if not weights_only:
        states = [strategy.optimizer_state(optimizer) for optimizer in run.optimizers]
        for optimizer, state in zip(run.optimizers, states, strict=True):
            own = strategy.parameter_names(optimizer)
            groups = state.get("param_groups", [])
            names.append([group.pop("param_names", held) for group, held in zip(groups, own, strict=False)])
        content["optimizer_states"] = states
        content["lr_schedulers"] = run.schedules.state_dict()
        if run.scaler is not None:
            content["MixedPrecision"] = run.scaler.state_dict()
        content["callbacks"] = _callback_states(run.callbacks)
        if datamodule is not None and (state := datamodule.state_dict()):
            content[type(datamodule).__qualname__] = state
    for callback in run.callbacks:
        _call(callback, "on_save_checkpoint", run.trainer, module, content)
    module.on_save_checkpoint(content)
    content[OURS] = {
        "format": FORMAT,
        "torch": str(torch.__version__),
        "progress": progress.state_dict(),
        "world_size": strategy.world_size,
    }
    if not weights_only:
        data = run.train_data.state_dict() if run.train_data is not None else None
        own_part = {"results": run.results.state_dict(), "rng": run.rng_state(), "place": strategy.data_place}
        if several and run.train_data is not None and not run.train_data.is_dealt:
            own_part["data"] = data  # each process reads what its own sampler draws
        content[OURS] |= {"data": data, "optimizer_names": names, **own_part}
        if several:  # each process has its own sums and random numbers
            content[OURS]["ranks"] = strategy.collectives.all_gather_object(own_part)
    place = files.not_plain(content) if strategy.is_global_zero else None
    if place is not None:
        report.warn(
            f"The checkpoint holds an object that is no plain value at {place}: it can only be read with "
            "weights_only=False. Write tensors, numbers, strings, lists and dicts of them into a checkpoint.",
        )
    return content


def _callback_states(callbacks: list[Any]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for callback in callbacks:
        state = _call(callback, "state_dict")
        if state:
            states[callback.state_key] = state
    return states


def _call(callback: Any, name: str, *args: Any) -> Any:
    method = getattr(callback, name, None)
    return method(*args) if method is not None else None


def _add_hparams(content: dict[str, Any], owner: Any) -> None:
    if not owner.hparams:
        return
    stored, left = plain_hparams(owner.hparams)
    if left:
        report.warn(
            f"The hyperparameters {', '.join(map(repr, left))} of {type(owner).__name__} are no plain values and are "
            "not stored in the checkpoint; pass them again: "
            f"{type(owner).__name__}.load_from_checkpoint(path, {left[0]}=…)."
        )
    content[owner.CHECKPOINT_HYPER_PARAMS_NAME] = owner._hparams_name or "kwargs"  # noqa: SLF001  set by save_hyperparameters
    content[owner.CHECKPOINT_HYPER_PARAMS_KEY] = stored


def _lightning_loops(progress: Any, exhausted: bool) -> dict[str, Any]:
    """Return where the run is in the layout that Lightning's loops read."""

    def counts(total: int, current: int, *names: str) -> dict[str, Any]:
        return {"total": dict.fromkeys(names, total), "current": dict.fromkeys(names, current)}

    all_four = ("ready", "completed", "started", "processed")
    epoch_loop = {
        "epoch_loop.state_dict": {"_batches_that_stepped": progress.step},
        "epoch_loop.batch_progress": {
            **counts(progress.batch, progress.epoch_batch, *all_four),
            "is_last_batch": exhausted,
        },
        "epoch_loop.scheduler_progress": counts(progress.step, progress.step, "ready", "completed"),
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {
                "step": counts(progress.step, progress.step, "ready", "completed"),
                "zero_grad": counts(progress.step, progress.step, "ready", "completed", "started"),
            }
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": counts(
            progress.step, progress.step, "ready", "completed"
        ),
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


def restore_weights(run: Any, content: dict[str, Any]) -> None:
    """Give the module and everything that may change what is loaded their part of a checkpoint."""
    run.module.on_load_checkpoint(content)
    strict = run.module.strict_loading
    try:
        run.strategy.load_module_state(content["state_dict"], strict=strict)
    except RuntimeError as error:
        raise other_weights(type(run.module), error, "set `strict_loading = False` on it") from error
    for callback in run.callbacks:
        _call(callback, "on_load_checkpoint", run.trainer, run.module, content)


def other_weights(kind: type, error: RuntimeError, loose: str) -> CheckpointError:
    """Return the error for weights that do not fit a class; `loose` is how what fits is loaded."""
    text = "\n".join(line.strip() for line in str(error).splitlines()[1:]) or str(error)
    fix = f"build {kind.__name__} with the arguments of the saved one"
    return CheckpointError(
        f"The checkpoint does not fit {kind.__name__}:\n    " + text.replace("\n", "\n    "),
        expected="the same parameter names and shapes.",
        fix=f"{fix}." if "size mismatch" in text else f"{fix}, or {loose} to load what fits.",
    )


def check(content: Mapping[str, Any], path: Any, resumes: type | None = None) -> None:
    """Refuse a checkpoint that cannot be read further, before anything is changed by it.

    Args:
        content: What was read.
        path: From where, for the message.
        resumes: The module's class when a training is to go on from there, which takes more than weights.

    Raises:
        CheckpointError: It is from a newer version, holds weights alone, or holds something else than it should.
    """
    ours = content.get(OURS)
    version = ours.get("format") if isinstance(ours, Mapping) else None
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"{str(path)!r} has format {version}, which is newer than this version of lightlib.",
            expected=f"a format of at most {FORMAT}.",
            fix="pip install --upgrade lightlib",
        )
    wanted: dict[str, tuple[type, ...]] = {}
    if resumes is not None:
        wanted = {"optimizer_states": (list, tuple), "lr_schedulers": (list, tuple), "callbacks": (Mapping,)}
        missing = [key for key in wanted if key not in content]
        if missing:
            raise CheckpointError(
                f"The checkpoint holds weights alone: it has no {missing[0]!r} ({str(path)!r}).",
                expected="a checkpoint that was saved with weights_only=False.",
                fix=f"module = {resumes.__name__}.load_from_checkpoint({str(path)!r}), then fit without ckpt_path.",
            )
    wrong = [key for key, kinds in wanted.items() if not isinstance(content[key], kinds)]
    wrong += [OURS] if ours is not None and (not isinstance(version, int) or isinstance(version, bool)) else []
    if wrong:
        raise CheckpointError(
            f"{str(path)!r} is damaged or from elsewhere: its {wrong[0]!r} is {shown(content[wrong[0]])}.",
            expected="a file that Trainer.save_checkpoint or Lightning wrote.",
            fix="use another checkpoint.",
        )


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Explain what goes wrong while a part of a checkpoint is taken over."""
    try:
        yield
    except CheckpointError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint's {what} cannot be taken over: {type(error).__name__}: {error}",
            expected="the state of the same run, as Trainer.save_checkpoint writes it.",
            fix="resume with the same program, or load the weights alone with load_from_checkpoint.",
        ) from error


def restore_datamodule(datamodule: Any, content: dict[str, Any]) -> None:
    """Give the data module its state, before it is asked for loaders."""
    if datamodule is not None and (state := content.get(type(datamodule).__qualname__)):
        datamodule.load_state_dict(state)


def restore(run: Any, content: dict[str, Any]) -> None:
    """Put a run where the checkpoint was taken. The generators come last, when the loop begins."""
    ours = content.get(OURS)
    _restore_callbacks(run.callbacks, content["callbacks"])
    _restore_optimization(run, content)
    with _reading("position"):
        if ours is None:
            run.progress.load_state_dict(_progress_of_lightning(content))
            return
        run.progress.load_state_dict(ours["progress"])
        ranks = ours.get("ranks") or [ours]
        part = _part_of(ranks, run.strategy)
        data = (part or {}).get("data") or ours.get("data")
        if data is not None and run.train_data is not None:
            place = run.train_data.load_state_dict(data)
            if data.get("size", 1) != run.strategy.data_size:
                run.progress.epoch_batch = place
        if part is not None:
            run.results.load_state_dict(part["results"], run.module.get_submodule)
        run.pending_rng = _random_numbers(ranks[0]["rng"], run.strategy) if part is None else part["rng"]


def _part_of(ranks: Sequence[Mapping[str, Any]], strategy: Any) -> Mapping[str, Any] | None:
    """Return the sums and random numbers of this process; None when the processes had other parts of the data."""
    places = strategy.collectives.all_gather_object(strategy.data_place)
    if places == [part.get("place", rank) for rank, part in enumerate(ranks)]:
        return ranks[strategy.global_rank] if strategy.world_size > 1 else ranks[0]
    if len(ranks) != strategy.world_size:
        what = f"written by {len(ranks)} processes and is resumed by {strategy.world_size}"
    else:
        what = f"written by {len(ranks)} processes that shared out the data in another way than these"
    report.warn(
        f"The checkpoint was {what}: weights, optimizers, schedules, the position and the order of the data are exact; "
        "other random numbers follow from those of the first process, and values of self.log that are means over this "
        "epoch begin anew."
    )
    return None


def _random_numbers(first: dict[str, Any], strategy: Any) -> dict[str, Any]:
    """Return the generators' states for this process, where those of the first one are known alone."""
    if strategy.data_place == 0:
        return first
    with isolate_rng():
        part_random_numbers(first, strategy.data_place)
        return rng_state()


def write_checkpoint(run: Any, path: str | Path, weights_only: bool = False) -> None:
    """Write the state of `run`, gathered from all processes, by the first of them; each process calls this.

    Raises:
        CheckpointWriteError: It could not be written: on every process.
    """
    content = dump(run, weights_only)
    strategy, error = run.strategy, None
    if strategy.is_global_zero:
        try:
            files.write(content, path)
        except Exception as raised:  # noqa: BLE001  the others wait to hear of it
            error = raised
    if strategy.world_size > 1:
        told = strategy.broadcast(None if error is None else str(error))
        if told is not None and error is None:
            raise CheckpointWriteError(told)
    if error is not None:
        raise error


def _restore_optimization(run: Any, content: dict[str, Any]) -> None:
    for what, saved, here in (
        ("optimizers", content["optimizer_states"], run.optimizers),
        ("schedulers", content["lr_schedulers"], run.schedules.configs),
    ):
        if len(saved) != len(here):
            raise CheckpointError(
                f"The checkpoint holds {len(saved)} {what}, but configure_optimizers returned {len(here)}.",
                expected=f"the same {what} in the same order.",
                fix="resume with the same configure_optimizers, or load the weights alone with load_from_checkpoint.",
            )
    named = (content.get(OURS) or {}).get("optimizer_names") or [[]] * len(run.optimizers)
    for optimizer, saved, held in zip(run.optimizers, content["optimizer_states"], named, strict=True):
        name = type(optimizer).__name__
        state = _with_names(saved, held) if run.strategy.world_size > 1 else saved
        with _reading(f"state of {name}"):
            strange = sorted(set(state["param_groups"][0]) - {*optimizer.param_groups[0], "initial_lr", "param_names"})
            lacking = sorted(set(optimizer.defaults) - set(state["param_groups"][0]))
            if strange and lacking:
                raise CheckpointError(
                    f"The checkpoint's optimizer is no {name}: it has {', '.join(map(repr, strange[:3]))}, but no "
                    f"{', '.join(map(repr, lacking[:3]))}.",
                    expected="the optimizer of the saved run.",
                    fix="resume with the same configure_optimizers, or load the weights alone with "
                    "load_from_checkpoint.",
                )
            run.strategy.load_optimizer_state(optimizer, state)
    with _reading("schedules"):
        run.schedules.load_state_dict(content["lr_schedulers"])
    if run.scaler is not None and "MixedPrecision" in content:
        with _reading("loss scaler"):
            run.scaler.load_state_dict(content["MixedPrecision"])


def _with_names(state: dict[str, Any], names: list[list[str]]) -> dict[str, Any]:
    groups = [{**group, "param_names": own} for group, own in zip(state["param_groups"], names, strict=False)]
    return {**state, "param_groups": groups} if groups else state


def _restore_callbacks(callbacks: list[Any], states: Mapping[str, Any]) -> None:
    known = {getattr(callback, "state_key", None): callback for callback in callbacks}
    for key, state in states.items():
        if key in known:
            known[key].load_state_dict(state)
        else:
            report.warn(f"The checkpoint holds the state of a callback that this run does not have: {key}.")


def _progress_of_lightning(content: dict[str, Any]) -> dict[str, int]:
    fit = content.get("loops", {}).get("fit_loop", {})
    batches = fit.get("epoch_loop.batch_progress", {})
    within = batches.get("current", {}).get("completed", 0)
    ended = batches.get("is_last_batch", True)
    epochs = fit.get("epoch_progress", {}).get("current", {}).get("ready", content.get("epoch", 0) + 1)
    total = batches.get("total", {}).get("completed", 0)
    epoch = epochs if ended else epochs - 1
    return {
        "epoch": epoch,
        "epoch_batch": 0 if ended else within,
        "batch": total,
        "step": content.get("global_step", 0),
        "validated": total,
    }
