"""The table of Lightning's modules and public names, and lightlib's object behind each."""

from __future__ import annotations

import functools
import json
from importlib import resources

__all__ = ["INTERNALS", "PRIVATE", "has_own_row", "imported", "names", "private_names", "provided", "target"]


def _group(module: str, names: str) -> dict[str, str]:
    """Return the target of each name: ``module:name``; ``ours=Theirs`` where the two names differ."""
    pairs = [name.partition("=") for name in names.split()]
    return {theirs or ours: f"{module}:{ours}" for ours, _, theirs in pairs}


_TOOLS = "lightlib_lightning.tools"
_UTILITIES = f"{_TOOLS}.small_functions"

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
_OBJECTS: dict[str, str] = {
    **_group("lightlib", "Callback CombinedLoader LightningDataModule LightningModule Trainer"),
    **_group("lightlib", "Fabric isolate_rng seed_everything"),
    **_group("lightlib.accelerators", "Accelerator CPUAccelerator CUDAAccelerator MPSAccelerator"),
    **_group("lightlib.accelerators", "find_usable_cuda_devices"),
    **_group("lightlib.callbacks", "Checkpoint EarlyStopping GradientAccumulationScheduler LambdaCallback"),
    **_group(
        "lightlib.callbacks", "LearningRateMonitor ModelCheckpoint ModelSummary OnExceptionCheckpoint ProgressBar"
    ),
    **_group("lightlib.callbacks", "BatchSizeFinder EMAWeightAveraging LearningRateFinder WeightAveraging"),
    **_group("lightlib.callbacks", "DeviceStatsMonitor SpikeDetection ThroughputMonitor"),
    **_group("lightlib.callbacks.monitors.spike", "FabricSpikeDetection TrainingSpikeException"),
    **_group("lightlib.callbacks", "ModelPruning"),
    **_group("lightlib.callbacks", "StochasticWeightAveraging"),
    **_group("lightlib.callbacks", "BackboneFinetuning BaseFinetuning"),
    **_group("lightlib.callbacks.finetuning.backbone", "multiplicative"),
    **_group("lightlib.tuner", "Tuner"),
    **_group("lightlib.callbacks", "RichModelSummary RichProgressBar RichProgressBarTheme TQDMProgressBar Timer"),
    **_group("lightlib.callbacks.early_stopping", "EarlyStoppingReason"),
    **_group("lightlib.callbacks.summary.model_summary", "summarize"),
    **_group("lightlib.cli", "ArgsType LightningArgumentParser LightningCLI ReduceLROnPlateau SaveConfigCallback"),
    **_group("lightlib.cli", "instantiate_module"),
    # From the file that needs no jsonargparse: modules annotate their arguments with these.
    **_group("lightlib.config.optimizers", "LRSchedulerCallable OptimizerCallable instantiate_class"),
    **_group("lightlib.core.optimization.schedules", "SchedulerConfig=LRSchedulerConfig"),
    **_group("lightlib.core.optimization.wrapper", "LightningOptimizer"),
    **_group("lightlib.core.progress.states", "RunningStage TrainerFn TrainerState TrainerStatus"),
    **_group("lightlib.core.values.hparams", "AttributeDict HyperparametersMixin"),
    **_group("lightlib.core.module.hook_defaults", "DataHooks ModelHooks"),
    **_group("lightlib.errors", "MisconfigurationException SIGTERMException"),
    **_group("lightlib.fabric", "is_wrapped"),
    **_group("lightlib.fabric.data_parallel", "DataParallelStrategy"),
    **_group("lightlib.launch", "SLURMEnvironment free_port=find_free_network_port"),
    **_group("lightlib.loggers", "CSVLogger CometLogger DummyExperiment DummyLogger Logger MLFlowLogger NeptuneLogger"),
    **_group("lightlib.loggers", "TensorBoardLogger WandbLogger rank_zero_experiment"),
    **_group("lightlib.loggers", "FabricLogger"),
    **_group(f"{_TOOLS}.old_pickles", "pl_legacy_patch"),
    **_group(f"{_TOOLS}.fabric_loggers", "CSVLogger=FabricCSVLogger TensorBoardLogger=FabricTensorBoardLogger"),
    **_group("lightlib.loggers.csv", "ExperimentWriter"),
    **_group("lightlib.strategies.group.process_group", "DEFAULT_TIMEOUT=default_pg_timeout"),
    **_group("lightlib.callbacks.summary.model_summary", "Summary"),
    **_group("torch.utils._pytree", "SUPPORTED_NODES tree_unflatten"),
    **_group("lightning_utilities.core.rank_zero", "rank_zero_only=utils_rank_zero_only"),
    **_group("lightlib_lightning.plugins.precision", "DoublePrecision=DoublePrecisionPlugin HalfPrecision"),
    **_group(
        "lightlib_lightning.plugins.precision", "DoublePrecision HalfPrecision=HalfPrecisionPlugin MixedPrecision"
    ),
    **_group("lightlib_lightning.plugins.precision", "MixedPrecision=MixedPrecisionPlugin Precision"),
    **_group("lightlib_lightning.plugins.precision", "Precision=PrecisionPlugin Precision=FabricPrecision"),
    **_group("lightlib_lightning.plugins.strategy_precision", "DeepSpeedPrecision FSDPPrecision"),
    **_group("lightlib_lightning.plugins.strategy_precision", "DeepSpeedPrecision=DeepSpeedPrecisionPlugin"),
    **_group(
        "lightlib_lightning.plugins.strategy_precision",
        "FSDPPrecision=FSDPPrecisionPlugin FSDPPrecision=FSDPMixedPrecisionPlugin",
    ),
    **_group("lightlib_lightning.plugins.layer_precision", "BitsandbytesPrecision TransformerEnginePrecision"),
    **_group("lightlib_lightning.plugins.layer_precision", "BitsandbytesPrecision=BitsandbytesPrecisionPlugin"),
    **_group(
        "lightlib_lightning.plugins.layer_precision", "TransformerEnginePrecision=TransformerEnginePrecisionPlugin"
    ),
    **_group("lightlib_lightning.plugins.layer_precision", "BitsandbytesPrecision=FabricBNBPrecision"),
    **_group("lightlib_lightning.plugins.layer_precision", "TransformerEnginePrecision=FabricTEPrecision"),
    **_group("lightlib_lightning.plugins.double", "LightningDoublePrecisionModule"),
    **_group(
        f"{_TOOLS}.deepspeed_files", "DeepSpeedLayerSummary DeepSpeedSummary deepspeed_param_size ds_checkpoint_dir"
    ),
    **_group(f"{_TOOLS}.deepspeed_files", "convert_zero_checkpoint_to_fp32_state_dict"),
    **_group("lightlib_lightning.plugins.io", "AsyncCheckpointIO CheckpointIO TorchCheckpointIO"),
    **_group("lightlib_lightning.plugins.layer_sync", "LayerSync TorchSyncBatchNorm"),
    **_group("lightlib_lightning.plugins.registries", "ACCELERATOR_REGISTRY ACCELERATOR_REGISTRY=AcceleratorRegistry"),
    **_group("lightlib_lightning.plugins.registries", "STRATEGY_REGISTRY STRATEGY_REGISTRY=StrategyRegistry"),
    **_group("lightlib_lightning.plugins.registries", "call_register_accelerators"),
    **_group("lightlib.profilers", "AdvancedProfiler PassThroughProfiler Profiler PyTorchProfiler SimpleProfiler"),
    **_group("lightlib.report", "PossibleUserWarning"),
    **_group(
        "lightlib_lightning.plugins.strategies", "DDPStrategy DeepSpeedStrategy FSDPStrategy ModelParallelStrategy"
    ),
    **_group("lightlib_lightning.plugins.strategies", "ParallelStrategy SingleDeviceStrategy"),
    **_group("lightlib_lightning.plugins.base_strategy", "Strategy"),
    **_group("lightning_utilities.core.apply_func", "apply_to_collection is_dataclass_instance"),
    **_group("lightning_utilities.core.enums", "StrEnum=LightningEnum"),
    **_group("lightning_utilities.core.imports", "RequirementCache compare_version module_available package_available"),
    **_group("lightning_utilities.core.rank_zero", "WarningCache rank_prefixed_message rank_zero_debug"),
    **_group(
        "lightning_utilities.core.rank_zero", "rank_zero_deprecation rank_zero_info rank_zero_only rank_zero_warn"
    ),
    **_group("torch.cuda", "device_count=num_cuda_devices is_available=is_cuda_available"),
    **_group(
        _UTILITIES, "clean_namespace extract_batch_size find_shared_parameters from_compiled garbage_collection_cuda"
    ),
    **_group(_UTILITIES, "get_all_subclasses get_filesystem get_init_args grad_norm has_iterable_dataset has_len"),
    **_group(_UTILITIES, "is_cuda_out_of_memory is_oom_error is_out_of_cpu_memory is_overridden"),
    **_group(_UTILITIES, "is_param_in_hook_signature is_picklable lightning_getattr lightning_hasattr"),
    **_group(_UTILITIES, "lightning_setattr move_data_to_device recursive_detach set_shared_parameters sized_len"),
    **_group(_UTILITIES, "suggested_max_num_workers to_uncompiled"),
    **_group(f"{_TOOLS}.closures", "AbstractClosure Closure ClosureResult ManualResult OutputResult RestartStage"),
    **_group(f"{_TOOLS}.closures", "check_finite_loss do_nothing_closure"),
    **_group(f"{_TOOLS}.collectives", "Collective SingleDeviceCollective TorchCollective"),
    **_group(f"{_TOOLS}.measures", "LEFTOVER_PARAMS_NAME NOT_APPLICABLE PARAMETER_NUM_UNITS UNKNOWN_SIZE LayerSummary"),
    **_group(f"{_TOOLS}.measures", "get_cpu_stats get_device_stats get_formatted_model_size"),
    **_group(f"{_TOOLS}.measures", "get_human_readable_count get_nvidia_gpu_stats get_torchvision_model"),
    **_group(f"{_TOOLS}.measures", "has_len_all_ranks is_shared_filesystem parse_batch_shape"),
    **_group("lightlib.profilers", "Throughput"),
    **_group("lightlib.profilers.flops", "get_available_flops measure_flops"),
    **_group(f"{_TOOLS}.mnist_demo", "MNIST MNISTDataModule Net"),
    **_group(f"{_TOOLS}.parsing", "CHECKPOINT_PAST_HPARAMS_KEYS collect_init_args convert load_hparams_from_tags_csv"),
    **_group(f"{_TOOLS}.parsing", "load_hparams_from_yaml merge_dicts migrate_checkpoint parse_class_init_keys"),
    **_group(f"{_TOOLS}.parsing", "pl_load"),
    **_group(f"{_TOOLS}.parsing", "save_hparams_to_tags_csv save_hparams_to_yaml save_hyperparameters update_hparams"),
    **_group(f"{_TOOLS}.rich_columns", "BatchesProcessedColumn CustomBarColumn CustomInfiniteTask CustomProgress"),
    **_group(f"{_TOOLS}.rich_columns", "CustomTimeColumn MetricsTextColumn ProcessingSpeedColumn"),
    **_group("lightlib.samplers.distributed", "DistributedSamplerWrapper UnrepeatedDistributedSampler"),
    **_group("lightlib.samplers.distributed", "UnrepeatedDistributedSamplerWrapper"),
    **_group(f"{_TOOLS}.serving", "ServableModule"),
    **_group(f"{_TOOLS}.seeds", "max_seed_value min_seed_value pl_worker_init_function reset_seed"),
    **_group(f"{_TOOLS}.text_demos", "Dictionary LightningTransformer PositionalEncoding"),
    **_group(f"{_TOOLS}.text_demos", "Transformer WikiText2 tokenize"),
    **_group(f"{_TOOLS}.tqdm_bar", "Tqdm"),
    **_group(f"{_TOOLS}.values", "CONVERSION_DTYPES CPU_DEVICE FLOAT16_EPSILON FLOAT32_EPSILON FLOAT64_EPSILON"),
    **_group(
        f"{_TOOLS}.values", "FRAMEWORK_NAME LIGHTNING_LOGO LOCAL_FILE_URI_PREFIX CheckpointHooks CollectibleGroup"
    ),
    **_group(f"{_TOOLS}.values", "GradClipAlgorithmType Interval LightningDeprecationWarning Optimizable Steppable"),
    **_group(f"{_TOOLS}.values", "cli_lightning_logo convert_inf convert_tensors_to_scalars convert_to_tensors"),
    **_group(f"{_TOOLS}.values", "disable_possible_user_warnings get_standard_metrics"),
    **_group(f"{_TOOLS}.values", "is_cudnn_snafu remove_module_hooks warning_cache"),
    **_group("lightlib_lightning.demos", "BoringDataModule BoringModel DemoModel"),
    **_group("lightlib_lightning.demos", "ManualOptimBoringModel RandomDataset RandomDictDataset"),
    **_group("lightlib_lightning.demos", "RandomIterableDataset RandomIterableDatasetWithLen"),
    **_group("lightlib_lightning.environments", "ClusterEnvironment KubeflowEnvironment LSFEnvironment"),
    **_group("lightlib_lightning.environments", "LightningEnvironment MPIEnvironment TorchElasticEnvironment"),
    **_group("lightlib_lightning.types", "DistributedDataParallel EVAL_DATALOADERS LRScheduler"),
    **_group("lightlib.callbacks.prediction_writer", "BasePredictionWriter WriteInterval"),
    **_group(
        "lightlib_lightning.types", "LRSchedulerConfigType LRSchedulerTypeTuple LRSchedulerTypeUnion OptimizerConfig"
    ),
    **_group("lightlib_lightning.types", "BType LRSchedulerPLType LRSchedulerType MODULE_OPTIMIZERS comet_experiment"),
    **_group("lightlib_lightning.types", "RedOpType T TBroadcast TModel TReduce T_destination ModuleType"),
    **_group("lightlib_lightning.loggers", "formatter log"),
    **_group("torch.distributed", "ProcessGroup ReduceOp"),
    **_group("torch", "UntypedStorage"),
    **_group(
        "lightlib_lightning.types", "OptimizerLRScheduler OptimizerLRSchedulerConfig STEP_OUTPUT TRAIN_DATALOADERS"
    ),
}

