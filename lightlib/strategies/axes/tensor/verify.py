"""The check of an automatic plan: the first forward of each split module against an unsplit one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.func import functional_call

from lightlib.errors import MisconfigurationException
from lightlib.precision.context import cast_floating
from lightlib.strategies.axes.autograd_collectives import gathered, shard_of
from lightlib.tree import map_tensors, tensors_in

# The largest difference that the order of additions may make, relative to the largest output.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_TOKENS = 1


class FirstForward:
    """Compares, in the first call of a unit, the outputs of its parts with those of an unsplit copy.

    Both run in evaluation mode without gradients, with the same inputs and the same random numbers, and the copy with
    weights that are gathered for this call.

    Args:
        name: The name of the unit: a block, or the module that holds the split layers.
        unit: The unit before it is split.
        parts: By name within the unit, the split layers of each part, to name in errors.
        tokens: The mesh over which the unit's inputs are split along the sequence; None if they are not.
        dtype: The one to which parameters and inputs are cast when they are used; None: they are not cast.

    Raises:
        MisconfigurationException: In the first call: outputs differ; or a layer is called without the unit.
    """

    def __init__(
        self,
        name: str,
        unit: nn.Module,
        parts: Mapping[str, list[str]],
        tokens: DeviceMesh | None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._dtype = dtype
        self._name, self._unit, self._parts, self._tokens = name, unit, parts, tokens
        self._forward: Callable[..., Any] = unit.forward  # without what other axes put around it
        places = {
            id(parameter): nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            for parameter in unit.parameters()
        }
        self._copy = copy.deepcopy(unit, {**places, **{id(buffer): buffer for buffer in unit.buffers()}})
        self._handles: list[Any] = []

    def watch(self) -> None:
        """Wait for the first call."""
        check = torch.compiler.disable(self._check)  # type: ignore[no-untyped-call]
        self._handles.append(self._unit.register_forward_pre_hook(check, with_kwargs=True))
        for part, layers in self._parts.items():
            for layer in layers:
                name = f"{part}.{layer}" if part else layer
                guard = torch.compiler.disable(partial(self._refuse_alone, name))  # type: ignore[no-untyped-call]
                self._handles.append(self._unit.get_submodule(name).register_forward_pre_hook(guard))

    def _refuse_alone(self, layer: str, *_: Any) -> None:
        full = ".".join(word for word in (self._name, layer) if word)
        raise MisconfigurationException(
            f"{full} is split over the tensor axis, as traced in the forward of {self._called()}, but it was called "
            "without it, where its outputs are only a shard.",
            expected=f"calls of {self._called()}, or a plan for the steps as they are.",
            fix=f'keep it in full: ParallelPlan(tensor={{"{full}": "replicate"}}); or write a plan of all layers.',
        )

    def _check(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        for handle in self._handles:
            handle.remove()
        values = {name: self._cast(_full(value.detach())) for name, value in self._unit.named_parameters()}
        buffers = {name: value.detach().clone() for name, value in self._unit.named_buffers()}
        outputs, expected = _Outputs(), _Outputs()
        with torch.no_grad(), _evaluated(self._unit), _kept(self._unit):
            arguments, named = _copied((args, kwargs))
            with _same_random_numbers(args), outputs.of(self._unit, self._parts):
                try:
                    outputs.add("", self._forward(*arguments, **named))
                except Exception as error:
                    raise self._failed(next(iter(self._parts)), f"{type(error).__name__}: {error}") from error
            arguments, named = self._cast(_copied((self._joined(args), kwargs)))
            with _same_random_numbers(args), expected.of(self._copy.eval(), self._parts):
                expected.add("", functional_call(self._copy, {**values, **buffers}, arguments, named))
        for part in [*(part_name for part_name in self._parts if part_name), ""]:
            self._compare(part, outputs.by_part.get(part, []), expected.by_part.get(part, []))
        self._handles.clear()
        del self._copy

    def _compare(self, part: str, outputs: list[Tensor], expected: list[Tensor]) -> None:
        if self._tokens is not None:
            expected = [self._shard(tensor, like) for tensor, like in zip(expected, outputs, strict=False)]
        if [tensor.shape for tensor in outputs] != [tensor.shape for tensor in expected]:
            raise self._failed(part, f"shapes {_shapes(outputs)} in place of {_shapes(expected)}")
        for tensor, other in zip(outputs, expected, strict=True):
            if not tensor.is_floating_point():
                if not torch.equal(tensor, other):
                    raise self._failed(part, f"different values of {tensor.dtype}")
                continue
            tolerance = max(TOLERANCES.get(dtype, 1e-4) for dtype in (tensor.dtype, _computed_in(tensor)))
            scale = float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
            if torch.allclose(tensor, other, rtol=0.0, atol=tolerance * scale, equal_nan=True):
                continue
            difference = float((tensor.double() - other.double()).abs().max())
            raise self._failed(
                part, f"a difference of {difference:.2g}, more than {tolerance:g} of the largest output ({scale:.2g})"
            )

    def _failed(self, part: str, difference: str) -> MisconfigurationException:
        parts = [part] if part in self._parts else list(self._parts)
        layers = [".".join(filter(None, (self._name, part, layer))) for part in parts for layer in self._parts[part]]
        named = ".".join(filter(None, (self._name, part))) or type(self._unit).__name__
        quoted = ", ".join(f'"{layer}": "replicate"' for layer in layers[:6])
        return MisconfigurationException(
            f"Split over the tensor axis, {named} does not compute what it computes in full: {difference}. The layers "
            f"{', '.join(layers)} were split without a plan. Nothing has been trained yet.",
            expected="the same outputs, up to the order of additions.",
            fix=f"keep them in full: ParallelPlan(tensor={{{quoted}}}); or write a plan of all layers.",
        )

    def _called(self) -> str:
        return self._name or type(self._unit).__name__

    def _cast(self, data: Any) -> Any:
        return data if self._dtype is None else cast_floating(data, self._dtype)

    def _joined(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs with the full sequence in front."""
        if self._tokens is None:
            return args
        return (gathered(args[0], _TOKENS, self._tokens.get_group()), *args[1:])

    def _shard(self, tensor: Tensor, like: Tensor) -> Tensor:
        assert self._tokens is not None
        return tensor if tensor.shape == like.shape else shard_of(tensor, _TOKENS, self._tokens.get_group())


