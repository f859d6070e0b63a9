"""jsonargparse's parser of any version, with the old and the new names of its methods."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from lightlib.config.build import construct, is_building, let_through
from lightlib.launch.environment.environment import Environment
from lightlib.precision.precision import Precision

_NEW = hasattr(ArgumentParser, "instantiate")  # since 4.49; `instantiate_classes` before that
_SCOPED = _NEW and "instantiators" in inspect.signature(ArgumentParser.instantiate).parameters  # since 4.53
_SKIP = "skip_unset" if _NEW else "skip_none"

_SETTINGS: dict[str, Any] = {
    "config_read_mode_fsspec_enabled": True,  # --config s3://bucket/run.yaml
    "add_print_completion_argument": True,  # since 4.47; --print_shtab before that
    "omegaconf_absolute_to_relative_paths": True,  # since 4.42; ${trainer.max_epochs}, below a sub-command too
    "subclasses_enabled": [Precision, Environment],  # since 4.46; dataclasses, with subclasses all the same
}
_known = inspect.signature(set_parsing_settings).parameters
set_parsing_settings(**{name: value for name, value in _SETTINGS.items() if name in _known})


class CompatibleParser(ArgumentParser):
    """jsonargparse's ArgumentParser, which accepts the calls of all versions since 4.39 without warnings.

    Programs written for LightningCLI need no change: `dump` and `save` take `skip_none` and `skip_unset`,
    `instantiate` and `instantiate_classes` are the same, and `add_instantiator` still works.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.instantiators: list[tuple[Callable[..., Any], type, bool]] = []
        super().__init__(*args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Return a configuration as text."""
        text: str = super().dump(*args, **_renamed(kwargs))
        return text

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write a configuration to files."""
        super().save(*args, **_renamed(kwargs))

    def add_instantiator(
        self, instantiator: Callable[..., Any], class_type: type, subclasses: bool = True, prepend: bool = False
    ) -> None:
        """Let `instantiator` build the objects of a class: it is called with the class and its arguments."""
        if _SCOPED:
            self.instantiators.insert(0 if prepend else len(self.instantiators), (instantiator, class_type, subclasses))
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 4.49 to 4.52, which have nothing better
            super().add_instantiator(instantiator, class_type, subclasses=subclasses, prepend=prepend)

    def instantiate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> Namespace:
        """Build the objects that a parsed configuration names."""
        outermost = not is_building()
        if _SCOPED and (self.instantiators or outermost):
            last = [(construct, object, True)] if outermost else []
            kwargs["instantiators"] = [*(kwargs.get("instantiators") or ()), *self.instantiators, *last]
        elif outermost:
            self.add_instantiator(construct, object)
        build: Any = super().instantiate if _NEW else super().instantiate_classes
        built: Namespace
        if outermost:
            built = let_through(lambda: build(namespace, *args, **kwargs), partial(self.not_built, namespace))
        else:
            built = build(namespace, *args, **kwargs)
        return built

    def not_built(self, namespace: Namespace, error: Exception, class_type: Any, arguments: Mapping[str, Any]) -> None:
        """Override to add to the error of a class that was not built."""

    def instantiate_classes(self, *args: Any, **kwargs: Any) -> Any:
        """Build the objects that a parsed configuration names; the old name of `instantiate`."""
        return self.instantiate(*args, **kwargs)


def _renamed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {_SKIP if name in ("skip_none", "skip_unset") else name: value for name, value in arguments.items()}
