"""Trainer: fit, validate, test and predict, and the arguments that configure them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from torch import Tensor, enable_grad
from torch.autograd import set_detect_anomaly
from torch.optim import Optimizer

from lightlib import report
from lightlib.accelerators.accelerator import Accelerator
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.checkpoint.background import BackgroundWriter
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.mapping import storage_of
from lightlib.conventions import assigned
from lightlib.core import check, run_views
from lightlib.core.audit import Audit, audit
from lightlib.core.default_callbacks import all_callbacks, has_timer
from lightlib.core.explain import in_place_of_training
from lightlib.core.metrics.results import Results, to_floats
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.module.overrides import overrides
from lightlib.core.optimization.schedules import SchedulerConfig
from lightlib.core.probe import Call
from lightlib.core.processes import Processes
from lightlib.core.progress.plan import Intervals, Plan
from lightlib.core.progress.progress import Progress
from lightlib.core.progress.states import TrainerFn, TrainerState, TrainerStatus
from lightlib.core.resume.save import Saver
from lightlib.core.run import loop
from lightlib.core.run.parts import TEST, VALIDATION, Stage
from lightlib.core.run.run import Run
from lightlib.core.run_config import RunConfig, run_config_of
from lightlib.core.session import Session
from lightlib.core.setup import plugins as setup
from lightlib.core.setup.attributes import MISSING, Limit, View, missing
from lightlib.core.setup.callbacks import CallbacksArgument
from lightlib.core.setup.plugins import Plugin
from lightlib.core.setup.settings import Settings, integer, replace_settings, root_folder
from lightlib.core.setup.strategy_by_memory import strategy_by_memory
from lightlib.core.setup.trainer_call import checked_call
from lightlib.core.verbs import in_spawned_processes
from lightlib.data.train import TrainData
from lightlib.loggers.logger import Logger
from lightlib.loggers.media.items import Media, check_media
from lightlib.precision.precision import Precision
from lightlib.profilers.profiler import Profiler
from lightlib.signatures import ClipAlgorithm, PrecisionName, ProfilerName
from lightlib.strategies.axes.transforms import ActivationCheckpoint, ActivationOffload, Compile
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.callbacks.early_stopping import EarlyStopping
    from lightlib.callbacks.progress.base import ProgressBar
    from lightlib.callbacks.records.history import History

Duration = str | timedelta | dict[str, int]
Batches = int | float | dict[str, int | float]  # by the names of loaders


def _batches(key: str, doc: str) -> View[list[float]]:
    return View(lambda self: run_views.num_batches(self._session.builder, key), doc)


def _loaders(key: str, doc: str) -> View[Any]:
    return View(lambda self: run_views.loaders(self._session.builder, key), doc)


def _all(name: str, doc: str) -> View[Any]:
    return View(lambda self: self._callbacks_of(name), doc)


def _first(name: str, doc: str) -> View[Any]:
    return View(lambda self: next(iter(self._callbacks_of(name)), None), doc)


class Trainer:
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
            ``"job"`` are presets (`lightlib.callbacks.presets`); a list may hold all of these.
        fast_dev_run: True (one batch) or n: run n batches of everything without loggers and ModelCheckpoint files.
        max_epochs: Default: 1000 if `max_steps` is not given either. -1 is no limit. 1.5 ends within the second epoch,
            after half of its optimizer steps, rounded up.
        min_epochs: No early stop before this many epochs, nor before `min_steps`.
        max_steps: Optimizer steps. Default -1: no limit.
        min_steps: No early stop before this many optimizer steps.
        max_time: ``"2h"``, ``"DD:HH:MM:SS"``, a timedelta or a dict of its arguments.
        max_duration: A limit as text: ``"10ep"``, ``"100st"``, ``"500ba"``, ``"1e6sp"``, ``"1e9tok"`` or ``"2h"``.
        limit_train_batches: Per epoch; an int is a number of batches, a float a fraction of them. Default 1.0.
        limit_val_batches: The same for validation; or such limits by the names of loaders: ``{"noisy": 10}``.
        limit_test_batches: The same for testing.
        limit_predict_batches: The same for prediction.
        overfit_batches: Train and validate on this many batches (int) or this fraction (float), in order. Default 0.0.
        val_check_interval: A float is a fraction of an epoch, an int a number of batches, a time wall time, another
            text as in `max_duration`. Default 1.0: at the end of the epoch.
        check_val_every_n_epoch: Default 1. None counts `val_check_interval` across epochs. Pairs change it:
            ``[(0, 1), (10, 5)]`` is the first nine, then the 10th, 15th, …. None takes such pairs in batches there.
            Both take a dict of these by the names of loaders, ``{"noisy": 5}``: a validation reads those that are due.
        val_check_at_end: Also validate at the end of the run, if its last batch has not been. Default False.
        num_sanity_val_steps: Validation batches before training. Default 2; -1 is all.
        log_every_n_steps: Optimizer steps between two writes to the loggers. Default 50; 0 is never.
        enable_checkpointing: Add a ModelCheckpoint if there is none. Default True.
        enable_progress_bar: Add a progress bar if there is none. Default True.
        enable_model_summary: Add a ModelSummary if there is none, drawn with rich if the bar is. Default True.
        accumulate_grad_batches: Batches per optimizer step. Default 1. ``"auto"``: `lightlib.callbacks.MicroBatches`.
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
        compile: torch.compile of the model (True), of its repeated blocks (``"blocks"``), or of modules by their names;
            a dict ``{"target": …}`` of these adds options, and so does a Compile (``docs/how-to/compile.md``).
        activation_checkpointing: Compute activations again in backward: those of blocks (True), or of modules by their
            names; a dict adds options, such as ``{"every": 2}``, and so does an ActivationCheckpoint.
        activation_offload: Keep activations in the memory of the CPU: True, ``"blocks"``, names, a dict or an object.
        reload_dataloaders_every_n_epochs: Request the loaders again every n epochs. Default 0: never.
        default_root_dir: The folder for logs and checkpoints, local or remote, or a mapping for
            :func:`lightlib.checkpoint.storage_url`. Default: the current folder.
        enable_autolog_hparams: Log the hyperparameters. Default True.
        save_user_state: Save in checkpoints what changes in your objects (``docs/checkpoints.md``). Default True.
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
        max_duration: str | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: Batches | None = None,
        limit_test_batches: Batches | None = None,
        limit_predict_batches: Batches | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | Duration | dict[str, Any] | Sequence[tuple[int, int]] | None = None,
        check_val_every_n_epoch: int | dict[str, Any] | Sequence[tuple[int, int]] | None = 1,
        val_check_at_end: bool = False,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int | Literal["auto"] = 1,
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
        compile: bool | str | list[str] | dict[str, Any] | Compile = False,  # noqa: A002  torch's name
        activation_checkpointing: bool | str | list[str] | dict[str, Any] | ActivationCheckpoint = False,
        activation_offload: bool | str | list[str] | dict[str, Any] | ActivationOffload = False,
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
        self.default_root_dir = root_folder(default_root_dir if self._storage is None else self._storage.address)
        self.num_nodes = integer("num_nodes", num_nodes, 1)
        accelerator, devices, plugins = setup.arguments_of(strategy, accelerator, devices, plugins)
        self.accelerator, self.devices, environment = setup.hardware_of(accelerator, devices, self.num_nodes, plugins)
        self.strategy: Strategy = setup.strategy_of(strategy, environment)
        setup.transform(self.strategy, arguments)
        self._adapts = isinstance(strategy, str) and strategy.lower() == "auto"
        self.precision_plugin = setup.precision_of(setup.plugins_of(plugins, precision))
        self.strategy.use(self.accelerator, self.devices, self.precision_plugin, environment)
        self.strategy.sync_batchnorm = bool(sync_batchnorm)
        setup.attach_plugins(plugins, self.strategy)
        report.rank_zero_only.rank = environment.rank
        self.profiler = setup.profiler_of(profiler)
        logger_argument = False if self.settings.barebones else logger
        self._loggers = setup.loggers_of(logger_argument, self.default_root_dir, bool(self.settings.fast_dev_run))
        chosen = all_callbacks(callbacks, self.settings, arguments)
        self.settings.limit_epochs(has_timer(chosen))
        self.settings.set_torch_flags()
        self.progress = Progress()
        self.requeue = setup.requeue_of(plugins)
        self._session = Session(self, chosen)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_session"}
        return {**state, "snapshot": self._session.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        snapshot = state["snapshot"]
        vars(self).update({name: value for name, value in state.items() if name != "snapshot"})
        self._session = Session(self, snapshot["callbacks"])
        self._session.restore(snapshot)

    def __repr__(self) -> str:
        strategy, state = self.strategy, self._session.state
        where = f"{strategy.world_size} × {self.accelerator.describe(strategy.root_device)}"  # noqa: RUF001  a multiplication sign is meant
        last = "not run yet"
        if state.fn is not None:
            last = f"{state.fn} {state.status}, epoch {self.current_epoch}, step {self.global_step}"
        return f"<{type(self).__name__}: {where}, {self.precision}, {strategy.describe()}; {last}>"

    if not TYPE_CHECKING:  # type checkers must report unknown names

        def __getattr__(self, name: str) -> Any:
            return missing(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in MISSING or not assigned(self, name, value):
            object.__setattr__(self, name, value)

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
            val_dataloaders: The same for validation; the keys of a dict end the names of the metrics.
            datamodule: A DataModule instead of loaders; it may also be the second argument.
            ckpt_path: A checkpoint to resume from: a path, ``"last"``, ``"best"``, ``"epoch:20"``, ``"step:500"``, or
                ``"auto"``, which takes the newest complete one and starts from scratch if there is none.
            weights_only: False reads a checkpoint that holds arbitrary Python objects, which may run any code.
            resume: The parts to restore: ``"all"`` (default), ``"weights"``, or a dict of parts, for instance
                ``{"optimizers": False, "strict": False}`` (see :class:`lightlib.core.resume.options.Resume`).

        Raises:
            MisconfigurationException: An argument does not fit. It is found before training starts.
        """
        if in_spawned_processes(self, Trainer.fit, locals()) is not None:
            return
        self.settings.warn_if_unlimited()
        check.refuse_inference_mode()
        loaders = {"train_dataloaders": train_dataloaders, "val_dataloaders": val_dataloaders}
        with enable_grad():
            self._session.begin(TrainerFn.FITTING, model, loaders, datamodule, ckpt_path, weights_only, resume)
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
        if (done := in_spawned_processes(self, Trainer.validate, locals())) is not None:
            return done[0]  # type: ignore[no-any-return]
        loaders = {"val_dataloaders": dataloaders}
        self._session.begin(TrainerFn.VALIDATING, model, loaders, datamodule, ckpt_path, weights_only)
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
        """
        if (done := in_spawned_processes(self, Trainer.test, locals())) is not None:
            return done[0]  # type: ignore[no-any-return]
        loaders = {"test_dataloaders": dataloaders}
        self._session.begin(TrainerFn.TESTING, model, loaders, datamodule, ckpt_path, weights_only)
        return self._evaluate(TEST, verbose)

    def _evaluate(self, stage: Stage, verbose: bool) -> list[dict[str, float]]:
        self._session.be_verbose(stage.state, verbose)
        with self._session as run:
            metrics = loop.evaluate(run, stage)
        self._session.print_metrics(metrics)
        return metrics

    @overload
    def predict(  # type: ignore[overload-overlap]  # a bool that is True gives the list
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
        return_predictions: bool | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> list[Any]: ...
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
        """
        if (done := in_spawned_processes(self, Trainer.predict, locals())) is not None:
            return done[0]  # type: ignore[no-any-return]
        loaders, keep = {"predict_dataloaders": dataloaders}, return_predictions is not False
        self._session.begin(TrainerFn.PREDICTING, model, loaders, datamodule, ckpt_path, weights_only)
        with self._session as run:
            outputs = loop.predict(run, keep)
        return (outputs[0] if len(outputs) == 1 else outputs) if keep else None

    def explain(
        self, model: Module, train_dataloaders: Any = None, val_dataloaders: Any = None, **fit_arguments: Any
    ) -> str:
        """Return one page on a `fit` with these arguments: devices, memory, steps, schedules, files.

        All is set up as for `fit`, with its errors, hooks and folders; nothing is trained.

        Raises:
            MisconfigurationException: The strategy spawns its processes, so that this one has no run.
        """
        pages: list[str] = []
        before = {name: value for name, value in vars(self).items() if name == "run_training"}
        self.run_training = in_place_of_training(self, pages)  # type: ignore[assignment]
        try:
            self.fit(model, train_dataloaders, val_dataloaders, **fit_arguments)
        finally:
            del self.run_training
            vars(self).update(before)
        return pages[0]

    # limits: the arguments that may be read and set
    accumulate_grad_batches = Limit[int]()
    barebones = Limit[bool]()
    check_val_every_n_epoch = Limit[int | Intervals | Mapping[str, Any] | None]()
    fast_dev_run = Limit[int]()
    global_batch_size = Limit[int | None]()
    gradient_clip_algorithm = Limit[str | None]()
    gradient_clip_val = Limit[float | None]()
    limit_predict_batches = Limit[int | float | Mapping[str, Any]]()
    limit_test_batches = Limit[int | float | Mapping[str, Any]]()
    limit_train_batches = Limit[int | float]()
    limit_val_batches = Limit[int | float | Mapping[str, Any]]()
    log_every_n_steps = Limit[int]()
    max_epochs = Limit[int | float | None]()
    max_steps = Limit[int]()
    max_time = Limit[float | None]()
    min_epochs = Limit[int | None]()
    min_steps = Limit[int | None]()
    num_sanity_val_steps = Limit[float]()
    overfit_batches = Limit[int | float]()
    reload_dataloaders_every_n_epochs = Limit[int]()
    val_check_at_end = Limit[bool]()
    val_check_interval = Limit[int | float | Intervals | Mapping[str, Any]]()

    # the run
    run = View[Run | None](
        lambda self: self._session.run, "The run of the last call; None before the first call and during set-up."
    )
    current_epoch = View[int](
        lambda self: self.progress.epoch + self.progress.shift,
        "Completed epochs, which is the index of the running one; with compat, also one that training ended within.",
    )
    global_step = View[int](
        lambda self: self.progress.step + self.progress.more,
        "Batches in which an optimizer stepped; with compat, the steps of all optimizers.",
    )
    plan = View[Plan | None](
        lambda self: self.run.plan if self.run is not None else None, "The limits and intervals of the run."
    )

    @property
    def should_stop(self) -> bool:
        """Whether an early stop is requested. May be set."""
        return self.run is not None and self.run.stop.is_requested

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if self.run is not None:
            self.run.stop.request(wanted=bool(value))

    stop_reason = View[str | None](
        lambda self: self.run.stop.reason if self.run is not None else None,
        "The reason of the `StopTraining` that has ended the last fit, or will; None without one.",
    )

    def request_validation(self) -> None:
        """Validate after the running batch, once; with several processes one of them may request it for all.

        During a validation it does nothing. At most one validation runs after a batch.

        Raises:
            MisconfigurationException: No fit runs, or the fit has no validation data.
        """
        run_views.request_validation(self.run)

    def request_epoch_end(self) -> None:
        """End the running epoch at the next optimizer-step boundary, as if its data ended there.

        With several processes one of them may request it for all. The hooks at the end of the epoch run, and the
        validation at its end. During the last batch of an epoch it does nothing.

        Raises:
            MisconfigurationException: No fit runs.
        """
        run_views.request_epoch_end(self.run)

    is_last_batch = View[bool](
        lambda self: self.run is not None and self.run.exhausted, "Whether the running batch is the last of its epoch."
    )
    elapsed = View[float](
        lambda self: self.run.clocks.since_start() if self.run is not None else 0.0,
        "Seconds since training began in this process.",
    )
    data_wait = View[float](
        lambda self: self.run.train_data.waited if self.run is not None and self.run.train_data is not None else 0.0,
        "Seconds spent waiting for training batches.",
    )
    stop_signal = View[BaseException | None](
        lambda self: self._session.signals.received,
        "The Ctrl-C or SIGTERM that stops all processes at the same optimizer-step boundary, or None.",
    )
    received_sigterm = View[bool](
        lambda self: isinstance(self._session.signals.received, SystemExit), "Whether SIGTERM is stopping the run."
    )
    state = View[TrainerState](
        lambda self: run_views.state_of(self._session.state, self.run),
        "The function that runs or ran last, its stage and its status.",
    )
    interrupted = View[bool](
        lambda self: self._session.interrupted or self.state.status is TrainerStatus.INTERRUPTED,
        "Whether Ctrl-C or SIGTERM ended the last call; with compat also whether an error did, as in Lightning.",
    )

    def _in(self, *stages: str) -> bool:
        return self.state.stage in stages

    training = View[bool](lambda self: self._in("train"), "Whether a fit runs, without its evaluations.")
    validating = View[bool](lambda self: self._in("validate"), "Whether validation runs.")
    testing = View[bool](lambda self: self._in("test"), "Whether the test runs.")
    predicting = View[bool](lambda self: self._in("predict"), "Whether prediction runs.")
    sanity_checking = View[bool](lambda self: self._in("sanity_check"), "Whether the sanity check runs.")
    evaluating = View[bool](lambda self: self._in("validate", "test", "sanity_check"), "Whether an evaluation runs.")

    @property
    def _trained(self) -> Run | None:
        last, run = self._session.fit_run, self.run
        return last if last is not None and run is not None and run.module is last.module else run

    @property
    def _train_data(self) -> TrainData | None:
        if (run := self._trained) is not None:
            return run.train_data
        return None if self._session.builder is None else self._session.builder.loaded  # for `configure_optimizers`

    # numbers of batches
    @property
    def per_device_batch_size(self) -> int | None:
        """Samples in a training batch of one process.

        Until the training data are known, the largest number that `global_batch_size` allows; None without it, and for
        data without a batch size. `train_dataloader` may read it.
        """
        return run_views.batch_size(self._train_data, self.settings, self.strategy.data_size)

    num_training_batches = View[float](
        lambda self: self._train_data.num_batches if self._train_data is not None else math.inf,
        "Training batches per epoch; `inf` if the loader is not known yet or has no length.",
    )
    num_val_batches = _batches("val", "Validation batches, per loader; 0 while one is left out.")
    num_test_batches = _batches("test", "Test batches, per loader.")
    num_predict_batches = _batches("predict", "Prediction batches, per loader.")
    num_sanity_val_batches = View[list[float]](
        lambda self: run_views.sanity_batches(self._session.fit_run, self.num_sanity_val_steps),
        "Validation batches in the sanity check of the last fit, per loader; empty before a fit.",
    )
    enable_validation = View[bool](
        lambda self: run_views.validates(self.num_val_batches, self.plan, self.limit_val_batches),
        "Whether the fit validates: the module has the step, there are loaders, and the limit is not 0.",
    )
    val_check_batch = View[float | None](
        lambda self: run_views.validation_interval(self.plan), "Training batches between two validations."
    )

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps of the complete run; `inf` without a limit. May be read in `configure_optimizers`.

        Raises:
            MisconfigurationException: `max_epochs` limits the run, and the training data are not known yet.
        """
        return run_views.total_steps(self._trained, self._session.builder, self.settings)

    # metrics
    _results = View[Results](lambda self: self._session.results, "The results of the last run, in any process.")
    callback_metrics = View[dict[str, Tensor]](
        lambda self: self._results.callback_metrics, "The latest logged values, which callbacks read."
    )
    logged_metrics = View[dict[str, Tensor]](
        lambda self: self._results.logged_metrics, "The values that the loggers received last."
    )
    progress_bar_metrics = View[dict[str, float]](
        lambda self: self._results.progress_bar_metrics, "The values that the progress bar shows."
    )

    # identity
    run_id = View[str](lambda self: self._session.identity.run_id, "The same for a run and those that continue it.")
    continues = View[bool](
        lambda self: self._session.identity.continues, "Whether the run continues the one that wrote the checkpoint."
    )
    resumed_label = View[Label | None](
        lambda self: self._session.identity.label, "Of the checkpoint that the run began with."
    )
    resumed_by_path = View[bool](
        lambda self: self._session.identity.by_path, "Whether the user named that checkpoint by its path."
    )
    trusts_checkpoints = View[bool](
        lambda self: self._session.trusts_checkpoints,
        "Whether the last call reads checkpoints that hold Python objects: it has `weights_only=False`.",
    )

    @property
    def ckpt_path(self) -> Any:
        """The checkpoint that the last call loaded, or None. Setting it gives a default for calls that name none."""
        return self._session.loaded_path

    @ckpt_path.setter
    def ckpt_path(self, path: Any) -> None:
        self._session.use_checkpoint(path)

    # objects
    lightning_module = View[Any](lambda self: self._session.module, "The module of the last call.")
    model = lightning_module
    datamodule = View[Any](lambda self: self._session.datamodule, "The data module of the last call.")
    hooks = View[Any](
        lambda self: self._session.hooks, "The table of hooks; printed, it lists the methods that each hook calls."
    )

    @property
    def saver(self) -> Saver:
        """Writes the checkpoints of the last fit, or of the current run; `save_checkpoint` calls it.

        Raises:
            MisconfigurationException: No module is attached yet.
        """
        return run_views.saver_of(self._trained)

    optimizers = View[list[Optimizer]](
        lambda self: self._trained.optimization.optimizers if self._trained is not None else [],
        "The optimizers of the last fit, also after an evaluation.",
    )
    lr_scheduler_configs = View[list[SchedulerConfig]](
        lambda self: self._trained.optimization.schedules.configs if self._trained is not None else [],
        "The schedules, with their interval, frequency and name.",
    )
    scaler = View[Any](lambda self: run_views.scaler_of(self._trained), "The GradScaler of 16-mixed, or None.")
    gradient_norm = View[Tensor | None](
        lambda self: self.run.optimization.gradient_norm if self.run is not None else None,
        "The total gradient norm before the last clipping by norm; None before that.",
    )
    precision = View[str](lambda self: str(self.precision_plugin.name), "The name of the precision.")

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self._loggers[0] if self._loggers else None

    @logger.setter
    def logger(self, logger: Logger | None) -> None:
        self._loggers = [] if logger is None else [logger]

    @property
    def loggers(self) -> list[Logger]:
        """All loggers."""
        return self._loggers

    @loggers.setter
    def loggers(self, loggers: list[Logger] | None) -> None:
        self._loggers = list(loggers or [])

    log_dir = View[str | None](
        lambda self: run_views.log_dir(self.logger, self._session.log_dir, self.default_root_dir),
        "The folder of the first logger, else `default_root_dir`. During a run it is rank zero's on all ranks.",
    )

    run_config = View[RunConfig](
        run_config_of, "The resolved numbers of the last call: epochs, batch sizes, steps. An error before the first."
    )

    # callbacks
    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks in call order; the list cannot be changed during a run."""
        return self._session.callbacks

    @callbacks.setter
    def callbacks(self, callbacks: list[Callback]) -> None:
        self._session.use_callbacks(callbacks)

    def _callbacks_of(self, name: str) -> list[Any]:
        from lightlib import callbacks  # optional: rich, only when these properties are read

        return [callback for callback in self.callbacks if isinstance(callback, getattr(callbacks, name))]

    checkpoint_callbacks: View[list[Checkpoint]] = _all("Checkpoint", "All checkpoint callbacks.")
    early_stopping_callbacks: View[list[EarlyStopping]] = _all("EarlyStopping", "All EarlyStopping callbacks.")
    checkpoint_callback: View[Checkpoint | None] = _first("Checkpoint", "The first checkpoint callback, or None.")
    early_stopping_callback: View[EarlyStopping | None] = _first("EarlyStopping", "The first EarlyStopping, or None.")
    history: View[History | None] = _first("History", "The first History callback, or None.")
    progress_bar_callback: View[ProgressBar | None] = _first("ProgressBar", "The progress bar, or None.")

    # loaders
    train_dataloader = View[Any](
        lambda self: self._train_data.loaders if self._train_data is not None else None,
        "The training loaders, in the user's nesting.",
    )
    val_dataloaders = _loaders("val", "The validation loaders, in the user's nesting.")
    test_dataloaders = _loaders("test", "The test loaders, in the user's nesting.")
    predict_dataloaders = _loaders("predict", "The prediction loaders, in the user's nesting.")

    # ranks and devices
    global_rank = View[int](lambda self: self.strategy.global_rank, "The rank of this process among all.")
    local_rank = View[int](lambda self: self.strategy.local_rank, "The rank of this process on its machine.")
    node_rank = View[int](lambda self: self.strategy.node_rank, "The index of this machine.")
    world_size = View[int](lambda self: self.strategy.world_size, "The number of processes.")
    is_global_zero = View[bool](
        lambda self: self.strategy.is_global_zero, "Whether this is rank zero, which writes files and prints."
    )
    num_devices = View[int](lambda self: len(self.devices), "The number of devices on this machine.")
    device_ids = View[list[int]](lambda self: run_views.indices(self.devices), "The indices of this machine's devices.")
    distributed_sampler_kwargs = View[dict[str, int]](
        lambda self: {"num_replicas": self.strategy.data_size, "rank": self.strategy.data_rank},
        "Keyword arguments for a DistributedSampler.",
    )

    # checkpoints
    def save_checkpoint(
        self,
        filepath: str | Path,
        weights_only: bool | None = None,
        storage_options: Any = None,
        *,
        format: Literal["file", "directory"] | None = None,  # noqa: A002  the word for it
        writer: BackgroundWriter | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the state of the run to `filepath`, completely or not at all. All processes call this.

        The file is complete when the call returns, in every hook; with a `writer`, when `writer.join()` returns. It
        stands for the moment of the call: a resumed run makes the calls of the same hook that were still to come. Only
        within a batch, between `on_train_batch_start` and `on_train_batch_end`, you are warned that a resumed run
        repeats the batch.

        Args:
            filepath: A local path or a URL.
            weights_only: Leave out what only a resume needs. Default: False.
            storage_options: Options of fsspec for the store of a URL, such as keys. Default: those of its folder
                (:func:`lightlib.checkpoint.storage_url`) and of fsspec's configuration.
            format: ``"file"``, gathered and written by rank zero; or ``"directory"``, to which each process writes its
                shard. Default: the strategy's, which is a file but for some options of FSDP and ModelParallelStrategy.
            writer: A `lightlib.checkpoint.background.BackgroundWriter`: the call lasts for a copy of the state.
            extra: Entries to add: tensors and plain values by names that a checkpoint does not have.
                `on_load_checkpoint` and `lightlib.checkpoint.load` get them back. Rank zero's are saved.

        Raises:
            MisconfigurationException: No module is attached yet.
            CheckpointWriteError: It could not be written; earlier files are as they were.
        """
        self.saver.save(filepath, weights_only, storage_options, format=format, writer=writer, extra=extra)

    overrides_save_checkpoint = View[bool](
        lambda self: overrides(self, Trainer, "save_checkpoint"),
        "Whether this Trainer's class, or this object, has its own `save_checkpoint`; callbacks save through it.",
    )

    def at_save_point(self, call: Callable[[], object]) -> None:
        """Run `call` at the next save point: an optimizer-step boundary, after the validation that is due there."""
        run_views.at_save_point(self._trained, call)

    # helpers
    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Return a context that creates tensors on the run's device and in its dtype."""
        return self.strategy.init_context()

    def audit_state(self) -> Audit:
        """Return a printable report of a checkpoint's contents and of the user state that it misses.

        Changes of user objects are known during and after a fit.
        """
        return audit(self)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank zero, above the progress bar."""
        if self.is_global_zero:
            bar = self.progress_bar_callback
            report.print_by(print if bar is None else bar.print, *args, **kwargs)

    def log_metrics_now(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Pass numbers to all loggers and to `on_log` at once."""
        if self.run is not None:
            self.run.logs.write(to_floats(metrics), step)

    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Pass an image, a figure, a histogram, a text, a table or audio to the loggers that record its kind.

        Rank zero's is recorded. Nothing happens outside of a run, and in its sanity check.

        Args:
            name: Its name, as ``val/examples``.
            media: The item, one of `lightlib.loggers.media`.
            step: The x-axis. Default: the number of optimizer steps.

        Raises:
            ArgumentTypeError: `media` is something else, for example a tensor.

        Example:
            >>> import torch
            >>> from lightlib.loggers.media import Image
            >>> Trainer(logger=False).log_media("input", Image(torch.rand(3, 8, 8)))
        """
        check_media(name, media)
        if self.run is not None and self.is_global_zero and not self.sanity_checking:
            self.run.loggers.log_media(name, media, self.global_step if step is None else step)

    def call_event(self, name: str, **kwargs: Any) -> None:
        """Call the method `name` on every callback that defines it, in order of priority, then on the module.

        Callbacks get `(trainer, module, **kwargs)`, as in hooks, and the module gets the keyword arguments alone.
        Objects without the method are left out; they are looked up once per run, with a warning if none has it, but one
        has nearly this name. `self.log` in an event follows the rules of the hook that calls it. With several processes
        each calls its own objects.

        Raises:
            MisconfigurationException: `name` is a hook or no name of a public method, or no run has begun.
        """
        for call in run_views.event_calls(self._session.hooks, name):
            call(**kwargs)

    def rebuild_hooks(self) -> None:
        """Look the hooks up again, for tests that patch a method during a run."""
        if self.run is not None:
            self._session.rebuild_hooks(self.run)

    # probes
    processes = View[Processes](lambda self: self._session.processes, "The processes of this Trainer.")

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

    present_call = View[Call](
        lambda self: self._session.call, "The user's objects in the present call, or the last one."
    )

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
        self.strategy, self.profiler, self._loggers = strategy, setup.profiler_of(None), []
        self.progress, self.requeue = Progress(), None
        self._session = original._session.for_probe(self, callbacks)

    # Override it to run a loop of your own: it gets the run of this fit, with `hooks`, `train_data`, `progress`,
    # `plan`, `logs`, `saver` and `optimization` (docs/lifecycle.md). The loop itself, so that no call is added.
    run_training = staticmethod(loop.fit)
