"""Trainer: fit, validate, test and predict, and the arguments that configure them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn, overload

from torch import enable_grad
from torch.autograd import set_detect_anomaly

from lightlib import paths, report
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.resolve import choose
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint.storage.mapping import storage_of
from lightlib.core import check, spawned
from lightlib.core.calls import TrainerCalls
from lightlib.core.default_callbacks import all_callbacks
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.probe import Call
from lightlib.core.progress.progress import Progress
from lightlib.core.progress.states import TrainerFn
from lightlib.core.run import loop
from lightlib.core.run.parts import TEST, VALIDATION, Stage
from lightlib.core.session import Session
from lightlib.core.setup.arguments import checked_call, unknown_argument
from lightlib.core.setup.callbacks import CallbacksArgument
from lightlib.core.setup.plugins import (
    Plugin,
    arguments_of,
    attach_plugins,
    environment_of,
    loggers_of,
    plugins_of,
    precision_of,
    profiler_of,
    requeue_of,
    strategy_of,
)
from lightlib.core.setup.settings import Settings, integer, replace_settings
from lightlib.core.setup.strategy_by_memory import strategy_by_memory
from lightlib.errors import ArgumentTypeError, shown
from lightlib.loggers.logger import Logger
from lightlib.precision.precision import Precision
from lightlib.profilers.profiler import Profiler
from lightlib.signatures import ClipAlgorithm, PrecisionName, ProfilerName
from lightlib.strategies.strategy import Strategy

Duration = str | timedelta | dict[str, int]


class Trainer(TrainerCalls):
    """Runs a module: fit, validate, test, predict.

    All arguments are keyword-only, with the names and meanings of Lightning 2.6; ``docs/differences.md`` explains where
    a meaning differs. The environment variables ``LIGHTLIB_<ARGUMENT>`` and ``PL_TRAINER_<ARGUMENT>`` set defaults.

    Args:
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"``, ``"cuda"``, ``"mps"``, a plugin's name, or an Accelerator.
        strategy: ``"auto"`` (one device, ``"ddp"``, or ``"fsdp"`` for lack of memory), ``"single_device"``, ``"ddp"``,
            ``"fsdp"``, ``"hsdp"``, ``"tensor"``, ``"pipeline"``, ``"zero1"``, … (``docs/strategies.md``), a plugin's
            name, or a Strategy.
        devices: A number, a list of indices, ``"0,1"``, ``-1`` or ``"auto"``. One process per device is started,
            unless torchrun, SLURM, … have started them.
        num_nodes: Number of machines. Default 1.
        precision: ``"32-true"`` (default), ``"64-true"``, ``"16-mixed"``, ``"bf16-mixed"``, ``"16-true"``,
            ``"bf16-true"``, ``"transformer-engine"``, or a Precision (:mod:`lightlib.precision`).
        logger: True (default: TensorBoard), False, a name, a logger or several. Files go to the first one's folder.
        callbacks: One or several, called in order of priority, then in the order of this list. A class stands for an
            object made without arguments, None for nothing. A dict gives names: ``{"progress": None}`` leaves out a
            default (``"progress"``, ``"summary"``, ``"checkpoint"``), and a callback replaces it. ``"minimal"`` and
            ``"job"`` are presets (:func:`lightlib.callbacks.presets.presets.preset`); a list may hold all of these.
        fast_dev_run: True (one batch) or n: run n batches of everything without loggers and ModelCheckpoint files.
        max_epochs: Default: 1000 if `max_steps` is not given either. -1 is no limit. 1.5 ends within the second epoch,
            after half of its optimizer steps, rounded up.
        min_epochs: No early stop before this many epochs, nor before `min_steps`.
        max_steps: Optimizer steps. Default -1: no limit.
        min_steps: No early stop before this many optimizer steps.
        max_time: ``"DD:HH:MM:SS"``, a timedelta or a dict of its arguments.
        limit_train_batches: Per epoch; an int is a number of batches, a float a fraction of them. Default 1.0.
        limit_val_batches: The same for validation.
        limit_test_batches: The same for testing.
        limit_predict_batches: The same for prediction.
        overfit_batches: Train and validate on this many batches (int) or this fraction (float), in order. Default 0.0.
        val_check_interval: A float is a fraction of an epoch, an int a number of batches, a duration wall time.
            Default 1.0: at the end of the epoch.
        check_val_every_n_epoch: Default 1. None counts `val_check_interval` across epochs. Pairs change it:
            ``[(0, 1), (10, 5)]`` validates each of the first nine epochs, then the 10th, 15th, …; ``[(5, 1)]`` begins
            with the fifth. With None, `val_check_interval` takes such pairs in batches.
        val_check_at_end: Also validate at the end of the run, if its last batch has not been. Default False.
        num_sanity_val_steps: Validation batches before training. Default 2; -1 is all.
        log_every_n_steps: Optimizer steps between two writes to the loggers. Default 50; 0 is never.
        enable_checkpointing: Add a ModelCheckpoint if there is none. Default True.
        enable_progress_bar: Add a progress bar if there is none. Default True.
        enable_model_summary: Add a ModelSummary if there is none, drawn with rich if the bar is. Default True.
        accumulate_grad_batches: Batches per optimizer step. Default 1.
        global_batch_size: Samples per optimizer step over all processes; `accumulate_grad_batches` is then derived
            from it and the loader's batch size, or the batch size from both numbers. Default None.
        gradient_clip_val: Clip unscaled gradients to this. Default None: no clipping.
        gradient_clip_algorithm: ``"norm"`` (default) or ``"value"``.
        deterministic: True, ``"warn"`` or False for torch.use_deterministic_algorithms. Default None: unchanged.
        benchmark: torch.backends.cudnn.benchmark. Default None: unchanged.
        inference_mode: torch.inference_mode (default) or torch.no_grad for validate, test and predict.
        use_distributed_sampler: Shard the data over processes. Default True.
        profiler: ``"simple"``, ``"advanced"``, ``"memory"``, ``"pytorch"`` or a Profiler. Default None.
        detect_anomaly: torch.autograd's anomaly mode during fit. Default False.
        barebones: Turn off everything but training, to measure it. Default False.
        plugins: A Precision, as in Lightning; or an Environment or its name, which gives the rank of this process.
        sync_batchnorm: Synchronise batch norm over processes. Default False.
        reload_dataloaders_every_n_epochs: Request the loaders again every n epochs. Default 0: never.
        default_root_dir: The folder for logs and checkpoints, local or remote, or a mapping for
            :func:`lightlib.checkpoint.storage_url`. Default: the current folder.
        enable_autolog_hparams: Log the hyperparameters. Default True.
        save_user_state: Save in checkpoints the parts of your objects that change in training, and restore them
            (attributes, training flags, ``requires_grad``, generators, metrics; ``docs/checkpoints.md``). Default True.
        model_registry: Accepted for compatibility; has no effect.
        suggest_integrations: Accepted for compatibility; has no effect.

    Raises:
        MisconfigurationException: An argument has a wrong value, or two contradict each other.

    Example:
        >>> trainer = Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
        >>> trainer.max_epochs
        2
    """

    @checked_call
    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: PrecisionName | Precision | None = None,
        logger: Logger | Iterable[Logger] | bool | str | None = None,
        callbacks: CallbacksArgument | None = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | float | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: Duration | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | Duration | Sequence[tuple[int, int]] | None = None,
        check_val_every_n_epoch: int | Sequence[tuple[int, int]] | None = 1,
        val_check_at_end: bool = False,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        global_batch_size: int | None = None,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: ClipAlgorithm | None = None,
        deterministic: bool | Literal["warn"] | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: Profiler | ProfilerName | None = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Plugin | list[Plugin] | None = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: str | Path | Mapping[str, Any] | None = None,
        enable_autolog_hparams: bool = True,
        save_user_state: bool = True,
        model_registry: str | None = None,
        suggest_integrations: bool = True,
    ) -> None:
        super().__init__()
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self.settings = Settings.of(arguments)
        # Kept, so that a process that gets a copy of the Trainer has the options of the store.
        self._storage = storage_of(default_root_dir) if isinstance(default_root_dir, Mapping) else None
        self.default_root_dir = _root(default_root_dir if self._storage is None else self._storage.address)
        self.num_nodes = integer("num_nodes", num_nodes, 1)
        accelerator, devices, plugins = arguments_of(strategy, accelerator, devices, plugins)
        self.accelerator, self.devices = choose(accelerator, devices)
        environment = environment_of(devices, self.devices, self.num_nodes, plugins)
        if devices == "auto" and environment.local_size != len(self.devices):
            self.accelerator, self.devices = choose(self.accelerator, environment.local_size)
        self.strategy: Strategy = strategy_of(strategy, environment)
        self._adapts = isinstance(strategy, str) and strategy.lower() == "auto"
        self.precision_plugin = precision_of(plugins_of(plugins, precision))
        self.strategy.use(self.accelerator, self.devices, self.precision_plugin, environment)
        self.strategy.sync_batchnorm = bool(sync_batchnorm)
        attach_plugins(plugins, self.strategy)
        report.rank_zero_only.rank = environment.rank
        self.profiler = profiler_of(profiler)
        wanted = False if self.settings.barebones else logger
        self._loggers = loggers_of(wanted, self.default_root_dir, bool(self.settings.fast_dev_run))
        chosen = all_callbacks(callbacks, self.settings, arguments)
        self.settings.limit_epochs(any(type(c).__name__ == "Timer" for c in chosen))
        self.settings.set_torch_flags()
        self.progress = Progress()
        self.requeue = requeue_of(plugins)
        self._session = Session(self, chosen)
        self.processes = self._session.processes

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("_session", "processes")}
        return {**state, "snapshot": self._session.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        snapshot = state["snapshot"]
        vars(self).update({name: value for name, value in state.items() if name != "snapshot"})
        self._session = Session(self, snapshot["callbacks"])
        self._session.restore(snapshot)
        self.processes = self._session.processes

    def __repr__(self) -> str:
        strategy, state = self.strategy, self._session.state
        where = f"{strategy.world_size} × {self.accelerator.describe(strategy.root_device)}"  # noqa: RUF001  a multiplication sign is meant
        last = "not run yet"
        if state.fn is not None:
            last = f"{state.fn} {state.status}, epoch {self.current_epoch}, step {self.global_step}"
        return f"<{type(self).__name__}: {where}, {self.precision}, {strategy.describe()}; {last}>"

    # the four verbs
    def fit(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
        resume: Any = None,
        **unknown: NoReturn,
    ) -> None:
        """Train and validate `model`.

        Args:
            model: The module.
            train_dataloaders: A loader, a collection of loaders, a Dataset, or arrays. Default: the module's.
            val_dataloaders: The same for validation.
            datamodule: A DataModule instead of loaders; it may also be the second argument.
            ckpt_path: A checkpoint to resume from: a path, ``"last"``, ``"best"``, ``"epoch:20"``, ``"step:500"``, or
                ``"auto"``, which takes the newest complete one and starts from scratch if there is none.
            weights_only: False reads a checkpoint that holds arbitrary Python objects, which may run any code.
            resume: The parts to restore: ``"all"`` (default), ``"weights"``, or a dict of parts, for instance
                ``{"optimizers": False, "strict": False}`` (see :class:`lightlib.core.resume.options.Resume`).

        Raises:
            MisconfigurationException: An argument does not fit. It is found before training starts.
        """
        if unknown:
            raise unknown_argument(Trainer.fit, unknown, Trainer)
        if spawned.wanted(self):
            spawned.call(self, "fit", locals())
            return
        self.settings.warn_if_unlimited()
        check.refuse_inference_mode()
        given = {"train_dataloaders": train_dataloaders, "val_dataloaders": val_dataloaders}
        with enable_grad():
            self._session.begin(TrainerFn.FITTING, model, given, datamodule, ckpt_path, weights_only, resume)
            with self._session as run, set_detect_anomaly(True) if self.settings.detect_anomaly else nullcontext():
                self.run_training(run)

    def validate(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
        weights_only: bool | None = None,
        **unknown: NoReturn,
    ) -> list[dict[str, float]]:
        """Validate `model` (default: the last, with its best weights); return the metrics, one dict per loader.

        Args:
            model: The module.
            dataloaders: A loader, several, a Dataset or arrays. Default: the module's.
            ckpt_path: A path, ``"last"`` or ``"best"``. Default: the module's present weights, or without `model` the
                best ones of the last fit.
            verbose: Print the metrics. Default True.
            datamodule: A DataModule instead of loaders.
            weights_only: False reads a checkpoint that holds arbitrary Python objects, which may run any code.
        """
        if unknown:
            raise unknown_argument(Trainer.validate, unknown, Trainer)
        if spawned.wanted(self):
            return spawned.call(self, "validate", locals())  # type: ignore[no-any-return]
        given = {"val_dataloaders": dataloaders}
        self._session.begin(TrainerFn.VALIDATING, model, given, datamodule, ckpt_path, weights_only)
        return self._evaluate(VALIDATION, verbose)

    def test(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
        weights_only: bool | None = None,
        **unknown: NoReturn,
    ) -> list[dict[str, float]]:
        """Test `model` (default: the last, with its best weights); return the metrics, one dict per loader.

        Args:
            model: As for `validate`, like the arguments not listed here.
            ckpt_path: A path, ``"last"`` or ``"best"``. Default: the module's present weights.
            verbose: Print the metrics. Default True.
            weights_only: False reads a checkpoint that holds arbitrary Python objects, which may run any code.
        """
        if unknown:
            raise unknown_argument(Trainer.test, unknown, Trainer)
        if spawned.wanted(self):
            return spawned.call(self, "test", locals())  # type: ignore[no-any-return]
        given = {"test_dataloaders": dataloaders}
        self._session.begin(TrainerFn.TESTING, model, given, datamodule, ckpt_path, weights_only)
        return self._evaluate(TEST, verbose)

    def _evaluate(self, stage: Stage, verbose: bool) -> list[dict[str, float]]:
        self._session.be_verbose(stage.state, verbose)
        with self._session as run:
            metrics = loop.evaluate(run, stage)
        self._session.print_metrics(metrics)
        return metrics

    @overload
    def predict(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        *,
        return_predictions: Literal[False],
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> None: ...
    @overload
    def predict(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: Literal[True] | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> list[Any]: ...
    @overload
    def predict(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> list[Any] | None: ...
    def predict(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
        **unknown: NoReturn,
    ) -> list[Any] | None:
        """Return the outputs of `predict_step`: a list with one per batch, or with several loaders a list of lists.

        Args:
            model: As for `validate`, like the arguments not listed here.
            return_predictions: False keeps and returns nothing; a callback may write them. Default True.
            ckpt_path: A path, ``"last"`` or ``"best"``. Default: the module's present weights.
            weights_only: False reads a checkpoint that holds arbitrary Python objects, which may run any code.
        """
        if unknown:
            raise unknown_argument(Trainer.predict, unknown, Trainer)
        if spawned.wanted(self):
            return spawned.call(self, "predict", locals())  # type: ignore[no-any-return]
        keep = return_predictions is not False
        self._session.begin(
            TrainerFn.PREDICTING, model, {"predict_dataloaders": dataloaders}, datamodule, ckpt_path, weights_only
        )
        with self._session as run:
            outputs = loop.predict(run, keep)
        return (outputs[0] if len(outputs) == 1 else outputs) if keep else None

    # probes
    def run_probe(
        self, callback: Callback, steps: int, edit: Callable[[Any, Any], None], call: Call | None = None
    ) -> None:
        """Run `steps` steps, or evaluation batches, of the present call on copies of its objects.

        Nothing of the run changes: not the weights, the random numbers, the data, the position, loggers, or files.

        Args:
            callback: The only callback of the probe.
            steps: Optimizer steps of a fit; otherwise batches.
            edit: Gets the copies of the module and of the data module (or None) before the probe begins.
            call: The objects. Default: those of the present call.

        Raises:
            MisconfigurationException: An object cannot be copied, or the module is distributed already.
        """
        self._session.run_probe(callback, steps, edit, call)

    @property
    def present_call(self) -> Call:
        """The user's objects in the present call, or the last one."""
        return self._session.call

    def connect_for_probes(self) -> None:
        """Connect the processes, for probes outside of a run."""
        self._session.keep_strategy(always=True)
        self._session.processes.ready()

    def adapt_strategy(self, module: Module) -> None:
        """With ``strategy="auto"``, shard `module` if its replicas do not fit; once, before the processes meet."""
        if self._adapts and not self.processes.connected:
            self._adapts = False
            self.strategy = strategy_by_memory(self.strategy, module)

    def for_probe(self, strategy: Strategy, limits: dict[str, Any], callbacks: list[Any]) -> Trainer:
        """Return a Trainer like this one that logs and saves nothing, for `run_probe`."""
        other = Trainer.__new__(type(self))
        other._begin_probe(self, strategy, limits, callbacks)  # noqa: SLF001  of this class
        return other

    def _begin_probe(self, original: Trainer, strategy: Strategy, limits: dict[str, Any], callbacks: list[Any]) -> None:
        vars(self).update(vars(original))
        self.settings = replace_settings(original.settings, limits)
        strategy.use(self.accelerator, self.devices, self.precision_plugin, original.strategy.environment)
        self.strategy, self.profiler, self._loggers = strategy, profiler_of(None), []
        self.progress, self.requeue = Progress(), None
        self._session = original._session.for_probe(self, callbacks)
        self.processes = self._session.processes

    # Override it to run a loop of your own: it gets the run of this fit, with `hooks`, `train_data`, `progress`,
    # `plan`, `logs`, `saver` and `optimization` (docs/lifecycle.md). The loop itself, so that no call is added.
    run_training = staticmethod(loop.fit)


def _root(given: Any) -> str:
    if given is not None and not isinstance(given, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"default_root_dir is {shown(given)}.", expected="a path.", fix="Trainer(default_root_dir='runs')"
        )
    return paths.resolve(os.path.expanduser(os.fspath(given or os.getcwd())))
