"""The table of Lightning's modules and public names, and lightlib's object behind each."""

from __future__ import annotations

import functools
import json
from importlib import resources

__all__ = ["INTERNALS", "PRIVATE", "has_own_row", "imported", "names", "private_names", "provided", "target"]


def _targets(table: str) -> dict[str, str]:
    """Return where the object behind each name is, as ``module:attribute``.

    Args:
        table: Modules, each with a colon behind it, and their names; ``ours=Theirs`` where Lightning's name is another
            one. A module that begins with a dot is below this package.
    """
    targets: dict[str, str] = {}
    module = ""
    for word in table.split():
        if word.endswith(":"):
            module = f"{__package__ if word.startswith('.') else ''}{word[:-1]}"
        else:
            ours, _, theirs = word.partition("=")
            targets[theirs or ours] = f"{module}:{ours}"
    return targets


_ALIASES = """
    _DATALOADER _DEVICE _EVALUATE_OUTPUT _MAP_LOCATION_TYPE _METRIC _METRICS _NUMBER _OUT_DICT _PARAMETERS _PATH
    _PBAR_DICT _PREDICT_OUTPUT
"""
_FLAGS = """
    _BITSANDBYTES_AVAILABLE _CLICK_AVAILABLE _COMET_AVAILABLE _DEEPSPEED_AVAILABLE _DEEPSPEED_GREATER_EQUAL_0_16
    _HYDRA_AVAILABLE _IS_INTERACTIVE _IS_WINDOWS _JSONARGPARSE_SIGNATURES_AVAILABLE _KINETO_AVAILABLE
    _LIGHTNING_SDK_AVAILABLE _LITLOGGER_AVAILABLE _MATPLOTLIB_AVAILABLE _MLFLOW_AVAILABLE
    _MLFLOW_SYNCHRONOUS_AVAILABLE _MPI4PY_AVAILABLE _NUMPY_AVAILABLE _OMEGACONF_AVAILABLE _ONNXSCRIPT_AVAILABLE
    _ONNX_AVAILABLE _PSUTIL_AVAILABLE _PYTHON_GREATER_EQUAL_3_10_0 _PYTHON_GREATER_EQUAL_3_11_0 _REQUESTS_AVAILABLE
    _RICH_AVAILABLE _SKLEARN_AVAILABLE _TENSORBOARDX_AVAILABLE _TENSORBOARD_AVAILABLE
    _TORCHMETRICS_GREATER_EQUAL_0_11 _TORCHMETRICS_GREATER_EQUAL_0_8_0 _TORCHMETRICS_GREATER_EQUAL_0_9_1
    _TORCHMETRICS_GREATER_EQUAL_1_0_0 _TORCHVISION_AVAILABLE _TORCH_EQUAL_2_4_0 _TORCH_EQUAL_2_8 _TORCH_EQUAL_2_9
    _TORCH_GREATER_EQUAL_2_2 _TORCH_GREATER_EQUAL_2_3 _TORCH_GREATER_EQUAL_2_4 _TORCH_GREATER_EQUAL_2_4_1
    _TORCH_GREATER_EQUAL_2_5 _TORCH_GREATER_EQUAL_2_6 _TORCH_GREATER_EQUAL_2_8 _TORCH_LESS_EQUAL_2_6
    _TORCH_TRT_AVAILABLE _TRANSFORMER_ENGINE_AVAILABLE _WANDB_AVAILABLE _XLA_AVAILABLE _XLA_GREATER_EQUAL_2_1
    _XLA_GREATER_EQUAL_2_5
"""

