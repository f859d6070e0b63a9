"""Precision: which dtype is used where, as data; and the ones that have a name."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightlib import registry
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, owner, wrong_type
from lightlib.precision.chosen import (
    Inputs,
    Modules,
    cast_chosen,
    checked_inputs,
    checked_modules,
    keep_in_float32,
    release,
)
from lightlib.precision.context import DefaultDtype, cast_floating
from lightlib.precision.scaler import LossScaler, Scaler
from lightlib.precision.scaler_settings import Settings, check_settings
from lightlib.report import PossibleUserWarning, warn

M = TypeVar("M", bound=nn.Module)
AUTOCAST_DTYPES = (torch.float16, torch.bfloat16)
_CASTS: dict[torch.dtype, Callable[[nn.Module], nn.Module]] = {
    torch.float64: nn.Module.double,
    torch.float32: nn.Module.float,
    torch.float16: nn.Module.half,
    torch.bfloat16: nn.Module.bfloat16,
}


class Applies(Protocol):
    """The property of a strategy on which a precision depends.

    Attributes:
        keeps_layers: Whether each process keeps the module's layers with all of their parameters.
    """

    @property
    def keeps_layers(self) -> bool: ...

    @property
    def root_device(self) -> torch.device: ...


@dataclasses.dataclass(frozen=True)
class Precision:
    """Which dtype is used where. It holds no state and knows nothing of devices or processes.

    Args:
        name: What ``Trainer(precision=…)`` takes, such as ``'bf16-mixed'``.
        param_dtype: What parameters and buffers are stored in.
        compute_dtype: What forward and backward run in. When it is another than `param_dtype`, autocast casts.
        reduce_dtype: What gradients are reduced in, over processes.
        scales_loss: Whether the loss is scaled, as float16 needs it.
        scaler: Settings of the loss scaler (see :class:`LossScaler`): ``"dynamic"``, a number for a static scale, a
            mapping, or a `torch.amp.GradScaler`.
        cache: Whether autocast casts a weight once per step (true) or at every use (false, needs more memory and time
            when weights are used several times in a step). The reasons: ``docs/decisions/0003-autocast-cache.md``.
        inputs_to_half: The entries of a batch that are cast to `compute_dtype`, float16 or bfloat16: indices of a tuple
            or list, or keys of a dict; the rest is left alone. Default: all in true precisions, none in mixed ones.
        float32_modules: Modules that stay in float32, by name (with wildcards) or class. Their inputs are cast, and
            in true precisions their outputs are cast back.

    Raises:
        ArgumentTypeError: A dtype is not a floating `torch.dtype`, or `inputs_to_half` or `float32_modules` hold
            something else.
        MisconfigurationException: Autocast does not know `compute_dtype`; `scaler` is given and no loss is scaled;
            `inputs_to_half` or `float32_modules` is given and nothing is computed in half precision; or, when the
            Trainer is built, the strategy shards parameters, and casts inputs and modules itself. When the module is
            placed: a module in `float32_modules` does not exist.

    Example:
        >>> Precision.named("bf16-mixed").compute_dtype, Precision.named(64).param_dtype
        (torch.bfloat16, torch.float64)
    """

    name: str
    param_dtype: torch.dtype
    compute_dtype: torch.dtype
    reduce_dtype: torch.dtype
    scales_loss: bool = False
    scaler: Settings = dataclasses.field(default=None, hash=False)
    cache: bool = True
    inputs_to_half: Inputs = None
    float32_modules: Modules = ()

    def __post_init__(self) -> None:
        for field in ("param_dtype", "compute_dtype", "reduce_dtype"):
            dtype = getattr(self, field)
            if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
                raise wrong_type("Precision", field, dtype, "a floating dtype of torch", "torch.float32")
        if self.autocasts and self.compute_dtype not in AUTOCAST_DTYPES:
            raise MisconfigurationException(
                f"Precision({self.name!r}) stores {self.param_dtype} and computes in {self.compute_dtype}.",
                expected="compute_dtype equal to param_dtype, or float16 or bfloat16, which autocast can cast to.",
                fix=f"compute_dtype={self.param_dtype}",
            )
        if self.scaler is not None and not self.scales_loss:
            raise MisconfigurationException(
                f"A loss scaler was given for precision {self.name!r}, which does not scale the loss.",
                expected="a scaler only where the loss is scaled: '16-mixed'.",
                fix="leave the scaler out, or use precision='16-mixed'.",
            )
        if self.scales_loss:
            check_settings(self.scaler)
        inputs, modules = (
            checked_inputs(self.name, self.inputs_to_half),
            checked_modules(self.name, self.float32_modules),
        )
        vars(self).update(inputs_to_half=inputs, float32_modules=modules)
        if self._chooses and self.compute_dtype not in AUTOCAST_DTYPES:
            raise MisconfigurationException(
                f"{self._chooses} was given for precision {self.name!r}, which computes in {self.compute_dtype}.",
                expected="a precision that computes in float16 or bfloat16.",
                fix=f"MixedPrecision('bf16-mixed', {self._chooses}=…), or leave it out.",
            )

    @staticmethod
    def named(name: str | int) -> Precision:
        """Return the precision called `name`; see :func:`named`."""
        return named(name)

    @property
    def autocasts(self) -> bool:
        """Whether operations are cast one by one (mixed), instead of everything having one dtype (true)."""
        return self.compute_dtype != self.param_dtype

    @property
    def converts_input(self) -> bool:
        """Whether `convert_input` does anything."""
        return self._converts or self.inputs_to_half is not None

    @property
    def _converts(self) -> bool:
        """Whether everything is to have one dtype, other than float32."""
        return not self.autocasts and self.compute_dtype != torch.float32

    @property
    def _chooses(self) -> str:
        """The first argument that chooses inputs or modules; empty without one."""
        return "inputs_to_half" if self.inputs_to_half is not None else "float32_modules" * bool(self.float32_modules)

    def check_strategy(self, strategy: Applies) -> None:
        """Raise if `strategy`, which has just been connected, cannot apply this precision; most can apply any."""
        if self._chooses and not strategy.keeps_layers:
            raise MisconfigurationException(
                f"precision={self.name!r} with {self._chooses} was given with {type(strategy).__name__}, which shards "
                "or divides layers and casts them itself.",
                expected="a strategy in which each process has all parameters.",
                fix=f"{owner()}(strategy='ddp') or one device, or leave {self._chooses} out.",
            )

    def convert(self, module: M) -> M:
        """Cast the floating parameters and buffers of `module`, in place, when everything is to have one dtype.

        Raises:
            MisconfigurationException: `float32_modules` names a module that does not exist.
        """
        release(module)
        cast = functools.partial(_cast, module, self.param_dtype) if self._converts else _cast_nothing
        if self.float32_modules:
            keep_in_float32(module, self.float32_modules, cast, self.compute_dtype if self._converts else None)
        else:
            cast()
        return module

    def convert_input(self, batch: Any) -> Any:
        """Return a copy of `batch` with floating tensors cast: all when everything is to have one dtype, or the chosen.

        Raises:
            MisconfigurationException: `inputs_to_half` holds an index or key that the batch does not have.
        """
        if self.inputs_to_half is not None:
            return cast_chosen(batch, self.inputs_to_half, self.compute_dtype)
        return cast_floating(batch, self.compute_dtype) if self._converts else batch

    def convert_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """Return the arguments of a call as `convert_input` casts a batch; indices are of `args`, keys of `kwargs`."""
        if self.inputs_to_half is None:
            converted: tuple[Any, Mapping[str, Any]] = self.convert_input((args, kwargs))
            return converted
        cast = cast_chosen({**dict(enumerate(args)), **kwargs}, self.inputs_to_half, self.compute_dtype)
        return tuple(cast[index] for index in range(len(args))), {name: cast[name] for name in kwargs}

    def init_context(self) -> AbstractContextManager[Any]:
        """Return a context in which new modules and tensors have `param_dtype`."""
        return nullcontext() if self.param_dtype is torch.float32 else DefaultDtype(self.param_dtype)

    def step_context(self, device_type: str) -> Callable[[], AbstractContextManager[Any]] | None:
        """Return a factory of the context around a step on this type of device; None when none is needed.

        Args:
            device_type: Such as ``'cpu'`` or ``'cuda'``.

        Raises:
            MisconfigurationException: torch cannot autocast on this type of device.

        Example:
            >>> step_context = Precision.named("bf16-mixed").step_context("cpu")
            >>> with step_context():
            ...     torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype
            torch.bfloat16
        """
        if device_type == "cpu" and self.compute_dtype is torch.float16:
            _warn_of_float16_on_cpu(self.name)
        if self._converts:
            return functools.partial(DefaultDtype, self.compute_dtype)
        if not self.autocasts:
            return None
        if not torch.amp.is_autocast_available(device_type):
            raise MisconfigurationException(
                f"precision={self.name!r} on {device_type!r} devices, where torch cannot autocast.",
                expected="a type of device that torch.amp.is_autocast_available() knows.",
                fix="precision='32-true' or 'bf16-true'.",
            )
        cache = self.cache and _cache_keeps_gradients()
        return functools.partial(torch.autocast, device_type, dtype=self.compute_dtype, cache_enabled=cache)

    def forget_casts_after(self, optimizer: Optimizer) -> RemovableHandle | None:
        """Let `optimizer` drop autocast's cached weights after each of its steps; for steps inside of the step context.

        Autocast keeps the weights that it has cast until its context ends. Manual optimization steps within it, and
        without this the next forward would use the weights of before the step. Returns None when nothing is cached.
        """
        if not (self.autocasts and self.cache):
            return None
        return optimizer.register_step_post_hook(_forget_casts)

    def loss_scaler(self, device_type: str) -> Scaler | None:
        """Return a new loss scaler for this type of device, or None when the loss is not scaled."""
        return LossScaler(self.scaler, device_type) if self.scales_loss else None


def named(name: str | int) -> Precision:
    """Return the precision called `name`.

    Args:
        name: ``'64-true'`` (or 64, ``'64'``), ``'32-true'`` (32, ``'32'``), ``'16-mixed'`` (16, ``'16'``),
            ``'bf16-mixed'`` (``'bf16'``), ``'16-true'``, ``'bf16-true'``, ``'transformer-engine'`` or
            ``'transformer-engine-float16'`` (:class:`lightlib.precision.TransformerEnginePrecision`), ``'fp8-mixed'``
            or ``'fp8-true'`` (:class:`lightlib.precision.Float8Precision`), or the name that an installed package
            declares in the entry-point group ``lightlib.precision``.

    Raises:
        ArgumentTypeError: `name` is neither a string nor an int.
        UnknownNameError: No precision has this name.
        MisconfigurationException: The precision needs a package that is not installed.

    Example:
        >>> named(16).name
        '16-mixed'
    """
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        expected = f"one of {', '.join(map(repr, _NAMED))}, or a Precision"
        raise wrong_type(owner(), "precision", name, expected, "'bf16-mixed'")
    full = _SHORT.get(str(name), str(name))
    substitute = registry.substituted("precision", full)
    if substitute is not None:
        standing_in: Precision = substitute()
        return standing_in
    if full in _NAMED:
        param, compute, scales_loss = _NAMED[full]
        reduce = param if param is compute else torch.float32
        return Precision(full, param, compute, reduce, scales_loss)
    if full in registry.BUILT_IN["precision"]:
        special: Precision = registry.get("precision", full)(full)
        return special
    if full not in registry.names("precision"):
        names = {*_NAMED, *_SHORT, *registry.names("precision")}
        # never the name of a dtype with another number of bits
        near = closest(str(name), sorted(candidate for candidate in names if _bits(candidate) == _bits(str(name))))
        raise UnknownNameError("precision", name, names, meant=near, fix=f"{owner()}(precision={near or '32-true'!r})")
    built = registry.get("precision", full)()
    if not isinstance(built, Precision):
        raise ArgumentTypeError(
            f"The entry point {full!r} of group 'lightlib.precision' returned a {type(built).__name__}.",
            expected="a callable without arguments that returns a lightlib.precision.Precision.",
            fix="correct the entry point in the package that declares it.",
        )
    return built


_NAMED: dict[str, tuple[torch.dtype, torch.dtype, bool]] = {
    "64-true": (torch.float64, torch.float64, False),
    "32-true": (torch.float32, torch.float32, False),
    "16-mixed": (torch.float32, torch.float16, True),
    "bf16-mixed": (torch.float32, torch.bfloat16, False),
    "16-true": (torch.float16, torch.float16, False),
    "bf16-true": (torch.bfloat16, torch.bfloat16, False),
}
_SHORT = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def _bits(name: str) -> tuple[str, bool]:
    match = re.search(r"\d+", name)
    return match[0] if match else "", "bf" in name.lower()


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    cast = _CASTS.get(dtype)
    cast(module) if cast is not None else module.to(dtype)


def _cast_nothing() -> None:
    """Leave the module in float32: autocast casts where it needs to."""


def _forget_casts(*_: object) -> None:
    torch.clear_autocast_cache()


@functools.cache
def _cache_keeps_gradients() -> bool:
    """Whether this torch gives a weight its gradient when its first use in the context was without gradients."""
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.zeros(1, 1, dtype=torch.float32, device="cpu", requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            with torch.no_grad():
                torch.mm(weight, weight)
            return torch.mm(weight, weight).requires_grad


@functools.cache
def _warn_of_float16_on_cpu(name: str) -> None:
    better = "bf16-mixed" if name == "16-mixed" else "bf16-true"
    warn(
        f"precision={name!r} computes in float16 on the CPU, which most processors do 30 to 60 times slower than "
        f"float32. precision={better!r} is fast there and needs no loss scaling.",
        PossibleUserWarning,
    )
