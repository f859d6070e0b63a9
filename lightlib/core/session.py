"""One call of fit, validate, test or predict: what comes before the loop and after it, come what may."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from lightlib import report
from lightlib.accelerators.resolve import unused
from lightlib.core import check
from lightlib.core.build import Builder
from lightlib.core.metrics.results import Results
from lightlib.core.metrics.table import table
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.module import Module
from lightlib.core.module.overrides import method_of
from lightlib.core.module.served import add_what_a_batch_is
from lightlib.core.processes import Processes
from lightlib.core.progress.progress import Progress
from lightlib.core.progress.states import TrainerFn, TrainerState, TrainerStatus
from lightlib.core.resume.find import newest_known, say_how_to_go_on
from lightlib.core.resume.fingerprint import compare
from lightlib.core.resume.restore import restore, restore_datamodule, restore_weights
from lightlib.core.resume.save import write_checkpoint
from lightlib.core.resume.source import Origin, find_origin
from lightlib.core.run.hooks import ClosedCallbacks, Hooks, in_priority
from lightlib.core.run.parts import PREDICT, TEST, VALIDATION
from lightlib.core.run.run import Run
from lightlib.core.run.signals import Signals
from lightlib.core.run.user_state import Look
from lightlib.core.setup.loaders import check_given, find, holds_nothing
from lightlib.core.setup.plugins import callbacks_in
from lightlib.core.values.hparams import plain_hparams, same
from lightlib.errors import ArgumentTypeError, MisconfigurationException, SIGTERMException
from lightlib.launch.start.subprocess import is_shell
from lightlib.loggers.fanout import Fanout
from lightlib.profilers.profiler import PassThroughProfiler, Profiler
from lightlib.version import __version__

__all__ = ["Session"]


class Session:
    """A context around the loop. An exception passes through here and nowhere else.

    Args:
        trainer: Whose arguments it reads, and whose `_run`, `state` and `interrupted` it sets.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.signals = Signals(None if trainer.requeue is None else trainer.requeue.requeue_signal)
        self.processes = Processes(trainer)
        self.module: Module | None = None
        self.datamodule: DataModule | None = None
        self._given: dict[str, Any] = {}
        self._stack = ExitStack()
        self._own_callbacks: list[Any] = []  # the Trainer's; `merged` are those and the module's
        self._merged_callbacks: tuple[Any, ...] = ()
        self.builder: Builder | None = None
        self._said: set[str] = set()
        self._compiler: Callable[..., Any] | None = None
        self.hooks: Hooks | None = None
        self.fit_run: Run | None = None  # of the last fit: its optimizers and position outlive an evaluation
        self.asked_path: str | Path | None = None  # the user's, for calls that name no checkpoint
        self.loaded_path: str | Path | None = None  # the last call's
        self.left = Results()  # of a run in other processes, or of the Trainer that this one is a copy of
        self.log_dir: tuple[Any, str | None] = (None, None)  # of several processes: whose folder, and rank zero's

    @property
    def profiler(self) -> Profiler | None:
        """The Trainer's, if it measures anything."""
        profiler: Profiler | None = self.trainer.profiler
        return None if isinstance(profiler, PassThroughProfiler) else profiler

    # before
    def begin(
        self,
        fn: TrainerFn,
        model: Any,
        given: Mapping[str, Any],
        datamodule: Any,
        ckpt_path: str | Path | None,
        weights_only: bool | None,
        resume: Any = None,
    ) -> None:
        """Check what the user gave and build the run.

        Raises:
            MisconfigurationException: Something does not fit; nothing has run yet.
        """
        trainer = self.trainer
        first = next(iter(given))
        if isinstance(given[first], DataModule) and datamodule is None:
            given, datamodule = {**given, first: None}, given[first]
        check_given(given, datamodule)
        module = self._module_for(fn, model)
        if datamodule is None and module is self.module and all(value is None for value in given.values()):
            datamodule = self.datamodule
        self.processes.ready()
        self.processes.begin(self.signals)
        try:
            given_path = self.asked_path if ckpt_path is None else ckpt_path
            origin = find_origin(trainer, fn, module, model is None, given_path, weights_only, resume)
        except BaseException as error:
            cause = self.processes.first_failure(error)
            self.processes.end()
            if cause is not error:
                raise cause from None
            raise
        self.signals.received = None
        self.loaded_path = origin.found.path
        if fn is TrainerFn.FITTING:
            self._name_the_run(origin)
        trainer.state = TrainerState(fn, None, TrainerStatus.RUNNING)
        trainer.interrupted = False
        try:
            self._build(fn, module, given, datamodule, origin)
        except BaseException as error:
            cause = self.processes.first_failure(error)
            self._fail(cause if isinstance(cause, KeyboardInterrupt) else error)
            self.processes.end()
            if cause is not error:
                raise cause from None
            raise

    def _name_the_run(self, origin: Origin) -> None:
        trainer, label = self.trainer, origin.found.label
        same = self.fit_run is not None and trainer.progress.batch > 0  # this Trainer's last fit goes on
        trainer.run_id = origin.run_id(trainer.run_id if same else "", trainer.strategy)
        trainer.continues, trainer.resumed_label = origin.continues, label
        trainer.resumed_by_path = origin.found.by_path
        trainer.saves = label.serial if origin.continues and label is not None else trainer.saves if same else 0

    def _module_for(self, fn: TrainerFn, model: Any) -> Module:
        if model is None and self.module is not None and fn is not TrainerFn.FITTING:
            return self.module
        if model is None:
            raise ArgumentTypeError(
                f"trainer.{fn.value}() got no model.",
                expected="an instance of lightlib.Module.",
                fix=f"trainer.{fn.value}(module)",
            )
        module = check.check_module(model)
        self._compiler = check.compiler_of(model)
        if fn is TrainerFn.FITTING and self.fit_run is not None and module is not self.fit_run.module:
            self.trainer.progress = Progress()
        return module

    def _build(self, fn: TrainerFn, module: Module, given: Mapping[str, Any], datamodule: Any, origin: Origin) -> None:
        trainer, stage, self.hooks = self.trainer, fn.value, None  # until there are hooks, a failure calls none
        self.module, self.datamodule, self._given = module, datamodule, dict(given)
        trainer.run, self.left = None, Results()  # nothing reads the last run while this one is built
        module.trainer = trainer
        if module.device_mesh is not trainer.strategy.device_mesh:
            module.device_mesh = trainer.strategy.device_mesh
        if datamodule is not None:
            datamodule.trainer = trainer
        self._merge_callbacks(module)
        sources = {
            name: find(name, given.get(f"{name}_dataloaders"), module, datamodule)
            for name in ("train", "val", "test", "predict")
        }
        self.builder = builder = Builder(
            trainer,
            module,
            datamodule,
            list(trainer.callbacks),
            trainer.strategy,
            trainer.settings,
            sources,
            self.profiler,
            self._compiler,
            self.processes.watch,
        )
        builder.time_sources(given)
        module._results = builder.results  # noqa: SLF001  so that `self.log` finds it without a detour
        val_wanted = bool(trainer.settings.limit_val_batches) and not holds_nothing(given.get("val_dataloaders"))
        check.check_steps(module, stage, sources["val"] is not None, val_wanted)
        self._check_source(fn, sources)
        loggers = self._prepare_loggers(fn, origin)
        self.hooks = builder.hooks()
        self._set_up(fn, module, datamodule)
        self.hooks = hooks = builder.hooks()
        with trainer.strategy.init_context():
            method_of(module, Module, "configure_model")()
        if origin.content is not None and origin.parts.datamodule:
            restore_datamodule(datamodule, origin.content)
        train_data = builder.train_data() if fn is TrainerFn.FITTING else None
        counts = {name: self._loader_count(builder, name, fn) for name in ("validation", "test", "predict")}
        builder.place(counts)
        if origin.content is not None:
            run = self._build_restored(builder, stage, hooks, loggers, train_data, origin)
        else:
            run = builder.run(stage, trainer.progress, hooks, loggers, self.signals, train_data, self._looked(module))
            run.progress.begun *= not (train_data and run.progress.epoch_batch == 0)  # a further fit begins it again
            self._continue_epoch(run, train_data)
        self.fit_run = run if fn is TrainerFn.FITTING else self.fit_run
        self.processes.attach(run)
        trainer.run = run
        self._tell_loggers(run)
        self._announce(run)

    def _build_restored(
        self, builder: Builder, stage: str, hooks: Hooks, loggers: Fanout, train_data: Any, origin: Origin
    ) -> Run:
        trainer, content = self.trainer, origin.content or {}
        restore_weights(trainer, builder.module, builder.strategy, builder.callbacks, content, origin.parts.strict)
        if stage == "fit":
            trainer.progress = Progress()
        run = builder.run(stage, trainer.progress, hooks, loggers, self.signals, train_data)
        if stage == "fit":
            compare(run, content, plain_hparams(builder.module.hparams)[0], origin.parts)
            restore(run, content, origin.parts, origin.continues)
        return run

    def _continue_epoch(self, run: Run, train_data: Any) -> None:
        """Put a further fit of this Trainer where the last one ended within an epoch."""
        last = self.fit_run
        if train_data and last and last.train_data and run.progress.epoch_batch:
            train_data.load_state_dict(last.train_data.state_dict())
            run.results.load_state_dict(last.results.state_dict(), run.module.get_submodule)

    def _looked(self, module: Module) -> Look | None:
        """Return what the user's objects were when the fit began that this one continues."""
        run = self.fit_run if self.trainer.progress.batch else None
        return run.user_state.start if run is not None and run.module is module else None

    def _check_source(self, fn: TrainerFn, sources: Mapping[str, Any]) -> None:
        name = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}[fn.value]
        if sources[name] is None:
            argument = "train_dataloaders" if name == "train" else "dataloaders"
            raise MisconfigurationException(
                f"trainer.{fn.value}() has no data.",
                expected=f"`{argument}`, a data module, or a method `{name}_dataloader` of the module.",
                fix=f"trainer.{fn.value}(module, {argument}=loader)",
            )

    def _loader_count(self, builder: Builder, name: str, fn: TrainerFn) -> int:
        stage = {"validation": VALIDATION, "test": TEST, "predict": PREDICT}[name]
        key = {"validation": "val"}.get(name, name)
        used = {"fit": "val", "validate": "val", "test": "test", "predict": "predict"}[fn.value] == key
        wanted = bool(getattr(self.trainer.settings, f"limit_{key}_batches"))
        if not used or builder.sources[key] is None or not (wanted or fn is not TrainerFn.FITTING):
            return 1
        count = builder.eval_data(stage).num_loaders
        if not count:
            builder.sources[key] = None
            self._check_source(fn, builder.sources)
            report.info("val_dataloader returned no loaders: nothing is validated in this run.")
        return count

    def _merge_callbacks(self, module: Module) -> None:
        trainer, before = self.trainer, self._merged_callbacks
        present = list(trainer.callbacks)  # the last call's merged ones, unless the user has changed them since
        own = [c for c in self._own_callbacks if c in present or c not in before]
        own += [c for c in present if c not in before]
        added = callbacks_in(method_of(module, Module, "configure_callbacks")())
        kinds = {type(callback) for callback in added}
        merged = in_priority([c for c in own if type(c) not in kinds] + added)
        check.check_callbacks(merged)
        for callback in merged:
            _attach(callback, module)
        self._own_callbacks, self._merged_callbacks = own, tuple(merged)
        trainer.callbacks = ClosedCallbacks(merged)

    def _prepare_loggers(self, fn: TrainerFn, origin: Origin) -> Fanout:
        strategy, error = self.trainer.strategy, None
        fanout = Fanout(self.trainer.loggers)
        if fn is TrainerFn.FITTING and origin.continues:
            fanout.load_state_dict(((origin.content or {}).get("lightlib") or {}).get("loggers"))
        elif fn is TrainerFn.FITTING and origin.found.skips:
            fanout.start_anew()
        for logger in self.trainer.loggers:
            try:
                logger.prepare()
            except Exception as raised:  # noqa: BLE001  the other processes hear of it before it ends this one
                error = raised
            told = strategy.broadcast(None if error is None else str(error))
            if error is not None:
                raise error
            if told is not None:
                raise MisconfigurationException(told)
            logger.share(strategy.broadcast)
        if strategy.world_size > 1:
            self.log_dir = None, None
            self.log_dir = self.trainer.logger, strategy.broadcast(self.trainer.log_dir)
        return fanout

    def _set_up(self, fn: TrainerFn, module: Module, datamodule: DataModule | None) -> None:
        assert self.hooks is not None
        trainer = self.trainer
        trainer.accelerator.setup(trainer)
        assert self.builder is not None
        timed = self.builder.timed
        if self.profiler is not None:
            self.profiler.watch(module)
            self.profiler.setup(stage=fn.value, local_rank=trainer.local_rank, log_dir=trainer.log_dir)
        for owner in (datamodule, module):
            first = trainer.local_rank if getattr(owner, "prepare_data_per_node", True) else trainer.global_rank
            if owner is not None and first == 0:
                timed(owner, "prepare_data", method_of(owner, DataHooks, "prepare_data"))()
        self.trainer.strategy.barrier("prepare_data")
        if datamodule is not None:
            timed(datamodule, "setup", method_of(datamodule, DataModule, "setup"))(fn)
        self.hooks.setup(fn)

    def _tell_loggers(self, run: Run) -> None:
        if not self.trainer.settings.enable_autolog_hparams or not run.loggers:
            return
        params: dict[str, Any] = {}
        for owner in (run.datamodule, run.module):
            if owner is not None and owner._log_hyperparams:  # noqa: SLF001  set by save_hyperparameters
                for name, value in owner.hparams.items():
                    if name in ("_class_path", "_instantiator"):  # LightningCLI's own: of which class it is
                        continue
                    if name in params and not same(params[name], value):
                        raise MisconfigurationException(
                            f"The hyperparameter {name!r} is {params[name]!r} in the data module "
                            f"and {value!r} in the module.",
                            expected="one value per name, or a name of its own for each.",
                            fix=f"save_hyperparameters(ignore={name!r}) in one of the two.",
                        )
                    params[name] = value
        if params:
            run.loggers.log_hyperparams(params)
        run.loggers.log_graph(run.module)
        run.loggers.save()

    def _announce(self, run: Run) -> None:
        trainer = self.trainer
        device = trainer.accelerator.describe(trainer.strategy.root_device)
        idle = unused(trainer.accelerator)
        seed = os.environ.get("PL_GLOBAL_SEED")
        parts = [
            f"lightlib {__version__}",
            f"torch {torch.__version__}",
            f"{trainer.strategy.world_size}×{device}" + f" (a {idle} device is unused)" * bool(idle),  # noqa: RUF001  it is meant
            trainer.precision,
            trainer.strategy.describe(),
            f"seed {seed}" if seed is not None else "no seed",
        ]
        for line in (" · ".join(parts), *run.optimization.schedules.describe(run.plan)):
            if line not in self._said:
                self._said.add(line)
                report.info(line)
        if trainer.state.fn is TrainerFn.FITTING and run.plan.done(run.progress):
            at = f"epoch {run.progress.epoch}, step {run.progress.step}"
            limits = f"max_epochs={run.plan.max_epochs:g}, max_steps={run.plan.max_steps:g}"
            report.info(
                f"Nothing to train: the run is at {at} already, with {limits} and "
                f"{run.plan.num_batches:g} training batches."
            )

    def rebuild_hooks(self, run: Run) -> None:
        assert self.builder is not None
        run.hooks.take_over(self.builder.hooks())

    # around the loop
    def __enter__(self) -> Run:
        run: Run = self.trainer.run
        self._stack = ExitStack()
        self._stack.enter_context(self.signals.noted())
        return run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            try:
                asked = self.signals.of_any(self.trainer.strategy)
            except BaseException as raised:  # of the other processes, or a second Ctrl-C: the run fails after all
                if self.__exit__(type(raised), raised, raised.__traceback__):
                    return True
                raise
            queued = asked is not None and self._wants_to_be_queued()
            self._stack.close()
            self.processes.end()
            self._finish(TrainerStatus.FINISHED, "success")
            if asked is not None:  # the program's next call would go on
                self._say_how_to_go_on(None, queued, interrupted=True)
                self.trainer.interrupted = True
                return self._leave(asked, error)
            return False
        run = self.trainer.run
        if run.train_data is not None and not run.progress.batch:
            add_what_a_batch_is(error, run.train_data.given, run.results.train.batch)
        cause = self.signals.received if self._took_the_workers(error) else error
        assert cause is not None
        if cause is not self.signals.received:  # else a launcher's further SIGTERM must not end the process as it saves
            self._stack.close()
        try:
            first = self.processes.first_failure(cause)
            self._fail(first if isinstance(first, KeyboardInterrupt) else cause)
            self.processes.end()
        except KeyboardInterrupt as again:  # Ctrl-C while things are put away: at once
            first = self.processes.first_failure(again)
            self.processes.end()
        finally:
            self._stack.close()
        if isinstance(first, KeyboardInterrupt):
            return self._leave(first, error)
        if first is not error:
            raise first from None
        return False

    def _leave(self, asked: BaseException, error: BaseException | None) -> bool:
        """End the program after a signal, once the run has ended; a notebook or a shell lives on after Ctrl-C.

        There `fit` returns to the next line, and other calls, and a second Ctrl-C, which breaks off, raise.

        Returns:
            Whether the caller of the Trainer is to go on as if nothing had been raised.
        """
        if not isinstance(asked, KeyboardInterrupt):
            raise asked from None
        if not is_shell() or self.trainer.strategy.world_size > 1:
            sys.exit(130)
        at_a_boundary = error is None or asked is self.signals.received
        if at_a_boundary and self.trainer.state.fn is TrainerFn.FITTING:
            return True
        if asked is not error:
            raise asked from None
        return False

    def _took_the_workers(self, error: BaseException) -> bool:
        """Whether a signal to all processes of a group has ended the loaders' workers, without which no step follows.

        With several processes the others are still waiting for this one to agree on a step, so the error stands.
        """
        of_workers = isinstance(error, RuntimeError) and "DataLoader worker" in str(error)
        return of_workers and self.signals.received is not None and self.trainer.strategy.world_size == 1

    def _fail(self, error: BaseException) -> None:
        trainer, run = self.trainer, self.trainer.run
        trainer.interrupted = isinstance(error, (KeyboardInterrupt, SIGTERMException))
        saved, again = None, False
        if run is not None and trainer.state.fn is TrainerFn.FITTING:
            run.saves.stop_deferring()
            whole = error is self.signals.received and run.begun and run.between_windows()
            saved = self._save_interrupted(run) if whole else None
            again = error is self.signals.received and self._wants_to_be_queued()
        if self.hooks is not None:
            _quietly(self.hooks.on_exception, error)
            if self.datamodule is not None:
                _quietly(method_of(self.datamodule, DataModule, "on_exception"), error)
        self._finish(TrainerStatus.INTERRUPTED, "interrupted" if trainer.interrupted else "failed")
        if run is not None:
            self._say_how_to_go_on(saved, again, trainer.interrupted)

    def _say_how_to_go_on(self, saved: str | None, again: bool, interrupted: bool) -> None:
        trainer = self.trainer
        if trainer.state.fn is TrainerFn.FITTING:
            say_how_to_go_on(trainer, saved, interrupted)
            if again and trainer.is_global_zero:
                trainer.requeue.requeue(saved or newest_known(trainer) or None)

    def _wants_to_be_queued(self) -> bool:
        """Whether any process got the signal that asks for the job to be queued again; all leave together."""
        wanted, strategy = self.trainer.requeue is not None, self.trainer.strategy
        return bool(wanted and strategy.reduce_boolean_decision(self.signals.requeue_asked, all=False))

    def _save_interrupted(self, run: Run) -> str | None:
        trainer, callback = self.trainer, self.trainer.checkpoint_callback
        folder = getattr(callback, "dirpath", None)
        if folder is None or trainer.fast_dev_run:
            return None
        path = os.path.join(str(folder), "interrupted.ckpt")
        try:
            write_checkpoint(run, path)
        except Exception as error:  # noqa: BLE001  also what the user's on_save_checkpoint raises: the end goes on
            report.warn(f"The run could not be saved to {path!r}: {error}")
            return None
        return path

    # after
    def _finish(self, status: TrainerStatus, word: str) -> None:
        trainer, fn = self.trainer, self.trainer.state.fn
        run = trainer.run
        errors: list[Exception] = []
        guard: Callable[..., None] = _quietly if status is TrainerStatus.INTERRUPTED else partial(_noted, errors)
        if run is not None:
            run.end()
        guard(trainer.strategy.teardown)
        if self.hooks is not None:
            if self.datamodule is not None:
                guard(method_of(self.datamodule, DataModule, "teardown"), fn)
            guard(self.hooks.teardown, fn)
        Fanout(trainer.loggers).finalize("failed" if errors else word)
        if self.profiler is not None:
            guard(self.profiler.describe)
            guard(self.profiler.teardown, fn.value)
        trainer.callbacks = list(trainer.callbacks)
        for callback in trainer.callbacks:
            _attach(callback, None)
        trainer.state = TrainerState(fn, None, TrainerStatus.INTERRUPTED if errors else status)
        if self.signals.received is not None:
            self.signals.received.__traceback__ = None  # its frames hold the last batch
        if run is not None:
            run.say_it_is_over()
        if errors:
            raise errors[0]

    def tell(self, metrics: list[dict[str, float]], verbose: bool) -> None:
        """Print the metrics of an evaluation as a table."""
        if verbose and self.trainer.is_global_zero and any(metrics):
            print(table(metrics, self.trainer.state.fn.value))  # noqa: T201  it is what the user asked for


def _attach(callback: Any, module: Module | None) -> None:
    """Give a callback the module for its `log`; one that is an nn.Module itself must not take it for a layer."""
    object.__setattr__(callback, "_pl_module", module)


def _noted(errors: list[Exception], call: Callable[..., Any], *args: Any) -> None:
    """Call; an error waits in `errors` until everything has been put away."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001  it is raised when all is done
        errors.append(error)


def _quietly(call: Callable[..., Any], *args: Any) -> None:
    """Call while another exception is on its way: a second one is reported and does not take its place."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001  anything may fail while a run is ended
        report.warn(f"{getattr(call, '__qualname__', call)} failed as well while the run was ended: {error!r}.")
