"""Metric: base class of metrics that collect results of samples, and compute numbers at the end."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from lightlib import distributed, report
from lightlib.errors import MisconfigurationException, check_type, check_word, shown
from lightlib.evaluation.exchange import from_rank_zero
from lightlib.loggers.logger import number
from lightlib.tree import to_device

_DEVICES = ("cpu", "gpu")


class Metric(ABC):
    """Base class of metrics that cannot be computed batch by batch: it keeps results, and sees all of them at the end.

    A subclass appends to `self.results` in `process`, preferably one entry for each sample, and computes numbers from
    the entries of all ranks in `compute_metrics`. `MetricCallback` calls both in a run. The entries are then in the
    order of the loader, so that the numbers are the same on any number of ranks, and without those of samples that a
    sampler repeated. Metrics that are sums over batches are better written with torchmetrics.

    Args:
        collect_device: Where tensors in `results` are kept: ``"cpu"``, or ``"gpu"`` for the device of the run.
            Default: ``"cpu"``.
        prefix: In front of the names, with a slash: ``prefix="coco"`` gives ``coco/ap``. Default: `default_prefix`.
        collect_dir: A folder that all ranks share, for results that are too large to be exchanged in memory: ranks
            write their results there, rank zero reads them, and the files are removed. Tensors, numbers, strings and
            collections of them only.

    Attributes:
        results: Entries of the batches so far.
        default_prefix: The prefix when none is given; None: no prefix.
        higher_is_better: For ``mode="auto"`` of `ModelCheckpoint` and `EarlyStopping`: a dict from names (without the
            prefix), or one bool for all names, which needs a prefix. None: unknown.

    Raises:
        UnknownNameError: Another `collect_device`.
        ArgumentTypeError: `prefix` is no string, or `collect_dir` no path.
        MisconfigurationException: `collect_dir` together with ``collect_device="gpu"``.

    Example:
        >>> class Median(Metric):
        ...     higher_is_better = {"median": False}
        ...     def process(self, batch, outputs):
        ...         self.results.extend((outputs - batch).abs().tolist())
        ...     def compute_metrics(self, results):
        ...         return {"median": sorted(results)[len(results) // 2]}
        >>> metric = Median(prefix="error")
        >>> metric.process(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 7.0]))
        >>> metric.evaluate()
        {'error/median': 1.0}
    """

    default_prefix: ClassVar[str | None] = None
    higher_is_better: bool | Mapping[str, bool] | None = None

    def __init__(
        self,
        collect_device: Literal["cpu", "gpu"] = "cpu",
        prefix: str | None = None,
        collect_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_word(owner, "collect_device", collect_device, _DEVICES, example="cpu")
        check_type(owner, "prefix", prefix, str | None, "a string", "'coco'")
        check_type(owner, "collect_dir", collect_dir, str | os.PathLike | None, "a path", "'shared'")
        if collect_dir is not None and collect_device != "cpu":
            raise MisconfigurationException(
                f"{owner}(collect_device={collect_device!r}, collect_dir={collect_dir!r}).",
                expected="collect_dir with collect_device='cpu' only: files are read into memory of the host.",
                fix=f"{owner}(collect_dir={collect_dir!r})",
            )
        self.collect_device, self.collect_dir = collect_device, collect_dir
        self.prefix = self.default_prefix if prefix is None else prefix
        self.results: list[Any] = []
        self._dataset_meta: Mapping[str, Any] | None = None
        self._once = report.Once()

    @abstractmethod
    def process(self, batch: Any, outputs: Any) -> None:
        """Append the results of a batch to `self.results`.

        Args:
            batch: The batch.
            outputs: The return value of the step.
        """

    @abstractmethod
    def compute_metrics(self, results: list[Any]) -> Mapping[str, Any]:
        """Return numbers by name. Called on rank zero.

        Args:
            results: The entries of all ranks.
        """

    @property
    def dataset_meta(self) -> Mapping[str, Any] | None:
        """The attribute `metainfo` of the data set that is evaluated, for instance its classes; None if it has none."""
        if self._dataset_meta is None:
            self._once.warn(
                "meta",
                f"{type(self).__name__} reads dataset_meta, but the data set has no attribute `metainfo`: it is None.",
                report.PossibleUserWarning,
            )
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, meta: Mapping[str, Any] | None) -> None:
        self._dataset_meta = meta

    def use_dataset(self, dataset: Any) -> None:
        """Take `dataset_meta` from a data set; one without it changes nothing."""
        meta = getattr(dataset, "metainfo", None)
        if meta is not None:
            self._dataset_meta = meta

    def evaluate(self, size: int | None = None) -> dict[str, float]:
        """Return the numbers of the results of all ranks, on every rank, and forget the results.

        For loops of your own; `MetricCallback` does this in a run.

        Args:
            size: The number of samples, if ranks share them as torch's `DistributedSampler` does: results are
                interleaved, and those of repeated samples dropped. None: those of a rank follow those of another.

        Raises:
            MisconfigurationException: There are fewer results, or `compute_metrics` returned no mapping.
        """
        local = self.drain(torch.device("cpu"))
        if size is None:
            results = [result for part in distributed.all_gather_object(local) for result in part]
        else:
            results = distributed.collect_results(local, size)
        return from_rank_zero(distributed.is_rank_zero(), distributed.broadcast, partial(self.numbers, results))

    # for MetricCallback and evaluate_offline
    def drain(self, device: torch.device) -> list[Any]:
        """Return the results, with tensors on a device, and forget them."""
        taken, self.results = self.results, []
        moved: list[Any] = to_device(taken, device)
        return moved

    def numbers(self, results: list[Any]) -> dict[str, float]:
        """Return the result of `compute_metrics` as floats, under names with the prefix; nothing of no results.

        Raises:
            MisconfigurationException: It is no mapping.
            ArgumentTypeError: A value is no number.
        """
        owner = type(self).__name__
        if not results:
            report.warn(
                f"{owner} has no results, so it has no numbers.\n  Expected: `process` appends to self.results.\n"
                "  Fix: self.results.append(…) for each sample in `process`.",
                report.PossibleUserWarning,
            )
            return {}
        computed = self.compute_metrics(results)
        if not isinstance(computed, Mapping):
            raise MisconfigurationException(
                f"{owner}.compute_metrics returned {shown(computed)}.",
                expected="a dict from names to numbers.",
                fix='return {"accuracy": value}',
            )
        return {self._named(str(name)): number(str(name), value) for name, value in computed.items()}

    def is_higher_better(self, name: str) -> bool | None:
        """Return whether more is better of a number with this name, prefix included; None if unknown."""
        directions = self.higher_is_better
        if isinstance(directions, Mapping):
            return next((bool(better) for key, better in directions.items() if self._named(key) == name), None)
        below_prefix = bool(self.prefix) and name.startswith(f"{self.prefix}/")
        return bool(directions) if directions is not None and below_prefix else None

    def _named(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name
