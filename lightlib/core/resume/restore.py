"""Restores a run from a checkpoint: all of it, or the requested parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torch.optim import Optimizer

from lightlib import report
from lightlib.checkpoint import lightning
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.frozen import complete
from lightlib.checkpoint.lightning_upgrades import keeps_no_position
from lightlib.checkpoint.storage.content import OURS, LightlibState, lightlib_state
from lightlib.core.resume.callback_tensors import call_if_defined, restore_callback_tensors
from lightlib.core.resume.options import Resume
from lightlib.core.values.restoring import shared, well_formed
from lightlib.data.seed import isolate_rng, part_random_numbers, rng_state
from lightlib.errors import CheckpointError, few
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.run.run import Run
    from lightlib.core.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Restored:
    """State from a checkpoint that is put in place when training starts.

    Attributes:
        full: Whether the run continues the one that wrote the checkpoint.
        optimizers: Calls that load the optimizers whose parameter groups were added while training.
        rng: States of the random generators; None once they are set.
        validation: State of the validation loaders' own generators.
        validates_first: Whether that run was about to validate.
    """

    full: bool = False
    optimizers: Sequence[Callable[[], None]] = ()
    rng: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    validates_first: bool = False


def restore_weights(
    trainer: Trainer,
    module: Module,
    strategy: Strategy,
    callbacks: Sequence[Any],
    content: dict[str, Any],
    strict: bool | Literal["shapes"] | None = None,
    datamodule: Callable[[], object] | None = None,
) -> None:
    """Load the weights, and call `on_load_checkpoint` of the module and the callbacks.

    There is no run yet: optimizers are configured with the weights in place.

    Args:
        datamodule: Loads the state of the data module, if the conventions load it after that of the module.
    """
    strict = module.strict_loading if strict is None else strict
    all_names = bool(strict) and strict != "shapes"
    complete(content, strategy.sharded_module_state, strategy.collectives.all_gather_object, all_names)
    module.on_load_checkpoint(content)
    state = content["state_dict"]
    if strict == "shapes":
        state = of_same_shape(state, strategy.sharded_module_state(), type(module))
    try:
        strategy.load_module_state(_readable(state, strategy), strict=all_names)
    except CheckpointError:
        raise
    except RuntimeError as error:
        raise other_weights(type(module), error, "set `strict_loading = False` on it") from error
    if datamodule is not None:
        datamodule()
    for callback in callbacks:
        call_if_defined(callback, "on_load_checkpoint", trainer, module, content)


def _readable(state: Any, strategy: Strategy) -> Any:
    """Return a state for a strategy; tensors of a directory are read in full if it cannot read its shard alone."""
    return state if strategy.reads_parts else read_tensors(state)


def of_same_shape(state: Mapping[str, Any], own: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return a state without the weights that have another shape in a module, and warn of these."""
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in own.items()}
    others = [n for n, value in state.items() if n in shapes and tuple(getattr(value, "shape", ())) != shapes[n]]
    if others:
        report.warn(
            f"strict='shapes': {kind.__name__} keeps its own values of {few(others)}, which have other shapes in the "
            "checkpoint.",
            report.PossibleUserWarning,
        )
    return {name: value for name, value in state.items() if name not in others}


def other_weights(kind: type, error: RuntimeError, loose: str) -> CheckpointError:
    """Return the error for weights that do not fit a class; `loose` is the way to load those that do."""
    text = "\n".join(line.strip() for line in str(error).splitlines()[1:]) or str(error)
    fix = f"build {kind.__name__} with the arguments of the saved one"
    return CheckpointError(
        f"The checkpoint does not fit {kind.__name__}:\n    " + text.replace("\n", "\n    "),
        expected="the same parameter names and shapes.",
        fix=f"{fix}." if "size mismatch" in text else f"{fix}, or {loose} to load what fits.",
    )


@contextmanager
def _reading(label: str) -> Iterator[None]:
    """Explain an error that is raised while a part of a checkpoint is restored."""
    try:
        yield
    except CheckpointError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint's {label} cannot be restored: {type(error).__name__}: {error}",
            expected="the state of the same run, as Trainer.save_checkpoint writes it.",
            fix="resume with the same program, or load the weights alone with load_from_checkpoint.",
        ) from error


