"""Lightning's registries of strategies and accelerators, which add names to lightlib's."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from lightlib import registry
from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins.strategies import (
    DDP_NAMES,
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    SingleDeviceStrategy,
)

__all__ = [
    "ACCELERATOR_REGISTRY",
    "STRATEGY_REGISTRY",
    "_AcceleratorRegistry",
    "_StrategyRegistry",
    "_register_classes",
    "call_register_accelerators",
]


class _Registry(dict[str, dict[str, Any]]):
    """Names of one group: those of lightlib, and those that a program registers.

    Args:
        group: The group of lightlib's registry; empty: names stay here.
        kind: What is registered, as in the keys of an entry.
    """

    def __init__(self, group: str, kind: str) -> None:
        super().__init__()
        self._group, self._kind = group, kind
        for name in registry.names(group) if group else ():
            super().__setitem__(name, self._entry(name, _RegistryFactory(group, name), "provided by lightlib", {}))

    def _entry(self, name: str, factory: Any, description: str, options: dict[str, Any]) -> dict[str, Any]:
        kind = self._kind
        return {kind: factory, f"{kind}_name": name, "description": description, "init_params": options}

    def _add(
        self, name: str, factory: Any, description: str | None, override: bool, options: dict[str, Any]
    ) -> Callable[..., Any]:
        if not isinstance(name, str):
            raise TypeError(f"The name of a registered {self._kind} is {name!r}, not a string.")
        if name in self and not override:
            raise MisconfigurationException(
                f"register({name!r}, …): a {self._kind} of this name is registered already.",
                expected="a new name.",
                fix=f"register({name!r}, …, override=True) to replace it.",
            )
        if factory is None:
            return partial(self._enter, name, description or "", options)
        entered: Callable[..., Any] = self._enter(name, description or "", options, factory)
        return entered

    def _enter(self, name: str, description: str, options: dict[str, Any], factory: Any) -> Any:
        self[name] = self._entry(name, factory, description, options)
        return factory

    def __setitem__(self, name: str, entry: dict[str, Any]) -> None:
        super().__setitem__(name, entry)
        if self._group:
            registry.register(self._group, name, partial(entry[self._kind], **entry["init_params"]))

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a name, and return its entry."""
        if self._group:
            registry.unregister(self._group, name)
        return super().pop(name, *default)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a new object of the class that is registered under a name.

        Raises:
            KeyError: There is none, and no default.
        """
        if name in self:
            entry = self[name]
            return entry[self._kind](**entry["init_params"])
        if default is not None:
            return default
        raise KeyError(f"{name!r} is not registered; there are {', '.join(sorted(self)) or 'none'}.")

    def remove(self, name: str) -> None:
        """Remove a name."""
        self.pop(name)


class _RegistryFactory:
    """Makes the object of a name in lightlib's registry; a class, so that it has a readable form."""

    def __init__(self, group: str, name: str) -> None:
        self._group, self._name = group, name

    def __call__(self) -> Any:
        return registry.get(self._group, self._name)()

    def __repr__(self) -> str:
        return f"<lightlib's {self._name}>"


def _classes_of_lightning() -> dict[str, tuple[type, dict[str, Any]]]:
    """Return the class behind each of Lightning's names of strategies, and the arguments that the name stands for."""
    classes: dict[str, tuple[type, dict[str, Any]]] = {
        "single_device": (SingleDeviceStrategy, {}),
        "fsdp": (FSDPStrategy, {}),
        "fsdp_cpu_offload": (FSDPStrategy, {"cpu_offload": True}),
    }
    classes |= {name: (DDPStrategy, options) for name, options in DDP_NAMES.items()}
    offload = {"offload_optimizer": True}
    both = {"stage": 3, **offload, "offload_parameters": True}
    devices = {"remote_device": "nvme", "offload_params_device": "nvme", "offload_optimizer_device": "nvme"}
    stages: dict[str, dict[str, Any]] = {
        "": {},
        **{f"_stage_{stage}": {"stage": stage} for stage in (1, 2, 3)},
        "_stage_2_offload": {"stage": 2, **offload},
        "_stage_3_offload": both,
        "_stage_3_offload_nvme": {**both, **devices},
    }
    return classes | {f"deepspeed{name}": (DeepSpeedStrategy, options) for name, options in stages.items()}


class _StrategyRegistry(_Registry):
    """Lightning's registry of strategies.

    Example:
        >>> strategies = _StrategyRegistry()
        >>> strategies.register("mine", dict, description="An example", a=1) is dict
        True
        >>> strategies.get("mine"), strategies.available_strategies()
        ({'a': 1}, ['mine'])
    """

    def __init__(self, group: str = "") -> None:
        super().__init__(group, "strategy")
        for name, (kind, options) in _classes_of_lightning().items() if group else ():
            dict.__setitem__(self, name, self._entry(name, kind, kind.__name__, options))

    def register(
        self,
        name: str,
        strategy: Callable[..., Any] | None = None,
        description: str | None = None,
        override: bool = False,
        **init_params: Any,
    ) -> Callable[..., Any]:
        """Register a class under a name; without `strategy` return a decorator.

        Args:
            name: As in ``Trainer(strategy="name")``.
            strategy: The class.
            description: A few words.
            override: Replace an entry of this name.
            init_params: Arguments of the class.

        Raises:
            MisconfigurationException: The name is registered already.
        """
        return self._add(name, strategy, description, override, init_params)

    def available_strategies(self) -> list[str]:
        """Return the names."""
        return list(self)

    def __str__(self) -> str:
        return f"Registered Strategies: {', '.join(self)}"


class _AcceleratorRegistry(_Registry):
    """Lightning's registry of accelerators.

    Example:
        >>> _AcceleratorRegistry("accelerators").get("cpu").name()
        'cpu'
    """

    def __init__(self, group: str = "") -> None:
        super().__init__(group, "accelerator")

    def register(
        self,
        name: str,
        accelerator: Callable[..., Any] | None = None,
        description: str = "",
        override: bool = False,
        **init_params: Any,
    ) -> Callable[..., Any]:
        """Register a class under a name; without `accelerator` return a decorator.

        Args:
            name: As in ``Trainer(accelerator="name")``.
            accelerator: The class.
            description: A few words.
            override: Replace an entry of this name.
            init_params: Arguments of the class.

        Raises:
            MisconfigurationException: The name is registered already.
        """
        return self._add(name, accelerator, description, override, init_params)

    def available_accelerators(self) -> set[str]:
        """Return the names."""
        return set(self)

    def __str__(self) -> str:
        return f"Registered Accelerators: {', '.join(self)}"


def _register_classes(into: Any, method: str, module: ModuleType, parent: type) -> None:
    """Call the class method `method` of all subclasses of `parent` in a module that define it."""
    for _, kind in inspect.getmembers(module, inspect.isclass):
        registers_itself = any(method in vars(base) for base in kind.__mro__ if base not in parent.__mro__)
        if issubclass(kind, parent) and registers_itself:
            getattr(kind, method)(into)


def call_register_accelerators(into: _AcceleratorRegistry, base_module: str) -> None:
    """Register the accelerators of a module, which is imported."""
    _register_classes(into, "register_accelerators", importlib.import_module(base_module), Accelerator)


STRATEGY_REGISTRY = _StrategyRegistry("strategies")
ACCELERATOR_REGISTRY = _AcceleratorRegistry("accelerators")