# By Lightning's name, wherever Lightning has it.
_OBJECTS = _targets(
    """
    lightlib: Callback CombinedLoader Fabric isolate_rng LightningDataModule LightningModule seed_everything Trainer
    lightlib.accelerators: Accelerator CPUAccelerator CUDAAccelerator find_usable_cuda_devices MPSAccelerator
    lightlib.callbacks: BackboneFinetuning BaseFinetuning BatchSizeFinder Checkpoint DeviceStatsMonitor
        EarlyStopping EMAWeightAveraging GradientAccumulationScheduler LambdaCallback LearningRateFinder
        LearningRateMonitor ModelCheckpoint ModelPruning ModelSummary OnExceptionCheckpoint ProgressBar
        RichModelSummary RichProgressBar RichProgressBarTheme SpikeDetection StochasticWeightAveraging
        ThroughputMonitor Timer TQDMProgressBar WeightAveraging
    lightlib.callbacks.early_stopping: EarlyStoppingReason
    lightlib.callbacks.finetuning.backbone: multiplicative
    lightlib.callbacks.monitors.spike: FabricSpikeDetection TrainingSpikeException
    lightlib.callbacks.prediction_writer: BasePredictionWriter WriteInterval
    lightlib.callbacks.summary.model_summary: summarize Summary
    lightlib.cli: ArgsType instantiate_module LightningArgumentParser LightningCLI ReduceLROnPlateau
        SaveConfigCallback
    lightlib.config.optimizers: instantiate_class LRSchedulerCallable OptimizerCallable
    lightlib.core.module.hook_defaults: DataHooks ModelHooks
    lightlib.core.optimization.schedules: SchedulerConfig=LRSchedulerConfig
    lightlib.core.optimization.wrapper: LightningOptimizer
    lightlib.core.progress.states: RunningStage TrainerFn TrainerState TrainerStatus
    lightlib.core.values.hparams: AttributeDict HyperparametersMixin
    lightlib.errors: MisconfigurationException SIGTERMException
    lightlib.fabric: is_wrapped
    lightlib.fabric.data_parallel: DataParallelStrategy
    lightlib.launch: free_port=find_free_network_port SLURMEnvironment
    lightlib.loggers: CometLogger CSVLogger DummyExperiment DummyLogger FabricLogger Logger MLFlowLogger
        NeptuneLogger rank_zero_experiment TensorBoardLogger WandbLogger
    lightlib.loggers.csv: ExperimentWriter
    lightlib.profilers: AdvancedProfiler PassThroughProfiler Profiler PyTorchProfiler SimpleProfiler Throughput
    lightlib.profilers.flops: get_available_flops measure_flops
    lightlib.report: PossibleUserWarning
    lightlib.samplers.distributed: DistributedSamplerWrapper UnrepeatedDistributedSampler
        UnrepeatedDistributedSamplerWrapper
    lightlib.strategies.group.process_group: DEFAULT_TIMEOUT=default_pg_timeout
    lightlib.tuner: Tuner
    lightning_utilities.core.apply_func: apply_to_collection is_dataclass_instance
    lightning_utilities.core.enums: StrEnum=LightningEnum
    lightning_utilities.core.imports: compare_version module_available package_available RequirementCache
    lightning_utilities.core.rank_zero: rank_prefixed_message rank_zero_debug rank_zero_deprecation rank_zero_info
        rank_zero_only=utils_rank_zero_only rank_zero_only rank_zero_warn WarningCache
    torch: UntypedStorage
    torch.cuda: device_count=num_cuda_devices is_available=is_cuda_available
    torch.distributed: ProcessGroup ReduceOp
    torch.utils._pytree: SUPPORTED_NODES tree_unflatten
    .demos: BoringDataModule BoringModel DemoModel ManualOptimBoringModel RandomDataset RandomDictDataset
        RandomIterableDataset RandomIterableDatasetWithLen
    .environments: ClusterEnvironment KubeflowEnvironment LightningEnvironment LSFEnvironment MPIEnvironment
        TorchElasticEnvironment
    .loggers: formatter log
    .plugins.base_strategy: Strategy
    .plugins.double: LightningDoublePrecisionModule
    .plugins.io: AsyncCheckpointIO CheckpointIO TorchCheckpointIO
    .plugins.layer_precision: BitsandbytesPrecision BitsandbytesPrecision=BitsandbytesPrecisionPlugin
        BitsandbytesPrecision=FabricBNBPrecision TransformerEnginePrecision
        TransformerEnginePrecision=TransformerEnginePrecisionPlugin TransformerEnginePrecision=FabricTEPrecision
    .plugins.layer_sync: LayerSync TorchSyncBatchNorm
    .plugins.precision: DoublePrecision=DoublePrecisionPlugin DoublePrecision HalfPrecision
        HalfPrecision=HalfPrecisionPlugin MixedPrecision MixedPrecision=MixedPrecisionPlugin Precision
        Precision=PrecisionPlugin Precision=FabricPrecision
    .plugins.registries: ACCELERATOR_REGISTRY ACCELERATOR_REGISTRY=AcceleratorRegistry call_register_accelerators
        STRATEGY_REGISTRY STRATEGY_REGISTRY=StrategyRegistry
    .plugins.strategies: DDPStrategy DeepSpeedStrategy FSDPStrategy ModelParallelStrategy ParallelStrategy
        SingleDeviceStrategy
    .plugins.strategy_precision: DeepSpeedPrecision DeepSpeedPrecision=DeepSpeedPrecisionPlugin FSDPPrecision
        FSDPPrecision=FSDPPrecisionPlugin FSDPPrecision=FSDPMixedPrecisionPlugin
    .tools.closures: AbstractClosure check_finite_loss Closure ClosureResult do_nothing_closure ManualResult
        OutputResult RestartStage
    .tools.collectives: Collective SingleDeviceCollective TorchCollective
    .tools.deepspeed_files: convert_zero_checkpoint_to_fp32_state_dict deepspeed_param_size DeepSpeedLayerSummary
        DeepSpeedSummary ds_checkpoint_dir
    .tools.fabric_loggers: CSVLogger=FabricCSVLogger TensorBoardLogger=FabricTensorBoardLogger
    .tools.measures: get_cpu_stats get_device_stats get_formatted_model_size get_human_readable_count
        get_nvidia_gpu_stats get_torchvision_model has_len_all_ranks is_shared_filesystem LayerSummary
        LEFTOVER_PARAMS_NAME NOT_APPLICABLE PARAMETER_NUM_UNITS parse_batch_shape UNKNOWN_SIZE
    .tools.mnist_demo: MNIST MNISTDataModule Net
    .tools.old_pickles: pl_legacy_patch
    .tools.parsing: CHECKPOINT_PAST_HPARAMS_KEYS collect_init_args convert load_hparams_from_tags_csv
        load_hparams_from_yaml merge_dicts migrate_checkpoint parse_class_init_keys pl_load save_hparams_to_tags_csv
        save_hparams_to_yaml save_hyperparameters update_hparams
    .tools.rich_columns: BatchesProcessedColumn CustomBarColumn CustomInfiniteTask CustomProgress CustomTimeColumn
        MetricsTextColumn ProcessingSpeedColumn
    .tools.seeds: max_seed_value min_seed_value pl_worker_init_function reset_seed
    .tools.serving: ServableModule
    .tools.small_functions: clean_namespace extract_batch_size find_shared_parameters from_compiled
        garbage_collection_cuda get_all_subclasses get_filesystem get_init_args grad_norm has_iterable_dataset
        has_len is_cuda_out_of_memory is_oom_error is_out_of_cpu_memory is_overridden is_param_in_hook_signature
        is_picklable lightning_getattr lightning_hasattr lightning_setattr move_data_to_device recursive_detach
        set_shared_parameters sized_len suggested_max_num_workers to_uncompiled
    .tools.text_demos: Dictionary LightningTransformer PositionalEncoding tokenize Transformer WikiText2
    .tools.tqdm_bar: Tqdm
    .tools.values: CheckpointHooks cli_lightning_logo CollectibleGroup CONVERSION_DTYPES convert_inf
        convert_tensors_to_scalars convert_to_tensors CPU_DEVICE disable_possible_user_warnings FLOAT16_EPSILON
        FLOAT32_EPSILON FLOAT64_EPSILON FRAMEWORK_NAME get_standard_metrics GradClipAlgorithmType Interval
        is_cudnn_snafu LIGHTNING_LOGO LightningDeprecationWarning LOCAL_FILE_URI_PREFIX Optimizable
        remove_module_hooks Steppable warning_cache
    .types: BType comet_experiment DistributedDataParallel EVAL_DATALOADERS LRScheduler LRSchedulerConfigType
        LRSchedulerPLType LRSchedulerType LRSchedulerTypeTuple LRSchedulerTypeUnion MODULE_OPTIMIZERS ModuleType
        OptimizerConfig OptimizerLRScheduler OptimizerLRSchedulerConfig RedOpType STEP_OUTPUT T T_destination
        TBroadcast TModel TRAIN_DATALOADERS TReduce
    """
)