def restore(run: Run, content: dict[str, Any], parts: Resume, continues: bool) -> None:
    """Put a run where the checkpoint was taken. The generators come last, when the loop begins."""
    run.continue_from(Restored(full=continues), begun=False)
    lightlib_content: LightlibState | None = content.get(OURS)
    if parts.weights_alone:
        return
    if parts.callbacks:
        if not run.order.restores_early:
            restore_callbacks(run.callbacks, content["callbacks"])
        restore_callback_tensors(run.trainer, run.module, run.strategy, run.callbacks, content)
    restored = Restored(full=continues, optimizers=_restore_optimization(run, content, parts))
    run.continue_from(restored, begun=False)
    if not parts.progress and lightlib_content is None:
        return
    with _reading("position"):
        if lightlib_content is None:
            _restore_lightnings_position(run, content, parts)
            return
        ranks = lightlib_content.get("ranks") or [lightlib_content]
        rank_state = _part_of(ranks, run.strategy)
        if parts.progress:
            run.progress.load_state_dict(lightlib_content["progress"])
            _restore_data(run, lightlib_content, rank_state or {}, parts)
            run.strategy.load_state_dict(lightlib_content.get("strategy") or {})
            run.strategy.load_own_buffers((rank_state or {}).get("buffers", {}))
        if rank_state is not None and parts.metrics:
            run.results.load_state_dict(rank_state["results"], run.module.get_submodule)
        if parts.random:
            rng = _random_numbers(ranks[0]["rng"], run.strategy) if rank_state is None else rank_state["rng"]
            validation = (ranks[0] if rank_state is None else rank_state).get("validation")
            restored = replace(restored, rng=rng, validation=validation)
        if parts.user_state:
            run.user_state.restore_at_start(_user_state(rank_state, ranks))
        if parts.progress:
            run.limits.load_state_dict(lightlib_content.get("limits") or {}, run)
            run.stop.load_state_dict(
                lightlib_content.get("requests") or {}, bool(parts.stop and lightlib_content.get("stop_asked"))
            )
        if run.stop.is_requested and run.plan.may_stop(run.progress):
            report.info(
                "An early stop was requested before this checkpoint was written, so the run stops here again. "
                "resume={'stop': False} continues training."
            )
        waiting = lightlib_content.get("schedules_waiting", ()) if parts.progress and parts.schedules else ()
        run.optimization.schedules.continue_epoch(
            bool(parts.progress and lightlib_content.get("epoch_stepped")), waiting
        )
        norm = lightlib_content.get("gradient_norm")
        run.optimization.restore_norm(None if norm is None else norm.to(run.strategy.root_device))
        if parts.full:
            run.unfinished.restore(ranks[0] if rank_state is None else rank_state, of_this_rank=rank_state is not None)
        restored = replace(restored, validates_first=bool(lightlib_content.get("validating")))
        run.continue_from(restored, begun=restored.rng is not None and bool(lightlib_content["begun"]))


def epochs_of_loaders(content: Mapping[str, Any] | None, parts: Resume) -> dict[str, int]:
    """Return the epochs in which the saved run had requested the loaders that it read, by "train" and "val"."""
    lightlib_content = (content or {}).get(OURS) if parts.progress and parts.data else None
    lightlib_content = lightlib_content if isinstance(lightlib_content, Mapping) else {}
    data = lightlib_content.get("data")
    epochs = {
        "train": data.get("loaded_at") if isinstance(data, Mapping) else None,
        "val": lightlib_content.get("val_loaded_at"),
    }
    return {name: epoch for name, epoch in epochs.items() if type(epoch) is int and epoch > 0}


def restore_search_results(callbacks: Sequence[Any], content: Mapping[str, Any]) -> None:
    """Give callbacks that search their state before `setup`, where they would search."""
    states = content.get("callbacks") or {}
    for callback in callbacks:
        if getattr(callback, "makes_probes", False) and callback.state_key in states:
            callback.load_search_result(states[callback.state_key])


def restore_callbacks(callbacks: Sequence[Any], states: Mapping[str, Any]) -> None:
    """Load each state into the callback of its key, or else, as files of Lightning before 1.5 need it, of its class."""
    by_key = {callback.state_key: callback for callback in callbacks}
    for key, state in states.items():
        of_class = [callback for callback in callbacks if type(callback).__name__ == key]
        if key in by_key or len(of_class) == 1:
            (by_key.get(key) or of_class[0]).load_state_dict(state)
        else:
            report.warn(f"The checkpoint holds the state of a callback that this run does not have: {key}.")