def _computed_in(tensor: Tensor) -> torch.dtype:
    """Return the dtype of matrix products in this context: under autocast another than that of their sums."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


class _Outputs:
    """The tensors that parts of a module return in one forward, by name."""

    def __init__(self) -> None:
        self.by_part: dict[str, list[Tensor]] = {}

    def add(self, part: str, output: Any) -> None:
        """Keep the tensors of one call."""
        self.by_part.setdefault(part, []).extend(_full(tensor).detach().clone() for tensor in tensors_in(output))

    @contextmanager
    def of(self, unit: nn.Module, parts: Mapping[str, Any]) -> Iterator[None]:
        """Keep the outputs of `parts` of `unit`."""

        def keep(part: str, _: nn.Module, __: Any, output: Any) -> None:
            self.add(part, output)

        handles = [unit.get_submodule(part).register_forward_hook(partial(keep, part)) for part in parts if part]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _evaluated(unit: nn.Module) -> Iterator[None]:
    modes = {part: part.training for part in unit.modules()}
    unit.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def _kept(unit: nn.Module) -> Iterator[None]:
    """Restore the buffers afterwards."""
    before = {name: value.clone() for name, value in unit.named_buffers()}
    try:
        yield
    finally:
        for name, value in unit.named_buffers():
            value.copy_(before[name])


@contextmanager
def _same_random_numbers(args: Any) -> Iterator[None]:
    """Draw the numbers that come next, and then again."""
    devices = {tensor.device for tensor in tensors_in(args) if tensor.device.type != "cpu"}
    kind = next(iter(devices)).type if devices else "cuda"
    with torch.random.fork_rng([device.index for device in devices], device_type=kind):
        yield


def _copied(data: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().clone(), data)


def _full(value: Any) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _shapes(values: list[Tensor]) -> str:
    return ", ".join(str(tuple(value.shape)) for value in values) or "none"
