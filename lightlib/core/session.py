"""Set-up, error handling and teardown around one fit, validate, test or predict call."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.checkpoint.storage.content import INTERRUPTED
from lightlib.conventions import order
from lightlib.core import check
from lightlib.core.attachment import Attachment
from lightlib.core.build import Builder
from lightlib.core.metrics.results import table
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.module.overrides import method_of, with_stage
from lightlib.core.preparation import (
    check_source,
    loader_count,
    log_hyperparameters,
    nothing_to_train,
    prepare_data,
    prepare_loggers,
    start_lines,
)
from lightlib.core.probe import Call, limits_of, run_call, unseen
from lightlib.core.processes import Processes
from lightlib.core.progress.states import TrainerFn, TrainerState, TrainerStatus
from lightlib.core.resume.find import newest_of_callbacks, report_how_to_resume
from lightlib.core.resume.fingerprint import compare
from lightlib.core.resume.restore import (
    epochs_of_loaders,
    restore,
    restore_callbacks,
    restore_search_results,
    restore_weights,
)
from lightlib.core.resume.resume_source import ResumeSource, find_origin
from lightlib.core.resume.save import RunIdentity
from lightlib.core.run.hooks import FrozenCallbacks, Hooks, each, in_priority, nothing
from lightlib.core.run.parts import PREDICT, TEST, VALIDATION
from lightlib.core.run.run import Run
from lightlib.core.run.signals import Signals
from lightlib.core.run.step_notes import explain_step
from lightlib.core.run.user_snapshot import Snapshot
from lightlib.core.session_state import SessionState
from lightlib.core.setup.callbacks import callbacks_in
from lightlib.core.setup.loaders import check_kinds, explain_batch, find, holds_nothing
from lightlib.core.setup.timing import Timing, facts_of
from lightlib.core.values.hparams import plain_hparams
from lightlib.data.seed import reset_seed
from lightlib.errors import MisconfigurationException
from lightlib.launch.start.program import is_shell
from lightlib.loggers.fanout import Fanout

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


_AFTER_TRAINING = ("on_train_end", "on_fit_end")


class Session(SessionState):
    """Set-up, error handling and teardown around one call. All exceptions of a call pass through here.

    Attributes:
        builder: The builder of the last run.
        hooks: The hooks of the last run; None until they are known.
        log_dir: With several processes the Trainer's logger, and rank zero's folder.
        is_open: Whether a call is being made.
    """

    def __init__(self, trainer: Trainer, callbacks: list[Any], once: report.Once | None = None) -> None:
        super().__init__(trainer, callbacks)
        self.signals: Signals = Signals(None if trainer.requeue is None else trainer.requeue.requeue_signal)
        self.processes: Processes = Processes(trainer)
        self.builder: Builder | None = None
        self.hooks: Hooks | None = None
        self.log_dir: tuple[Any, str | None] = (None, None)
        self._stack = ExitStack()
        self._trainer_callbacks: list[Any] = []  # without the module's
        self._merged_callbacks: tuple[Any, ...] = ()
        self._once = report.Once() if once is None else once
        self._unmet: Any = None  # the strategy for probes: as the Trainer's was before the processes met
        self._call: Call | None = None
        self._attachment: Attachment | None = None  # of the call around this one
        self._attached: list[tuple[Any, Any]] = []  # callbacks, and the modules that they had before this call
        self.is_open = False
        self._printers: dict[str, Callable[[list[dict[str, float]], str], None]] = {}
        self.verbose = {"validate": True, "test": True}
        self._compiler: Callable[..., Any] | None = None

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
        """Check the user's arguments and build the run."""
        self._refuse_within_itself(fn)
        trainer = self.trainer
        first = next(iter(given))
        if isinstance(given[first], DataModule) and datamodule is None:
            given, datamodule = {**given, first: None}, given[first]
        check_kinds(given, datamodule)
        module = self._module_for(fn, model)
        if datamodule is None and module is self.module and all(value is None for value in given.values()):
            datamodule = self.datamodule
        if fn is TrainerFn.FITTING:
            trainer.adapt_strategy(module)
        if trainer.strategy.extension.begin is not None:
            trainer.strategy.extension.begin(module)
        self.keep_strategy()
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
        self.signals.clear()
        self.loaded_path = origin.found.path
        path = origin.found.path if origin.content is not None else None
        self._call = Call(fn.value, module, given, datamodule, path, weights_only)
        if fn is TrainerFn.FITTING:
            self._identify_run(origin)
        self.state, self.interrupted = TrainerState(fn, None, TrainerStatus.RUNNING), False
        self.is_open = True
        try:
            self._build(fn, module, given, datamodule, origin)
        except BaseException as error:
            cause = self.processes.first_failure(error)
            self._fail(cause if isinstance(cause, KeyboardInterrupt) else error)
            self.processes.end()
            if cause is not error:
                raise cause from None
            raise

    def _refuse_within_itself(self, fn: TrainerFn) -> None:
        """Refuse a call in a hook of this Trainer's own call; after training, `fit` has only to end."""
        running = self.state.fn
        if not self.is_open or running is None or self.results.scope.hook in _AFTER_TRAINING:
            return
        raise MisconfigurationException(
            f"trainer.{fn.value}() was called within trainer.{running.value}() of the same Trainer.",
            expected="one call of a Trainer at a time.",
            fix=f"call another one in the hook, for example lightlib.Trainer(logger=False).{fn.value}(…); or call this "
            f"one after trainer.{running.value}().",
        )

    def _identify_run(self, origin: ResumeSource) -> None:
        trainer, label = self.trainer, origin.found.label
        same = self.fit_run is not None and trainer.progress.batch > 0  # this fit continues the Trainer's last one
        before = self.identity if same else RunIdentity()
        self.identity = RunIdentity(
            origin.run_id(before.run_id, trainer.strategy),
            label.serial if origin.continues and label is not None else before.serial,
            origin.continues,
            label,
            origin.found.by_path,
        )

    def _module_for(self, fn: TrainerFn, model: Any) -> Module:
        if model is None and self.module is not None and fn is not TrainerFn.FITTING:
            return self.module
        module = check.check_module(model, fn.value)
        self._compiler = check.compiler_of(model)
        check.check_compiled_once(self._compiler, self.trainer.strategy.transforms)
        if fn is TrainerFn.FITTING and self.fit_run is not None and module is not self.fit_run.module:
            self.trainer.progress.reset()
        return module

    def _build(
        self, fn: TrainerFn, module: Module, loaders: Mapping[str, Any], datamodule: Any, origin: ResumeSource
    ) -> None:
        trainer, stage, self.hooks = self.trainer, fn.value, None  # a failure before the hooks are known calls none
        if Attachment.is_needed(module, datamodule, trainer):
            self._attachment = Attachment(module, datamodule, fn is TrainerFn.FITTING)
        self._take(module, datamodule)
        self._merge_callbacks(module)
        sources = self._sources(fn, module, loaders)
        self.builder = builder = Builder(
            trainer,
            module,
            datamodule,
            list(trainer.callbacks),
            trainer.strategy,
            trainer.settings,
            sources,
            Timing(trainer.profiler),
            self.order,
            self._compiler or trainer.strategy.compiler,
            self.processes.watch,
            loaded_in=epochs_of_loaders(origin.content, origin.parts) if fn is TrainerFn.FITTING else {},
        )
        builder.time_sources(loaders)
        builder.process_loaders()
        module._results = builder.results  # noqa: SLF001  `self.log` reads it directly
        self._check_steps(module, stage, sources, loaders)
        check_source(fn, sources)
        loggers = prepare_loggers(trainer, fn, origin)
        self._share_log_dir()
        if builder.follows_distributed:
            reset_seed()
        self.hooks = builder.hooks()
        if origin.content is not None and origin.parts.callbacks:
            restore_search_results(trainer.callbacks, origin.content)
        prepare_data(trainer, builder, self.hooks, fn)
        self.hooks = hooks = builder.hooks()
        with trainer.strategy.init_context():
            method_of(module, Module, "configure_model")()
        if not self.order.restores_early:
            _restore_datamodule(datamodule, origin)  # before it returns loaders
        with trainer.progress.at_epoch(builder.loaded_in.get("train", trainer.progress.epoch)):
            train_data = builder.train_data() if fn is TrainerFn.FITTING else None
        counts = {each.name: loader_count(builder, each, fn) for each in (VALIDATION, TEST, PREDICT)}
        builder.place(counts)
        if origin.content is not None:
            run = self._build_restored(builder, stage, hooks, loggers, train_data, origin)
        else:
            start = self._user_state_start(module)
            run = builder.run(stage, trainer.progress, hooks, loggers, self.signals, train_data, self.identity, start)
            if train_data is not None and run.progress.epoch_batch == 0:
                run.progress.begin_epoch_again()
            self._continue_epoch(run, train_data)
        self.fit_run = run if fn is TrainerFn.FITTING else self.fit_run
        self.processes.attach(run)
        self.run = run
        log_hyperparameters(run)
        self._announce(run)

    def _take(self, module: Module, datamodule: Any) -> None:
        """Hold the objects of the call that begins, and give them the Trainer."""
        self.module, self.datamodule, self.order = module, datamodule, order()
        self.forget_run()  # so that nothing reads the previous run during set-up
        module.trainer = self.trainer
        if module.device_mesh is not self.trainer.strategy.device_mesh:
            module.device_mesh = self.trainer.strategy.device_mesh
        if datamodule is not None:
            datamodule.trainer = self.trainer

    def _check_steps(self, module: Module, stage: str, sources: dict[str, Any], loaders: Mapping[str, Any]) -> None:
        """Refuse a module without the steps of a stage; leave out a validation that has a step, but no data."""
        trainer = self.trainer
        if self.datamodule is not None:
            check.check_datamodule(self.datamodule)
        val_wanted = bool(trainer.settings.limit_val_batches) and not holds_nothing(loaders.get("val_dataloaders"))
        if not check.check_steps(module, stage, sources["val"] is not None, val_wanted, trainer.callbacks):
            sources["val"] = None

    def _sources(self, fn: TrainerFn, module: Module, loaders: Mapping[str, Any]) -> dict[str, Any]:
        """Return for each stage a function that returns its loaders, or None."""
        trainer, alone = self.trainer, fn is not TrainerFn.FITTING

        def resolved() -> int | None:
            return trainer.per_device_batch_size if trainer.settings.given_accumulation else None

        return {
            name: find(name, loaders.get(f"{name}_dataloaders"), module, self.datamodule, alone, resolved)
            for name in ("train", "val", "test", "predict")
        }

    def _build_restored(
        self, builder: Builder, stage: str, hooks: Hooks, loggers: Fanout, train_data: Any, origin: ResumeSource
    ) -> Run:
        trainer, content = self.trainer, origin.content or {}
        early = partial(_restore_datamodule, builder.datamodule, origin) if self.order.restores_early else None
        strict = origin.parts.strict
        restore_weights(trainer, builder.module, builder.strategy, builder.callbacks, content, strict, early)
        if stage == "fit":
            trainer.progress.reset()
            if early is not None and origin.parts.callbacks:
                restore_callbacks(builder.callbacks, content.get("callbacks", {}))
        run = builder.run(stage, trainer.progress, hooks, loggers, self.signals, train_data, self.identity)
        if stage == "fit":
            now = plain_hparams(builder.module.hparams)[0]
            if self.order.loads_late:
                train_data.when_loaded(partial(compare, run, content, now, origin.parts))
            else:
                compare(run, content, now, origin.parts)
            restore(run, content, origin.parts, origin.continues)
        return run

    def _continue_epoch(self, run: Run, train_data: Any) -> None:
        """Continue within the epoch in which this Trainer's last fit ended."""
        last = self.fit_run
        if train_data and last and last.train_data and run.progress.epoch_batch:
            train_data.load_state_dict(last.train_data.state_dict())
            run.results.load_state_dict(last.results.state_dict(), run.module.get_submodule)

    def _user_state_start(self, module: Module) -> Snapshot | None:
        """Return the user's objects as they were when the fit that this one continues began."""
        run = self.fit_run if self.trainer.progress.batch else None
        return run.user_state.start if run is not None and run.module is module else None

    def _merge_callbacks(self, module: Module) -> None:
        trainer, before = self.trainer, self._merged_callbacks
        present = list(trainer.callbacks)  # the last call's merged list, unless the user has changed it since
        callbacks = [c for c in self._trainer_callbacks if c in present or c not in before]
        callbacks += [c for c in present if c not in before]
        added = callbacks_in(method_of(module, Module, "configure_callbacks")())
        kinds = {type(callback) for callback in added}
        merged = in_priority([c for c in callbacks if type(c) not in kinds] + added)
        check.check_callbacks(merged)
        self._attached = self._attached or [(callback, getattr(callback, "_pl_module", None)) for callback in merged]
        for callback in merged:
            _attach(callback, module)
        self._trainer_callbacks, self._merged_callbacks = callbacks, tuple(merged)
        self.callbacks = FrozenCallbacks(merged)  # type: ignore[assignment]  # it refuses changes

    def _share_log_dir(self) -> None:
        trainer = self.trainer
        if trainer.strategy.world_size > 1:
            self.log_dir = None, None
            self.log_dir = trainer.logger, trainer.strategy.broadcast(trainer.log_dir)

    def _announce(self, run: Run) -> None:
        for line in start_lines(run):
            self._once.info(line)
        if self.state.fn is TrainerFn.FITTING and run.plan.done(run.progress):
            report.info(nothing_to_train(run))

    def rebuild_hooks(self, run: Run) -> None:
        assert self.builder is not None
        run.hooks.replace_by(self.builder.hooks())

    # probes
    @property
    def call(self) -> Call:
        assert self._call is not None, "no call has been made"
        return self._call

    @property
    def trusts_checkpoints(self) -> bool:
        """Whether the last call has `weights_only=False`."""
        return self._call is not None and self._call.weights_only is False

    def keep_strategy(self, always: bool = False) -> None:
        """Keep a copy of the strategy if a callback makes probes; once the processes have met there is none."""
        if self._unmet is None and (
            always or any(getattr(callback, "makes_probes", False) for callback in self.callbacks)
        ):
            self._unmet = copy.copy(self.trainer.strategy)

    def run_probe(self, callback: Any, steps: int, edit: Callable[[Any, Any], None], call: Call | None) -> None:
        call = call or self.call
        strategy = self.trainer.strategy
        if strategy.world_size > 1 and self.run is not None and call is self._call:
            raise MisconfigurationException(
                f"A search was started within a run of {strategy.world_size} processes, whose module is distributed.",
                expected="a search before the run begins.",
                fix="leave the search to the callback, or use one device.",
            )
        with unseen():
            copied = call.copied()
            edit(copied.module, copied.datamodule)
            unmet = strategy if self._unmet is None else self._unmet
            other = self.trainer.for_probe(copy.copy(unmet), limits_of(call.verb, steps), [callback])
            self.processes.end()
            run_call(other, copied)
        if call is self._call:
            self.processes.begin(self.signals)

    def for_probe(self, trainer: Trainer, callbacks: list[Any]) -> Session:
        return Session(trainer, callbacks, self._once)

    # around the loop
    def __enter__(self) -> Run:
        run = self.run
        assert run is not None
        self._stack = ExitStack()
        self._stack.enter_context(self.signals.noted())
        return run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            try:
                asked = self.signals.of_any(self.trainer.strategy)
            except BaseException as raised:  # another rank's failure, or a second Ctrl-C: the run fails after all
                if self.__exit__(type(raised), raised, raised.__traceback__):
                    return True
                raise
            requeue = asked is not None and self._requeue_requested()
            self._stack.close()
            self.processes.end()
            self._finish(TrainerStatus.FINISHED, "success")
            if asked is not None:  # otherwise the program would continue with its next call
                self._report_how_to_resume(None, requeue, interrupted=True)
                self.interrupted = True
                return self._leave(asked, error)
            return False
        run = self.run
        assert run is not None
        if run.train_data is not None and run.train_data.is_loaded and not run.progress.batch:
            explain_batch(error, run.train_data.given, run.results.train.batch)
        explain_step(error, run)
        cause = self.signals.received if self._signal_ended_workers(error) else error
        assert cause is not None
        if cause is not self.signals.received:  # else a further SIGTERM must not end the save
            self._stack.close()
        try:
            first = self.processes.first_failure(cause)
            self._fail(first if isinstance(first, KeyboardInterrupt) else cause)
            self.processes.end()
        except KeyboardInterrupt as second:  # Ctrl-C during teardown: stop at once
            first = self.processes.first_failure(second)
            self.processes.end()
        finally:
            self._stack.close()
        if isinstance(first, KeyboardInterrupt):
            return self._leave(first, error)
        if first is not error:
            raise first from None
        return False

    def _leave(self, asked: BaseException, error: BaseException | None) -> bool:
        """End the program after a signal once the run has ended, except in a notebook or a shell after Ctrl-C.

        There `fit` returns. Other calls raise, and so does a second Ctrl-C, which stops `fit` at once.

        Returns:
            Whether the Trainer's method returns normally.
        """
        if not isinstance(asked, KeyboardInterrupt):
            raise asked from None
        if not is_shell() or self.trainer.strategy.world_size > 1:
            sys.exit(130)
        at_a_boundary = error is None or asked is self.signals.received
        if at_a_boundary and self.state.fn is TrainerFn.FITTING:
            return True
        if asked is not error:
            raise asked from None
        return False

    def _signal_ended_workers(self, error: BaseException) -> bool:
        """Whether a signal to the process group has ended the loader's workers, so that no further step is possible.

        With several processes the other ranks still wait for this one to agree on a step, so the error stands.
        """
        of_workers = isinstance(error, RuntimeError) and "DataLoader worker" in str(error)
        return of_workers and self.signals.received is not None and self.trainer.strategy.world_size == 1

    def _fail(self, error: BaseException) -> None:
        run = self.run
        self.fail_as(error)
        saved, requeue = None, False
        if run is not None and self.state.fn is TrainerFn.FITTING:
            run.saver.defer(False)
            at_boundary = error is self.signals.received and run.begun and run.between_windows()
            saved = self._save_interrupted(run) if at_boundary else None
            requeue = error is self.signals.received and self._requeue_requested()
        _warning(self.trainer.profiler.note_failure, error)
        if self.hooks is not None:
            _warning(self.hooks.on_exception, error)
            if self.datamodule is not None:
                _warning(method_of(self.datamodule, DataModule, "on_exception"), error)
        self._finish(self.state.status, "interrupted" if self.interrupted else "failed")
        if run is not None:
            self._report_how_to_resume(saved, requeue, self.interrupted)

    def _report_how_to_resume(self, saved: str | None, requeue: bool, interrupted: bool) -> None:
        trainer = self.trainer
        if self.state.fn is TrainerFn.FITTING:
            report_how_to_resume(trainer, saved, interrupted)
            if requeue and trainer.requeue is not None and trainer.is_global_zero:
                trainer.requeue.requeue(saved or newest_of_callbacks(trainer) or None)

    def _requeue_requested(self) -> bool:
        enabled, strategy = self.trainer.requeue is not None, self.trainer.strategy
        return bool(enabled and strategy.reduce_boolean_decision(self.signals.requeue_asked, all=False))

    def _save_interrupted(self, run: Run) -> str | None:
        trainer, callback = self.trainer, self.trainer.checkpoint_callback
        folder = getattr(callback, "dirpath", None)
        if folder is None or trainer.fast_dev_run:
            return None
        path, frozen = os.path.join(str(folder), INTERRUPTED), getattr(callback, "frozen_weights", None)
        try:
            with nullcontext() if frozen is None else frozen.left_out():
                trainer.save_checkpoint(path)
        except Exception as error:  # noqa: BLE001  also one of the user's on_save_checkpoint: teardown continues
            report.warn(f"The run could not be saved to {path!r}: {error}")
            return None
        return path

    # after
    def _finish(self, status: TrainerStatus, word: str) -> None:
        try:
            self._tear_down(status, word)
        finally:
            self.is_open = False
            attachment, self._attachment = self._attachment, None
            if attachment is not None:
                attachment.restore()

    def _tear_down(self, status: TrainerStatus, word: str) -> None:
        trainer, fn, run = self.trainer, self.state.fn, self.run
        assert fn is not None
        errors: list[Exception] = []
        finished = status is TrainerStatus.FINISHED
        guard: Callable[..., None] = partial(_collecting, errors) if finished else _warning
        if run is not None:
            run.end()
        guard(trainer.strategy.teardown)
        if self.hooks is not None:
            complete = finished or self.order.teardown_always
            if self.datamodule is not None and complete:
                guard(with_stage(method_of(self.datamodule, DataModule, "teardown")), fn)
            guard(self.hooks.teardown if complete else self._teardown_of_lightlibs, fn)
        loggers = Fanout(trainer.loggers) if run is None else run.loggers  # which has counted the failures
        loggers.finalize("failed" if errors else word)
        if (profiler := Timing(trainer.profiler).profiler) is not None:
            if run is not None:
                guard(profiler.inspect, facts_of(run))
            guard(profiler.describe)
            guard(profiler.teardown, fn.value)
        self.callbacks = list(self.callbacks)
        attached, self._attached = self._attached, []
        for callback, before in attached:
            _attach(callback, before)
        failed = TrainerStatus.FAILED if self.order.fails_as_failed else TrainerStatus.INTERRUPTED
        self.state = TrainerState(fn, None, failed if errors else status)
        self.signals.release_frames()
        if run is not None:
            run.mark_done()
        if errors:
            raise errors[0]

    def _teardown_of_lightlibs(self, fn: TrainerFn) -> None:
        """Call `teardown` of lightlib's own callbacks and of plugins, which close files; Lightning skips the rest."""
        built_in = (
            callback for callback in self.callbacks if type(callback).teardown.__module__.startswith("lightlib.")
        )
        calls = [partial(callback.teardown, self.trainer, self.module) for callback in built_in]
        each([*calls, self.trainer.strategy.extension.hooks.get("teardown", nothing)])(fn)

    def be_verbose(self, fn: str, verbose: bool) -> None:
        """Print the metrics of the next calls of ``"validate"`` or ``"test"``, or do not."""
        self.verbose[fn] = verbose

    def print_metrics(self, metrics: list[dict[str, float]]) -> None:
        fn = None if self.state.fn is None else self.state.fn.value
        if fn is not None and self.verbose[fn] and self.trainer.is_global_zero and any(metrics):
            show = self._printers.get(fn)
            if show is not None:
                show(metrics, fn)
            else:
                report.write_output(print, table(metrics, fn, self.results.table.endings))

    def print_by(self, fn: str, show: Callable[[list[dict[str, float]], str], None]) -> None:
        """Print the metrics of ``"validate"`` or ``"test"`` by the user's function."""
        self._printers[fn] = show


def _restore_datamodule(datamodule: DataModule | None, origin: ResumeSource) -> None:
    if datamodule is None or origin.content is None or not origin.parts.datamodule:
        return
    if state := origin.content.get(type(datamodule).__qualname__):
        datamodule.load_state_dict(state)


def _attach(callback: Any, module: Module | None) -> None:
    """Give a callback the module for its `log`; a callback that is an nn.Module must not register it as a layer."""
    object.__setattr__(callback, "_pl_module", module)


def _collecting(errors: list[Exception], call: Callable[..., Any], *args: Any) -> None:
    """Call, and append an exception to `errors` so that teardown continues."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001  it is raised after teardown
        errors.append(error)


def _warning(call: Callable[..., Any], *args: Any) -> None:
    """Call while another exception is being handled: a second one becomes a warning and does not replace it."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001  anything may fail during teardown
        report.warn(f"{getattr(call, '__qualname__', call)} failed as well during teardown: {error!r}.")