def _restore_data(run: Run, lightlib_content: Mapping[str, Any], rank_state: Mapping[str, Any], parts: Resume) -> None:
    data = rank_state.get("data") or lightlib_content.get("data")
    if not parts.data:
        run.progress.begin_epoch_again()
    elif data is not None and run.train_data is not None:
        if data.get("size", 1) == run.strategy.data_size and not data.get("resized"):
            run.train_data.when_loaded(partial(run.train_data.load_state_dict, data))
        else:
            run.progress.move_to_batch(run.train_data.load_state_dict(data))


def _part_of(ranks: Sequence[Mapping[str, Any]], strategy: Strategy) -> Mapping[str, Any] | None:
    """Return the sums and random numbers of this process; None if the data was sharded differently."""
    places = strategy.collectives.all_gather_object(strategy.data_place)
    if places == [rank_state.get("place", rank) for rank, rank_state in enumerate(ranks)]:
        return ranks[strategy.global_rank] if strategy.world_size > 1 else ranks[0]
    if len(ranks) != strategy.world_size:
        text = f"written by {len(ranks)} processes and is resumed by {strategy.world_size}"
    else:
        text = f"written by {len(ranks)} processes with a different sharding of the data"
    report.warn(
        f"The checkpoint was {text}: weights, optimizers, schedules, the position and the order of the data are exact; "
        "the random numbers of other ranks are derived from rank zero's, and means of self.log over this "
        "epoch restart."
    )
    return None