# Private names that projects import, by Lightning's name; scripts/lightning_paths.py records which modules have them.
PRIVATE = _targets(
    f"""
    .internals.flags: {_FLAGS}
    .types: {_ALIASES} _LITERAL_WARN _PLUGIN_INPUT _PRECISION_INPUT
    lightlib.fabric.loader: FabricLoader=_FabricDataLoader
    lightlib.fabric.wrapped: FabricModule=_FabricModule FabricOptimizer=_FabricOptimizer
    lightlib.loggers: DummyExperiment=_DummyExperiment
    .internals.connectors: AcceleratorConnector=_AcceleratorConnector CallbackConnector=_CallbackConnector
        CheckpointConnector=_CheckpointConnector DataConnector=_DataConnector LoggerConnector=_LoggerConnector
        SignalConnector=_SignalConnector
    .internals.devices: available_gpus=_get_all_available_gpus check_data_type=_check_data_type
        check_unique=_check_unique list_of_text=_normalize_parse_gpu_string_input parse_gpu_ids=_parse_gpu_ids
        root_gpu=_determine_root_gpu_device
    .internals.functions: all_reduce=_sync_ddp all_reduce_if_initialized=_sync_ddp_if_available
        apply_filter=_apply_filter backend_for=_get_default_process_group_backend_for_device
        check_keys=_validate_keys_for_strict_loading checkpoint_activations=_setup_activation_checkpointing
        defaults_from_environment=_defaults_from_env_vars full_state_dict=_get_full_state_dict_context
        init_connection=_init_dist_connection is_dir=_is_dir is_initialized=_distributed_is_initialized
        is_local=_is_local_file_protocol lazy_load=_lazy_load materialize=_materialize_meta_tensors
        METADATA_FILENAME=_METADATA_FILENAME MockOptimizer=_MockOptimizer move_state=_move_state_into
        NotYetLoadedTensor=_NotYetLoadedTensor rank_from_environment=_get_rank reasons_to_skip=_runif_reasons
        ResultMetric=_ResultMetric Sharded=_Sharded Stateful=_Stateful
        SubprocessScriptLauncher=_SubprocessScriptLauncher
    .internals.logged: add_prefix=_add_prefix convert_params=_convert_params flatten_dict=_flatten_dict
        sanitize_callable_params=_sanitize_callable_params sanitize_params=_sanitize_params
        scan_checkpoints=_scan_checkpoints version=_version
    .internals.loops: DataSource=_DataLoaderSource EpochLoop=_TrainingEpochLoop EvaluationLoop=_EvaluationLoop
        FitLoop=_FitLoop PredictionLoop=_PredictionLoop
    .internals.saving: load=_load load_object=_load_from_checkpoint load_state=_load_state
    .plugins.io: _WrappingCheckpointIO
    .plugins.registries: _AcceleratorRegistry _register_classes _StrategyRegistry
    """
)

