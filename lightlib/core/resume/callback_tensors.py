"""Tensors that callbacks keep by parameter name: collected for a checkpoint, and given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint.directory.tensors import dtensor_type, read_tensors
from lightlib.checkpoint.storage.content import lightlib_state
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException, nearest, shown
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

States = dict[str, dict[str, dict[str, Tensor]]]


def callback_tensors(
    trainer: Trainer, module: Module, strategy: Strategy, callbacks: Sequence[Callback], sharded: bool = False
) -> States:
    """Return the tensors of the callbacks' `sharded_state`, by `state_key`; all processes call this.

    Args:
        sharded: Leave the tensors where they are, for a directory. False: in full, on rank zero.
    """
    states: States = {}
    for callback in callbacks:
        if not _defines(callback, "sharded_state"):
            continue
        state, error = _checked(callback, callback.sharded_state(trainer, module), module)
        answers = strategy.collectives.all_gather_object((error, list(state)))
        first = next((raised for raised, _ in answers if raised is not None), None)
        if first is not None:
            raise first
        gather = strategy.sharded_parameter_tensors if sharded else strategy.parameter_tensors
        kinds = dict.fromkeys(kind for _, tensors in answers for kind in tensors)  # a stage of a pipeline may hold none
        if kinds:
            states[callback.state_key] = {kind: gather(state.get(kind, {})) for kind in kinds}
    return states


def restore_callback_tensors(
    trainer: Trainer,
    module: Module,
    strategy: Strategy,
    callbacks: Sequence[Callback],
    content: Mapping[str, Any],
) -> None:
    """Give callbacks the tensors that a checkpoint holds for them, placed as the parameters of this process are."""
    by_key = {callback.state_key: callback for callback in callbacks}
    for key, state in (lightlib_state(content).get("callback_tensors") or {}).items():
        callback = by_key.get(key)
        if callback is None:
            if key not in content["callbacks"]:
                report.warn(f"The checkpoint holds the tensors of a callback that this run does not have: {key}.")
            continue
        if not _defines(callback, "load_sharded_state"):
            report.warn(
                f"The checkpoint holds tensors of the callback {key}, which has no load_sharded_state: they are left "
                'out. Define the method, or resume with resume={"callbacks": False}.'
            )
            continue
        try:
            placed = {
                kind: strategy.place_parameter_tensors(tensors if strategy.reads_parts else read_tensors(tensors))
                for kind, tensors in state.items()
            }
        except MisconfigurationException:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The tensors of the callback {key} in the checkpoint do not fit {type(module).__name__}: {error}.",
                expected="a tensor of the same shape for each parameter of the saved run.",
                fix='resume with the same module, or leave callbacks out: fit(…, resume={"callbacks": False}).',
            ) from error
        callback.load_sharded_state(trainer, module, placed)


def _defines(callback: Callback, name: str) -> bool:
    method = getattr(callback, name, None)
    return method is not None and getattr(method, "__func__", None) is not getattr(Callback, name)


def call_if_defined(callback: Callback, name: str, *args: Any) -> Any:
    """Call a method of a callback unless it is set to None."""
    method = getattr(callback, name, None)
    return None if method is None else method(*args)


def _checked(
    callback: Callback, state: object, module: nn.Module
) -> tuple[dict[str, dict[str, Tensor]], MisconfigurationException | None]:
    """Return the detached tensors of a callback, and the error if one of them does not fit its parameter."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    try:
        if not isinstance(state, Mapping):
            raise _no_mapping(callback, f"{type(callback).__name__}.sharded_state returned {shown(state)}.")
        return {
            str(kind): _detached(callback, kind, tensors, parameters, module) for kind, tensors in state.items()
        }, None
    except MisconfigurationException as error:
        return {}, error.with_traceback(None)


def _detached(
    callback: Callback, kind: object, tensors: object, parameters: Mapping[str, nn.Parameter], module: nn.Module
) -> dict[str, Tensor]:
    returned = f"{type(callback).__name__}.sharded_state returned"
    if not isinstance(kind, str) or not isinstance(tensors, Mapping):
        raise _no_mapping(callback, f"{returned} {shown(tensors)} for {kind!r}.")
    for name, value in tensors.items():
        if name not in parameters:
            raise MisconfigurationException(
                f"{returned} {name!r} in {kind!r}, which is no parameter of {type(module).__name__} on this process."
                f"{nearest(str(name), parameters)}",
                expected="names from pl_module.named_parameters().",
                fix="use those names; return anything that belongs to no parameter from state_dict.",
            )
        if not isinstance(value, Tensor):
            raise _no_mapping(callback, f"{returned} {shown(value)} for {name!r} in {kind!r}.")
        expected, got = _placement(parameters[name]), _placement(value)
        if expected != got:
            raise MisconfigurationException(
                f"{returned} a tensor for {name!r} in {kind!r} with {_described(got)}; the parameter has "
                f"{_described(expected)}.",
                expected="a tensor with the shape and the placement of the parameter.",
                fix="make it from the parameter, torch.zeros_like(parameter) or parameter.detach().clone(); return "
                "tensors of other shapes from state_dict.",
            )
    return {name: value.detach() for name, value in tensors.items()}


def _placement(tensor: Tensor) -> tuple[tuple[int, ...], Any]:
    """Return the full shape of a tensor, and the mesh and placements of a DTensor."""
    where = (tensor.device_mesh, tensor.placements) if isinstance(tensor, dtensor_type()) else None
    return tuple(tensor.shape), where


def _described(placement: tuple[tuple[int, ...], Any]) -> str:
    shape, where = placement
    return f"shape {shape}" if where is None else f"shape {shape} as a DTensor ({', '.join(map(str, where[1]))})"


def _no_mapping(callback: Callback, problem: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        problem,
        expected="tensors by parameter name, under a name of their own: {'average': {'net.weight': tensor}}.",
        fix=f"return {{'average': tensors}} from {type(callback).__name__}.sharded_state.",
    )
