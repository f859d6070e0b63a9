"""Functions of Lightning's `utilities` on gradients, batches, loaders, attributes and errors."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

from lightlib import report, tree
from lightlib.callbacks import Callback
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.errors import MisconfigurationException
from lightlib.strategies import Strategy

__all__ = [
    "clean_namespace",
    "extract_batch_size",
    "find_shared_parameters",
    "from_compiled",
    "garbage_collection_cuda",
    "get_all_subclasses",
    "get_filesystem",
    "get_init_args",
    "grad_norm",
    "has_iterable_dataset",
    "has_len",
    "is_cuda_out_of_memory",
    "is_oom_error",
    "is_out_of_cpu_memory",
    "is_overridden",
    "is_param_in_hook_signature",
    "is_picklable",
    "lightning_getattr",
    "lightning_hasattr",
    "lightning_setattr",
    "move_data_to_device",
    "recursive_detach",
    "set_shared_parameters",
    "sized_len",
    "suggested_max_num_workers",
    "to_uncompiled",
]


def grad_norm(module: nn.Module, norm_type: float | str, group_separator: str = "/") -> dict[str, torch.Tensor]:
    """Return the norm of each parameter's gradient and of all of them together.

    Args:
        module: Parameters without a gradient are left out.
        norm_type: The p of the p-norm, ``"inf"`` for the largest absolute value.
        group_separator: Between the prefix and a parameter's name.

    Returns:
        ``grad_{p}_norm/{name}`` for each parameter and ``grad_{p}_norm_total``; empty if there is no gradient.

    Raises:
        ValueError: `norm_type` is not positive.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> layer.weight.grad = torch.tensor([[-3.0]])
        >>> grad_norm(layer, 2)
        {'grad_2.0_norm/weight': tensor(3.), 'grad_2.0_norm_total': tensor(3.)}
    """
    power = float(norm_type)
    if power <= 0:
        raise MisconfigurationException(
            f"grad_norm(norm_type={norm_type!r}): norms need a positive p.",
            expected="a positive number or 'inf'.",
            fix="norm_type=2",
        )
    prefix = f"grad_{power}_norm"
    gradients = {name: p.grad.data for name, p in module.named_parameters() if p.grad is not None}
    norms = {f"{prefix}{group_separator}{name}": gradient.norm(power) for name, gradient in gradients.items()}
    if norms:
        norms[f"{prefix}_total"] = torch.stack(list(norms.values())).norm(power)
    return norms


def recursive_detach(in_dict: Any, to_cpu: bool = False) -> Any:
    """Detach every tensor of nested collections; `to_cpu` also moves them there."""
    return tree.map_tensors(lambda tensor: tensor.detach().cpu() if to_cpu else tensor.detach(), in_dict)


def move_data_to_device(batch: Any, device: torch.device | str | int) -> Any:
    """Move every tensor of nested collections, and every object with a method ``to``, to a device."""
    return tree.to_device(batch, torch.device(device))


def is_oom_error(exception: BaseException) -> bool:
    """Whether a device or the CPU had too little memory."""
    return is_cuda_out_of_memory(exception) or is_out_of_cpu_memory(exception)


def is_cuda_out_of_memory(exception: BaseException) -> bool:
    """Whether an accelerator had too little memory."""
    return isinstance(exception, torch.OutOfMemoryError) or (
        isinstance(exception, RuntimeError) and "out of memory" in str(exception) and "CUDA" in str(exception)
    )


def is_out_of_cpu_memory(exception: BaseException) -> bool:
    """Whether torch's allocator of the CPU had too little memory."""
    return isinstance(exception, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(exception)


def garbage_collection_cuda() -> None:
    """Free unused objects, and give the accelerator's cached memory back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def has_iterable_dataset(dataloader: object) -> bool:
    """Whether the loader reads an ``IterableDataset``."""
    return isinstance(getattr(dataloader, "dataset", None), IterableDataset)


def sized_len(dataloader: object) -> int | None:
    """Return the length; None if there is none, or asking for it raises."""
    try:
        return len(dataloader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def has_len(dataloader: object) -> bool:
    """Whether the loader has a length; an empty one is warned about."""
    length = sized_len(dataloader)
    if length == 0:
        report.warn(f"`{type(dataloader).__name__}` returned 0 length. Make sure this was your intention.")
    return length is not None


def get_all_subclasses(cls: type) -> set[type]:
    """Return the loaded subclasses of a class, at any depth."""
    direct: set[type] = set(cls.__subclasses__())
    return direct.union(*(get_all_subclasses(subclass) for subclass in direct))


def suggested_max_num_workers(local_world_size: int) -> int:
    """Return how many workers a loader of each process may have so that all processes share the cores.

    Raises:
        ValueError: `local_world_size` is less than 1.
    """
    if local_world_size < 1:
        raise MisconfigurationException(
            f"suggested_max_num_workers({local_world_size!r}): there are no processes to share the cores.",
            expected="the number of processes on this machine, 1 or more.",
            fix="suggested_max_num_workers(trainer.num_devices)",
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // local_world_size - 1)


def extract_batch_size(batch: Any) -> int:
    """Return the length of the first tensor's first dimension; 1 for a tensor without dimensions.

    Raises:
        ValueError: The batch holds no tensor.

    Example:
        >>> extract_batch_size({"x": [torch.zeros(4, 2), torch.zeros(4)]})
        4
    """
    first = next(tree.tensors_in(batch), None)
    if first is None:
        raise MisconfigurationException(
            f"the batch of type {type(batch).__name__} holds no tensor to read the batch size from.",
            expected="a tensor, or nested collections with one.",
            fix="self.log(..., batch_size=...)",
        )
    return len(first) if first.ndim else 1


def is_overridden(method_name: str, instance: object | None = None, parent: type | None = None) -> bool:
    """Whether an object's class defines a method other than its base class does.

    Args:
        method_name: The name of the method.
        instance: A module, data module, callback or strategy. None has no methods.
        parent: The class to compare with. Default: lightlib's base class of `instance`.

    Raises:
        ValueError: `parent` is not given and `instance` is of none of these kinds, or `parent` has no such method.
    """
    if instance is None:
        return False
    base = parent or _base_of(instance)
    original, override = getattr(base, method_name, None), getattr(instance, method_name, None)
    if original is None:
        raise ValueError(f"{base.__name__} has no method {method_name!r}. Fix: check the name.")
    wrapped = getattr(override, "__wrapped__", override)
    return override is not None and getattr(wrapped, "__code__", wrapped) is not getattr(original, "__code__", original)


def _base_of(instance: object) -> type:
    for base in (Module, DataModule, Callback, Strategy):
        if isinstance(instance, base):
            return base
    raise MisconfigurationException(
        f"is_overridden: {type(instance).__name__} has no base class to compare with.",
        expected="a module, data module, callback or strategy; or parent=.",
        fix="is_overridden(name, instance, parent=BaseClass)",
    )


def is_picklable(obj: object) -> bool:
    """Whether an object can be pickled."""
    try:
        pickle.dumps(obj)
    except Exception:  # noqa: BLE001 (an object's own methods may raise anything)
        return False
    return True


def clean_namespace(hparams: MutableMapping[str, Any]) -> None:
    """Remove the values that cannot be pickled."""
    for name in [name for name, value in hparams.items() if not is_picklable(value)]:
        report.warn(f"attribute '{name}' removed from hparams because it cannot be pickled")
        del hparams[name]


def is_param_in_hook_signature(
    hook_fx: Callable[..., Any], param: str, explicit: bool = False, min_args: int | None = None
) -> bool:
    """Whether a hook takes an argument: by its name, or else by ``*args`` or a number of arguments.

    Args:
        hook_fx: The hook, also decorated.
        param: The argument's name.
        explicit: Only the name counts.
        min_args: So many positional arguments count as well.
    """
    spec = inspect.getfullargspec(inspect.unwrap(hook_fx))
    arguments = spec.args[1:] if inspect.ismethod(hook_fx) else spec.args
    if param in arguments or explicit:
        return param in arguments
    return spec.varargs is not None or (min_args is not None and len(arguments) >= min_args)


def get_init_args(frame: Any) -> dict[str, Any]:
    """Return the arguments of the ``__init__`` that a frame belongs to, without ``self``."""
    values = inspect.getargvalues(frame).locals
    if "__class__" not in values:
        return {}
    parameters = inspect.signature(values["__class__"].__init__).parameters
    extra = next(
        (name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.VAR_KEYWORD), None
    )
    names = list(parameters)[1:]
    arguments: dict[str, Any] = {name: values[name] for name in names if name in values and name != extra}
    return arguments | dict(values.get(extra or "", {}))


def _holders(model: Any, attribute: str) -> list[Any]:
    """Return the module, its hyperparameters and its data module, as far as they have an attribute."""
    hparams = getattr(model, "hparams", None)
    data = getattr(getattr(model, "_trainer", None), "datamodule", None)
    holders = [model] if hasattr(model, attribute) else []
    holders += [hparams] if hparams is not None and attribute in hparams else []
    return holders + ([data] if data is not None and hasattr(data, attribute) else [])


def _known_holders(model: Any, attribute: str) -> list[Any]:
    holders = _holders(model, attribute)
    if not holders:
        raise AttributeError(
            f"{attribute} is neither stored in the module's namespace nor hparams nor the data module."
        )
    return holders


def lightning_hasattr(model: Any, attribute: str) -> bool:
    """Whether the module, its hyperparameters or its data module have an attribute."""
    return bool(_holders(model, attribute))


def lightning_getattr(model: Any, attribute: str) -> Any:
    """Return an attribute of the data module, the hyperparameters or the module: of the first that has it.

    Raises:
        AttributeError: None of them has it.
    """
    last = _known_holders(model, attribute)[-1]
    return last[attribute] if isinstance(last, Mapping) else getattr(last, attribute)


def lightning_setattr(model: Any, attribute: str, value: Any) -> None:
    """Set an attribute wherever the module, its hyperparameters or its data module have it.

    Raises:
        AttributeError: None of them has it.
    """
    for holder in _known_holders(model, attribute):
        if isinstance(holder, MutableMapping):
            holder[attribute] = value
        else:
            setattr(holder, attribute, value)


def find_shared_parameters(module: nn.Module) -> list[list[str]]:
    """Return groups of names under which a module holds the same parameter.

    Example:
        >>> tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
        >>> tied["b"].weight = tied["a"].weight
        >>> find_shared_parameters(tied)
        [['a.weight', 'b.weight']]
    """
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def set_shared_parameters(module: nn.Module, shared_params: list[list[str]]) -> nn.Module:
    """Make the parameters of each group the one that its first name stands for, and return the module."""
    for first, *others in shared_params:
        parameter = module.get_parameter(first)
        for name in others:
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, parameter)
    return module


def from_compiled(model: Any) -> Any:
    """Return the module of a ``torch.compile(module)``; lightlib's Trainer takes the compiled one as it is.

    Raises:
        ValueError: `model` does not come from torch.compile.
    """
    original = getattr(model, "_orig_mod", None)
    if original is None:
        raise MisconfigurationException(
            f"from_compiled: {type(model).__name__} does not come from torch.compile.",
            expected="what torch.compile(module) returned.",
            fix="trainer.fit(torch.compile(module))",
        )
    return original


def to_uncompiled(model: Any) -> Any:
    """Return the module without torch.compile; a module that is not compiled is returned as it is."""
    return getattr(model, "_orig_mod", model)


def get_filesystem(path: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Return the fsspec file system of a path or URL."""
    from fsspec.core import url_to_fs  # optional: fsspec, imported on use

    return url_to_fs(str(path), **kwargs)[0]
