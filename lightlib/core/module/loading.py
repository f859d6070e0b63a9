"""load_from_checkpoint: builds a module from its saved hyperparameters and loads its weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

import torch

from lightlib import registry, report
from lightlib.accelerators.lookup import by_device_type
from lightlib.checkpoint import formats
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.frozen import complete
from lightlib.conventions import leniency
from lightlib.core.resume.restore import of_same_shape, other_weights
from lightlib.core.resume.resume_source import check
from lightlib.core.values.hparams import AttributeDict, with_attributes
from lightlib.errors import ArgumentTypeError, CheckpointError, nearest, shown

P = ParamSpec("P")
T = TypeVar("T")

# LightningCLI adds these to the hyperparameters. Classes that a file names are imported only if the user trusts it.
_NAMES_OF_CODE = ("_instantiator", "_class_path")
_OLD_KEYS = ("hparams", "module_arguments")  # where versions of Lightning before 1.0 kept the hyperparameters


class ClassOnly(Generic[P]):
    """A class method that returns a new object, and refuses calls on an instance, which it would not change."""

    def __init__(self, function: Callable[Concatenate[type, P], Any]) -> None:
        self.function: Any = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: object, owner: type[T]) -> Callable[P, T]:
        if instance is None:
            bound: Callable[P, T] = self.function.__get__(owner, type(owner))
            return bound

        def refuse(*args: Any, **kwargs: Any) -> Any:  # noqa: ARG001  whatever it is called with
            raise ArgumentTypeError(
                f"{owner.__name__}.load_from_checkpoint was called on an instance.",
                expected="a call on the class; it builds and returns a new object.",
                fix=f"module = {owner.__name__}.load_from_checkpoint(path)",
            )

        return refuse


def load_from_checkpoint(
    cls: type,
    /,
    checkpoint_path: Any,
    map_location: Any = None,
    hparams_file: str | Path | None = None,
    strict: bool | Literal["shapes"] | None = None,
    weights_only: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Build a new object from a checkpoint's hyperparameters and load its weights.

    Args:
        checkpoint_path: A path, a URL that fsspec knows, or an open file.
        map_location: As in torch.load. Default: the device that was saved, or the CPU if it is absent.
        hparams_file: A ``.yaml`` file of hyperparameters to use instead of the checkpoint's.
        strict: Whether the names of the weights must match; ``"shapes"``: take those of the same name and shape, and
            warn of the rest. Default: the module's `strict_loading`.
        weights_only: False loads a file with arbitrary Python objects, which may run any code. Default: never.
        kwargs: Arguments of ``__init__`` that replace saved ones.

    Raises:
        CheckpointError: The file is missing or damaged, or does not fit the class.
    """
    content = read_tensors(
        formats.load(checkpoint_path, map_location or _present_device, trust=formats.is_trusted(weights_only))
    )
    check(content, checkpoint_path)
    module = build(cls, content, hparams_file, kwargs, trust=formats.is_trusted(weights_only))
    try:
        names = fill(module, content, strict)
    except CheckpointError:
        raise
    except RuntimeError as error:
        raise other_weights(cls, error, "pass strict=False") from error
    if content["state_dict"]:
        if strict is not None and strict != "shapes":  # by `strict_loading` the module does this each time
            _warn_of_other_names(cls, names)
    elif next(module.parameters(), None) is not None:
        report.warn(
            f"{str(checkpoint_path)!r} holds no weights: {cls.__name__} keeps those it was initialised with.",
            report.PossibleUserWarning,
        )
    device = next((value.device for value in content["state_dict"].values() if isinstance(value, torch.Tensor)), None)
    return module if device is None else module.to(device)


def load_first_weights(module: Any, checkpoint_path: Any) -> None:
    """Load the weights of a checkpoint into a module that is not trained yet, as `load_from_checkpoint` does.

    Raises:
        CheckpointError: It is missing or damaged, or does not fit the module.
    """
    content = read_tensors(formats.load(checkpoint_path, _present_device))
    check(content, checkpoint_path)
    try:
        fill(module, content, None)
    except CheckpointError:
        raise
    except RuntimeError as error:
        raise other_weights(type(module), error, "take weights of the same layers") from error


def fill(module: Any, content: dict[str, Any], strict: bool | Literal["shapes"] | None) -> Any:
    """Load the weights of a checkpoint into a module that has just been built."""
    if module.configure_model is not None:  # a method set to None counts as not defined
        module.configure_model()
    strict = module.strict_loading if strict is None else strict
    all_names = bool(strict) and strict != "shapes"
    complete(content, module.state_dict, strict=all_names)
    if module.on_load_checkpoint is not None:
        module.on_load_checkpoint(content)
    state = content["state_dict"]
    if strict == "shapes":
        state = of_same_shape(state, module.state_dict(), type(module))
    return module.load_state_dict(state, strict=all_names)


def _warn_of_other_names(cls: type, names: Any) -> None:
    """Warn of weights that were not loaded: `names` is the result of torch's `load_state_dict`."""
    missing, unexpected = getattr(names, "missing_keys", ()), getattr(names, "unexpected_keys", ())
    parts = [f"{cls.__name__} keeps the initial values of {', '.join(map(repr, missing))}"] if missing else []
    if unexpected:
        parts.append(f"{', '.join(map(repr, unexpected))} of the checkpoint are not loaded")
    if parts:
        report.warn(f"load_from_checkpoint with strict=False: {'; '.join(parts)}.", report.PossibleUserWarning)


