"""BitsandbytesPrecision: linear layers with weights in 4 or 8 bits, by the package bitsandbytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from lightlib import optional
from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_word
from lightlib.precision.context import DefaultDtype, cast_floating
from lightlib.precision.layers import check_layers
from lightlib.precision.precision import Applies, Precision

M = TypeVar("M", bound=nn.Module)
Mode = Literal["nf4", "nf4-dq", "fp4", "fp4-dq", "int8", "int8-training"]
# By mode: arguments of Linear4bit, or of Linear8bitLt.
_FOUR: dict[str, dict[str, Any]] = {
    "nf4": {"quant_type": "nf4", "compress_statistics": False},
    "nf4-dq": {"quant_type": "nf4", "compress_statistics": True},
    "fp4": {"quant_type": "fp4", "compress_statistics": False},
    "fp4-dq": {"quant_type": "fp4", "compress_statistics": True},
}
_EIGHT: dict[str, dict[str, Any]] = {
    "int8": {"has_fp16_weights": False, "threshold": 6.0},
    "int8-training": {"has_fp16_weights": True, "threshold": 6.0},
}


class BitsandbytesPrecision(Precision):
    """Linear layers with weights in 4 or 8 bits; inputs are cast to `dtype`, other layers stay as they are.

    The weights are frozen, except in mode ``"int8-training"``: train other parameters, such as adapters. They are
    quantized when the module is moved to its device. It works on one device and under DDP. It has been tested
    with bitsandbytes 0.50 on CPUs, and not on a GPU.

    Args:
        mode: ``"nf4"``, ``"nf4-dq"`` (with compressed statistics), ``"fp4"``, ``"fp4-dq"``, ``"int8"`` or
            ``"int8-training"`` (weights stay in 16 bits and are quantized at every use).
        dtype: The dtype of the computation. Default: `torch.float16` in 8 bits and on GPUs without bfloat16, else
            `torch.bfloat16`.
        ignore_modules: Names of modules, or beginnings of names, whose linear layers are left as they are.

    Raises:
        MisconfigurationException: The package is not installed; 8 bits with another dtype than float16; when the
            Trainer is built, a strategy that shards parameters.
        UnknownNameError: Another mode.
        ArgumentTypeError: `dtype` is not a floating `torch.dtype`; when it is placed, the module has no linear layer.
    """

    mode: str
    ignore_modules: frozenset[str]

    def __init__(
        self,
        mode: Mode,
        dtype: torch.dtype | None = None,
        ignore_modules: Iterable[str] | None = None,
    ) -> None:
        _package()
        check_word("BitsandbytesPrecision", "mode", mode, [*_FOUR, *_EIGHT], example="nf4")
        if dtype is None:
            old = torch.cuda.is_available() and not torch.cuda.is_bf16_supported()
            dtype = torch.float16 if mode in _EIGHT or old else torch.bfloat16
        if mode in _EIGHT and dtype is not torch.float16:
            raise MisconfigurationException(
                f"BitsandbytesPrecision({mode!r}) got dtype={dtype}.",
                expected="torch.float16, in which bitsandbytes computes with weights in 8 bits.",
                fix=f"BitsandbytesPrecision({mode!r}), or mode='nf4'.",
            )
        super().__init__(f"bitsandbytes-{mode}", dtype, dtype, dtype)
        vars(self).update(mode=mode, ignore_modules=frozenset(ignore_modules or ()))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation."""
        return self.compute_dtype

    @property
    def converts_input(self) -> bool:
        return True

    def check_strategy(self, strategy: Applies) -> None:
        check_layers(self.name, strategy)
        if self.mode == "int8-training" and strategy.root_device.type == "cpu":
            raise MisconfigurationException(
                f"precision={self.name!r} was given with the device 'cpu'.",
                expected="a CUDA device: bitsandbytes cannot quantize at every use on a CPU.",
                fix="mode='int8', or one of the modes with 4 bits.",
            )

    def convert(self, module: M) -> M:
        """Replace the linear layers, unless some are bitsandbytes' already."""
        if not any(isinstance(part, nn.Linear) for part in module.modules()):
            raise ArgumentTypeError(
                f"precision={self.name!r} was given for {type(module).__name__}, which has no torch.nn.Linear.",
                expected="a module with linear layers, the only ones that bitsandbytes quantizes.",
                fix="another precision, such as 'bf16-true'.",
            )
        layers = _package().nn
        if not any(isinstance(part, (layers.Linear4bit, layers.Linear8bitLt)) for part in module.modules()):
            _replace(module, self.mode, tuple(self.ignore_modules))
        for part in module.modules():
            if isinstance(part, layers.Linear4bit):
                # from the first input on they compute in its dtype, or in this one
                vars(part).update(compute_dtype=self.dtype, compute_type_is_set=False)
        return module

    def convert_input(self, batch: Any) -> Any:
        return cast_floating(batch, self.dtype)

    def init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def step_context(self, device_type: str) -> Callable[[], AbstractContextManager[Any]] | None:
        return functools.partial(DefaultDtype, self.dtype)