_TOOLS = f"{__package__}.tools"

# By Lightning's path, where a name means something else than in the rest of Lightning, or is private there.
_BY_PATH: dict[str, str] = {
    **{
        f"fabric.{path}.Logger": "lightlib.loggers:FabricLogger"
        for path in ("fabric", "loggers", "loggers.csv_logs", "loggers.logger", "loggers.tensorboard")
    },
    **{
        f"fabric.loggers.{path}": f"{_TOOLS}.fabric_loggers:{path.rpartition('.')[2]}"
        for path in ("CSVLogger", "csv_logs.CSVLogger", "TensorBoardLogger", "tensorboard.TensorBoardLogger")
    },
    "fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE": f"{_TOOLS}.fabric_loggers:HAS_TENSORBOARD",
    "fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE": f"{_TOOLS}.fabric_loggers:HAS_TENSORBOARDX",
    "fabric.strategies.strategy._BackwardSyncControl": "lightlib_lightning.plugins.in_fabric:BackwardSync",
    "fabric.strategies.ddp._DDPBackwardSyncControl": "lightlib_lightning.plugins.in_fabric:DDPBackwardSync",
    "pytorch.utilities.model_summary.ModelSummary": "lightlib.callbacks.summary.model_summary:Summary",
    "pytorch.utilities.model_summary.model_summary.ModelSummary": "lightlib.callbacks.summary.model_summary:Summary",
    "fabric.utilities.spike.SpikeDetection": "lightlib.callbacks.monitors.spike:FabricSpikeDetection",
    **{
        f"fabric.{path}.ThroughputMonitor": "lightlib.fabric.throughput:ThroughputMonitor"
        for path in ("utilities", "utilities.throughput")
    },
    "fabric.cli.main": f"{_TOOLS}.commands:run_fabric",
    "pytorch.utilities.upgrade_checkpoint.main": f"{_TOOLS}.commands:upgrade_checkpoints",
    # Former versions had all aliases in both modules.
    **{
        f"{path}.{name}": f"lightlib_lightning.types:{name}"
        for path in ("pytorch.utilities.types", "fabric.utilities.types")
        for name in _ALIASES.split()
    },
    "pytorch.utilities.types.ReduceLROnPlateau": "torch.optim.lr_scheduler:ReduceLROnPlateau",
}