def load_datamodule(
    cls: type,
    /,
    checkpoint_path: Any,
    map_location: Any = None,
    hparams_file: str | Path | None = None,
    weights_only: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Build a new data module from its hyperparameters in a checkpoint and restore its state."""
    content = read_tensors(
        formats.load(checkpoint_path, map_location or _present_device, trust=formats.is_trusted(weights_only))
    )
    check(content, checkpoint_path)
    datamodule = build(cls, content, hparams_file, kwargs, trust=formats.is_trusted(weights_only))
    if (state := content.get(cls.__qualname__)) is not None:
        datamodule.load_state_dict(state)
    return datamodule


def _present_device(storage: Any, location: str) -> Any:
    """Return the storage on the device that was saved, or None for the CPU if that device is absent."""
    kind, _, index = location.partition(":")
    accelerator = by_device_type(kind)
    if accelerator is None:
        return None  # torch knows the device, or raises
    count = accelerator.auto_device_count() if kind != "cpu" and accelerator.is_available() else 0
    return storage if int(index or 0) >= count else None


def build(
    cls: Any, content: dict[str, Any], hparams_file: str | Path | None, given: dict[str, Any], *, trust: bool
) -> Any:
    """Build an object of `cls` with the hyperparameters of a checkpoint, which those `given` replace."""
    saved = content.get(cls.CHECKPOINT_HYPER_PARAMS_KEY)
    if saved is None:
        saved = next((content[key] for key in _OLD_KEYS if isinstance(content.get(key), Mapping)), {})
    container: Any = saved
    saved = dict(saved)
    if hparams_file is not None:
        container = saved = _hparams_of(hparams_file)
    if (class_names := _classes_of_command_line(saved, given)) is not None:
        if trust and class_names:
            return registry.get("instantiators", saved["_instantiator"])(cls, {**saved, **given})
        if class_names:
            raise CheckpointError(
                f"{cls.__name__} cannot be built from the checkpoint alone: its hyperparameters "
                f"{', '.join(map(repr, class_names))} name classes, and importing a class that a file names can run "
                "any code.",
                expected="objects for these, or a file that you trust.",
                fix=f"{cls.__name__}.load_from_checkpoint(path, {', '.join(f'{name}=…' for name in class_names)}), or, "
                "if you trust its source, weights_only=False.",
            )
    saved = {name: with_attributes(value) for name, value in saved.items() if name not in _NAMES_OF_CODE}
    parameters = inspect.signature(cls.__init__).parameters
    name = content.get(cls.CHECKPOINT_HYPER_PARAMS_NAME, "kwargs")
    if name not in ("kwargs", "") and name in parameters:  # one object holds them all
        entries = {key: given[key] for key in given if key in saved and key not in parameters}
        rest = {key: value for key, value in given.items() if key not in entries}
        arguments = {name: _with_entries(container, saved, entries), **rest}
    else:
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        arguments = {k: v for k, v in {**saved, **given}.items() if takes_any or k in parameters or k in given}
        for unknown in () if takes_any else [k for k in given if k not in parameters]:
            leniency().tolerate(_not_buildable(cls, saved, arguments, TypeError()), "it is ignored")
            del arguments[unknown]
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise _not_buildable(cls, saved, arguments, error) from None
    return cls(**arguments)


def _with_entries(container: Any, saved: dict[str, Any], entries: dict[str, Any]) -> Any:
    """Return the one object that holds all hyperparameters, with other entries; a container of OmegaConf stays one."""
    if type(container).__module__.partition(".")[0] != "omegaconf":
        return AttributeDict({**saved, **entries})
    changed = copy.copy(container)
    for key, value in entries.items():
        changed[key] = value
    return changed


def _classes_of_command_line(saved: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str] | None:
    """Return the hyperparameters that LightningCLI would build as classes; None if it did not save them."""
    if saved.get("_instantiator") not in registry.names("instantiators"):
        return None
    return [name for name, value in saved.items() if name not in arguments and _names_a_class(value)]


def _names_a_class(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "class_path" in value or any(map(_names_a_class, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_names_a_class, value))


def _not_buildable(
    cls: type, saved: Mapping[str, Any], arguments: Mapping[str, Any], error: TypeError
) -> CheckpointError:
    signature = inspect.signature(cls)
    unknown = next((name for name in arguments if name not in signature.parameters), None)
    plain = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in plain if p.default is p.empty and p.name not in arguments]
    if unknown is not None:
        problem = f"{cls.__name__} has no argument {unknown!r}.{nearest(unknown, signature.parameters)}"
        fix = f"{cls.__name__}.load_from_checkpoint(path) with arguments of {cls.__name__} only."
    else:
        content = f"the hyperparameters {', '.join(map(repr, saved))}" if saved else "no hyperparameters"
        problem = f"{cls.__name__} cannot be built from the checkpoint: {error}. It holds {content}."
        fix = (
            f"{cls.__name__}.load_from_checkpoint(path, {', '.join(f'{name}=…' for name in needed)}), or call "
            "self.save_hyperparameters() in __init__ before training."
        )
    return CheckpointError(problem, expected=f"the arguments of {cls.__name__}{signature}.", fix=fix)


def _hparams_of(path: str | Path) -> dict[str, Any]:
    import yaml  # optional: PyYAML

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, TypeError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise CheckpointError(
            f"hparams_file={str(path)!r} cannot be read: {' '.join(str(error).split())}",
            expected="a YAML file of names and values.",
            fix="load_from_checkpoint(path, hparams_file='hparams.yaml'), or leave it out.",
        ) from error
    if content is not None and not isinstance(content, dict):
        raise CheckpointError(
            f"hparams_file={str(path)!r} holds {shown(content)}.",
            expected="a YAML file of names and values.",
            fix="write one line per argument, for instance `lr: 0.1`.",
        )
    return content or {}