def _user_state(part: Mapping[str, Any] | None, ranks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the changes of the user's objects on this rank, or those that all ranks had in common."""
    if part is not None:
        return well_formed(part["user"]) if "user" in part else None
    states = [well_formed(rank_state["user"]) for rank_state in ranks if "user" in rank_state]
    if len(states) < len(ranks):
        return None
    state, differing = shared(states)
    if differing:
        report.warn(
            f"These had other values on each of the {len(ranks)} processes that wrote the checkpoint, and start again: "
            f"{', '.join(differing)}."
        )
    return state


def _random_numbers(first: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    if strategy.data_place == 0:
        return first
    with isolate_rng():
        part_random_numbers(first, strategy.data_place)
        return rng_state()


def _restore_optimization(run: Run, content: dict[str, Any], parts: Resume) -> Sequence[Callable[[], None]]:
    """Restore optimizers, schedules and scaler; return the calls that load the rest when training starts."""
    for label, is_restored, key, here in (
        ("optimizers", parts.optimizers, "optimizer_states", run.optimization.optimizers),
        ("schedulers", parts.schedules, "lr_schedulers", run.optimization.schedules.configs),
    ):
        saved = content[key] if is_restored else here
        if len(saved) != len(here):
            raise CheckpointError(
                f"The checkpoint holds {len(saved)} {label}, but configure_optimizers returned {len(here)}.",
                expected=f"the same {label} in the same order.",
                fix="resume with the same configure_optimizers, or load the weights alone with load_from_checkpoint.",
            )
    late = _restore_optimizers(run, content) if parts.optimizers else []
    if parts.schedules:
        with _reading("schedules"):
            run.optimization.schedules.load_state_dict(content["lr_schedulers"])
    if parts.optimizers and run.strategy.extension.read is not None:
        with _reading("state of the precision"):
            run.strategy.extension.read(content)
    scaler = run.optimization.scaler
    if parts.optimizers and scaler is not None and "MixedPrecision" in content:
        with _reading("loss scaler"):
            scaler.load_state_dict(content["MixedPrecision"])
    return late


def _restore_optimizers(run: Run, content: dict[str, Any]) -> Sequence[Callable[[], None]]:
    optimizers, late = run.optimization.optimizers, []
    lightlib_content = lightlib_state(content)
    named = lightlib_content.get("optimizer_names") or [[]] * len(optimizers)
    same_precision = bool((lightlib_content.get("setting") or {}).get("precision") == run.trainer.precision)
    for optimizer, saved, group_names in zip(optimizers, content["optimizer_states"], named, strict=True):
        name = type(optimizer).__name__
        state = saved
        if group_names and run.strategy.world_size > 1:
            groups = zip(saved["param_groups"], group_names, strict=False)
            state = {**saved, "param_groups": [{**group, "param_names": names} for group, names in groups]}
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
        load = partial(_load_optimizer, run, optimizer, state, same_precision)
        added = _added_groups(run, optimizer, state, group_names)
        if added:
            late.append(partial(_with_groups, run, optimizer, added, load))
        else:
            load()
    return late


def _load_optimizer(run: Run, optimizer: Any, state: dict[str, Any], same_precision: bool) -> None:
    plain = isinstance(optimizer, Optimizer)  # and no engine's
    dtypes_kept = _dtypes_kept(optimizer) if plain and same_precision else nullcontext()
    with _reading(f"state of {type(optimizer).__name__}"), dtypes_kept:
        run.strategy.load_optimizer_state(optimizer, _readable(state, run.strategy))


def _added_groups(
    run: Run, optimizer: Any, state: Mapping[str, Any], names: Sequence[Sequence[str]]
) -> list[tuple[Sequence[str], dict[str, Any]]]:
    """Return the groups that the saved run had added while it trained: the names of their parameters, their options."""
    own_names, groups = run.strategy.parameter_names(optimizer), state["param_groups"]
    begins_alike = [set(names_of_group) for names_of_group in own_names] <= [
        set(names_of_group) for names_of_group in names[: len(own_names)]
    ]
    if (
        not isinstance(optimizer, Optimizer)
        or len(groups) != len(names)
        or len(names) <= len(own_names)
        or not begins_alike
    ):
        return []
    options = [{k: v for k, v in group.items() if k not in ("params", "param_names")} for group in groups]
    return list(zip(names, options, strict=True))[len(own_names) :]


def _with_groups(
    run: Run, optimizer: Any, groups: list[tuple[Sequence[str], dict[str, Any]]], load: Callable[[], None]
) -> None:
    parameters = dict(run.module.named_parameters())
    ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for names, options in groups:
        params = [parameters[name] for name in names if name in parameters]
        if not any(id(parameter) in ids for parameter in params):
            optimizer.add_param_group({"params": params, **read_tensors(options)})
    load()


@contextmanager
def _dtypes_kept(optimizer: Optimizer) -> Iterator[None]:
    """Keep the dtypes of loaded optimizer state: torch casts all but "step" to those of the parameters."""
    numbered: dict[str, Any] = {}

    def put_back(loaded: Any) -> None:
        numbers = (number for group in numbered["param_groups"] for number in group["params"])
        parameters = (parameter for group in loaded.param_groups for parameter in group["params"])
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in (numbered["state"].get(number) or {}).items():
                cast = loaded.state[parameter].get(name)
                if isinstance(value, Tensor) and isinstance(cast, Tensor) and cast.dtype != value.dtype:
                    loaded.state[parameter][name] = value.to(cast.device)

    before = optimizer.register_load_state_dict_pre_hook(lambda _, state: numbered.update(state))
    after = optimizer.register_load_state_dict_post_hook(put_back)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def _restore_lightnings_position(run: Run, content: dict[str, Any], parts: Resume) -> None:
    loaders = lightning.loader_states(content)  # of those that keep their own position
    position = lightning.position(content, 1 if loaders else run.plan.accumulate)
    if keeps_no_position(content):
        report.info(
            f"Lightning {content['pytorch-lightning_version']} stored no position within an epoch: training resumes at "
            f"the beginning of epoch {position['epoch']}."
        )
    run.progress.load_state_dict({**position, "begun": position["epoch_batch"] > 0})
    more = int(content.get("global_step", 0)) - position["step"] if run.order.counts_all else 0
    run.progress.load_state_dict({**position, "begun": position["epoch_batch"] > 0, "more": more})
    if not parts.data:
        run.progress.begin_epoch_again()
    elif loaders and run.progress.epoch_batch and run.train_data is not None and run.strategy.data_size == 1:
        sources = [{"loader": state} for state in loaders]
        state = {"batches": run.progress.epoch_batch, "sources": sources}
        run.train_data.when_loaded(partial(run.train_data.load_state_dict, state))
