"""Short names, registered names and class paths of Lightning become our class paths."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from lightlib import registry
from lightlib.errors import MisconfigurationException, UnknownNameError, closest, nearest

__all__ = ["class_path", "translate", "translated"]

# Where the classes of a group are by their own name, and what all of them are made of.
_GROUPS: dict[str, tuple[str, str]] = {
    "accelerators": ("lightlib.accelerators", "lightlib.accelerators:Accelerator"),
    "callbacks": ("lightlib.callbacks", "lightlib.callbacks:Callback"),
    "environments": ("lightlib.launch", "lightlib.launch:Environment"),
    "loggers": ("lightlib.loggers", "lightlib.loggers:Logger"),
    "optimizers": ("lightlib.optim", "torch.optim:Optimizer"),
    "precision": ("lightlib.precision", "lightlib.precision:Precision"),
    "profilers": ("lightlib.profilers", "lightlib.profilers:Profiler"),
    "schedulers": ("torch.optim.lr_scheduler", "torch.optim.lr_scheduler:LRScheduler"),
    "strategies": ("lightlib.strategies", "lightlib.strategies:Strategy"),
}
_ALSO = ("Environment", "SLURMEnvironment")  # plugins which are of no common kind

# Lightning 2.6's classes that a configuration may name: where ours are, and theirs by the file that defines them.
# They may be named by that file, and by each package from it up to the one in front.
_TRAINER: dict[str, tuple[str, dict[str, str]]] = {
    "": (
        "lightlib",
        {
            "callbacks.callback": "Callback",
            "core.datamodule": "LightningDataModule",
            "core.module": "LightningModule",
            "trainer.trainer": "Trainer",
        },
    ),
    "callbacks": (
        "lightlib.callbacks",
        {
            "batch_size_finder": "BatchSizeFinder",
            "callback": "Callback",
            "checkpoint": "Checkpoint",
            "device_stats_monitor": "DeviceStatsMonitor",
            "early_stopping": "EarlyStopping",
            "finetuning": "BackboneFinetuning BaseFinetuning",
            "gradient_accumulation_scheduler": "GradientAccumulationScheduler",
            "lambda_function": "LambdaCallback",
            "lr_finder": "LearningRateFinder",
            "lr_monitor": "LearningRateMonitor",
            "model_checkpoint": "ModelCheckpoint",
            "model_summary": "ModelSummary",
            "on_exception_checkpoint": "OnExceptionCheckpoint",
            "prediction_writer": "BasePredictionWriter",
            "progress.progress_bar": "ProgressBar",
            "progress.rich_progress": "RichProgressBar RichProgressBarTheme",
            "progress.tqdm_progress": "TQDMProgressBar",
            "pruning": "ModelPruning",
            "rich_model_summary": "RichModelSummary",
            "spike": "SpikeDetection",
            "stochastic_weight_avg": "StochasticWeightAveraging",
            "throughput_monitor": "ThroughputMonitor",
            "timer": "Timer",
            "weight_averaging": "EMAWeightAveraging WeightAveraging",
        },
    ),
    "cli": (
        "lightlib.cli",
        {"": "LightningArgumentParser LightningCLI ReduceLROnPlateau SaveConfigCallback"},
    ),
    "demos": (
        "lightlib.testing",
        {
            "boring_classes": "BoringDataModule BoringDataModuleNoLen BoringModel DemoModel IterableBoringDataModule "
            "ManualOptimBoringModel",
            "lstm": "LightningLSTM",
            "transformer": "LightningTransformer",
        },
    ),
    "loggers": (
        "lightlib.loggers",
        {
            "comet": "CometLogger",
            "csv_logs": "CSVLogger",
            "litlogger": "LitLogger",
            "logger": "DummyLogger Logger",
            "mlflow": "MLFlowLogger",
            "neptune": "NeptuneLogger",
            "tensorboard": "TensorBoardLogger",
            "wandb": "WandbLogger",
        },
    ),
    "profilers": (
        "lightlib.profilers",
        {
            "advanced": "AdvancedProfiler",
            "base": "PassThroughProfiler",
            "profiler": "Profiler",
            "pytorch": "PyTorchProfiler",
            "simple": "SimpleProfiler",
            "xla": "XLAProfiler",
        },
    ),
    "strategies": (
        "lightlib.strategies",
        {
            "ddp": "DDPStrategy",
            "deepspeed": "DeepSpeedStrategy",
            "fsdp": "FSDPStrategy",
            "model_parallel": "ModelParallelStrategy",
            "parallel": "ParallelStrategy",
            "single_device": "SingleDeviceStrategy",
            "single_xla": "SingleDeviceXLAStrategy",
            "strategy": "Strategy",
            "xla": "XLAStrategy",
        },
    ),
    "tuner": ("lightlib", {"tuning": "Tuner"}),
    "utilities": ("lightlib", {"combined_loader": "CombinedLoader"}),
}
# What the Trainer's half of Lightning and its other half, Fabric, both have.
_BOTH: dict[str, tuple[str, dict[str, str]]] = {
    "accelerators": (
        "lightlib.accelerators",
        {
            "accelerator": "Accelerator",
            "cpu": "CPUAccelerator",
            "cuda": "CUDAAccelerator",
            "mps": "MPSAccelerator",
            "xla": "XLAAccelerator",
        },
    ),
    "plugins": (
        "lightlib.precision",
        {
            "io.async_plugin": "AsyncCheckpointIO",
            "io.checkpoint_io": "CheckpointIO",
            "io.torch_io": "TorchCheckpointIO",
            "io.xla": "XLACheckpointIO",
            "layer_sync": "LayerSync TorchSyncBatchNorm",
            "precision.amp": "MixedPrecision",
            "precision.bitsandbytes": "BitsandbytesPrecision",
            "precision.deepspeed": "DeepSpeedPrecision",
            "precision.double": "DoublePrecision",
            "precision.fsdp": "FSDPPrecision",
            "precision.half": "HalfPrecision",
            "precision.precision": "Precision",
            "precision.transformer_engine": "TransformerEnginePrecision",
            "precision.xla": "XLAPrecision",
        },
    ),
    "plugins.environments": (
        "lightlib.launch",
        {
            "cluster_environment": "ClusterEnvironment",
            "kubeflow": "KubeflowEnvironment",
            "lightning": "LightningEnvironment",
            "lsf": "LSFEnvironment",
            "mpi": "MPIEnvironment",
            "slurm": "SLURMEnvironment",
            "torchelastic": "TorchElasticEnvironment",
            "xla": "XLAEnvironment",
        },
    ),
}
_FABRIC: dict[str, tuple[str, dict[str, str]]] = {
    "": ("lightlib", {"fabric": "Fabric"}),
    "plugins": ("lightlib.launch", {"environments.cluster_environment": "ClusterEnvironment"}),
}
_ROOTS: dict[str, tuple[Mapping[str, tuple[str, dict[str, str]]], ...]] = {
    "lightning": ({"": _TRAINER[""]}, {"": _FABRIC[""]}),
    "lightning.fabric": (_BOTH, _FABRIC),
    "lightning.pytorch": (_BOTH, _TRAINER),
    "lightning_fabric": (_BOTH, _FABRIC),
    "pytorch_lightning": (_BOTH, _TRAINER),
}

# What is a class in Lightning and a name in lightlib: ``trainer.plugins: lsf``.
_NAMES = {
    "KubeflowEnvironment": "kubeflow",
    "LSFEnvironment": "lsf",
    "LightningEnvironment": "local",
    "MPIEnvironment": "mpi",
    "TorchElasticEnvironment": "torchrun",
}
# What to write in place of a class that lightlib has not.
_INSTEAD = {
    "AsyncCheckpointIO": "a callback ModelCheckpoint with async_save: true.",
    "BoringModel": "lightlib.testing.BoringModule, which is another small model and brings its own data.",
    "ClusterEnvironment": "lightlib.launch.Environment.",
    "DeepSpeedPrecision": "trainer.precision, which every strategy follows.",
    "FSDPPrecision": "trainer.precision, which every strategy follows.",
    "TorchCheckpointIO": "leave it out: this is how lightlib writes checkpoints.",
    "TorchSyncBatchNorm": "trainer.sync_batchnorm: true.",
}
_SHAPE = ("class_path", "init_args", "dict_kwargs")


def class_path(group: str, name: str) -> str:
    """Return the import path of the class that a name stands for.

    The name is looked for in the registry (built-in names and entry points), then among the classes of our package
    for the group, then among the subclasses that the program has loaded; so a registered name always means the same.

    Args:
        group: A group of the registry, or ``"profilers"``.
        name: A registered name (``"csv"``), the name of a class (``"CSVLogger"``), or a class path, which is
            translated when it is one of Lightning's and returned as it is otherwise.

    Raises:
        UnknownNameError: Nothing has this name.
        MisconfigurationException: The package of the class is not installed or cannot be imported; several loaded
            classes have the name; it names a setting that is no class; or the errors of :func:`translate`.

    Example:
        >>> class_path("optimizers", "Adam"), class_path("loggers", "csv"), class_path("loggers", "CSVLogger")
        ('torch.optim.Adam', 'lightlib.loggers.csv.CSVLogger', 'lightlib.loggers.CSVLogger')
        >>> class_path("callbacks", "lightning.pytorch.callbacks.EarlyStopping")
        'lightlib.callbacks.EarlyStopping'
    """
    if "." in name:
        return translate(name)
    registered = registry.names(group) if group in registry.BUILT_IN else []
    package = _GROUPS[group][0]
    if name in registered:
        found = registry.get(group, name)
        if name in registry.BUILT_IN[group] and not isinstance(found, type):
            raise _no_class(group, name)
        return registry.path(group, name).replace(":", ".")
    classes = _classes(package)
    if name in classes:
        return f"{package}.{name}"
    loaded = [path for path in _loaded(group) if path.rpartition(".")[2] == name]
    if len(loaded) > 1:
        raise MisconfigurationException(
            f"{name!r} is the name of several classes: {', '.join(loaded)}.",
            expected="a name that only one class has.",
            fix=f"write the class path, for instance {loaded[0]}.",
        )
    if loaded:
        return loaded[0]
    known = {*registered, *classes, *(path.rpartition(".")[2] for path in _loaded(group))}
    fix = "use one of these names, or a class path such as package.module.Class."
    raise UnknownNameError("strategy" if group == "strategies" else group.removesuffix("s"), name, known, fix=fix)


def check_shape(group: str, value: Mapping[str, Any]) -> None:
    """Raise when the mapping in place of an object has its class as a key, or arguments beside its class.

    Args:
        group: As in :func:`class_path`.
        value: Right are ``class_path``, ``init_args`` and ``dict_kwargs``, or arguments of a class said before.

    Raises:
        MisconfigurationException: The message shows how it is written.

    Example:
        >>> check_shape("callbacks", {"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss"}})
        >>> check_shape("callbacks", {"EarlyStopping": {"monitor": "val_loss"}})
        Traceback (most recent call last):
            ...
        lightlib.errors.MisconfigurationException: 'EarlyStopping' is written as a key...
    """
    beside = [key for key in value if key not in _SHAPE]
    first, arguments = next(iter(value.items()), ("", None))
    if "class_path" in value and beside:
        what, name = f"{beside[0]!r} stands beside class_path: {value['class_path']}.", value["class_path"]
        inside = {**dict(value.get("init_args") or {}), **{key: value[key] for key in beside}}
    elif len(value) == 1 and isinstance(arguments, (dict, type(None))) and _is_class(group, first):
        what, name, inside = f"{first!r} is written as a key, which is the name of a class.", first, arguments or {}
    else:
        return
    lines = [f"class_path: {name}", *(["init_args:"] if inside else []), *(f"  {key}: {inside[key]}" for key in inside)]
    raise MisconfigurationException(
        what,
        expected="the class below class_path, and its arguments below init_args.",
        fix="write\n" + "\n".join(f"    {line}" for line in lines),
    )


def _is_class(group: str, name: object) -> bool:
    if not isinstance(name, str) or name in _SHAPE:
        return False
    try:
        return bool(class_path(group, name))
    except UnknownNameError:
        return False


def translate(path: str) -> str:
    """Return our class path for one of Lightning's; any other path as it is.

    Args:
        path: ``lightning.pytorch.…``, ``pytorch_lightning.…``, ``lightning.…`` or ``lightning.fabric.…``, down to the
            class; also by the file that defines the class.

    Raises:
        MisconfigurationException: lightlib has no such class, or Lightning has none.

    Example:
        >>> translate("lightning.pytorch.callbacks.early_stopping.EarlyStopping")
        'lightlib.callbacks.EarlyStopping'
        >>> translate("pytorch_lightning.Trainer"), translate("torch.optim.Adam")
        ('lightlib.Trainer', 'torch.optim.Adam')
    """
    if path in _lightning():
        package, name = _lightning()[path]
        if name in _public(package):
            return f"{package}.{name}"
        raise _lacking(path, package, name)
    package = _area(path)
    if package:
        of_area = sorted(known for known, (there, _) in _lightning().items() if there == package)
        raise MisconfigurationException(
            f"{path!r} is no class of Lightning 2.6.{nearest(path, of_area)}",
            expected=f"a class of Lightning, or one of ours from {package}.",
            fix=f"correct the name{_like(path.rpartition('.')[2], package)}.",
        )
    return path


def translated(value: Any) -> Any:
    """Return a configuration in which all class paths of Lightning are ours.

    Every ``class_path`` is translated, and every other string that is exactly the path of a class of Lightning. An
    environment that is a class in Lightning and a name here becomes that name. Arguments of Lightning's classes that
    ours have not are left out where they are null. All else stays as it is, and `value` itself is not changed.

    Args:
        value: What was read from a file or a command line: dicts, lists and plain values.

    Raises:
        MisconfigurationException: It names a class of Lightning that lightlib has not.

    Example:
        >>> translated({"logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"name": "a"}}})
        {'logger': {'class_path': 'lightlib.loggers.CSVLogger', 'init_args': {'name': 'a'}}}
        >>> translated(["lightning.pytorch.callbacks.Timer", "lightning.pytorch.plugins.environments.LSFEnvironment"])
        ['lightlib.callbacks.Timer', 'lsf']
        >>> translated("trained with lightning.pytorch")
        'trained with lightning.pytorch'
    """
    if isinstance(value, str):
        return _name(value) or (translate(value) if value in _lightning() else value)
    if isinstance(value, list):
        return [translated(one) for one in value]
    if not isinstance(value, dict):
        return value
    path = value.get("class_path")
    if not isinstance(path, str):
        return {key: translated(one) for key, one in value.items()}
    if _name(path) and not value.get("init_args") and not value.get("dict_kwargs"):
        return _name(path)
    found: dict[str, Any] = {key: translated(one) for key, one in value.items() if key != "class_path"}
    found = {"class_path": translate(path), **found}
    if path in _lightning() and isinstance(found.get("init_args"), dict):
        found["init_args"] = _without_empty(found["class_path"], found["init_args"])
    return found


def _without_empty(path: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is null and only Lightning's class takes: its printed configurations are full of such lines."""
    package, _, name = path.rpartition(".")
    known = inspect.signature(_imported(f"{package}:{name}")).parameters
    return {key: value for key, value in arguments.items() if value is not None or key in known}


@functools.cache
def _lightning() -> dict[str, tuple[str, str]]:
    """Every path by which a class of Lightning may be named: our package, and the name of the class."""
    found: dict[str, tuple[str, str]] = {}
    for root, parts in _ROOTS.items():
        for part in parts:
            for area, (package, files) in part.items():
                for file, names in files.items():
                    for place in _upwards(f"{root}.{area}".strip("."), file):
                        found.update({f"{place}.{name}": (package, name) for name in names.split()})
    return found


def _upwards(area: str, file: str) -> Iterator[str]:
    parts = file.split(".") if file else []
    for length in range(len(parts) + 1):
        yield ".".join([area, *parts[:length]])


def _area(path: str) -> str:
    """Return our package for what Lightning has at this place; empty for a path of anybody else, and for functions."""
    for root in sorted(_ROOTS, key=len, reverse=True):
        if path.startswith(f"{root}."):
            area = path.removeprefix(f"{root}.").rpartition(".")[0]
            if not area:
                return "lightlib"
            for part in _ROOTS[root]:
                for prefix in sorted(part, key=len, reverse=True):
                    if prefix not in ("", "demos", "utilities") and f"{area}.".startswith(f"{prefix}."):
                        return part[prefix][0]
            return ""
    return ""


def _name(path: str) -> str:
    """Return the name that stands for a class of Lightning, or an empty string."""
    return _NAMES.get(_lightning().get(path, ("", ""))[1], "")


def _lacking(path: str, package: str, name: str) -> MisconfigurationException:
    if name in _NAMES:
        fix = f"trainer.plugins: {_NAMES[name]}"
    else:
        instead = _INSTEAD.get(name)
        fix = f"write instead: {instead}" if instead else f"leave it out{_like(name, package)}."
    classes = ", ".join(_classes(package)) or "none"
    return MisconfigurationException(
        f"{path!r} is a class of Lightning that lightlib has not.", expected=f"one of {package}: {classes}.", fix=fix
    )


def _like(name: str, package: str) -> str:
    near = closest(name, _classes(package))
    return f"; the nearest of ours is {package}.{near}" if near else ""


def _no_class(group: str, name: str) -> MisconfigurationException:
    argument = {"environments": "plugins", "strategies": "strategy"}.get(group, group)
    return MisconfigurationException(
        f"{name!r} is a name and not a class: it takes no arguments.",
        expected=f"one of the classes of {_GROUPS[group][0]}: {', '.join(_classes(_GROUPS[group][0]))}.",
        fix=f"trainer.{argument}: {name}",
    )


def _public(package: str) -> list[str]:
    names: list[str] = importlib.import_module(package).__all__
    return names


def _classes(package: str) -> list[str]:
    """Return the names of the classes of a package that a configuration may build."""
    module = importlib.import_module(package)
    base = next((_imported(base) for there, base in _GROUPS.values() if there == package), object)
    kinds = {name: getattr(module, name) for name in sorted(_public(package))}
    return [
        name
        for name, kind in kinds.items()
        if name in _ALSO or (isinstance(kind, type) and issubclass(kind, base) and _can_be_built(kind, base))
    ]


def _loaded(group: str) -> list[str]:
    """Return the paths of the subclasses, other than ours, that the program has imported and could build."""
    base = _imported(_GROUPS[group][1])
    waiting: list[type] = type.__subclasses__(base)
    found: set[str] = set()
    while waiting:
        kind = waiting.pop()
        waiting += type.__subclasses__(kind)
        path = f"{kind.__module__}.{kind.__qualname__}"
        hidden = path.startswith("lightlib.") or "._" in path
        if (
            not hidden
            and _can_be_built(kind, base)
            and getattr(sys.modules.get(kind.__module__), kind.__qualname__, 0) is kind
        ):
            found.add(path)
    return sorted(found)


def _can_be_built(kind: type, base: type) -> bool:
    return kind is not base and not inspect.isabstract(kind)


def _imported(place: str) -> type:
    module, _, name = place.partition(":")
    kind: type = getattr(importlib.import_module(module), name)
    return kind
