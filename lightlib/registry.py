"""Names to classes: the index and further tables first, then the entry points of installed packages.

Nothing is imported before its name is used, not even torch. Optimizers of optional packages are in the table as well,
under another name if torch or lightlib has the same one: bitsandbytes' Adam is ``bnb_Adam``, and lion-pytorch's Lion is
``LionPytorch``, as ``Lion`` is `lightlib.optim.Lion`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib import metadata
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pkgutil import resolve_name
from typing import Any

from lightlib import optional
from lightlib.errors import MisconfigurationException, UnknownNameError, closest, owner
from lightlib.index import INDEX

__all__ = [
    "BUILT_IN",
    "entry_points",
    "get",
    "modules",
    "names",
    "path",
    "register",
    "substitute_by",
    "substituted",
    "unregister",
]

_registered: dict[tuple[str, str], Callable[..., Any]] = {}  # by group and name, added while the program runs
_substitutes: list[Callable[[str, str], Callable[..., Any] | None]] = []


def _from(module: str, names: str, prefix: str = "") -> dict[str, str]:
    return {f"{prefix}{name}": f"{module}:{name}" for name in names.split()}


_OPTIMIZERS = {
    **_from(
        "torch.optim", "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD"
    ),
    **_from("torch.optim", "SparseAdam"),
    **_from("dadaptation", "DAdaptAdaGrad DAdaptAdam DAdaptSGD"),
    "LionPytorch": "lion_pytorch:Lion",
    **_from("schedulefree", "AdamWScheduleFree RAdamScheduleFree SGDScheduleFree"),
    **_from("sophia|Sophia", "DecoupledSophia Sophia Sophia2 SophiaG"),
    **_from("bitsandbytes.optim", "Adagrad8bit Adam8bit AdamW8bit LAMB8bit LARS8bit Lion8bit PagedAdam8bit"),
    **_from("bitsandbytes.optim", "PagedAdamW8bit PagedLion8bit RMSprop8bit SGD8bit"),
    **_from("bitsandbytes.optim", "Adagrad Adam AdamW LAMB LARS Lion RMSprop SGD", prefix="bnb_"),
    **_from("torch_npu.optim", "NpuFusedAdadelta NpuFusedAdam NpuFusedAdamP NpuFusedAdamW NpuFusedBertAdam"),
    **_from("torch_npu.optim", "NpuFusedLamb NpuFusedRMSprop NpuFusedRMSpropTF NpuFusedSGD"),
}
_SCHEDULERS = {
    **_from("torch.optim.lr_scheduler", "ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts"),
    **_from("torch.optim.lr_scheduler", "CyclicLR ExponentialLR LambdaLR LinearLR MultiStepLR MultiplicativeLR"),
    **_from("torch.optim.lr_scheduler", "OneCycleLR PolynomialLR SequentialLR StepLR"),
    "ReduceLROnPlateau": "lightlib.cli:ReduceLROnPlateau",  # torch's, and the metric that it looks at
}


def _of(group: str) -> dict[str, str]:
    """Return the names of a group that are in the index, with the packages that export them."""
    rows_of_group = ((package, row) for package, rows in INDEX.items() for row in rows if row.group == group)
    return {row.key or row.name: f"{package}:{row.name}" for package, row in rows_of_group}


BUILT_IN: dict[str, dict[str, str]] = {
    "accelerators": _of("accelerators"),
    "strategies": {
        "single_device": "lightlib.strategies.single:SingleDeviceStrategy",
        **{
            f"ddp{how}{unused}": "lightlib.strategies.mesh_presets:named"
            for how in ("", "_spawn", "_fork", "_notebook")
            for unused in ("", "_find_unused_parameters_false", "_find_unused_parameters_true")
        },
        **dict.fromkeys(
            ("fsdp", "fsdp_cpu_offload", "hsdp", "model_parallel", "pipeline", "tensor", "zero1", "zero2", "zero3"),
            "lightlib.strategies.mesh_presets:named",
        ),
        **dict.fromkeys(
            (
                "deepspeed",
                *(f"deepspeed_stage_{stage}" for stage in ("1", "2", "2_offload", "3", "3_offload", "3_offload_nvme")),
            ),
            "lightlib.strategies.deepspeed.deepspeed_strategy:named",
        ),
    },
    "precision": {
        **dict.fromkeys(
            ("64-true", "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"),
            "lightlib.precision.precision:named",
        ),
        **dict.fromkeys(
            ("transformer-engine", "transformer-engine-float16"), "lightlib.precision.transformer_engine:named"
        ),
        **dict.fromkeys(("fp8-mixed", "fp8-true"), "lightlib.precision.float8:named"),
    },
    "loggers": _of("loggers"),
    "callbacks": _of("callbacks"),
    "optimizers": {**_OPTIMIZERS, **_of("optimizers")},
    "schedulers": {**_SCHEDULERS, **_of("schedulers")},
    # How LightningCLI marks hyperparameters from which objects are built: by its name in a checkpoint.
    "instantiators": dict.fromkeys(
        ("lightlib.cli.instantiate_module", "lightning.pytorch.cli.instantiate_module"),
        "lightlib.config.hyperparameters:instantiate_module",
    ),
    "streams": {  # by the package that defines the data sets
        "datasets": "lightlib.data.streams.hugging_face:HuggingFaceStreams",
        "litdata": "lightlib.data.streams.litdata:LitDataStreams",
        "streaming": "lightlib.data.streams.mosaicml:MosaicMLStreams",
        "webdataset": "lightlib.data.streams.webdataset:WebDatasetStreams",
    },
    "environments": {
        "kubeflow": "lightlib.launch.environment.clusters:kubeflow",
        "local": "lightlib.launch.environment.detect:local",
        "lsf": "lightlib.launch.environment.clusters:lsf",
        "mpi": "lightlib.launch.environment.clusters:mpi",
        "ray": "lightlib.launch.environment.clusters:ray",
        "slurm": "lightlib.launch.environment.clusters:slurm",
        "torchrun": "lightlib.launch.environment.clusters:torchrun",
        "variables": "lightlib.launch.environment.clusters:by_hand",
    },
}


# The modules that other packages add, by group and name; this distribution's own need no metadata of an installation.
_MODULES = {
    "commands": {"compat": "lightlib_lightning.command.command"},
    "translations": {"lightning": "lightlib_lightning.translation"},
}
# The argument of the Trainer that takes the names of a group.
_ARGUMENTS = {
    "accelerators": "accelerator",
    "environments": "plugins",
    "loggers": "logger",
    "precision": "precision",
    "strategies": "strategy",
}


def get(group: str, name: str) -> Callable[..., Any]:
    """Return the class or function that `name` stands for in `group`.

    Args:
        group: One of the keys of :data:`BUILT_IN`; also the suffix of the entry-point group ``lightlib.<group>``.
        name: A built-in name or the name of an entry point.

    Raises:
        UnknownNameError: Nothing has this name; the message lists the known ones and the nearest.
        MisconfigurationException: The package that the name belongs to is not installed, cannot be imported, or has it
            no more; an installed package declares a name that is built in, or two packages declare it.

    Example:
        >>> get("accelerators", "cpu").__name__, get("optimizers", "LARS").__module__
        ('CPUAccelerator', 'lightlib.optim.lars')
    """
    other = substituted(group, name)
    if other is not None:
        return other
    place = path(group, name)
    if name in BUILT_IN[group]:
        entry = _import(name, place)
        return partial(entry, name) if group == "strategies" and not isinstance(entry, type) else entry
    try:
        return _import(name, place)
    except (ImportError, AttributeError) as error:
        raise MisconfigurationException(
            f"The entry point {name!r} = {place!r} of group 'lightlib.{group}' cannot be loaded: "
            f"{type(error).__name__}: {error}",
            expected="a module and a name in it.",
            fix="correct the package that declares it, or uninstall it.",
        ) from error


def path(group: str, name: str) -> str:
    """Return the location of `name` in `group`, as ``"module:attribute"``.

    The arguments and errors are those of :func:`get`. Of a package that need not be installed the module is imported.

    Example:
        >>> path("optimizers", "Adam")
        'torch.optim:Adam'
    """
    built_in, plugins = BUILT_IN[group], _points(group, BUILT_IN[group])
    if name in built_in:
        modules, _, attribute = built_in[name].partition(":")
        if modules.partition("|")[0].partition(".")[0] in optional.REQUIREMENTS:
            modules = _installed(name, modules.split("|"))
        return f"{modules}:{attribute}"
    if name in plugins:
        return plugins[name].value.partition("[")[0].strip()
    kind = "strategy" if group == "strategies" else group.removesuffix("s")
    argument, near = _ARGUMENTS.get(group), closest(name, names(group))
    fix = f"{owner()}({argument}={near!r})" if near and argument else ""
    raise UnknownNameError(kind, name, names(group), fix=fix)


def names(group: str) -> list[str]:
    """Return all names known in `group`, sorted."""
    return sorted(
        {*BUILT_IN[group], *_points(group, BUILT_IN[group]), *(name for kind, name in _registered if kind == group)}
    )


def modules(group: str, taken: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the modules of ``"commands"`` or ``"translations"`` by name: those of installed packages come last.

    Args:
        group: The group.
        taken: Modules by further names that are built in. Default: none.

    Raises:
        MisconfigurationException: An installed package declares a name that is taken.
    """
    added = _points(group, {**taken, **_MODULES[group]})
    return {**_MODULES[group], **{name: point.value for name, point in added.items()}}


