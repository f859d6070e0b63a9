"""DataModule: data sets and loaders, separate from the model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, random_split

from lightlib import samplers
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.loading import ClassOnly, load_datamodule
from lightlib.core.module.overrides import overrides
from lightlib.core.values.hparams import HyperparametersMixin
from lightlib.data.arrays import data_set_of, is_arrays
from lightlib.data.combined import flatten, length
from lightlib.errors import MisconfigurationException, UnknownNameError, check_number, check_type, nearest, shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from lightlib.core.trainer import Trainer

_STAGES = ("train", "val", "test", "predict")


class DataModule(DataHooks, HyperparametersMixin):
    """A source of data: `prepare_data` runs once, `setup` in every process, and each stage has a loader.

    It also works without a Trainer.

    Example:
        >>> import torch, lightlib
        >>> class Numbers(lightlib.DataModule):
        ...     def train_dataloader(self):
        ...         return torch.utils.data.DataLoader(torch.arange(10.0), batch_size=5)
        >>> [batch.sum().item() for batch in Numbers().train_dataloader()]
        [10.0, 35.0]
    """

    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "datamodule_hparams_type"

    trainer: Trainer | None = None

    def __init__(self) -> None:
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:  # a loader's `collate_fn=self.…` is sent to its workers without a run
        return {**self.__dict__, "trainer": None}

    def on_exception(self, exception: BaseException) -> None:
        """Called when an exception or Ctrl-C ends the run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    load_from_checkpoint = ClassOnly(load_datamodule)

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int | Literal["auto"] = 0,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        train_kwargs: Mapping[str, Any] | None = None,
        eval_kwargs: Mapping[str, Any] | None = None,
        limit_samples: int | Sequence[int] | Mapping[str, Any] | None = None,
        validation_split: float | None = None,
        **init_kwargs: Any,
    ) -> Self:
        """Return a DataModule that serves data sets, shuffling the training data.

        Args:
            train_dataset, val_dataset, test_dataset, predict_dataset: A Dataset, a tuple of arrays such as ``(x, y)``,
                or a sequence or mapping of them.
            batch_size: Samples per batch. Default 1. Also passed to this class if its `__init__` takes it.
            num_workers: Worker processes per loader. Default 0. ``"auto"``: the cores that this process may use, shared
                by the processes of this machine. Also passed to this class if its `__init__` takes it.
            collate_fn: Makes a batch of a list of samples. Default: torch's. Passed on like these two if it is given.
            train_kwargs: Further arguments of the DataLoaders for training, which replace those above and
                ``shuffle=True``: ``{"drop_last": True, "sampler": sampler}``. ``{"pin_memory": "auto"}`` pins memory
                if there is a CUDA device. Default: none.
            eval_kwargs: The same for validation, test and prediction. Default: none.
            limit_samples: Use a part of each data set: the first n samples, the last ones for a negative n, or a list
                of indices. A dict such as ``{"train": 5000}`` limits single stages. Default: all.
            validation_split: The share, between 0 and 1, or the number of samples of `train_dataset` that are validated
                and not trained: the same ones in every run and process. Default: none.
            init_kwargs: Passed to this class.

        Raises:
            MisconfigurationException: An argument of the DataLoaders is unknown or not a mapping, a limit or stage is
                wrong, or the split leaves nothing, or there is a `val_dataset` as well.

        Example:
            >>> import torch
            >>> dataset = torch.utils.data.TensorDataset(torch.arange(3))
            >>> data = DataModule.from_datasets(dataset, batch_size=2, collate_fn=len, train_kwargs={"drop_last": True})
            >>> list(data.train_dataloader())
            [2]
        """
        for_training = _loader_arguments("train_kwargs", train_kwargs)
        for_evaluation = _loader_arguments("eval_kwargs", eval_kwargs)
        limits = _limits(limit_samples)
        _check_workers(num_workers)
        by_stage = {"train": train_dataset, "val": val_dataset, "test": test_dataset, "predict": predict_dataset}
        by_stage = {stage: data_set_of(data, stage) if is_arrays(data) else data for stage, data in by_stage.items()}
        if validation_split is not None:
            by_stage["train"], by_stage["val"] = _split(by_stage["train"], by_stage["val"], validation_split)

        def loaders(datasets: Any, stage: str) -> Any:
            if isinstance(datasets, Mapping):
                return {key: loaders(dataset, stage) for key, dataset in datasets.items()}
            if isinstance(datasets, Sequence) and not isinstance(datasets, Dataset):
                return [loaders(dataset, stage) for dataset in datasets]
            training = stage == "train"
            options = for_training if training else for_evaluation
            if limits[stage] is not None:
                datasets = samplers.limit_samples(datasets, limits[stage])
            workers = _workers_per_process(datamodule) if num_workers == "auto" else num_workers
            arguments: dict[str, Any] = {"num_workers": workers, "pin_memory": False, "collate_fn": collate_fn}
            if options.get("batch_sampler") is None:
                arguments["batch_size"] = batch_size
                orders = options.get("sampler") is not None or isinstance(datasets, IterableDataset)
                arguments["shuffle"] = training and not orders
            arguments.update(options)
            if arguments["pin_memory"] == "auto":
                arguments["pin_memory"] = torch.cuda.is_available()
            return DataLoader(datasets, **arguments)

        taken = inspect.signature(cls.__init__).parameters.values()
        names = {p.name for p in taken if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        takes_all = any(p.kind is p.VAR_KEYWORD for p in taken)
        shared = {"batch_size": batch_size, "num_workers": num_workers}
        passed: dict[str, Any] = {name: value for name, value in shared.items() if takes_all or name in names}
        if collate_fn is not None and (takes_all or "collate_fn" in names):
            passed["collate_fn"] = collate_fn
        datamodule = cls(**passed, **init_kwargs)
        for stage, datasets in by_stage.items():
            if datasets is not None:
                name = f"{stage}_dataloader"
                setattr(datamodule, name, lambda datasets=datasets, stage=stage: loaders(datasets, stage))
        return datamodule

    def __str__(self) -> str:
        lines = []
        for stage in ("train", "val", "test", "predict"):
            name = f"{stage}_dataloader"
            if overrides(self, DataModule, name):
                try:
                    sizes = [length(loader) for loader in flatten(getattr(self, name)())[0]]
                    lines.append(f"{stage}: {', '.join(f'{size:g} batches' for size in sizes)}")
                except Exception as error:  # noqa: BLE001  a loader may need setup() first
                    lines.append(f"{stage}: not available yet ({type(error).__name__})")
        return f"{type(self).__name__}({'; '.join(lines) or 'no loaders'})"


def _split(train: Any, val: Any, share: Any) -> list[Any]:
    """Return the training and the validation part of a data set."""
    owner, fix = "DataModule.from_datasets", "DataModule.from_datasets(dataset, validation_split=0.2)"
    check_number(owner, "validation_split", share, above=0, example=0.2)
    kind = (Sequence, Mapping, IterableDataset)
    if val is not None or train is None or (isinstance(train, kind) and not isinstance(train, Dataset)):
        conflict = "a val_dataset" if val is not None else f"train_dataset={shown(train)}"
        raise MisconfigurationException(
            f"{owner} got validation_split={share!r} and {conflict}.",
            expected="one training data set with a length, and no validation data.",
            fix=fix,
        )
    size = len(train)
    num = round(size * share) if isinstance(share, float) and share <= 1 else int(share)
    if not 0 < num < size or (share > 1 and share != num):
        raise MisconfigurationException(
            f"{owner} got validation_split={share!r} for {size} samples.",
            expected=f"a share or number that leaves at least one of them on both sides: at most {size - 1}.",
            fix=fix,
        )
    return random_split(train, [size - num, num], torch.Generator().manual_seed(0))


def _limits(limits: Any) -> dict[str, Any]:
    """Return the limit of each stage; None is no limit."""
    if not isinstance(limits, Mapping):
        return dict.fromkeys(_STAGES, limits)
    for stage in limits:
        if stage not in _STAGES:
            raise UnknownNameError("stage in limit_samples of DataModule.from_datasets", stage, _STAGES)
    return {stage: limits.get(stage) for stage in _STAGES}


def _check_workers(num_workers: Any) -> None:
    if isinstance(num_workers, str) and num_workers != "auto":
        raise MisconfigurationException(
            f"num_workers of DataModule.from_datasets is {num_workers!r}.{nearest(num_workers, ['auto'])}",
            expected="an int >= 0, or 'auto'.",
            fix="DataModule.from_datasets(train, num_workers='auto')",
        )


def _workers_per_process(datamodule: DataModule) -> int:
    """Return the cores that this process may use, divided by the processes of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    strategy = None if datamodule.trainer is None else datamodule.trainer.strategy
    return max(1, cores // (1 if strategy is None else strategy.environment.local_size))


def _loader_arguments(name: str, arguments: Any) -> dict[str, Any]:
    """Return the further arguments of DataLoaders, checked by their names."""
    if arguments is None:
        return {}
    expected = "a dict of arguments of torch.utils.data.DataLoader, or None"
    check_type("DataModule.from_datasets", name, arguments, Mapping, expected, '{"drop_last": True}')
    parameters = set(inspect.signature(DataLoader.__init__).parameters) - {"self", "dataset"}
    for key in arguments:
        if key not in parameters:
            raise UnknownNameError(f"argument of a DataLoader in {name}", key, parameters)
    return dict(arguments)