# Private names that projects import, by Lightning's name; scripts/lightning_paths.py records which modules have them.
_INTERNALS = "lightlib_lightning.internals"
PRIVATE: dict[str, str] = {
    **_group(f"{_INTERNALS}.connectors", "AcceleratorConnector=_AcceleratorConnector"),
    **_group(
        f"{_INTERNALS}.connectors", "CallbackConnector=_CallbackConnector CheckpointConnector=_CheckpointConnector"
    ),
    **_group(f"{_INTERNALS}.connectors", "DataConnector=_DataConnector LoggerConnector=_LoggerConnector"),
    **_group(f"{_INTERNALS}.connectors", "SignalConnector=_SignalConnector"),
    **_group(f"{_INTERNALS}.loops", "DataSource=_DataLoaderSource EpochLoop=_TrainingEpochLoop FitLoop=_FitLoop"),
    **_group(f"{_INTERNALS}.loops", "EvaluationLoop=_EvaluationLoop PredictionLoop=_PredictionLoop"),
    **_group(f"{_INTERNALS}.saving", "load=_load load_object=_load_from_checkpoint load_state=_load_state"),
    **_group(f"{_INTERNALS}.saving", "load_hparams_from_tags_csv load_hparams_from_yaml save_hparams_to_tags_csv"),
    **_group(f"{_INTERNALS}.saving", "save_hparams_to_yaml update_hparams"),
    **_group(f"{_INTERNALS}.devices", "check_data_type=_check_data_type check_unique=_check_unique"),
    **_group(f"{_INTERNALS}.devices", "list_of_text=_normalize_parse_gpu_string_input parse_gpu_ids=_parse_gpu_ids"),
    **_group(f"{_INTERNALS}.devices", "available_gpus=_get_all_available_gpus root_gpu=_determine_root_gpu_device"),
    **_group(
        f"{_INTERNALS}.logged", "add_prefix=_add_prefix convert_params=_convert_params flatten_dict=_flatten_dict"
    ),
    **_group(f"{_INTERNALS}.logged", "sanitize_callable_params=_sanitize_callable_params"),
    **_group(f"{_INTERNALS}.logged", "sanitize_params=_sanitize_params scan_checkpoints=_scan_checkpoints"),
    **_group(f"{_INTERNALS}.logged", "version=_version"),
    **_group(f"{_INTERNALS}.functions", "METADATA_FILENAME=_METADATA_FILENAME MockOptimizer=_MockOptimizer"),
    **_group(f"{_INTERNALS}.functions", "NotYetLoadedTensor=_NotYetLoadedTensor ResultMetric=_ResultMetric"),
    **_group(f"{_INTERNALS}.functions", "Sharded=_Sharded Stateful=_Stateful all_reduce=_sync_ddp"),
    **_group(f"{_INTERNALS}.functions", "SubprocessScriptLauncher=_SubprocessScriptLauncher"),
    **_group(f"{_INTERNALS}.functions", "all_reduce_if_initialized=_sync_ddp_if_available"),
    **_group(f"{_INTERNALS}.functions", "apply_filter=_apply_filter check_keys=_validate_keys_for_strict_loading"),
    **_group(f"{_INTERNALS}.functions", "backend_for=_get_default_process_group_backend_for_device is_dir=_is_dir"),
    **_group(f"{_INTERNALS}.functions", "checkpoint_activations=_setup_activation_checkpointing"),
    **_group(f"{_INTERNALS}.functions", "full_state_dict=_get_full_state_dict_context"),
    **_group(f"{_INTERNALS}.functions", "init_connection=_init_dist_connection lazy_load=_lazy_load"),
    **_group(f"{_INTERNALS}.functions", "is_initialized=_distributed_is_initialized move_state=_move_state_into"),
    **_group(f"{_INTERNALS}.functions", "materialize=_materialize_meta_tensors rank_from_environment=_get_rank"),
    **_group(f"{_INTERNALS}.functions", "reasons_to_skip=_runif_reasons"),
    **_group(f"{_INTERNALS}.flags", _FLAGS),
    **_group("lightlib_lightning.plugins.io", "_WrappingCheckpointIO"),
    **_group("lightlib_lightning.plugins.registries", "_AcceleratorRegistry _StrategyRegistry _register_classes"),
    **_group("lightlib_lightning.types", _ALIASES),
    **_group("lightlib.fabric.loader", "FabricLoader=_FabricDataLoader"),
    **_group("lightlib.fabric.wrapped", "FabricModule=_FabricModule FabricOptimizer=_FabricOptimizer"),
    **_group("lightlib.loggers", "DummyExperiment=_DummyExperiment"),
}

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
    known = name in _public(path) or name.startswith("_") or f"{path}.{name}" in _BY_PATH
    return target(path, name) if known else imported(path).get(name)


def has_own_row(path: str, name: str) -> bool:
    """Whether a name means something else in a module of Lightning than in the rest of it."""
    return f"{path}.{name}" in _BY_PATH