def register(group: str, name: str, factory: Callable[..., Any]) -> None:
    """Add a name while the program runs, or give it another meaning; spawned processes do not know it.

    Args:
        group: One of the keys of :data:`BUILT_IN`.
        name: The name, which takes precedence over a built-in one.
        factory: The class or function; called without arguments for accelerators, strategies and precisions.

    Example:
        >>> from lightlib.accelerators import CPUAccelerator
        >>> register("accelerators", "mine", CPUAccelerator)
        >>> get("accelerators", "mine").__name__, unregister("accelerators", "mine")
        ('CPUAccelerator', True)
    """
    _registered[group, name] = factory


def unregister(group: str, name: str) -> bool:
    """Remove a name that `register` has added, and return whether there was one."""
    return _registered.pop((group, name), None) is not None


def substitute_by(find: Callable[[str, str], Callable[..., Any] | None]) -> None:
    """Ask `find` first, which returns the meaning of a name in a group, or None; a second call changes nothing."""
    if find not in _substitutes:
        _substitutes.append(find)


def substituted(group: str, name: str) -> Callable[..., Any] | None:
    """Return the substitute of a built-in name; None if there is none."""
    if (group, name) in _registered:
        return _registered[group, name]
    return next((substitute for find in _substitutes if (substitute := find(group, name)) is not None), None)


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points that installed packages declare in a group such as ``"lightlib.loggers"``.

    They are read once, and again when a folder of ``sys.path`` has changed, as it does when a package is installed:
    reading takes milliseconds, and every Trainer asks several times.
    """
    times = []
    for folder in sys.path:
        try:
            times.append(os.stat(folder or os.curdir).st_mtime_ns)
        except OSError:  # nothing is there, now
            times.append(0)
    return _entry_points((*sys.path, *times)).get(group, ())


@lru_cache(maxsize=4)
def _entry_points(folders: tuple[str | int, ...]) -> dict[str, tuple[EntryPoint, ...]]:  # noqa: ARG001  the key
    """Return the entry points of lightlib's groups: asking for each alone would read all packages again each time."""
    every = metadata.entry_points()
    groups = [group for group in every.groups if group.startswith("lightlib.")]
    return {group: tuple(every.select(group=group)) for group in groups}


