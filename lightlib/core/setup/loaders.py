"""The user's loaders, from arguments, data module or module; data sets and arrays get a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightlib import report
from lightlib.conventions import leniency
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.overrides import overrides
from lightlib.data.arrays import (
    IndexedBatches,
    NumpyBatches,
    data_set_of,
    is_arrays,
    is_indexed,
    leaves_of,
)
from lightlib.data.combined import CombinedLoader, holds_loaders, length
from lightlib.data.streams.adapter import adapter_of
from lightlib.errors import ArgumentTypeError, LightlibError, MisconfigurationException, shown
from lightlib.translations import fix_for

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

DEFAULT_BATCH_SIZE = 32
_LOADERS = "a DataLoader, a Dataset, an iterable of batches, or a list or dict of them."
_LOADER_KINDS = (DataLoader, CombinedLoader)
_made: WeakSet[DataLoader[Any]] = WeakSet()  # from data sets
_NAMES = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}


def check_kinds(loaders: Mapping[str, Any], datamodule: Any) -> None:
    """Refuse arguments that are not loaders or data modules, before anything else happens."""
    if datamodule is not None and not isinstance(datamodule, DataModule):
        raise ArgumentTypeError(
            f"datamodule is {shown(datamodule)}.",
            expected="an instance of lightlib.DataModule.",
            fix=f"datamodule={datamodule.__name__}()"
            if isinstance(datamodule, type)
            else fix_for(type(datamodule)) or "subclass lightlib.DataModule, or pass loaders.",
        )
    names = dict.fromkeys(loaders) if len(loaders) > 1 else dict.fromkeys(loaders, "dataloaders")
    arguments = {names[name] or name: value for name, value in loaders.items() if value is not None}
    if datamodule is not None and arguments:
        raise MisconfigurationException(
            f"Both `datamodule` and `{next(iter(arguments))}` were given.",
            expected="one of the two.",
            fix="leave out one of them.",
        )
    for name, value in arguments.items():
        if name == "val_dataloaders" and holds_nothing(value):
            continue  # a fit without validation
        if name == "dataloaders" and holds_nothing(value):
            leniency().tolerate(_no_loaders(repr(value)), "nothing is run, and the result is empty")
            continue
        check_tree(value, name, f"{name}=DataLoader(dataset, batch_size=32)")
    _refuse_targets(arguments.get("train_dataloaders"), arguments.get("val_dataloaders"))


def _refuse_targets(train: Any, val: Any) -> None:
    """Refuse ``fit(module, x, y)``, which means: train on x, and validate on y."""
    if not (is_arrays(train) and is_arrays(val)):
        return
    (x, *_), (y, *_) = leaves_of(train), leaves_of(val)
    if len(x) == len(y) and x.ndim > y.ndim:
        raise MisconfigurationException(
            f"fit got an array of the shape {tuple(x.shape)} as the training data, and one of the shape "
            f"{tuple(y.shape)}, which looks like its targets, as the validation data.",
            expected="inputs and targets together.",
            fix="trainer.fit(module, (x, y)); with a validation part of it: "
            "trainer.fit(module, datamodule=DataModule.from_datasets((x, y), batch_size=32, validation_split=0.2))",
        )


def _no_loaders(description: str, where: str = "dataloaders") -> ArgumentTypeError:
    fix = f"{where}=DataLoader(dataset, batch_size=32)" if where == "dataloaders" else "return DataLoader(dataset)"
    return ArgumentTypeError(f"{where} is {description}, which holds no loader.", expected=_LOADERS, fix=fix)


def check_tree(value: Any, where: str, fix: str) -> None:
    """Refuse a value that is not a loader or a collection of loaders and cannot be made into one.

    Args:
        where: The argument or method that it comes from.
        fix: The code to write there.
    """
    if value is None or holds_nothing(value):
        description = "an empty CombinedLoader" if isinstance(value, CombinedLoader) else repr(value)
        raise ArgumentTypeError(f"{where} is {description}, which holds no loader.", expected=_LOADERS, fix=fix)
    if isinstance(value, (Dataset, *_LOADER_KINDS)) or is_arrays(value):
        return
    if not isinstance(value, type) and (is_indexed(value) or hasattr(value, "as_numpy_iterator")):
        return
    if isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and holds_loaders(value)):
        for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            check_tree(child, f"{where}[{key!r}]", fix)
    elif isinstance(value, (list, tuple)):
        kinds = (type, Dataset, *_LOADER_KINDS)
        if any(isinstance(child, kinds) for child in value):
            odd = next(child for child in value if isinstance(child, type) or not isinstance(child, kinds))
            raise ArgumentTypeError(
                f"{where} holds loaders, but also {shown(odd)}.",
                expected="a list of loaders, or a list of batches.",
                fix=_instead(odd, where) or fix,
            )
    elif isinstance(value, (type, str, bytes, nn.Module)) or not isinstance(value, Iterable):
        raise ArgumentTypeError(f"{where} is {shown(value)}.", expected=_LOADERS, fix=_instead(value, where) or fix)


def holds_nothing(value: Any) -> bool:
    """Whether the value is an empty collection of loaders."""
    if isinstance(value, CombinedLoader):
        return not value.flattened
    return isinstance(value, (Mapping, list, tuple)) and not value


def _instead(value: Any, where: str) -> str:
    """Return the code to write instead of a value that is not a loader, or an empty string if it is unknown."""
    cls = value if isinstance(value, type) else type(value)
    if isinstance(value, type):
        if issubclass(cls, DataModule):
            return f"datamodule={cls.__name__}()"
        return f"return {cls.__name__}(…)" if where.endswith(")") else f"{where}={cls.__name__}(…)"
    if isinstance(value, nn.Module):
        return f"the module comes first: trainer.fit(module, {where}=loader)"
    if callable(value) and hasattr(value, "__name__"):
        return f"call it: {where}={value.__name__}()"
    return fix_for(cls)


def find(
    stage: str,
    given: Any,
    module: Module,
    datamodule: Any,
    evaluated: bool = False,
    resolved: Callable[[], int | None] = lambda: None,
) -> Any:
    """Return a function that returns the loaders of `stage` ("train", "val", "test", "predict"), or None.

    Args:
        evaluated: Whether the call runs this stage alone, which may have no loaders under lenient conventions.
        resolved: Returns the batch size that the Trainer's arguments leave for the training data, if they do.
    """
    name = f"{stage}_dataloader"
    batch_size = _batch_size_attribute(module, datamodule)

    def size() -> int | None:
        return batch_size or (resolved() if stage == "train" else None)

    if given is not None:
        return None if holds_nothing(given) and not evaluated else lambda: serve(given, stage, size())
    for owner, base in ((datamodule, DataModule), (module, DataHooks)):
        if owner is not None and overrides(owner, base, name):
            return lambda owner=owner: serve(_returned(owner, name), stage, size())
    return None


def _returned(owner: Any, name: str) -> Any:
    method, where = getattr(owner, name), f"{type(owner).__name__}.{name}"
    if not callable(method):
        raise ArgumentTypeError(
            f"{where} is {shown(method)}.",
            expected="a method that returns loaders.",
            fix=f"def {name}(self): return DataLoader(dataset, batch_size=32)",
        )
    loaders = method()
    if name == "val_dataloader" and holds_nothing(loaders):
        return loaders
    if name != "train_dataloader" and holds_nothing(loaders):
        leniency().tolerate(_no_loaders(repr(loaders), f"{where}()"), "nothing is run, and the result is empty")
        return loaders
    check_tree(loaders, f"{where}()", "return DataLoader(dataset, batch_size=32)")
    return loaders


def serve(given: Any, stage: str, batch_size: int | None) -> Any:
    """Return loaders: data sets and arrays get a DataLoader, everything else stays unchanged.

    Args:
        given: A loader, a Dataset, an array, a tuple of arrays, or a collection of loaders and Datasets.
        batch_size: The batch size of the module or data module. Default: 32.
    """
    if given is None:
        return None
    if is_arrays(given):
        given = data_set_of(given, _NAMES[stage])
    if is_indexed(given) and not isinstance(given, (Dataset, *_LOADER_KINDS)):
        return DataLoader(IndexedBatches(given), batch_size=None)
    if hasattr(given, "as_numpy_iterator"):
        return NumpyBatches(given)
    if isinstance(given, IterableDataset) and (adapter := adapter_of(given)) and adapter.gives_batches(given):
        return given
    if isinstance(given, Dataset):
        if length(given) == 0:
            raise _empty(stage, f"a {type(given).__name__} of length 0")
        size = batch_size or DEFAULT_BATCH_SIZE
        shuffle = stage == "train" and not isinstance(given, IterableDataset)
        how = ", shuffled" if shuffle else ""
        report.info(f"{_NAMES[stage].capitalize()} data: a {type(given).__name__} is served in batches of {size}{how}.")
        loader = DataLoader(given, batch_size=size, shuffle=shuffle)
        _made.add(loader)
        return loader
    if isinstance(given, CombinedLoader):
        return given.with_loaders([serve(loader, stage, batch_size) for loader in given.flattened])
    if isinstance(given, Mapping):
        return {key: serve(value, stage, batch_size) for key, value in given.items()}
    if isinstance(given, (list, tuple)) and holds_loaders(given):
        served = [serve(value, stage, batch_size) for value in given]
        return type(given)(*served) if hasattr(given, "_fields") else type(given)(served)
    return given


def _empty(stage: str, reason: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"The {_NAMES[stage]} data are empty: {reason}.",
        expected="at least one batch.",
        fix="check the data set, its split, and drop_last with a batch size larger than the data set.",
    )


def _batch_size_attribute(module: Module, datamodule: Any) -> int | None:
    for owner in (datamodule, module):
        for source in (owner, getattr(owner, "hparams", None)):
            size = source.get("batch_size") if isinstance(source, dict) else getattr(source, "batch_size", None)
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                return size
    return None


def check_loaders(loaders: Iterable[Any], stage: str, may_shuffle: bool = False) -> None:
    """Refuse empty loaders, and warn about settings that are often mistakes."""
    for loader in loaders:
        sampler = getattr(loader, "sampler", None)
        if stage != "train" and not may_shuffle and type(sampler).__name__ == "RandomSampler":
            report.warn(
                f"The {_NAMES[stage]} loader shuffles: its batches differ between runs.\n"
                "  Expected: the same order each time.\n  Fix: DataLoader(…, shuffle=False)",
                report.PossibleUserWarning,
            )
        if length(loader) == 0:
            leniency().tolerate(_empty(stage, f"a {type(loader).__name__} of length 0"), "it is skipped")


def explain_batch(error: BaseException, loaders: Iterable[Any], batch: Any) -> None:
    """Add a description of the first batch to the error of a step if lightlib made the loader.

    Args:
        error: The error. lightlib's own errors and exits of the program stay unchanged.
        batch: The argument of the step; None if the step was not called.
    """
    if batch is None or isinstance(error, LightlibError) or not isinstance(error, Exception):
        return
    for loader in loaders:
        if isinstance(loader, DataLoader) and loader in _made:
            report.add_note(
                error,
                f"The data are a {type(loader.dataset).__name__}, which lightlib serves in batches of "
                f"{loader.batch_size}: a batch is {_described(batch)}.\n"
                "  Expected: a step that takes such a batch.\n"
                f"  Fix: {_unpacked(batch)}, or pass a DataLoader with a `collate_fn` of your own.",
            )
            return


def _unpacked(batch: Any) -> str:
    """Return the code that reads a batch."""
    if isinstance(batch, Mapping) and batch:
        return f"read it by its keys, batch[{next(iter(batch))!r}]"
    if isinstance(batch, (list, tuple)) and batch:
        names = ["x", "y"] if len(batch) == 2 else [f"x{n}" for n in range(len(batch))] if len(batch) > 2 else ["x"]
        return f"unpack it, `{', '.join(names)}{',' * (len(names) == 1)} = batch`"
    return "compute with it as it is"


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "a dict of " + ", ".join(f"{key!r}: {_described(value)}" for key, value in list(batch.items())[:6])
    if isinstance(batch, (list, tuple)):
        return f"a {type(batch).__name__} of {len(batch)}: {', '.join(map(_described, batch[:6]))}"
    return f"a {type(batch).__name__}"
