"""The content of a checkpoint: its keys and their types, and the names that have a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict, cast

from torch import Tensor

OURS: Final = "lightlib"
CALLBACK_TENSORS: Final = "callback_tensors"  # within it
TRAINED: Final = "current_model_state"  # the weights that are trained, where "state_dict" holds their average
AVERAGED: Final = "average_model_state"  # the average, where "state_dict" holds the weights that are trained
FROZEN: Final = "frozen_weights"  # the weights that a checkpoint leaves out, with their checksums
SHARDED: Final = (
    "state_dict",
    TRAINED,
    AVERAGED,
    "optimizer_states",
)  # like the callbacks' tensors; read by each process as needed
FORMAT: Final = 3  # version of the layout under that key
INTERRUPTED: Final = "interrupted.ckpt"  # the file of a run that a signal has ended


class RankState(TypedDict, total=False):
    """The part of a state that differs between ranks."""

    results: dict[str, Any]  # sums of `self.log` and of torchmetrics over the epoch
    rng: dict[str, Any]  # states of the random number generators
    place: int  # which shard of the data the rank reads
    validation: dict[str, Any]  # states of the validation loaders' generators
    user: Mapping[str, Any]  # changes of the user's objects
    unfinished: dict[str, Any]  # the hook within which it was written, and gradients that wait for a step
    buffers: Mapping[str, Any]  # that differ from rank zero's
    data: dict[str, Any] | None  # position in the data, if each rank draws from a sampler of its own


class LightlibState(RankState, total=False):
    """The entry "lightlib": everything that Lightning's checkpoints do not hold; with the state of rank zero."""

    format: int  # version of this layout
    torch: str  # version of torch
    progress: dict[str, int]  # the counters of the run
    world_size: int
    label: dict[str, Any]  # which run wrote the checkpoint, and when (`Label.as_dict`)
    optimizer_names: list[list[list[str]]]  # names of the parameters, by optimizer and group
    begun: bool  # whether training has begun
    stop_asked: bool  # whether an early stop was requested
    requests: dict[str, Any]  # of a validation or the end of the epoch, and the reason of a stop
    validating: bool  # whether it was written within a validation
    limits: dict[str, list[Any]]  # that hooks have changed: their values when training began, and now
    val_loaded_at: int | None  # the epoch in which the validation loaders were requested
    gradient_norm: Tensor | None  # the last one
    schedules_waiting: list[int]  # those that step after the validation that is due
    loggers: Any  # positions of the loggers
    setting: dict[str, Any]  # settings that the numbers depend on, to be compared on resume
    strategy: dict[str, Any]  # state of the strategy
    ranks: list[RankState]  # the state of each rank, if there are several
    # of `Callback.sharded_state`: by callback, by the callback's name for them, and by parameter
    callback_tensors: dict[str, dict[str, dict[str, Any]]]


# The keys of a checkpoint. All but "lightlib" are Lightning's. Further keys hold hyperparameters (under
# `CHECKPOINT_HYPER_PARAMS_KEY`), the state of the data module (under the name of its class), and additions of the
# user's `on_save_checkpoint`. A checkpoint of weights has the first five and "lightlib" only.
Content = TypedDict(
    "Content",
    {
        "epoch": int,
        "global_step": int,
        "pytorch-lightning_version": str,
        "state_dict": Mapping[str, Any],
        "loops": dict[str, Any],
        "optimizer_states": list[dict[str, Any]],
        "lr_schedulers": list[dict[str, Any]],
        "MixedPrecision": dict[str, Any],
        "callbacks": dict[str, Any],
        "lightlib": LightlibState,
    },
    total=False,
)


def lightlib_state(content: Mapping[str, Any]) -> LightlibState:
    """Return the entry "lightlib" of a checkpoint; empty for one of Lightning."""
    return cast("LightlibState", content.get(OURS) or {})


def sharded_and_rest(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of which each process may have a shard, and the remaining ones.

    Example:
        >>> sharded_and_rest({"epoch": 1, "state_dict": {}, "lightlib": {"format": 3, "callback_tensors": {}}})
        ({'state_dict': {}, 'lightlib': {'callback_tensors': {}}}, {'epoch': 1, 'lightlib': {'format': 3}})
    """
    sharded = {key: content[key] for key in SHARDED if key in content}
    rest = {key: value for key, value in content.items() if key not in sharded}
    ours = rest.get(OURS)
    if isinstance(ours, dict) and CALLBACK_TENSORS in ours:
        sharded[OURS] = {CALLBACK_TENSORS: ours[CALLBACK_TENSORS]}
        rest[OURS] = {key: value for key, value in ours.items() if key != CALLBACK_TENSORS}
    return sharded, rest