def _points(group: str, built_in: Mapping[str, str]) -> dict[str, EntryPoint]:
    points: dict[str, EntryPoint] = {}
    for point in entry_points(f"lightlib.{group}"):
        other = points.get(point.name)
        if point.name in built_in or (other is not None and other.value != point.value):
            taken = built_in.get(point.name) or (other.value if other else "")
            raise MisconfigurationException(
                f"The entry point {point.name!r} = {point.value!r} of group 'lightlib.{group}' has a name that is "
                f"taken by {taken!r}.",
                expected="a name of its own for every plugin.",
                fix="rename the entry point in the package that declares it, or uninstall that package.",
            )
        points[point.name] = point
    return points


def _installed(name: str, modules: list[str]) -> str:
    """Return the first of some modules of packages that need not be installed that can be imported."""
    package = modules[0].partition(".")[0]
    for module in modules:
        top = module.partition(".")[0]
        try:
            importlib.import_module(top)
            importlib.import_module(module)
        except Exception as error:  # what a package does when it is imported is up to it: it may look for a device
            if not isinstance(error, ModuleNotFoundError) or error.name != top:
                raise _broken(name, optional.name_of(package), module, error) from error
        else:
            return module
    raise optional.missing(package, repr(name))


def _broken(name: str, package: str, module: str, error: Exception) -> MisconfigurationException:
    number = _version(package)
    other = f"'{package}!={number.strip()}'" if number else f"--upgrade {package}"
    return MisconfigurationException(
        f"{name!r} is a class of {package}{number}, which is installed but cannot be imported: "
        f"{type(error).__name__}: {error}",
        expected=f"`import {module}` to work.",
        fix=f"fix that, or install another version: pip install {other}",
    )


def _import(name: str, place: str) -> Callable[..., Any]:
    """Return the object at ``"module:attribute"``; other versions of the package may lack it."""
    module, _, attribute = place.partition(":")
    top = module.partition(".")[0]
    try:
        loaded: Callable[..., Any] = resolve_name(place)
    except AttributeError as error:
        if top not in (*optional.REQUIREMENTS, "torch"):
            raise
        package = optional.name_of(top)
        raise MisconfigurationException(
            f"{name!r} is not in the {package}{_version(package)} that is installed: {module} has no {attribute}.",
            expected=f"a version of {package} that has it.",
            fix=f"pip install --upgrade {package}, or choose another name.",
        ) from error
    return loaded


def _version(package: str) -> str:
    try:
        return f" {version(package)}"
    except PackageNotFoundError:
        return ""
