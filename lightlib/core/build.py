"""Builder: makes a run from the user's objects (data, steps, optimizers, hooks)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.callbacks.averaging.schedule_free import schedule_free
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.data_counter import counter_of
from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from lightlib.callbacks.monitored import monitors_of
from lightlib.callbacks.prediction_writer import BasePredictionWriter
from lightlib.conventions import Order
from lightlib.core.check import (
    check_hooks_of_several_loaders,
    check_optimization,
    check_schedulers,
    refuse_unvalidated,
    step_of_any_loaders,
    step_with_loader,
)
from lightlib.core.late_loading import before_hooks
from lightlib.core.metrics.reduction import EachValue, Reduction, in_parts, reduced
from lightlib.core.metrics.results import Results
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.module import Module
from lightlib.core.module.overrides import method_of, overrides
from lightlib.core.module.preprocessor import preprocessed
from lightlib.core.optimization.configure import configure
from lightlib.core.optimization.loss_terms import LossTerms
from lightlib.core.optimization.optimizers import closure_of, zeroing
from lightlib.core.optimization.schedules import SchedulerConfig, Schedules, step_scheduler
from lightlib.core.optimization.window import Window
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.progress import Progress
from lightlib.core.progress.states import TrainerFn
from lightlib.core.resume.save import RunIdentity
from lightlib.core.run import loop
from lightlib.core.run.hooks import STEPS, Hooks, scoped, stoppable
from lightlib.core.run.optimization import Optimization
from lightlib.core.run.order import (
    clear_and_backward,
    step_of_counted_batch,
    then_batch_schedules,
    then_schedules,
)
from lightlib.core.run.parts import PREDICT, TEST, VALIDATION, Evaluations, Stage, StopRequests
from lightlib.core.run.run import Run
from lightlib.core.run.signals import Signals
from lightlib.core.run.training_pass import STEP
from lightlib.core.run.user_snapshot import Snapshot
from lightlib.core.setup.batch_sizes import accumulation_of, explain, largest_batch
from lightlib.core.setup.loaders import check_loaders
from lightlib.core.setup.plugins import loader_intervals, plan_of
from lightlib.core.setup.settings import Settings
from lightlib.core.setup.timing import Timing
from lightlib.data.combined import CombinedLoader, flatten
from lightlib.data.distributed_loader import with_distributed_sampler, without_drop_last
from lightlib.data.evaluation import EvalData
from lightlib.data.prefetch import Prefetch
from lightlib.data.resumable_loader import batch_size_of_loader
from lightlib.data.sharding import DataShard
from lightlib.data.train import TrainData
from lightlib.errors import MisconfigurationException
from lightlib.launch.watch.watch import Watch
from lightlib.loggers.fanout import Fanout
from lightlib.profilers.step_times import NEXT_BATCH, RUN_BATCH
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_STAGES = {"train": "training", "val": VALIDATION.name, "test": TEST.name, "predict": PREDICT.name}
_CLIPPING = ("configure_gradient_clipping", "clip_gradients")
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
Source = Callable[[], Any]


@dataclass(eq=False)
class Builder:
    """Builds one run. It lives until the run begins.

    Attributes:
        timing: Measures calls with the Trainer's profiler.
        sources: For "train", "val", "test" and "predict" a function that returns the loaders, or None.
        compiler: Compiles the steps if the user's module comes from torch.compile, or as the strategy does.
        ends: Compares where the data end on each process; None with one process.
        loaded: The training data, once `train_data` has been called.
        loaded_in: The epochs in which the run that is resumed had requested its loaders, by "train" and "val".
        stop: The requests of the run, which begin with those of its set-up.
    """

    trainer: Trainer
    module: Module
    datamodule: DataModule | None
    callbacks: list[Any]
    strategy: Strategy
    settings: Settings
    sources: dict[str, Source | None]
    timing: Timing
    order: Order
    compiler: Callable[..., Any] | None = None
    ends: Watch | None = None
    results: Results = field(init=False)
    evaluations: dict[str, EvalData] = field(default_factory=dict)
    loaded: TrainData | None = None
    stop: StopRequests = field(default_factory=StopRequests)
    loaded_in: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reduce_table: Callable[[Any], None] | None = None
        reduce_value = by_strategy = self.strategy.extension.reduce
        if by_strategy is not None:
            reduce_table = EachValue(by_strategy)
        elif self.strategy.world_size > 1:
            reduce_table = Reduction(self.strategy, self.module.get_submodule)
            reduce_value = partial(reduced, self.strategy.data.reduce)
        self.results = Results(
            self._attribute_of,
            reduce_table,
            reduce_value,
            compiled=self.compiler is not None,
            has_loggers=bool(self.trainer.loggers) or not self.settings.log_every_n_steps,
        )

    def _attribute_of(self, metric: Any) -> str | None:
        return next((name for name, part in self.module.named_modules() if part is metric), None)

    # hooks and steps
    def wrap(self, owner: str, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with the logging rules of hook `name`, timed if a profiler is on."""
        kind = "LightningModule" if owner == type(self.module).__name__ else "Callback"
        call = self.timing.call(f"[{kind}]{owner}.{name}", call)
        if self.trainer.state.fn is not TrainerFn.FITTING:
            return scoped(self.results, name, call)
        refuses = name in STEPS and self.strategy.world_size > 1
        return stoppable(self.results, name, call, partial(_refuse_stop, name) if refuses else self._stop)

    def _stop(self, reason: str) -> None:
        self.stop.request_stop(reason)

    def timed(self, owner: object, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, a method of the module or data module that is not a hook, timed if a profiler is on."""
        kind = "LightningDataModule" if isinstance(owner, DataModule) else "LightningModule"
        return self.timing.call(f"[{kind}]{type(owner).__name__}.{name}", call)

    def time_sources(self, given: Mapping[str, Any]) -> None:
        """Time the loader methods that are called because no loaders were `given`."""
        for name, source in self.sources.items():
            method = f"{name}_dataloader"
            if source is not None and given.get(f"{method}s") is None:
                by_data = self.datamodule is not None and overrides(self.datamodule, DataModule, method)
                self.sources[name] = self.timed(self.datamodule if by_data else self.module, method, source)

    def hooks(self) -> Hooks:
        before, more = before_hooks(self.trainer, self.eval_data, self.order), self.strategy.extension.hooks
        hooks = Hooks(self.trainer, self.module, self.callbacks, self.wrap, Module, before, more)
        if hooks.defines("on_substep_end"):
            hooks.follow("on_train_batch_end", lambda *_: _end_substep(self.trainer, hooks))
        return hooks

    def place(self, num_loaders: dict[str, int]) -> None:
        """Place the module on its device and bind its steps."""
        steps = {}
        owner = type(self.module).__name__
        if self.compiler is not None and self.strategy.in_parts:
            report.warn(
                f"{owner} comes from torch.compile, but a pipeline calls its layers one by one: nothing is compiled. "
                "Use Trainer(compile=True), which compiles the layers of each stage.",
                report.PossibleUserWarning,
            )
        for name in STEPS:
            method, loaders = method_of(self.module, Module, name), num_loaders.get(name.removesuffix("_step"), 1)
            method = step_with_loader(method, loaders, owner) if loaders else step_of_any_loaders(method, owner)
            if self.compiler is not None and overrides(self.module, Module, name):
                method = self.compiler(method)
            steps[name] = self.wrap(owner, name, method)
        for stage, loaders in num_loaders.items():
            if loaders > 1:
                owners = [(self.module, Module, 0), *((callback, Callback, 2) for callback in self.callbacks)]
                check_hooks_of_several_loaders(owners, stage, loaders)
        steps[STEP] = steps["training_step"]
        if self.strategy.in_parts:
            steps["training_step"] = in_parts(self.results, steps["training_step"], lambda: self.trainer.progress.batch)
        self.strategy.exchange_by(self.results.step_message, self.results.receive)
        self.strategy.place(self.module, steps)

    # data
    def process_loaders(self) -> None:
        """Give the loaders distributed samplers, if that convention is followed, and let the strategy replace them."""
        changes: list[Callable[[str], Callable[[Any], Any]]] = []
        if self.follows_distributed and self.settings.use_distributed_sampler:
            changes.append(lambda name: partial(self._with_sampler, name))
        by_strategy = self.strategy.extension.loader
        if by_strategy is not None:
            changes.append(lambda name: by_strategy)
        if self.order.replaces_samplers and self.sources["predict"] is not None:
            self.sources["predict"] = partial(_changed, self.sources["predict"], without_drop_last)
        for name in self.sources:
            for change in changes:
                if (source := self.sources[name]) is not None:
                    self.sources[name] = partial(_changed, source, change(name))

    @property
    def follows_distributed(self) -> bool:
        """Whether Lightning's rules for several processes hold, which it follows for `"ddp"` with one process, too."""
        strategy = self.strategy
        return self.order.replaces_samplers and (strategy.launcher is not None or strategy.world_size > 1)

    def _with_sampler(self, name: str, loader: Any) -> Any:
        strategy, fits = self.strategy, self.trainer.state.fn is TrainerFn.FITTING
        share = self.share() or DataShard(0, 1, strategy.collectives.broadcast, strategy.collectives.all_gather_object)
        return with_distributed_sampler(loader, share, _STAGES[name], fits and bool(self.settings.overfit_batches))

    def share(self) -> DataShard | None:
        """Return the shard of the data that this process reads; None with one process."""
        strategy = self.strategy
        if strategy.world_size == 1:
            return None
        broadcast, gather = strategy.collectives.broadcast, strategy.collectives.all_gather_object
        shards = self.settings.use_distributed_sampler or strategy.data_size == 1  # with size 1 all read the same data
        return DataShard(strategy.data_rank, strategy.data_size, broadcast, gather, shards, self.ends)

    def move(self) -> Callable[[Any, int], Any] | None:
        """Return the function that moves a batch to the device, or None if batches stay as they are."""
        module, strategy = self.module, self.strategy
        owners = {}
        for name in _TRANSFERS:
            by_data = self.datamodule is not None and overrides(self.datamodule, DataModule, name)
            by_module = overrides(module, DataHooks, name)
            if by_data and by_module:
                report.warn(f"Both the data module and the module define `{name}`; the data module's is called.")
            if by_data or by_module:
                owners[name] = getattr(self.datamodule if by_data else module, name)
        calls: list[Callable[[Any, int], Any]] = []
        if strategy.precision.converts_input:
            calls.append(lambda batch, loader: strategy.precision.convert_input(batch))
        if "on_before_batch_transfer" in owners:
            calls.append(owners["on_before_batch_transfer"])
        device = strategy.root_device
        if self.strategy.extension.move is not None:
            calls.append(self.strategy.extension.move)
        elif "transfer_batch_to_device" in owners:
            transfer = owners["transfer_batch_to_device"]
            calls.append(lambda batch, loader: transfer(batch, device, loader))
        elif device.type != "cpu" or torch.accelerator.is_available():
            calls.append(lambda batch, loader: strategy.batch_to_device(batch))
        if "on_after_batch_transfer" in owners:
            calls.append(owners["on_after_batch_transfer"])
        if module.preprocesses:
            calls.append(partial(preprocessed, module))
        if not calls:
            return None
        move = calls[0] if len(calls) == 1 else _chained(calls)
        return self.timing.call(f"[Strategy]{type(strategy).__name__}.batch_to_device", move)

    def _hooked(self) -> bool:
        """Whether the user has a hook that changes batches on their way to the device."""
        owners: list[tuple[Any, type]] = [(self.module, DataHooks), (self.datamodule, DataModule)]
        return any(owner is not None and overrides(owner, base, name) for owner, base in owners for name in _TRANSFERS)

    def converts_arrays(self) -> bool:
        """Whether NumPy arrays in batches become tensors; hooks of the user's get batches as they are."""
        return not self.order.keeps_arrays and not self._hooked()

    def train_data(self) -> TrainData:
        if self.loaded is None:
            self.loaded = self._new_train_data()
        return self.loaded

    def _new_train_data(self) -> TrainData:
        source = self.sources["train"]
        if source is None:
            raise MisconfigurationException(
                f"{type(self.module).__name__} has no training data.",
                expected="a training loader.",
                fix="trainer.fit(module, train_dataloaders=loader), or define `train_dataloader`.",
            )
        move, settings = self.move(), self.settings
        prefetch = None
        late = self.order.loads_late
        moves_itself = self.module.preprocesses or self._hooked()
        if self.strategy.accelerator.has_streams and move is not None and not moves_itself:
            prefetch = Prefetch(self.strategy.root_device, move)
        data = TrainData(
            source,
            settings.limit_train_batches,
            move,
            reload_every=settings.reload_dataloaders_every_n_epochs,
            sequential=bool(settings.overfit_batches),
            prefetch=prefetch,
            share=self.share(),
            largest=largest_batch(
                settings.global_batch_size, self.strategy.data_size, settings.given_accumulation or 1
            ),
            loads_late=late,
            loaded_at=self.trainer.current_epoch,
            converts=self.converts_arrays(),
            stops_at_length=self.order.stops_at_length,
            timed=partial(self.timing.iterator, NEXT_BATCH),
        )
        if not late:
            check_loaders(data.given, "train")
        if settings.global_batch_size is not None:
            sizes = [batch_size_of_loader(loader) for loader in data.given]
            accumulate, explanation = accumulation_of(
                settings.global_batch_size, data.loaded.batch_sizes(), self.strategy.data_size, self.callbacks, sizes,
                settings.given_accumulation,
            )  # fmt: skip
            settings.change("accumulate_grad_batches", accumulate)
            explain(explanation)
        return data

    def eval_data(self, stage: Stage) -> EvalData:
        """Return the data of a stage; the loaders are requested once per run, or every n epochs."""
        key = stage.key
        every = self.settings.reload_dataloaders_every_n_epochs
        epoch, loaded = self.trainer.current_epoch, self.evaluations.get(key)
        due = bool(every) and stage.state == "validate" and loaded is not None and epoch - loaded.loaded_at >= every
        if loaded is None or due:
            then = self.loaded_in.get(key) if loaded is None else None  # a resumed run has other ones than a new run
            epoch = epoch if then is None else then
            source = self.sources[key]
            assert source is not None
            argument, within_fit = f"limit_{key}_batches", self.trainer.state.fn is TrainerFn.FITTING
            overfits = within_fit and bool(self.settings.overfit_batches)
            with nullcontext() if then is None else self.trainer.progress.at_epoch(then):
                loaders = source()
            limit, lockstep = getattr(self.settings, argument), self.strategy.lockstep
            data = EvalData(
                loaders, limit, self.move(), argument, stage.name, self.share(), lockstep,
                epoch=lambda: self.trainer.current_epoch, sequential=overfits,
                converts=self.converts_arrays(), loaded_at=epoch,
                notes_indices=stage is PREDICT and self._notes_indices(), numbered=self.order.numbers_loaders,
            )  # fmt: skip
            check_loaders(data.given, key, may_shuffle=overfits)
            if not data.num_loaders and within_fit:
                self.sources[key] = None
                report.info("val_dataloader returned no loaders: this run does not validate.")
            self.evaluations[key] = data
        return self.evaluations[key]

    def _notes_indices(self) -> bool:
        writes = any(isinstance(callback, BasePredictionWriter) for callback in self.callbacks)
        return writes or self.order.notes_indices

    # optimization
    def plan(self, num_batches: float) -> Plan:
        has_val = self.sources["val"] is not None and bool(self.settings.limit_val_batches)
        schedules = (each.changes for each in self.callbacks if isinstance(each, GradientAccumulationScheduler))
        has_length = self.loaded is None or self.loaded.is_loaded
        fits, data = self.trainer.state.fn is TrainerFn.FITTING, self.evaluations.get("val")
        plan = plan_of(
            self.settings, num_batches, has_val, has_length, next(schedules, ()),
            loader_intervals(self.settings, data) if has_val and fits else (), checks_always=self.order.checks_always,
        )  # fmt: skip
        return replace(plan, accumulate=plan.accumulation(self.trainer.progress.epoch))

    def run(
        self,
        stage: str,
        progress: Progress,
        hooks: Hooks,
        loggers: Fanout,
        signals: Signals,
        train_data: TrainData | None,
        identity: RunIdentity,
        start: Snapshot | None = None,
    ) -> Run:
        """Return the run; only "fit" has optimizers. `start`: the objects when the fit that it continues began."""
        run = Run(
            self.trainer,
            self.module,
            self.datamodule,
            self.callbacks,
            self.strategy,
            hooks,
            loggers,
            self.results,
            progress,
            signals,
            self._optimization(stage, progress, hooks, train_data),
            Evaluations(self.eval_data, self.evaluations, self.settings.inference_mode),
            self.order,
            self.plan,
            train_data,
            self.settings.save_user_state,
            identity,
            start,
            stop=self.stop,
        )
        if train_data is not None:
            train_data.note_loading(run.user_state.loading, run.user_state.as_loading)
        evaluated = {"test": TEST, "predict": PREDICT}.get(stage)
        if evaluated is not None:
            self.eval_data(evaluated)
        return run

    def _optimization(self, stage: str, progress: Progress, hooks: Hooks, train_data: TrainData | None) -> Optimization:
        module, settings, strategy = self.module, self.settings, self.strategy
        scaler = strategy.precision.loss_scaler(strategy.root_device.type) if stage == "fit" else None
        counts_none = self.order.counts_all and scaler is None  # a scaler cannot step without gradients
        window = Window(strategy.data if strategy.world_size > 1 else None, counts_none, LossTerms(self.results))
        clip_defaults = settings.gradient_clip_val, settings.gradient_clip_algorithm
        if stage != "fit":
            none = Schedules([], step_scheduler, dict)
            return Optimization(module, strategy, hooks, window, none, clip_defaults, module.backward)
        plan = self.plan(train_data.expected_batches if train_data is not None else 0)
        check_optimization(module, settings)
        configured, configs = self.timed(module, "configure_optimizers", configure)(
            module,
            plan.rest(progress),
            not overrides(module, Module, "lr_scheduler_step"),
            self._eval_batches,
            strategy.divides_parameters,
        )
        check_schedulers(module, configs)
        if any(config.interval in ("sample", "token") for config in configs):
            counter_of(self.callbacks, "A schedule has an interval in samples or tokens")
        if settings.limit_val_batches and self.sources["val"] is None and overrides(module, Module, "validation_step"):
            refuse_unvalidated(module, monitors_of((), configs))
        optimizers = [strategy.optimizer(optimizer) for optimizer in configured]
        averaging = schedule_free(self.trainer, configured, optimizers, [config.scheduler for config in configs])
        if averaging is not None:  # its hooks, too
            self.callbacks.append(averaging)
            hooks.replace_by(self.hooks())
        if scaler is not None:
            scaler.unscale_by(partial(strategy.unscale, scaler.grad_scaler), empty=strategy.divides_parameters)
        by_user = overrides(module, Module, "backward")
        optimization = Optimization(
            module,
            strategy,
            hooks,
            window,
            self._schedules(configs, progress),
            clip_defaults,
            scoped(self.results, "backward", module.backward) if by_user else torch.Tensor.backward,
            optimizers,
            scaler=scaler,
            zero_grad=self._zero_grad(progress, optimizers),
            clip=self._clip(clip_defaults),
            clips_by_default=bool(clip_defaults[0]) and not any(overrides(module, Module, name) for name in _CLIPPING),
            cleared_first=[] if self.order.clears_late else optimizers,
        )
        self._choose_optimization(optimization, plan, configured, progress)
        return optimization

    def _eval_batches(self) -> float:
        """Return the number of validation batches on this process."""
        has_data = self.sources["val"] is not None and bool(self.settings.limit_val_batches)
        return sum(self.eval_data(VALIDATION).num_batches) if has_data else math.inf

    def _schedules(self, configs: list[SchedulerConfig], progress: Progress) -> Schedules:
        module = self.module
        by_user = overrides(module, Module, "lr_scheduler_step")
        step = scoped(self.results, "lr_scheduler_step", module.lr_scheduler_step) if by_user else step_scheduler
        metrics = lambda: self.results.callback_metrics  # noqa: E731
        counted = step_of_counted_batch(step, progress) if by_user and self.order.counts_all else None
        return Schedules(
            configs, step, metrics, module.automatic_optimization, self.strategy.reduce, counted, self.results.is_old
        )

    def _clip(self, defaults: tuple[float | None, str | None]) -> Callable[[Any], None] | None:
        by_user = [name for name in _CLIPPING if overrides(self.module, Module, name)]
        if not by_user or (defaults[0] is None and _CLIPPING[0] not in by_user):
            return None
        method = method_of(self.module, Module, "configure_gradient_clipping")
        clip = scoped(self.results, "configure_gradient_clipping", method)
        return lambda optimizer: clip(optimizer, *defaults)

    def _choose_optimization(
        self, optimization: Optimization, plan: Plan, configured: list[Any], progress: Progress
    ) -> None:
        module, scaler, optimizers = self.module, optimization.scaler, optimization.optimizers
        # Where a strategy replaces an optimizer, the replacement decides how it is stepped.
        closures = {closure_of(user) for user, stepped in zip(configured, optimizers, strict=True) if user is stepped}
        by_closure = scaler is None and bool(closures - {None})
        removable: list[Any] = []
        step_method = None
        if not module.automatic_optimization:
            run_batch, step = loop.manual, loop.manual_step
            casts = [self.strategy.precision.forget_casts_after(optimizer) for optimizer in optimizers]
            removable += [handle for handle in casts if handle is not None]
        elif by_closure or overrides(module, Module, "optimizer_step"):
            run_batch, step = loop.closure, loop.closure_step
            step_method = scoped(self.results, "optimizer_step", method_of(module, Module, "optimizer_step"))
            if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
                _check_lbfgs(plan, optimizers)
        else:
            run_batch, step = loop.automatic, loop.manual_step
        if scaler is not None:
            for optimizer in optimizers:
                scaler.check(optimizer)
            if module.automatic_optimization:
                if "needs" in closures:
                    raise _needs_closure(configured)
                scaler.check_together(optimizers)
        if run_batch is not loop.automatic:
            note_step = optimization.window.note_step
            removable += [optimizer.register_step_post_hook(note_step) for optimizer in optimizers]
        if not module.automatic_optimization and self.order.counts_all:
            removable += [optimizer.register_step_post_hook(progress.count_step) for optimizer in optimizers]
        removable += self.timing.optimizers(optimizers)
        optimization.call(
            run_batch=run_batch,
            backward=partial(loop.backward, optimization),
            manual_backward=partial(loop.manual_backward, optimization),
            step_method=step_method,
            handles=[
                LightningOptimizer(o, partial(step, optimization), module.toggled_optimizer, optimization.complete)
                for o in optimizers
            ],
            removable=removable,
        )
        if self.strategy.extension.change_calls is not None:
            self.strategy.extension.change_calls(optimization)
        self._wrap(optimization)

    def _wrap(self, optimization: Optimization) -> None:
        """Put Lightning's order and the profiler around the calls, whether or not the strategy replaced them."""
        run_batch, backward = optimization.run_batch, optimization.backward
        if self.order.steps_early and optimization.schedules.may_step_early:
            run_batch = then_schedules(run_batch)
        if optimization.schedules.by_batch:
            run_batch = then_batch_schedules(run_batch)
        if self.order.clears_late:
            backward = partial(clear_and_backward, optimization, backward)
        strategy = type(self.strategy).__name__
        run_batch = self.timing.call(RUN_BATCH, run_batch)
        optimization.wrap(run_batch, self.timing.call(f"[Strategy]{strategy}.backward", backward))

    def _zero_grad(self, progress: Progress, optimizers: list[Any]) -> Callable[[Any], None]:
        module = self.module
        if overrides(module, Module, "optimizer_zero_grad"):
            by_user = scoped(self.results, "optimizer_zero_grad", module.optimizer_zero_grad)
            return lambda optimizer: by_user(progress.epoch, progress.epoch_batch, optimizer)
        return zeroing(optimizers)


def _end_substep(trainer: Trainer, hooks: Hooks) -> None:
    """Call `on_substep_end` after a batch in which no optimizer stepped."""
    assert trainer.run is not None
    if not trainer.run.optimization.window.stepped:
        hooks.on_substep_end()


def _refuse_stop(name: str, reason: str) -> None:
    raise MisconfigurationException(
        f"{name} raised StopTraining({reason!r}) on one of several processes.",
        expected="it to be raised in a hook: within a step the other ranks wait for this one.",
        fix="raise it in on_train_batch_end, or set self.trainer.should_stop = True in the step.",
    )


def _check_lbfgs(plan: Plan, optimizers: list[Any]) -> None:
    if plan.accumulate > 1 or len(optimizers) > 1:
        obstacle = "several optimizers" if len(optimizers) > 1 else f"accumulate_grad_batches={plan.accumulate}"
        raise MisconfigurationException(
            f"LBFGS together with {obstacle}.",
            expected="LBFGS alone, without accumulation: it evaluates one batch several times per step.",
            fix="use a larger batch instead of accumulation, or manual optimization for several optimizers.",
        )


def _needs_closure(optimizers: list[Any]) -> MisconfigurationException:
    name = next(type(optimizer).__name__ for optimizer in optimizers if closure_of(optimizer) == "needs")
    return MisconfigurationException(
        f"{name}.step needs its closure, which it does not get with a loss scaler ('16-mixed'): the gradients of each "
        "call would have to be unscaled and checked for overflow.",
        expected="an optimizer that steps without a closure.",
        fix="use precision='bf16-mixed' or '32-true', which do not scale the loss, or another optimizer.",
    )


def _changed(source: Source, change: Callable[[Any], Any]) -> Any:
    """Return the loaders of a source, each of them changed."""
    requested = source()
    if requested is None or isinstance(requested, CombinedLoader):
        return requested and requested.with_loaders([change(loader) for loader in requested.flattened])
    loaders, rebuild = flatten(requested)
    return rebuild([change(loader) for loader in loaders])


def _chained(calls: list[Callable[[Any, int], Any]]) -> Callable[[Any, int], Any]:
    def move(batch: Any, loader: int) -> Any:
        for call in calls:
            batch = call(batch, loader)
        return batch

    return move
