"""Probes: short runs on copies of the user's objects, which leave the run itself as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightlib.data.seed import isolate_rng
from lightlib.errors import MisconfigurationException

Edit = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Call:
    """The user's objects in a call of the Trainer.

    Attributes:
        verb: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        module: The module.
        given: The loaders that the user passed, by argument.
        datamodule: The data module, or None.
        path: The checkpoint whose weights the call loads, or None.
        weights_only: How it is read.
    """

    verb: str
    module: Any
    given: Mapping[str, Any]
    datamodule: Any = None
    path: Any = None
    weights_only: bool | None = None

    def copied(self) -> Call:
        """Return this call with copies of all objects; the tensors and arrays in data sets are shared.

        Raises:
            MisconfigurationException: An object cannot be copied.
        """
        owners = [self.datamodule, *self.given.values()]
        shared = {id(value): value for owner in owners for value in _arrays(owner)}
        shared |= {id(value): value for name in vars(self.module) for value in _arrays(vars(self.module)[name])}
        try:
            module, loaders, datamodule = copy.deepcopy((self.module, dict(self.given), self.datamodule), shared)
        except Exception as error:
            raise MisconfigurationException(
                f"A search cannot copy the module and its data: {type(error).__name__}: {error}",
                expected="a module, a data module and loaders that copy.deepcopy copies: the search trains the copies.",
                fix="make files, connections and generators in `setup` or in the methods that return loaders.",
            ) from error
        return replace(self, module=module, given=loaders, datamodule=datamodule)


def run_call(trainer: Any, call: Call) -> None:
    """Make the call on this Trainer; a fit loads the weights of the checkpoint and nothing else."""
    paths = {"ckpt_path": call.path, "weights_only": call.weights_only} if call.path is not None else {}
    if call.verb == "fit":
        whole = {"resume": "weights"} if paths else {}
        trainer.fit(call.module, **call.given, datamodule=call.datamodule, **paths, **whole)
        return
    loaders = next((value for value in call.given.values() if value is not None), None)
    quiet = {"return_predictions": False} if call.verb == "predict" else {"verbose": False}
    getattr(trainer, call.verb)(call.module, loaders, datamodule=call.datamodule, **paths, **quiet)


@contextmanager
def unseen() -> Iterator[None]:
    """Restore the generators and the default dtype on exit."""
    dtype = torch.get_default_dtype()
    try:
        with isolate_rng():
            yield
    finally:
        torch.set_default_dtype(dtype)


def limits_of(verb: str, steps: int) -> dict[str, Any]:
    """Return the settings of a probe of `steps` steps, or evaluation batches, that logs, saves and prints nothing."""
    names = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}
    limits: dict[str, Any] = {"max_steps": steps, "max_epochs": -1, "limit_val_batches": 0}
    if verb != "fit":
        limits = {f"limit_{names[verb]}_batches": steps}
    return {
        **limits,
        "limit_is_a_guess": False,
        "min_steps": None,
        "min_epochs": None,
        "max_time": None,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 0,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_autolog_hparams": False,
        "save_user_state": False,
    }


def _arrays(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the tensors and arrays that the data sets in `value` hold."""
    if isinstance(value, DataLoader):
        yield from _arrays(value.dataset, depth)
    elif isinstance(value, Dataset) and not isinstance(value, IterableDataset):
        for attribute in vars(value).values():
            yield from _tensors_in(attribute, depth)
    elif isinstance(value, (list, tuple)) and depth:
        for element in value:
            if isinstance(element, (DataLoader, Dataset)):
                yield from _arrays(element, depth - 1)
    elif hasattr(value, "prepare_data") and hasattr(value, "__dict__") and depth == 4:
        for attribute in vars(value).values():
            yield from _arrays(attribute, depth - 1)


def _tensors_in(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__"):
        yield value
    elif isinstance(value, Dataset):
        yield from _arrays(value, depth - 1) if depth else ()
    elif isinstance(value, (list, tuple)) and depth and len(value) < 1000:
        for element in value:
            yield from _tensors_in(element, depth - 1)
