"""QuantizationAwareTraining: linear layers are trained with rounding to few bits, by torchao."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from lightlib import optional, report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_layers
from lightlib.checkpoint.directory.tensors import dtensor_type
from lightlib.errors import MisconfigurationException, check_int, check_word, nearest, wrong_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

M = TypeVar("M", bound=nn.Module)
_OWNER = "QuantizationAwareTraining"
_NAMES = ("8da4w", "int4")
_INT4: torch.dtype = vars(torch)["int4"]  # the types of torch lack it


class QuantizationAwareTraining(Callback):
    """Trains linear layers with weights that are rounded as in the quantized model, so that it loses little accuracy.

    When a run begins, torchao replaces each chosen `torch.nn.Linear` by a subclass that rounds in its forward; rounding
    passes gradients on. Parameters and their names stay, so checkpoints are those of the plain module, and a program
    without the callback loads them. Evaluations are computed with rounding as well. After the run, `convert` returns
    the quantized model. It works on one device, under DDP and FSDP, and was tested with torchao 0.18 on CPUs.

    Args:
        config: ``"8da4w"`` (default): weights of 4 bits and inputs of 8 bits, whose scales are computed for each token;
            ``"int4"``: weights of 4 bits; or a config of torchao, such as
            ``torchao.quantization.Int8DynamicActivationIntxWeightConfig(…)``.
        layers: Names of linear layers, with wildcards. Default: all. Subclasses of `torch.nn.Linear`, which have a
            forward of their own, are left as they are.
        group_size: Consecutive weights of a row that have one scale, for the named configs. Default 32.

    Raises:
        ArgumentTypeError: An argument has another type.
        UnknownNameError: There is no such config.
        MisconfigurationException: When a run begins: torchao is not installed, or has no such training; a name matches
            no linear layer, groups do not divide one, `configure_model` builds some, or the strategy divides layers.

    Example:
        >>> QuantizationAwareTraining(layers=["blocks.*", "head"])
        QuantizationAwareTraining(layers=['blocks.*', 'head'])
    """

    def __init__(self, config: Any = "8da4w", layers: str | Sequence[str] = "*", group_size: int = 32) -> None:
        super().__init__()
        if isinstance(config, str):
            check_word(_OWNER, "config", config, _NAMES)
        self.config = config
        names: Any = [layers] if isinstance(layers, str) else layers
        if not names or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise wrong_type(_OWNER, "layers", layers, "names of layers", '["blocks.*", "head"]')
        self.layers: list[str] = list(names)
        self.group_size = check_int(_OWNER, "group_size", group_size, 1, example=32)

    def state_dict(self) -> dict[str, Any]:
        """Return the arguments, with which a resumed run continues."""
        return {"config": repr(self.config), "layers": self.layers, "group_size": self.group_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Warn if the checkpoint is of a run with other arguments."""
        if state_dict != self.state_dict():
            report.warn(f"{_OWNER} resumes with {self.state_dict()}; the checkpoint was trained with {state_dict}.")

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if _splits_layers(trainer):
            need_layers(self, trainer)
        layers = self.prepare(pl_module)
        if stage == "fit":
            report.info(f"{_OWNER}: {len(layers)} linear layers are trained with rounded weights.")

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        plain = [name for name, layer in self._chosen(pl_module).items() if type(layer) is nn.Linear]
        if plain:
            raise MisconfigurationException(
                f"{_OWNER} has not changed {', '.join(plain[:3])}, which configure_model of {type(pl_module).__name__} "
                "builds.",
                expected="layers that exist when `setup` is called.",
                fix="build them in __init__ of the module.",
            )

    def prepare(self, module: nn.Module) -> list[str]:
        """Replace the chosen layers of a module, which stays the same object, and return their names.

        Args:
            module: The module; layers that are replaced already stay.

        Raises:
            MisconfigurationException: As when a run begins.
        """
        layers = self._chosen(module)
        self._quantize(module, "prepare", {name for name, layer in layers.items() if type(layer) is nn.Linear})
        for part in module.modules():
            if _computes_scales(part):
                vars(part)["not_in_checkpoint"] = ("scale", "zero_point")
        return list(layers)

    def convert(self, module: M) -> M:
        """Return a quantized copy of a module: torchao's tensors in the layers that were rounded.

        Args:
            module: A module that was trained with this callback, a part of it, or one with weights from a checkpoint.

        Raises:
            MisconfigurationException: As when a run begins; the parameters are sharded; or torchao has no kernel of
                `config` for this machine.
        """
        if any(isinstance(parameter, dtensor_type()) for parameter in module.parameters()):
            raise MisconfigurationException(
                f"{_OWNER}.convert got {type(module).__name__}, of which this process has a shard.",
                expected="a module with all of its parameters.",
                fix="load the checkpoint of the run, for instance with load_from_checkpoint, and convert that module.",
            )
        result = copy.deepcopy(module)
        self.prepare(result)
        self._quantize(result, "convert", set())
        return result

    def _quantize(self, module: nn.Module, step: str, names: set[str]) -> None:
        """Call torchao's `quantize_` for layers with these names, or to convert, for all that it has replaced."""
        package, training = (optional.load(f"torchao.quantization{part}", _OWNER) for part in ("", ".qat"))
        try:
            config = training.QATConfig(self._base(package), step=step)
            options = {"filter_fn": lambda layer, name: name in names} if step == "prepare" else {"filter_fn": None}
            package.quantize_(module, config, **options)
        except (AssertionError, ImportError, ValueError) as error:
            raise MisconfigurationException(
                f"{_OWNER}(config={self.config!r}): torchao cannot {step} {type(module).__name__}: {error}",
                expected="a config that torchao trains and converts on this machine, and layers that fit it.",
                fix=f"{_OWNER}(config='8da4w'), or layers=[…] with other layers.",
            ) from error

    def _base(self, package: Any) -> Any:
        if not isinstance(self.config, str):
            return self.config
        group = package.PerGroup(self.group_size)
        if self.config == "int4":
            return package.IntxWeightOnlyConfig(weight_dtype=_INT4, granularity=group)
        return package.Int8DynamicActivationIntxWeightConfig(weight_dtype=_INT4, weight_granularity=group)

    def _chosen(self, module: nn.Module) -> dict[str, nn.Linear]:
        """Return the chosen layers by their names: plain ones, and those that are replaced already."""
        linear = {name: layer for name, layer in module.named_modules() if _is_plain_or_replaced(layer)}
        chosen: dict[str, nn.Linear] = {}
        for pattern in self.layers:
            matches = [name for name in linear if fnmatchcase(name, pattern)]
            if not matches:
                raise MisconfigurationException(
                    f"{_OWNER}: {pattern!r} matches no linear layer of {type(module).__name__}."
                    f"{nearest(pattern, linear)}",
                    expected="names of torch.nn.Linear, with wildcards.",
                    fix=f"the layers are {', '.join(list(linear)[:12]) or 'none'}.",
                )
            chosen |= {name: linear[name] for name in matches}
        unfit = [name for name, layer in chosen.items() if layer.in_features % self.group_size]
        if isinstance(self.config, str) and unfit:
            raise MisconfigurationException(
                f"{_OWNER}(group_size={self.group_size}): {unfit[0]!r} has {chosen[unfit[0]].in_features} inputs.",
                expected="layers with a number of inputs that groups divide.",
                fix=f"another group_size, or layers=[…] without {', '.join(unfit[:5])}.",
            )
        return chosen


def _splits_layers(trainer: Trainer) -> bool:
    """Whether layers may compute with a shard of their parameters, and not with gathered ones as under FSDP."""
    axes = [axis.name for axis in getattr(trainer.strategy, "axes", ()) if axis.size != 1]
    return not axes or not {"replicate", "shard"}.issuperset(axes)


def _is_plain_or_replaced(layer: nn.Module) -> bool:
    kind = type(layer)
    return kind is nn.Linear or (issubclass(kind, nn.Linear) and kind.__module__.startswith("torchao."))


def _computes_scales(part: nn.Module) -> bool:
    """Whether a module of torchao computes its scales in each forward: those of the last one are no state."""
    is_dynamic = getattr(getattr(part, "config", None), "is_dynamic", False)
    return type(part).__module__.startswith("torchao.") and bool(is_dynamic)