# Attributes of a Trainer that are no public names here, and that compat provides for the projects that read them.
_OF_TRAINER = """
    _accelerator_connector _active_loop _callback_connector _checkpoint_connector _data_connector _detect_anomaly
    _evaluation_loop _logger_connector _signal_connector fit_loop predict_loop test_loop validate_loop
"""
INTERNALS = frozenset(_OF_TRAINER.split())


def private_names(path: str) -> list[str]:
    """Return the private names that a module of Lightning's has here."""
    here = [name.removeprefix(f"{path}.") for name in _BY_PATH if name.startswith(f"{path}._")]
    return sorted({*here, *_listed(path)[2]})


@functools.cache
def target(path: str, name: str) -> str | None:
    """Return where the object behind a name is, as ``module:attribute``; None if nothing stands behind it.

    Example:
        >>> target("pytorch.callbacks", "EarlyStopping"), target("pytorch", "os")
        ('lightlib.callbacks:EarlyStopping', None)
    """
    return (
        _BY_PATH.get(f"{path}.{name}")
        or _OBJECTS.get(name)
        or (PRIVATE.get(name) if name in _listed(path)[2] else None)
    )


@functools.cache
def names() -> dict[str, str]:
    """Return the public names of each of Lightning's modules, by its path below ``lightning``."""
    return {path: " ".join(_listed(path)[0]) for path in _table()["modules"]}


@functools.cache
def imported(path: str) -> dict[str, str]:
    """Return the origins of the names that a module of Lightning's imports from other packages, such as `Tensor`.

    Example:
        >>> imported("pytorch.cli")["Optimizer"], imported("pytorch.cli")["pl"]
        ('torch.optim:Optimizer', 'lightning.pytorch')
    """
    origins = _table()["origins"]
    pairs = [word.partition("=") for word in _listed(path)[1]]
    return {name: origin or origins[name] for name, _, origin in pairs}


@functools.cache
def _listed(path: str) -> tuple[list[str], list[str], list[str]]:
    """Return the names of a module: its public ones, those of other packages, and private ones."""
    public, others, private = (part.split() for part in _table()["modules"].get(path, "||").split("|"))
    return public, others, private


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    """Return the record of Lightning's modules, which `scripts/lightning_paths.py` writes."""
    table: dict[str, dict[str, str]] = json.loads(
        resources.files(__package__).joinpath("lightning_2_6.json").read_text("utf-8")
    )
    return table


@functools.cache
def _public(path: str) -> frozenset[str]:
    return frozenset(_listed(path)[0])


def provided(path: str, name: str) -> str | None:
    """As :func:`target`, but only for names that Lightning's module has: public, private, by path, or imported.

    Example:
        >>> provided("pytorch.callbacks", "EarlyStopping"), provided("pytorch.callbacks", "Trainer")
        ('lightlib.callbacks:EarlyStopping', None)
    """
    is_provided = name in _public(path) or name.startswith("_") or f"{path}.{name}" in _BY_PATH
    return target(path, name) if is_provided else imported(path).get(name)


def has_own_row(path: str, name: str) -> bool:
    """Whether a name means something else in a module of Lightning than in the rest of it."""
    return f"{path}.{name}" in _BY_PATH
