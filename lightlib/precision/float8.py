"""Float8Precision: linear layers in 8-bit floats, by torchao."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from lightlib import optional, report
from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_type, check_word, wrong_type
from lightlib.precision.layers import check_layers
from lightlib.precision.precision import Applies, Precision

M = TypeVar("M", bound=nn.Module)
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
CAPABILITY = (8, 9)  # the first of NVIDIA's GPUs that multiply in 8 bits: L4, RTX 4090; H100 is (9, 0)
_MULTIPLE = 16  # of the sizes of a layer
_NAMES = {torch.float32: "fp8-mixed", torch.bfloat16: "fp8-true"}


class Float8Precision(Precision):
    """Linear layers that multiply in 8-bit floats, and other operations in bfloat16, by torchao.

    `torch.nn.Linear` is replaced by torchao's layer, a subclass with the same parameters and names, so checkpoints are
    those of other precisions. A layer with a size that 16 does not divide stays, with a warning. It works on one device
    and under DDP, and saves time only with `torch.compile`. It was tested with torchao 0.18 on CPUs, where torchao
    emulates it, and not on a GPU.

    Args:
        weights_dtype: `torch.float32` (``"fp8-mixed"``, default), with autocast around it, or `torch.bfloat16`
            (``"fp8-true"``).
        recipe: How scales are computed: ``"tensorwise"`` (default), ``"rowwise"``, ``"rowwise_with_gw_hp"``, or a
            `torchao.float8.Float8LinearConfig`.
        ignore_modules: Names of modules, or beginnings of names, with linear layers to leave as they are.
        emulate: Round to 8 bits and multiply in float32, on any device: slow, for tests. Default False.

    Raises:
        ArgumentTypeError: `weights_dtype` is another dtype; `recipe` or `ignore_modules` has another type; when it is
            placed, the module has no linear layer that fits.
        UnknownNameError: Another recipe.
        MisconfigurationException: torchao is not installed; when the Trainer is built, the device is not CUDA (or
            emulated, with a recipe that cannot be), or the strategy shards parameters; when the module is placed, the
            GPU cannot multiply in 8 bits, or a name in `ignore_modules` matches nothing.
    """

    recipe: Any
    ignore_modules: tuple[str, ...]
    emulate: bool
    recipe_name: str | None

    def __init__(
        self,
        weights_dtype: torch.dtype = torch.float32,
        recipe: Any = "tensorwise",
        ignore_modules: Iterable[str] = (),
        emulate: bool = False,
    ) -> None:
        if weights_dtype not in _NAMES:
            expected, fix = "torch.float32 or torch.bfloat16", "Float8Precision(torch.bfloat16)"
            raise wrong_type("Float8Precision", "weights_dtype", weights_dtype, expected, fix=fix)
        ignored = (ignore_modules,) if isinstance(ignore_modules, str) else tuple(ignore_modules)
        if not all(isinstance(name, str) for name in ignored):
            expected = "names of modules, or beginnings of names"
            raise wrong_type("Float8Precision", "ignore_modules", ignore_modules, expected, '["head"]')
        super().__init__(_NAMES[weights_dtype], weights_dtype, torch.bfloat16, weights_dtype)
        config = _config(recipe, emulate)
        vars(self).update(recipe=config, ignore_modules=ignored, emulate=bool(config.emulate))
        vars(self)["recipe_name"] = recipe if isinstance(recipe, str) else None

    def check_strategy(self, strategy: Applies) -> None:
        check_layers(self.name, strategy)
        if strategy.root_device.type != "cuda" and not self.emulate:
            raise MisconfigurationException(
                f"precision={self.name!r} was given with the device {str(strategy.root_device)!r}, which cannot "
                "multiply in 8 bits.",
                expected="a CUDA device of capability 8.9 or newer, such as an L4 or H100.",
                fix="precision='bf16-mixed'; to test on any device, plugins=[Float8Precision(emulate=True)].",
            )
        if strategy.root_device.type != "cuda" and self.autocasts and self.recipe_name == "rowwise_with_gw_hp":
            raise MisconfigurationException(
                f"precision={self.name!r} with recipe='rowwise_with_gw_hp' was given with the device "
                f"{str(strategy.root_device)!r}: torchao heeds autocast on CUDA only, and mixes two dtypes there.",
                expected="another recipe, or weights in bfloat16.",
                fix="Float8Precision(torch.bfloat16, 'rowwise_with_gw_hp', emulate=True)",
            )

    def convert(self, module: M) -> M:
        """Replace the linear layers, unless some are torchao's already, and cast the parameters."""
        if not self.emulate:
            _check_gpu(self.name, torch.cuda.get_device_capability())
        package = _package()
        layers = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
        for name in self.ignore_modules:
            if not any(full.startswith(name) for full, _ in module.named_modules() if full):
                raise MisconfigurationException(
                    f"ignore_modules holds {name!r}, which matches no module of {type(module).__name__}.",
                    expected="the name of a module, or the beginning of one.",
                    fix=f"leave it out; the linear layers are {', '.join(list(layers)[:12])}.",
                )
        if not any(type(part).__module__.startswith("torchao.") for part in layers.values()):
            chosen = {name: part for name, part in layers.items() if not name.startswith(self.ignore_modules or "\0")}
            fitting = {name for name, part in chosen.items() if name and _fits(part)}
            self._check_layers(module, chosen, fitting)
            package.convert_to_float8_training(
                module, config=self.recipe, module_filter_fn=lambda part, name: name in fitting
            )
        return module.to(self.param_dtype) if self.param_dtype is not torch.float32 else module

    def _check_layers(self, module: nn.Module, chosen: dict[str, nn.Linear], fitting: set[str]) -> None:
        if not fitting:
            raise ArgumentTypeError(
                f"precision={self.name!r} was given for {type(module).__name__}, which has no linear layer that fits.",
                expected=f"layers inside of a module, with sizes that {_MULTIPLE} divides.",
                fix="precision='bf16-mixed', or pad the sizes.",
            )
        rest = [
            f"{name} ({part.in_features} to {part.out_features})"
            for name, part in chosen.items()
            if name not in fitting
        ]
        if rest:
            report.warn(
                f"precision={self.name!r}: these layers are not computed in 8 bits, since {_MULTIPLE} does not divide "
                f"their sizes: {', '.join(rest)}. Pad the sizes, or name them in ignore_modules."
            )


