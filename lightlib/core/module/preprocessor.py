"""PreprocessorMixin: a submodule that changes each batch on the device before the steps get it."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from torch import nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException, nearest, shown

_KEYS = ("class_path", "init_args")


class PreprocessorMixin(nn.Module):
    """Adds `use_preprocessor` to modules.

    Attributes:
        preprocesses: Whether each batch goes through `self.preprocessor`.
    """

    preprocesses: bool = False
    _made_by: str = ""  # the call that made the module, for errors

    def use_preprocessor(self, preprocessor: nn.Module | Mapping[str, Any] | None) -> None:
        """Call a module with each batch of every stage, on its device, after `on_after_batch_transfer`.

        It becomes the submodule `preprocessor`: it is moved, saved, and switched between training and evaluation with
        this module, so it reads ``self.training``. Its `forward` gets the batch and returns it.

        Args:
            preprocessor: A module without trained parameters; or a configuration of one,
                ``{"class_path": "my_package.Normalize", "init_args": {"mean": 0.5}}``; or None, which removes it.

        Raises:
            ArgumentTypeError: It is something else.
            MisconfigurationException: It has trained parameters, or a configuration has other keys.

        Example:
            >>> import lightlib
            >>> class Net(lightlib.Module):
            ...     def __init__(self):
            ...         super().__init__()
            ...         self.use_preprocessor(nn.BatchNorm1d(4, affine=False))
            >>> Net().eval().preprocessor.training
            False
        """
        where = f"`preprocessor` of {self._made_by or type(self).__name__}"
        self.preprocessor = None if preprocessor is None else _preprocessor(preprocessor, where)
        self.preprocesses = preprocessor is not None


def preprocessed(module: PreprocessorMixin, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG001  as the hooks'
    """Return a batch, changed by the preprocessor of the module."""
    return batch if module.preprocessor is None else module.preprocessor(batch)


def _preprocessor(argument: Any, where: str) -> nn.Module:
    if isinstance(argument, Mapping):
        argument = _built(argument, where)
    if not isinstance(argument, nn.Module):
        a_class = isinstance(argument, type)
        raise ArgumentTypeError(
            f"{where} is {shown(argument)}.",
            expected="an instance of torch.nn.Module that returns the batch, a dict with its class_path, or None.",
            fix=f"pass an instance: {argument.__name__}()" if a_class else "write a torch.nn.Module with a forward.",
        )
    trained = [name for name, parameter in argument.named_parameters() if parameter.requires_grad]
    if trained:
        raise MisconfigurationException(
            f"{where} has the trained parameters {', '.join(map(repr, trained))}.",
            expected="buffers and frozen parameters: it runs before the step, outside of the strategy's wrapper.",
            fix="make them part of the model, or preprocessor.requires_grad_(False).",
        )
    return argument


def _built(config: Mapping[str, Any], where: str) -> Any:
    unknown = next((key for key in config if key not in _KEYS), None)
    path = config.get("class_path")
    if unknown is not None or not isinstance(path, str):
        problem = (
            f"the key {unknown!r}.{nearest(str(unknown), _KEYS)}" if unknown is not None else f"class_path={path!r}."
        )
        raise MisconfigurationException(
            f"{where} is a dict with {problem}",
            expected="class_path, the import path of a torch.nn.Module, and init_args, its arguments.",
            fix='{"class_path": "my_package.Normalize", "init_args": {"mean": 0.5}}',
        )
    try:
        kind = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise MisconfigurationException(
            f"{where} is a dict with class_path={path!r}, which cannot be imported: {error}.",
            expected="the import path of a torch.nn.Module.",
            fix="correct the path, or pass the module itself.",
        ) from error
    return kind(**(config.get("init_args") or {}))