def _package() -> Any:
    return optional.load("bitsandbytes", "BitsandbytesPrecision", otherwise='precision="bf16-true"')


def _replace(module: nn.Module, mode: str, ignored: tuple[str, ...], prefix: str = "") -> None:
    for name, child in list(module.named_children()):
        full = f"{prefix}{name}"
        if not isinstance(child, nn.Linear) or full.startswith(ignored):
            _replace(child, mode, ignored, f"{full}.")
            continue
        layer = (_in_four_bits if mode in _FOUR else _in_eight_bits)(child, mode)
        layer.train(child.training)
        module.add_module(name, layer)


def _in_four_bits(child: nn.Linear, mode: str) -> Any:
    layers, options = _package().nn, _FOUR[mode]
    layer = layers.Linear4bit(*_sizes(child), **options, device="meta")  # draws no random numbers
    weight = child.weight.data.clone()
    layer.weight = layers.Params4bit(weight, requires_grad=False, module=layer, **options)
    if child.bias is not None:
        layer.bias = nn.Parameter(child.bias.data.clone(), requires_grad=False)
    layer._register_load_state_dict_pre_hook(_load_four_bits, with_module=True)  # noqa: SLF001  torch's name until 2.5
    return layer


def _in_eight_bits(child: nn.Linear, mode: str) -> Any:
    layers, options = _package().nn, _EIGHT[mode]
    layer = layers.Linear8bitLt(*_sizes(child), **options, device="meta")
    training = options["has_fp16_weights"]
    weight = child.weight.data.clone()
    layer.weight = layers.Int8Params(weight, requires_grad=training, has_fp16_weights=training)
    if child.bias is not None:
        layer.bias = nn.Parameter(child.bias.data.clone(), requires_grad=child.bias.requires_grad)
    layer._register_load_state_dict_pre_hook(_load_eight_bits, with_module=True)  # noqa: SLF001  as above
    return layer


def _sizes(child: nn.Linear) -> tuple[int, int, bool]:
    return child.in_features, child.out_features, child.bias is not None


def _load_four_bits(layer: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load quantized weights as they are, and quantize full ones if the layer is quantized."""
    key = f"{prefix}weight"
    saved = state.get(key)
    if saved is None:
        return
    kind, old = _package().nn.Params4bit, layer.weight
    statistics = {name: state.pop(name) for name in list(state) if name.startswith(f"{key}.")}
    if statistics:
        stripped = {name.removeprefix(f"{key}."): value for name, value in statistics.items()}
        new = kind.from_prequantized(saved, stripped, device=old.device, module=layer)
    elif old.bnb_quantized:
        options = {"compress_statistics": old.compress_statistics, "quant_type": old.quant_type}
        new = kind(saved.clone(), requires_grad=False, module=layer, **options).to(old.device)
    else:
        return
    old.data = new.data
    vars(old).update({name: vars(new)[name] for name in ("quant_state", "bnb_quantized", "compress_statistics")})
    state[key] = new.data


def _load_eight_bits(layer: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load quantized weights as they are, and quantize full ones if the layer is quantized."""
    key = f"{prefix}weight"
    saved, scale = state.get(key), state.pop(f"{prefix}SCB", None)
    state.pop(f"{prefix}weight_format", None)
    weight = layer.weight
    if saved is None or weight.has_fp16_weights or (scale is None and weight.dtype is not torch.int8):
        return
    if scale is None:
        saved, scale, _ = _package().functional.int8_vectorwise_quant(saved.to(weight.device, torch.float16))
    weight.data = saved.to(weight.device)
    vars(weight).update(CB=weight.data, SCB=scale.to(weight.device))
    vars(layer.state).update(CB=None, SCB=None)  # filled from the weight at the next use
    state[key] = weight.data