def named(name: str) -> Float8Precision:
    """Return the precision called ``"fp8-mixed"`` or ``"fp8-true"``."""
    return Float8Precision(next(dtype for dtype, dtype_name in _NAMES.items() if dtype_name == name))


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % _MULTIPLE == 0 and layer.out_features % _MULTIPLE == 0


def _check_gpu(name: str, capability: tuple[int, int]) -> None:
    if capability < CAPABILITY:
        raise MisconfigurationException(
            f"precision={name!r} was given with a GPU of capability {'.'.join(map(str, capability))}, which cannot "
            "multiply in 8 bits.",
            expected="a GPU of capability 8.9 or newer, such as an L4 or H100.",
            fix="precision='bf16-mixed'; to test, plugins=[Float8Precision(emulate=True)].",
        )


def _package() -> Any:
    return optional.load("torchao.float8", "Float8Precision", otherwise='precision="bf16-mixed"')


def _config(recipe: Any, emulate: bool) -> Any:
    kind = _package().Float8LinearConfig
    if isinstance(recipe, kind):
        if emulate and not recipe.emulate:
            raise MisconfigurationException(
                "Float8Precision got emulate=True, and a recipe with emulate=False.",
                expected="the same in both.",
                fix="Float8LinearConfig(emulate=True)",
            )
        return recipe
    expected = f"one of {', '.join(map(repr, RECIPES))}, or a torchao.float8.Float8LinearConfig"
    check_type("Float8Precision", "recipe", recipe, str, expected, "'rowwise'")
    check_word("Float8Precision", "recipe", recipe, RECIPES, example="rowwise")
    config = kind.from_recipe_name(recipe)
    return dataclasses.replace(config, emulate=True) if emulate else config
