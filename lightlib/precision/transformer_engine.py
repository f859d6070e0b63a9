"""TransformerEnginePrecision: linear layers in 8-bit floats, by NVIDIA's Transformer Engine."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import torch
from torch import nn

from lightlib import optional, report
from lightlib.errors import MisconfigurationException, UnknownNameError, owner, wrong_type
from lightlib.precision.context import DefaultDtype, cast_floating
from lightlib.precision.layers import LayersInstead, check_layers
from lightlib.precision.precision import AUTOCAST_DTYPES, Applies, Precision

M = TypeVar("M", bound=nn.Module)
DEVICES = ("cuda",)
_FORMATS = ("E4M3", "E5M2", "HYBRID")


class TransformerEnginePrecision(Precision):
    """Parameters and inputs in `weights_dtype`, linear layers computed in 8-bit floats.

    Linear and LayerNorm layers are replaced by those of Transformer Engine, which are no subclasses of torch's. A
    linear layer whose sizes do not fit (inputs divisible by 8 and outputs by 16) stays, with a warning. It works on one
    device and under DDP; it has been tested with a stand-in for the package only, not on a GPU.

    Args:
        weights_dtype: The dtype of the parameters, such as `torch.bfloat16`.
        recipe: Arguments of Transformer Engine's `DelayedScaling` (``fp8_format`` by its name, such as ``"HYBRID"``),
            or one of its recipes. Default: `DelayedScaling` with its defaults.
        replace_layers: False to leave the layers to you. True also replaces them as `configure_model` builds them.
            Default: they are replaced when the module is placed, unless it has some of Transformer Engine already.
        fallback_compute_dtype: What autocast casts other operations to. Default: `weights_dtype`.

    Raises:
        MisconfigurationException: The package is not installed; when the Trainer is built, the device is not CUDA, or
            the strategy shards parameters.
        ArgumentTypeError: A dtype is not a floating `torch.dtype`.
        UnknownNameError: The recipe has another `fp8_format`.
    """

    recipe: Any
    replace_layers: bool | None
    fallback_compute_dtype: torch.dtype

    def __init__(
        self,
        *,
        weights_dtype: torch.dtype,
        recipe: Mapping[str, Any] | Any = None,
        replace_layers: bool | None = None,
        fallback_compute_dtype: torch.dtype | None = None,
    ) -> None:
        name = "transformer-engine-float16" if weights_dtype is torch.float16 else "transformer-engine"
        super().__init__(name, weights_dtype, weights_dtype, weights_dtype)
        fallback: Any = weights_dtype if fallback_compute_dtype is None else fallback_compute_dtype
        if not isinstance(fallback, torch.dtype) or not fallback.is_floating_point:
            expected, example = "a floating dtype of torch", "torch.bfloat16"
            raise wrong_type("TransformerEnginePrecision", "fallback_compute_dtype", fallback, expected, example)
        more = {"recipe": _recipe(recipe), "replace_layers": replace_layers, "fallback_compute_dtype": fallback}
        vars(self).update(more)

    @property
    def weights_dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return self.param_dtype

    @property
    def converts_input(self) -> bool:
        return True

    def check_strategy(self, strategy: Applies) -> None:
        check_layers(self.name, strategy)
        if strategy.root_device.type not in DEVICES:
            raise MisconfigurationException(
                f"precision={self.name!r} was given with the device {str(strategy.root_device)!r}.",
                expected="a CUDA device, for which Transformer Engine is written.",
                fix=f"{owner()}(accelerator='cuda'), or precision='bf16-mixed'.",
            )

    def convert(self, module: M) -> M:
        """Replace the layers, unless some are there already, and cast the parameters."""
        there = any(type(part).__module__.startswith("transformer_engine.pytorch") for part in module.modules())
        if there and self.replace_layers:
            report.info("TransformerEnginePrecision: the module has layers of Transformer Engine; none is replaced.")
        elif not there and self.replace_layers is not False:
            _replace(module)
        return module.to(self.param_dtype)

    def convert_input(self, batch: Any) -> Any:
        return cast_floating(batch, self.param_dtype)

    def init_context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        if self.replace_layers:
            layers = _package().pytorch
            stack.enter_context(LayersInstead(Linear=layers.Linear, LayerNorm=layers.LayerNorm))
        stack.enter_context(DefaultDtype(self.param_dtype))
        return stack

    def step_context(self, device_type: str) -> Callable[[], AbstractContextManager[Any]] | None:
        return functools.partial(self._computing, _package().pytorch, device_type)

    def _computing(self, layers: Any, device_type: str) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(DefaultDtype(self.param_dtype))
        if self.fallback_compute_dtype in AUTOCAST_DTYPES:
            stack.enter_context(torch.autocast(device_type, dtype=self.fallback_compute_dtype))
        stack.enter_context(layers.fp8_autocast(enabled=True, fp8_recipe=self.recipe))
        return stack


def named(name: str) -> TransformerEnginePrecision:
    """Return the precision called ``"transformer-engine"`` (bfloat16) or ``"transformer-engine-float16"``."""
    return TransformerEnginePrecision(weights_dtype=torch.float16 if name.endswith("float16") else torch.bfloat16)


def _package() -> Any:
    for module in ("common.recipe", "pytorch"):
        optional.load(
            f"transformer_engine.{module}",
            "TransformerEnginePrecision",
            otherwise='precision="bf16-mixed", which does not need a CUDA device either',
        )
    return importlib.import_module("transformer_engine")


def _recipe(options: Any) -> Any:
    recipes = _package().common.recipe
    if options is not None and not isinstance(options, Mapping):
        return options
    arguments = dict(options or {})
    chosen = arguments.get("fp8_format")
    if isinstance(chosen, str):
        if not hasattr(recipes.Format, chosen):
            raise UnknownNameError("fp8_format", chosen, _FORMATS, fix='recipe={"fp8_format": "HYBRID"}')
        arguments["fp8_format"] = getattr(recipes.Format, chosen)
    return recipes.DelayedScaling(**arguments)


def _replace(module: nn.Module, prefix: str = "") -> None:
    """Replace the layers below `module` by those of Transformer Engine, with the same values."""
    layers = _package().pytorch
    for name, child in list(module.named_children()):
        full = f"{prefix}{name}"
        if isinstance(child, nn.Linear):
            if child.in_features % 8 or child.out_features % 16:
                report.warn(
                    f"The layer {full!r} ({child.in_features} inputs, {child.out_features} outputs) is not computed "
                    "in 8 bits: Transformer Engine needs inputs divisible by 8 and outputs divisible by 16. "
                    "Pad the sizes."
                )
                continue
            layer = layers.Linear(child.in_features, child.out_features, bias=child.bias is not None)
        elif isinstance(child, nn.LayerNorm) and len(child.normalized_shape) == 1 and child.elementwise_affine:
            layer = layers.LayerNorm(child.normalized_shape[0], eps=child.eps)
        else:
            _replace(child, f"{full}.")
            continue
        _take(layer, child)
        module.add_module(name, layer)


def _take(layer: nn.Module, child: nn.Module) -> None:
    """Give `layer` the values, the device and the training state of the parameters of `child`."""
    weight, state = child.get_parameter("weight"), child.state_dict()
    layer.to(weight.device, weight.dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name in state:
                parameter.copy_(state[name])
                parameter.requires_grad = child.get_parameter(name).requires_grad
            else:  # LayerNorm(bias=False): Transformer Engine's always has one
                parameter.zero_()
                parameter.requires_grad = False
    layer.train(child.training)
